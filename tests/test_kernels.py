"""Every kernel against naive NumPy, compiled and as plain Python, in float32 and float64."""

import math

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import assert_eq, read_only, seeds

from npxl.kernels import kernel
from npxl.kernels.cross_entropy import (
    cross_entropy_backward,
    cross_entropy_forward,
    log_softmax_rows,
)
from npxl.kernels.exponential import _exp_float32, exp
from npxl.kernels.normalization import layer_norm_rows_backward, layer_norm_rows_forward
from npxl.kernels.random_mask import drop, mix
from npxl.kernels.relative_softmax import relative_softmax_backward, relative_softmax_forward
from npxl.kernels.scatter import scatter_add

dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
sizes = st.integers(1, 6)


def forms(function):
    """The kernel as it is called, compiled unless NUMBA_DISABLE_JIT is set, and its plain twin."""
    return function, function.py_func


def rounding(dtype):
    """Tolerance of a short float computation, relative to its largest result."""
    return 2e-6 if dtype == np.float32 else 1e-14


# relative_softmax


@st.composite
def segments(draw):
    """Rows N, queries q (1 among them), keys K = m + q (m = 0 among them), window 1 … K or more."""
    n, n_queries, n_memory = draw(sizes), draw(sizes), draw(st.integers(0, 5))
    n_keys = n_memory + n_queries
    return n, n_queries, n_keys, draw(st.integers(1, n_keys + 1))


def visible(n_queries, n_keys, window):
    """[q, K] bool: key j is not after query i and among its W nearest."""
    i, j = np.ogrid[:n_queries, :n_keys]
    distance = n_keys - n_queries + i - j
    return (distance >= 0) & (distance < window)


def visible_by_distance(n_queries, n_keys, window):
    """[q, K] bool: column c, for distance K − 1 − c, belongs to a key that query i may see."""
    i, c = np.ogrid[:n_queries, :n_keys]
    distance = n_keys - 1 - c
    return (distance <= n_keys - n_queries + i) & (distance < window)


def naive_relative_softmax(scores, position_scores, scale, window):
    n_rows, n_queries, n_keys = scores.shape
    p = np.zeros(scores.shape)
    for n, i in np.ndindex(n_rows, n_queries):
        seen = np.flatnonzero(visible(n_queries, n_keys, window)[i])
        distances = n_keys - n_queries + i - seen
        s = (scores[n, i, seen] + position_scores[n, i, n_keys - 1 - distances]) * scale
        weights = np.exp(s - s.max())
        p[n, i, seen] = weights / weights.sum()
    return p


def naive_relative_softmax_gradient(dp, p, scale, window):
    """The Jacobian of each row written out, and each of its entries sent where it came from."""
    n_rows, n_queries, n_keys = p.shape
    d_scores, d_position_scores = np.zeros(p.shape), np.zeros(p.shape)
    for n, i in np.ndindex(n_rows, n_queries):
        jacobian = (np.diag(p[n, i]) - np.outer(p[n, i], p[n, i])) * scale
        for j in np.flatnonzero(visible(n_queries, n_keys, window)[i]):
            seen = visible(n_queries, n_keys, window)[i]
            d_scores[n, i, j] = jacobian[seen, j] @ dp[n, i, seen]
            distance = n_keys - n_queries + i - j
            d_position_scores[n, i, n_keys - 1 - distance] = d_scores[n, i, j]
    return d_scores, d_position_scores


@dtypes
@given(seed=seeds, segment=segments())
def test_relative_softmax(dtype, seed, segment):
    """What must not be read is NaN, and comes out as exactly zero."""
    *shape, window = segment
    rng = np.random.default_rng(seed)
    scores, position_scores, dp = (rng.standard_normal((3, *shape)) * 3).astype(dtype)
    scale = dtype(0.7)
    hidden = ~visible(*shape[1:], window)
    garbage = ~visible_by_distance(*shape[1:], window)
    expected = naive_relative_softmax(
        *np.array([scores, position_scores], np.float64), scale, window
    )
    expected_gradients = naive_relative_softmax_gradient(
        dp.astype(np.float64), expected, scale, window
    )
    scores[:, hidden] = position_scores[:, garbage] = dp[:, hidden] = np.nan
    for forward, backward in zip(
        forms(relative_softmax_forward), forms(relative_softmax_backward), strict=True
    ):
        p = scores.copy()
        forward(p, read_only(position_scores), scale, window)
        assert_eq(p, expected.astype(dtype), rtol=rounding(dtype))
        assert (p[:, hidden] == 0).all()
        assert (p[:, ~hidden] > 0).all()
        np.testing.assert_allclose(p.sum(-1), 1, rtol=rounding(dtype))

        p[:, hidden] = np.nan
        d_scores, d_position_scores = dp.copy(), np.full_like(dp, np.nan)
        backward(d_scores, read_only(p), d_position_scores, scale, window)
        actual = d_scores, d_position_scores
        for gradient, truth in zip(actual, expected_gradients, strict=True):
            assert_eq(gradient, truth.astype(dtype), rtol=rounding(dtype), atol=rounding(dtype))
        assert (d_scores[:, hidden] == 0).all()
        assert (d_position_scores[:, garbage] == 0).all()


def test_relative_softmax_is_the_shift_of_appendix_b():
    """Y[i, j] = X[i, j + q − 1 − i], for every q ≤ K: one large position score selects its key."""
    for n_keys in range(1, 6):
        for n_queries in range(1, n_keys + 1):
            for i, c in np.ndindex(n_queries, n_keys):
                j = c - (n_queries - 1 - i)
                if j < 0:
                    continue
                scores = np.zeros((1, n_queries, n_keys))
                position_scores = np.zeros_like(scores)
                position_scores[0, i, c] = 1e3
                relative_softmax_forward(scores, position_scores, 1.0, n_keys)
                assert scores[0, i, j] == 1


@dtypes
def test_relative_softmax_at_extreme_scores(dtype):
    for forward in forms(relative_softmax_forward):
        p = np.array([[[1e4, -1e4, 1e4], [-1e4, -1e4, -1e4]]], dtype)
        forward(p, np.zeros_like(p), dtype(1), 3)
        expected = np.array([[[1, 0, 0], [1 / 3, 1 / 3, 1 / 3]]], dtype)
        assert_eq(p, expected, rtol=rounding(dtype))
        assert (p[0, 0, 2], p[0, 0, 0]) == (0, 1)


@dtypes
@pytest.mark.parametrize("place", [0, 1, 2])
def test_relative_softmax_spreads_nan_over_its_row_alone(dtype, place):
    for forward in forms(relative_softmax_forward):
        p = np.zeros((2, 1, 3), dtype)
        p[0, 0, place] = np.nan
        forward(p, np.zeros_like(p), dtype(1), 3)
        assert np.isnan(p[0]).all()
        assert_eq(p[1], np.full((1, 3), 1 / 3, dtype), rtol=rounding(dtype))


# cross_entropy


@dtypes
@given(seed=seeds, n=sizes, n_symbols=sizes)
def test_cross_entropy(dtype, seed, n, n_symbols):
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((n, n_symbols)) * 4).astype(dtype)
    targets, dnll = rng.integers(n_symbols, size=n), rng.standard_normal(n).astype(dtype)
    exact = np.exp(logits.astype(np.float64))
    p = exact / exact.sum(-1, keepdims=True)
    rows = np.arange(n)
    d_logits = dnll[:, None] * (p - np.eye(n_symbols)[targets])
    tolerance = dict(rtol=rounding(dtype), atol=rounding(dtype))
    for forward, backward, log_p in zip(
        forms(cross_entropy_forward),
        forms(cross_entropy_backward),
        forms(log_softmax_rows),
        strict=True,
    ):
        actual, nll = logits.copy(), np.full(n, np.nan, dtype)
        forward(actual, read_only(targets), nll)
        assert_eq(actual, p.astype(dtype), **tolerance)
        assert_eq(nll, -np.log(p[rows, targets]).astype(dtype), **tolerance)
        gradient = np.full_like(logits, np.nan)
        backward(read_only(actual), read_only(targets), read_only(dnll), gradient)
        assert_eq(gradient, d_logits.astype(dtype), **tolerance)
        actual = logits.copy()
        log_p(actual)
        assert_eq(actual, np.log(p).astype(dtype), **tolerance)


@dtypes
def test_cross_entropy_keeps_its_digits_under_large_logits(dtype):
    """In float32, 1e4 + log 2 would already have lost four digits of log 2."""
    logits = np.array([[1e4, 1e4, -1e4], [-1e4, -1e4, -3e4]], dtype)
    log_2 = np.full(2, math.log(2), dtype)
    for forward, log_p in zip(forms(cross_entropy_forward), forms(log_softmax_rows), strict=True):
        p, nll = logits.copy(), np.empty(2, dtype)
        forward(p, np.array([0, 1]), nll)
        assert_eq(nll, log_2, rtol=2 * np.finfo(dtype).eps)
        actual = logits.copy()
        log_p(actual)
        assert_eq(actual[:, 0], -log_2, rtol=2 * np.finfo(dtype).eps)


@dtypes
@pytest.mark.parametrize("place", [0, 1, 2])
def test_cross_entropy_spreads_nan_over_its_row_alone(dtype, place):
    logits = np.zeros((2, 3), dtype)
    logits[0, place] = np.nan
    for forward, log_p in zip(forms(cross_entropy_forward), forms(log_softmax_rows), strict=True):
        p, nll, actual = logits.copy(), np.empty(2, dtype), logits.copy()
        forward(p, np.array([1, 1]), nll)
        log_p(actual)
        assert np.isnan(p[0]).all()
        assert np.isnan(actual[0]).all()
        assert np.isnan(nll[0])
        assert_eq(p[1], np.full(3, 1 / 3, dtype), rtol=rounding(dtype))
        assert_eq(actual[1], np.full(3, -math.log(3), dtype), rtol=rounding(dtype))


# normalization


@dtypes
@given(seed=seeds, n=sizes, d=sizes)
def test_layer_norm(dtype, seed, n, d):
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, n, d)).astype(dtype)
    gain, bias = rng.standard_normal((2, d)).astype(dtype)
    epsilon = dtype(0.1)
    exact = x.astype(np.float64)
    std = np.sqrt(exact.var(-1, keepdims=True) + epsilon)
    z = (exact - exact.mean(-1, keepdims=True)) / std
    g = gain.astype(np.float64) * dy
    # The Jacobian of the normalisation, (1 − 1/d − z zᵀ/d) / σ, written out row by row.
    jacobians = [
        (np.eye(d) - 1 / d - np.outer(row, row) / d) / s for row, s in zip(z, std, strict=True)
    ]
    dx = np.array([jacobian @ row for jacobian, row in zip(jacobians, g, strict=True)])
    tolerance = dict(rtol=rounding(dtype), atol=rounding(dtype))
    for forward, backward in zip(
        forms(layer_norm_rows_forward), forms(layer_norm_rows_backward), strict=True
    ):
        y, normalized, inv_std = (np.full(s, np.nan, dtype) for s in ((n, d), (n, d), n))
        forward(read_only(x), read_only(gain), read_only(bias), epsilon, y, normalized, inv_std)
        assert_eq(y, (gain * z + bias).astype(dtype), **tolerance)
        assert_eq(normalized, z.astype(dtype), **tolerance)
        assert_eq(inv_std, 1 / std[:, 0].astype(dtype), **tolerance)

        actual, sums = np.full_like(x, np.nan), np.ones((2, d), dtype)
        arrays = map(read_only, (dy, normalized, inv_std, gain))
        backward(*arrays, actual, *sums)
        assert_eq(actual, dx.astype(dtype), **tolerance)
        assert_eq(sums[0], (1 + (dy * z).sum(0)).astype(dtype), **tolerance)
        assert_eq(sums[1], (1 + dy.astype(np.float64).sum(0)).astype(dtype), **tolerance)


# scatter


@dtypes
@given(seed=seeds, n=sizes, n_symbols=sizes, d=sizes)
def test_scatter_add_counts_every_repetition(dtype, seed, n, n_symbols, d):
    rng = np.random.default_rng(seed)
    indices = rng.integers(n_symbols, size=n)
    indices = np.concatenate([indices, indices])  # each at least twice
    rows = rng.standard_normal((2 * n, d)).astype(dtype)
    table = rng.standard_normal((n_symbols, d)).astype(dtype)
    expected = table.astype(np.float64)
    np.add.at(expected, indices, (3 * rows).astype(np.float64))
    for add in forms(scatter_add):
        actual = table.copy()
        add(actual, read_only(indices), read_only(rows), dtype(3))
        assert_eq(actual, expected.astype(dtype), rtol=rounding(dtype), atol=rounding(dtype))


# random_mask

words = st.integers(0, 2**32 - 1)


def unmix(x):
    """The inverse of `mix`, step by step backwards."""
    for shift, multiplier in ((16, 0x846CA68B), (15, 0x7FEB352D)):
        x = x ^ (x >> shift) ^ (x >> 2 * shift)
        x = x * pow(multiplier, -1, 2**32) % 2**32
    return x ^ (x >> 16)


@given(words | st.sampled_from([0, 1, 2**31, 2**32 - 1]))
def test_mix_is_a_bijection_of_words(word):
    for hashed in forms(mix):
        assert 0 <= hashed(word) < 2**32
        assert unmix(int(hashed(word))) == word


def test_mix_flips_half_of_the_bits_for_every_bit_of_its_argument():
    rng = np.random.default_rng(0)
    n = 2000
    for bit in range(32):
        flipped = sum(
            int(mix(int(word)) ^ mix(int(word) ^ (1 << bit))).bit_count()
            for word in rng.integers(2**32, size=n)
        )
        assert abs(flipped - 16 * n) < 0.02 * 16 * n


@dtypes
@given(seed=seeds, shape=st.tuples(*[st.integers(1, 4)] * 4), stream=words, start=words)
def test_drop(dtype, seed, shape, stream, start):
    """Entry by entry from the definition: streams and counters that wrap around included."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(dtype)
    low, high, threshold = (int(word) for word in rng.integers(2**32, size=3))
    strides = shape[2] * shape[3], shape[3]
    expected = np.zeros_like(x)
    for h, b, i, j in np.ndindex(shape):
        key = mix(low ^ ((stream + b) % 2**32))
        count = (start + h * strides[0] + i * strides[1] + j) % 2**32
        if mix(mix(count ^ key) ^ mix(high ^ key)) >= threshold:
            expected[h, b, i, j] = x[h, b, i, j] * dtype(1.25)
    for function in forms(drop):
        y = np.full_like(x, np.nan)
        function(read_only(x), y, low, high, stream, threshold, dtype(1.25), start, strides)
        assert_eq(y, expected)


# exponential


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


# precision

f4, i8 = numba.types.float32, numba.types.int64
f4_1, f4_2, f4_3, f4_4 = (numba.types.Array(f4, ndim, "C") for ndim in (1, 2, 3, 4))
i8_1 = numba.types.Array(i8, 1, "C")


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="asks what was compiled")
@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (relative_softmax_forward, (f4_3, f4_3, f4, i8)),
        (relative_softmax_backward, (f4_3, f4_3, f4_3, f4, i8)),
        (cross_entropy_forward, (f4_2, i8_1, f4_1)),
        (cross_entropy_backward, (f4_2, i8_1, f4_1, f4_2)),
        (log_softmax_rows, (f4_2,)),
        (layer_norm_rows_forward, (f4_2, f4_1, f4_1, f4, f4_2, f4_2, f4_1)),
        (layer_norm_rows_backward, (f4_2, f4_2, f4_1, f4_1, f4_2, f4_1, f4_1)),
        (scatter_add, (f4_2, i8_1, f4_2, f4)),
        (drop, (f4_4, f4_4, i8, i8, i8, i8, f4, i8, numba.types.UniTuple(i8, 2))),
    ],
)
def test_float32_kernels_compute_in_float32(function, signature):
    """Numba makes float32 / int a float64, at half the speed: nothing may do that unseen."""
    compiled = numba.njit(function.py_func, error_model="numpy")
    compiled.compile(signature)
    assert "to double" not in compiled.inspect_llvm(signature)
