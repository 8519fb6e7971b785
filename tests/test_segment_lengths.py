"""Segments of varying length: the original's rule, and that nothing is skipped or read twice."""

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from small_runs import contents, create, finish, write_text

from npxl import TrainConfig
from npxl.data import Streams
from npxl.training.loop import Trainer
from npxl.training.reporting import Reporter
from npxl.training.run import Run
from npxl.training.segment_lengths import length_bounds, segment_length


def lengths(n, **options):
    config = TrainConfig(varlen=True, **options)
    return np.array([segment_length(step, config) for step in range(1, n + 1)])


def original_lengths(n, bptt, std=5, min_len=5, max_deviation=3):
    """As `LMOrderedIterator.get_varlen_iter` of the original draws them."""
    draw = np.random.RandomState(0)
    for _ in range(n):
        mean = bptt if draw.random_sample() < 0.95 else bptt / 2.0
        yield min(bptt + max_deviation * std, max(min_len, int(draw.normal(mean, std))))


@given(tgt_len=st.integers(1, 200), step=st.integers(1, 10**9), seed=st.integers(0, 10**30))
def test_lengths_are_within_bounds_and_functions_of_seed_and_step(tgt_len, step, seed):
    config = TrainConfig(tgt_len=tgt_len, seed=seed, varlen=True, lr=0.1, steps=10)
    length = segment_length(step, config)
    assert min(5, tgt_len) <= length <= tgt_len + 15
    assert length_bounds(config) == (min(5, tgt_len), tgt_len + 15)
    assert segment_length(step, TrainConfig(tgt_len=tgt_len, seed=seed, varlen=True)) == length


@given(tgt_len=st.integers(1, 200), step=st.integers(1, 10**9))
def test_without_varlen_all_segments_have_tgt_len(tgt_len, step):
    config = TrainConfig(tgt_len=tgt_len)
    assert segment_length(step, config) == tgt_len
    assert length_bounds(config) == (tgt_len, tgt_len)


@pytest.mark.parametrize("tgt_len", [5, 20, 70, 150])
def test_lengths_are_distributed_as_the_originals(tgt_len):
    ours, theirs = lengths(20_000, tgt_len=tgt_len), list(original_lengths(20_000, tgt_len))
    # Two samples of this size differ by 0.02 in one of 1500 cases (Kolmogorov and Smirnov).
    values = np.arange(tgt_len + 16)
    below = [np.searchsorted(np.sort(sample), values) / 20_000 for sample in (ours, theirs)]
    assert abs(below[0] - below[1]).max() < 0.02
    assert ours.max() == tgt_len + 15


def test_one_segment_in_twenty_is_half_as_long():
    assert (lengths(20_000, tgt_len=150) < 112).mean() == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("tgt_len", [1, 2, 4])
def test_short_segments_may_be_as_short_as_tgt_len(tgt_len):
    assert set(lengths(5_000, tgt_len=tgt_len)) == set(range(tgt_len, tgt_len + 16))


def test_seeds_have_lengths_of_their_own():
    assert not np.array_equal(lengths(50, seed=0), lengths(50, seed=1))
    np.testing.assert_array_equal(lengths(50, seed=1), lengths(50, seed=1))


class Crash(BaseException):
    """As sudden as a power cut: nothing catches it."""


class StopAfter(Reporter):
    """Ends the loop after some updates: suddenly, or as Ctrl-C does, with everything saved."""

    def __init__(self, updates, suddenly):
        self.left, self.suddenly = updates, suddenly

    def step(self, report):
        self.left -= 1
        if self.left == 0:
            if self.suddenly:
                raise Crash
            os.kill(os.getpid(), signal.SIGINT)


@settings(max_examples=6, stateful_step_count=6)
class Interruptions(RuleBasedStateMachine):
    """However a run is interrupted, each update reads what follows the one before.

    What an update has read may be read again after a crash, but only by the same update.
    """

    STEPS = 40
    WHOLE = None

    @initialize(save_interval=st.sampled_from([0.0, 1e6]))
    def begin(self, save_interval):
        self.folder = Path(tempfile.mkdtemp())
        text = write_text(self.folder / "text.txt", n_words=300)
        options = dict(varlen=True, tgt_len=6, steps=self.STEPS, eval_interval=15, workers=1)
        if Interruptions.WHOLE is None:
            create(self.folder / "whole", text, **options)
            Interruptions.WHOLE = contents(finish(self.folder / "whole"))
        # The interval is written to run.json alone, not to the files that are compared.
        create(self.folder / "run", text, **options, save_interval=save_interval)
        self.read = {}  # by position: the targets [B, T]
        self.starts = {}  # by step: the position

    def train(self, reporter):
        trainer = Trainer(Run.open(self.folder / "run"))
        batch = Streams.batch

        def recording(streams, consumed, length=None):
            inputs, targets = batch(streams, consumed, length)
            step = trainer.progress.step + 1
            assert self.starts.setdefault(step, consumed) == consumed
            np.testing.assert_array_equal(self.read.setdefault(consumed, targets), targets)
            return inputs, targets

        with mock.patch.object(Streams, "batch", recording):
            return trainer.run(reporter)

    @rule(updates=st.integers(1, 25))
    def crash(self, updates):
        with contextlib.suppress(Crash):
            self.train(StopAfter(updates, suddenly=True))

    @rule(updates=st.integers(1, 25))
    def stop(self, updates):
        self.train(StopAfter(updates, suddenly=False))

    @invariant()
    def updates_follow_each_other(self):
        position = 0
        for step in range(1, len(getattr(self, "starts", {})) + 1):
            assert self.starts[step] == position
            position += self.read[position].shape[1]

    def teardown(self):
        if not hasattr(self, "folder"):
            return
        assert self.train(Reporter())
        self.updates_follow_each_other()
        run = Run.open(self.folder / "run")
        text = run.corpus.train.tokens.astype(int)
        rows = np.concatenate([self.read[start] for _, start in sorted(self.starts.items())], 1)
        assert run.checkpoint().progress.consumed == rows.shape[1]
        for stream, row in enumerate(rows):
            first = stream * (len(text) - 1) // len(rows)
            expected = np.arange(first, first + len(row)) % (len(text) - 1) + 1
            np.testing.assert_array_equal(row, text[expected])
        assert contents(run) == Interruptions.WHOLE
        shutil.rmtree(self.folder)


TestInterruptions = Interruptions.TestCase
