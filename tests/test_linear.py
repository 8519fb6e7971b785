"""The linear map against its loop, central differences and its adjoint."""

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

from npxl import threads
from npxl.layers import linear
from npxl.layers.linear import (
    linear_backward,
    linear_backward_input,
    linear_backward_weight,
    linear_forward,
)


def naive(x, weight, bias):
    y = np.zeros((*x.shape[:-1], len(weight)))
    for index in np.ndindex(y.shape):
        *row, e = index
        y[index] = bias[e] + sum(weight[e, d] * x[(*row, d)] for d in range(x.shape[-1]))
    return y


def draw(seed, leading, d, e):
    rng = np.random.default_rng(seed)
    shapes = (*leading, d), (e, d), (e,), (*leading, e)
    return [rng.standard_normal(shape) for shape in shapes]  # x, weight, bias, dy


@given(seeds, leading_shapes, widths, widths)
def test_forward_equals_the_loop(seed, leading, d, e):
    x, weight, bias, _ = map(read_only, draw(seed, leading, d, e))
    assert_eq(linear_forward(x, weight, bias), naive(x, weight, bias), rtol=1e-14)
    assert_eq(linear_forward(x, weight), naive(x, weight, np.zeros(e)), rtol=1e-14)


def test_forward_writes_where_it_is_told():
    x, weight, bias, _ = draw(0, (2, 3), 5, 4)
    room = np.full((6, 9), np.nan)
    y = linear_forward(x, weight, bias, out=room[:, 2:6])
    assert_eq(y, naive(x, weight, bias), rtol=1e-14)
    assert_eq(room[:, 2:6], y.reshape(6, 4))
    assert np.isnan(room[:, [0, 1, 6, 7, 8]]).all()


@given(seeds, leading_shapes, widths, widths)
def test_backward_equals_central_differences(seed, leading, d, e):
    x, weight, bias, dy = draw(seed, leading, d, e)
    d_weight, d_bias = np.zeros_like(weight), np.zeros_like(bias)
    dx = linear_backward(read_only(dy), read_only(x), read_only(weight), d_weight, d_bias)
    for variable, gradient in ((x, dx), (weight, d_weight), (bias, d_bias)):
        expected = central_difference(lambda: linear_forward(x, weight, bias), variable, dy)
        assert_eq(gradient, expected, rtol=1e-8, atol=1e-9)


@given(seeds, leading_shapes, widths, widths)
def test_backward_is_the_adjoint_of_forward(seed, leading, d, e):
    x, weight, bias, dy = draw(seed, leading, d, e)
    d_weight, d_bias = np.zeros_like(weight), np.zeros_like(bias)
    dx = linear_backward(dy, x, weight, d_weight, d_bias)
    y = linear_forward(x, weight)
    assert_adjoint(y, dy, x, dx)  # y is linear in x
    assert_adjoint(y, dy, weight, d_weight)  # and in the weight
    assert_adjoint(np.broadcast_to(bias, dy.shape), dy, bias, d_bias)


@given(seeds, leading_shapes, widths, widths)
def test_backward_adds_to_the_gradients(seed, leading, d, e):
    x, weight, bias, dy = draw(seed, leading, d, e)
    fresh = np.zeros_like(weight), np.zeros_like(bias)
    rng = np.random.default_rng(seed + 1)
    before = rng.standard_normal(weight.shape), rng.standard_normal(bias.shape)
    after = before[0].copy(), before[1].copy()
    dx = linear_backward(dy, x, weight, *fresh)
    assert_eq(linear_backward(dy, x, weight, *after), dx)
    for i in range(2):
        assert_eq(after[i] - before[i], fresh[i], rtol=1e-14, atol=1e-15)


@given(seeds, leading_shapes, widths, widths)
def test_a_constant_x_leaves_the_gradients_of_weight_and_bias(seed, leading, d, e):
    x, weight, bias, dy = map(read_only, draw(seed, leading, d, e))
    rng = np.random.default_rng(seed + 1)
    before = rng.standard_normal(weight.shape), rng.standard_normal(bias.shape)
    expected, actual = [[array.copy() for array in before] for _ in range(2)]
    linear_backward(dy, x, weight, *expected)
    linear_backward_weight(dy, x, *actual)
    for i in range(2):
        assert_eq(actual[i], expected[i])
    without_bias = before[0].copy()
    linear_backward_weight(dy, x, without_bias)
    assert_eq(without_bias, expected[0])


@given(seeds, leading_shapes, widths, widths)
def test_float32_stays_float32(seed, leading, d, e):
    single = [a.astype(np.float32) for a in draw(seed, leading, d, e)]
    double = [a.astype(np.float64) for a in single]

    def run(x, weight, bias, dy):
        d_weight, d_bias = np.zeros_like(weight), np.zeros_like(bias)
        dx = linear_backward(dy, x, weight, d_weight, d_bias)
        return linear_forward(x, weight, bias), dx, d_weight, d_bias

    for actual, expected in zip(run(*single), run(*double), strict=True):
        assert_eq(actual, expected.astype(np.float32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("strided", ["transposed", "sliced", "reversed"])
def test_arrays_with_strides(strided):
    view = {
        "transposed": lambda a: np.array(a.T, order="C").T,
        "sliced": lambda a: np.repeat(a, 2, axis=0)[::2],
        "reversed": lambda a: np.array(a[..., ::-1])[..., ::-1],
    }[strided]
    arrays = draw(0, (3, 4), 5, 2)
    x, weight, bias, dy = (view(a) for a in arrays)
    expected, actual = (np.zeros((2, 5)), np.zeros(2)), (view(np.zeros((2, 5))), view(np.zeros(2)))
    assert_eq(linear_forward(x, weight, bias), linear_forward(*arrays[:3]), rtol=1e-14)
    dx = linear_backward(arrays[3], arrays[0], arrays[1], *expected)
    assert_eq(linear_backward(dy, x, weight, *actual), dx, rtol=1e-14)
    assert_eq(actual[0], expected[0], rtol=1e-14)
    assert_eq(actual[1], expected[1], rtol=1e-14)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(1, 5, 7), (7, 3, 2), (4, 1, 1), (5, 8, 3)])
def test_helpers_divide_what_one_thread_would_do(monkeypatch, sizes, n_threads):
    monkeypatch.setattr(threads, "_WORTH_SPREADING", 1)
    n, n_inputs, n_outputs = sizes
    draw = np.random.default_rng(0)
    x, dy = draw.standard_normal((n, n_inputs)), draw.standard_normal((n, n_outputs))
    weight, bias = draw.standard_normal((n_outputs, n_inputs)), draw.standard_normal(n_outputs)
    d_weight, d_bias = np.ones_like(weight), np.ones_like(bias)
    with threads.Threads(n_threads, 1):
        y = linear_forward(x, weight, bias)
        dx = linear_backward(dy, x, weight, d_weight, d_bias)
    np.testing.assert_allclose(y, np.einsum("ni,oi->no", x, weight) + bias, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(dx, np.einsum("no,oi->ni", dy, weight), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(d_weight, 1 + np.einsum("no,ni->oi", dy, x), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(d_bias, 1 + dy.sum(0), rtol=1e-13)


def test_helpers_share_the_work_and_none_does_it_twice(monkeypatch):
    monkeypatch.setattr(threads, "_WORTH_SPREADING", 1)
    done, matmul = [], np.matmul

    def counting(x, y, out):
        done.append(out.size)
        return matmul(x, y, out=out)

    monkeypatch.setattr(np, "matmul", counting)
    x, weight, _, dy = draw(0, (7,), 5, 6)
    with threads.Threads(3, 1):
        for function, arguments in (
            (linear_forward, (x, weight)),
            (linear_backward_input, (dy, weight)),
        ):
            done.clear()
            result = function(*arguments)
            assert len(done) == 3
            assert sum(done) == result.size


def test_what_the_work_is_worth_is_said_in_multiplications(monkeypatch):
    costs = []

    def alone(task, n, cost):
        costs.append((n, cost))
        task(range(n))

    monkeypatch.setattr(linear, "spread", alone)
    x, weight, _, dy = draw(0, (2, 3), 5, 4)
    linear_forward(x, weight)
    linear_backward(dy, x, weight, np.zeros_like(weight))
    # Columns of y, rows of the weight's gradient, rows of dx; all cost n · D · E.
    assert costs == [(4, 120), (4, 120), (6, 120)]


def test_the_gradient_of_x_has_its_shape_however_rows_are_counted():
    x, weight, _, dy = draw(0, (2, 3), 5, 4)
    expected = linear_backward(dy, x, weight, np.zeros_like(weight))
    flat = linear_backward(dy.reshape(6, 4), x, weight, np.zeros_like(weight))
    assert_eq(flat, expected)
