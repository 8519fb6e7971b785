"""The embedding against its loop, central differences and its adjoint; repeated tokens included."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import (
    assert_adjoint,
    assert_eq,
    central_difference,
    leading_shapes,
    read_only,
    seeds,
    widths,
)

from npxl.layers.embedding import EmbeddingCluster, embedding_backward, embedding_forward


def forward(tokens, table):
    return embedding_forward(tokens, [EmbeddingCluster(table)])


def backward(dy, tokens, d_table):
    """The gradient of a table without a projection does not depend on the table."""
    table = read_only(np.full_like(d_table, np.nan))
    embedding_backward(dy, tokens, [EmbeddingCluster(table)], [EmbeddingCluster(d_table)])


def draw(seed, leading, n_symbols, d):
    """Tokens of which one occurs at least twice, a table, and a cotangent."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(n_symbols, size=(2, *leading))
    tokens[1, ...] = np.where(rng.random(leading) < 0.5, tokens[0], tokens[1])
    tokens.flat[-1] = tokens.flat[0]
    return tokens, rng.standard_normal((n_symbols, d)), rng.standard_normal((*tokens.shape, d))


def naive_gradient(tokens, dy, table):
    gradient = np.zeros_like(table)
    for index in np.ndindex(tokens.shape):
        for e in range(table.shape[1]):
            gradient[tokens[index], e] += math.sqrt(table.shape[1]) * dy[(*index, e)]
    return gradient


@given(seeds, leading_shapes, widths, widths)
def test_forward_equals_the_loop(seed, leading, n_symbols, d):
    tokens, table, dy = draw(seed, leading, n_symbols, d)
    expected = np.empty_like(dy)
    for index in np.ndindex(tokens.shape):
        for e in range(d):
            expected[(*index, e)] = math.sqrt(d) * table[tokens[index], e]
    assert_eq(forward(read_only(tokens), read_only(table)), expected)


@given(seeds, leading_shapes, widths, widths)
def test_backward_equals_the_loop_and_central_differences(seed, leading, n_symbols, d):
    tokens, table, dy = draw(seed, leading, n_symbols, d)
    d_table = np.zeros_like(table)
    backward(read_only(dy), read_only(tokens), d_table)
    assert_eq(d_table, naive_gradient(tokens, dy, table), rtol=1e-14)
    expected = central_difference(lambda: forward(tokens, table), table, dy)
    assert_eq(d_table, expected, rtol=1e-8, atol=1e-9)
    assert_adjoint(forward(tokens, table), dy, table, d_table)


@given(seeds, leading_shapes, widths, widths)
def test_backward_adds_to_the_gradient(seed, leading, n_symbols, d):
    tokens, table, dy = draw(seed, leading, n_symbols, d)
    before = np.random.default_rng(seed + 1).standard_normal(table.shape)
    after = before.copy()
    backward(dy, tokens, after)
    assert_eq(after - before, naive_gradient(tokens, dy, table), rtol=1e-14, atol=1e-14)


def draw_clusters(seed, sizes, d, projected, n=9):
    """Tokens at the boundaries of clusters and elsewhere, repeated; clusters; a cotangent."""
    rng = np.random.default_rng(seed)
    bounds = np.cumsum([0, *sizes])
    edges = np.concatenate([bounds[:-1], bounds[1:] - 1])
    tokens = np.concatenate([edges, edges[:1], rng.integers(bounds[-1], size=n)])
    clusters = []
    for size in sizes:
        width = int(rng.integers(1, 5)) if projected else d
        projection = rng.standard_normal((d, width)) if projected else None
        clusters.append(EmbeddingCluster(rng.standard_normal((size, width)), projection))
    return tokens[None], clusters, rng.standard_normal((1, tokens.size, d))


def zeros_of(clusters):
    return [
        EmbeddingCluster(*(None if array is None else np.zeros_like(array) for array in cluster))
        for cluster in clusters
    ]


several = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(seeds, several, widths, st.booleans())
def test_clusters_equal_the_loop(seed, sizes, d, projected):
    tokens, clusters, dy = draw_clusters(seed, sizes, d, projected)
    starts = np.cumsum([0, *sizes])
    y = embedding_forward(read_only(tokens), clusters)
    grads, expected = zeros_of(clusters), zeros_of(clusters)
    embedding_backward(read_only(dy), read_only(tokens), clusters, grads)
    for at in np.ndindex(tokens.shape):
        i = max(n for n in range(len(sizes)) if starts[n] <= tokens[at])
        symbol, (table, projection) = tokens[at] - starts[i], clusters[i]
        matrix = np.eye(d) if projection is None else projection
        assert_eq(y[at], math.sqrt(d) * matrix @ table[symbol], rtol=1e-13)
        expected[i].table[symbol] += math.sqrt(d) * matrix.T @ dy[at]
        if projection is not None:
            expected[i].projection[...] += math.sqrt(d) * np.outer(dy[at], table[symbol])
    for actual, right in zip(sum(grads, ()), sum(expected, ()), strict=True):
        if right is not None:
            assert_eq(actual, right, rtol=1e-13)


@given(seeds, several, widths)
def test_clusters_equal_central_differences_and_add(seed, sizes, d):
    tokens, clusters, dy = draw_clusters(seed, sizes, d, projected=True)
    grads = [EmbeddingCluster(*map(np.ones_like, cluster)) for cluster in clusters]
    embedding_backward(dy, tokens, clusters, grads)
    for array, gradient in zip(sum(clusters, ()), sum(grads, ()), strict=True):
        difference = central_difference(lambda: embedding_forward(tokens, clusters), array, dy)
        assert_eq(gradient - 1, difference, rtol=1e-7, atol=1e-8)


@given(seeds, several, widths, st.booleans())
def test_clusters_in_float32_stay_in_float32(seed, sizes, d, projected):
    tokens, clusters, dy = draw_clusters(seed, sizes, d, projected)
    single = [
        EmbeddingCluster(*(None if array is None else array.astype(np.float32) for array in each))
        for each in clusters
    ]
    y = embedding_forward(tokens, clusters).astype(np.float32)
    assert_eq(embedding_forward(tokens, single), y, rtol=1e-5, atol=1e-5)
    double_grads, single_grads = zeros_of(clusters), zeros_of(single)
    embedding_backward(dy, tokens, clusters, double_grads)
    embedding_backward(dy.astype(np.float32), tokens, single, single_grads)
    for actual, right in zip(sum(single_grads, ()), sum(double_grads, ()), strict=True):
        if right is not None:
            assert_eq(actual, right.astype(np.float32), rtol=1e-5, atol=1e-5)


def test_clusters_that_no_token_is_in_are_not_read_and_not_written():
    tokens, clusters, dy = draw_clusters(0, [3, 2, 2], 4, projected=True)
    tokens = tokens % 3
    poisoned = [clusters[0]] + [
        EmbeddingCluster(*(np.full_like(array, np.nan) for array in cluster))
        for cluster in clusters[1:]
    ]
    expected = embedding_forward(tokens, clusters)
    assert_eq(embedding_forward(tokens, poisoned), expected)
    grads = zeros_of(clusters)
    embedding_backward(dy, tokens, poisoned, grads)
    assert all(array.any() for array in grads[0])
    assert not any(array.any() for cluster in grads[1:] for array in cluster)


@pytest.mark.fault("numpygrad: repeated tokens and tied weights")
def test_one_token_everywhere_gathers_every_gradient():
    dy = np.random.default_rng(0).standard_normal((3, 5, 4))
    d_table = np.zeros((7, 4))
    backward(dy, np.full((3, 5), 2), d_table)
    expected = np.zeros((7, 4))
    expected[2] = 2 * dy.sum((0, 1))  # √4 = 2
    assert_eq(d_table, expected, rtol=1e-14)


def test_unused_symbols_get_exactly_nothing():
    before = np.random.default_rng(0).standard_normal((6, 3))
    after = before.copy()
    backward(np.full((1, 2, 3), np.nan), np.array([[4, 1]]), after)
    assert np.isnan(after[[1, 4]]).all()
    assert_eq(after[[0, 2, 3, 5]], before[[0, 2, 3, 5]])


@given(seeds, leading_shapes, widths, widths)
def test_float32_stays_float32(seed, leading, n_symbols, d):
    tokens, table, dy = draw(seed, leading, n_symbols, d)
    table, dy = table.astype(np.float32), dy.astype(np.float32)
    expected = forward(tokens, table.astype(np.float64))
    assert_eq(forward(tokens, table), expected.astype(np.float32), rtol=2e-7)
    d_table = np.zeros_like(table)
    backward(dy, tokens, d_table)
    expected = naive_gradient(tokens, dy.astype(np.float64), table.astype(np.float64))
    assert_eq(d_table, expected.astype(np.float32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_tokens_of_any_integer_type_and_arrays_with_strides(dtype):
    tokens, table, dy = draw(3, (4,), 5, 3)
    expected = np.zeros_like(table)
    backward(dy, tokens, expected)
    y = forward(tokens, table)

    strided_tokens = np.array(tokens.T, dtype, order="C").T
    strided_dy = np.repeat(dy, 2, axis=-1)[..., ::2]
    d_table = np.repeat(np.zeros_like(table), 2, axis=0)[::2]
    backward(strided_dy, strided_tokens, d_table)
    assert_eq(d_table, expected)
    assert_eq(forward(strided_tokens, table[:, ::-1])[..., ::-1], y)
