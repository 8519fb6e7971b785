"""Several numbers at a time: what the products inside a kernel are written with.

Numba leaves it to LLVM to find as many equal scalar operations.  In a matrix product LLVM does not
keep the sums in registers, which costs most of the speed; so here are types that are one vector of
LLVM's and several, with the operations that a product needs.  Outside of a kernel they are NumPy's.
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

TILE_ROWS, TILE_COLUMNS = LANES // 2, 2 * LANES
"""What `multiply_tile`, the micro-kernel, computes.

Shapes have R for the rows of a tile and C for its columns.
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


def fill(x: Array, number: Any) -> Any:
    """One number in every lane, in the precision of x, which it has."""
    return np.full(LANES, number, x.dtype)


def add(x: Any, y: Any) -> Any:
    """x + y."""
    return x + y


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    """x · y + z, rounded once where the processor can."""
    return x * y + z


def maximum(x: Any, y: Any) -> Any:
    """The larger of each pair; y where one is not a number."""
    return np.where(x > y, x, y)


def sum_of_lanes(vector: Any) -> Any:
    """Σ of its numbers."""
    return vector.sum()


def largest_lane(vector: Any) -> Any:
    """The largest of its numbers."""
    return vector.max()


def rows_in_registers(x: Array) -> int:
    """Rows of a tile that are computed together, in the precision of x: all of them in float32.

    Their sums take half of all registers; twice as long ones, of as many rows, would take all.
    """
    return TILE_ROWS if x.itemsize == 4 else TILE_ROWS // 2


def load_tile(x: Array, start: int, stride: int) -> Any:
    """Rows of a tile that begin at element `start` of x; `stride` elements from row to row."""
    return np.stack(_tile_in_memory(x, start, stride))


def store_tile(x: Array, start: int, stride: int, tile: Any) -> None:
    """Overwrite what `load_tile` reads."""
    for row, numbers in zip(_tile_in_memory(x, start, stride), tile, strict=True):
        row[:] = numbers


def _tile_in_memory(x: Array, start: int, stride: int) -> list[Array]:
    starts = [start + r * stride for r in range(rows_in_registers(x))]
    return [_in_memory(x, at + TILE_COLUMNS)[at:] for at in starts]


def zero_tile(x: Array) -> Any:
    """Rows of a tile, of zeros, in the precision of x."""
    return np.zeros((rows_in_registers(x), TILE_COLUMNS), x.dtype)


def add_outer_product(
    tile: Any, a: Array, a_start: int, stride: int, b: Array, b_start: int
) -> Any:
    """tile + a bᵀ, of as many elements of a, `stride` apart, and C of b, which lie side by side."""
    column = [_in_memory(a, a_start + r * stride + 1)[-1] for r in range(len(tile))]
    return tile + np.outer(column, _in_memory(b, b_start + TILE_COLUMNS)[b_start:])


@kernel
def multiply_tile(a, a_start, a_strides, b, b_start, b_stride, out, out_start, out_stride, n, add):
    """out = A B, or out += A B, of A [R, n], B [n, C] and out [R, C], parts of larger arrays.

    Each part has the number of its first element, counted in memory from that of its array, and
    strides in elements: A of its rows and columns, B and out of their rows, whose entries lie side
    by side.
    """
    row_stride, column_stride = a_strides
    for row in range(0, TILE_ROWS, rows_in_registers(out)):
        a_at, b_at, out_at = a_start + row * row_stride, b_start, out_start + row * out_stride
        tile = load_tile(out, out_at, out_stride) if add else zero_tile(out)
        for _ in range(n):
            tile = add_outer_product(tile, a, a_at, row_stride, b, b_at)
            a_at += column_stride
            b_at += b_stride
        store_tile(out, out_at, out_stride, tile)


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


class _Tile(types.Type):
    """Numba's name for rows of C numbers of one type, as many as stay in registers."""

    def __init__(self, dtype: types.Float) -> None:
        self.dtype = dtype
        self.rows = _rows_in_registers(dtype)
        super().__init__(name=f"Tile({dtype}, {self.rows}, {TILE_COLUMNS})")


@register_model(_Tile)
class _TileModel(models.PrimitiveModel):
    """How LLVM is to hold it: as vectors, each of which finds its register."""

    def __init__(self, manager: Any, tile: _Tile) -> None:
        number = manager.lookup(tile.dtype).get_value_type()
        vectors = tile.rows * TILE_COLUMNS // LANES
        super().__init__(manager, tile, ir.ArrayType(ir.VectorType(number, LANES), vectors))


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


def _element(context: Any, builder: Any, signature: Any, arguments: Any, x: int = 0) -> Any:
    """The address of element number arguments[x + 1] of the array arguments[x]."""
    array = context.make_array(signature.args[x])(context, builder, arguments[x])
    return builder.gep(array.data, [arguments[x + 1]])


def _pieces(builder: Any, first: Any, rows: int = 1, stride: Any = None) -> Any:
    """The addresses of the vectors of a tile's rows, from that of the first number on."""
    numbers = ir.VectorType(first.type.pointee, LANES).as_pointer()
    for row in range(rows):
        if row:
            first = builder.gep(first, [stride])
        for column in range(0, TILE_COLUMNS, LANES):
            yield builder.bitcast(builder.gep(first, [ir.IntType(64)(column)]), numbers)


def _everywhere(builder: Any, number: Any) -> Any:
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
        return _everywhere(builder, number)

    return _Vector(x.dtype)(x, types.intp), generate


@intrinsic
def _fill(typing_context, x, number):
    def generate(context, builder, signature, arguments):
        return _everywhere(builder, arguments[1])

    return _Vector(x.dtype)(x, x.dtype), generate


@intrinsic
def _zeros(typing_context, x):
    def generate(context, builder, signature, arguments):
        return _everywhere(builder, context.get_constant(x.dtype, 0))

    return _Vector(x.dtype)(x), generate


@intrinsic
def _load_tile(typing_context, x, start, stride):
    def generate(context, builder, signature, arguments):
        tile = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
        first = _element(context, builder, signature, arguments)
        rows = signature.return_type.rows
        for n, address in enumerate(_pieces(builder, first, rows, arguments[2])):
            vector = builder.load(address, align=x.dtype.bitwidth // 8)
            tile = builder.insert_value(tile, vector, n)
        return tile

    return _Tile(x.dtype)(x, types.intp, types.intp), generate


@intrinsic
def _store_tile(typing_context, x, start, stride, tile):
    def generate(context, builder, signature, arguments):
        first = _element(context, builder, signature, arguments)
        for n, address in enumerate(_pieces(builder, first, tile.rows, arguments[2])):
            vector = builder.extract_value(arguments[3], n)
            builder.store(vector, address, align=x.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(x, types.intp, types.intp, tile), generate


@intrinsic
def _zero_tile(typing_context, x):
    def generate(context, builder, signature, arguments):
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return _Tile(x.dtype)(x), generate


@intrinsic
def _add_outer_product(typing_context, tile, a, a_start, stride, b, b_start):
    def generate(context, builder, signature, arguments):
        tile = arguments[0]
        address = _element(context, builder, signature, arguments, 1)
        first = _element(context, builder, signature, arguments, 4)
        row = [
            builder.load(piece, align=b.dtype.bitwidth // 8) for piece in _pieces(builder, first)
        ]
        for n in range(tile.type.count):
            if n % len(row) == 0:
                if n:
                    address = builder.gep(address, [arguments[3]])
                factor = _everywhere(builder, builder.load(address))
            product = builder.fmul(factor, row[n % len(row)], flags=("contract",))
            total = builder.fadd(product, builder.extract_value(tile, n), flags=("contract",))
            tile = builder.insert_value(tile, total, n)
        return tile

    return tile(tile, a, types.intp, types.intp, b, types.intp), generate


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
def _sum_of_lanes(typing_context, vector):
    def generate(context, builder, signature, arguments):
        return _reduced(builder, arguments[0], builder.fadd)

    return vector.dtype(vector), generate


@intrinsic
def _largest_lane(typing_context, vector):
    def generate(context, builder, signature, arguments):
        def larger(x, y):
            return builder.select(builder.fcmp_ordered(">", x, y), x, y)

        return _reduced(builder, arguments[0], larger)

    return vector.dtype(vector), generate


def _reduced(builder: Any, vector: Any, operation: Any) -> Any:
    """All its numbers taken together, two at a time."""
    lanes = [builder.extract_element(vector, ir.IntType(32)(n)) for n in range(LANES)]
    while len(lanes) > 1:
        lanes.append(operation(lanes.pop(0), lanes.pop(0)))
    return lanes[0]


def _rows_in_registers(dtype: types.Float) -> int:
    return TILE_ROWS if dtype.bitwidth == 32 else TILE_ROWS // 2


@overload(rows_in_registers)
def _overload_rows_in_registers(x):
    rows = _rows_in_registers(x.dtype)
    return lambda x: rows


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


@overload(load_tile)
def _overload_load_tile(x, start, stride):
    return lambda x, start, stride: _load_tile(x, start, stride)


@overload(store_tile)
def _overload_store_tile(x, start, stride, tile):
    return lambda x, start, stride, tile: _store_tile(x, start, stride, tile)


@overload(zero_tile)
def _overload_zero_tile(x):
    return lambda x: _zero_tile(x)


@overload(add_outer_product)
def _overload_add_outer_product(tile, a, a_start, stride, b, b_start):
    return lambda tile, a, a_start, stride, b, b_start: _add_outer_product(
        tile, a, a_start, stride, b, b_start
    )


@overload(fill)
def _overload_fill(x, number):
    return lambda x, number: _fill(x, number)


@overload(add)
def _overload_add(x, y):
    return lambda x, y: _add(x, y)


@overload(multiply_add)
def _overload_multiply_add(x, y, z):
    return lambda x, y, z: _multiply_add(x, y, z)


@overload(maximum)
def _overload_maximum(x, y):
    return lambda x, y: _maximum(x, y)


@overload(sum_of_lanes)
def _overload_sum_of_lanes(vector):
    return lambda vector: _sum_of_lanes(vector)


@overload(largest_lane)
def _overload_largest_lane(vector):
    return lambda vector: _largest_lane(vector)
