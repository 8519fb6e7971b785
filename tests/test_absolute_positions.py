"""Places: added where states are read, kept nowhere, and confused by a memory."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numerical import assert_adjoint, assert_eq, read_only, seeds
from support import model_for, tokens

from npxl import MaskKey, Memory, ModelConfig, TransformerXL
from npxl.layers.absolute_positions import (
    add_learned_backward,
    add_learned_forward,
    add_sinusoids,
)
from npxl.layers.dropout import dropout_forward
from npxl.layers.positions import sinusoid
from npxl.testing.strategies import PLACES, configs

SMALL = ModelConfig(
    vocab_size=7, n_layer=3, n_head=2, d_model=6, d_head=3, d_inner=5, mem_len=8, clamp_len=20,
    attn_type="vaswani",
)  # fmt: skip
every = pytest.mark.parametrize("attn_type", PLACES)


def small(attn_type="vaswani", **changes):
    return model_for(replace(SMALL, attn_type=attn_type, **changes))


@example(n_memory=4, n_queries=3, clamp_len=1, dropout=0.4, seed=0)  # in both parts
@given(
    n_memory=st.integers(0, 6),
    n_queries=st.integers(1, 6),
    clamp_len=st.none() | st.integers(1, 13),
    dropout=st.sampled_from([0.0, 0.4]),
    seed=seeds,
)
def test_sinusoids_are_those_of_distances_to_the_last_token(
    n_memory, n_queries, clamp_len, dropout, seed
):
    draw = np.random.default_rng(seed)
    embedded = draw.standard_normal((2, n_queries, 6))
    memory = read_only(draw.standard_normal((2, n_memory, 6)))
    site = MaskKey(seed).site("embedding")
    h = read_only(dropout_forward(embedded, dropout, site)[0])
    x, read = add_sinusoids(h, memory, clamp_len, dropout, site)
    u = sinusoid(n_memory + n_queries, 6, clamp_len)
    of_the_sum, _ = dropout_forward(embedded + u[n_memory:], dropout, site)
    assert_eq(x, of_the_sum, atol=1e-14)
    assert_eq(read, memory + u[:n_memory])


def test_the_last_token_of_a_segment_is_at_zero_and_the_others_before_it():
    zeros = np.zeros((1, 3, 6))
    x, read = add_sinusoids(zeros, zeros[:, :2], None, 0.0, None)
    by_distance = sinusoid(5, 6)[::-1]
    np.testing.assert_array_equal(x[0], by_distance[[2, 1, 0]])
    np.testing.assert_array_equal(read[0], by_distance[[4, 3]])


@given(n_keys=st.integers(1, 9), clamp_len=st.integers(1, 9), seed=seeds)
def test_learned_places_are_rows_that_further_ones_share(n_keys, clamp_len, seed):
    draw = np.random.default_rng(seed)
    context, table = draw.standard_normal((3, n_keys, 4)), draw.standard_normal((clamp_len + 1, 4))
    y = add_learned_forward(read_only(context), read_only(table))
    for j in range(n_keys):
        place = table[clamp_len - min(n_keys - 1 - j, clamp_len)]
        np.testing.assert_array_equal(y[:, j], context[:, j] + place)
    d_context, before = draw.standard_normal(context.shape), draw.standard_normal(table.shape)
    d_table = before.copy()
    add_learned_backward(read_only(d_context), d_table)
    # The map of the table alone is linear: y − context.
    assert_adjoint(y - context, d_context, table, d_table - before)


@pytest.mark.parametrize("pre_lnorm", [False, True])
def test_places_in_memory_learn_though_the_memory_does_not(pre_lnorm):
    model = small("al-rfou", pre_lnorm=pre_lnorm)
    states = np.random.default_rng(0).standard_normal((3, 2, 8, 6))
    text = tokens((2, 4), vocab_size=7)
    grads = model.backward(model.forward(text[:, :2], text[:, 2:], Memory(states)))
    for n in range(3):
        by_distance = np.abs(grads[f"layers.{n}.position"][::-1]).max(1)
        assert (by_distance[:10] > 1e-6).all()  # two tokens and eight in memory
        assert not by_distance[10:].any()
    seen_less = model.reconfigured(attn_window=4)
    grads = seen_less.backward(seen_less.forward(text[:, :2], text[:, 2:], Memory(states)))
    assert not grads["layers.0.position"][::-1][5:].any()


@pytest.mark.fault("KY #15")
@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_kept_has_no_place_however_often_it_is_read(attn_type, dtype):
    """The original adds to its memory in place, again in every segment."""
    config = replace(SMALL, attn_type=attn_type)
    model, text = model_for(config, dtype=dtype), tokens((2, 17), vocab_size=7)
    memory = model.init_memory(2)
    for start in range(0, 16, 2):  # M = 8: a state is read by four segments
        held = memory.states.copy()
        fwd = model.forward(text[:, start : start + 2], text[:, start + 1 : start + 3], memory)
        assert_eq(memory.states, held)
        memory = fwd.memory
    embedded = model.embed(text[:, 8:16])
    assert_eq(memory.layers[0], embedded)


@given(config=configs(attn_type="al-rfou", dropout=0.0, dropatt=0.0, ext_len=0), seed=seeds)
def test_a_layer_keeps_what_the_one_below_gave_without_its_own_places(config, seed):
    model = model_for(replace(config, mem_len=4), seed)
    text = tokens((2, 4), seed, config.vocab_size)
    before = model.forward(text, text, model.init_memory(2)).memory
    for n in range(config.n_layer):
        moved = TransformerXL(model.config, params=model.params.astype(np.float64))
        moved.params[f"layers.{n}.position"][...] += 1
        after = moved.forward(text, text, moved.init_memory(2)).memory
        assert_eq(after.states[: n + 1], before.states[: n + 1])  # what is read up to layer n


@every
def test_in_training_what_is_kept_is_the_dropped_embedding(attn_type):
    model, text = small(attn_type, dropout=0.4), tokens((2, 5), vocab_size=7)
    key = MaskKey(3)
    fwd = model.forward(text[:, :4], text[:, 1:], model.init_memory(2), key)
    embedded = model.embed(text[:, :4])
    assert_eq(fwd.memory.layers[0], dropout_forward(embedded, 0.4, key.site("embedding"))[0])


@every
@given(config=configs(attn_type="vaswani", pre_lnorm=True, clamp_len=5), seed=seeds)
def test_queries_keys_and_values_come_from_states_that_are_all_normalized(attn_type, config, seed):
    """The original normalises keys and values alone."""
    model = model_for(replace(config, attn_type=attn_type), seed)
    text = tokens((2, 4), seed, config.vocab_size)
    states = np.random.default_rng(seed).standard_normal((config.n_layer, 2, 3, config.d_model))
    fwd = model.forward(text, text, Memory(states))
    for n, layer in enumerate(fwd.stack.layers):
        weights = model.layer(model.params, n)
        context = layer.attention.context
        normalized = layer.attention_norm.normalized.reshape(context.shape)
        assert_eq(context, weights.attention_norm.gain * normalized + weights.attention_norm.bias,
                  atol=1e-12)  # fmt: skip
        query, key = layer.attention.attend.query, layer.attention.attend.key
        projected = context[:, context.shape[1] - 4 :] @ weights.attention.w_q.T
        assert_eq(query, projected.reshape(query.shape), atol=1e-12)
        assert_eq(key, (context @ weights.attention.w_k.T).reshape(key.shape), atol=1e-12)


@pytest.mark.fault("KY #15")
@every
def test_without_recurrence_every_segment_is_read_alike(attn_type):
    model, text = small(attn_type, mem_len=0), tokens((1, 8), vocab_size=7)
    text[:, 4:] = text[:, :4]
    first, memory = model.log_probs(text[:, :4], model.init_memory(1))
    second, memory = model.log_probs(text[:, 4:], memory)
    assert memory.length == 0
    assert_eq(second, first)


@every
def test_a_place_is_told_by_the_end_of_the_segment_not_by_the_length_of_the_memory(attn_type):
    """What a window hides of the memory moves nothing."""
    model = small(attn_type, attn_window=3)
    states = np.random.default_rng(0).standard_normal((3, 2, 8, 6))
    text = tokens((2, 4), vocab_size=7)
    expected, _ = model.log_probs(text, Memory(states))
    for length in (2, 5):
        log_p, _ = model.log_probs(text, Memory(states[:, :, 8 - length :]))
        assert_eq(log_p, expected)


def changes_when_segments_are_exchanged(model, slot):
    """How far scores move when the two segments in one slot of the memory change places."""
    text = tokens((2, 12), vocab_size=7)
    memory = model.init_memory(2)
    for start in (0, 4):
        _, memory = model.log_probs(text[:, start : start + 4], memory)
    states = memory.states.copy()
    states[slot] = np.roll(states[slot], 4, axis=1)
    before, after = (model.log_probs(text[:, 8:], m)[0] for m in (memory, Memory(states)))
    return np.abs(after - before).max()


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_which_segment_a_deeper_state_is_from_is_lost(slot):
    """Section 3.3 of the paper: only where places are added to it does memory have an order."""
    assert changes_when_segments_are_exchanged(small("dai"), slot) > 1e-3
    assert changes_when_segments_are_exchanged(small("shaw"), slot) > 1e-3
    assert changes_when_segments_are_exchanged(small("al-rfou"), slot) > 1e-3  # in every layer
    change = changes_when_segments_are_exchanged(small("vaswani"), slot)
    assert change > 1e-3 if slot == 0 else change < 1e-12
