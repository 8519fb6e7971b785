"""The LSTM as a language model: against its reference, and what the protocol promises."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numerical import assert_eq, seeds
from support import lstm_configs, model_for, read, tokens

from npxl import (
    IGNORE,
    LSTM,
    LSTMConfig,
    MaskKey,
    Memory,
    ModelConfig,
    NpxlError,
    TransformerXL,
    gradcheck,
    load,
    reference_lstm,
)
from npxl.inference import evaluate, generate, score
from npxl.models.ends import embedding_shapes, softmax_shapes
from npxl.params import n_parameters
from npxl.references import reference_mask
from npxl.testing.strategies import segmentations

SMALL = LSTMConfig(vocab_size=5, n_layer=2, d_model=6)
LENGTH = 12


def batch(config, tgt_len=4, batch_size=2, seed=0):
    text = tokens((batch_size, tgt_len + 1), seed, config.vocab_size)
    return text[:, :-1], text[:, 1:]


def state_of(model, batch_size=2, seed=0):
    """Some state, of hidden states and cells that can be far from zero."""
    shape = model.init_memory(batch_size).states.shape
    return Memory(np.random.default_rng(seed).standard_normal(shape).astype(model.dtype))


@given(
    config=lstm_configs(),
    tgt_lens=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    batch_size=st.integers(1, 2),
    seed=seeds,
    trained=st.booleans(),
)
def test_segment_after_segment_is_the_references(config, tgt_lens, batch_size, seed, trained):
    model = model_for(config, seed)
    memory = model.init_memory(batch_size)
    states = list(memory.layers)
    for step, tgt_len in enumerate(tgt_lens):
        inputs, targets = batch(config, tgt_len, batch_size, seed + step)
        key = MaskKey(seed, step) if trained else None
        fwd = model.forward(inputs, targets, memory, key)
        expected = reference_lstm.forward(
            model.params, config, inputs, targets, states, reference_mask(key, config)
        )
        assert_eq(fwd.nll, expected.nll, atol=1e-12)
        assert_eq(fwd.memory.states, np.array(expected.memory), atol=1e-13)
        if not trained:
            log_probs, after = model.log_probs(inputs, memory)
            assert_eq(log_probs, expected.log_probs, atol=1e-12)
            assert_eq(after.states, fwd.memory.states, atol=1e-14)
        memory, states = fwd.memory, expected.memory


ONE_OF_EACH = LSTMConfig(vocab_size=2, n_layer=1, d_model=1)


@example(config=ONE_OF_EACH, tgt_len=1, batch_size=1, first=True, seed=0)
@example(config=SMALL, tgt_len=1, batch_size=1, first=False, seed=0)
@example(config=replace(SMALL, n_layer=1), tgt_len=4, batch_size=5, first=True, seed=0)
@given(
    config=lstm_configs(),
    tgt_len=st.integers(1, 3),
    batch_size=st.integers(1, 2),
    first=st.booleans(),
    seed=seeds,
)
def test_every_gradient_is_right(config, tgt_len, batch_size, first, seed):
    """Of every parameter and the input, under a random cotangent, by differences and complex steps.

    After no segment, when the state is zero, and after others.
    """
    model = model_for(config, seed)
    memory = model.init_memory(batch_size) if first else state_of(model, batch_size, seed)
    inputs, targets = batch(config, tgt_len, batch_size, seed)
    report = gradcheck(model, inputs, targets, memory, MaskKey(seed), entries=4, seed=seed)
    assert {check.name for check in report.tensors} == {"input", *model.params}
    assert report.passed, f"\n{report}"


def test_targets_to_ignore_and_tokens_that_are_not_scored_are_checked_too():
    model = model_for(SMALL)
    inputs, targets = (each.copy() for each in batch(SMALL, 5, 3))
    targets[0, 1:] = IGNORE
    report = gradcheck(model, inputs, targets[:, 2:], state_of(model, 3), entries=5)
    assert report.passed, f"\n{report}"
    fwd = model.forward(inputs, targets, state_of(model, 3))
    assert fwd.n_scored == 11
    assert not fwd.nll[0, 1:].any()


@given(config=lstm_configs(), lengths=segmentations(LENGTH), seed=seeds)
def test_results_do_not_depend_on_the_segmentation(config, lengths, seed):
    model, text = model_for(config, seed), tokens((2, LENGTH), seed, config.vocab_size)
    whole, whole_state = read(model, text, [LENGTH])
    pieces, state = read(model, text, lengths)
    assert_eq(pieces, whole, atol=1e-12)
    assert_eq(state.states, whole_state.states, atol=1e-13)


@given(config=lstm_configs(), lengths=segmentations(LENGTH), seed=seeds, at=st.integers(0, 11))
def test_nothing_depends_on_what_comes_later_or_on_another_stream(config, lengths, seed, at):
    model, text = model_for(config, seed), tokens((3, LENGTH), seed, config.vocab_size)
    other = text.copy()
    other[1, at:] = tokens(LENGTH - at, seed + 1, config.vocab_size)
    before, after = read(model, text, lengths)[0], read(model, other, lengths)[0]
    assert_eq(before[1, :at], after[1, :at])
    assert_eq(before[[0, 2]], after[[0, 2]])


@given(config=lstm_configs(), rows=st.lists(st.integers(0, 4), min_size=1, max_size=6), seed=seeds)
def test_streams_may_be_reordered_with_their_state(config, rows, seed):
    """Rows of a batch may be computed in other tiles: equal but for the order of additions."""
    model = model_for(config, seed)
    memory, (inputs, targets) = state_of(model, 5, seed), batch(config, 3, 5, seed)
    every = model.forward(inputs, targets, memory)
    some = model.forward(inputs[rows], targets[rows], memory.select(rows))
    assert_eq(some.nll, every.nll[rows], atol=1e-13)
    assert_eq(some.memory.states, every.memory.select(rows).states, atol=1e-14)


@given(config=lstm_configs(dropout=0.0), seed=seeds)
def test_float32_is_near_float64(config, seed):
    double = model_for(config, seed)
    single = double.astype(np.float32)
    inputs, targets = batch(config)
    fwd = single.forward(inputs, targets, single.init_memory(2))
    expected = double.forward(inputs, targets, double.init_memory(2))
    assert_eq(fwd.nll, expected.nll.astype(np.float32), atol=1e-5)
    assert fwd.memory.states.dtype == np.float32
    gradient = single.backward(fwd).flat
    assert_eq(gradient, double.backward(expected).flat.astype(np.float32), rtol=1e-4, atol=1e-6)


@given(config=lstm_configs(), seed=seeds, rows=st.permutations(range(3)))
def test_a_reader_gives_the_scores_of_forward(config, seed, rows):
    model, text = model_for(config, seed), tokens((3, 10), seed, config.vocab_size)
    reader, memory = model.reader(3), model.init_memory(3)
    assert_eq(reader.log_probs(text[:, :4]), model.log_probs(text[:, :4], memory)[0], atol=1e-13)
    _, memory = model.log_probs(text[:, :4], memory)
    reader.select(rows)
    fwd = model.forward(text[rows, 4:8], text[rows, 6:9], memory.select(rows))
    assert_eq(reader.score(text[rows, 4:8], text[rows, 6:9]), fwd.nll, atol=1e-13)
    with pytest.raises(NpxlError, match="inputs have 2 rows, but this reader reads 3 streams"):
        reader.score(text[:2, :3], text[:2, 1:4])


@given(config=lstm_configs(), seed=seeds, tgt_len=st.integers(1, 9), n_streams=st.integers(1, 5))
def test_every_token_is_scored_once_by_all_that_is_before_it(config, seed, tgt_len, n_streams):
    """However many streams are asked for: a state is known only to who has read all before it."""
    model, text = model_for(config, seed), tokens(30, seed, config.vocab_size)
    log_p, _ = model.log_probs(text[None, :-1], model.init_memory(1))
    expected = -log_p[0, np.arange(29), text[1:]]
    assert_eq(score(model, text, tgt_len, n_streams, n_workers=2), expected, atol=1e-12)
    result = evaluate(model, text, tgt_len, n_workers=2)
    assert result.tokens == 29
    assert result.nll == pytest.approx(expected.mean(), abs=1e-12)


def test_a_continuation_is_scored_as_the_whole_text_would_be():
    model, prompt = model_for(SMALL), [1, 2, 3, 0, 4]
    drawn = list(generate(model, prompt, 9, seed=2))
    text = np.array([*prompt, *(token for token, _ in drawn)])
    log_p, _ = model.log_probs(text[None, :-1], model.init_memory(1))
    expected = log_p[0, np.arange(4, 13), text[5:]]
    assert_eq(np.array([g.log_prob for g in drawn]), expected, atol=1e-12)
    with pytest.raises(NpxlError, match="mem_len is 5, but an LSTM remembers all"):
        generate(model, prompt, 1, mem_len=5)


def test_what_is_saved_comes_back_as_an_lstm(tmp_path):
    model = LSTM(SMALL, seed=3)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert isinstance(again, LSTM)
    assert again.config == SMALL
    assert_eq(again.params.flat, model.params.flat)


def test_forget_gates_begin_open():
    model = LSTM(SMALL)
    assert (model.layer(model.params, 1).bias == np.repeat([0, 1, 0, 0], 6)).all()


def test_the_state_is_a_constant_of_its_own():
    model = model_for(SMALL)
    inputs, targets = batch(SMALL)
    before = state_of(model)
    kept = before.states.copy()
    fwd = model.forward(inputs, targets, before)
    model.backward(fwd)
    assert_eq(before.states, kept)
    assert not fwd.memory.states.flags.writeable
    assert not any(
        np.shares_memory(fwd.memory.states, array) for cache in fwd.stack.layers for array in cache
    )


@pytest.mark.parametrize(
    ("states", "facts"),
    [
        (np.zeros((2, 2, 3, 6)), [r"\(2, 2, 3, 6\)", r"\(2, 2, 2, 6\)"]),
        (np.zeros((2, 3, 2, 6)), [r"\(2, 3, 2, 6\)", r"\(2, 2, 2, 6\)"]),
        (np.zeros((2, 2, 2, 6), np.float32), ["float32", "float64"]),
    ],
)
def test_a_wrong_state_is_an_error_with_the_facts(states, facts):
    model = LSTM(SMALL, dtype=np.float64)
    for fact in facts:
        with pytest.raises(NpxlError, match=fact):
            model.log_probs(batch(SMALL)[0], Memory(states))


@pytest.mark.parametrize(
    ("kind", "config", "fact"),
    [
        (LSTM, ModelConfig(), "LSTM is a npxl.LSTMConfig"),
        (TransformerXL, LSTMConfig(), "TransformerXL is a npxl.ModelConfig"),
        (LSTM, None, "config is None"),
    ],
)
def test_a_model_of_another_configuration_is_refused(kind, config, fact):
    with pytest.raises(NpxlError, match=fact):
        kind(config)


@pytest.mark.parametrize("name", ["mem_len", "attn_window", "ext_len", "n_head"])
def test_options_of_a_transformer_are_refused(name):
    with pytest.raises(NpxlError, match=rf"LSTMConfig has no option '{name}'"):
        LSTM(SMALL).reconfigured(**{name: 3})
    with pytest.raises(NpxlError, match=r"cannot change d_model.*can change dropout"):
        LSTM(SMALL).reconfigured(d_model=7)


@given(config=lstm_configs())
def test_parameters_are_counted_by_the_closed_formula(config):
    d = config.d_model
    shapes = LSTM.parameter_shapes(config)
    ends = {**embedding_shapes(config), **softmax_shapes(config)}
    layers = config.n_layer * (8 * d * d + 4 * d)
    assert n_parameters(shapes) == layers + n_parameters(ends)
    assert all(shapes[name] == shape for name, shape in ends.items())
