"""Generation: one token at a time equals one pass over all; draws are what they should be."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl import LSTM, LSTMConfig, ModelConfig, NpxlError, TransformerXL
from npxl.inference import generate
from npxl.inference.generation import choose
from npxl.testing.strategies import DISTANCES, PLACES

V = 7


def make_model(seed=0, **changes):
    shape = dict(
        vocab_size=V, n_layer=2, n_head=2, d_model=8, d_head=3, d_inner=8, mem_len=5, init_std=0.5
    )
    return TransformerXL(ModelConfig(**(shape | changes)), seed=seed, dtype=np.float64)


def make_lstm(seed=0, **changes):
    shape = dict(vocab_size=V, n_layer=2, d_model=8, init_std=0.5)
    return LSTM(LSTMConfig(**(shape | changes)), seed=seed, dtype=np.float64)


each_kind = pytest.mark.parametrize("make", [make_model, make_lstm])


@pytest.mark.fault("KY #49", "HF #505", "cybertronai #16", "HF #4752", "HF #4826", "HF #5462")
@given(
    st.fixed_dictionaries(
        dict(
            n_layer=st.integers(1, 3),
            mem_len=st.integers(0, 9),
            attn_window=st.none() | st.integers(1, 12),
            clamp_len=st.integers(1, 6),
            attn_type=st.sampled_from(DISTANCES),
            ext_len=st.sampled_from([0, 3]),
            initial_memory=st.sampled_from(["empty", "zeros"]),
            pre_lnorm=st.booleans(),
        )
    ),
    st.integers(1, 200),
    st.none() | st.integers(0, 30),
    st.integers(0, 99),
)
def test_log_probs_are_those_of_one_pass_over_the_whole_text(config, n_prompt, mem_len, seed):
    model = make_model(seed, **config)
    prompt = np.random.default_rng(seed).integers(V, size=n_prompt)
    drawn = list(generate(model, prompt, 25, seed=seed, mem_len=mem_len))

    remembered = model.config.mem_len if mem_len is None else mem_len
    window = min(model.config.attn_window or math.inf, remembered + 1)
    whole = model.reconfigured(mem_len=remembered, attn_window=window, ext_len=0)
    text = np.concatenate([prompt, [token for token, _ in drawn]])
    log_p, _ = whole.log_probs(text[None, :-1], whole.init_memory(1))
    expected = log_p[0, np.arange(n_prompt - 1, len(text) - 1), text[n_prompt:]]
    np.testing.assert_allclose([g.log_prob for g in drawn], expected, rtol=0, atol=1e-12)


@given(
    st.fixed_dictionaries(
        dict(
            attn_type=st.sampled_from(PLACES),
            mem_len=st.integers(0, 9),
            attn_window=st.none() | st.integers(1, 12),
            clamp_len=st.integers(1, 6),
            ext_len=st.sampled_from([0, 3]),
            initial_memory=st.sampled_from(["empty", "zeros"]),
        )
    ),
    st.integers(1, 140),
    st.none() | st.integers(0, 30),
)
def test_with_an_encoding_of_places_what_is_seen_is_read_again(config, n_prompt, mem_len):
    model = make_model(**config)
    prompt = np.random.default_rng(n_prompt).integers(V, size=n_prompt)
    drawn = list(generate(model, prompt, 5, mem_len=mem_len))

    n_seen = 1 + (model.config.mem_len if mem_len is None else mem_len)
    alone = model.reconfigured(mem_len=0, ext_len=0)
    text = np.concatenate([prompt, [token for token, _ in drawn]])
    for i, (token, log_prob) in enumerate(drawn):
        seen = text[: n_prompt + i][None, -n_seen:]
        log_p, _ = alone.log_probs(seen, alone.init_memory(1))
        assert log_prob == pytest.approx(log_p[0, -1, token], abs=1e-12)


@each_kind
def test_greedy_takes_the_most_probable_token_each_time(make):
    model = make()
    text = [3, 1]
    for token, log_prob in generate(model, text.copy(), 10, temperature=0):
        whole = model
        if model.config.mem_len is not None:
            whole = model.reconfigured(attn_window=model.config.mem_len + 1)
        log_p, _ = whole.log_probs(np.array([text]), whole.init_memory(1))
        assert token == log_p[0, -1].argmax()
        assert log_prob == pytest.approx(log_p[0, -1].max(), abs=1e-12)
        text.append(token)


@each_kind
def test_a_seed_draws_the_same_tokens_and_another_seed_others(make):
    model = make(init_std=0.1)
    drawn = [[g.token for g in generate(model, [0], 40, seed=seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.fault("HF #4752", "HF #4826", "HF #5462")
@each_kind
def test_tokens_come_one_by_one_and_none_is_predicted_in_vain(make):
    model = make()
    calls = []

    class Counting:
        config = model.config

        def continuation(self, mem_len):
            self.reading = model.continuation(mem_len)
            return self

        def log_probs(self, inputs):
            calls.append(inputs.shape[1])
            return self.reading.log_probs(inputs)

    tokens = generate(Counting(), [1, 2, 3], 4)
    next(tokens)
    assert calls == [3]
    assert len(list(tokens)) == 3
    assert calls == [3, 1, 1, 1]


def naive_distribution(log_p, temperature, top_k, top_p):
    """The definitions, one sentence at a time."""
    weights = {i: math.exp(lp / temperature) for i, lp in enumerate(log_p)}
    ranked = sorted(weights, key=lambda i: (-weights[i], i))
    if top_k is not None:
        ranked = ranked[:top_k]
    total = sum(weights[i] for i in ranked)
    if top_p is not None:
        kept, mass = [], 0.0
        for i in ranked:
            if mass >= top_p:
                break
            kept.append(i)
            mass += weights[i] / total
        ranked = kept
    total = sum(weights[i] for i in ranked)
    return {i: weights[i] / total for i in ranked}


@given(
    # Weights and p on grids that keep rounding from deciding which of two tokens ranks higher, or
    # whether a sum has reached p.
    st.lists(st.integers(1, 50), min_size=1, max_size=12),
    st.sampled_from([0.3, 0.7, 1.0, 2.9]),
    st.none() | st.integers(1, 14),
    st.none() | st.integers(3, 98).map(lambda percent: percent / 100 + 1 / 1234567),
    st.floats(0, 1, exclude_max=True),
)
def test_a_draw_inverts_the_distribution_function_of_the_naive_definitions(
    weights, temperature, top_k, top_p, u
):
    log_p = np.log(np.array(weights) / sum(weights))
    expected = naive_distribution(log_p, temperature, top_k, top_p)

    class Fixed:
        def random(self):
            return u

    token = choose(log_p, temperature, top_k, top_p, Fixed())
    below = 0.0
    for i, p in expected.items():
        if i == token:
            assert below - 1e-9 <= u <= below + p + 1e-9
            return
        below += p
    pytest.fail(f"{token} was drawn, which is not among {expected}")


def test_frequencies_are_the_probabilities():
    log_p = np.log([0.5, 0.2, 0.2, 0.1])
    rng = np.random.default_rng(0)
    counts = Counter(choose(log_p, 0.7, 3, None, rng) for _ in range(20_000))
    expected = naive_distribution(log_p, 0.7, 3, None)
    assert set(counts) == set(expected)
    for token, p in expected.items():
        assert counts[token] / 20_000 == pytest.approx(p, abs=0.015)


def test_ties_go_to_the_smaller_id():
    rng = np.random.default_rng(0)
    log_p = np.log([0.1, 0.3, 0.3, 0.3])
    assert choose(log_p, 0.0, None, None, rng) == 1
    assert {choose(log_p, 1.0, 2, None, rng) for _ in range(50)} == {1, 2}
    assert {choose(log_p, 1.0, None, 1e-9, rng) for _ in range(50)} == {1}
    assert {choose(log_p, 1e-320, None, None, rng) for _ in range(50)} == {1, 2, 3}


def test_impossible_symbols_are_never_drawn():
    log_p = np.array([-np.inf, 0.0, -np.inf])
    rng = np.random.default_rng(0)
    assert {choose(log_p, 5.0, None, 1.0, rng) for _ in range(50)} == {1}


@pytest.mark.parametrize(
    ("prompt", "changes", "message"),
    [
        ([], {}, "at least one token"),
        ([[1]], {}, "at least one token"),
        ([0.5], {}, "at least one token"),
        ([1], dict(n_tokens=-1), "number of tokens is -1"),
        ([1], dict(temperature=-0.1), "temperature is -0.1"),
        ([1], dict(temperature=math.nan), "temperature is nan"),
        ([1], dict(temperature=math.inf), "temperature is inf"),
        ([1], dict(top_k=0), "top_k is 0"),
        ([1], dict(top_p=0.0), "top_p is 0.0"),
        ([1], dict(top_p=1.5), "top_p is 1.5"),
        ([1], dict(seed=-1), "seed is -1"),
        ([1], dict(mem_len=-1), "mem_len is -1"),
    ],
)
def test_wrong_arguments_are_sentences_at_once(prompt, changes, message):
    with pytest.raises(NpxlError, match=message):
        generate(make_model(), prompt, **({"n_tokens": 3} | changes))


def test_tokens_outside_the_vocabulary_and_diverged_models_are_sentences():
    with pytest.raises(NpxlError, match="vocabulary"):
        next(generate(make_model(), [V], 1))
    model = make_model()
    model.params.flat[:] = np.nan
    with pytest.raises(NpxlError, match="not numbers"):
        next(generate(model, [1], 1))
