"""The audit's proof that the gradient stops at the memory, and what that leaves out."""

from dataclasses import replace

import numpy as np
import pytest

from npxl import LSTM, LSTMConfig, Memory, ModelConfig, NpxlError, reference, reference_lstm
from npxl.audit import audit, scaling
from npxl.audit.frame import Subject, Trained
from npxl.audit.sections import left_out
from npxl.config import with_options
from npxl.models.architectures import model_class
from npxl.models.segment_model import SegmentModel

CONFIG, RECURRENT = ModelConfig(vocab_size=4), LSTMConfig(vocab_size=4)
SMALLER = {"n_head": 1, "d_model": 4, "d_head": 2, "d_inner": 3, "mem_len": 3}


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    """Sooner done."""
    for name, size in SMALLER.items():
        monkeypatch.setitem(scaling._LARGEST, name, size)


each_kind = pytest.mark.parametrize(
    "config", [CONFIG, RECURRENT], ids=["transformer-xl", "lstm"]
)  # fmt: skip


def wrong_rows(config, check):
    report = audit(config, only=[f"truncation/{check}"])
    (outcome,) = report.outcomes
    return {result.name for result in outcome.failures}


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        ModelConfig(vocab_size=4, n_layer=1, pre_lnorm=True, attn_window=3),
        ModelConfig(vocab_size=6, cutoffs=(2, 4), div_val=2, ext_len=1, dropout=0.1),
        ModelConfig(vocab_size=4, attn_type="shaw", clamp_len=2, initial_memory="zeros"),
        ModelConfig(vocab_size=4, attn_type="vaswani", attn_window=2, mem_len=2),
        ModelConfig(vocab_size=4, attn_type="al-rfou", clamp_len=2, untie_r=False),
        ModelConfig(vocab_size=4, n_layer=2, mem_len=1),
        RECURRENT,
        LSTMConfig(vocab_size=6, n_layer=1, cutoffs=(2, 4), div_val=2, dropout=0.1),
        LSTMConfig(vocab_size=4, n_layer=2, tie_weight=False),
    ],
)
def test_truncation_of_many_forms(config):
    report = audit(config, seed=2, only=["truncation"])
    assert report.passed, report.verdict
    rows = report["truncation/left-out"]
    total = rows["all"].figures
    assert 1e-4 < total["left out"].value < 2
    assert 0.3 < total["cosine"].value < 1
    model = report.subject.model()
    without = [name for name in model.params if not model.writes_memory(name)]
    assert "softmax.bias" in without
    for name in without:
        assert not rows[name].applies or rows[name].figures["left out"].value < 1e-12
    assert rows["both segments read as one"].applies == config.encodes_distances


def a_trained_model(config, seed=0, n_tokens=60):
    """As good as one, for what is measured of it."""
    model = model_class(config)(config, seed, np.float32)
    tokens = np.random.default_rng(seed).integers(config.vocab_size, size=n_tokens)
    return Trained(model, tokens, 5)


TRAINED = ModelConfig(
    vocab_size=9, n_layer=3, n_head=2, d_model=8, d_head=4, d_inner=16, mem_len=6, init_std=0.3,
    dropout=0.1,
)  # fmt: skip


OF_ATTENTION = ("layers.0.feed_forward.b_2", "attention.u"), "layers.2.attention.w_q"
TRAINED_LSTM = LSTMConfig(vocab_size=9, n_layer=2, d_model=6, init_std=0.3, dropout=0.1)


@pytest.mark.parametrize(
    ("config", "n_first", "tensors", "whole_tensor"),
    [
        (TRAINED, 6, *OF_ATTENTION),
        (replace(TRAINED, attn_window=4), 6, *OF_ATTENTION),
        (
            replace(TRAINED, attn_window=7, ext_len=2, initial_memory="zeros"), 6,
            *OF_ATTENTION,
        ),
        (TRAINED_LSTM, 5, ("layers.0.bias", "layers.1.bias"), "softmax.bias"),
    ],
)  # fmt: skip
def test_what_is_left_out_of_a_runs_own_gradient(config, n_first, tensors, whole_tensor):
    """Against the slopes of the loss with the memory recomputed by moved parameters."""
    trained = a_trained_model(config)
    report = audit(config, only=["truncation/trained"], trained=lambda: trained)
    assert report.passed, report.verdict
    rows = report["truncation/trained"]
    assert rows[whole_tensor].figures["left out"].value < 1e-12

    plain = with_options(config, ext_len=0, initial_memory="empty", dropout=0.0)
    model = model_class(plain)(plain, params=trained.model.params.astype(np.float64))
    length = n_first + 6
    starts = np.linspace(0, 60 - length, 4).astype(int)
    text = np.stack([trained.tokens[start : start + length] for start in starts])

    def fwd(model, memory=None):
        if memory is None:
            _, memory = model.log_probs(text[:, :n_first], model.init_memory(4))
        return model.forward(text[:, n_first:-1], text[:, n_first + 1 :], memory)

    truncated = model.backward(fwd(model))
    for name in tensors:
        whole = np.zeros_like(truncated[name])
        tensor = model.params[name]
        for index in np.ndindex(whole.shape):
            value, losses = tensor[index], []
            for step in (1e-5, -1e-5):
                tensor[index] = value + step
                losses.append(fwd(model).nll.mean())
            tensor[index] = value
            whole[index] = (losses[0] - losses[1]) / 2e-5
        missing = np.linalg.norm(whole - truncated[name]) / np.linalg.norm(whole)
        assert rows[name].figures["left out"].value == pytest.approx(missing, rel=1e-4)
        assert missing > 1e-4


@pytest.mark.parametrize(
    ("trained", "why"),
    [
        (None, "give RUN"),
        (a_trained_model(TRAINED, n_tokens=11), "shorter than two segments"),
        (a_trained_model(replace(TRAINED, mem_len=0)), "no memory"),
        (a_trained_model(replace(TRAINED, attn_type="vaswani")), "Places"),
        (NpxlError("The text is gone."), "The text is gone."),
    ],
)
def test_why_nothing_of_a_run_is_measured(trained, why):
    def load():
        if isinstance(trained, NpxlError):
            raise trained
        return trained

    load = None if trained is None else load
    report = audit(TRAINED, only=["truncation/trained"], trained=load)
    (row,) = report["truncation/trained"].values()
    assert not row.applies
    assert why in row.detail


def test_a_run_too_large_to_hold_in_float64_is_left_alone(monkeypatch):
    monkeypatch.setattr(left_out, "_MOST_PARAMETERS", 100)
    trained = a_trained_model(TRAINED)
    report = audit(TRAINED, only=["truncation/trained"], trained=lambda: trained)
    (row,) = report["truncation/trained"].values()
    assert "too much memory" in row.detail


@pytest.mark.parametrize("config", [ModelConfig(mem_len=0), ModelConfig(attn_window=1)])
def test_nothing_to_truncate(config):
    report = audit(config, only=["truncation"])
    assert report.passed
    assert not any(row.applies for outcome in report.outcomes for row in outcome.results)


@each_kind
def test_what_is_left_out_is_what_the_numbers_say(config):
    """Of the total gradient by differences of both segments, in one tensor."""
    report = audit(config, only=["truncation/left-out"])
    for row in list(report["truncation/left-out"].values())[:-1]:
        left_out, length, cosine = (figure.value for figure in row.figures.values())
        # |g∞ − g|² = |g∞|² + |g|² − 2 ⟨g, g∞⟩
        assert left_out**2 == pytest.approx(1 + length**2 - 2 * length * cosine, abs=1e-12)


@each_kind
def test_a_memory_that_is_not_constant_is_named(monkeypatch, config):
    """A gradient that comes through the memory, as if segments had been read as one."""
    texts = []
    forward, log_probs = SegmentModel.forward, SegmentModel.log_probs

    def reading(self, inputs, memory):
        texts.append(inputs)
        return log_probs(self, inputs, memory)

    def without_memory(self, inputs, targets, memory):
        """Everything read so far is read again as a part of the segment."""
        text = np.concatenate([*texts, inputs], axis=1)
        return forward(self, text, targets, self.init_memory(len(text)))

    monkeypatch.setattr(SegmentModel, "log_probs", reading)
    monkeypatch.setattr(SegmentModel, "forward", without_memory)
    wrong, model = wrong_rows(config, "stop-gradient"), Subject(config).model()
    assert wrong == {name for name in model.params if model.writes_memory(name)}


@pytest.mark.parametrize(
    ("config", "module", "tensor"),
    [
        (CONFIG, reference, "layers.0.attention.w_q"),
        (RECURRENT, reference_lstm, "layers.1.w_x"),
    ],
    ids=["transformer-xl", "lstm"],
)
def test_a_memory_that_does_not_matter_is_named(monkeypatch, config, module, tensor):
    forward = module.forward

    def forgetful(params, config, inputs, targets, memory, *rest):
        return forward(params, config, inputs, targets, [m.real.copy() for m in memory], *rest)

    monkeypatch.setattr(module, "forward", forgetful)
    assert "slope by layer 0's memory" in wrong_rows(config, "memory")
    assert tensor in wrong_rows(config, "stop-gradient")


@each_kind
def test_a_gradient_that_is_not_a_number_is_named(monkeypatch, config):
    """One entry of one tensor in the middle."""
    right = SegmentModel.backward

    def wrong(self, *arguments):
        grads = right(self, *arguments)
        grads[list(grads)[3]].flat[0] = np.nan
        return grads

    monkeypatch.setattr(SegmentModel, "backward", wrong)
    tensor = list(Subject(config).model().params)[3]
    assert wrong_rows(config, "stop-gradient") == {tensor}
    assert {"slope by layer 0's memory", "slope by layer 1's memory"} <= wrong_rows(
        config, "memory"
    )


def test_a_memory_that_can_be_written_is_named(monkeypatch):
    def adopt(states):
        memory = Memory.__new__(Memory)
        memory._states = states
        return memory

    monkeypatch.setattr(Memory, "_adopt", adopt)
    assert wrong_rows(CONFIG, "memory") == {"arrays of memory that can be written"}


def test_a_memory_that_is_no_copy_is_named(monkeypatch):
    def updated(self, hidden, mem_len, ext_len=0):
        memory = Memory(self.states)
        memory._states = np.broadcast_to(hidden[0], (len(hidden), *hidden[0].shape))
        return memory

    monkeypatch.setattr(Memory, "updated", updated)
    assert "arrays of memory that share storage" in wrong_rows(CONFIG, "memory")


def test_an_lstms_state_that_can_be_written_is_named(monkeypatch):
    def next_memory(self, memory, states):
        after = Memory(np.stack(states))
        after._states = np.stack(states)
        return after

    monkeypatch.setattr(LSTM, "next_memory", next_memory)
    assert wrong_rows(RECURRENT, "memory") == {"arrays of memory that can be written"}


@each_kind
def test_a_backward_pass_that_writes_into_memory_is_named(monkeypatch, config):
    right = SegmentModel.backward

    def writing(self, fwd, dnll=None, grads=None):
        for each in memories:
            each._states.flags.writeable = True
            each._states += 1
        return right(self, fwd, dnll, grads)

    memories = []
    forward = SegmentModel.forward

    def remembering(self, inputs, targets, memory, **options):
        memories.append(memory)
        return forward(self, inputs, targets, memory, **options)

    monkeypatch.setattr(SegmentModel, "forward", remembering)
    monkeypatch.setattr(SegmentModel, "backward", writing)
    assert "memory changed by a backward pass" in wrong_rows(config, "memory")


@each_kind
def test_a_gradient_for_memory_is_named(monkeypatch, config):
    right = SegmentModel.backward

    def generous(self, fwd, dnll=None, grads=None):
        return {**right(self, fwd, dnll, grads), "memory.0": np.zeros(3)}

    monkeypatch.setattr(SegmentModel, "backward", generous)
    assert "gradients that are no parameter's" in wrong_rows(config, "memory")
