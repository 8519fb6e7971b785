"""Hand-written gradients against central differences and complex steps, tensor by tensor.

For a loss L(θ) = Σ dnll · nll of one segment, with the memory held constant and dropout masks
frozen, three derivatives of L are compared:

- the model's backward pass;
- central differences (L(θ + h) − L(θ − h)) / 2h of the model's forward pass at several steps h,
  whose error falls as h² until rounding takes over, which shows that what remains is not a bug;
  and their extrapolation from two steps to h = 0, free of the h² term (Richardson 1911);
- complex steps Im L(θ + ih) / h of `npxl.reference`, exact to rounding (Squire & Trapp 1998).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from npxl import reference
from npxl.config import ModelConfig
from npxl.errors import NpxlError
from npxl.layers.dropout import MaskKey, dropout_forward, mask_key
from npxl.memory import Memory
from npxl.models import Rng
from npxl.models.transformer_xl import TransformerXL
from npxl.params import Params

Array = NDArray[Any]

STEPS = (1e-2, 1e-3, 1e-4, 1e-5)
COMPLEX_STEP = 1e-30
CENTRAL_TOLERANCE = 1e-7
COMPLEX_TOLERANCE = 1e-10
VANISHING = 1e-4
INPUT = "input"
"""Name under which the gradient of the embedded inputs is reported."""


@dataclass(frozen=True)
class Error:
    """The largest disagreement of two derivatives of one tensor."""

    absolute: float
    relative: float
    """To the largest entry of the tensor's gradient, or to `VANISHING` times the largest of the
    whole gradient where that is more: rounding hides what is smaller."""
    index: tuple[int, ...]
    """The entry at which it was found."""


@dataclass(frozen=True)
class TensorCheck:
    """What was found for one tensor."""

    name: str
    shape: tuple[int, ...]
    entries: int
    """Entries that were perturbed one at a time."""
    largest: float
    """The largest entry of the gradient."""
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
        return min((*self.central, self.extrapolated), key=_nan_last)


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
        """The check of one tensor."""
        return next(check for check in self.tensors if check.name == name)

    @property
    def worst_central(self) -> TensorCheck:
        """The tensor that disagrees most with central differences."""
        return min(self.tensors, key=lambda check: _nan_last(check.best_central, sign=-1))

    @property
    def worst_complex(self) -> TensorCheck:
        """The tensor that disagrees most with complex steps."""
        return max(self.tensors, key=lambda check: check.complex_step.relative)

    @property
    def failures(self) -> tuple[TensorCheck, ...]:
        """Tensors whose gradient is wrong, or not a number."""
        return tuple(
            check
            for check in self.tensors
            if not (
                not check.best_central.relative > self.central_tolerance
                and check.complex_step.relative <= self.complex_tolerance
                and check.direction <= self.complex_tolerance
            )
        )

    @property
    def passed(self) -> bool:
        """Whether every tensor agrees within the tolerances."""
        return not self.failures

    def __str__(self) -> str:
        console = Console(width=140, file=io.StringIO(), record=True)
        console.print(self.table(every_step=True))
        console.print(self.summary(), highlight=False)
        return console.export_text()

    def table(self, every_step: bool = False) -> Table:
        """One row a tensor, in 80 columns; in 140 with the error at every step, and where.

        Where there is less room, names go on in the next line and numbers stay whole.
        """
        failures = self.failures
        rows = [self._cells(check, every_step) for check in self.tensors]
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("\ntensor", overflow="fold")
        for header in rows[0]:
            table.add_column(header, justify="right", no_wrap=True)
        for check, cells in zip(self.tensors, rows, strict=True):
            style = "red" if check in failures else None
            table.add_row(check.name, *cells.values(), style=style)
        return table

    def _cells(self, check: TensorCheck, every_step: bool) -> dict[str, str]:
        """What stands beside a tensor's name, by the header of its column."""
        errors = {"best\ncentral": check.best_central.relative}
        if every_step:
            steps = zip(self.steps, check.central, strict=True)
            errors = {f"\nh = {step:.0e}": error.relative for step, error in steps}
            errors["\nh → 0"] = check.extrapolated.relative
        cells = {
            "\nentries": f"{check.entries}/{math.prod(check.shape)}",
            "max\n|grad|": f"{check.largest:.1e}",
            **{header: f"{error:.1e}" for header, error in errors.items()},
            "\norder": f"{check.order:.1f}",
            "\ncomplex": f"{check.complex_step.relative:.1e}",
            "\ndirection": f"{check.direction:.1e}",
        }
        if every_step:
            cells["\nworst at"] = str(list(check.complex_step.index))
            cells["\nkinks"] = str(sum(check.crossings))
        return cells

    def summary(self) -> str:
        """The verdict in a few lines."""
        central, complex_step = self.worst_central, self.worst_complex
        lines = [
            f"worst against central differences: {central.best_central.relative:.1e} "
            f"({central.name}; tolerance {self.central_tolerance:.0e})",
            f"worst against complex steps: {complex_step.complex_step.relative:.1e} "
            f"({complex_step.name}; tolerance {self.complex_tolerance:.0e})",
            f"nearest kink: {self.kink:.1e}; seed {self.seed}",
        ]
        if self.passed:
            lines.append(f"All {len(self.tensors)} gradients are right.")
        else:
            names = ", ".join(check.name for check in self.failures)
            lines.append(f"WRONG: {names}.")
        return "\n".join(lines)


def gradcheck(
    model: TransformerXL,
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
        Step sizes h of the central differences, in descending order.
    central_tolerance, complex_tolerance
        Largest error allowed, relative to the largest entry of a tensor's gradient.
    progress
        Called with the number of tensors checked so far and that of all.

    Returns
    -------
    GradientReport
        `.passed`, `.failures`, one `TensorCheck` for each tensor; `print` shows a table.
    """
    if len(steps) < 2 or list(steps) != sorted(steps, reverse=True):
        raise NpxlError(f"steps are {steps}, but at least two are needed, in descending order.")
    draw = np.random.default_rng(seed)
    key = mask_key(rng)
    model = model.astype(np.float64)
    memory = Memory(memory.states.astype(np.float64))
    if dnll is None:
        dnll = draw.standard_normal(np.shape(targets))
    function = _Function(model, inputs, targets, memory, key, dnll)
    gradients = function.gradients()
    overall = max(float(np.abs(gradient).max()) for gradient in gradients.values())

    checks = []
    for n_checked, (name, gradient) in enumerate(gradients.items()):
        if progress is not None:
            progress(n_checked, len(gradients))
        indices = _chosen(gradient, entries, draw)
        exact = np.array([gradient[index] for index in indices])
        largest = float(np.abs(gradient).max())
        scale = max(largest, VANISHING * overall) or 1.0
        slopes, crossed = function.central_differences(name, indices, steps)  # [steps, entries]
        central = [
            _error(exact, *column, indices, scale) for column in zip(slopes, crossed, strict=True)
        ]
        extrapolated = []
        for n in range(1, len(steps)):
            shrinkage = (steps[n - 1] / steps[n]) ** 2
            limit = slopes[n] + (slopes[n] - slopes[n - 1]) / (shrinkage - 1)
            extrapolated.append(_error(exact, limit, crossed[n - 1] | crossed[n], indices, scale))
        coarse, fine = (
            _error(exact, column, crossed[0] | crossed[1], indices, scale).absolute
            for column in slopes[:2]
        )
        complex_slopes = np.array([function.complex_step(name, index) for index in indices])
        direction = draw.standard_normal(gradient.shape)
        along = float((gradient * direction).sum())
        size = max(float(np.abs(gradient * direction).sum()), scale)
        checks.append(
            TensorCheck(
                name=name,
                shape=gradient.shape,
                entries=len(indices),
                largest=largest,
                central=tuple(central),
                extrapolated=min(extrapolated, key=_nan_last),
                crossings=tuple(int(n) for n in crossed.sum(1)),
                complex_step=_error(
                    exact, complex_slopes, np.zeros(len(indices), bool), indices, scale
                ),
                direction=abs(function.complex_step(name, ..., direction) - along) / size,
                order=(
                    math.log(coarse / fine) / math.log(steps[0] / steps[1])
                    if coarse > 0 and fine > 0
                    else math.nan
                ),
            )
        )
    return GradientReport(
        tuple(checks), steps, function.kink(), seed, central_tolerance, complex_tolerance
    )


def reference_mask(key: MaskKey | None, config: ModelConfig) -> reference.Mask:
    """The dropout masks of `key` in the form in which the reference applies them."""
    if key is None:
        return reference.no_dropout

    def mask(name: str, x: Array) -> Array:
        rate = config.dropatt if name.endswith("attention_probabilities") else config.dropout
        site = key.site(name)
        if name == "positions":
            site = site.shared()
        return x * dropout_forward(np.ones(x.shape), rate, site)[0]

    return mask


class _Function:
    """The loss of one segment as a function of the parameters and the embedded inputs."""

    def __init__(
        self,
        model: TransformerXL,
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
        crossed = any((a != b).any() for a, b in zip(active_up, active_down, strict=True))
        return (up - down) / width, crossed

    def complex_step(
        self, name: str, index: Any, direction: Array | float = 1.0
    ) -> float:
        """Im L(θ + ih · direction) / h of the reference."""
        array = self.complex_embedded if name == INPUT else self.complex_params[name]
        real = array[index].copy()
        array[index] = real + 1j * COMPLEX_STEP * direction
        nll = self._reference(name).nll
        array[index] = real
        return float((nll.imag * self.dnll).sum() / COMPLEX_STEP)

    def kink(self) -> float:
        """The smallest |input| of a rectified unit."""
        return self._reference(INPUT).kink

    def _loss(self, name: str) -> tuple[float, list[Array]]:
        embedded = self.embedded if name == INPUT else None
        fwd = self.model.forward(self.inputs, self.targets, self.memory, self.key, embedded)
        return float((fwd.nll * self.dnll).sum()), fwd.active

    def _reference(self, name: str) -> reference.Output:
        return reference.forward(
            self.complex_params, self.model.config, self.inputs, self.targets,
            self.memory.layers, self.mask, self.complex_embedded if name == INPUT else None,
        )  # fmt: skip


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


def _nan_last(error: Error, sign: int = 1) -> tuple[bool, float]:
    return math.isnan(error.relative), sign * error.relative
