"""Hand-written gradients against central differences and complex steps, tensor by tensor.

For a loss L(θ) = Σ dnll · nll of one segment, with the memory held constant and dropout masks
frozen, three derivatives of L are compared:

- the model's backward pass;
- central differences (L(θ + h) − L(θ − h)) / 2h of the model's forward pass at several steps h,
  whose error falls as h² until rounding takes over, which shows that what remains is not a bug;
  and their extrapolation from two steps to h = 0, free of the h² term (Richardson 1911);
- complex steps Im L(θ + ih) / h of `npxl.reference`, or another architecture's reference, exact to
  rounding (Squire & Trapp 1998).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.gradient_report import VANISHING, Error, GradientReport, TensorCheck, smallest
from npxl.errors import NpxlError
from npxl.kernels.cross_entropy import IGNORE
from npxl.layers.dropout import MaskKey, mask_key
from npxl.memory import Memory
from npxl.models import Rng
from npxl.models.segment_model import SegmentModel
from npxl.params import Params
from npxl.reference import Output
from npxl.references import reference_mask, reference_of

Array = NDArray[Any]

STEPS = (1e-2, 1e-3, 1e-4, 1e-5)
COMPLEX_STEP = 1e-30
CENTRAL_TOLERANCE = 1e-7
COMPLEX_TOLERANCE = 1e-11
INPUT = "input"
"""Name under which the gradient of the embedded inputs is reported."""


class AllGradientsZero(NpxlError):
    """Every gradient is zero, as it should be: a backward pass of zeros would have passed."""


def gradcheck(
    model: SegmentModel,
    inputs: Array,
    targets: Array,
    memory: Memory,
    rng: Rng = None,
    dnll: Array | None = None,
    *,
    entries: int | None = 20,
    seed: int = 0,
    steps: tuple[float, ...] = STEPS,
    central_tolerance: float = CENTRAL_TOLERANCE,
    complex_tolerance: float = COMPLEX_TOLERANCE,
    progress: Callable[[int, int], None] | None = None,
) -> GradientReport:
    """Check every gradient of `model` at one segment, in float64.

    Parameters
    ----------
    model, inputs, targets, memory, rng
        As for `model.forward`; a float32 model is checked at the float64 values of its parameters.
        With `rng`, every evaluation draws the same dropout masks.
    dnll
        [B, T] cotangent of nll; drawn from N(0, 1) when not given.
    entries
        Entries of each tensor that are perturbed one at a time: the largest of its gradient and
        others at random; None checks every entry.
    seed
        Of the cotangent, the entries and the directions.
    steps
        Step sizes h of the central differences, two or more, in descending order.
    central_tolerance, complex_tolerance
        Largest error allowed of an entry, relative to the largest of its tensor's gradient, or to
        1e-4 of the largest of all gradients where that is more; along a direction, relative to the
        sum of the terms' sizes where that is more still.
    progress
        Called with the number of tensors checked so far and that of all.

    Returns
    -------
    GradientReport
        `.passed`, `.failures`, `.zeros`, one `TensorCheck` for each tensor; `print` shows a table.

    Raises
    ------
    NpxlError
        When the model cannot read the segment, or another argument is not as described; and when
        every gradient is zero, and so is every slope: no target is scored, or dnll is zero.
    """
    _check_options(entries, seed, steps)
    key = mask_key(rng)
    model.forward(inputs, targets, memory, key)  # says what is wrong with the segment
    draw = np.random.default_rng(seed)
    if dnll is None:
        dnll = draw.standard_normal(np.shape(targets))
    model = model.astype(np.float64)
    memory = Memory(memory.states.astype(np.float64))
    function = SegmentLoss(model, np.asarray(inputs), np.asarray(targets), memory, key, dnll)
    gradients = function.gradients()
    floor = smallest_scale(gradients)
    checks: list[TensorCheck] = []
    for name, gradient in gradients.items():
        if progress is not None:
            progress(len(checks), len(gradients))
        checks.append(_check_tensor(function, name, gradient, entries, steps, floor, draw))
    report = GradientReport(
        tuple(checks), steps, function.kink(), seed, central_tolerance, complex_tolerance
    )
    if floor == 0 and report.passed:
        raise AllGradientsZero(_why_nothing(np.asarray(targets), np.asarray(dnll)))
    return report


def _check_options(entries: int | None, seed: int, steps: tuple[float, ...]) -> None:
    if entries is not None and not entries >= 1:
        raise NpxlError(f"entries is {entries}, but it must be at least 1, or None for all.")
    if seed < 0:
        raise NpxlError(f"seed is {seed}, but it must be 0 or more.")
    descending = all(above > below for above, below in pairwise(steps))
    if len(steps) < 2 or not descending or not steps[-1] > 0:
        raise NpxlError(
            f"steps are {steps}, but at least two are needed, positive and in descending order."
        )


def _why_nothing(targets: Array, dnll: Array) -> str:
    """Where gradients of zero are from, and what to pass instead."""
    nothing = "so every gradient is zero, as measured, and nothing was shown"
    if (targets == IGNORE).all():
        return f"targets are all {IGNORE}, npxl.IGNORE, {nothing}: pass some that are scored."
    if not dnll[targets != IGNORE].any():
        return f"dnll is 0 wherever a target is scored, {nothing}: pass one that is not, or none."
    return (
        f"No loss changes with the parameters or the inputs of this model, {nothing}: pass a model "
        "whose losses do, such as one of more than one symbol."
    )


def _check_tensor(
    function: SegmentLoss,
    name: str,
    gradient: Array,
    entries: int | None,
    steps: tuple[float, ...],
    floor: float,
    draw: np.random.Generator,
) -> TensorCheck:
    """All comparisons for one tensor, whose errors are relative to `floor` at least."""
    indices = _chosen(gradient, entries, draw)
    exact = np.array([gradient[index] for index in indices])
    complex_slopes = np.array([function.complex_step(name, index) for index in indices])
    direction = draw.standard_normal(gradient.shape)
    slope = function.complex_step(name, ..., direction)
    scale = max(_largest(gradient), floor)
    if scale == 0:  # for every tensor; slopes that are not zero are errors, however small
        scale = _largest(np.append(complex_slopes, slope)) or 1.0

    def error(slopes: Array, left_out: Array) -> Error:
        return _error(exact, slopes, left_out, indices, scale)

    slopes, crossed = function.central_differences(name, indices, steps)  # [steps, entries]
    extrapolated = []
    for n in range(1, len(steps)):
        shrinkage = (steps[n - 1] / steps[n]) ** 2
        limit = slopes[n] + (slopes[n] - slopes[n - 1]) / (shrinkage - 1)
        extrapolated.append(error(limit, crossed[n - 1] | crossed[n]))
    coarse, fine = (error(column, crossed[0] | crossed[1]).absolute for column in slopes[:2])
    order = math.nan
    if coarse > 0 and fine > 0:
        order = math.log(coarse / fine) / math.log(steps[0] / steps[1])

    return TensorCheck(
        name=name,
        shape=gradient.shape,
        entries=len(indices),
        largest=_largest(gradient),
        central=tuple(map(error, slopes, crossed)),
        extrapolated=smallest(extrapolated),
        crossings=tuple(int(n) for n in crossed.sum(1)),
        complex_step=error(complex_slopes, np.zeros(len(indices), bool)),
        direction=directional_error(gradient * direction, slope, scale),
        order=order,
    )


class SegmentLoss:
    """The loss of one segment as a function of the parameters and the embedded inputs.

    Holds `model`, and moves its parameters while it is asked for slopes.
    """

    def __init__(
        self,
        model: SegmentModel,
        inputs: Array,
        targets: Array,
        memory: Memory,
        key: MaskKey | None,
        dnll: Array,
    ) -> None:
        self.model, self.inputs, self.targets = model, inputs, targets
        self.memory, self.key, self.dnll = memory, key, dnll
        self.embedded = model.embed(inputs)  # [B, q, d]
        self.complex_params = Params(model.params.shapes, model.params.flat.astype(complex))
        self.complex_embedded = self.embedded.astype(complex)
        self.mask = reference_mask(key, model.config)

    def gradients(self) -> dict[str, Array]:
        """What the backward pass says."""
        fwd = self.model.forward(self.inputs, self.targets, self.memory, self.key)
        grads = self.model.backward(fwd, self.dnll)
        return {INPUT: self.model.input_gradient(fwd, self.dnll), **grads}

    def central_differences(
        self, name: str, indices: list[tuple[int, ...]], steps: tuple[float, ...]
    ) -> tuple[Array, Array]:
        """Slopes [steps, entries], and where a kink lay between the two points."""
        pairs = [[self._central(name, index, step) for index in indices] for step in steps]
        slopes = np.array([[slope for slope, _ in row] for row in pairs])
        return slopes, np.array([[crossed for _, crossed in row] for row in pairs])

    def central_direction(self, name: str, direction: Array, step: float) -> tuple[float, bool]:
        """The slope along a direction of a whole tensor, and whether a kink lay on the way."""
        array = self.embedded if name == INPUT else self.model.params[name]
        values = array.copy()
        array[...] = values + step * direction
        up, active_up = self._loss(name)
        array[...] = values - step * direction
        down, active_down = self._loss(name)
        array[...] = values
        return (up - down) / (2 * step), _differ(active_up, active_down)

    def _central(self, name: str, index: tuple[int, ...], step: float) -> tuple[float, bool]:
        array = self.embedded if name == INPUT else self.model.params[name]
        value = array[index]
        array[index] = value + step
        above = array[index]
        up, active_up = self._loss(name)
        array[index] = value - step
        width = above - array[index]  # 2·step as floating point has it
        down, active_down = self._loss(name)
        array[index] = value
        return (up - down) / width, _differ(active_up, active_down)

    def complex_step(self, name: str, index: Any, direction: Array | float = 1.0) -> float:
        """Im L(θ + ih · direction) / h of the reference."""
        array = self.complex_embedded if name == INPUT else self.complex_params[name]
        real = array[index].copy()
        array[index] = real + 1j * COMPLEX_STEP * direction
        nll = self._reference(name).nll
        array[index] = real
        return float((nll.imag * self.dnll).sum() / COMPLEX_STEP)

    def complex_direction(self, directions: Mapping[str, Array]) -> float:
        """The same along one direction of several parameters at once."""
        for name, direction in directions.items():
            self.complex_params[name][...] += 1j * COMPLEX_STEP * direction
        nll = self._reference("").nll
        self.complex_params.flat.imag = 0
        return float((nll.imag * self.dnll).sum() / COMPLEX_STEP)

    def kink(self) -> float:
        """The smallest |input| of a rectified unit."""
        return self._reference(INPUT).kink

    def _loss(self, name: str) -> tuple[float, list[Array]]:
        embedded = self.embedded if name == INPUT else None
        fwd = self.model.forward(self.inputs, self.targets, self.memory, self.key, embedded)
        return float((fwd.nll * self.dnll).sum()), fwd.active

    def _reference(self, name: str) -> Output:
        return reference_of(self.model.config)(
            self.complex_params, self.model.config, self.inputs, self.targets,
            self.memory.layers, self.mask, self.complex_embedded if name == INPUT else None,
        )  # fmt: skip


def _differ(some: list[Array], others: list[Array]) -> bool:
    return any((a != b).any() for a, b in zip(some, others, strict=True))


def _chosen(
    gradient: Array, entries: int | None, draw: np.random.Generator
) -> list[tuple[int, ...]]:
    """The entry of the largest gradient and others at random, in the order of the array."""
    if entries is None or gradient.size <= entries:
        return list(np.ndindex(gradient.shape))
    largest = int(np.abs(gradient).argmax())
    others = np.delete(np.arange(gradient.size), largest)
    chosen = sorted([largest, *draw.choice(others, entries - 1, replace=False)])
    return [tuple(int(i) for i in np.unravel_index(n, gradient.shape)) for n in chosen]


def _error(
    exact: Array, slopes: Array, left_out: Array, indices: list[tuple[int, ...]], scale: float
) -> Error:
    """The largest difference among the entries not left out; NaN when all are."""
    if left_out.all():
        return Error(math.nan, math.nan, ())
    errors = np.abs(exact - slopes)
    errors[np.isnan(errors)] = math.inf  # a gradient that is not a number is as wrong as can be
    errors[left_out] = -1.0
    worst = int(errors.argmax())
    return Error(float(errors[worst]), float(errors[worst] / scale), indices[worst])


def smallest_scale(gradients: Mapping[str, Array]) -> float:
    """What errors are relative to at least; 0 when every gradient is zero."""
    return VANISHING * max(map(_largest, gradients.values()))


def directional_error(terms: Array, slope: float, scale: float) -> float:
    """Of Σ terms as the slope along a direction; relative to Σ |terms|, in which rounding lies.

    Where that and `scale` are zero, any slope but zero is infinitely wrong.
    """
    difference = abs(float(terms.sum()) - float(slope))
    if difference == 0:
        return 0.0
    size = max(float(np.abs(terms).sum()), scale)
    error = difference / size if size > 0 else math.inf
    return math.inf if math.isnan(error) else error


def _largest(gradient: Array) -> float:
    """The largest entry that is a number."""
    return float(np.abs(gradient[np.isfinite(gradient)]).max(initial=0.0))
