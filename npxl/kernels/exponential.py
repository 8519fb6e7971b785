"""exp for the inside of a loop: vectorised in float32, the library's in float64."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba.extending import overload

# Cody and Waite's reduction x = n·ln 2 + r with |r| ≤ ln(2)/2, ln 2 split so that n·_LN2_HIGH is
# exact, and the minimax polynomial of the Cephes library for (exp(r) − 1 − r) / r².
_LOG2_E = np.float32(1.44269504088896341)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_C5 = np.float32(1.9875691500e-4)
_C4 = np.float32(1.3981999507e-3)
_C3 = np.float32(8.3334519073e-3)
_C2 = np.float32(4.1665795894e-2)
_C1 = np.float32(1.6666665459e-1)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_LOWEST = np.float32(-87.0)
_HIGHEST = np.float32(88.0)


def exp(x: Any) -> Any:
    """e to the x, in the precision of x.

    In a kernel, float32 arguments take a polynomial that LLVM can vectorise (relative error below
    3e-7; arguments are clamped to [−87, 88], where float32 has no room left; NaN stays NaN).
    """
    return np.exp(x)


# Reassociation would merge the two parts of ln 2 and lose what they are split for.
@numba.njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def _exp_float32(x):
    x = _LOWEST if x < _LOWEST else x
    x = _HIGHEST if x > _HIGHEST else x
    n = np.floor(x * _LOG2_E + _HALF)
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = ((((_C5 * r + _C4) * r + _C3) * r + _C2) * r + _C1) * r + _HALF
    y = p * r * r + r + _ONE
    two_to_the_n = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return y * two_to_the_n


@overload(exp)
def _exp_overload(x):
    if x == numba.types.float32:
        return lambda x: _exp_float32(x)
    return lambda x: math.exp(x)
