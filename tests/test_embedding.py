"""The embedding against its loop, central differences and its adjoint; repeated tokens included."""

import math

import numpy as np
import pytest
from hypothesis import given
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
