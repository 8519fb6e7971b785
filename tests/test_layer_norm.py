"""Layer normalisation against the reference, central differences and its invariances."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import assert_eq, central_difference, leading_shapes, read_only, seeds, widths

from npxl import reference
from npxl.config import ModelConfig
from npxl.layers.layer_norm import layer_norm_backward, layer_norm_forward

EPSILON = 1e-5


def draw(seed, leading, d):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*leading, d)) * 2 + 3
    return x, rng.standard_normal(d), rng.standard_normal(d), rng.standard_normal((*leading, d))


def gradients(x, gain, bias, dy, epsilon=EPSILON):
    """dx, d_gain, d_bias."""
    _, cache = layer_norm_forward(x, gain, bias, epsilon)
    d_gain, d_bias = np.zeros_like(gain), np.zeros_like(bias)
    return layer_norm_backward(dy, cache, gain, d_gain, d_bias), d_gain, d_bias


@given(seeds, leading_shapes, widths, st.sampled_from([1e-5, 1e-12, 0.3]))
def test_forward_equals_the_reference(seed, leading, d, epsilon):
    x, gain, bias, _ = map(read_only, draw(seed, leading, d))
    config = ModelConfig(vocab_size=2, layer_norm_epsilon=epsilon)
    expected = np.empty_like(x)
    for row in np.ndindex(leading):
        expected[row] = reference.layer_norm(x[row], gain, bias, config)
    y, _ = layer_norm_forward(x, gain, bias, epsilon)
    assert_eq(y, expected, rtol=1e-13)


@given(seeds, leading_shapes, widths)
def test_backward_equals_central_differences(seed, leading, d):
    x, gain, bias, dy = draw(seed, leading, d)
    # A row of d = 2 normalises to ±1 whatever it holds; a large ε leaves a slope to measure.
    epsilon = 0.1
    actual = gradients(*map(read_only, (x, gain, bias, dy)), epsilon)
    for variable, gradient in zip((x, gain, bias), actual, strict=True):
        expected = central_difference(
            lambda: layer_norm_forward(x, gain, bias, epsilon)[0], variable, dy
        )
        assert_eq(gradient, expected, rtol=1e-7, atol=1e-8)


@given(seeds, leading_shapes, widths)
def test_backward_adds_to_the_gradients(seed, leading, d):
    x, gain, bias, dy = draw(seed, leading, d)
    expected_dx, *fresh = gradients(x, gain, bias, dy)
    rng = np.random.default_rng(seed + 1)
    before = rng.standard_normal((2, d))
    after = before.copy()
    _, cache = layer_norm_forward(x, gain, bias, EPSILON)
    assert_eq(layer_norm_backward(dy, cache, gain, *after), expected_dx)
    assert_eq(after - before, np.array(fresh), rtol=1e-13, atol=1e-14)


@given(seeds, leading_shapes, st.integers(3, 8))
def test_output_has_mean_0_and_variance_1_whatever_the_scale(seed, leading, d):
    x, _, _, _ = draw(seed, leading, d)
    one, zero = np.ones(d), np.zeros(d)
    y, _ = layer_norm_forward(x, one, zero, 1e-12)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-13)
    np.testing.assert_allclose(y.var(-1), 1, rtol=1e-6)
    scaled, _ = layer_norm_forward(7 * x - 5, one, zero, 1e-12)
    assert_eq(scaled, y, rtol=1e-6)


@given(seeds, leading_shapes, st.integers(2, 8))
def test_gradient_is_orthogonal_to_shifts(seed, leading, d):
    """y does not change when a constant is added to x, so that dx sums to zero."""
    dx, _, _ = gradients(*draw(seed, leading, d))
    np.testing.assert_allclose(dx.sum(-1), 0, atol=1e-12 * max(1.0, np.abs(dx).max()))


def test_width_1_and_constant_rows_give_the_bias_and_finite_gradients():
    rng = np.random.default_rng(0)
    for x in (rng.standard_normal((2, 3, 1)), np.full((2, 3, 4), 5.0)):
        gain, bias = rng.standard_normal((2, x.shape[-1]))
        dy = rng.standard_normal(x.shape)
        y, _ = layer_norm_forward(x, gain, bias, EPSILON)
        assert_eq(y, np.broadcast_to(bias, x.shape))
        dx, d_gain, d_bias = gradients(x, gain, bias, dy)
        assert np.isfinite(dx).all()
        assert_eq(d_gain, np.zeros_like(gain))
        assert_eq(d_bias, dy.sum((0, 1)), rtol=1e-14)


def test_nan_stays_in_its_row():
    x, gain, bias, dy = draw(1, (3, 2), 4)
    clean, _ = layer_norm_forward(x, gain, bias, EPSILON)
    x[1, 0, 2] = np.nan
    y, _ = layer_norm_forward(x, gain, bias, EPSILON)
    assert np.isnan(y[1, 0]).all()
    y[1, 0] = clean[1, 0]
    assert_eq(y, clean)
    dx, d_gain, _ = gradients(x, gain, bias, dy)
    assert np.isnan(dx[1, 0]).all()
    assert np.isnan(dx).sum() == 4
    assert np.isnan(d_gain).all()


@given(seeds, leading_shapes, widths)
def test_float32_stays_float32(seed, leading, d):
    single = [a.astype(np.float32) for a in draw(seed, leading, d)]
    double = [a.astype(np.float64) for a in single]

    def run(x, gain, bias, dy):
        return layer_norm_forward(x, gain, bias, 0.1)[0], *gradients(x, gain, bias, dy, 0.1)

    for actual, expected in zip(run(*single), run(*double), strict=True):
        assert_eq(actual, expected.astype(np.float32), rtol=3e-6, atol=1e-5)
    _, cache = layer_norm_forward(*single[:3], 0.1)
    assert cache.normalized.shape == single[0].shape
    assert cache.normalized.dtype == cache.inv_std.dtype == np.float32


@pytest.mark.parametrize("strided", ["transposed", "sliced"])
def test_arrays_with_strides(strided):
    view = {
        "transposed": lambda a: np.array(a.T, order="C").T,
        "sliced": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    }[strided]
    arrays = draw(2, (3, 4), 5)
    strided_arrays = [view(a) for a in arrays]
    y, _ = layer_norm_forward(*arrays[:3], EPSILON)
    assert_eq(layer_norm_forward(*strided_arrays[:3], EPSILON)[0], y, rtol=1e-14)
    for actual, expected in zip(gradients(*strided_arrays), gradients(*arrays), strict=True):
        assert_eq(actual, expected, rtol=1e-13)
