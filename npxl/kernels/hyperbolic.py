"""tanh and the sigmoid for the inside of a loop: vectorised in float32, else the library's."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba.extending import overload

from npxl.kernels.exponential import exp

# The Cephes library's polynomial for (tanh(x) − x) / x³ in x², for |x| < 0.625: further out
# 1 − 2 / (e^{2|x|} + 1) loses nothing.
_NEAR = np.float32(0.625)
_C4 = np.float32(-5.70498872745e-3)
_C3 = np.float32(2.06390887954e-2)
_C2 = np.float32(-5.37397155531e-2)
_C1 = np.float32(1.33314422036e-1)
_C0 = np.float32(-3.33332819422e-1)
_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_ZERO = np.float32(0.0)
_CLOSED = np.float32(-30.0)


def tanh(x: Any) -> Any:
    """(e^x − e^−x) / (e^x + e^−x), in the precision of x.

    In a kernel, float32 arguments take a form that LLVM can vectorise (relative error below 3e-7;
    NaN stays NaN).
    """
    return np.tanh(x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^−x), in the precision of x.

    In a kernel, float32 arguments below −30 are taken for −30, so that a closed gate lets 1e-13
    through.  Less would leave numbers below 1e-38 after a step or two, which processors multiply
    several times more slowly.
    """
    return 1 / (1 + np.exp(-x))


@numba.njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def _tanh_float32(x):
    size = -x if x < _ZERO else x
    z = x * x
    near = ((((_C4 * z + _C3) * z + _C2) * z + _C1) * z + _C0) * z * x + x
    far = _ONE - _TWO / (exp(size + size) + _ONE)
    far = -far if x < _ZERO else far
    return near if size < _NEAR else far


@overload(tanh)
def _tanh_overload(x):
    if x == numba.types.float32:
        return lambda x: _tanh_float32(x)
    return lambda x: math.tanh(x)


@numba.njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def _sigmoid_float32(x):
    x = _CLOSED if x < _CLOSED else x
    return _ONE / (_ONE + exp(-x))


@overload(sigmoid)
def _sigmoid_overload(x):
    if x == numba.types.float32:
        return lambda x: _sigmoid_float32(x)
    return lambda x: 1 / (1 + math.exp(-x))
