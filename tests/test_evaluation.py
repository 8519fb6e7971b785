"""Evaluation: parallel streams give what one pass gives, and one pass what a plain loop gives."""

from __future__ import annotations

import math
import os
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl import IGNORE, ModelConfig, NpxlError, TransformerXL
from npxl.inference import EvaluationStopped, evaluate, evaluate_sliding, score
from npxl.inference.evaluation import warm_up_segments
from npxl.testing.strategies import ATTN_TYPES, LEARNED

V = 7


def make_model(seed=0, dtype=np.float64, **changes):
    # Parameters are drawn large, so that a wrong memory shows in the first digits.
    shape = dict(
        vocab_size=V, n_layer=2, n_head=2, d_model=8, d_head=3, d_inner=8, mem_len=5, init_std=0.5
    )
    return TransformerXL(ModelConfig(**(shape | changes)), seed=seed, dtype=dtype)


def text(length, seed=0):
    return np.random.default_rng(seed).integers(V, size=length).astype(np.uint8)


def plain_loop(model, tokens, tgt_len):
    """Segment after segment, written out: nll of all tokens but the first."""
    tokens = tokens.astype(np.int64)
    memory = model.init_memory(1)
    nll = []
    for start in range(0, len(tokens) - 1, tgt_len):
        stop = min(start + tgt_len, len(tokens) - 1)
        first = max(0, start - model.config.ext_len)
        fwd = model.forward(tokens[None, first:stop], tokens[None, start + 1 : stop + 1], memory)
        memory = fwd.memory
        nll.extend(fwd.nll[0])
    return np.array(nll)


@st.composite
def cases(draw):
    attn_type = draw(st.sampled_from(ATTN_TYPES))
    learns = attn_type in LEARNED
    config = dict(
        attn_type=attn_type,
        n_layer=draw(st.integers(1, 3)),
        mem_len=draw(st.integers(0, 9)),
        attn_window=draw(st.none() | st.integers(1, 12)),
        clamp_len=draw(st.integers(1, 6) if learns else st.none() | st.integers(1, 6)),
        ext_len=draw(st.sampled_from([0, 0, 1, 4, 9])),
        initial_memory=draw(st.sampled_from(["empty", "zeros"])),
        pre_lnorm=draw(st.booleans()),
    )
    return config, draw(st.integers(2, 160)), draw(st.integers(1, 12))


@pytest.mark.fault("HF #318", "HF #617", "KY #131")
@given(cases(), st.integers(0, 99))
def test_one_stream_is_the_plain_loop(case, seed):
    config, length, tgt_len = case
    model, tokens = make_model(seed, **config), text(length, seed)
    expected = plain_loop(model, tokens, tgt_len)
    actual = score(model, tokens, tgt_len, n_streams=1)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)
    result = evaluate(model, tokens, tgt_len, n_streams=1)
    assert result.tokens == length - 1  # the ragged tail included
    assert result.nll == pytest.approx(expected.sum() / (length - 1), abs=1e-12)


def test_a_text_may_be_a_list_and_numbers_are_checked():
    model, tokens = make_model(0), text(20, 0)
    assert evaluate(model, tokens.tolist(), 4).nll == evaluate(model, tokens, 4).nll
    assert score(model, tokens.tolist(), 4).shape == (19,)
    for wrong in (0, 4.0, "four", 10**20):
        with pytest.raises(NpxlError, match="tgt_len is "):
            evaluate(model, tokens, wrong)


@pytest.mark.fault("KY #25")
@given(cases(), st.none() | st.integers(2, 9), st.integers(1, 3), st.integers(0, 99))
def test_parallel_streams_score_every_token_as_the_plain_loop_does(case, n_streams, workers, seed):
    config, length, tgt_len = case
    model, tokens = make_model(seed, **config), text(length, seed)
    expected = plain_loop(model, tokens, tgt_len)
    actual = score(model, tokens, tgt_len, n_streams, workers)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)
    result = evaluate(model, tokens, tgt_len, n_streams, workers)
    assert result.nll == pytest.approx(expected.mean(), abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "tgt_len"),
    [
        (dict(mem_len=5), 3),
        (dict(mem_len=6), 3),
        (dict(mem_len=6, attn_window=7), 3),
        (dict(mem_len=6, attn_window=4), 4),
        (dict(mem_len=6, attn_window=8), 3),
        (dict(mem_len=7, attn_window=4), 5),
        (dict(mem_len=5, attn_window=7), 4),
        (dict(mem_len=4, ext_len=4), 2),
        (dict(mem_len=0), 4),
    ],
)
def test_a_segment_depends_on_no_more_than_the_warm_up_before_it(changes, tgt_len):
    model = make_model(**changes)
    warm_up = warm_up_segments(model.config, tgt_len)
    start = (warm_up + 4) * tgt_len
    tokens = text(start + tgt_len + 1)
    other = tokens.copy()
    before = start - warm_up * tgt_len
    other[:before] = (other[:before] + 1) % V
    same, changed = (plain_loop(model, t, tgt_len)[start:] for t in (tokens, other))
    np.testing.assert_allclose(same, changed, rtol=0, atol=1e-12)


def test_the_warm_up_is_not_longer_than_needed():
    model = make_model(mem_len=6)
    assert warm_up_segments(model.config, 3) == 4
    tokens = text(6 * 3 + 1)
    other = tokens.copy()
    other[5] = (other[5] + 1) % V  # in the first of the four segments before the last
    same, changed = (plain_loop(model, t, 3)[15:] for t in (tokens, other))
    assert np.abs(same - changed).max() > 1e-9


def test_segments_longer_than_the_text():
    model, tokens = make_model(), text(9)
    expected = model.forward(tokens[None, :-1], tokens[None, 1:], model.init_memory(1)).nll[0]
    np.testing.assert_array_equal(score(model, tokens, 100, n_streams=4, n_workers=2), expected)


@pytest.mark.fault("KY #113")
def test_scores_do_not_depend_on_the_segmentation_within_the_window():
    model, tokens = make_model(mem_len=5, attn_window=6), text(80)
    expected = score(model, tokens, 1)
    for tgt_len in (2, 7, 80):
        np.testing.assert_allclose(score(model, tokens, tgt_len), expected, rtol=0, atol=1e-12)


def test_the_total_is_added_up_in_float64():
    model, tokens = make_model(dtype=np.float32), text(3000)
    result = evaluate(model, tokens, 50, n_streams=4)
    exact = math.fsum(score(model, tokens, 50, n_streams=4).tolist()) / (len(tokens) - 1)
    assert result.nll == pytest.approx(exact, rel=1e-12)


def test_a_model_that_diverged_scores_nan():
    model = make_model()
    model.params.flat[:] = np.nan
    assert math.isnan(evaluate(model, text(30), 4).nll)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_progress_ends_at_its_total(n_workers):
    calls = []
    evaluate(
        make_model(), text(100), 3, n_streams=3, n_workers=n_workers,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    done, totals = zip(*calls, strict=True)
    assert sorted(done) == list(done)
    assert set(totals) == {done[-1]}


@pytest.mark.parametrize("n_workers", [1, 2])
def test_stop_abandons_the_evaluation(n_workers):
    calls = []
    with pytest.raises(EvaluationStopped):
        evaluate(
            make_model(), text(300), 3, n_streams=2, n_workers=n_workers,
            progress=lambda done, total: calls.append(done), stop=lambda: len(calls) >= 5,
        )  # fmt: skip
    assert len(calls) <= 5 + n_workers


@pytest.mark.skipif(os.name != "posix", reason="elsewhere no thread can be sent a signal")
@pytest.mark.parametrize("read", [evaluate, evaluate_sliding])
def test_ctrl_c_ends_the_other_threads_too(read):
    main, calls = threading.main_thread(), []

    def interrupt(done, total):
        if threading.current_thread() is not main:
            if not calls:
                signal.pthread_kill(main.ident, signal.SIGINT)
            calls.append((done, total))
            time.sleep(0.01)  # on a busy machine it takes a while until the main thread notices

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background
    try:
        with pytest.raises(KeyboardInterrupt):
            read(make_model(mem_len=0), text(200_000), 50, n_workers=2, progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, handler)
    done, total = calls[-1]
    assert done < total / 2


@pytest.mark.fault("KY #75", "HF #586", "HF #10538")
@given(
    st.lists(st.integers(2, 12), min_size=1, max_size=5),
    st.fixed_dictionaries(
        dict(
            pre_lnorm=st.booleans(),
            attn_window=st.none() | st.integers(1, 5),
            initial_memory=st.sampled_from(["empty", "zeros"]),
        )
    ),
    st.integers(0, 99),
)
def test_sentences_of_different_lengths_in_a_batch_are_as_each_alone(lengths, config, seed):
    """Filled up on the right and masked by `dnll`: scores and gradients, whatever the filling."""
    model = make_model(seed, **config).reconfigured(mem_len=0)
    sentences = [text(length, seed + i) for i, length in enumerate(lengths)]
    longest, n_scored = max(lengths), sum(lengths) - len(lengths)

    expected_gradient = np.zeros_like(model.params.flat)
    expected = []
    for sentence in sentences:
        fwd = model.forward(sentence[None, :-1], sentence[None, 1:], model.init_memory(1))
        dnll = np.full_like(fwd.nll, 1 / n_scored)
        expected_gradient += model.backward(fwd, dnll).flat
        expected.append(fwd.nll[0])

    rows = text(len(lengths) * longest, seed + 50).reshape(-1, longest)
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = sentence
    scored = np.arange(longest - 1) < np.array(lengths)[:, None] - 1  # [B, T]
    fwd = model.forward(rows[:, :-1], rows[:, 1:], model.init_memory(len(rows)))
    assert fwd.memory.length == 0
    np.testing.assert_allclose(fwd.nll[scored], np.concatenate(expected), rtol=0, atol=1e-12)
    gradient = model.backward(fwd, scored / n_scored).flat
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=1e-11)


@pytest.mark.fault("HF #3711", "HF #4698", "HF #4054")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((text(1), 4), "at least 2 whole numbers"),
        ((np.ones(5), 4), "float64 of shape"),
        ((text(9), 0), "tgt_len is 0"),
        ((text(9), 4, 0), "n_streams is 0"),
        ((text(9), 4, 1, 0), "n_workers is 0"),
        ((text(9) + V, 4), "vocabulary"),
        # A text has nothing that is not scored, not even at its end, which is no input.
        ((np.append(text(9).astype(int), IGNORE), 4), "its last token is -1"),
        ((np.insert(text(9).astype(int), 5, IGNORE), 4), "inputs go from -1"),
    ],
)
def test_wrong_arguments_are_sentences(arguments, message):
    with pytest.raises(NpxlError, match=message):
        evaluate(make_model(), *arguments)
