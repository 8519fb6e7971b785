"""What kernels are written with: vectors, tiles and exponentials, compiled and as plain Python."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import assert_eq, dtypes, forms, read_only, rounding, seeds

from npxl.kernels import kernel
from npxl.kernels.exponential import _exp_float32, exp, exponentiate
from npxl.kernels.vectors import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    add,
    broadcast,
    largest_lane,
    load,
    maximum,
    multiply_add,
    multiply_tile,
    row_maximum,
    store,
    zeros,
)


@kernel
def vector_operations(x, y, z, start, at, out):
    a, b = load(x, start), load(y, start)
    store(out, start, a)
    store(out, start + LANES, broadcast(x, at))
    store(out, start + 2 * LANES, zeros(x))
    store(out, start + 3 * LANES, multiply_add(a, b, load(z, start)))
    store(out, start + 4 * LANES, maximum(a, b))
    store(out, start + 5 * LANES, add(a, b))
    return largest_lane(a)


@dtypes
@given(seed=seeds, start=st.integers(0, 16), at=st.integers(0, 31))
def test_vector_operations(dtype, seed, start, at):
    """At any place, aligned or not, counted through all axes; and nothing beside it is written."""
    x, y, z = np.random.default_rng(seed).standard_normal((3, 2, 4, 4)).astype(dtype)
    a, b, c = (array.ravel()[start : start + LANES] for array in (x, y, z))
    expected = np.full((8, LANES + 4), 7, dtype)
    expected.reshape(-1)[start : start + 6 * LANES] = np.concatenate(
        [a, np.full(LANES, x.flat[at]), np.zeros(LANES), a * b + c, np.maximum(a, b), a + b]
    )
    for function in forms(vector_operations):
        out = np.full((8, LANES + 4), 7, dtype)
        largest = function(read_only(x), read_only(y), read_only(z), start, at, out)
        assert largest == a.max()
        assert_eq(out, expected, rtol=2 * np.finfo(dtype).eps)
        # All but multiply_add, which a processor may round only once.
        exact = np.ones(out.size, bool)
        exact[start + 3 * LANES : start + 4 * LANES] = False
        np.testing.assert_array_equal(out.ravel()[exact], expected.ravel()[exact])


@pytest.mark.parametrize(
    ("features", "lanes"), [("+avx2,+avx512f", "16"), ("+avx2", "8"), ("", "8")]
)
def test_a_vector_is_as_wide_as_a_register(features, lanes):
    show = "from npxl.kernels.vectors import LANES; print(LANES)"
    outcome = subprocess.run(
        [sys.executable, "-c", show], env=os.environ | {"NUMBA_CPU_FEATURES": features},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert outcome.stdout.strip() == lanes


@dtypes
@pytest.mark.parametrize("place", range(LANES))
def test_the_maximum_of_a_pair_with_nan_is_the_second(dtype, place):
    x, y = np.arange(2 * LANES, dtype=dtype).reshape(2, LANES)
    for first, second in ((x, y), (y, x)):
        for spoiled in (first, second):
            before = spoiled[place]
            spoiled[place] = np.nan
            for function in forms(vector_operations):
                out = np.zeros(6 * LANES, dtype)
                function(first, second, first, 0, 0, out)
                expected = y.copy()  # the larger in all other places
                expected[place] = second[place]
                assert_eq(out[4 * LANES : 5 * LANES], expected)
            spoiled[place] = before


@kernel
def strided_operations(x, start, at, out):
    store(out, 0, load(x, start))
    store(out, LANES, broadcast(x, at))


def test_places_are_counted_in_memory():
    """From the first element of a view, whatever its strides: rows of one head of several."""
    whole = np.random.default_rng(0).standard_normal((5, 3, 4 + LANES))
    x = whole[1:, 1]
    for function in forms(strided_operations):
        out = np.zeros(2 * LANES)
        function(x, 2 * x.strides[0] // x.itemsize + 4, x.strides[0] // x.itemsize + 1, out)
        assert_eq(out, np.append(x[2, 4:], np.full(LANES, x[1, 1])))


strides = st.integers(0, 40)


@dtypes
@given(
    seed=seeds,
    starts=st.tuples(*[st.integers(0, 20)] * 3),
    a_strides=st.tuples(strides, strides),
    b_stride=strides,
    out_stride=st.integers(TILE_COLUMNS, TILE_COLUMNS + 8),
    n=st.integers(0, 20),
    add=st.booleans(),
)
def test_multiply_tile(dtype, seed, starts, a_strides, b_stride, out_stride, n, add):
    draw = np.random.default_rng(seed)
    a_start, b_start, out_start = starts
    rows, columns, inner = np.arange(TILE_ROWS)[:, None], np.arange(TILE_COLUMNS), np.arange(n)
    a_places = a_start + rows * a_strides[0] + inner * a_strides[1]  # [R, n]
    b_places = b_start + inner[:, None] * b_stride + columns  # [n, C]
    out_places = out_start + rows * out_stride + columns  # [R, C]
    # What does not belong to the parts is NaN in A and B; in out it is to stay what it is.
    a, b = np.full((2, 1000), np.nan, dtype)
    a[a_places] = draw.standard_normal(a_places.shape)
    b[b_places] = draw.standard_normal(b_places.shape)
    before = draw.standard_normal(400).astype(dtype)
    product = a[a_places].astype(np.float64) @ b[b_places]
    expected = before.astype(np.float64)
    expected[out_places] = product + add * expected[out_places]
    for function in forms(multiply_tile):
        out = before.copy()
        function(
            read_only(a), a_start, a_strides, read_only(b), b_start, b_stride,
            out, out_start, out_stride, n, add,
        )  # fmt: skip
        assert_eq(out, expected.astype(dtype), rtol=rounding(dtype))
        beside = np.delete(np.arange(out.size), out_places)
        np.testing.assert_array_equal(out[beside], before[beside])


@dtypes
@pytest.mark.parametrize("size", range(1, 36))
def test_row_maximum(dtype, size):
    row = np.random.default_rng(size).standard_normal(size).astype(dtype)
    for function in forms(row_maximum):
        assert function(read_only(row)) == row.max()
        assert function(np.full_like(row, -np.inf)) == -np.inf
        for place in range(size):
            for largest in (row.max() + 1, np.inf):
                x = row.copy()
                x[place] = largest
                assert function(x) == dtype(largest)


@kernel
def exp_of_each(x, y):
    for i in range(x.size):
        y[i] = exp(x[i])


def compiled_exp(x):
    y = np.full_like(x, np.nan)
    exp_of_each(read_only(x), y)
    return y


def test_exp_of_float32_is_right_to_3e_7_over_its_whole_range():
    halves = np.arange(-251, 254) * (math.log(2) / 2)  # where the reduction changes its n
    edges = [np.nextafter(np.float32(halves), np.float32(side)) for side in (-np.inf, np.inf)]
    grid = np.concatenate([np.linspace(-87, 88, 1_000_001), halves, *edges]).astype(np.float32)
    grid = grid[(grid >= -87) & (grid <= 88)]
    truth = np.exp(grid.astype(np.float64))
    assert np.abs(compiled_exp(grid) / truth - 1).max() < 3e-7
    tiny = np.float32([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-8, 1e-8])
    assert_eq(compiled_exp(tiny), np.ones_like(tiny), rtol=2e-7)
    assert compiled_exp(np.zeros(1, np.float32))[0] == 1


def test_the_polynomial_as_plain_python():
    polynomial = getattr(_exp_float32, "py_func", _exp_float32)
    for x in np.linspace(-87, 88, 2001, dtype=np.float32):
        y = polynomial(x)
        assert y.dtype == np.float32
        assert y == pytest.approx(math.exp(x), rel=3e-7)


def test_exp_of_float64_is_right_to_the_last_digits():
    grid = np.linspace(-700, 700, 100_001)
    assert_eq(compiled_exp(grid) / np.exp(grid), np.ones_like(grid), rtol=1e-15)


@dtypes
@given(st.integers(1, 5 * LANES), st.sampled_from([0.5, 5, 60, 1000]), seeds)
def test_exponentiate(dtype, size, scale, seed):
    row = np.random.default_rng(seed).standard_normal(size).astype(dtype)
    exponents = (row - row.max()) * dtype(scale)
    expected = np.exp(np.maximum(exponents.astype(np.float64), -87))
    if dtype == np.float64:
        expected = np.exp(exponents)
    for function in forms(exponentiate):
        beside = np.full(size + 2, np.nan, dtype)
        weights = beside[1:-1]
        weights[:] = row
        total = function(weights, row.max(), dtype(scale))
        lowest = 2e-38 if dtype == np.float32 else 0  # plain Python has smaller ones
        assert_eq(weights, expected.astype(dtype), rtol=rounding(dtype), atol=lowest)
        assert total == pytest.approx(expected.sum(), rel=rounding(dtype))
        assert np.isnan(beside[[0, -1]]).all()


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, 0x7FC001FF, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("place", [0, LANES - 1, LANES + 1, 2 * LANES])
def test_exponentiate_keeps_what_is_not_a_number(place, bits):
    for function in forms(exponentiate):
        row = np.zeros(2 * LANES + 1, np.float32)
        row.view(np.uint32)[place] = bits
        assert np.isnan(function(row, np.float32(0), np.float32(1)))
        assert np.isnan(row[place])
        assert (np.delete(row, place) == 1).all()


@pytest.mark.fault("hyungkwonko/umato #16", "numbagg #287")
@dtypes
def test_exp_beyond_its_range_and_of_nan(dtype):
    below = np.array([-88, -104, -1e4, -1e38, -np.inf], dtype)
    assert ((compiled_exp(below) >= 0) & (compiled_exp(below) < 2e-38)).all()
    above = np.array([88.5, 89, 1e4, 1e38, np.inf], dtype)
    with np.errstate(over="ignore"):
        assert (compiled_exp(above) > 1.6e38).all()
    # NaN beside numbers, in every lane of a vector.
    x = np.zeros(67, dtype)
    for place in range(len(x)):
        x[place] = np.nan
        y = compiled_exp(x)
        assert np.isnan(y[place])
        assert (np.delete(y, place) == 1).all()
        x[place] = 0
