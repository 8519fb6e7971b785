"""Optimisers against their equations written out and against torch's, and known answers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl.config import TrainConfig
from npxl.errors import NpxlError
from npxl.kernels.adagrad import adagrad_update
from npxl.kernels.adam import adam_update, squared_norm
from npxl.kernels.sgd import momentum_update, sgd_update
from npxl.params import Params
from npxl.training.optimizers import clip_scale, gradient_norm, optimizer_for, restore

DTYPES = [np.float32, np.float64]

CONFIGS = [
    TrainConfig(),
    TrainConfig(beta1=0.0, beta2=0.0),
    TrainConfig(beta1=0.5, beta2=0.95, adam_epsilon=0.1),
    TrainConfig(optimizer="sgd"),
    TrainConfig(optimizer="sgd", momentum=0.9),
    TrainConfig(optimizer="adagrad"),
]
some_optimizer = pytest.mark.parametrize(
    "config", [TrainConfig(), *CONFIGS[3:]], ids=["adam", "sgd", "momentum", "adagrad"]
)


def written_out(config, params, gradients, lrs):
    """Each optimiser's definition, one number at a time, in Python floats.

    Algorithm 1 of Kingma & Ba 2015; torch's SGD; section 1 of Duchi et al. 2011.
    Returns the parameters and the vectors that the optimiser keeps, by name.
    """
    theta = [float(p) for p in params]
    m, v, velocity, squares = (np.zeros(len(theta)) for _ in range(4))
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        norm = math.sqrt(sum(float(g) ** 2 for g in gradient))
        factor = min(1.0, config.clip / norm) if norm > 0 else 1.0
        for i, entry in enumerate(gradient):
            g = float(entry) * factor
            if config.optimizer == "adam":
                m[i] = config.beta1 * m[i] + (1 - config.beta1) * g
                v[i] = config.beta2 * v[i] + (1 - config.beta2) * g**2
                m_hat = m[i] / (1 - config.beta1**t)
                v_hat = v[i] / (1 - config.beta2**t)
                theta[i] -= lr * m_hat / (math.sqrt(v_hat) + config.adam_epsilon)
            elif config.optimizer == "sgd":
                velocity[i] = config.momentum * velocity[i] + g
                theta[i] -= lr * velocity[i]
            else:
                squares[i] += g**2
                theta[i] -= lr * g / (math.sqrt(squares[i]) + 1e-10)
    kept = {"adam": {"first_moment": m, "second_moment": v}, "adagrad": {"squares": squares}}
    kept["sgd"] = {"velocity": velocity} if config.momentum else {}
    return np.array(theta), kept[config.optimizer]


def new(config, size, dtype):
    return optimizer_for(Params({"theta": (size,)}, dtype=dtype), config)


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 40),
    steps=st.integers(1, 8),
    clip=st.sampled_from([1e-3, 0.25, 1e3]),
    config=st.sampled_from(CONFIGS),
    dtype=st.sampled_from(DTYPES),
)
def test_updates_are_those_of_the_equations(seed, size, steps, clip, config, dtype):
    draw = np.random.default_rng(seed)
    params = draw.standard_normal(size).astype(dtype)
    gradients = draw.standard_normal((steps, size)).astype(dtype)
    lrs = [0.1 / (t + 1) for t in range(steps)]
    config = replace(config, clip=clip)
    theta, kept = written_out(config, params, gradients, lrs)
    optimizer = new(config, size, dtype)
    for gradient, lr in zip(gradients, lrs, strict=True):
        before = gradient.copy()
        optimizer.update(params, gradient, lr, clip_scale(gradient_norm(gradient), clip))
        np.testing.assert_array_equal(gradient, before)  # it is only read
    assert optimizer.state.keys() == kept.keys()
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for got, want in ((params, theta), *((optimizer.state[name], kept[name]) for name in kept)):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * abs(want).max())
    assert optimizer.step == steps


@some_optimizer
def test_updates_are_torchs(config):
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(3)
    params = draw.standard_normal(50)
    theirs = torch.tensor(params.copy(), requires_grad=True)
    make = {
        "adam": lambda: torch.optim.Adam([theirs]),
        "sgd": lambda: torch.optim.SGD([theirs], momentum=config.momentum),
        "adagrad": lambda: torch.optim.Adagrad([theirs]),
    }
    optimizer, their_optimizer = new(config, 50, np.float64), make[config.optimizer]()
    for t in range(30):
        # Of very different lengths, and with entries that stay zero.
        gradient = draw.standard_normal(50) * 10.0 ** draw.integers(-3, 3) * (np.arange(50) > 5)
        lr = 0.1 / (t + 1)
        optimizer.update(params, gradient, lr, scale=0.3)
        theirs.grad = torch.tensor(0.3 * gradient)
        their_optimizer.param_groups[0]["lr"] = lr
        their_optimizer.step()
        np.testing.assert_allclose(params, theirs.detach().numpy(), rtol=1e-12, atol=1e-13)


KERNELS = {
    adam_update: (4, (0.3, 0.9, 0.1, 0.99, 0.01, 0.05, 1.7, 1e-3)),
    sgd_update: (2, (0.3, 0.05)),
    momentum_update: (3, (0.3, 0.9, 0.05)),
    adagrad_update: (3, (0.3, 0.05, 1e-3)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.py_func.__name__)
def test_a_kernel_and_its_plain_twin_agree(kernel, dtype):
    draw = np.random.default_rng(1)
    n_vectors, scalars = KERNELS[kernel]
    vectors = [draw.random(1003).astype(dtype) for _ in range(n_vectors)]  # no square is negative
    vectors[1] -= dtype(0.5)
    jitted = [vector.copy() for vector in vectors]
    plain = [vector.copy() for vector in vectors]
    typed = [dtype(scalar) for scalar in scalars]
    kernel(*jitted, *typed)
    kernel.py_func(*plain, *typed)
    tolerance = 4 * np.finfo(dtype).eps
    for one, other in zip(jitted, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=10 * tolerance)
    np.testing.assert_array_equal(jitted[1], vectors[1])  # the gradient is only read


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norms_kernel_and_its_plain_twin_agree(dtype):
    x = np.random.default_rng(1).standard_normal(1003).astype(dtype)
    assert squared_norm(x) == pytest.approx(squared_norm.py_func(x), rel=1e-12)


def test_adams_first_step_has_length_lr_whatever_the_gradients_size():
    """Both corrections at work: m̂ = g and √v̂ = |g|, so the step is lr · sign(g)."""
    params, gradient = np.zeros(4), np.array([1e-3, -5.0, 1e3, -1e-2])
    new(TrainConfig(adam_epsilon=1e-12), 4, np.float64).update(params, gradient, lr=0.1)
    np.testing.assert_allclose(params, [-0.1, 0.1, -0.1, 0.1], rtol=1e-8)


def test_adams_epsilon_is_added_to_the_corrected_root():
    params = np.zeros(1)
    new(TrainConfig(adam_epsilon=3.0), 1, np.float64).update(params, np.array([1.0]), lr=1.0)
    assert params[0] == pytest.approx(-1 / (1 + 3))


def test_adagrads_steps_along_a_constant_gradient_shorten_as_the_root_of_their_number():
    optimizer, params = new(TrainConfig(optimizer="adagrad"), 2, np.float64), np.zeros(2)
    steps = []
    for _ in range(9):
        before = params.copy()
        optimizer.update(params, np.array([1e-3, -50.0]), lr=0.1)
        steps.append(params - before)
    expected = np.outer(0.1 / np.sqrt(np.arange(1, 10)), [-1, 1])
    np.testing.assert_allclose(steps, expected, rtol=1e-6)


def test_momentum_lengthens_steps_along_a_constant_gradient():
    """v → g / (1 − μ)."""
    config = TrainConfig(optimizer="sgd", momentum=0.8)
    optimizer, params = new(config, 1, np.float64), np.zeros(1)
    for _ in range(100):
        before = params.copy()
        optimizer.update(params, np.array([2.0]), lr=0.1)
    assert before - params == pytest.approx(0.1 * 2 / (1 - 0.8))


def test_without_momentum_nothing_is_remembered():
    assert new(TrainConfig(optimizer="sgd"), 3, np.float32).state == {}


@some_optimizer
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_state_carried_over_continues_bit_for_bit(config, dtype):
    gradients = np.random.default_rng(2).standard_normal((6, 50)).astype(dtype)
    whole, params = new(config, 50, dtype), np.ones(50, dtype)
    for gradient in gradients:
        whole.update(params, gradient, 0.01)
    first, again = new(config, 50, dtype), np.ones(50, dtype)
    for gradient in gradients[:3]:
        first.update(again, gradient, 0.01)
    second = new(config, 50, dtype)
    restore(second, {name: vector.copy() for name, vector in first.state.items()}, first.step)
    for gradient in gradients[3:]:
        second.update(again, gradient, 0.01)
    np.testing.assert_array_equal(again, params)


@pytest.mark.parametrize("one", CONFIGS[2:], ids=str)
@pytest.mark.parametrize("other", CONFIGS[2:], ids=str)
def test_a_state_of_another_optimizer_is_refused(one, other):
    state = new(one, 3, np.float32).state
    if one == other:
        restore(new(other, 3, np.float32), state, 1)
        return
    with pytest.raises(NpxlError, match=r"optimiser remembers .*, but the saved state has .*:"):
        restore(new(other, 3, np.float32), state, 1)


@pytest.mark.parametrize(("size", "dtype"), [(4, np.float32), (3, np.float64)])
def test_a_state_that_does_not_fit_is_refused(size, dtype):
    state = new(TrainConfig(), size, dtype).state
    with pytest.raises(NpxlError, match=r"saved first_moment is an array .*needs .*\(3,\)"):
        restore(new(TrainConfig(), 3, np.float32), state, 1)


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
    ("norm", "clip", "scale"),
    [(0.0, 0.25, 1.0), (0.25, 0.25, 1.0), (1.0, 0.25, 0.25), (1e30, None, 1.0), (0.0, None, 1.0)],
)
def test_clipping_shortens_and_never_lengthens(norm, clip, scale):
    assert clip_scale(norm, clip) == scale


@some_optimizer
def test_vectors_of_another_shape_or_precision_are_an_error(config):
    optimizer = new(config, 3, np.float32)
    params = np.zeros(3, np.float32)
    with pytest.raises(NpxlError, match=r"one shape and one type, but .* float32, .* float64"):
        optimizer.update(params, np.zeros(3), 0.1)
    with pytest.raises(NpxlError, match=r"shape \(3,\) .*shape \(4,\)"):
        optimizer.update(params, np.zeros(4, np.float32), 0.1)
    assert optimizer.step == 0
