"""What an implementation returns or declares that makes no sense, or is rare and right."""

import numpy as np
import pytest
from toy_models import WindowedLinear

from npxl import ModelConfig, NpxlError, TransformerXL
from npxl.testing import (
    CHECKS,
    BoundCheck,
    Case,
    Inapplicable,
    InvariantBroken,
    NothingShown,
    NpxlModel,
    Vacuous,
    parametrize,
)


class Masked(WindowedLinear):
    """One symbol never comes: its log-probability is -inf, and nothing is learned from it."""

    def _scores(self, inputs, state):
        scores = super()._scores(inputs, state)
        scores[..., 2] = -np.inf
        return scores


@parametrize(
    Masked(vocab_size=7),
    expected_failures={"check_stop_gradient": "symbols in memory depend on no parameter"},
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_symbol_that_never_comes_is_no_fault(check, case):
    check(case)


@pytest.mark.parametrize("name", ["check_gradients", "check_stop_gradient"])
def test_a_target_without_any_probability_has_no_derivative(name):
    case = next(
        case
        for case in (Case(lengths=(3, 4), seed=seed) for seed in range(99))
        if (case.text(Masked())[:, 4:] == 2).any()
    )
    with pytest.raises(Vacuous, match="A target has no probability"):
        CHECKS[name](Masked(), case)


class OverflowingLoss(WindowedLinear):
    """Right log-probabilities, and a loss whose softmax does not subtract the largest score."""

    def nll(self, inputs, targets, state):
        scores = self._scores(inputs, state)
        _, state = self.log_probs(inputs, state)
        of_targets = np.take_along_axis(scores, targets[..., None], 2)[..., 0]
        return np.log(np.exp(scores).sum(-1)) - of_targets, state


def test_a_loss_that_overflows_is_noticed_where_log_probabilities_do_not():
    with pytest.raises(InvariantBroken, match="finite losses when all parameters are 1"):
        CHECKS["check_large_scores"](OverflowingLoss(), Case())
    CHECKS["check_large_scores"](WindowedLinear(), Case())


class NotANumber(WindowedLinear):
    """The scores after the last token of a segment are NaN."""

    def log_probs(self, inputs, state):
        log_p, state = super().log_probs(inputs, state)
        log_p[1, -1] = np.nan
        return log_p, state


class TimeFirst(WindowedLinear):
    def log_probs(self, inputs, state):
        log_p, state = super().log_probs(inputs, state)
        return log_p.swapaxes(0, 1), state


READING = [
    "check_probabilities", "check_determinism", "check_causality", "check_exact_reach",
    "check_batch_equivariance", "check_memory_is_constant", "check_segmentation_invariance",
    "check_select",
]  # fmt: skip


@pytest.mark.parametrize("name", READING)
def test_what_is_no_number_is_said_to_be_none_by_whichever_check_reads_it(name):
    with pytest.raises(InvariantBroken, match=r"stream 1, token \d of what log_probs") as raised:
        CHECKS[name](NotANumber(), Case())
    assert raised.value.found.endswith("times NaN")
    assert "all of whose keys are hidden" in raised.value.usually


@pytest.mark.parametrize("name", READING)
def test_another_shape_is_said_to_be_one_by_whichever_check_reads_it(name):
    with pytest.raises(InvariantBroken, match="time before batch"):
        CHECKS[name](TimeFirst(), Case())


def test_losses_that_are_no_numbers_are_said_to_be_none():
    class Lost(WindowedLinear):
        def nll(self, inputs, targets, state):
            nll, state = super().nll(inputs, targets, state)
            return nll * np.where(targets == 0, np.nan, 1), state

    with pytest.raises(InvariantBroken, match="NaN"):
        CHECKS["check_reading_order"](Lost(vocab_size=2), Case())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(window=0), "window is 0, .* at least 1 or none"),
        (dict(window=-1), "window is -1, .* at least 1 or none"),
        (dict(mem_len=-1), "mem_len is -1, .* at least 0 or none"),
        (dict(n_layer=0), "n_layer is 0, .* at least 1"),
        (dict(vocab_size=2.5), "vocab_size is 2.5, .* whole number"),
        (dict(tolerance=None), "tolerance is None, but it must be what rounding changes"),
        (dict(tolerance=np.nan), "tolerance is nan, but it must be what rounding changes"),
    ],
)
@pytest.mark.parametrize("name", ["check_window", "check_memory_update", "check_gradients"])
def test_what_every_implementation_declares_is_looked_at_first(name, changes, message):
    model = WindowedLinear()
    vars(model).update(changes)
    with pytest.raises(NpxlError, match=message):
        CHECKS[name](model, Case())


def test_what_lacks_something_is_told_what():
    class Bare:
        vocab_size, window = 5, 3

        def log_probs(self, inputs, state):
            raise AssertionError

    with pytest.raises(
        NpxlError, match="of type Bare, which has no n_layer, mem_len, tolerance, s"
    ):
        CHECKS["check_window"](Bare(), Case())
    with pytest.raises(NpxlError, match="is None, which has no vocab_size"):
        BoundCheck(CHECKS["check_window"], lambda: None)(Case())


def test_a_bare_module_is_told_to_be_adapted():
    class Module:
        def __call__(self, *inputs):
            raise AssertionError

        forward = __call__

    with pytest.raises(NpxlError, match=r"of type Module, .* npxl.testing.TorchModule"):
        parametrize(Module())


# Gradients that are not known


class PartlyZero(NpxlModel):
    """Neither attention nor what goes into the rectifiers learns anything."""

    def gradients(self, *arguments):
        unlearned = ("attention.", "w_1", "b_1", "w_2")
        return {
            name: 0 * gradient if any(each in name for each in unlearned) else gradient
            for name, gradient in super().gradients(*arguments).items()
        }


ORDINARY = ModelConfig(
    vocab_size=20, n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=32, mem_len=4
)


@pytest.mark.parametrize("adapter", [NpxlModel, PartlyZero])
@pytest.mark.parametrize("name", ["check_gradients", "check_repeated_tokens"])
def test_where_few_derivatives_are_known_nothing_is_said(adapter, name):
    model = adapter(TransformerXL(ORDINARY, seed=0))  # with the usual init_std
    with pytest.raises(Vacuous, match=r"of 30 tensors the derivative is not known to a tenth"):
        CHECKS[name](model, Case(lengths=(4, 4)))


def test_a_tensor_of_which_no_case_says_anything_is_named():
    class Unsure(WindowedLinear):
        """Has a tensor whose slope is nothing but noise."""

        def __init__(self):
            super().__init__()
            self.noise = np.ones(3)

        def parameters(self):
            return {"tables": self.tables, "noise": self.noise}

        def gradients(self, *arguments):
            return {**super().gradients(*arguments), "noise": np.full(3, 1e-13)}

    assert CHECKS["check_gradients"](Unsure(), Case()).unknown == ("noise",)
    bound = BoundCheck(CHECKS["check_gradients"], Unsure())
    for seed in range(49):
        bound(Case(seed=seed))
    with pytest.raises(NothingShown, match="in none of 50 cases was the derivative of noise known"):
        bound(Case(seed=49))


def test_a_tensor_that_nothing_reads_is_no_unknown():
    class Unread(WindowedLinear):
        def parameters(self):
            return {"tables": self.tables, "unread": np.ones(3)}

        def gradients(self, *arguments):
            return {**super().gradients(*arguments), "unread": np.zeros(3)}

    assert CHECKS["check_gradients"](Unread(), Case()).unknown == ()


def test_cotangents_have_the_type_of_the_parameters():
    class Single(WindowedLinear):
        tolerance, given = 1e-4, set()

        def __init__(self):
            super().__init__()
            self.tables = self.tables.astype(np.float32)

        def gradients(self, inputs, targets, state, dnll):
            self.given.add(dnll.dtype.name)
            return super().gradients(inputs, targets, state, dnll)

    for name in ("check_gradients", "check_gradient_linearity", "check_ignored_targets"):
        CHECKS[name](Single(), Case())
    assert Single.given == {"float32"}
    half = Single()
    half.tables = half.tables.astype(np.float16)
    half.tolerance = 1e-2
    CHECKS["check_ignored_targets"](half, Case())  # which moves no parameters
    with pytest.raises(Inapplicable, match="float16"):
        CHECKS["check_gradients"](half, Case())
