"""Every gradient against central differences and complex steps; docs/gradcheck.md."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from npxl.audit.frame import Check, Figure, Progress, Result, Section, Subject
from npxl.audit.gradient_report import GradientReport, TensorCheck
from npxl.audit.gradients import (
    CENTRAL_TOLERANCE,
    COMPLEX_TOLERANCE,
    AllGradientsZero,
    SegmentLoss,
    directional_error,
    gradcheck,
    smallest_scale,
)
from npxl.audit.sections.gradient_pictures import pictures
from npxl.audit.segments import segment
from npxl.layers.dropout import MaskKey

_DIRECTION_STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
_LARGER_TGT_LEN = 40  # more queries than a block of the kernel has
_NOTHING = Result.nothing("all", "Every gradient is zero: no loss changes with the parameters.")


def _entries(
    name: str, tgt_len: int, after_memory: bool, dropout: bool, subject: Subject, progress: Progress
) -> Iterator[Result]:
    """A row for each tensor, of every entry of its gradient at one segment."""
    model = subject.model()
    n_before = None if after_memory else 0
    part = segment(subject, model, f"gradients/{name}", tgt_len, n_before=n_before)
    key = MaskKey(subject.seed) if dropout else None
    try:
        report = gradcheck(
            model, part.inputs, part.targets, part.memory, key,
            entries=None, seed=subject.seed, progress=progress,
        )  # fmt: skip
    except AllGradientsZero:
        yield _NOTHING
        return
    for check in report.tensors:
        yield _row(check, report)
    crossings = sum(sum(check.crossings) for check in report.tensors)
    detail = (
        "The smallest |input| of a rectified unit. Differences that were left out because a step "
        f"crossed a kink: {crossings}."
    )
    yield Result("nearest kink", {"kink": Figure(report.kink)}, detail)


def _row(check: TensorCheck, report: GradientReport) -> Result:
    # Where each step at each entry crossed a kink, complex steps decide alone.
    central = check.best_central.relative
    bound = None if math.isnan(central) else report.central_tolerance
    figures = {
        "complex": Figure(check.complex_step.relative, report.complex_tolerance),
        "direction": Figure(check.direction, report.complex_tolerance),
        "central": Figure(central, bound),
        "order": Figure(check.order),
    }
    return Result(check.name, figures, data=(check, report.steps))


def _directions(subject: Subject, progress: Progress) -> Iterator[Result]:
    """A row for each tensor of a larger model, of its gradient along a random direction."""
    model, key = subject.model(larger=True), MaskKey(subject.seed)
    part = segment(subject, model, "gradients/larger", _LARGER_TGT_LEN, batch_size=1)
    loss = SegmentLoss(model, part.inputs, part.targets, part.memory, key, part.dnll)
    gradients, draw = loss.gradients(), subject.draw("gradients/larger/directions")
    directions = {name: draw.standard_normal(each.shape) for name, each in gradients.items()}
    for direction in directions.values():
        direction /= np.linalg.norm(direction)
    of_parameters = {name: directions[name] for name in model.params}
    floor = smallest_scale(gradients)
    if floor == 0 and loss.complex_direction(of_parameters) == 0:
        yield _NOTHING
        return
    for n, (name, gradient) in enumerate(gradients.items()):
        progress(n, len(gradients) + 5)
        direction, errors = directions[name], []
        for step in _DIRECTION_STEPS:
            slope, crossed = loss.central_direction(name, direction, step)
            if not crossed:
                errors.append(directional_error(gradient * direction, slope, floor))
        figure = Figure(min(errors, default=math.nan), CENTRAL_TOLERANCE if errors else None)
        yield Result(name, {"central": figure}, "" if errors else "Each step crossed a kink.")
    progress(len(gradients), len(gradients) + 5)
    terms = [(gradients[name] * along).ravel() for name, along in of_parameters.items()]
    slope = loss.complex_direction(of_parameters)
    error = directional_error(np.concatenate(terms), slope, floor)
    detail = f"Along a direction of all {model.params.flat.size:,} parameters, by a complex step."
    yield Result.of("all", error, COMPLEX_TOLERANCE, detail)


_SEGMENTS = {
    "after-memory": (4, True, True, "a segment of 4 tokens after memory, with dropout"),
    "one-token": (1, True, False, "a segment of a single token after memory"),
    "first-segment": (3, False, False, "a segment of 3 tokens without memory before it"),
}

GRADIENTS = Section(
    name="gradients",
    title="Gradients of every tensor",
    proves="The hand-written backward pass is the derivative of the forward pass: of "
    r"$L(\theta) = \sum_{b,t} \bar n_{bt} n_{bt}(\theta)$, with $n$ the losses of a segment in "
    r"nats and $\bar n$ a random cotangent, with the memory held constant and the same dropout "
    "masks at each evaluation.\n\n"
    "It is held against two derivatives that know nothing of it. Central differences of the same "
    r"forward pass are off by $\frac{h^2}{6} L^{(3)}$ and by rounding: their error falls with the "
    "second order of the step until rounding takes over, while that of a wrong gradient stays. "
    "Complex steps of `npxl.reference`, the equations written out one key at a time, have no "
    "difference of nearly equal numbers and are exact to rounding; they also show that the forward "
    "pass is that of the equations.\n\n"
    "`complex` and `central` are the largest errors among the entries of a tensor's gradient, "
    "relative to the largest of them, or to 1e-4 of the largest of all tensors where that is more, "
    "`central` at the best of several steps; `direction` is the error along one random direction "
    "through all entries, by a complex step; `order` is the exponent with which the central error "
    "falls between the first two steps, 2 where it is not rounding.",
    checks=(
        *(
            Check(
                name,
                f"Every entry of every tensor, at {about}.",
                r"\frac{\partial L}{\partial \theta} = \frac{L(\theta + h) - L(\theta - h)}{2h}"
                r" + O(h^2) = \frac{\operatorname{Im} L(\theta + ih)}{h} + O(h^2)",
                partial(_entries, name, tgt_len, after_memory, dropout),
            )
            for name, (tgt_len, after_memory, dropout, about) in _SEGMENTS.items()
        ),
        Check(
            "larger",
            "A model too large to check entry by entry, whose segment is longer than the blocks "
            "and tiles of the attention kernel: the derivative along a random direction of each "
            "tensor, by central differences at the best of several steps, and of all tensors at "
            "once by a complex step of the reference.",
            r"\langle \nabla L, v \rangle = \frac{L(\theta + hv) - L(\theta - hv)}{2h} + O(h^2)",
            _directions,
        ),
    ),
    pictures=pictures,
)
