"""Adam against the paper's algorithm written out, its kernel's plain twin, and known answers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl.errors import NpxlError
from npxl.kernels.adam import adam_update, squared_norm
from npxl.training.optimizers import Adam, clip_scale, gradient_norm

DTYPES = [np.float32, np.float64]


def paper_adam(params, gradients, lrs, clip, beta1, beta2, epsilon):
    """Algorithm 1 of Kingma & Ba 2015, one number at a time, in Python floats."""
    theta = [float(p) for p in params]
    m = [0.0] * len(theta)
    v = [0.0] * len(theta)
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        norm = math.sqrt(sum(float(g) ** 2 for g in gradient))
        factor = min(1.0, clip / norm) if norm > 0 else 1.0
        for i, entry in enumerate(gradient):
            g = float(entry) * factor
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g**2
            m_hat = m[i] / (1 - beta1**t)
            v_hat = v[i] / (1 - beta2**t)
            theta[i] -= lr * m_hat / (math.sqrt(v_hat) + epsilon)
    return np.array(theta), np.array(m), np.array(v)


def adam(size, dtype, beta1=0.9, beta2=0.999, epsilon=1e-8):
    return Adam(size, dtype, beta1=beta1, beta2=beta2, epsilon=epsilon)


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 40),
    steps=st.integers(1, 8),
    clip=st.sampled_from([1e-3, 0.25, 1e3]),
    beta1=st.sampled_from([0.0, 0.5, 0.9]),
    beta2=st.sampled_from([0.0, 0.95, 0.999]),
    epsilon=st.sampled_from([1e-8, 0.1]),
    dtype=st.sampled_from(DTYPES),
)
def test_updates_are_the_papers(seed, size, steps, clip, beta1, beta2, epsilon, dtype):
    draw = np.random.default_rng(seed)
    params = draw.standard_normal(size).astype(dtype)
    gradients = draw.standard_normal((steps, size)).astype(dtype)
    lrs = [0.1 / (t + 1) for t in range(steps)]
    expected = paper_adam(params, gradients, lrs, clip, beta1, beta2, epsilon)
    optimizer = adam(size, dtype, beta1, beta2, epsilon)
    for gradient, lr in zip(gradients, lrs, strict=True):
        scale = clip_scale(gradient_norm(gradient), clip)
        optimizer.update(params, gradient, lr, scale)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for got, want in zip(
        (params, optimizer.first_moment, optimizer.second_moment), expected, strict=True
    ):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * abs(want).max())
    assert optimizer.step == steps


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_and_its_plain_twin_agree(dtype):
    draw = np.random.default_rng(1)
    vectors = [draw.standard_normal(1003).astype(dtype) for _ in range(3)]
    vectors.append(draw.random(1003).astype(dtype))  # the second moment is never negative
    scalars = [dtype(x) for x in (0.3, 0.9, 0.1, 0.99, 0.01, 0.05, 1.7, 1e-3)]
    jitted = [vector.copy() for vector in vectors]
    plain = [vector.copy() for vector in vectors]
    adam_update(*jitted, *scalars)
    adam_update.py_func(*plain, *scalars)
    tolerance = 4 * np.finfo(dtype).eps
    for name, one, other in zip(
        ("params", "gradient", "first", "second"), jitted, plain, strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=10 * tolerance, err_msg=name)
    np.testing.assert_array_equal(jitted[1], vectors[1])  # the gradient is only read
    assert squared_norm(vectors[0]) == pytest.approx(squared_norm.py_func(vectors[0]), rel=1e-12)


def test_the_first_step_has_length_lr_whatever_the_gradients_size():
    """Both corrections at work: m̂ = g and √v̂ = |g|, so the step is lr · sign(g)."""
    params = np.zeros(4)
    adam(4, np.float64, epsilon=1e-12).update(params, np.array([1e-3, -5.0, 1e3, -1e-2]), lr=0.1)
    np.testing.assert_allclose(params, [-0.1, 0.1, -0.1, 0.1], rtol=1e-8)


def test_epsilon_is_added_to_the_corrected_root():
    params = np.zeros(1)
    adam(1, np.float64, epsilon=3.0).update(params, np.array([1.0]), lr=1.0)
    assert params[0] == pytest.approx(-1 / (1 + 3))


def test_a_state_carried_over_continues_bit_for_bit():
    draw = np.random.default_rng(2)
    gradients = draw.standard_normal((6, 50)).astype(np.float32)
    whole, params = adam(50, np.float32), np.ones(50, np.float32)
    for gradient in gradients:
        whole.update(params, gradient, 0.01)
    first, again = adam(50, np.float32), np.ones(50, np.float32)
    for gradient in gradients[:3]:
        first.update(again, gradient, 0.01)
    second = adam(50, np.float32)
    for name, vector in first.state.items():
        second.state[name][...] = vector
    second.step = first.step
    for gradient in gradients[3:]:
        second.update(again, gradient, 0.01)
    np.testing.assert_array_equal(again, params)


def test_the_norm_is_added_up_in_float64():
    """One after another in float32, 16 million and one ones never get past 2²⁴."""
    ones = np.ones(2**24 + 1, np.float32)
    assert gradient_norm(ones) == math.sqrt(2**24 + 1)
    assert gradient_norm(np.full(3, 1e30, np.float32)) == pytest.approx(math.sqrt(3) * 1e30)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_norm_of_a_gradient_that_is_not_finite_is_not_finite(bad):
    gradient = np.ones(100, np.float32)
    gradient[37] = bad
    assert not math.isfinite(gradient_norm(gradient))


@pytest.mark.parametrize(
    ("norm", "clip", "scale"), [(0.0, 0.25, 1.0), (0.25, 0.25, 1.0), (1.0, 0.25, 0.25)]
)
def test_clipping_shortens_and_never_lengthens(norm, clip, scale):
    assert clip_scale(norm, clip) == scale


def test_vectors_of_another_shape_or_precision_are_an_error():
    optimizer = adam(3, np.float32)
    with pytest.raises(NpxlError, match="float64"):
        optimizer.update(np.zeros(3), np.zeros(3), 0.1)
    with pytest.raises(NpxlError, match="shape"):
        optimizer.update(np.zeros(3, np.float32), np.zeros(4, np.float32), 0.1)
