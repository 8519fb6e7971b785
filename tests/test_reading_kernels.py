"""What a reader's kernels compute, from keys, values and distances that are packed already."""

from unittest import mock

import numba
import numpy as np
import pytest
from bounds import within_bounds
from hypothesis import given
from hypothesis import strategies as st
from numerical import COMPILED, assert_eq, dtypes, read_only, seeds

from npxl.audit.twins import plain
from npxl.kernels import vectors
from npxl.kernels.one_token import (
    add_product,
    attention_of_one,
    normalize_one,
    rectified_product,
    room_for_one,
)
from npxl.kernels.packing import pack, pack_into, pack_transposed, pack_transposed_into, round_up
from npxl.kernels.relative_attention import packed_attention_heads_forward
from npxl.kernels.vectors import TILE_COLUMNS
from npxl.layers.dropout import dropout_rule

NO_DROPOUT = {dtype: dropout_rule(None, np.dtype(dtype)) for dtype in (np.float32, np.float64)}


def forms(kernel):
    """The kernel as it is called, compiled unless NUMBA_DISABLE_JIT is set, and its plain twin."""
    return kernel, plain(kernel)


def rounding(dtype):
    return 2e-5 if dtype == np.float32 else 1e-12


@st.composite
def memories(draw, longest):
    """(queries, first key, keys, distances, window, width): what a reader may come across."""
    n_queries = draw(st.integers(1, longest))
    first = draw(st.integers(0, longest))
    stop = first + n_queries + draw(st.integers(0, longest))
    n_distances = draw(st.integers(1, stop - first + 20))
    window = draw(st.integers(1, stop - first + 1))
    return n_queries, first, stop, n_distances, window, draw(st.sampled_from([1, 3, 16, 17, 33]))


def drawn(memory, dtype, seed, n_streams=2, n_heads=3, largest=1):
    """Query, key, value, relative, u and v; scores grow with `largest`, the size of the keys."""
    n_queries, _, stop, n_distances, _, width = memory
    draw = np.random.default_rng(seed)

    def normal(*shape):
        return draw.standard_normal((*shape, n_heads, width)).astype(dtype)

    return (
        normal(n_streams, n_queries), dtype(largest) * normal(n_streams, stop),
        normal(n_streams, stop), normal(n_distances), normal(), normal(),
    )  # fmt: skip


def naive(memory, query, key, value, relative, u, v):
    """Σ_j a_ij v_j of every query over the keys that it sees, float64 [B, q, H, D]."""
    n_queries, first, stop, n_distances, window, width = memory
    arrays = (x.astype(np.float64) for x in (query, key, value, relative, u, v))
    query, key, value, relative, u, v = arrays
    out = np.zeros_like(query)
    for b, i, h in np.ndindex(query.shape[:3]):
        own = stop - n_queries + i
        seen = np.arange(max(first, own - window + 1), own + 1)
        columns = n_distances - 1 - np.minimum(own - seen, n_distances - 1)
        scores = key[b, seen, h] @ (query[b, i, h] + u[h])
        scores += relative[columns, h] @ (query[b, i, h] + v[h])
        weights = np.exp((scores - scores.max()) / np.sqrt(width))
        out[b, i, h] = weights / weights.sum() @ value[b, seen, h]
    return out


def packed(memory, key, value, dtype, n_heads=3):
    """Keys and values in buffers longer than needed, and full of NaN before and behind them."""
    _, first, stop, _, _, width = memory
    room = round_up(stop + 5, TILE_COLUMNS)
    shape = (len(key), n_heads)
    key_t = np.full((*shape, room // TILE_COLUMNS, width, TILE_COLUMNS), np.nan, dtype)
    values = np.full((*shape, room, round_up(width, TILE_COLUMNS)), np.nan, dtype)
    values[:, :, first:stop] = 0  # the columns that fill a tile
    for b in range(len(key)):
        pack_transposed_into(key_t[b], 0, first, key[b, first:], (0, n_heads))
        pack_into(values[b], 0, first, value[b, first:], (0, n_heads))
    return key_t, values


def check_packed(kernels, memory, dtype, seed, largest=1):
    _, first, stop, n_distances, window, width = memory
    query, key, value, relative, u, v = drawn(memory, dtype, seed, largest=largest)
    expected = naive(memory, query, key, value, relative, u, v).astype(dtype)
    key_t, values = packed(memory, key, value, dtype)
    relative_t = pack_transposed(relative, (0, 3))
    for kernel in kernels:
        attended = np.full_like(query, np.nan)
        for heads in ((0, 1), (1, 3)):  # as two threads would
            kernel(
                read_only(query), key_t, values, relative_t, n_distances, u, v,
                dtype(1 / np.sqrt(width)), (first, stop), window, NO_DROPOUT[dtype], heads,
                attended,
            )  # fmt: skip
        assert_eq(attended, expected, rtol=rounding(dtype), atol=rounding(dtype))


C = TILE_COLUMNS
EDGES = [
    (1, 0, 1, 1, 1, 3),  # nothing but itself
    (2, C - 1, C + 1, 2, 2, C),  # on both sides of a tile's edge
    (33, C, C + 64, 7, 40, C + 1),  # two blocks, and most distances share one row
    (4, C + 1, C + 24, 60, 99, 3),  # more distances than are needed
    (100, 3, 8 * C, 8 * C, 7 * C, 3),  # many queries and keys, none of them far
]
EDGES_OF_ONE = [*EDGES, (1, 3, 50, 60, 47, 4 * C), (1, 3, 36, 9, 99, 11 * C - 1)]


@dtypes
@pytest.mark.parametrize("memory", EDGES)
def test_packed_attention_at_the_edges_of_tiles(dtype, memory):
    check_packed([packed_attention_heads_forward], memory, dtype, 0)
    # Nor does it reach outside of an array.
    with mock.patch.object(vectors, "_in_memory", within_bounds):
        check_packed([plain(packed_attention_heads_forward)], memory, dtype, 0)


@pytest.mark.skipif(not COMPILED, reason="takes minutes")
@dtypes
@pytest.mark.parametrize(
    "memory", [(140, 5, 1300, 300, 1100, 3), (9, C + 1, 2300, 2 * C, 2295, 17)]
)
def test_packed_attention_to_keys_that_are_met_in_parts(dtype, memory):
    check_packed([packed_attention_heads_forward], memory, dtype, 0)


@dtypes
@given(memory=memories(40 if COMPILED else 6), seed=seeds)
def test_packed_attention(dtype, memory, seed):
    check_packed([packed_attention_heads_forward], memory, dtype, seed)


def check_one(kernels, memory, dtype, seed, largest=1):
    """The last query alone: of one stream, projected by the kernel from what the layer reads."""
    memory = (1, *memory[1:])
    _, first, stop, n_distances, window, width = memory
    n_heads, d_model = 3, 5
    _, key, value, relative, u, v = drawn(memory, dtype, seed, n_streams=1, largest=largest)
    draw = np.random.default_rng(seed + 1)
    x = draw.standard_normal(d_model).astype(dtype)
    w_q, w_k, w_v = draw.standard_normal((3, n_heads * width, d_model)).astype(dtype)
    query = (w_q @ x).reshape(1, 1, n_heads, width)
    key[0, -1], value[0, -1] = ((w @ x).reshape(n_heads, width) for w in (w_k, w_v))
    expected = naive(memory, query, key, value, relative, u, v).astype(dtype)[0, 0]
    for kernel in kernels:
        key_t, values = packed(memory, key, value, dtype)
        key_t[0, :, (stop - 1) // TILE_COLUMNS, :, (stop - 1) % TILE_COLUMNS] = np.nan
        values[0, :, stop - 1, :width] = np.nan
        size = room_for_one(values.shape[2], width, values.shape[3])
        attended = np.full((n_heads, width), np.nan, dtype)
        kernel(
            read_only(x), w_q, w_k, w_v, u, v, key_t[0], values[0],
            pack_transposed(relative, (0, n_heads)), n_distances, dtype(1 / np.sqrt(width)),
            (max(first, stop - window), stop), np.full((n_heads, size), np.nan, dtype), attended,
        )  # fmt: skip
        assert_eq(attended, expected, rtol=10 * rounding(dtype), atol=10 * rounding(dtype))
        kept = key_t[0, :, (stop - 1) // TILE_COLUMNS, :, (stop - 1) % TILE_COLUMNS]
        assert_eq(kept, key[0, -1], rtol=rounding(dtype), atol=rounding(dtype))
        assert_eq(
            values[0, :, stop - 1, :width], value[0, -1], rtol=rounding(dtype), atol=rounding(dtype)
        )


@dtypes
@pytest.mark.parametrize("memory", EDGES_OF_ONE)
def test_attention_of_one_at_the_edges_of_tiles(dtype, memory):
    check_one([attention_of_one], memory, dtype, 0)
    with mock.patch.object(vectors, "_in_memory", within_bounds):
        check_one([plain(attention_of_one)], memory, dtype, 0)


@dtypes
@given(memory=memories(40 if COMPILED else 6), seed=seeds)
def test_attention_of_one(dtype, memory, seed):
    check_one([attention_of_one], memory, dtype, seed)


@pytest.mark.parametrize("memory", EDGES_OF_ONE)
def test_scores_whose_exponentials_overflow(memory):
    check_packed(forms(packed_attention_heads_forward), memory, np.float64, 1, largest=1e4)
    check_one(forms(attention_of_one), memory, np.float64, 1, largest=1e4)


@dtypes
@given(seed=seeds, size=st.integers(1, 40), width=st.integers(1, 40))
def test_products_of_one_token(dtype, seed, size, width):
    draw = np.random.default_rng(seed)
    w, x = draw.standard_normal((size, width)).astype(dtype), draw.standard_normal(width)
    x, (bias, h) = x.astype(dtype), draw.standard_normal((2, size)).astype(dtype)
    exact = w.astype(np.float64) @ x + bias
    tolerance = dict(rtol=rounding(dtype), atol=rounding(dtype))
    for add, rectified in zip(forms(add_product), forms(rectified_product), strict=True):
        y = h.copy()
        add(y, read_only(w), read_only(bias), read_only(x))
        assert_eq(y, (h + exact).astype(dtype), **tolerance)
        rectified(read_only(w), read_only(bias), read_only(x), y)
        assert_eq(y, np.maximum(exact, 0).astype(dtype), **tolerance)


@dtypes
@given(seed=seeds, size=st.integers(1, 40))
def test_normalization_of_one_token(dtype, seed, size):
    x, gain, bias = np.random.default_rng(seed).standard_normal((3, size)).astype(dtype)
    exact = x.astype(np.float64)
    z = (exact - exact.mean()) / np.sqrt(exact.var() + 0.1)
    expected = (gain * z + bias).astype(dtype)
    for normalize in forms(normalize_one):
        y = np.full_like(x, np.nan)
        normalize(read_only(x), gain, bias, dtype(0.1), y)
        assert_eq(y, expected, rtol=rounding(dtype), atol=rounding(dtype))
        in_place = x.copy()
        normalize(in_place, gain, bias, dtype(0.1), in_place)
        assert_eq(in_place, y)


def test_rectified_units_keep_nan():
    for rectified in forms(rectified_product):
        y = np.zeros(2)
        rectified(np.array([[np.nan], [1.0]]), np.zeros(2), np.ones(1), y)
        assert np.isnan(y[0])
        assert y[1] == 1


@given(seed=seeds, n=st.integers(1, 40), width=st.integers(1, 20), at=st.integers(0, 20))
def test_packing_into_a_place_touches_nothing_else(seed, n, width, at):
    x = np.random.default_rng(seed).standard_normal((n, 3, width))
    length, padded = round_up(at + n, TILE_COLUMNS), round_up(width, TILE_COLUMNS)
    for into, into_t in zip(forms(pack_into), forms(pack_transposed_into), strict=True):
        y = np.zeros((4, length, padded))
        y_t = np.zeros((4, length // TILE_COLUMNS, width, TILE_COLUMNS))
        into(y, 2, at, read_only(x), (1, 3))
        into_t(y_t, 2, at, read_only(x), (1, 3))
        expected = np.zeros_like(y)
        expected[2:4, at : at + n, :width] = x[:, 1:].swapaxes(0, 1)
        assert_eq(y, expected)
        assert_eq(y_t.swapaxes(2, 3).reshape(4, length, width), expected[..., :width])
    assert_eq(pack(x, (0, 3))[:, :n, :width], x.swapaxes(0, 1))


f4, i8 = numba.types.float32, numba.types.int64
f4_1, f4_2, f4_3, f4_4 = (numba.types.Array(f4, ndim, "C") for ndim in (1, 2, 3, 4))
pair = numba.types.UniTuple(i8, 2)
rule = numba.typeof(NO_DROPOUT[np.float32])


@pytest.mark.skipif(not COMPILED, reason="asks what was compiled")
@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (
            packed_attention_heads_forward,
            (
                f4_4, numba.types.Array(f4, 5, "C"), f4_4, f4_4, i8, f4_2, f4_2, f4, pair, i8, rule,
                pair, f4_4,
            ),
        ),
        (
            attention_of_one,
            (f4_1, f4_2, f4_2, f4_2, f4_2, f4_2, f4_4, f4_3, f4_4, i8, f4, pair, f4_2, f4_2),
        ),
        (add_product, (f4_1, f4_2, f4_1, f4_1)),
        (rectified_product, (f4_2, f4_1, f4_1, f4_1)),
        (normalize_one, (f4_1, f4_1, f4_1, f4, f4_1)),
    ],
)  # fmt: skip
def test_float32_kernels_compute_in_float32(function, signature):
    compiled = numba.njit(function.py_func, error_model="numpy")
    compiled.compile(signature)
    assert "to double" not in compiled.inspect_llvm(signature)
