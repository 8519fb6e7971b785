"""The output layer against its loop and central differences, and at the edges of float32."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import assert_eq, central_difference, leading_shapes, read_only, seeds, widths

from npxl import reference
from npxl.kernels.cross_entropy import IGNORE
from npxl.layers.embedding import EmbeddingCluster, embedding_backward, embedding_forward
from npxl.layers.softmax import log_softmax, n_scored, softmax_backward, softmax_forward

symbols = st.integers(1, 7)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def draw(seed, leading, n_symbols, d):
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((*leading, d))
    targets = rng.integers(n_symbols, size=leading)
    weight, bias = rng.standard_normal((n_symbols, d)), rng.standard_normal(n_symbols)
    return hidden, targets, weight, bias, rng.standard_normal(leading)


def gradients(hidden, targets, weight, bias, dnll):
    """d_hidden, d_weight, d_bias."""
    _, cache = softmax_forward(hidden, targets, (weight, bias))
    d_weight, d_bias = np.zeros_like(weight), np.zeros_like(bias)
    return softmax_backward(dnll, cache, [(weight, bias)], [(d_weight, d_bias)]), d_weight, d_bias


def layer_of(logits):
    """Hidden states and weights whose logits are exactly these, [N, V]."""
    return logits, np.eye(logits.shape[-1], dtype=logits.dtype), np.zeros_like(logits[0])


@given(seeds, leading_shapes, symbols, widths)
def test_forward_equals_the_reference(seed, leading, n_symbols, d):
    hidden, targets, weight, bias, _ = draw(seed, leading, n_symbols, d)
    log_p, nll = np.empty((*leading, n_symbols)), np.empty(leading)
    for row in np.ndindex(leading):
        log_p[row] = reference.log_softmax(weight @ hidden[row] + bias)
        nll[row] = -log_p[(*row, targets[row])]
    hidden, targets, weight, bias = map(read_only, (hidden, targets, weight, bias))
    assert_eq(softmax_forward(hidden, targets, (weight, bias))[0], nll, rtol=1e-13, atol=1e-14)
    assert_eq(log_softmax(hidden, (weight, bias)), log_p, rtol=1e-13, atol=1e-14)


@given(seeds, leading_shapes, symbols, widths)
def test_backward_equals_central_differences(seed, leading, n_symbols, d):
    hidden, targets, weight, bias, dnll = draw(seed, leading, n_symbols, d)
    actual = gradients(*map(read_only, (hidden, targets, weight, bias, dnll)))
    for variable, gradient in zip((hidden, weight, bias), actual, strict=True):
        expected = central_difference(
            lambda: softmax_forward(hidden, targets, (weight, bias))[0], variable, dnll
        )
        assert_eq(gradient, expected, rtol=1e-8, atol=1e-8)


@given(seeds, leading_shapes, symbols, widths)
def test_backward_adds_to_the_gradients(seed, leading, n_symbols, d):
    hidden, targets, weight, bias, dnll = draw(seed, leading, n_symbols, d)
    d_hidden, *fresh = gradients(hidden, targets, weight, bias, dnll)
    _, _, *before, _ = draw(seed + 1, leading, n_symbols, d)
    after = [b.copy() for b in before]
    _, cache = softmax_forward(hidden, targets, (weight, bias))
    assert_eq(softmax_backward(read_only(dnll), cache, [(weight, bias)], [after]), d_hidden)
    for a, b, expected in zip(after, before, fresh, strict=True):
        assert_eq(a - b, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.fault("numpygrad: repeated tokens and tied weights")
@given(seeds, leading_shapes, symbols, widths)
def test_tied_weights_receive_the_gradients_of_both_uses(seed, leading, n_symbols, d):
    """One array takes the gradient of the table as embedding and as output weight."""
    _, targets, table, bias, dnll = draw(seed, (2, *leading), n_symbols, d)
    tokens = targets.copy()
    tokens[1] = tokens[0]  # every token occurs twice

    def tied(table_in=table, table_out=table):
        return softmax_forward(
            embedding_forward(tokens, [EmbeddingCluster(table_in)]), targets, (table_out, bias)
        )

    _, cache = tied()
    d_table, d_bias = np.zeros_like(table), np.zeros_like(bias)
    d_hidden = softmax_backward(dnll, cache, [(table, bias)], [(d_table, d_bias)])
    embedding_backward(d_hidden, tokens, [EmbeddingCluster(table)], [EmbeddingCluster(d_table)])
    assert_eq(d_table, central_difference(lambda: tied()[0], table, dnll), rtol=1e-7, atol=1e-8)

    other = table.copy()
    as_input = central_difference(lambda: tied(table_in=other)[0], other, dnll)
    as_output = central_difference(lambda: tied(table_out=other)[0], other, dnll)
    assert_eq(d_table, as_input + as_output, rtol=1e-7, atol=1e-8)


@dtypes
@given(seed=seeds, leading=leading_shapes, n_symbols=symbols, d=widths)
def test_probabilities_sum_to_one_and_their_gradients_to_zero(dtype, seed, leading, n_symbols, d):
    hidden, targets, weight, bias, dnll = draw(seed, leading, n_symbols, d)
    hidden, weight, bias, dnll = (a.astype(dtype) for a in (hidden, weight, bias, dnll))
    precision = 8 * np.finfo(dtype).eps
    _, cache = softmax_forward(hidden, targets, (weight, bias))
    np.testing.assert_allclose(cache.probabilities.sum(-1), 1, atol=precision)
    total = np.exp(log_softmax(hidden, (weight, bias))).sum(-1)
    np.testing.assert_allclose(total, 1, atol=2 * precision)
    _, _, d_bias = gradients(hidden, targets, weight, bias, dnll)
    assert abs(d_bias.sum()) <= 2 * precision * max(1, np.abs(dnll).sum())


@dtypes
@given(seed=seeds, n=st.integers(1, 4), n_symbols=symbols)
def test_a_shift_of_all_logits_changes_nothing(dtype, seed, n, n_symbols):
    """Whole numbers, so that the shifted logits are exactly the logits shifted."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-9, 9, size=(n, n_symbols)).astype(dtype)
    targets = rng.integers(n_symbols, size=n)
    nll, cache = softmax_forward(logits, targets, layer_of(logits)[1:])
    log_p = log_softmax(logits, layer_of(logits)[1:])
    for shift in (-10_000, 10_000):
        shifted = logits + dtype(shift)
        hidden, weight, bias = layer_of(shifted)
        shifted_nll, shifted_cache = softmax_forward(hidden, targets, (weight, bias))
        precision = 4 * np.finfo(dtype).eps
        assert_eq(shifted_nll, nll, rtol=precision, atol=precision)
        assert_eq(shifted_cache.probabilities, cache.probabilities, rtol=precision)
        assert_eq(log_softmax(hidden, (weight, bias)), log_p, rtol=precision, atol=precision)


@dtypes
def test_extreme_logits_stay_finite_and_right(dtype):
    logits = np.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4, -1e4]], dtype)
    hidden, weight, bias = layer_of(logits)
    log_2, log_3 = np.log([2.0, 3.0])
    expected = np.array([[0, -2e4, -1e4], [-log_3] * 3, [-log_2, -log_2, -2e4 - log_2]])
    assert_eq(log_softmax(hidden, (weight, bias)), expected.astype(dtype), rtol=1e-7)
    for j in range(3):
        targets = np.full(3, j)
        nll, cache = softmax_forward(hidden, targets, (weight, bias))
        assert_eq(nll, -expected[:, j].astype(dtype), rtol=2e-7)
        # What is nothing in exact arithmetic may be float32's smallest normal number here.
        probabilities = np.exp(expected).astype(dtype)
        assert_eq(cache.probabilities, probabilities, rtol=2e-7)
        assert (cache.probabilities[probabilities == 0] <= 2 * np.finfo(np.float32).tiny).all()
        for gradient in gradients(hidden, targets, weight, bias, np.ones(3, dtype)):
            assert np.isfinite(gradient).all()


@dtypes
def test_a_certain_prediction_costs_exactly_nothing(dtype):
    logits = np.array([[1e4, 0.0]], dtype)
    nll, _ = softmax_forward(logits, np.array([0]), layer_of(logits)[1:])
    assert nll[0] == 0


@dtypes
def test_nan_in_a_hidden_state_stays_in_its_row(dtype):
    hidden, targets, weight, bias, _ = draw(2, (3, 2), 5, 4)
    hidden, weight, bias = (a.astype(dtype) for a in (hidden, weight, bias))
    output = (weight, bias)
    clean = softmax_forward(hidden, targets, output)[0], log_softmax(hidden, output)
    hidden[1, 0, 2] = np.nan
    poisoned = softmax_forward(hidden, targets, output)[0], log_softmax(hidden, output)
    for actual, expected in zip(poisoned, clean, strict=True):
        assert np.isnan(actual[1, 0]).all()
        actual[1, 0] = expected[1, 0]
        assert_eq(actual, expected, rtol=1e-6)


@dtypes
@pytest.mark.parametrize("symbol", [0, 2, 4])
def test_nan_in_one_logit_makes_its_row_nan(dtype, symbol):
    hidden, targets, weight, bias, dnll = draw(3, (2,), 5, 4)
    hidden, weight, bias, dnll = (a.astype(dtype) for a in (hidden, weight, bias, dnll))
    bias[symbol] = np.nan
    nll, cache = softmax_forward(hidden, targets, (weight, bias))
    for output in (nll, cache.probabilities, log_softmax(hidden, (weight, bias))):
        assert np.isnan(output).all()
    for gradient in gradients(hidden, targets, weight, bias, dnll):
        assert np.isnan(gradient).all()


@given(seeds, leading_shapes, symbols, widths)
def test_float32_stays_float32(seed, leading, n_symbols, d):
    hidden, targets, *rest = draw(seed, leading, n_symbols, d)
    hidden, weight, bias, dnll = (a.astype(np.float32) for a in (hidden, *rest))

    def run(dtype):
        arrays = [a.astype(dtype) for a in (hidden, weight, bias, dnll)]
        h, w, b, d = arrays
        nll, _ = softmax_forward(h, targets, (w, b))
        return nll, log_softmax(h, (w, b)), *gradients(h, targets, w, b, d)

    for actual, expected in zip(run(np.float32), run(np.float64), strict=True):
        assert_eq(actual, expected.astype(np.float32), rtol=2e-6, atol=2e-6)


def test_a_float64_cotangent_does_not_widen_a_float32_model():
    hidden, targets, weight, bias, dnll = draw(0, (2, 3), 5, 4)
    hidden, weight, bias = (a.astype(np.float32) for a in (hidden, weight, bias))
    for gradient in gradients(hidden, targets, weight, bias, dnll):
        assert gradient.dtype == np.float32


def test_arrays_with_strides():
    hidden, targets, weight, bias, dnll = draw(1, (3, 4), 5, 6)

    def strided(a):
        return np.array(a.T, order="C").T

    arrays = [strided(a) for a in (hidden, targets, weight, bias, dnll)]
    nll, _ = softmax_forward(hidden, targets, (weight, bias))
    assert_eq(softmax_forward(*arrays[:2], arrays[2:4])[0], nll, rtol=1e-14)
    expected = gradients(hidden, targets, weight, bias, dnll)
    for a, e in zip(gradients(*arrays), expected, strict=True):
        assert_eq(a, e, rtol=1e-13)


@given(seeds, leading_shapes, symbols, symbols, widths)
def test_symbols_of_two_outputs_are_as_if_of_one(seed, leading, n_first, n_second, d):
    hidden, targets, weight, bias, dnll = draw(seed, leading, n_first + n_second, d)
    expected = gradients(hidden, targets, weight, bias, dnll)
    d_weight, d_bias = np.zeros_like(weight), np.zeros_like(bias)
    parts = slice(0, n_first), slice(n_first, None)
    outputs = [(weight[part], bias[part]) for part in parts]
    grads = [(d_weight[part], d_bias[part]) for part in parts]
    nll, cache = softmax_forward(hidden, targets, *outputs)
    assert_eq(nll, softmax_forward(hidden, targets, (weight, bias))[0], rtol=1e-13)
    d_hidden = softmax_backward(dnll, cache, outputs, grads)
    for actual, of_one in zip((d_hidden, d_weight, d_bias), expected, strict=True):
        assert_eq(actual, of_one, rtol=1e-13, atol=1e-13)


def test_targets_to_ignore_do_not_count_as_scored():
    assert n_scored(np.array([[1, IGNORE, 0], [IGNORE, IGNORE, 2]])) == 3
    assert n_scored(np.full((2, 2), IGNORE)) == 0
