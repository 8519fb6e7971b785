"""The audit's transposes, sums and exact zeros: what is broken is named by the row about it."""

import numpy as np
import pytest

from npxl import IGNORE, LSTM, LSTMConfig, ModelConfig, TransformerXL
from npxl.audit import audit
from npxl.audit.sections import adjoint, adjoint_lstm, zeros
from npxl.layers import lstm as lstm_layer
from npxl.models import decoder_layer, segment_model, transformer_xl
from npxl.models import lstm as lstm_model

PLAIN = ModelConfig(vocab_size=9)
CLUSTERS = ModelConfig(
    vocab_size=90, cutoffs=(20, 50), div_val=2, tie_projs=(False, True, True), dropout=0.1,
    attn_window=4,
)  # fmt: skip
WINDOW = ModelConfig(vocab_size=9, attn_window=4, mem_len=10)
RECURRENT = LSTMConfig(vocab_size=9)


def wrong_rows(config, check):
    """Names of the rows of one check that are wrong."""
    report = audit(config, only=[f"structure/{check}"])
    (outcome,) = report.outcomes
    return {result.name for result in outcome.failures}


@pytest.mark.parametrize(
    "config",
    [
        PLAIN,
        CLUSTERS,
        WINDOW,
        ModelConfig(attn_window=1),
        ModelConfig(d_embed=7, cutoffs=(100,), tie_projs=(True, False), pre_lnorm=True),
        ModelConfig(attn_type="shaw", clamp_len=3, tie_weight=False),
        ModelConfig(attn_type="al-rfou", clamp_len=300, n_layer=1, initial_memory="zeros"),
        ModelConfig(attn_type="vaswani", ext_len=2, mem_len=0, untie_r=False, dropatt=0.1),
        ModelConfig(attn_type="al-rfou", clamp_len=127, mem_len=0, pre_lnorm=True),
        RECURRENT,
        LSTMConfig(n_layer=1, tie_weight=False, dropout=0.1),
        LSTMConfig(
            vocab_size=90, n_layer=3, cutoffs=(20, 50), div_val=2, tie_projs=(False, True, True)
        ),
    ],
)
def test_the_structure_of_many_forms(config):
    report = audit(config, seed=3, only=["structure"])
    assert report.passed, report.verdict


def test_no_sum_where_nothing_is_shared():
    report = audit(ModelConfig(tie_weight=False, untie_r=True), only=["structure/tied"])
    (row,) = report["structure/tied"].values()
    assert not row.applies


# Transposes


def flipped(function, place):
    """`function` that returns, or adds to one of its arguments, something else at one place."""

    def wrong(*arguments, **options):
        if place == "return":
            result = function(*arguments, **options)
            result.flat[0] += 1e-9
            return result
        if isinstance(place, tuple):  # one array of several that are returned
            results = function(*arguments, **options)
            results[place[0]].reshape(-1)[0] += 1e-9
            return results
        result = function(*arguments, **options)
        grad = arguments[place] if isinstance(place, int) else place(*arguments)
        grad.reshape(-1)[0] += 1e-9
        return result

    return wrong


@pytest.mark.parametrize(
    ("function", "place", "config", "row"),
    [
        ("linear_backward", "return", PLAIN, "linear map of x"),
        ("linear_backward", 3, PLAIN, "linear map of W"),
        ("linear_backward", 4, PLAIN, "linear map of b"),
        ("embedding_backward", lambda dy, tokens, c, g: g[0].table, PLAIN,
         "embedding of cluster 0"),
        ("embedding_backward", lambda dy, tokens, c, g: g[2].projection, CLUSTERS,
         "projection of cluster 2's embedding"),
        ("learned_positions_backward", 1, ModelConfig(attn_type="shaw", clamp_len=3),
         "rows of learned positions"),
        ("project_backward", "return", PLAIN, "q, k and v of context"),
        ("project_backward", "return", PLAIN, "q, k and v of the segment alone"),
        ("project_backward", lambda dq, dk, dv, c, w, g: g.w_k, PLAIN, "k of w_k"),
        ("attend_backward", (3,), PLAIN, "shift"),
        ("attend_backward", (1,), WINDOW, "scores of key"),
        ("attend_backward", (0,), PLAIN, "scores of query"),
        ("attend_backward", 4, PLAIN, "scores of u"),
        ("attend_backward", 5, PLAIN, "scores of v"),
        ("attend_backward", (2,), PLAIN, "attention's sum of values"),
        ("attend_backward", (2,), PLAIN, "attention's sum of values, some dropped"),
        ("output_backward", "return", PLAIN, "attention's output"),
        ("output_backward", 4, PLAIN, "attention's output of w_o"),
        ("dropout_backward", "return", PLAIN, "dropout"),
        ("layer_norm_backward", "return", PLAIN, "layer norm's Jacobian is symmetric"),
        ("layer_norm_backward", "return", PLAIN, "layer norm ignores a constant"),
        ("layer_norm_backward", 3, PLAIN, "layer norm of gain and bias"),
        ("feed_forward_backward", "return", PLAIN, "feed-forward block of x"),
        ("feed_forward_backward", lambda dy, c, w, g: g.w_1, PLAIN, "feed-forward block of w_1"),
        ("adaptive_softmax_backward", "return", CLUSTERS, "logits of hidden states"),
        ("adaptive_softmax_backward", lambda d, c, w, g: g[0].outputs[1].weight, CLUSTERS,
         "logits of cluster 0's weights"),
        ("adaptive_softmax_backward", lambda d, c, w, g: g[1].projection, CLUSTERS,
         "logits of cluster 1's projection"),
        ("adaptive_softmax_backward", lambda d, c, w, g: g[2].outputs[0].bias, CLUSTERS,
         "logits of cluster 2's biases"),
        ("lstm_backward", "return", RECURRENT, "LSTM's W x of x and of W"),
        ("lstm_backward", lambda dy, c, w, g: g.w_x, RECURRENT, "LSTM's W x of x and of W"),
        ("lstm_backward", lambda dy, c, w, g: g.w_h, RECURRENT, "LSTM's W h of W"),
        ("lstm_backward", lambda dy, c, w, g: g.bias, RECURRENT, "LSTM's bias"),
    ],
)  # fmt: skip
def test_one_wrong_entry_of_a_transpose_is_named(monkeypatch, function, place, config, row):
    module = adjoint_lstm if config is RECURRENT else adjoint
    right = getattr(module, function)

    def guarded(*arguments, **options):
        longest = len(arguments) + len(options)
        if function == "project_backward" and callable(place) and longest > 6:
            return right(*arguments, **options)
        return flipped(right, place)(*arguments, **options)

    monkeypatch.setattr(module, function, guarded)
    assert row in wrong_rows(config, "adjoint")


@pytest.mark.parametrize(
    ("block", "row"),
    [
        (0, "LSTM's i ⊙ g of i and of g"),
        (0, "LSTM's f ⊙ c of c"),
        (1, "LSTM's f ⊙ c of f"),
        (2, "LSTM's W h of h"),
        (3, "LSTM's i ⊙ g of i and of g"),
    ],
)
def test_one_wrong_gate_of_one_step_back_is_named(monkeypatch, block, row):
    """In the middle of a segment: the gradient of i, f, o or g of one unit."""
    right = lstm_layer.lstm_steps_backward

    def wrong(d_hidden, gates, cells, squashed, w_h, d_gates):
        right(d_hidden, gates, cells, squashed, w_h, d_gates)
        d_gates[2, 1, block * cells.shape[2]] += 1e-9

    monkeypatch.setattr(lstm_layer, "lstm_steps_backward", wrong)
    assert row in wrong_rows(RECURRENT, "adjoint")


def test_a_shift_by_one_is_named(monkeypatch):
    right = adjoint.attend_backward

    def shifted(*arguments):
        *others, d_relative = right(*arguments)
        return *others, np.roll(d_relative, 1, axis=0)

    monkeypatch.setattr(adjoint, "attend_backward", shifted)
    assert wrong_rows(PLAIN, "adjoint") == {"shift"}


# Sums


def overwriting(grads_of):
    """A backward pass that overwrites a gradient to which another use has added already."""

    def change(right):
        def wrong(*arguments, **options):
            grads_of(arguments)[...] = 0
            return right(*arguments, **options)

        return wrong

    return change


@pytest.mark.parametrize(
    ("module", "function", "grads_of", "config", "row"),
    [
        (segment_model, "embedding_backward", lambda a: a[3][0].table, PLAIN, "embedding.weight"),
        (
            segment_model, "embedding_backward", lambda a: a[3][1].projection, CLUSTERS,
            "embedding.1.projection",
        ),
        (decoder_layer, "relative_attention_backward", lambda a: a[3].u, PLAIN, "attention.u"),
        (segment_model, "embedding_backward", lambda a: a[3][0].table, RECURRENT,
         "embedding.weight"),
    ],
)  # fmt: skip
def test_a_use_that_is_overwritten_is_named(monkeypatch, module, function, grads_of, config, row):
    monkeypatch.setattr(module, function, overwriting(grads_of)(getattr(module, function)))
    assert wrong_rows(config, "tied") == {row}


each_kind = pytest.mark.parametrize("config", [PLAIN, RECURRENT], ids=["transformer-xl", "lstm"])


@each_kind
def test_a_token_that_counts_once_however_often_it_is_read_is_found_in_sums(monkeypatch, config):
    def wrong(dy, tokens, clusters, grads):
        rows = dy.reshape(-1, dy.shape[-1]) * np.sqrt(dy.shape[-1])
        grads[0].table[tokens.ravel()] += rows  # NumPy adds the last of a repeated token's rows

    monkeypatch.setattr(segment_model, "embedding_backward", wrong)
    assert wrong_rows(config, "sums") == {"streams"}


@each_kind
def test_a_gradient_that_is_not_linear_in_the_cotangent_is_found_in_sums(monkeypatch, config):
    right = segment_model.adaptive_softmax_backward
    monkeypatch.setattr(
        segment_model, "adaptive_softmax_backward",
        lambda dnll, *others: right(dnll / (1 + np.abs(dnll).sum()), *others),
    )  # fmt: skip
    assert "targets" in wrong_rows(config, "sums")


# Exact zeros


def test_a_mask_that_hides_one_key_too_few_is_named(monkeypatch):
    forward = zeros.attend_forward

    def wider(query, key, value, relative, u, v, window):
        return forward(query, key, value, relative, u, v, window + 1)

    monkeypatch.setattr(zeros, "attend_forward", wider)
    assert wrong_rows(WINDOW, "zeros") >= {
        "keys that are masked",
        "distances that nobody has",
        "masked keys and garbage cells times 1e100",
    }


@pytest.mark.parametrize("leak", [5e-324, np.nan])
@pytest.mark.parametrize(
    ("place", "row"), [(1, "keys that are masked"), (3, "distances that nobody has")]
)
def test_the_smallest_leak_of_a_gradient_is_named(monkeypatch, place, row, leak):
    backward = zeros.attend_backward

    def leaking(*arguments):
        gradients = backward(*arguments)
        gradients[place][gradients[place] == 0] = leak
        return gradients

    monkeypatch.setattr(zeros, "attend_backward", leaking)
    assert wrong_rows(PLAIN, "zeros") == {row}


def test_memory_beyond_the_window_that_is_read_is_named(monkeypatch):
    monkeypatch.setattr(ModelConfig, "window", lambda self, n_keys: self.attn_window + 1)
    assert "memory beyond the window" in wrong_rows(WINDOW, "zeros")


def test_padding_that_is_not_zero_is_named(monkeypatch):
    right = lstm_model.lstm_forward

    def spilling(x, state, weights, *rest):
        y, cache = right(x, state, weights, *rest)
        cache.hidden[1, len(x) :] = 5e-324
        return y, cache

    monkeypatch.setattr(lstm_model, "lstm_forward", spilling)
    assert wrong_rows(RECURRENT, "zeros") == {"padding of layer 0", "padding of layer 1"}


def test_what_there_is_no_attention_for_is_said():
    rows = audit(RECURRENT, only=["structure/zeros"])["structure/zeros"]
    nothing = {name for name, row in rows.items() if not row.applies}
    assert nothing == {"keys that are masked", "memory beyond the window"}


def of_stack(change, kind):
    """A backward pass of all layers that returns something else."""
    right = kind.stack_backward

    def wrong(self, *arguments):
        d_embedded = right(self, *arguments)
        change(d_embedded)
        return d_embedded

    return wrong


def into_later_inputs(d):
    d[:, 1:] += 1e-200 * d[:, :-1]


def nothing_a_number_later(d):
    d[:, 1:] *= np.where(d[:, 1:] == 0, np.nan, 1)


def into_other_streams(d):
    d[1:] += 1e-200 * d[:-1]


each_class = pytest.mark.parametrize(
    ("kind", "config"), [(TransformerXL, PLAIN), (LSTM, RECURRENT)], ids=["transformer-xl", "lstm"]
)


@each_class
@pytest.mark.parametrize(
    ("change", "row"),
    [
        (into_later_inputs, "inputs after the scored one"),
        (nothing_a_number_later, "inputs after the scored one"),
        (into_other_streams, "other streams"),
    ],
)
def test_a_path_that_must_not_be_there_is_named(monkeypatch, change, row, kind, config):
    monkeypatch.setattr(kind, "stack_backward", of_stack(change, kind))
    assert row in wrong_rows(config, "zeros")


@each_kind
def test_targets_to_ignore_that_matter_are_named(monkeypatch, config):
    forward, backward = (
        getattr(segment_model, f"adaptive_softmax_{way}") for way in ("forward", "backward")
    )

    def costing(hidden, targets, clusters):
        nll, cache = forward(hidden, targets, clusters)
        return np.where(targets == IGNORE, 1.0, nll), cache

    monkeypatch.setattr(segment_model, "adaptive_softmax_forward", costing)
    assert wrong_rows(config, "zeros") == {"losses of ignored targets"}
    monkeypatch.setattr(segment_model, "adaptive_softmax_forward", forward)

    def pulling(dnll, cache, *others):
        return backward(dnll, cache, *others) + 1e-50 * dnll[..., None]

    monkeypatch.setattr(segment_model, "adaptive_softmax_backward", pulling)
    assert "cotangents of ignored targets" in wrong_rows(config, "zeros")


def test_rows_that_nobody_uses_and_that_change_are_named(monkeypatch):
    right = segment_model.embedding_backward

    def everywhere(dy, tokens, clusters, grads):
        right(dy, tokens, clusters, grads)
        grads[-1].table[...] += 1e-200

    monkeypatch.setattr(segment_model, "embedding_backward", everywhere)
    assert wrong_rows(CLUSTERS, "zeros") == {"unused rows of embedding.2.weight"}
    monkeypatch.setattr(zeros, "embedding_backward", everywhere)
    assert wrong_rows(PLAIN, "zeros") == {"rows of symbols that are not read"}


@pytest.mark.parametrize(
    ("module", "config"), [(transformer_xl, PLAIN), (lstm_model, RECURRENT)]
)  # fmt: skip
def test_dropped_entries_with_a_gradient_are_named(monkeypatch, module, config):
    monkeypatch.setattr(module, "dropout_backward", lambda dy, cache: dy)
    assert wrong_rows(config, "zeros") == {"dropped entries"}


@each_class
def test_zeros_among_zeros_prove_nothing(monkeypatch, kind, config):
    monkeypatch.setattr(kind, "input_gradient", lambda self, fwd, dnll: np.zeros((2, 4, 6)))
    assert wrong_rows(config, "zeros") >= {
        "inputs after the scored one", "other streams", "dropped entries"
    }  # fmt: skip
