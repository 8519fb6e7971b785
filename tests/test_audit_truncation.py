"""The audit's proof that the gradient stops at the memory, and what that leaves out."""

import numpy as np
import pytest

from npxl import Memory, ModelConfig, TransformerXL, reference
from npxl.audit import audit, scaling

CONFIG = ModelConfig(vocab_size=4)
SMALLER = {"n_head": 1, "d_model": 4, "d_head": 2, "d_inner": 3, "mem_len": 3}


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    """Sooner done."""
    for name, size in SMALLER.items():
        monkeypatch.setitem(scaling._LARGEST, name, size)


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
    ],
)
def test_truncation_of_many_forms(config):
    report = audit(config, seed=2, only=["truncation"])
    assert report.passed, report.verdict
    rows = report["truncation/left-out"]
    total = rows["all"].figures
    assert 1e-4 < total["left out"].value < 2
    assert 0.3 < total["cosine"].value < 1
    names = [name for name in rows if name.startswith(f"layers.{report.subject.small.n_layer - 1}")]
    for name in [*names, "softmax.bias"]:
        assert rows[name].figures["left out"].value < 1e-12
    assert rows["both segments read as one"].applies == config.encodes_distances


@pytest.mark.parametrize("config", [ModelConfig(mem_len=0), ModelConfig(attn_window=1)])
def test_nothing_to_truncate(config):
    report = audit(config, only=["truncation"])
    assert report.passed
    assert not any(row.applies for outcome in report.outcomes for row in outcome.results)


def test_what_is_left_out_is_what_the_numbers_say():
    """Of the total gradient by differences of both segments, in one tensor."""
    report = audit(CONFIG, only=["truncation/left-out"])
    for row in list(report["truncation/left-out"].values())[:-1]:
        left_out, length, cosine = (figure.value for figure in row.figures.values())
        # |g∞ − g|² = |g∞|² + |g|² − 2 ⟨g, g∞⟩
        assert left_out**2 == pytest.approx(1 + length**2 - 2 * length * cosine, abs=1e-12)


def test_a_memory_that_is_not_constant_is_named(monkeypatch):
    """A gradient that comes through the memory, as if segments had been read as one."""
    texts = []
    forward, log_probs = TransformerXL.forward, TransformerXL.log_probs

    def reading(self, inputs, memory):
        texts.append(inputs)
        return log_probs(self, inputs, memory)

    def without_memory(self, inputs, targets, memory):
        """Everything read so far is read again as a part of the segment."""
        text = np.concatenate([*texts, inputs], axis=1)
        return forward(self, text, targets, self.init_memory(len(text)))

    monkeypatch.setattr(TransformerXL, "log_probs", reading)
    monkeypatch.setattr(TransformerXL, "forward", without_memory)
    wrong = wrong_rows(CONFIG, "stop-gradient")
    assert {"embedding.weight", "layers.0.attention.w_v", "attention.u"} <= wrong
    assert not any(name.startswith(("layers.1", "softmax")) for name in wrong)


def test_a_memory_that_does_not_matter_is_named(monkeypatch):
    forward = reference.forward

    def forgetful(params, config, inputs, targets, memory, *rest):
        return forward(params, config, inputs, targets, [m.real.copy() for m in memory], *rest)

    monkeypatch.setattr(reference, "forward", forgetful)
    assert "slope by layer 0's memory" in wrong_rows(CONFIG, "memory")
    assert "layers.0.attention.w_q" in wrong_rows(CONFIG, "stop-gradient")


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


def test_a_backward_pass_that_writes_into_memory_is_named(monkeypatch):
    right = TransformerXL.backward

    def writing(self, fwd, dnll=None, grads=None):
        for each in memories:
            each._states.flags.writeable = True
            each._states += 1
        return right(self, fwd, dnll, grads)

    memories = []
    forward = TransformerXL.forward

    def remembering(self, inputs, targets, memory, **options):
        memories.append(memory)
        return forward(self, inputs, targets, memory, **options)

    monkeypatch.setattr(TransformerXL, "forward", remembering)
    monkeypatch.setattr(TransformerXL, "backward", writing)
    assert "memory changed by a backward pass" in wrong_rows(CONFIG, "memory")


def test_a_gradient_for_memory_is_named(monkeypatch):
    right = TransformerXL.backward

    def generous(self, fwd, dnll=None, grads=None):
        return {**right(self, fwd, dnll, grads), "memory.0": np.zeros(3)}

    monkeypatch.setattr(TransformerXL, "backward", generous)
    assert "gradients that are no parameter's" in wrong_rows(CONFIG, "memory")
