"""What reading computes for a token, counted instead of timed."""

from unittest import mock

import numpy as np
import pytest
from support import model_for, tokens

from npxl import ModelConfig, TransformerXL
from npxl.bench import arithmetic
from npxl.models import one_token, reading


def work_per_token(mem_len, n_tokens, start="zeros"):
    """For each token: numbers of weights and of the memory that it meets, sums over the layers."""
    config = ModelConfig(
        vocab_size=11, n_layer=2, n_head=2, d_model=8, d_head=4, d_inner=8, mem_len=mem_len,
        initial_memory=start,
    )  # fmt: skip
    reader = TransformerXL(config).reader(1)
    reader.log_probs(np.zeros((1, 1), int))  # computes what is computed once: W_{k,R} R
    weights, keys = [], []
    attend, add = one_token.attention_of_one, one_token.add_product
    rectify = one_token.rectified_product

    def counted_attend(x, w_q, w_k, w_v, *rest):
        start, stop = rest[7]
        weights[-1] += w_q.size + w_k.size + w_v.size
        keys[-1] += stop - start
        return attend(x, w_q, w_k, w_v, *rest)

    def counted_add(h, w, *rest):
        weights[-1] += w.size
        return add(h, w, *rest)

    def counted_rectify(w, *rest):
        weights[-1] += w.size
        return rectify(w, *rest)

    with (
        mock.patch.object(one_token, "attention_of_one", counted_attend),
        mock.patch.object(one_token, "add_product", counted_add),
        mock.patch.object(one_token, "rectified_product", counted_rectify),
        # Nothing of a layer is done elsewhere.
        mock.patch.object(reading, "linear_forward", None),
        mock.patch.object(reading, "feed_forward_forward", None),
    ):
        for n in range(n_tokens):
            weights.append(0)
            keys.append(0)
            reader.log_probs(np.full((1, 1), n % 11))
    return weights, keys, reader


@pytest.mark.parametrize("mem_len", [1, 5, 40])
def test_a_token_costs_its_own_projections_and_a_look_at_the_memory(mem_len):
    weights, keys, _ = work_per_token(mem_len, 3 * mem_len + 2)
    assert set(weights) == {2 * 6 * 8 * 8}  # W_q, W_k, W_v, W_o, W_1 and W_2 of two layers, once
    assert set(keys) == {2 * (mem_len + 1)}  # linear in M


def test_the_cost_does_not_grow_with_what_has_been_read():
    weights, keys, reader = work_per_token(6, 100, start="empty")
    size = reader._keys_t.nbytes
    assert keys[5:] == [2 * 7] * 95
    assert len(set(weights)) == 1
    for _ in range(50):
        reader.log_probs(np.zeros((1, 1), int))
    assert reader._keys_t.nbytes == size


@pytest.mark.fault("KY #101", "KY #87", "KY #39", "HF #308", "google-research/bert #356")
def test_a_window_read_anew_for_each_token_gives_the_same_for_more_work():
    """What the paper's "1,800 times faster" compares: both predict from the same tokens."""
    config = ModelConfig(
        vocab_size=11, n_layer=2, n_head=2, d_model=8, d_head=4, d_inner=8, mem_len=3,
        attn_window=4,
    )  # fmt: skip
    model, text = model_for(config), tokens((1, 20), vocab_size=11)
    length = config.reach + 1  # all that a prediction can depend on
    reader = model.reader(1)
    read_on = [reader.log_probs(text[:, [t]])[0, -1] for t in range(20)]
    for t in range(length - 1, 20):
        window = text[:, t - length + 1 : t + 1]
        anew, _ = model.log_probs(window, model.init_memory(1))
        np.testing.assert_allclose(read_on[t], anew[0, -1], rtol=0, atol=1e-12)
        shorter, _ = model.log_probs(window[:, 1:], model.init_memory(1))
        assert np.abs(read_on[t] - shorter[0, -1]).max() > 1e-6
    without_memory = model.reconfigured(mem_len=0).config
    assert arithmetic.reading(without_memory, length) > length / 2 * arithmetic.reading(config, 1)
