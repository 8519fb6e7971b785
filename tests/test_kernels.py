"""Every kernel against naive NumPy, compiled and as plain Python, in float32 and float64."""

import importlib
import math
import pkgutil
from typing import NamedTuple
from unittest import mock

import numba
import numpy as np
import pytest
from bounds import within_bounds
from hypothesis import given
from hypothesis import strategies as st
from numba.core.cpu_options import FastMathOptions
from numba.core.dispatcher import Dispatcher
from numerical import COMPILED, assert_eq, dtypes, forms, read_only, rounding, seeds

import npxl.kernels
from npxl.audit.twins import plain
from npxl.kernels import vectors
from npxl.kernels.adam import adam_update
from npxl.kernels.cross_entropy import (
    IGNORE,
    cross_entropy_backward,
    cross_entropy_forward,
    log_softmax_rows,
)
from npxl.kernels.exponential import _exp_float32
from npxl.kernels.normalization import layer_norm_rows_backward, layer_norm_rows_forward
from npxl.kernels.random_mask import drop, keep, mix
from npxl.kernels.rectifier import rectify_backward, rectify_forward
from npxl.kernels.relative_attention import (
    relative_attention_heads_backward,
    relative_attention_heads_forward,
)
from npxl.kernels.scatter import scatter_add
from npxl.kernels.vectors import (
    TILE_COLUMNS,
    TILE_ROWS,
    multiply_tile,
)
from npxl.layers.dropout import DropoutRule, dropout_rule

sizes = st.integers(1, 6)


# relative_attention


class Segment(NamedTuple):
    n_streams: int = 1
    n_queries: int = 1
    n_memory: int = 0
    n_heads: int = 1
    width: int = 1
    value_width: int = 1
    window: int = 999
    dropout: bool = False

    @property
    def n_keys(self):
        return self.n_memory + self.n_queries

    @property
    def seen(self):
        """[q, K] bool: key j is not after query i and among its W nearest."""
        i, j = np.ogrid[: self.n_queries, : self.n_keys]
        distance = self.n_memory + i - j
        return (distance >= 0) & (distance < self.window)


def at_edges(smallest, largest):
    """Sizes that end at the edge of a tile, one before it or one behind it, among others."""
    edges = [n + more for n in (TILE_ROWS, TILE_COLUMNS, 32, 64) for more in (-1, 0, 1)]
    edges = [n for n in edges if smallest <= n <= largest]
    return st.integers(smallest, largest) | st.sampled_from(edges)


def segments(longest_segment, longest_memory, widest):
    return st.builds(
        Segment,
        n_streams=st.integers(1, 2),
        n_queries=at_edges(1, longest_segment),
        n_memory=at_edges(0, longest_memory),
        n_heads=st.integers(1, 3),
        width=at_edges(1, widest),
        value_width=at_edges(1, widest),
        window=at_edges(1, longest_segment + longest_memory + 1),
        dropout=st.booleans(),
    )


# The last query alone in its tile, in its block, or at the end of both; windows that are narrower
# than a tile, that begin in one and that reach from one block into the one before.
SEGMENTS = [
    Segment(2, 5, 3, 3, 3, 2, 4, True),
    Segment(1, 33, 20, 2, 16, 17, 18),
    Segment(2, 32, 31, 2, 17, 16, 33, True),
    Segment(1, 64, 65, 1, 32, 3, 64),
    Segment(1, 70, 70, 2, 20, 33, dropout=True),
    Segment(2, 37, 0, 1, 1, 15, 1),
    Segment(1, 1, 139, 2, 48, 16, 100),
    Segment(1, 5, 600, 1, 3, 5, 590),  # more keys than a chunk
    Segment(1, 70, 450, 1, 2, 3, 60),  # so many that blocks are larger
    # So many that they are met in several parts, of which some queries see none or a few.
    Segment(1, 140, 1000, 1, 2, 3, 1010, True),
    Segment(1, 40, 2050, 2, 3, 2, 1030),
]


SMALL = {"_BLOCK": 2 * TILE_ROWS, "_KEYS": TILE_COLUMNS}
"""Queries and keys that are handled together, so few that a small segment has several parts."""


class Arrays(NamedTuple):
    """What the kernels read, in the order of their arguments."""

    query: np.ndarray  # [B, q, H, D]
    key: np.ndarray  # [B, K, H, D]
    value: np.ndarray  # [B, K, H, E]
    relative: np.ndarray  # [K, H, D]
    u: np.ndarray  # [H, D]
    v: np.ndarray  # [H, D]
    scale: np.floating
    window: int
    rule: DropoutRule


def arrays_of(segment, dtype, seed=0):
    """Those, and a cotangent of what the forward pass fills."""
    draw = np.random.default_rng(seed)
    s = segment

    def normal(*shape):
        return draw.standard_normal(shape).astype(dtype)

    rule = dropout_rule(None, np.dtype(dtype))
    if s.dropout:
        words = (int(word) for word in draw.integers(2**32, size=3))
        rule = DropoutRule(*words, 2**30, dtype(4 / 3))
    x = Arrays(
        normal(s.n_streams, s.n_queries, s.n_heads, s.width),
        normal(s.n_streams, s.n_keys, s.n_heads, s.width),
        normal(s.n_streams, s.n_keys, s.n_heads, s.value_width),
        normal(s.n_keys, s.n_heads, s.width),
        normal(s.n_heads, s.width),
        normal(s.n_heads, s.width),
        dtype(1.5 / math.sqrt(s.width)),
        s.window,
        rule,
    )
    return x, normal(s.n_streams, s.n_queries, s.n_heads, s.value_width)


class Gradients(NamedTuple):
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    relative: np.ndarray
    u: np.ndarray
    v: np.ndarray


def naive_attention(segment, x, d_attended):
    """attended, largest and normalizer, and the gradients, in float64: a query after another.

    The Jacobian of each softmax is written out, and nothing that a query does not see is read.
    """
    n_queries, n_keys, rule = segment.n_queries, segment.n_keys, x.rule
    x = Arrays(*(np.asarray(array, np.float64) for array in x[:7]), x.window, rule)
    attended = np.zeros(d_attended.shape)
    largest, normalizer = np.zeros((2, len(x.query), segment.n_heads, n_queries))
    mask = np.ones((*largest.shape, n_keys))
    if segment.dropout:
        drop(mask.reshape(len(mask), -1), mask.reshape(len(mask), -1), rule._replace(factor=4 / 3))
    d = Gradients(*map(np.zeros_like, x[:6]))
    for b, h, i in np.ndindex(largest.shape):
        j = np.flatnonzero(segment.seen[i])
        column = j + n_queries - 1 - i  # of relative: the shift of appendix B
        query_u, query_v = x.query[b, i, h] + x.u[h], x.query[b, i, h] + x.v[h]
        k, r, value, kept = (
            x.key[b, j, h],
            x.relative[column, h],
            x.value[b, j, h],
            mask[b, h, i, j],
        )
        scores = k @ query_u + r @ query_v
        largest[b, h, i] = scores.max()
        weights = np.exp((scores - scores.max()) * x.scale)
        normalizer[b, h, i] = 1 / weights.sum()
        a = weights / weights.sum()
        attended[b, i, h] = (a * kept) @ value

        d_out = d_attended[b, i, h].astype(np.float64)
        jacobian = (np.diag(a) - np.outer(a, a)) * x.scale
        d_scores = jacobian @ (kept * (value @ d_out))
        d.query[b, i, h] = d_scores @ (k + r)
        d.u[h] += d_scores @ k
        d.v[h] += d_scores @ r
        d.key[b, j, h] += np.outer(d_scores, query_u)
        d.relative[column, h] += np.outer(d_scores, query_v)
        d.value[b, j, h] += np.outer(a * kept, d_out)
    return (attended, largest, normalizer), d


def filled(forward, x, value_width, heads=None):
    """attended, largest and normalizer, which were NaN before."""
    n_streams, n_queries, n_heads, _ = x.query.shape
    shapes = [(n_streams, n_queries, n_heads, value_width)] + [(n_streams, n_heads, n_queries)] * 2
    outputs = [np.full(shape, np.nan, x.query.dtype) for shape in shapes]
    forward(*x, heads or (0, n_heads), *outputs)
    return outputs


def gradients(backward, x, outputs, d_attended, heads=None):
    """Of query, key, value and relative, which were NaN before, and of u and v, which were 1."""
    d = Gradients(
        *(np.full_like(array, np.nan) for array in x[:4]), np.ones_like(x.u), np.ones_like(x.v)
    )
    backward(d_attended, *outputs, *x, heads or (0, len(x.u)), *d)
    return d


def check_attention(forward, backward, segment, dtype, seed):
    """Against the naive form; what no query sees is NaN, and must not be read."""
    x, d_attended = arrays_of(segment, dtype, seed)
    expected, expected_gradients = naive_attention(segment, x, d_attended)
    unseen = ~segment.seen.any(0)
    x.key[:, unseen] = x.value[:, unseen] = x.relative[: -segment.window] = np.nan
    read = [array.copy() for array in (*x[:6], d_attended)]
    outputs = filled(forward, x, segment.value_width)
    # Inner products of so many terms of size one, and differences of them that may be zero.
    n_terms = 5 + segment.width + segment.value_width
    tolerance = dict.fromkeys(("rtol", "atol"), n_terms * rounding(dtype))
    for output, truth in zip(outputs, expected, strict=True):
        assert_eq(output, truth.astype(dtype), **tolerance)
    read += [array.copy() for array in outputs]
    d = gradients(backward, x, outputs, d_attended)
    for array, before in zip((*x[:6], d_attended, *outputs), read, strict=True):
        np.testing.assert_array_equal(array, before)
    for ours, truth, before in zip(d, expected_gradients, (0, 0, 0, 0, 1, 1), strict=True):
        assert_eq(ours, (before + truth).astype(dtype), **tolerance)
    assert not d.key[:, unseen].any()
    assert not d.value[:, unseen].any()
    assert not d.relative[: -segment.window].any()


@dtypes
@pytest.mark.parametrize("segment", SEGMENTS)
def test_relative_attention_at_the_edges_of_tiles(dtype, segment):
    forward, backward = relative_attention_heads_forward, relative_attention_heads_backward
    check_attention(forward, backward, segment, dtype, seed=1)


@dtypes
@given(segment=segments(70, 70, 33) if COMPILED else segments(12, 20, 17), seed=seeds)
def test_relative_attention(dtype, segment, seed):
    forward, backward = relative_attention_heads_forward, relative_attention_heads_backward
    check_attention(forward, backward, segment, dtype, seed)


@dtypes
@given(segment=segments(3 * TILE_ROWS, 2 * TILE_COLUMNS, 17), seed=seeds)
def test_relative_attention_as_plain_python(dtype, segment, seed):
    """Down to the last kernel, in small parts; no vector begins or ends outside of its array."""
    kernels = relative_attention_heads_forward, relative_attention_heads_backward
    forward, backward = (plain(function, **SMALL) for function in kernels)
    # What comes before the first key is made smaller by e^−∞ where scores are scaled up.
    with mock.patch.object(vectors, "_in_memory", within_bounds), np.errstate(over="ignore"):
        check_attention(forward, backward, segment, dtype, seed)


@dtypes
@pytest.mark.parametrize("segment", [*SEGMENTS[:3], Segment(1, 11, 7, 2, 3, 2, 6)])
def test_without_distances_content_decides_alone(dtype, segment):
    """As with distances that are all zero; in plain Python nothing beyond an array is touched."""
    x, d_attended = arrays_of(segment, dtype)
    x.relative[:] = 0
    expected, expected_gradients = naive_attention(segment, x, d_attended)
    x = x._replace(relative=x.relative[:, :, :0])
    tolerance = dict.fromkeys(("rtol", "atol"), 40 * rounding(dtype))
    kernels = relative_attention_heads_forward, relative_attention_heads_backward
    both = [kernels]
    if segment.n_queries < 12:
        both.append(tuple(plain(function, **SMALL) for function in kernels))
    for forward, backward in both:
        in_memory = vectors._in_memory if forward in kernels else within_bounds
        with mock.patch.object(vectors, "_in_memory", in_memory):
            outputs = filled(forward, x, segment.value_width)
            d = gradients(backward, x, outputs, d_attended)
        for output, truth in zip(outputs, expected, strict=True):
            assert_eq(output, truth.astype(dtype), **tolerance)
        assert d.relative.shape == x.relative.shape
        assert (d.v == 1).all()  # nothing is added
        for name in ("query", "key", "value", "u"):
            truth = getattr(expected_gradients, name) + (name == "u")
            assert_eq(getattr(d, name), truth.astype(dtype), **tolerance)


@dtypes
@pytest.mark.parametrize("dropout", [False, True])
def test_heads_by_themselves_are_what_they_are_among_others(dtype, dropout):
    """To the last bit, and nothing of the others is written."""
    segment = Segment(2, 37, 30, 4, 16, 5, 40, dropout)
    x, d_attended = arrays_of(segment, dtype)
    forward, backward = relative_attention_heads_forward, relative_attention_heads_backward
    together = filled(forward, x, segment.value_width)
    d_together = gradients(backward, x, together, d_attended)
    for first, stop in ((0, 1), (1, 3), (3, 4), (0, 4), (2, 2)):
        apart = filled(forward, x, segment.value_width, (first, stop))
        d_apart = gradients(backward, x, together, d_attended, (first, stop))
        ours, theirs = [*apart, *d_apart], [*together, *d_together]
        axes = (2, 1, 1, 2, 2, 2, 1, 0, 0)  # of the heads
        befores = [np.nan] * 7 + [1, 1]
        chosen, others = np.arange(first, stop), np.delete(np.arange(4), np.arange(first, stop))
        for one, all_, axis, before in zip(ours, theirs, axes, befores, strict=True):
            np.testing.assert_array_equal(one.take(chosen, axis), all_.take(chosen, axis))
            np.testing.assert_array_equal(one.take(others, axis), before)


@pytest.mark.parametrize("width", [TILE_COLUMNS - 1, TILE_COLUMNS])
def test_keys_and_values_may_be_parts_of_larger_arrays(width):
    """As a reader has them."""
    segment = Segment(2, 5, 20, 3, width, 2 * width, 12)
    x, _ = arrays_of(segment, np.float64)

    def part(array):
        n_streams, n_keys, *head = array.shape
        larger = np.full((n_streams, 2 * n_keys, *head), np.nan)
        larger[:, 7 : 7 + n_keys] = array
        return larger[:, 7 : 7 + n_keys]

    in_parts = x._replace(key=part(x.key), value=part(x.value))
    for forward in (relative_attention_heads_forward, plain(relative_attention_heads_forward)):
        expected = filled(forward, x, segment.value_width)
        for ours, truth in zip(filled(forward, in_parts, 2 * width), expected, strict=True):
            np.testing.assert_array_equal(ours, truth)


def probabilities(forward, query, key, relative, window, scale=1):
    """a [q, K] of one head of one stream, without biases."""
    dtype, (n_keys, width) = query.dtype.type, key.shape
    x = Arrays(
        query[None, :, None], key[None, :, None], np.eye(n_keys, dtype=dtype)[None, :, None],
        relative[:, None], *np.zeros((2, 1, width), dtype), dtype(scale), window,
        dropout_rule(None, np.dtype(dtype)),
    )  # fmt: skip
    attended, _, _ = filled(forward, x, n_keys)
    return attended[0, :, 0]


ATTENTION_FORMS = (
    relative_attention_heads_forward,
    relative_attention_heads_forward.py_func,
    plain(relative_attention_heads_forward),
)


@pytest.mark.fault("labml #185", "labml #218")
@pytest.mark.parametrize("forward", ATTENTION_FORMS, ids=["jitted", "unjitted", "plain"])
def test_relative_attention_is_the_shift_of_appendix_b(forward):
    """Y[i, j] = X[i, j + q − 1 − i], for every q ≤ K: one large position score selects its key."""
    sizes = [(n_queries, n_keys) for n_keys in range(1, 6) for n_queries in range(1, n_keys + 1)]
    for n_queries, n_keys in [*sizes, (13, 21), (21, 21)]:
        no_key, distances = np.zeros((n_keys, n_keys)), np.eye(n_keys)
        for c in range(n_keys):
            query = np.tile(1e3 * distances[c], (n_queries, 1))  # X[i, c] = 1e3, for all i
            a = probabilities(forward, query, no_key, distances, n_keys)
            for i in range(n_queries):
                j = c - (n_queries - 1 - i)
                if j >= 0:
                    assert a[i, j] == 1


@dtypes
@pytest.mark.parametrize("forward", ATTENTION_FORMS, ids=["jitted", "unjitted", "plain"])
def test_relative_attention_at_extreme_scores(dtype, forward):
    query = np.array([[1], [-1], [0]], dtype)
    key = np.array([[1e4], [-1e4], [1e4], [0], [1e4]], dtype)
    a = probabilities(forward, query, key, np.zeros((5, 1), dtype), 4)
    expected = [[1 / 2, 0, 1 / 2, 0, 0], [0, 1, 0, 0, 0], [0, 0.25, 0.25, 0.25, 0.25]]
    assert_eq(a, np.array(expected, dtype), rtol=rounding(dtype))
    hidden = [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]
    assert (a[np.array(hidden, bool)] == 0).all()


@pytest.mark.fault("hyungkwonko/umato #16", "numbagg #287")
@dtypes
@pytest.mark.parametrize("forward", ATTENTION_FORMS, ids=["jitted", "unjitted", "plain"])
def test_relative_attention_spreads_nan_over_the_rows_that_see_it_alone(dtype, forward):
    n_queries, n_keys, window = 7, 23, 9
    draw = np.random.default_rng(0)
    query, key, relative = (
        draw.standard_normal((n, 3)).astype(dtype) for n in (n_queries, n_keys, n_keys)
    )
    right = probabilities(forward, query, key, relative, window)
    seen = Segment(n_queries=n_queries, n_memory=n_keys - n_queries, window=window).seen
    for j in range(n_keys):
        spoiled = key.copy()
        spoiled[j] = np.nan
        a = probabilities(forward, query, spoiled, relative, window)
        assert np.isnan(a[seen[:, j]][seen[seen[:, j]]]).all()
        np.testing.assert_array_equal(a[~seen[:, j]], right[~seen[:, j]])


@dtypes
@pytest.mark.parametrize("n_first", [1, 31, 33, 80])
def test_keys_that_are_infinitely_unlikely_have_no_part(dtype, n_first):
    """Wherever they lie; and of nothing but such keys there is no average."""
    n_keys, kernel = 80, relative_attention_heads_forward
    x, _ = arrays_of(Segment(1, 1, n_keys - 1, 1, 3, 2), dtype)
    x.query[:], x.u[:], x.relative[:] = 1, 0, 0
    for unlikely in (slice(0, n_first), slice(n_keys - n_first, n_keys)):
        key = x.key.copy()
        key[0, unlikely] = -np.inf
        likely = np.delete(np.arange(n_keys), unlikely)
        scores = key[0, likely, 0].astype(np.float64).sum(-1) * x.scale
        expected = np.full(2, np.nan)
        if n_first < n_keys:
            weights = np.exp(scores - scores.max())
            expected = weights @ x.value[0, likely, 0] / weights.sum()
        for forward in (kernel, plain(kernel, **SMALL)):
            with np.errstate(all="ignore"):
                attended, *_ = filled(forward, x._replace(key=key), 2)
            assert_eq(attended[0, 0, 0], expected.astype(dtype), rtol=20 * rounding(dtype))


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
def test_cross_entropy_of_a_target_to_ignore_is_nothing_whatever_the_logits(dtype):
    logits = np.array([[1, 2, 3], [np.nan, np.inf, 0], [3, 1, 2]], dtype)
    targets, dnll = np.array([2, IGNORE, 0]), np.array([1, np.nan, 1], dtype)
    for forward, backward in zip(
        forms(cross_entropy_forward), forms(cross_entropy_backward), strict=True
    ):
        p, nll = logits.copy(), np.full(3, np.nan, dtype)
        forward(p, targets, nll)
        assert nll[1] == 0
        assert (nll[[0, 2]] > 0).all()
        gradient = np.full_like(logits, np.nan)
        backward(p, targets, dnll, gradient)
        assert (gradient[1] == 0).all()
        assert gradient[[0, 2]].all()


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


@pytest.mark.fault("hyungkwonko/umato #16", "numbagg #287")
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


@pytest.mark.fault("numpygrad: repeated tokens and tied weights")
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
    for scatter in forms(scatter_add):
        actual = table.copy()
        scatter(actual, read_only(indices), read_only(rows), dtype(3))
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
@given(seed=seeds, shape=st.tuples(sizes, sizes), stream=words, start=words | st.integers(0, 2**40))
def test_keep_and_drop(dtype, seed, shape, stream, start):
    """Entry by entry from the definition: streams and counters that wrap around included."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(dtype)
    low, high, threshold = (int(word) for word in rng.integers(2**32, size=3))
    rule = DropoutRule(low, high, stream, threshold, dtype(1.25))

    def factor(row, number):
        key = mix(low ^ ((stream + row) % 2**32))
        bits = mix(mix(number % 2**32 ^ key) ^ mix(high ^ key))
        return dtype(1.25 if bits >= threshold else 0)

    for function in forms(keep):
        for row, number in np.ndindex(shape):
            kept = function(rule, row, start + number)
            assert kept == factor(row, start + number)
    expected = np.array([[x[index] * factor(*index) for index in np.ndindex(shape)]], dtype)
    for function in forms(drop):
        y = np.full_like(x, np.nan)
        function(read_only(x), y, rule)
        assert_eq(y, expected.reshape(shape))


@dtypes
def test_a_threshold_of_zero_keeps_everything_as_it_is(dtype):
    x = np.random.default_rng(0).standard_normal((3, 50)).astype(dtype)
    for function in forms(drop):
        y = np.full_like(x, np.nan)
        function(read_only(x), y, dropout_rule(None, np.dtype(dtype)))
        assert_eq(y, x)


# rectifier


@dtypes
@given(seed=seeds, shape=st.tuples(sizes, sizes, sizes), threshold=st.sampled_from([0, 2**30]))
def test_rectifier(dtype, seed, shape, threshold):
    """Dropout's decisions are those of `drop` for each row's entries, in their order."""
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, *shape)).astype(dtype)
    bias, before = rng.standard_normal((2, shape[-1])).astype(dtype)
    factor = dtype(4 / 3 if threshold else 1)
    words = (int(word) for word in rng.integers(2**32, size=3))
    rule = DropoutRule(*words, threshold, factor)
    mask = np.ones((len(x), x[0].size), dtype)
    drop(mask.copy(), mask, rule)
    mask = mask.reshape(shape)
    expected = np.maximum(x + bias, 0) * mask
    dx = dy * mask * (x + bias > 0)
    d_bias = before + dx.astype(np.float64).sum((0, 1))
    rows = (-1, shape[-1])
    for forward, backward in zip(forms(rectify_forward), forms(rectify_backward), strict=True):
        y = x.copy()
        forward(y, read_only(bias), rule)
        assert_eq(y, expected)
        gradient, total = dy.copy(), before.copy()
        backward(gradient.reshape(rows), read_only(y.reshape(rows)), factor, total)
        assert_eq(gradient, dx)
        assert_eq(total, d_bias.astype(dtype), rtol=rounding(dtype), atol=rounding(dtype))


@dtypes
def test_the_rectifier_lets_nan_through(dtype):
    for function in forms(rectify_forward):
        x = np.array([[[np.nan, -1, 1, 0, -np.inf, np.inf]]], dtype)
        function(x, np.zeros(6, dtype), dropout_rule(None, np.dtype(dtype)))
        assert_eq(x, np.array([[[np.nan, 0, 1, 0, 0, np.inf]]], dtype))


# precision

f4, i8 = numba.types.float32, numba.types.int64
f4_1, f4_2, f4_3, f4_4 = (numba.types.Array(f4, ndim, "C") for ndim in (1, 2, 3, 4))
i8_1, pair = numba.types.Array(i8, 1, "C"), numba.types.UniTuple(i8, 2)
rule = numba.types.NamedTuple((i8, i8, i8, i8, f4), DropoutRule)
attention = (f4_4, f4_4, f4_4, f4_3, f4_2, f4_2, f4, i8, rule, pair)


@pytest.mark.fault("hyungkwonko/umato #16", "numbagg #287")
@pytest.mark.skipif(not COMPILED, reason="asks what was compiled")
def test_no_kernel_may_assume_that_nothing_is_infinite_or_nan():
    """What today's compiler does not exploit, tomorrow's may: results cannot show it."""
    modules = [
        importlib.import_module(f"npxl.kernels.{module.name}")
        for module in pkgutil.iter_modules(npxl.kernels.__path__)
    ]
    compiled = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Dispatcher)
    ]
    assert {adam_update, _exp_float32, relative_attention_heads_backward} < set(compiled)
    for function in compiled:
        flags = FastMathOptions(function.targetoptions.get("fastmath", False)).flags
        assert not {"fast", "ninf", "nnan"} & set(flags), function


@pytest.mark.skipif(not COMPILED, reason="asks what was compiled")
@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (relative_attention_heads_forward, (*attention, f4_4, f4_3, f4_3)),
        (
            relative_attention_heads_backward,
            (f4_4, f4_4, f4_3, f4_3, *attention, f4_4, f4_4, f4_4, f4_3, f4_2, f4_2),
        ),
        (multiply_tile, (f4_2, i8, pair, f4_2, i8, i8, f4_2, i8, i8, i8, numba.types.boolean)),
        (cross_entropy_forward, (f4_2, i8_1, f4_1)),
        (cross_entropy_backward, (f4_2, i8_1, f4_1, f4_2)),
        (log_softmax_rows, (f4_2,)),
        (layer_norm_rows_forward, (f4_2, f4_1, f4_1, f4, f4_2, f4_2, f4_1)),
        (layer_norm_rows_backward, (f4_2, f4_2, f4_1, f4_1, f4_2, f4_1, f4_1)),
        (scatter_add, (f4_2, i8_1, f4_2, f4)),
        (adam_update, (*[f4_1] * 4, *[f4] * 8)),
        (drop, (f4_2, f4_2, rule)),
        (rectify_forward, (f4_3, f4_1, rule)),
        (rectify_backward, (f4_2, f4_2, f4, f4_1)),
    ],
)
def test_float32_kernels_compute_in_float32(function, signature):
    """Numba makes float32 / int a float64, at half the speed: nothing may do that unseen."""
    compiled = numba.njit(function.py_func, error_model="numpy")
    compiled.compile(signature)
    assert "to double" not in compiled.inspect_llvm(signature)
