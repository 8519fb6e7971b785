"""Small numerical helpers of the layer tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from npxl.testing import strategies

Array = NDArray[Any]

# Arrays are drawn as a shape and a seed, never entry by entry: that is what shrinks usefully.
seeds = strategies.seeds()
widths = st.integers(1, 6)
leading_shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)  # () and 1 among them

dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
COMPILED = not numba.config.DISABLE_JIT


def forms(kernel: Any) -> tuple[Any, Any]:
    """The kernel as it is called, compiled unless NUMBA_DISABLE_JIT is set, and its plain twin."""
    return kernel, kernel.py_func


def rounding(dtype: Any) -> float:
    """Tolerance of a short float computation, relative to its largest result."""
    return 2e-6 if dtype == np.float32 else 1e-14


def central_difference(
    f: Callable[[], ArrayLike], x: Array, cotangent: ArrayLike = 1.0, step: float = 1e-5
) -> Array:
    """The gradient of ⟨cotangent, f()⟩ with respect to x, by changing x in place.

    f reads x, which may be any writable float64 array, a view with strides too; every entry is
    put back.  The error is of order step², and at least of order 1e-16 / step.
    """
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        direction = np.zeros_like(x)
        direction[index] = 1.0
        gradient[index] = directional_difference(f, x, direction, cotangent, step)
    return gradient


def directional_difference(
    f: Callable[[], ArrayLike],
    x: Array,
    direction: Array,
    cotangent: ArrayLike = 1.0,
    step: float = 1e-5,
) -> float:
    """The derivative of ⟨cotangent, f()⟩ as x moves along `direction`, both of one shape."""
    assert x.dtype == np.float64, "differences of float32 numbers say nothing"
    before = x.copy()
    x[...] = before + step * direction
    above = np.array(f())
    x[...] = before - step * direction
    below = np.array(f())
    x[...] = before
    return float(np.sum(cotangent * (above - below)) / (2 * step))


def assert_eq(actual: ArrayLike, expected: ArrayLike, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Same shape, same dtype, and no entry further off than atol + rtol · max |expected|.

    The tolerance is relative to the array's largest finite entry, as rounding in a sum is; NaN
    equals NaN.  Without a tolerance the arrays must be equal.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}"
    largest = np.max(np.abs(expected), initial=0, where=np.isfinite(expected))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol + rtol * float(largest))


def assert_adjoint(ax: Array, y: Array, x: Array, aty: Array) -> None:
    """⟨A x, y⟩ = ⟨x, Aᵀ y⟩ up to rounding, for a linear map A and what claims to be its adjoint."""
    size = np.linalg.norm(ax) * np.linalg.norm(y) + np.linalg.norm(x) * np.linalg.norm(aty)
    assert abs(np.vdot(ax, y) - np.vdot(x, aty)) <= 1e-13 * size


def read_only(x: Array) -> Array:
    """A view of x that raises when it is written to."""
    view = x.view()
    view.flags.writeable = False
    return view
