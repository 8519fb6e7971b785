"""Section determinism of an audit: right for every form of model, and wrong where one is broken."""

import itertools
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from audited import LSTM, every_config, rows_of, wrong_rows

import npxl.training.loop as loop
import npxl.training.run as run_module
from npxl import MaskKey
from npxl.audit.sections import determinism
from npxl.audit.sections.determinism import DETERMINISM
from npxl.models.architectures import model_class
from npxl.models.files import load_model
from npxl.models.segment_model import SegmentModel


@every_config
def test_a_right_model_is_not_accused(options):
    assert wrong_rows(DETERMINISM, options) == []


def masks_of_no_seed(monkeypatch):
    """In training, as from a generator that is never seeded."""
    count = itertools.count()
    monkeypatch.setattr(loop, "MaskKey", lambda seed, step: MaskKey(next(count), step))


def one_seed_for_all(monkeypatch):
    monkeypatch.setattr(loop, "MaskKey", lambda seed, step: MaskKey(0, step))

    def class_of(config):
        return lambda config, seed, dtype: model_class(config)(config, 0, dtype)

    monkeypatch.setattr(run_module, "model_class", class_of)


def moments_are_not_restored(monkeypatch):
    monkeypatch.setattr(loop, "restore", lambda optimizer, vectors, step: None)


def nothing_crashes(monkeypatch):
    monkeypatch.setattr(determinism._Crashing, "step", lambda self, report: None)


def masks_by_place(monkeypatch):
    """A stream's masks are those of its row in whatever batch it is in."""
    forward = SegmentModel.forward

    def other(self, inputs, targets, memory, rng=None, embedded=None):
        rng = None if rng is None else rng._replace(first_stream=0)
        return forward(self, inputs, targets, memory, rng, embedded)

    monkeypatch.setattr(SegmentModel, "forward", other)
    site = MaskKey.site
    monkeypatch.setattr(
        MaskKey, "site", lambda self, name: site(self._replace(first_stream=0), name)
    )


def masks_of_no_step(monkeypatch):
    site = MaskKey.site
    monkeypatch.setattr(MaskKey, "site", lambda self, name: site(self._replace(step=0), name))


def calls_count(monkeypatch):
    """Every pass leaves something behind that the next one reads."""
    forward, backward, count = SegmentModel.forward, SegmentModel.backward, itertools.count()

    def other_forward(self, *arguments):
        fwd = forward(self, *arguments)
        fwd.memory.states.flags.writeable = True
        for array in (fwd.nll, fwd.memory.states):
            array += 1e-6 * next(count)
        return fwd

    def other_backward(self, fwd):
        grads = backward(self, fwd)
        grads.flat += 1e-6 * next(count)
        return grads

    monkeypatch.setattr(SegmentModel, "forward", other_forward)
    monkeypatch.setattr(SegmentModel, "backward", other_backward)


def nothing_a_number_again(monkeypatch):
    """After the first pass, losses and a gradient that are not numbers."""
    forward, backward, count = SegmentModel.forward, SegmentModel.backward, itertools.count()

    def other_forward(self, *arguments):
        fwd = forward(self, *arguments)
        return replace(fwd, nll=fwd.nll * np.nan) if next(count) else fwd

    def other_backward(self, fwd):
        grads = backward(self, fwd)
        if np.isnan(fwd.nll).any():
            grads.flat[-1] = np.nan
        return grads

    monkeypatch.setattr(SegmentModel, "forward", other_forward)
    monkeypatch.setattr(SegmentModel, "backward", other_backward)


def passes_write(monkeypatch):
    """Into parameters and into memory."""
    forward = SegmentModel.forward

    def other(self, inputs, targets, memory, *arguments):
        fwd = forward(self, inputs, targets, memory, *arguments)
        self.params.flat[0] += 1
        memory.states.flags.writeable = True
        memory.states[...] += 1
        return fwd

    monkeypatch.setattr(SegmentModel, "forward", other)


def loaded_wrongly(monkeypatch):
    def other(path):
        model = load_model(path)
        model.params.flat[-1] += 1
        return model

    monkeypatch.setattr(determinism, "load_model", other)


BROKEN = [
    ("same-seed", "last.safetensors", masks_of_no_seed),
    ("same-seed", "best.safetensors", masks_of_no_seed),
    ("same-seed", "another seed", one_seed_for_all),
    ("resumed", "updates that were lost", nothing_crashes),
    ("resumed", "last.safetensors", moments_are_not_restored),
    ("resumed", "best.safetensors", moments_are_not_restored),
    ("workers", "two workers twice: last.safetensors", masks_of_no_seed),
    ("workers", "two workers twice: best.safetensors", masks_of_no_seed),
    ("workers", "one worker and two", masks_by_place),
    ("workers", "one chunk and three", masks_by_place),
    ("masks", "streams split among workers", masks_by_place),
    ("masks", "another step, site or stream", masks_of_no_step),
    ("masks", "losses with dropout, split", masks_by_place),
    ("twice", "losses", calls_count),
    ("twice", "losses", nothing_a_number_again),
    ("twice", "gradients", nothing_a_number_again),
    ("twice", "memory", calls_count),
    ("twice", "gradients", calls_count),
    ("twice", "parameters that a pass changed", passes_write),
    ("twice", "memory that a pass changed", passes_write),
    ("saved", "float32", loaded_wrongly),
    ("saved", "float64", loaded_wrongly),
]


@pytest.mark.parametrize("options", [{}, LSTM], ids=["transformer-xl", "lstm"])
@pytest.mark.parametrize(("check", "row", "break_it"), BROKEN)
def test_a_row_is_wrong_where_what_it_names_is_broken(monkeypatch, check, row, break_it, options):
    break_it(monkeypatch)
    assert not rows_of(DETERMINISM, check, options)[row].passed


def test_a_signal_stops_the_audit_and_not_a_training_alone(monkeypatch):
    update = loop.Trainer.update

    def interrupted(self):
        os.kill(os.getpid(), signal.SIGINT)
        return update(self)

    monkeypatch.setattr(loop.Trainer, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rows_of(DETERMINISM, "same-seed")


@pytest.mark.parametrize("options", [{}, LSTM], ids=["transformer-xl", "lstm"])
def test_every_row_is_broken_by_something(options):
    named = {
        (check.name, row)
        for check in DETERMINISM.checks
        for row in rows_of(DETERMINISM, check.name, options)
    }
    assert named == {(check, row) for check, row, _ in BROKEN}
