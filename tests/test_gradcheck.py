"""Every gradient of the whole model, and that the checker would notice a wrong one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import model_for, tokens

import npxl
from npxl import LSTMConfig, MaskKey, ModelConfig, NpxlError
from npxl.audit.gradient_report import Error
from npxl.audit.gradients import INPUT, gradcheck
from npxl.config import with_options
from npxl.layers import attention, feed_forward
from npxl.models import decoder_layer, segment_model
from npxl.testing.strategies import ATTN_TYPES, configs

CONFIG = ModelConfig(vocab_size=7, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=8, mem_len=5)
VANILLA = replace(CONFIG, mem_len=0, attn_type="al-rfou", clamp_len=4)
RECURRENT = LSTMConfig(vocab_size=7, n_layer=2, d_model=6)


def segment(config, batch_size, length, seed=0, m=3):
    """A model, a segment and the memory of m tokens before it."""
    model = model_for(config, seed)
    memory = model.init_memory(batch_size)
    if m:
        before = tokens((batch_size, m), seed + 1, config.vocab_size)
        reads = with_options(config, mem_len=m, ext_len=0)
        _, memory = type(model)(reads, params=model.params).log_probs(before, memory)
    inputs = tokens((batch_size, config.ext_len + length), seed + 2, config.vocab_size)
    targets = tokens((batch_size, length), seed + 3, config.vocab_size)
    return model, inputs, targets, memory


# Two numbers, normalised, are ±1 whatever they were: at d_model 2 gradients vanish.
@given(
    config=configs(d_model=st.sampled_from([4, 6, 8])),
    batch_size=st.integers(1, 3),
    length=st.integers(1, 5),
    m=st.integers(0, 5),
    seed=st.integers(0, 10_000),
)
@example(config=CONFIG, batch_size=1, length=1, m=0, seed=0)
@example(config=replace(CONFIG, mem_len=0), batch_size=2, length=3, m=0, seed=0)
@example(config=replace(CONFIG, attn_window=1), batch_size=2, length=3, m=2, seed=0)
@example(config=replace(CONFIG, n_head=1), batch_size=1, length=3, m=5, seed=0)
@example(config=VANILLA, batch_size=2, length=4, m=0, seed=0)
def test_every_gradient_is_right(config, batch_size, length, m, seed):
    model, inputs, targets, memory = segment(config, batch_size, length, seed, m)
    report = gradcheck(model, inputs, targets, memory, MaskKey(seed), entries=3, seed=seed)
    assert report.passed, f"\n{report}"
    assert {check.name for check in report.tensors} == {INPUT, *model.params}


@pytest.mark.parametrize(
    ("config", "m"),
    [
        *((replace(CONFIG, attn_type=attn_type, clamp_len=4), 3) for attn_type in ATTN_TYPES),
        (VANILLA, 0),
        (RECURRENT, 3),
    ],
)
def test_every_entry_of_one_model(config, m):
    model, inputs, targets, memory = segment(config, 2, 4, m=m)
    report = gradcheck(model, inputs, targets, memory, entries=None)
    assert report.passed, f"\n{report}"
    assert sum(check.entries for check in report.tensors) == model.params.flat.size + 2 * 4 * 6
    assert report.worst_central.best_central.relative < 1e-8
    assert report.worst_complex.complex_step.relative < 1e-12
    # The error falls as the square of the step: what is left is truncation, not a wrong gradient.
    assert all(1.7 < check.order < 2.3 for check in report.tensors)


@pytest.mark.parametrize(
    ("module", "function", "wrong_tensors"),
    [
        (attention, "attend_backward", {"layers.0.attention.w_q", "attention.u"}),
        (feed_forward, "linear_backward", {"layers.1.feed_forward.w_1"}),
        (decoder_layer, "layer_norm_backward", {"layers.0.attention_norm.gain", INPUT}),
        (segment_model, "adaptive_softmax_backward", {"layers.1.feed_forward.w_2"}),
        (segment_model, "embedding_backward", {"embedding.weight"}),
    ],
)
def test_a_wrong_backward_pass_is_found_and_named(monkeypatch, module, function, wrong_tensors):
    right = getattr(module, function)

    def wrong(gradient, *rest):
        gradient[...] *= 1 + 1e-6
        return right(gradient, *rest)

    model, inputs, targets, memory = segment(CONFIG, 2, 4)
    monkeypatch.setattr(module, function, wrong)
    report = gradcheck(model, inputs, targets, memory, entries=4)
    assert not report.passed
    assert wrong_tensors <= {check.name for check in report.failures}
    assert "WRONG" in str(report)


def test_a_gradient_that_is_not_a_number_is_wrong(monkeypatch):
    model, inputs, targets, memory = segment(CONFIG, 1, 2)
    backward = type(model).backward

    def spoiled(self, *arguments):
        grads = backward(self, *arguments)
        grads["layers.0.attention.w_r"][0, 0] = np.nan
        return grads

    monkeypatch.setattr(type(model), "backward", spoiled)
    report = gradcheck(model, inputs, targets, memory, entries=None)
    assert [check.name for check in report.failures] == ["layers.0.attention.w_r"]
    assert [(worst.name, worst.error) for worst in report.worst] == [
        ("layers.0.attention.w_r", math.inf)
    ] * 3


def test_steps_that_cross_a_kink_are_left_out_and_counted():
    model, inputs, targets, memory = segment(CONFIG, 1, 1, m=0)
    # Put a unit of the last layer a hair above its kink.
    hidden = model.forward(inputs, targets, memory).stack.layers[-1].feed_forward.x[0, 0]
    w_1, b_1 = (model.params[f"layers.1.feed_forward.{name}"] for name in ("w_1", "b_1"))
    b_1[0] = -w_1[0] @ hidden + 1e-7
    report = gradcheck(model, inputs, targets, memory, entries=None)
    assert report.kink == pytest.approx(1e-7, rel=1e-6)
    assert report["layers.1.feed_forward.b_1"].crossings == (1, 1, 1, 1)
    assert report.passed, f"\n{report}"


def test_a_float32_model_is_checked_at_its_float64_values_and_left_alone():
    model, inputs, targets, memory = segment(CONFIG, 2, 3)
    single = model.astype(np.float32)
    before = single.params.flat.copy()
    memory = npxl.Memory(memory.states.astype(np.float32))
    assert gradcheck(single, inputs, targets, memory, entries=2).passed
    np.testing.assert_array_equal(single.params.flat, before)
    assert single.dtype == np.float32


def test_same_seed_same_report():
    model, inputs, targets, memory = segment(CONFIG, 2, 3)
    first, second = (gradcheck(model, inputs, targets, memory, entries=2, seed=5) for _ in range(2))
    assert first == second
    assert first != gradcheck(model, inputs, targets, memory, entries=2, seed=6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": (1e-5,)}, "descending"),
        ({"steps": (1e-3, 1e-3)}, "descending"),
        ({"steps": (1e-3, 0.0)}, "positive"),
        ({"entries": 0}, "entries is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"rng": 5}, "rng is 5"),
        ({"memory": None}, "memory"),
        ({"memory": npxl.Memory(np.zeros((2, 3, 4, 6)))}, r"memory.*\(2, 3, 4, 6\)"),
        ({"inputs": [[7]]}, "inputs"),
        ({"inputs": [[0.5]]}, "inputs"),
        ({"targets": [[1, 2]]}, "targets"),
        ({"dnll": np.ones((2, 1))}, "dnll"),
    ],
)
def test_what_cannot_be_checked_is_an_error_of_the_user(changes, message):
    model, inputs, targets, memory = segment(CONFIG, 1, 1)
    arguments = {"inputs": inputs, "targets": targets, "memory": memory, **changes}
    with pytest.raises(NpxlError, match=message):
        gradcheck(model, **arguments)


def test_a_tensor_that_is_not_there():
    report = gradcheck(*segment(CONFIG, 1, 1), entries=1)
    assert report["softmax.bias"].name == "softmax.bias"
    with pytest.raises(KeyError, match="nope"):
        report["nope"]


def test_no_central_difference_is_no_failure_but_the_others_must_be_there():
    report = gradcheck(*segment(CONFIG, 1, 1), entries=1)
    nothing = Error(math.nan, math.nan, ())
    check = replace(report.tensors[0], central=(nothing, nothing), extrapolated=nothing)
    assert replace(report, tensors=(check,)).passed
    for spoiled in (
        replace(check, complex_step=nothing),
        replace(check, direction=math.nan),
        replace(check, extrapolated=Error(math.inf, math.inf, (0,))),
    ):
        assert not replace(report, tensors=(spoiled,)).passed
    assert replace(report, tensors=(check, *report.tensors[1:])).worst_central.name != check.name


def test_a_segment_with_targets_to_ignore_is_checked():
    config = replace(CONFIG, cutoffs=(3, 5), div_val=2)
    model, inputs, targets, memory = segment(config, 2, 4)
    targets[0, 1:3] = targets[1, 0] = npxl.IGNORE
    report = gradcheck(model, inputs, targets, memory, entries=3)
    assert report.passed, f"\n{report}"


IGNORED = np.full((2, 3), npxl.IGNORE)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (CONFIG, {"targets": IGNORED}, "targets are all -1, npxl.IGNORE, .* some that are scored"),
        (RECURRENT, {"targets": IGNORED}, "targets are all -1"),
        (replace(CONFIG, cutoffs=(3, 5), div_val=2), {"targets": IGNORED}, "targets are all -1"),
        (CONFIG, {"dnll": np.zeros((2, 3))}, "dnll is 0 .* pass one that is not"),
        (
            CONFIG,
            {"targets": [[1, -1, 2], [3, -1, 4]], "dnll": [[0, 5, 0], [0, 7, 0]]},
            "dnll is 0 wherever a target is scored",
        ),
        (replace(CONFIG, vocab_size=1), {}, "No loss changes with the parameters"),
    ],
)
def test_where_every_gradient_is_zero_nothing_was_shown(config, changes, message):
    model, inputs, targets, memory = segment(config, 2, 3)
    arguments = {"inputs": inputs, "targets": targets, "memory": memory, **changes}
    with pytest.raises(NpxlError, match=message) as raised:
        gradcheck(model, **arguments, entries=1)
    assert "every gradient is zero, as measured, and nothing was shown" in str(raised.value)


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e-200])
def test_zeros_are_wrong_where_something_was_measured(monkeypatch, size):
    model, inputs, targets, memory = segment(CONFIG, 2, 3)
    monkeypatch.setattr(type(model), "backward", lambda self, *_: self.params.zeros_like())
    monkeypatch.setattr(
        type(model), "input_gradient", lambda self, fwd, dnll: np.zeros((*inputs.shape, 6))
    )
    report = gradcheck(model, inputs, targets, memory, dnll=np.full((2, 3), size), entries=2)
    assert len(report.failures) == len(report.tensors)
    assert report.zeros == ()


def test_a_gradient_of_targets_to_ignore_is_wrong_and_not_nothing(monkeypatch):
    model, inputs, _, memory = segment(CONFIG, 2, 3)
    backward = type(model).backward

    def spoiled(self, *arguments):
        grads = backward(self, *arguments)
        grads["softmax.bias"][...] += 1e-9
        return grads

    monkeypatch.setattr(type(model), "backward", spoiled)
    report = gradcheck(model, inputs, IGNORED, memory, entries=1)
    assert [check.name for check in report.failures] == ["softmax.bias"]


def test_gradients_that_are_zero_are_counted_apart():
    report = gradcheck(*segment(CONFIG, 2, 3), entries=1)
    n = len(report.tensors)
    assert report.zeros == ()
    assert str(report).rstrip().endswith(f"All {n} gradients are right.")

    # A single key has the weight 1, whatever the scores: zero up to rounding.
    alone = gradcheck(*segment(replace(CONFIG, n_layer=1, attn_window=1), 2, 3), entries=1)
    scores = {"attention.u", "attention.v"} | {f"layers.0.attention.w_{x}" for x in "qkr"}
    assert alone.passed
    assert {check.name for check in alone.zeros} == scores
    verdict = alone.summary().splitlines()[-1]
    n = len(alone.tensors)
    assert verdict.startswith(f"{n - 5} gradients are right; 5 are zero, as measured, and no more")
    assert all(name in verdict for name in scores)

    two = (alone.zeros[0], max(alone.tensors, key=lambda check: check.largest))
    assert replace(alone, tensors=two).summary().splitlines()[-1] == (
        f"1 gradient is right; 1 is zero, as measured, and no more is known: {two[0].name}."
    )


def test_a_cluster_that_nothing_is_of_has_gradients_of_zero():
    model, inputs, targets, memory = segment(
        replace(CONFIG, cutoffs=(3,), tie_weight=False, div_val=2), 2, 3
    )
    report = gradcheck(model, inputs % 3, targets % 3, memory, entries=1)
    assert report.passed, f"\n{report}"
    zeros = {check.name for check in report.zeros if check.largest == 0}
    assert {"embedding.1.weight", "softmax.1.weight", "softmax.1.projection"} <= zeros
    assert f"{len(report.zeros)} are zero, as measured" in report.summary()


@pytest.mark.parametrize(("size", "passed"), [(0.1, True), (2.0, False)])
def test_errors_of_a_gradient_that_vanishes_are_relative_to_the_largest(monkeypatch, size, passed):
    model, inputs, targets, memory = segment(replace(CONFIG, attn_window=1), 2, 3)
    backward = type(model).backward

    def spoiled(self, *arguments):
        grads = backward(self, *arguments)
        largest = max(
            np.abs(grad).max() for grad in [*grads.values(), self.input_gradient(*arguments)]
        )
        grads["attention.u"][...] += size * 1e-11 * 1e-4 * largest
        return grads

    monkeypatch.setattr(type(model), "backward", spoiled)
    report = gradcheck(model, inputs, targets, memory, entries=None)
    assert report.passed == passed
    assert report["attention.u"].complex_step.relative == pytest.approx(size * 1e-11, rel=1e-2)
