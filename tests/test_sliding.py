"""A window that slides one token at a time, against a loop that reads each of them."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numerical import assert_eq, seeds
from small_runs import MODEL, create, finish, write_text
from support import lstm_configs, model_for, tokens

from npxl import ModelConfig, NpxlError
from npxl.cli import main
from npxl.inference import EvaluationStopped, evaluate, evaluate_sliding, score, score_sliding
from npxl.inference.evaluation import TOKENS_AT_ONCE
from npxl.inference.sliding import score_windows
from npxl.testing.strategies import configs

VANILLA = ModelConfig(
    vocab_size=5, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=5, mem_len=0, clamp_len=5,
    attn_type="al-rfou", pre_lnorm=True,
)  # fmt: skip


def naive(model, text, window):
    """Window after window, all of which is computed and all but the last thrown away."""
    nll = np.empty(len(text) - 1, model.dtype)
    for i in range(len(text) - 1):
        stop = max(i + 1, min(window, len(text) - 1))  # the first window is read for its first n
        seen = text[None, max(0, stop - window) : stop]
        log_p, _ = model.log_probs(seen, model.init_memory(1))
        nll[i] = -log_p[0, i - max(0, stop - window), text[i + 1]]
    return nll


@example(config=VANILLA, seed=0, length=30, window=6, n_workers=2)
@example(config=VANILLA, seed=0, length=4, window=9, n_workers=1)  # less than a window
@example(config=VANILLA, seed=0, length=9, window=8, n_workers=2)  # one window
@given(
    config=configs() | lstm_configs(),
    seed=seeds,
    length=st.integers(2, 30),
    window=st.integers(1, 12),
    n_workers=st.integers(1, 3),
)
def test_it_is_the_loop(config, seed, length, window, n_workers):
    model, text = model_for(config, seed), tokens(length, seed, config.vocab_size)
    expected = naive(model, text, window)
    assert_eq(score_sliding(model, text, window, n_workers), expected, atol=1e-12)
    result = evaluate_sliding(model, text, window, n_workers)
    assert result.tokens == length - 1
    assert result.nll == pytest.approx(expected.mean(), abs=1e-12)


@given(
    config=configs() | lstm_configs(),
    seed=seeds,
    window=st.integers(1, 9),
    pairs=st.lists(st.integers(8, 28), max_size=9),
    n_workers=st.integers(1, 3),
)
def test_windows_may_be_anywhere(config, seed, window, pairs, n_workers):
    model, text = model_for(config, seed), tokens(30, seed, config.vocab_size)
    chosen = np.array(pairs, int)
    actual = score_windows(model, text, chosen, window, n_workers)
    assert_eq(actual, naive(model, text, window)[chosen], atol=1e-12)


@pytest.mark.parametrize("window", [1, TOKENS_AT_ONCE // 3, TOKENS_AT_ONCE, TOKENS_AT_ONCE + 1])
def test_any_number_of_windows_at_once_gives_the_same(window):
    model, text = model_for(VANILLA), tokens(TOKENS_AT_ONCE + 9)
    actual = score_sliding(model, text, window, n_workers=2)
    for i in (0, window - 1, window, len(text) - 2):
        if i < len(text) - 1:
            start = max(0, i + 1 - window)
            stop = max(i + 1, min(window, len(text) - 1))
            log_p, _ = model.log_probs(text[None, start:stop], model.init_memory(1))
            assert actual[i] == pytest.approx(-log_p[0, i - start, text[i + 1]], abs=1e-12)


def test_segments_that_forget_are_fragments_of_what_a_window_sees():
    """The first window is a segment; from then on a segment's tokens see less, but for the last."""
    model, text = model_for(VANILLA), tokens(25)
    slid, cut = score_sliding(model, text, 6), score(model, text, 6)
    assert_eq(slid[:6], cut[:6], atol=1e-13)
    assert_eq(slid[5::6], cut[5::6], atol=1e-13)
    others = np.arange(6, 24) % 6 != 5
    assert np.abs(slid[6:] - cut[6:])[others].min() > 1e-6


def test_a_window_that_reaches_all_that_a_memory_does_scores_the_same():
    """What the paper's table 9 compares: the same numbers for a window's work a token, or one's."""
    config = ModelConfig(
        vocab_size=5, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=5, mem_len=3, attn_window=4
    )
    model, text = model_for(config), tokens(40)
    once = score(model, text, 5)
    again = score_sliding(model, text, config.reach + 1, n_workers=2)
    assert_eq(again, once, atol=1e-12)
    assert np.abs(score_sliding(model, text, config.reach) - once).max() > 1e-9


def test_progress_counts_every_token_and_stop_gives_up():
    model, text = model_for(VANILLA), tokens(400)
    calls = []
    evaluate_sliding(model, text, 6, progress=lambda done, total: calls.append((done, total)))
    assert calls[0] == (6, 399)
    assert calls[-1] == (399, 399)
    with pytest.raises(EvaluationStopped):
        evaluate_sliding(model, text, 6, n_workers=2, stop=lambda: True)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"window": 0}, "window is 0, but it must be a whole number of at least 1"),
        ({"window": 2.5}, "window is 2.5"),
        ({"n_workers": 0}, "n_workers is 0"),
        ({"tokens": [3]}, "at least 2 whole numbers"),
        ({"tokens": np.array([1, 9, 2])}, "inputs go from 1 to 9"),
    ],
)
def test_what_cannot_be_is_an_error_with_the_facts(changes, fact):
    with pytest.raises(NpxlError, match=fact):
        score_sliding(**{"model": model_for(VANILLA), "tokens": tokens(5), "window": 3, **changes})


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = write_text(tmp_path / "text.txt", n_words=200)
    vanilla = dict(mem_len=0, attn_type="al-rfou", clamp_len=7)
    run = finish(create(tmp_path / "run", text, {**MODEL, **vanilla}, steps=3).folder)
    model, valid = run.model(), run.corpus.valid.tokens
    assert main(["eval", "run", "--split=valid", "--sliding=8", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["sliding"] == 8
    assert printed["nll"] == pytest.approx(evaluate_sliding(model, valid, 8).nll, rel=1e-6)
    assert printed["nll"] != pytest.approx(evaluate(model, valid, 8).nll, rel=1e-6)
    assert main(["eval", "run", "--split=valid", "--sliding=8"]) == 0
    assert "sliding" in capsys.readouterr().out
    for option in ("--tgt-len=8", "--mem-len=8"):
        assert main(["eval", "run", "--sliding=8", option]) == 2
        sentence = " ".join(capsys.readouterr().err.split())
        assert "sliding is 8, so that there are neither segments nor a memory" in sentence
    assert main(["eval", "run", "--sliding=0"]) == 2
