"""Errors of gradients against step size, and by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from npxl.audit.frame import Result, Rows
from npxl.page.pictures import Picture

_KINDS = ("complex", "direction", "central")
_SMALLEST = 1e-18  # what is shown of an error that is 0


def pictures(rows: Rows) -> Iterator[Picture]:
    """Of the first check that perturbed entries one at a time."""
    for results in rows.values():
        tensors = [result for result in results if "complex" in result.figures]
        if tensors:
            yield _by_step(tensors)
            yield _by_tensor(tensors)
            return


def _by_step(tensors: list[Result]) -> Picture:
    steps = np.array(tensors[0].data[1])
    errors = np.array([[e.relative for e in result.data[0].central] for result in tensors])
    errors = np.where((errors > 0) & np.isfinite(errors), errors, np.nan)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for n, line in enumerate(errors):
            label = "a tensor" if n == 0 else None
            axes.plot(steps, line, "o-", color="C0", alpha=0.4, lw=1, ms=3, label=label)
        start = 3 * np.nanmax(errors[:, 0], initial=1e-16)  # above all of them
        axes.plot(steps, start * (steps / steps[0]) ** 2, "--", color="C1", label="slope 2")
        axes.set(xscale="log", yscale="log", xlabel="step h", ylabel="relative error")
        axes.grid()
        axes.legend(loc="upper left")

    median = float(np.nanmedian([result.figures["order"].value for result in tensors]))
    return Picture(
        "Error of central differences against step size",
        "Each line is a tensor, its largest error over all entries. That of a right gradient falls "
        "as $h^2$, until the rounding of $L$, divided by $h$, takes over; that of a wrong one is "
        "level.",
        f"{len(tensors)} lines over {len(steps)} steps from {steps[0]:g} to {steps[-1]:g}, beside "
        f"one of slope 2. Between the largest steps their slope is {median:.2f} in the median.",
        draw,
    )


def _by_tensor(tensors: list[Result]) -> Picture:
    names = [result.name for result in tensors]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        places = np.arange(len(names))[::-1]
        for n, kind in enumerate(_KINDS):
            values = [max(result.figures[kind].value, _SMALLEST) for result in tensors]
            axes.plot(values, places, "osD"[n], color=f"C{n}", ms=4, label=kind)
        limits = {result.figures[kind].at_most for result in tensors for kind in _KINDS} - {None}
        for limit in limits:
            axes.axvline(limit, color="C4", lw=1, ls=":")
        axes.set_yticks(places, names)
        axes.set_ylim(-0.7, len(names) - 0.3)
        axes.set(xscale="log", xlabel="relative error; dotted: what is allowed")
        axes.grid(axis="x")
        figure.legend(loc="outside upper right", ncols=3)

    return Picture(
        "Errors by tensor",
        "Against complex steps of the reference, entry by entry and along a random direction, and "
        "against central differences.",
        f"Three errors of each of {len(names)} tensors, of which the largest are: "
        f"{'; '.join(_worst(kind, tensors) for kind in _KINDS)}.",
        draw,
        (7.0, 0.9 + 0.19 * len(names)),
    )


def _worst(kind: str, tensors: list[Result]) -> str:
    errors = [(result.figures[kind].value, result.name) for result in tensors]
    value, name = max((e for e in errors if not math.isnan(e[0])), default=(math.nan, "none"))
    return f"{kind} {value:.1e} ({name})"
