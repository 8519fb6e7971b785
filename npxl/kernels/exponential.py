"""exp for the inside of a loop and of rows: vectorised in float32, the library's in float64."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic, overload

from npxl.kernels.vectors import (
    LANES,
    add,
    fill,
    load,
    maximum,
    multiply_add,
    store,
    sum_of_lanes,
    zeros,
)

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
_SHIFT = np.float32(1.5 * 2**23 + 127)  # numbers of this size are whole: adding it rounds
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


# Reassociation would also be another one in each kernel that this is linked to, of which one is run
# by all: which one depends on what was compiled before, and so would the last bits.
@numba.njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def exponentiate(row, largest, scale):
    """row_j ← exp((row_j − largest) · scale), of a contiguous row; returns the sum.

    No number of the row is above `largest`.
    """
    whole = row.size - row.size % LANES
    totals, none, factor, shift = zeros(row), zeros(row), fill(row, scale), fill(row, -largest)
    for j in range(0, whole, LANES):
        y = _exp_lanes(row, multiply_add(add(load(row, j), shift), factor, none))
        store(row, j, y)
        totals = add(totals, y)
    total = sum_of_lanes(totals)
    for j in range(whole, row.size):
        y = exp((row[j] - largest) * scale)
        row[j] = y
    for j in range(whole, row.size):
        total += row[j]
    return total


def _exp_lanes(row: Any, x: Any) -> Any:
    """exp of a vector x of numbers that are not above 0, in the precision of `row`.

    LLVM makes vectors of half the processor's width of `exp`, which takes longer.
    """
    return np.exp(x)


# Reassociation would leave out what is added and subtracted to round.
@numba.njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def _exp_lanes_float32(row, x):
    x = maximum(fill(row, _LOWEST), x)  # x where that is not a number
    n_shifted = multiply_add(x, fill(row, _LOG2_E), fill(row, _SHIFT))
    n = add(n_shifted, fill(row, -_SHIFT))
    r = multiply_add(n, fill(row, -_LN2_LOW), multiply_add(n, fill(row, -_LN2_HIGH), x))
    p = multiply_add(fill(row, _C5), r, fill(row, _C4))
    p = multiply_add(p, r, fill(row, _C3))
    p = multiply_add(p, r, fill(row, _C2))
    p = multiply_add(p, r, fill(row, _C1))
    p = multiply_add(p, r, fill(row, _HALF))
    y = multiply_add(multiply_add(p, r, fill(row, _ONE)), r, fill(row, _ONE))
    return _times_two_to_the_n(y, n_shifted)


@intrinsic
def _times_two_to_the_n(typing_context, y, n_shifted):
    """y · 2ⁿ of n + _SHIFT, whose last bits are n + 127, the exponent of 2ⁿ."""

    def generate(context, builder, signature, arguments):
        y, n_shifted = arguments
        bits = ir.VectorType(ir.IntType(32), LANES)
        power = builder.shl(builder.bitcast(n_shifted, bits), ir.Constant(bits, [23] * LANES))
        return builder.fmul(y, builder.bitcast(power, y.type))

    return y(y, n_shifted), generate


@intrinsic
def _exp_lanes_float64(typing_context, row, x):
    """One lane after another, by the library."""

    def generate(context, builder, signature, arguments):
        y = arguments[1]
        function = builder.module.declare_intrinsic("llvm.exp", [y.type.element])
        for lane in map(ir.IntType(32), range(LANES)):
            number = builder.call(function, [builder.extract_element(y, lane)])
            y = builder.insert_element(y, number, lane)
        return y

    return x(row, x), generate


@overload(_exp_lanes)
def _exp_lanes_overload(row, x):
    if x.dtype == numba.types.float32:
        return lambda row, x: _exp_lanes_float32(row, x)
    return lambda row, x: _exp_lanes_float64(row, x)


@overload(exp)
def _exp_overload(x):
    if x == numba.types.float32:
        return lambda x: _exp_float32(x)
    return lambda x: math.exp(x)
