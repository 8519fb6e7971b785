"""The LSTM layer and its kernels against the loop over units, and central differences."""

from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
from bounds import within_bounds
from hypothesis import given
from hypothesis import strategies as st
from numerical import (
    assert_eq,
    central_difference,
    directional_difference,
    read_only,
    seeds,
    widths,
)

from npxl.audit.twins import plain
from npxl.kernels import vectors
from npxl.kernels.hyperbolic import _sigmoid_float32, _tanh_float32
from npxl.kernels.lstm import lstm_steps_backward, lstm_steps_forward
from npxl.kernels.packing import pack_transposed, round_up
from npxl.kernels.vectors import TILE_COLUMNS, TILE_ROWS
from npxl.layers import lstm
from npxl.layers.lstm import LSTMWeights, lstm_backward, lstm_forward, recurrent_tiles

sizes = dict(
    seed=seeds, n_streams=st.integers(1, 9), n_steps=st.integers(1, 5), width=widths, d=widths
)
both = pytest.mark.parametrize("kernels", ["compiled", "plain"])


def using(kernels):
    """The layer's kernels as they are, or as plain Python that stays within its arrays."""
    stack = ExitStack()
    if kernels == "plain":
        stack.enter_context(mock.patch.object(vectors, "_in_memory", within_bounds))
        for kernel in (lstm_steps_forward, lstm_steps_backward, pack_transposed):
            stack.enter_context(mock.patch.object(lstm, kernel.__name__, plain(kernel)))
    return stack


def draw(seed, n_streams, n_steps, width, d):
    """x, the state before, weights, and a cotangent."""
    rng = np.random.default_rng(seed)
    shapes = (4 * d, width), (4 * d, d), (4 * d,)
    weights = LSTMWeights(*(rng.standard_normal(shape) for shape in shapes))
    x, dy = (rng.standard_normal((n_streams, n_steps, n)) for n in (width, d))
    return x, rng.standard_normal((n_streams, 2, d)), weights, dy


def gradients(x, state, weights, dy):
    """dx and the gradients of the weights."""
    _, cache = lstm_forward(x, state, weights)
    grads = LSTMWeights(*map(np.zeros_like, weights))
    return lstm_backward(dy, cache, weights, grads), *grads


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def naive(x, state, weights):
    """h_1 … h_T, and the state after: one stream, one step and one unit at a time."""
    n_streams, n_steps, _ = x.shape
    d = state.shape[2]
    y, after = np.empty((n_streams, n_steps, d)), np.empty_like(state)
    for b in range(n_streams):
        h, c = state[b]
        for t in range(n_steps):
            a = [w_x @ x[b, t] + w_h @ h + bias for w_x, w_h, bias in zip(*weights, strict=True)]
            h, c = h.copy(), c.copy()
            for k in range(d):
                i, f, o = (sigmoid(a[block * d + k]) for block in range(3))
                c[k] = f * c[k] + i * np.tanh(a[3 * d + k])
                h[k] = o * np.tanh(c[k])
            y[b, t] = h
        after[b] = h, c
    return y, after


@both
@given(**sizes)
def test_forward_equals_the_loop(kernels, seed, n_streams, n_steps, width, d):
    x, state, weights, _ = draw(seed, n_streams, n_steps, width, d)
    with using(kernels):
        y, cache = lstm_forward(*map(read_only, (x, state)), LSTMWeights(*map(read_only, weights)))
    expected, after = naive(x, state, weights)
    assert_eq(y, expected, rtol=1e-13, atol=1e-14)
    assert_eq(cache.state, after, rtol=1e-13, atol=1e-14)


@both
@given(**sizes)
def test_backward_equals_central_differences(kernels, seed, n_streams, n_steps, width, d):
    x, state, weights, dy = draw(seed, min(n_streams, 5), n_steps, min(width, 3), min(d, 5))
    with using(kernels):
        actual = gradients(x, state, weights, read_only(dy))
    for variable, gradient in zip((x, *weights), actual, strict=True):
        expected = central_difference(
            lambda: lstm_forward(x, state, weights)[0], variable, dy, step=1e-5
        )
        assert_eq(gradient, expected, rtol=1e-7, atol=1e-8)


def test_backward_of_a_wide_layer_along_random_directions():
    x, state, weights, dy = draw(7, 5, 12, 33, 29)
    weights = LSTMWeights(*(w / 5 for w in weights))
    rng = np.random.default_rng(8)
    actual = gradients(x, state, weights, dy)
    for variable, gradient in zip((x, *weights), actual, strict=True):
        direction = rng.standard_normal(variable.shape)
        expected = directional_difference(
            lambda: lstm_forward(x, state, weights)[0], variable, direction, dy
        )
        assert np.vdot(gradient, direction) == pytest.approx(expected, rel=1e-6)


@given(**sizes)
def test_backward_adds_to_the_gradients(seed, n_streams, n_steps, width, d):
    x, state, weights, dy = draw(seed, n_streams, n_steps, width, d)
    _, _, before, _ = draw(seed + 1, n_streams, n_steps, width, d)
    expected_dx, *fresh = gradients(x, state, weights, dy)
    after = LSTMWeights(*(b.copy() for b in before))
    _, cache = lstm_forward(x, state, weights)
    assert_eq(lstm_backward(dy, cache, weights, after), expected_dx)  # and twice the same
    for a, b, expected in zip(after, before, fresh, strict=True):
        assert_eq(a - b, expected, rtol=1e-13, atol=1e-13)


@given(**sizes, cut=st.integers(0, 5))
def test_it_does_not_matter_where_a_text_is_cut(seed, n_streams, n_steps, width, d, cut):
    """Exact but for the order of additions: the state is all that the past can say."""
    x, state, weights, _ = draw(seed, n_streams, n_steps, width, d)
    cut = min(cut, n_steps - 1)
    whole, cache = lstm_forward(x, state, weights)
    parts = []
    for part in (x[:, :cut], x[:, cut:]):
        if part.shape[1]:
            y, each = lstm_forward(part, state, weights)
            state = each.state
            parts.append(y)
    assert_eq(np.concatenate(parts, axis=1), whole, rtol=1e-13, atol=1e-14)
    assert_eq(state, cache.state, rtol=1e-13, atol=1e-14)


@given(**sizes, step=st.integers(0, 4))
def test_streams_and_later_steps_do_not_touch_one_another(seed, n_streams, n_steps, width, d, step):
    x, state, weights, dy = draw(seed, n_streams, n_steps, width, d)
    step = min(step, n_steps - 1)
    before, _ = lstm_forward(x, state, weights)
    x[-1, step] += 1
    after, _ = lstm_forward(x, state, weights)
    changed = (after != before).any(-1)  # [B, T]
    assert not changed[:-1].any()
    assert not changed[-1, :step].any()
    dy[:-1] = 0
    dy[-1, step + 1 :] = 0
    dx, *_ = gradients(x, state, weights, dy)
    assert not dx[:-1].any()
    assert not dx[-1, step + 1 :].any()


def test_nan_stays_in_its_stream():
    x, state, weights, _ = draw(1, 3, 4, 2, 3)
    clean, _ = lstm_forward(x, state, weights)
    x[1, 2, 0] = np.nan
    y, _ = lstm_forward(x, state, weights)
    assert np.isnan(y[1, 2:]).all()
    y[1, 2:] = clean[1, 2:]
    assert_eq(y, clean)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gates_that_are_far_open_or_shut_are_finite(dtype):
    """Beyond the range of exp in either precision; σ and tanh have their limits there."""
    x, state, weights, dy = (
        a.astype(dtype) if isinstance(a, np.ndarray) else LSTMWeights(*(w.astype(dtype) for w in a))
        for a in draw(2, 2, 3, 2, 3)
    )
    weights.bias[...] = np.repeat([-1e4, 1e4, 1e4, -1e4], 3)  # keeps what it has
    y, cache = lstm_forward(x, state, weights)
    assert_eq(cache.state[:, 1], state[:, 1])
    assert_eq(y[:, -1], np.tanh(state[:, 1]), rtol=1e-6)
    assert all(np.isfinite(gradient).all() for gradient in gradients(x, state, weights, dy))


def test_shut_gates_leave_no_subnormal_numbers():
    """Which would be multiplied several times more slowly, in every step after."""
    x, state, weights, dy = draw(3, 2, 8, 2, 3)
    x, state, dy = (a.astype(np.float32) for a in (x, state, dy))
    weights = LSTMWeights(*(w.astype(np.float32) for w in weights))
    weights.bias[:9] = -100  # i, f and o
    y, cache = lstm_forward(x, state, weights)
    tiny = np.finfo(np.float32).tiny
    for numbers in (y, cache.state):
        assert (np.abs(numbers) >= tiny).all()
        assert (np.abs(numbers) < 1e-10).all()


@given(**sizes)
def test_float32_stays_float32(seed, n_streams, n_steps, width, d):
    arrays = draw(seed, n_streams, n_steps, width, d)

    def run(dtype):
        x, state, weights, dy = arrays
        weights = LSTMWeights(*(w.astype(np.float32).astype(dtype) for w in weights))
        x, state, dy = (a.astype(np.float32).astype(dtype) for a in (x, state, dy))
        y, cache = lstm_forward(x, state, weights)
        return y, *cache, cache.state, *gradients(x, state, weights, dy)

    for actual, expected in zip(run(np.float32), run(np.float64), strict=True):
        assert_eq(actual, expected.astype(np.float32), rtol=1e-5, atol=1e-5)


def test_arrays_with_strides():
    x, state, weights, dy = draw(4, 3, 4, 5, 6)

    def strided(a):
        return np.array(a.T, order="C").T

    expected = gradients(x, state, weights, dy)
    actual = gradients(*map(strided, (x, state)), LSTMWeights(*map(strided, weights)), strided(dy))
    for a, e in zip(actual, expected, strict=True):
        assert_eq(a, e, rtol=1e-13)


@given(**sizes)
def test_what_fills_tiles_up_is_zero_and_there_are_no_more_of_them(
    seed, n_streams, n_steps, width, d
):
    x, state, weights, _ = draw(seed, n_streams, n_steps, width, d)
    _, cache = lstm_forward(x, state, weights)
    n_rows, n_columns = round_up(n_streams, TILE_ROWS), round_up(4 * d, TILE_COLUMNS)
    assert cache.gates.shape == (n_steps, n_rows, n_columns)
    assert cache.hidden.shape == (n_steps + 1, n_rows, d)
    assert not cache.gates[:, n_streams:].any()
    assert not cache.gates[..., 4 * d :].any()
    assert not cache.hidden[:, n_streams:].any()


def test_tiles_may_be_made_before():
    x, state, weights, _ = draw(4, 3, 4, 5, 6)
    tiles = recurrent_tiles(weights.w_h)
    assert tiles.shape == (round_up(24, TILE_COLUMNS) // TILE_COLUMNS, 6, TILE_COLUMNS)
    assert_eq(tiles.swapaxes(1, 2).reshape(-1, 6)[:24], weights.w_h)  # and zeros
    expected, _ = lstm_forward(x, state, weights)
    not_read = weights._replace(w_h=np.full_like(weights.w_h, np.nan))
    assert_eq(lstm_forward(x, state, not_read, tiles)[0], expected)


def test_tanh_in_float32():
    """Compiled and as plain Python, from the smallest numbers to the largest, and at the seam."""
    x = np.geomspace(1e-38, 3e38, 4001).tolist()
    x = np.array([*x, 0.625, np.nextafter(0.625, 0), 0, np.inf])
    x = np.concatenate([x, -x]).astype(np.float32)
    expected = np.tanh(x.astype(np.float64))
    assert type(_tanh_float32.py_func(x[0])) is np.float32
    for function in (_tanh_float32, _tanh_float32.py_func):
        with np.errstate(all="ignore"):
            actual = np.array([function(each) for each in x])
        assert (np.abs(actual - expected) <= 3e-7 * np.abs(expected)).all()
        assert np.isnan(function(np.float32(np.nan)))


def test_sigmoid_in_float32():
    """Compiled and as plain Python, to both limits, and further down."""
    x = np.linspace(-30, 30, 4001).astype(np.float32)
    expected = sigmoid(x.astype(np.float64))
    assert type(_sigmoid_float32.py_func(x[0])) is np.float32
    for function in (_sigmoid_float32, _sigmoid_float32.py_func):
        actual = np.array([function(each) for each in x])
        assert (np.abs(actual - expected) <= 5e-7 * expected).all()
        for far in (-31, -1e4, -np.inf):
            assert function(np.float32(far)) == actual[0]
        assert function(np.float32(1e4)) == 1
        assert np.isnan(function(np.float32(np.nan)))
