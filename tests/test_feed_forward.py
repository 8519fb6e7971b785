"""The feed-forward block against its loop and central differences, with and without dropout."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numerical import (
    assert_eq,
    central_difference,
    directional_difference,
    leading_shapes,
    read_only,
    seeds,
    widths,
)

from npxl.layers.dropout import MaskKey, dropout_forward
from npxl.layers.feed_forward import (
    FeedForwardWeights,
    feed_forward_backward,
    feed_forward_forward,
)

KEY = MaskKey(seed=3, step=5)
SITES = KEY.site("inner"), KEY.site("outer")
batches = leading_shapes.filter(len)  # dropout's masks belong to the rows of a batch


def draw(seed, leading, d_model, d_inner):
    rng = np.random.default_rng(seed)
    shapes = (d_inner, d_model), (d_inner,), (d_model, d_inner), (d_model,)
    weights = FeedForwardWeights(*(rng.standard_normal(shape) for shape in shapes))
    x, dy = rng.standard_normal((2, *leading, d_model))
    return x, weights, dy


def zeros_like(weights):
    return FeedForwardWeights(*(np.zeros_like(w) for w in weights))


def distance_to_a_kink(x, weights):
    return np.abs(x @ weights.w_1.T + weights.b_1).min()


def naive(x, weights, inner_mask, outer_mask):
    y = np.empty_like(x)
    for row in np.ndindex(x.shape[:-1]):
        inner = []
        for w, b, keep in zip(weights.w_1, weights.b_1, inner_mask[row], strict=True):
            z = sum(w_d * x_d for w_d, x_d in zip(w, x[row], strict=True)) + b
            inner.append(keep * z if z > 0 else 0.0)
        for e, (w, b) in enumerate(zip(weights.w_2, weights.b_2, strict=True)):
            z = sum(w_i * h_i for w_i, h_i in zip(w, inner, strict=True)) + b
            y[(*row, e)] = outer_mask[(*row, e)] * z
    return y


@given(seeds, leading_shapes, widths, widths)
def test_forward_equals_the_loop(seed, leading, d_model, d_inner):
    x, weights, _ = draw(seed, leading, d_model, d_inner)
    y, _ = feed_forward_forward(read_only(x), FeedForwardWeights(*map(read_only, weights)))
    expected = naive(x, weights, np.ones((*leading, d_inner)), np.ones_like(x))
    assert_eq(y, expected, rtol=1e-13, atol=1e-14)


@given(seeds, batches, widths, widths)
def test_forward_with_dropout_equals_the_loop_with_its_masks(seed, leading, d_model, d_inner):
    x, weights, _ = draw(seed, leading, d_model, d_inner)
    inner_mask, _ = dropout_forward(np.ones((*leading, d_inner)), 0.4, SITES[0])
    outer_mask, _ = dropout_forward(np.ones_like(x), 0.4, SITES[1])
    y, _ = feed_forward_forward(x, weights, 0.4, *SITES)
    assert_eq(y, naive(x, weights, inner_mask, outer_mask), rtol=1e-13, atol=1e-14)


def test_without_a_site_or_a_rate_nothing_is_dropped():
    x, weights, _ = draw(0, (2, 3), 4, 5)
    expected, _ = feed_forward_forward(x, weights)
    assert_eq(feed_forward_forward(x, weights, 0.4)[0], expected)
    inner_site, outer_site = SITES
    y, _ = feed_forward_forward(x, weights, inner_site=inner_site, outer_site=outer_site)
    assert_eq(y, expected)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@given(seed=seeds, leading=batches, d_model=widths, d_inner=widths)
def test_backward_equals_central_differences(rate, seed, leading, d_model, d_inner):
    x, weights, dy = draw(seed, leading, d_model, d_inner)
    assume(distance_to_a_kink(x, weights) > 1e-3)
    y_and_cache = feed_forward_forward(x, weights, rate, *SITES)
    grads = zeros_like(weights)
    dx = feed_forward_backward(read_only(dy), y_and_cache[1], weights, grads)
    for variable, gradient in zip((x, *weights), (dx, *grads), strict=True):
        expected = central_difference(
            lambda: feed_forward_forward(x, weights, rate, *SITES)[0], variable, dy
        )
        assert_eq(gradient, expected, rtol=1e-8, atol=1e-8)


def test_backward_of_a_wide_block_along_random_directions():
    x, weights, dy = draw(7, (4, 9), 32, 128)
    assert distance_to_a_kink(x, weights) > 1e-5
    _, cache = feed_forward_forward(x, weights)
    grads = zeros_like(weights)
    dx = feed_forward_backward(dy, cache, weights, grads)
    rng = np.random.default_rng(8)
    for variable, gradient in zip((x, *weights), (dx, *grads), strict=True):
        direction = rng.standard_normal(variable.shape)
        expected = directional_difference(
            lambda: feed_forward_forward(x, weights)[0], variable, direction, dy, step=1e-8
        )
        assert np.vdot(gradient, direction) == pytest.approx(expected, rel=1e-5)


def test_an_input_of_exactly_zero_gets_no_gradient():
    """The ReLU's derivative at its kink is taken as 0, as everywhere."""
    weights = FeedForwardWeights(np.ones((1, 1)), np.zeros(1), np.ones((1, 1)), np.zeros(1))
    _, cache = feed_forward_forward(np.zeros((1, 1)), weights)
    assert_eq(feed_forward_backward(np.ones((1, 1)), cache, weights, zeros_like(weights)), [[0.0]])


@given(seeds, batches, widths, widths, st.sampled_from([0.0, 0.3]))
def test_backward_adds_to_the_gradients(seed, leading, d_model, d_inner, rate):
    x, weights, dy = draw(seed, leading, d_model, d_inner)
    _, before, _ = draw(seed + 1, leading, d_model, d_inner)
    fresh = zeros_like(weights)
    after = FeedForwardWeights(*(b.copy() for b in before))
    _, cache = feed_forward_forward(x, weights, rate, *SITES)
    dx = feed_forward_backward(read_only(dy), cache, weights, fresh)
    assert_eq(feed_forward_backward(read_only(dy), cache, weights, after), dx)  # and twice the same
    for a, b, expected in zip(after, before, fresh, strict=True):
        assert_eq(a - b, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@given(seed=seeds, leading=batches, d_model=widths, d_inner=widths)
def test_float32_stays_float32(rate, seed, leading, d_model, d_inner):
    x, weights, dy = draw(seed, leading, d_model, d_inner)
    assume(distance_to_a_kink(x, weights) > 1e-3)

    def run(dtype):
        w = FeedForwardWeights(*(a.astype(np.float32).astype(dtype) for a in weights))
        single_x, single_dy = (a.astype(np.float32).astype(dtype) for a in (x, dy))
        y, cache = feed_forward_forward(single_x, w, rate, *SITES)
        grads = zeros_like(w)
        return y, feed_forward_backward(single_dy, cache, w, grads), *grads

    for actual, expected in zip(run(np.float32), run(np.float64), strict=True):
        assert_eq(actual, expected.astype(np.float32), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_arrays_with_strides(rate):
    x, weights, dy = draw(4, (3, 4), 5, 6)

    def strided(a):
        return np.array(a.T, order="C").T

    def run(x, weights, dy):
        y, cache = feed_forward_forward(x, weights, rate, *SITES)
        grads = zeros_like(weights)
        return y, feed_forward_backward(dy, cache, weights, grads), *grads

    expected = run(x, weights, dy)
    actual = run(strided(x), FeedForwardWeights(*map(strided, weights)), strided(dy))
    for a, e in zip(actual, expected, strict=True):
        assert_eq(a, e, rtol=1e-14)
