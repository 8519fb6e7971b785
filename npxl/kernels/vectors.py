"""Several numbers at a time: what the products inside a kernel are written with.

Numba leaves it to LLVM to find as many equal scalar operations.  In a matrix product LLVM does not
keep the sums in registers, which costs most of the speed; so here is a type that is one vector of
LLVM's, with the operations that a product needs.  Outside of a kernel they are NumPy's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic, models, overload, register_model
from numpy.typing import NDArray

from npxl.kernels import kernel

Array = NDArray[Any]


def _lanes() -> int:
    """16 where a register holds as many in single precision (AVX-512), else 8.

    Of the processor that numba compiles for, which NUMBA_CPU_FEATURES may name; where registers are
    smaller, LLVM takes several for a vector.
    """
    features = config.CPU_FEATURES
    if features is None:
        features = get_host_cpu_features()
    return 16 if "+avx512f" in features.split(",") else 8


LANES = _lanes()
"""Numbers in a vector."""

TILE_ROWS, TILE_COLUMNS = 4, 2 * LANES
"""What `multiply_tile`, the micro-kernel, computes: eight vectors of sums stay in registers.

Shapes have C for the columns of a tile.
"""


def load(x: Array, start: int) -> Any:
    """The LANES numbers from element `start` on, counted in memory from the first element of x."""
    return _in_memory(x, start + LANES)[start:].copy()


def store(x: Array, start: int, vector: Any) -> None:
    """Overwrite what `load` reads."""
    _in_memory(x, start + LANES)[start:] = vector


def broadcast(x: Array, at: int) -> Any:
    """Element number `at`, counted in memory from the first element of x, in every lane."""
    return np.full(LANES, _in_memory(x, at + 1)[at])


def _in_memory(x: Array, n: int) -> Array:
    """The n numbers that lie in memory from the first element of x on."""
    return np.lib.stride_tricks.as_strided(x, (n,), (x.itemsize,))


def zeros(x: Array) -> Any:
    """Zero in every lane, in the precision of x."""
    return np.zeros(LANES, x.dtype)


def add(x: Any, y: Any) -> Any:
    """x + y."""
    return x + y


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    """x · y + z, rounded once where the processor can."""
    return x * y + z


def maximum(x: Any, y: Any) -> Any:
    """The larger of each pair; y where one is not a number."""
    return np.where(x > y, x, y)


def largest_lane(vector: Any) -> Any:
    """The largest of its numbers."""
    return vector.max()


@kernel
def multiply_tile(a, a_start, a_strides, b, b_start, b_stride, out, out_start, out_stride, n, add):
    """out = A B, or out += A B, of A [4, n], B [n, C] and out [4, C], parts of larger arrays.

    C is TILE_COLUMNS.  Each part has the number of its first element, counted in memory from that
    of its array, and strides in elements: A of its rows and columns, B and out of their rows, whose
    entries lie side by side.
    """
    out_1 = out_start + out_stride
    out_2 = out_1 + out_stride
    out_3 = out_2 + out_stride
    if add:
        sum_00, sum_01 = load(out, out_start), load(out, out_start + LANES)
        sum_10, sum_11 = load(out, out_1), load(out, out_1 + LANES)
        sum_20, sum_21 = load(out, out_2), load(out, out_2 + LANES)
        sum_30, sum_31 = load(out, out_3), load(out, out_3 + LANES)
    else:
        zero = zeros(out)
        sum_00, sum_01, sum_10, sum_11 = zero, zero, zero, zero
        sum_20, sum_21, sum_30, sum_31 = zero, zero, zero, zero
    row_stride, column_stride = a_strides
    for _ in range(n):
        b_0, b_1 = load(b, b_start), load(b, b_start + LANES)
        x = broadcast(a, a_start)
        sum_00, sum_01 = multiply_add(x, b_0, sum_00), multiply_add(x, b_1, sum_01)
        x = broadcast(a, a_start + row_stride)
        sum_10, sum_11 = multiply_add(x, b_0, sum_10), multiply_add(x, b_1, sum_11)
        x = broadcast(a, a_start + 2 * row_stride)
        sum_20, sum_21 = multiply_add(x, b_0, sum_20), multiply_add(x, b_1, sum_21)
        x = broadcast(a, a_start + 3 * row_stride)
        sum_30, sum_31 = multiply_add(x, b_0, sum_30), multiply_add(x, b_1, sum_31)
        a_start += column_stride
        b_start += b_stride
    store(out, out_start, sum_00)
    store(out, out_start + LANES, sum_01)
    store(out, out_1, sum_10)
    store(out, out_1 + LANES, sum_11)
    store(out, out_2, sum_20)
    store(out, out_2 + LANES, sum_21)
    store(out, out_3, sum_30)
    store(out, out_3 + LANES, sum_31)


@kernel
def row_maximum(row):
    """The largest entry of a contiguous row."""
    if row.size >= LANES:
        found = load(row, 0)
        for j in range(LANES, row.size - LANES + 1, LANES):
            found = maximum(load(row, j), found)
        found = maximum(load(row, row.size - LANES), found)  # overlaps what was there before
        return largest_lane(found)
    largest = row[0]
    for j in range(row.size):
        largest = row[j] if row[j] > largest else largest
    return largest


class _Vector(types.Type):
    """Numba's name for the vector of LANES numbers of one type."""

    def __init__(self, dtype: types.Float) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype}, {LANES})")


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    """How LLVM is to hold it."""

    def __init__(self, manager: Any, vector: _Vector) -> None:
        number = manager.lookup(vector.dtype).get_value_type()
        super().__init__(manager, vector, ir.VectorType(number, LANES))


def _element(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The address of element number arguments[1] of the array arguments[0]."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


def _everywhere(context: Any, builder: Any, number: Any) -> Any:
    """A vector with one number in every lane."""
    lane = ir.IntType(32)
    empty = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    first = builder.insert_element(empty, number, lane(0))
    return builder.shuffle_vector(
        first, empty, ir.Constant(ir.VectorType(lane, LANES), [0] * LANES)
    )


@intrinsic
def _load(typing_context, x, start):
    def generate(context, builder, signature, arguments):
        vector = context.get_value_type(signature.return_type)
        address = _element(context, builder, signature, arguments)
        return builder.load(
            builder.bitcast(address, vector.as_pointer()), align=x.dtype.bitwidth // 8
        )

    return _Vector(x.dtype)(x, types.intp), generate


@intrinsic
def _store(typing_context, x, start, vector):
    def generate(context, builder, signature, arguments):
        address = _element(context, builder, signature, arguments)
        pointer = builder.bitcast(address, arguments[2].type.as_pointer())
        builder.store(arguments[2], pointer, align=x.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(x, types.intp, vector), generate


@intrinsic
def _broadcast(typing_context, x, at):
    def generate(context, builder, signature, arguments):
        number = builder.load(_element(context, builder, signature, arguments))
        return _everywhere(context, builder, number)

    return _Vector(x.dtype)(x, types.intp), generate


@intrinsic
def _zeros(typing_context, x):
    def generate(context, builder, signature, arguments):
        return _everywhere(context, builder, context.get_constant(x.dtype, 0))

    return _Vector(x.dtype)(x), generate


@intrinsic
def _add(typing_context, x, y):
    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments)

    return x(x, y), generate


@intrinsic
def _multiply_add(typing_context, x, y, z):
    def generate(context, builder, signature, arguments):
        product = builder.fmul(arguments[0], arguments[1], flags=("contract",))
        return builder.fadd(product, arguments[2], flags=("contract",))

    return x(x, y, z), generate


@intrinsic
def _maximum(typing_context, x, y):
    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return x(x, y), generate


@intrinsic
def _largest_lane(typing_context, vector):
    def generate(context, builder, signature, arguments):
        lanes = [builder.extract_element(arguments[0], ir.IntType(32)(n)) for n in range(LANES)]
        while len(lanes) > 1:
            x, y = lanes.pop(0), lanes.pop(0)
            lanes.append(builder.select(builder.fcmp_ordered(">", x, y), x, y))
        return lanes[0]

    return vector.dtype(vector), generate


@overload(load)
def _overload_load(x, start):
    return lambda x, start: _load(x, start)


@overload(store)
def _overload_store(x, start, vector):
    return lambda x, start, vector: _store(x, start, vector)


@overload(broadcast)
def _overload_broadcast(x, at):
    return lambda x, at: _broadcast(x, at)


@overload(zeros)
def _overload_zeros(x):
    return lambda x: _zeros(x)


@overload(add)
def _overload_add(x, y):
    return lambda x, y: _add(x, y)


@overload(multiply_add)
def _overload_multiply_add(x, y, z):
    return lambda x, y, z: _multiply_add(x, y, z)


@overload(maximum)
def _overload_maximum(x, y):
    return lambda x, y: _maximum(x, y)


@overload(largest_lane)
def _overload_largest_lane(vector):
    return lambda vector: _largest_lane(vector)
