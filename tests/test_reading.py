"""A reader, which keeps keys and values projected, gives the scores of the model's own forward."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import configs, model_for, tokens

from npxl import ModelConfig, NpxlError
from npxl.kernels.attend_one import attend_one

CONFIG = ModelConfig(vocab_size=7, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=8, mem_len=5)


@given(
    config=configs(dropout=0.0, dropatt=0.0),
    batch_size=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    seed=st.integers(0, 10_000),
)
def test_a_reader_scores_as_forward_does(config, batch_size, lengths, seed):
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


def test_a_long_text_token_by_token():
    """Often enough for the buffers to be moved to their front many times."""
    model = model_for(CONFIG)
    reader, memory = model.reader(2), model.init_memory(2)
    text = tokens((2, 60), 1, 7)
    for t in range(59):
        fwd = model.forward(text[:, t : t + 1], text[:, t + 1 : t + 2], memory)
        memory = fwd.memory
        nll = reader.score(text[:, t : t + 1], text[:, t + 1 : t + 2])
        np.testing.assert_allclose(nll, fwd.nll, rtol=1e-11)


def test_selected_rows_go_on_by_themselves():
    model = model_for(CONFIG)
    text = tokens((3, 9), 2, 7)
    reader, memory = model.reader(3), model.init_memory(3)
    reader.log_probs(text[:, :6])
    _, memory = model.log_probs(text[:, :6], memory)
    rows = [2, 0]
    reader.select(rows)
    expected, _ = model.log_probs(text[rows, 6:], memory.select(rows))
    np.testing.assert_allclose(reader.log_probs(text[rows, 6:]), expected, rtol=1e-11)


def test_float32_stays_float32():
    reader = model_for(CONFIG, dtype=np.float32).reader(1)
    text = tokens((1, 4), 0, 7)
    assert reader.score(text[:, :2], text[:, 1:3]).dtype == np.float32
    assert reader.log_probs(text[:, :1]).dtype == np.float32


def test_tokens_outside_the_vocabulary_are_refused():
    reader = model_for(CONFIG).reader(1)
    good, bad = np.array([[6]]), np.array([[7]])
    with pytest.raises(NpxlError, match=r"inputs go from 7 to 7.*0 to 6"):
        reader.log_probs(bad)
    with pytest.raises(NpxlError, match=r"inputs go from 7 to 7.*0 to 6"):
        reader.score(bad, good)
    with pytest.raises(NpxlError, match=r"targets go from 7 to 7.*0 to 6"):
        reader.score(good, bad)


def test_a_segment_of_other_streams_is_refused():
    reader = model_for(CONFIG).reader(2)
    text = tokens((3, 2), 0, 7)
    with pytest.raises(NpxlError, match="3 rows, but this reader reads 2 streams"):
        reader.log_probs(text)
    with pytest.raises(NpxlError, match="no more targets than inputs"):
        reader.score(text[:2, :1], text[:2])
    with pytest.raises(NpxlError, match=r"rows are \[2\].*0 to 1"):
        reader.select([2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", [attend_one, attend_one.py_func], ids=["jitted", "plain"])
def test_attention_of_one_query_against_its_equation(function, dtype):
    n_streams, n_keys, n_heads, width = 2, 5, 3, 4
    draw = np.random.default_rng(0)
    q_u, q_v = draw.standard_normal((2, n_streams, n_heads, width)).astype(dtype)
    key, value = draw.standard_normal((2, n_streams, n_keys, n_heads, width)).astype(dtype)
    relative = draw.standard_normal((n_keys, n_heads, width)).astype(dtype)
    attended = np.full((n_streams, n_heads, width), np.nan, dtype)
    scores = np.full((n_heads, n_keys), np.nan, dtype)
    function(q_u, q_v, key, value, relative, dtype(0.5), (0, n_heads), scores, attended)
    a = np.einsum("bhd,bjhd->bhj", q_u, key) + np.einsum("bhd,jhd->bhj", q_v, relative)
    p = np.exp(a / 2) / np.exp(a / 2).sum(-1, keepdims=True)
    expected = np.einsum("bhj,bjhd->bhd", p, value)
    np.testing.assert_allclose(attended, expected, rtol=1e-5 if dtype == np.float32 else 1e-12)
