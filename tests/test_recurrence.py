"""Segments and memory: what a token sees, how far that reaches, and where gradients stop."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import central_difference, seeds
from support import cut, each_kind, model_for, read, tokens

from npxl import LSTMConfig, MaskKey, Memory, ModelConfig
from npxl.config import with_options
from npxl.testing.strategies import ATTN_TYPES, DISTANCES, PLACES, configs, segmentations

LENGTH = 12
places = st.integers(0, LENGTH - 1)
# With two hidden units layer normalisation returns ±1 and forgets what it was given.
widths = st.sampled_from([4, 6, 8])
SMALL = dict(vocab_size=5, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=5)
recurrent = {"d_model": widths, "ext_len": 0, "dropout": 0.0, "dropatt": 0.0}


def windowed(attn_types=ATTN_TYPES):
    """Windows as wide as the memory allows: W ≤ mem_len + 1."""
    return configs(
        **recurrent, attn_window=st.integers(1, 7), attn_type=st.sampled_from(attn_types)
    ).map(lambda config: replace(config, attn_window=min(config.attn_window, config.mem_len + 1)))


def stream(config, seed, length=LENGTH, batch_size=2):
    return tokens((batch_size, length), seed, config.vocab_size)


@pytest.mark.fault("KY #113")
@given(config=windowed(DISTANCES), lengths=segmentations(LENGTH), seed=seeds)
def test_results_do_not_depend_on_the_segmentation(config, lengths, seed):
    model, text = model_for(config, seed), stream(config, seed)
    whole, whole_memory = read(model, text, [LENGTH])
    pieces, memory = read(model, text, lengths)
    np.testing.assert_allclose(pieces, whole, rtol=0, atol=1e-12)
    assert memory.length == whole_memory.length
    np.testing.assert_allclose(memory.states, whole_memory.states, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attn_type", PLACES)
@pytest.mark.parametrize("pre_lnorm", [False, True])
@pytest.mark.parametrize("mem_len", [1, 4])
def test_with_an_encoding_of_places_they_do(mem_len, pre_lnorm, attn_type):
    """Wherever a window ends: the paper's reason for encoding distances."""
    config = ModelConfig(
        **SMALL, mem_len=mem_len, attn_window=mem_len + 1, pre_lnorm=pre_lnorm,
        attn_type=attn_type, clamp_len=99,
    )  # fmt: skip
    for each in (attn_type, *DISTANCES):
        model, text = model_for(replace(config, attn_type=each)), stream(config, 0)
        whole, whole_memory = read(model, text, [LENGTH])
        pieces, memory = read(model, text, [LENGTH // 2, LENGTH // 2])
        scores = np.abs(pieces - whole).max()
        if each in PLACES:
            assert scores > 1e-2
            np.testing.assert_array_equal(memory.layers[0], whole_memory.layers[0])
        else:
            assert scores < 1e-12


@pytest.mark.fault("KY #113")
@pytest.mark.parametrize("pre_lnorm", [False, True])
@pytest.mark.parametrize("mem_len", [0, 1, 4])
def test_one_key_more_and_results_depend_on_the_segmentation(mem_len, pre_lnorm):
    config = ModelConfig(**SMALL, mem_len=mem_len, attn_window=mem_len + 2, pre_lnorm=pre_lnorm)
    model, text = model_for(config), stream(config, 0)
    whole, _ = read(model, text, [LENGTH])
    pieces, _ = read(model, text, [LENGTH // 2, LENGTH // 2])
    assert np.abs(pieces - whole).max() > 1e-3
    fits = model.reconfigured(attn_window=mem_len + 1)
    whole, _ = read(fits, text, [LENGTH])
    pieces, _ = read(fits, text, [LENGTH // 2, LENGTH // 2])
    assert np.abs(pieces - whole).max() < 1e-12


@pytest.mark.fault("HF #14832", "KY #86", "lucidrains/x-transformers #64")
@given(config=windowed(), lengths=segmentations(LENGTH), seed=seeds, at=places)
def test_a_token_reaches_exactly_as_far_as_the_layers_windows_add_up_to(config, lengths, seed, at):
    model, text = model_for(config, seed), stream(config, seed)
    other = text.copy()
    other[0, at] = (other[0, at] + 1) % config.vocab_size
    before, after = read(model, text, lengths)[0], read(model, other, lengths)[0]
    changed = (before != after).any(-1)  # [B, N], bit by bit
    expected = [0 <= t - at <= config.n_layer * (config.attn_window - 1) for t in range(LENGTH)]
    assert changed[0].tolist() == expected
    assert not changed[1].any()
    assert config.reach == config.n_layer * (config.attn_window - 1)


@pytest.mark.fault("HF 4.35.2: same_length with mem_len 0")
@given(config=configs(**recurrent), lengths=segmentations(LENGTH), seed=seeds, at=places)
def test_nothing_depends_on_what_comes_later(config, lengths, seed, at):
    model, text = model_for(config, seed), stream(config, seed)
    other = text.copy()
    other[:, at:] = tokens(other[:, at:].shape, seed + 1, config.vocab_size)
    before, after = read(model, text, lengths)[0], read(model, other, lengths)[0]
    np.testing.assert_array_equal(before[:, :at], after[:, :at])


@pytest.mark.fault("fastai #1569")
@given(config=configs(**{**recurrent, "mem_len": 0}), lengths=segmentations(LENGTH), seed=seeds)
def test_without_memory_segments_are_strangers(config, lengths, seed):
    model, text = model_for(config, seed), stream(config, seed)
    log_probs, memory = read(model, text, lengths)
    assert memory.length == 0
    alone = [read(model, segment, [segment.shape[1]])[0] for segment in cut(text, lengths)]
    np.testing.assert_array_equal(log_probs, np.concatenate(alone, axis=1))


@pytest.mark.fault("KY #104")
def test_a_window_of_one_sees_the_token_alone():
    config = ModelConfig(**SMALL, mem_len=4, attn_window=1)
    model, text = model_for(config), stream(config, 0)
    together, _ = read(model, text, [5, 7])
    alone = [read(model, text[:, [t]], [1])[0] for t in range(LENGTH)]
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), rtol=0, atol=1e-13)


@pytest.mark.fault("HF #1235")
@given(config=configs(**recurrent), lengths=segmentations(LENGTH), seed=seeds)
def test_the_memory_never_holds_more_than_its_length(config, lengths, seed):
    model, text = model_for(config, seed), stream(config, seed)
    memory = model.init_memory(2)
    expected = memory.length
    for segment in cut(text, lengths):
        _, memory = model.log_probs(segment, memory)
        expected = min(config.mem_len, expected + segment.shape[1])
        assert memory.length == expected


@pytest.mark.fault("HF 4.35.2: memory that begins as zeros")
def test_zeros_to_start_with_are_attended_to():
    config = ModelConfig(**SMALL, mem_len=4)
    model, text = model_for(config), stream(config, 0)
    empty, _ = read(model, text, [LENGTH])
    zeros, _ = read(model.reconfigured(initial_memory="zeros"), text, [LENGTH])
    assert np.abs(empty - zeros).max() > 1e-2


@given(config=windowed(DISTANCES), seed=seeds, ext_len=st.integers(1, 3), tgt_len=st.integers(1, 4))
def test_reading_tokens_again_scores_none_twice_and_changes_no_score(
    config, seed, ext_len, tgt_len
):
    # The window fits the memory, so that what is computed again comes out as before.
    config = replace(config, ext_len=ext_len)
    model, text = model_for(config, seed), stream(config, seed, 13)
    expected, _ = read(model.reconfigured(ext_len=0), text[:, :12], [12])
    memory, nll = model.init_memory(2), []
    for start in range(0, 12, tgt_len):
        stop = min(start + tgt_len, 12)
        read_from = max(0, start - ext_len)
        fwd = model.forward(text[:, read_from:stop], text[:, start + 1 : stop + 1], memory)
        cached_from = max(0, stop - ext_len)  # the next segment reads the rest again
        zeros = config.mem_len if config.initial_memory == "zeros" else 0
        assert fwd.memory.length == min(config.mem_len, zeros + cached_from)
        nll.append(fwd.nll)
        memory = fwd.memory
    nll = np.concatenate(nll, axis=1)
    targets = text[:, 1:, None]
    np.testing.assert_allclose(
        nll, -np.take_along_axis(expected, targets, 2)[..., 0], rtol=0, atol=1e-11
    )


@pytest.mark.fault("tensor2tensor #1707", "labml #285", "HF #7584")
@given(config=configs(**recurrent), seed=seeds, data=st.data())
def test_streams_may_be_reordered_with_their_memory(config, seed, data):
    order = data.draw(st.permutations(range(3)))
    model, text = model_for(config, seed), stream(config, seed, batch_size=3)
    _, memory = read(model, text[:, :6], [6])
    straight, after = read(model, text[:, 6:], [6], memory)
    reordered, reordered_after = read(model, text[order, 6:], [6], memory.select(order))
    np.testing.assert_allclose(reordered, straight[order], rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        reordered_after.states, after.select(order).states, rtol=0, atol=1e-12
    )


@each_kind(d_model=widths)
@given(data=st.data(), seed=seeds, trained=st.booleans())
def test_a_batch_is_its_streams_side_by_side(configs, data, seed, trained):
    config = data.draw(configs)
    # Scores, memory, gradients and, since a shard says which streams it holds, dropout masks.
    model = model_for(config, seed)
    key = MaskKey(seed=3) if trained else None
    text = stream(config, seed, length=4 + config.ext_len, batch_size=3)
    inputs, targets = text[:, :-1], text[:, config.ext_len + 1 :]
    memory = Memory(
        np.random.default_rng(seed).standard_normal((config.n_layer, 3, 2, config.d_model))
    )
    dnll = np.random.default_rng(seed + 1).standard_normal(targets.shape)
    whole = model.forward(inputs, targets, memory, key)
    whole_grads = model.backward(whole, dnll)
    grads, shards = model.params.zeros_like(), []
    for rows in (slice(0, 1), slice(1, 3)):
        shard_key = key and key._replace(first_stream=rows.start)
        shards.append(model.forward(inputs[rows], targets[rows], memory.select(rows), shard_key))
        model.backward(shards[-1], dnll[rows], grads)
    nll = np.concatenate([shard.nll for shard in shards])
    after = Memory.concatenate([shard.memory for shard in shards])
    np.testing.assert_allclose(nll, whole.nll, rtol=0, atol=1e-12)
    np.testing.assert_allclose(after.states, whole.memory.states, rtol=0, atol=1e-12)
    scale = np.abs(whole_grads.flat).max()
    np.testing.assert_allclose(grads.flat, whole_grads.flat, rtol=0, atol=1e-11 * scale)


@pytest.mark.fault("KY #13")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(**SMALL, mem_len=4, tie_weight=False),
        ModelConfig(**SMALL, mem_len=4, tie_weight=False, pre_lnorm=True, untie_r=True),
        LSTMConfig(vocab_size=5, n_layer=2, d_model=6, tie_weight=False),
    ],
)
def test_gradients_stop_at_the_memory(config, dropout):
    config = with_options(config, dropout=dropout, dropatt=dropout)
    model, text = model_for(config), stream(config, 0, 9)
    first, second = MaskKey(step=1), MaskKey(step=2)
    dnll = np.random.default_rng(1).standard_normal((2, 4))

    def memory_of_the_first_segment():
        return model.forward(text[:, :4], text[:, 1:5], model.init_memory(2), first).memory

    def second_segment(memory):
        return model.forward(text[:, 4:8], text[:, 5:], memory, second)

    memory = memory_of_the_first_segment()
    grads = model.backward(second_segment(memory), dnll)
    for name, tensor in model.params.items():
        largest = np.abs(grads[name]).max()
        # One: with the memory frozen, differences are what backward returns.
        frozen = central_difference(lambda: second_segment(memory).nll, tensor, dnll)
        assert np.abs(grads[name] - frozen).max() < 1e-7 * largest, name
        # Two: with the memory computed by the changed parameters, they are something else, but for
        # the parameters that the cached states do not depend on.
        recomputed = central_difference(
            lambda: second_segment(memory_of_the_first_segment()).nll, tensor, dnll
        )
        truncated = np.abs(recomputed - frozen).max() / largest
        if model.writes_memory(name):
            assert truncated > 1e-2, name
        else:
            assert truncated == 0, name

    # Three: the memory matters, to every layer that reads it; yet nothing is returned for it.
    states = memory.states.copy()
    slopes = central_difference(lambda: second_segment(Memory(states)).nll, states, dnll)
    assert (np.abs(slopes).max(axis=(1, 2, 3)) > 1e-2).all()
    assert grads.shapes == model.params.shapes


@pytest.mark.fault("KY #13")
@pytest.mark.parametrize("pre_lnorm", [False, True])
def test_keys_and_values_learn_from_memory_rows(pre_lnorm):
    # The segment's own row of the context is zero: only memory rows can give these a gradient.
    config = ModelConfig(
        **{**SMALL, "n_layer": 1}, mem_len=4, pre_lnorm=pre_lnorm, tie_weight=False
    )
    model = model_for(config)
    model.params["embedding.weight"][...] = 0
    model.params["layers.0.attention_norm.bias"][...] = 0 if pre_lnorm else 0.3
    memory = Memory(np.random.default_rng(0).standard_normal((1, 2, 3, 6)))
    inputs, targets = np.array([[1], [2]]), np.array([[3], [4]])
    grads = model.backward(model.forward(inputs, targets, memory))

    from_memory = ["layers.0.attention.w_k", "layers.0.attention.w_v"]
    if pre_lnorm:
        from_memory.append("layers.0.attention_norm.gain")
    for name in from_memory:
        assert np.abs(grads[name]).max() > 1e-3, name
        slopes = central_difference(
            lambda: model.forward(inputs, targets, memory).nll.mean(), model.params[name]
        )
        np.testing.assert_allclose(grads[name], slopes, rtol=0, atol=1e-8)
    assert not grads["layers.0.attention.w_q"].any(), "queries come from the segment alone"


@pytest.mark.parametrize("pre_lnorm", [False, True])
def test_what_the_window_hides_of_the_memory_is_not_even_multiplied_by_zero(pre_lnorm):
    config = ModelConfig(
        vocab_size=5, n_layer=1, n_head=1, d_model=4, d_head=2, d_inner=3, mem_len=9,
        attn_window=3, pre_lnorm=pre_lnorm,
    )  # fmt: skip
    model, text = model_for(config), tokens((1, 3))
    states = np.random.default_rng(0).standard_normal((1, 1, 9, 4))
    states[:, :, :7] = np.nan  # the first query sees itself and two cached positions
    fwd = model.forward(text, text, Memory(states))
    for name, gradient in model.backward(fwd).items():
        assert np.isfinite(gradient).all(), name
    assert np.isfinite(fwd.nll).all()
