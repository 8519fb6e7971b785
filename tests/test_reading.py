"""A reader, which keeps keys and values projected, gives the scores of the model's own forward."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import each_kind, model_for, tokens

from npxl import LSTMConfig, ModelConfig, NpxlError

CONFIG = ModelConfig(vocab_size=7, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=8, mem_len=5)
RECURRENT = LSTMConfig(vocab_size=7, n_layer=2, d_model=6)


@each_kind(dropout=0.0, dropatt=0.0)
@given(
    data=st.data(),
    batch_size=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    seed=st.integers(0, 10_000),
)
def test_a_reader_scores_as_forward_does(configs, data, batch_size, lengths, seed):
    config = data.draw(configs)
    model = model_for(config, seed)
    reader, twin = model.reader(batch_size), model.reader(batch_size)
    memory = model.init_memory(batch_size)
    n_read = 0
    for n, length in enumerate(lengths):
        again = min(n_read, config.ext_len)  # tokens that the memory has left out
        inputs = tokens((batch_size, again + length), seed + n, config.vocab_size)
        targets = tokens((batch_size, length), seed + 100 + n, config.vocab_size)
        fwd = model.forward(inputs, targets, memory)
        log_p, _ = model.log_probs(inputs, memory)
        np.testing.assert_allclose(reader.score(inputs, targets), fwd.nll, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(twin.log_probs(inputs), log_p, rtol=1e-11, atol=1e-11)
        memory = fwd.memory
        n_read += length


@pytest.mark.parametrize("batch_size", [1, 2])  # a token alone has kernels of its own
@pytest.mark.parametrize(
    "config",
    [
        *(
            replace(CONFIG, clamp_len=clamp_len, pre_lnorm=pre_lnorm)
            for clamp_len in (None, 2)
            for pre_lnorm in (False, True)
        ),
        RECURRENT,
    ],
)
def test_a_long_text_token_by_token(batch_size, config):
    """Often enough for the buffers to be moved to their front many times."""
    model = model_for(config)
    reader, memory = model.reader(batch_size), model.init_memory(batch_size)
    text = tokens((batch_size, 60), 1, 7)
    for t in range(59):
        fwd = model.forward(text[:, t : t + 1], text[:, t + 1 : t + 2], memory)
        memory = fwd.memory
        nll = reader.score(text[:, t : t + 1], text[:, t + 1 : t + 2])
        np.testing.assert_allclose(nll, fwd.nll, rtol=1e-11)


each_config = pytest.mark.parametrize(
    "config", [CONFIG, RECURRENT], ids=["transformer-xl", "lstm"]
)  # fmt: skip


@each_config
def test_selected_rows_go_on_by_themselves(config):
    model = model_for(config)
    text = tokens((3, 9), 2, 7)
    reader, memory = model.reader(3), model.init_memory(3)
    reader.log_probs(text[:, :6])
    _, memory = model.log_probs(text[:, :6], memory)
    rows = [2, 0]
    reader.select(rows)
    expected, _ = model.log_probs(text[rows, 6:], memory.select(rows))
    np.testing.assert_allclose(reader.log_probs(text[rows, 6:]), expected, rtol=1e-11)


@each_config
def test_float32_stays_float32(config):
    reader = model_for(config, dtype=np.float32).reader(1)
    text = tokens((1, 4), 0, 7)
    assert reader.score(text[:, :2], text[:, 1:3]).dtype == np.float32
    assert reader.log_probs(text[:, :1]).dtype == np.float32


@each_config
def test_tokens_outside_the_vocabulary_are_refused(config):
    reader = model_for(config).reader(1)
    good, bad = np.array([[6]]), np.array([[7]])
    with pytest.raises(NpxlError, match=r"inputs go from 7 to 7.*0 to 6"):
        reader.log_probs(bad)
    with pytest.raises(NpxlError, match=r"inputs go from 7 to 7.*0 to 6"):
        reader.score(bad, good)
    with pytest.raises(NpxlError, match=r"targets go from 7 to 7.*0 to 6"):
        reader.score(good, bad)


@pytest.mark.fault("tensor2tensor #1707", "labml #285", "HF #7584")
@each_config
def test_a_segment_of_other_streams_is_refused(config):
    reader = model_for(config).reader(2)
    text = tokens((3, 2), 0, 7)
    with pytest.raises(NpxlError, match="3 rows, but this reader reads 2 streams"):
        reader.log_probs(text)
    with pytest.raises(NpxlError, match="no more targets than inputs"):
        reader.score(text[:2, :1], text[:2])
    with pytest.raises(NpxlError, match=r"rows are \[2\].*0 to 1"):
        reader.select([2])
