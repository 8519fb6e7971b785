"""How much of the gradient truncation leaves out: of a small model, and of a run's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Check, Figure, Progress, Result, Rows, Subject
from npxl.audit.sections.two_segments import NOTHING, TwoSegments
from npxl.config import with_options
from npxl.errors import NpxlError
from npxl.models.segment_model import SegmentModel
from npxl.page.pictures import Picture
from npxl.params import Params

Array = NDArray[Any]

_TOLERANCE = 1e-11
_SAME_LOSS = 1e-9
_LENGTH = 5  # of the first segment, where memory does not limit it
_MOST_STREAMS, _LONGEST = 4, 256
_MOST_PARAMETERS, _MOST_WORK = 10**8, 10**10  # numbers, and numbers times tokens
_PLACES = "Places in one segment would be others."
_ALL = "all"


def _run_left_out(subject: Subject, progress: Progress) -> Iterator[Result]:
    mem_len = subject.small.mem_len
    n_before = _LENGTH if mem_len is None else mem_len  # of which nothing is forgotten
    two = TwoSegments(subject, n_before)
    if two.n_seen == 0:
        yield Result.nothing("gradients", NOTHING)
        return
    whole = Params(two.truncated.shapes, dtype=np.float64)
    done = 0
    for name, gradient in whole.items():
        for index in np.ndindex(gradient.shape):
            if done % 20 == 0:
                progress(done, whole.flat.size)
            gradient[index] = two.slope(name, index, 1.0, "recomputed")
            done += 1
    yield _compared(_ALL, two.truncated.flat, whole.flat)
    for name in whole:
        yield _compared(name, two.truncated[name], whole[name])
    yield _one_segment(two, whole)


def _compared(name: str, truncated: Array, whole: Array) -> Result:
    """What a reader can use: how much is missing, and how far the direction is off."""
    norm, length = (float(np.linalg.norm(gradient)) for gradient in (whole, truncated))
    if not norm or not length:
        return Result.nothing(name, "Nothing of it is in these segments.")
    figures = {
        "left out": Figure(float(np.linalg.norm(whole - truncated)) / norm),
        "length": Figure(length / norm),
        "cosine": Figure(float((truncated * whole).sum()) / (length * norm)),
    }
    return Result(name, figures)


def _one_segment(two: TwoSegments, whole: Params) -> Result:
    """Read as one segment, nothing is cut off: its backward pass has the untruncated gradient."""
    name, model, part = "both segments read as one", two.model, two.part
    if not two.config.encodes_distances:
        return Result.nothing(name, _PLACES)
    text = np.concatenate([part.before, part.inputs], axis=1)
    fwd = model.forward(text, part.targets, model.init_memory(len(text)))
    error = (
        np.abs(model.backward(fwd, part.dnll).flat - whole.flat).max() / np.abs(whole.flat).max()
    )
    detail = (
        "Where nothing is memory nothing is cut off: the backward pass over both segments as one "
        "has the untruncated gradient, which confirms it by hand."
    )
    return Result.of(name, error, _TOLERANCE, detail)


def _run_trained(subject: Subject, progress: Progress) -> Iterator[Result]:
    """By reading as one segment: with the run's own sizes nothing is perturbed entry by entry."""
    if subject.trained is None:
        yield Result.nothing("gradients", "Only a run has parameters that were trained: give RUN.")
        return
    try:
        trained = subject.trained()
    except NpxlError as error:
        yield Result.nothing("gradients", str(error))
        return
    why = _hindrance(trained.model)
    if why:
        yield Result.nothing("gradients", why)
        return
    plain = with_options(
        trained.model.config, ext_len=0, initial_memory="empty", dropout=0.0, dropatt=0.0
    )
    model = type(trained.model)(plain, params=trained.model.params).astype(np.float64)
    tgt_len = min(trained.tgt_len, _LONGEST)
    # A state that nothing limits: one segment before.
    n_first = tgt_len if plain.mem_len is None else min(plain.mem_len, _LONGEST)
    text = _streams(trained.tokens, n_first + tgt_len, model.params.flat.size)
    if text is None:
        yield Result.nothing("gradients", "The validation text is shorter than two segments.")
        return
    inputs, targets = text[:, :-1], text[:, n_first + 1 :]
    progress(0, 2)
    _, memory = model.log_probs(inputs[:, :n_first], model.init_memory(len(text)))
    second = model.forward(inputs[:, n_first:], targets, memory)
    truncated = model.backward(second)
    progress(1, 2)
    both = model.forward(inputs, targets, model.init_memory(len(text)))
    whole = model.backward(both)
    detail = (
        f"{len(text)} places of the validation text, {n_first} tokens into memory and "
        f"{tgt_len} scored after them; the gradient of their mean."
    )
    yield replace(_compared(_ALL, truncated.flat, whole.flat), detail=detail)
    for name in whole:
        yield _compared(name, truncated[name], whole[name])
    difference = float(np.abs(both.nll - second.nll).max())
    detail = "The largest difference of a loss, in nats, when both segments are read as one."
    yield Result.of("losses", difference, _SAME_LOSS, detail)


def _hindrance(model: SegmentModel) -> str:
    """Why nothing can be measured, or nothing at all."""
    config = model.config
    if not config.encodes_distances:
        return _PLACES
    if config.mem_len == 0 or config.attn_window == 1:
        return NOTHING
    n_parameters = model.params.flat.size
    if n_parameters > _MOST_PARAMETERS:
        return f"Its {n_parameters:,} parameters would need too much memory in float64."
    return ""


def _streams(tokens: Array, length: int, n_parameters: int) -> Array | None:
    """Stretches of `length` inputs and a target more, spread over the text, [B, length + 1]."""
    wanted = max(1, min(_MOST_STREAMS, _MOST_WORK // (n_parameters * length)))
    n_streams = min(wanted, len(tokens) // (length + 1))
    if n_streams == 0:
        return None
    starts = np.linspace(0, len(tokens) - length - 1, n_streams).astype(int)
    return np.stack([tokens[start : start + length + 1] for start in starts]).astype(int)


def pictures(rows: Rows) -> Iterator[Picture]:
    """Of each of the two that was run, by tensor."""
    for check, about in (
        (LEFT_OUT, "of the small model"),
        (TRAINED, "of the run's own parameters on its own text"),
    ):
        compared = [row for row in rows.get(check.name, ()) if "left out" in row.figures]
        if compared:
            yield _by_tensor(compared, about)


def _by_tensor(compared: list[Result], about: str) -> Picture:
    names = [row.name for row in compared]
    values = [row.figures["left out"].value for row in compared]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        places = np.arange(len(names))[::-1]
        axes.barh(places, values, height=0.7)
        axes.set_yticks(places, names)
        axes.set_ylim(-0.7, len(names) - 0.3)
        axes.set_xlabel("part of the untruncated gradient that is left out")
        axes.grid(axis="x")

    worst = max(zip(values, names, strict=True))
    return Picture(
        f"What truncation leaves out, by tensor, {about}",
        r"$\lVert g_\infty - g \rVert / \lVert g_\infty \rVert$, of two segments. Of tensors that "
        "have no part in the memory, as the output's, nothing is left out.",
        f"A bar for each of {len(names)} tensors. Of all together {values[0]:.2g} is left out, "
        f"most of {worst[1]}, {worst[0]:.2g}.",
        draw,
        (7.0, 0.6 + 0.2 * len(names)),
    )


LEFT_OUT = Check(
    "left-out",
    r"The untruncated gradient $g_\infty$, entry by entry, against $g$. `left out` is the norm of "
    r"the difference, and `length` that of $g$, both as a part of the norm of $g_\infty$; `cosine` "
    "is 1 where truncation does not turn the gradient at all.",
    r"\frac{\lVert g_\infty - g \rVert}{\lVert g_\infty \rVert}, \qquad "
    r"\frac{\lVert g \rVert}{\lVert g_\infty \rVert}, \qquad "
    r"\frac{\langle g, g_\infty \rangle}{\lVert g \rVert \lVert g_\infty \rVert}",
    _run_left_out,
)
TRAINED = Check(
    "trained",
    "The same of a run as it is: its own sizes and parameters, on its own validation text. The "
    "untruncated gradient is the backward pass over both segments as one.",
    LEFT_OUT.equation,
    _run_trained,
)
