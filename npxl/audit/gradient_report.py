"""What gradient checks found, and how it is shown."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

VANISHING = 1e-4
"""Errors are relative to the largest entry of a tensor's gradient, or to this part of the largest
of the whole gradient where that is more."""


@dataclass(frozen=True)
class Error:
    """The largest disagreement of two derivatives of one tensor."""

    absolute: float
    relative: float
    """To the largest entry of the tensor's gradient, or to `VANISHING` of the largest of the whole
    gradient where that is more: rounding hides what is smaller."""
    index: tuple[int, ...]
    """The entry at which it was found."""


def smallest(errors: Iterable[Error]) -> Error:
    """The smallest of some errors; NaN only if all are."""
    return min(errors, key=lambda error: (math.isnan(error.relative), error.relative))


@dataclass(frozen=True)
class TensorCheck:
    """What was found for one tensor."""

    name: str
    shape: tuple[int, ...]
    entries: int
    """Entries that were perturbed one at a time."""
    largest: float
    """The largest entry of the gradient that is a number."""
    central: tuple[Error, ...]
    """Against central differences, for each of the report's steps."""
    extrapolated: Error
    """Against central differences extrapolated from two successive steps, the best of them."""
    crossings: tuple[int, ...]
    """Entries left out at each step, because it moved a rectified unit across its kink."""
    complex_step: Error
    """Against complex steps of the reference."""
    direction: float
    """Relative error of the derivative along one random direction through all entries at once,
    against a complex step."""
    order: float
    """Observed order of the central differences' error between the first two steps: 2 until
    rounding takes over; NaN where the error is zero."""

    @property
    def best_central(self) -> Error:
        """The central difference at the step where truncation and rounding balance best.

        Its error is NaN when every step at every entry crossed a kink: there is nothing to compare.
        """
        return smallest((*self.central, self.extrapolated))


class Worst(NamedTuple):
    """The largest error of one kind among all tensors."""

    kind: str
    error: float
    tolerance: float
    name: str


@dataclass(frozen=True)
class GradientReport:
    """The result of `gradcheck`; its text is a table."""

    tensors: tuple[TensorCheck, ...]
    steps: tuple[float, ...]
    kink: float
    """The smallest |input| of a rectified unit: how near the sample is to a kink."""
    seed: int
    central_tolerance: float
    complex_tolerance: float

    def __getitem__(self, name: str) -> TensorCheck:
        """The check of one tensor; KeyError if there is none of that name."""
        return {check.name: check for check in self.tensors}[name]

    @property
    def worst_central(self) -> TensorCheck:
        """The tensor that disagrees most with central differences."""
        return max(self.tensors, key=lambda check: _nan_first(check.best_central.relative))

    @property
    def worst_complex(self) -> TensorCheck:
        """The tensor that disagrees most with complex steps."""
        return max(self.tensors, key=lambda check: check.complex_step.relative)

    @property
    def worst_direction(self) -> TensorCheck:
        """The tensor whose derivative along a random direction disagrees most."""
        return max(self.tensors, key=lambda check: check.direction)

    @property
    def worst(self) -> tuple[Worst, Worst, Worst]:
        """The largest errors against central differences, complex steps and along directions."""
        a, b, c = self.worst_central, self.worst_complex, self.worst_direction
        return (
            Worst("central", a.best_central.relative, self.central_tolerance, a.name),
            Worst("complex", b.complex_step.relative, self.complex_tolerance, b.name),
            Worst("direction", c.direction, self.complex_tolerance, c.name),
        )

    @property
    def failures(self) -> tuple[TensorCheck, ...]:
        """Tensors whose gradient is wrong, or not a number."""
        return tuple(check for check in self.tensors if not self._is_right(check))

    @property
    def zeros(self) -> tuple[TensorCheck, ...]:
        """Tensors whose gradient is zero everywhere, or not larger than an error may be.

        It is right, but a wrong sign or factor would not be seen in it.
        """
        tolerance = min(self.central_tolerance, self.complex_tolerance)
        allowed = tolerance * VANISHING * max(check.largest for check in self.tensors)
        return tuple(
            check for check in self.tensors if check.largest <= allowed and self._is_right(check)
        )

    def _is_right(self, check: TensorCheck) -> bool:
        central = check.best_central.relative
        # NaN says that every difference crossed a kink, as complex steps cannot: they decide alone.
        # A gradient that is not a number has an infinite error instead.
        central_ok = math.isnan(central) or central <= self.central_tolerance
        complex_ok = check.complex_step.relative <= self.complex_tolerance
        return central_ok and complex_ok and check.direction <= self.complex_tolerance

    @property
    def passed(self) -> bool:
        """Whether every tensor agrees within the tolerances."""
        return not self.failures

    def __str__(self) -> str:
        console = Console(width=140, file=io.StringIO(), record=True)
        console.print(self.table())
        console.print(self.summary(), highlight=False)
        return console.export_text()

    def table(self) -> Table:
        """One row a tensor, in 140 columns.

        Where there is less room, names go on in the next line and numbers stay whole.
        """
        failures = self.failures
        rows = list(map(self._cells, self.tensors))
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("\ntensor", overflow="fold")
        for header in rows[0]:
            table.add_column(header, justify="right", no_wrap=True)
        for check, cells in zip(self.tensors, rows, strict=True):
            style = "red" if check in failures else None
            table.add_row(check.name, *cells.values(), style=style)
        return table

    def _cells(self, check: TensorCheck) -> dict[str, str]:
        """What stands beside a tensor's name, by the header of its column."""
        steps = zip(self.steps, check.central, strict=True)
        return {
            "\nentries": f"{check.entries}/{math.prod(check.shape)}",
            "max\n|grad|": f"{check.largest:.1e}",
            **{f"\nh = {step:.0e}": f"{error.relative:.1e}" for step, error in steps},
            "\nh → 0": f"{check.extrapolated.relative:.1e}",
            "\norder": f"{check.order:.1f}",
            "\ncomplex": f"{check.complex_step.relative:.1e}",
            "\ndirection": f"{check.direction:.1e}",
            "\nworst at": str(list(check.complex_step.index)),
            "\nkinks": str(sum(check.crossings)),
        }

    def summary(self) -> str:
        """The verdict in a few lines."""
        lines = [
            f"worst {kind} {error:.1e} of {tolerance:.0e} allowed ({name})"
            for kind, error, tolerance, name in self.worst
        ]
        lines.append(f"nearest kink {self.kink:.1e}; seed {self.seed}")
        lines.append(self._verdict())
        return "\n".join(lines)

    def _verdict(self) -> str:
        if not self.passed:
            return f"WRONG: {_names(self.failures)}."
        if not self.zeros:
            return f"All {len(self.tensors)} gradients are right."
        n_zero = len(self.zeros)
        n_others = len(self.tensors) - n_zero
        return (
            f"{n_others} {'gradient is' if n_others == 1 else 'gradients are'} right; "
            f"{n_zero} {'is' if n_zero == 1 else 'are'} zero, as measured, and no more is known: "
            f"{_names(self.zeros)}."
        )


def _names(checks: Iterable[TensorCheck]) -> str:
    return ", ".join(check.name for check in checks)


def _nan_first(error: float) -> tuple[bool, float]:
    """For an order in which what could not be compared is smaller than everything else."""
    return not math.isnan(error), error
