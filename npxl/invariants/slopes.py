"""Derivatives along a direction, from differences of losses: what gradients are held against."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.findings import Inapplicable, InvariantBroken

Array = NDArray[Any]

STEP = {"float32": 4e-3, "float64": 1e-4}
"""The shortest step, along a direction of length one; the others are twice and four times it."""

TOLERANCE = {"float32": 5e-2, "float64": 1e-6}
"""Largest error of a derivative, relative to the length of the gradient."""


class Slope(NamedTuple):
    """A derivative, and what it is known to."""

    value: float
    doubt: float


@contextmanager
def moved(parameters: Mapping[str, Array], directions: Mapping[str, Array]) -> Iterator[Any]:
    """Within, a function that moves the parameters some steps along; afterwards they are back."""
    before = {name: parameters[name].copy() for name in directions}

    def move(step: float) -> None:
        for name, direction in directions.items():
            parameters[name][...] = before[name] + step * direction

    try:
        yield move
    finally:
        for name, values in before.items():
            parameters[name][...] = values


def slope(
    loss: Callable[[], tuple[float, float]],
    parameters: Mapping[str, Array],
    directions: Mapping[str, Array],
    here: tuple[float, float] | None = None,
) -> Slope:
    """The derivative of a loss as parameters move along a direction of length one.

    Central differences at three steps h, extrapolated twice to h → 0 (Richardson 1911): from h and
    2h, and from 2h and 4h.  What these two differ by, and rounding, is the doubt: it is large
    where a rectifier's kink lies in between.  A kink at the point itself shifts all of them alike,
    by half of what the slope jumps there.  So the jump is added to the doubt: extrapolated to
    h → 0, what the slopes on the two sides differ by.

    Parameters
    ----------
    loss
        The loss, and the sum of the sizes of its terms, which its rounding is relative to.
    parameters
        Arrays that the loss is computed from.
    directions
        For the names that move.
    here
        The loss before anything moves, if it is known.
    """
    dtype = next(iter(parameters[name].dtype for name in directions))
    shortest, central, jump = STEP[dtype.name], [], []
    with moved(parameters, directions) as move:
        at, size = loss() if here is None else here
        for step in (shortest, 2 * shortest, 4 * shortest):
            move(step)
            above, _ = loss()
            move(-step)
            below, _ = loss()
            central.append((above - below) / (2 * step))
            jump.append((above - 2 * at + below) / step)
    near, far = ((4 * a - b) / 3 for a, b in pairwise(central))
    rounding = float(np.finfo(dtype).eps) * (1.0 + size) / shortest
    return Slope(near, abs(near - far) + abs(2 * jump[0] - jump[1]) + rounding)


def require_that_writing_matters(
    loss: Callable[[], tuple[float, float]], parameters: Mapping[str, Array], names: Collection[str]
) -> None:
    """InvariantBroken where the loss is the same whatever these parameters are.

    Of two losses that differ in no bit a difference says nothing about the gradient.
    """
    rng = np.random.default_rng(0)
    others = {name: rng.standard_normal(parameters[name].shape) for name in names}
    before, _ = loss()
    with moved(parameters, others) as move:
        move(1.0)
        after, _ = loss()
    if after == before:
        which = "any of them" if len(names) > 1 else next(iter(names))
        raise InvariantBroken(
            expected="what is written to parameters() to be what is computed with",
            found=f"parameters() gave copies: writing to {which} changed no score",
            where=f"tensor {which}" if len(names) == 1 else "all parameters",
            usually="a copy, or a conversion to another type, in `parameters`; or a gradient of "
            "what nothing is computed from.",
        )


def direction(gradient: Array, rng: np.random.Generator) -> Array:
    """Of length one, along a gradient and at random: the derivative is large, and not blind."""
    random = rng.standard_normal(gradient.shape)
    random /= np.linalg.norm(random)
    length = float(np.linalg.norm(gradient))
    if length > 0 and np.isfinite(length):
        random += 2 * gradient / length
    return np.asarray(random / np.linalg.norm(random))


def dtype_of(parameters: Mapping[str, Array]) -> str:
    """Name of the type of all parameters; Inapplicable where there are several, or another one."""
    names = {each.dtype.name for each in parameters.values()}
    if len(names) != 1 or not names <= TOLERANCE.keys():
        raise Inapplicable(f"Parameters of type {' and '.join(sorted(names))} cannot be moved.")
    return str(names.pop())
