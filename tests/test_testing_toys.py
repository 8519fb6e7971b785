"""Single checks on toys with one peculiarity: what is seen, and what one is told to do about it."""

import numpy as np
import pytest
from toy_models import DropsEmbeddings, FadingAverage, RelativeValues, WindowedLinear

from npxl.invariants import CHECKS, Case, Inapplicable, InvariantBroken

check_batch_size_mismatch = CHECKS["check_batch_size_mismatch"]
check_dropout_scale = CHECKS["check_dropout_scale"]


# A state of other streams


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_a_broadcast_memory_is_seen_with_any_number_of_streams(batch_size):
    with pytest.raises(InvariantBroken, match="an error for inputs of 2 streams with a state of 1"):
        check_batch_size_mismatch(FadingAverage(), Case(batch_size=batch_size))


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_a_memory_of_so_many_streams_is_seen_too(batch_size):
    class OfTheFirst(WindowedLinear):
        """Of more streams than one, goes on with any."""

        def log_probs(self, inputs, state):
            if len(state) > 1:
                state = state[np.arange(len(inputs)) % len(state)]
            return super().log_probs(inputs, state)

    model = OfTheFirst()
    if batch_size == 1:
        check_batch_size_mismatch(model, Case(batch_size=1))
        return
    with pytest.raises(InvariantBroken, match=f"streams with a state of {batch_size}"):
        check_batch_size_mismatch(model, Case(batch_size=batch_size))


@pytest.mark.parametrize("batch_size", [1, 2])
def test_an_error_for_any_second_segment_is_none_about_its_size(batch_size):
    class Once(WindowedLinear):
        def log_probs(self, inputs, state):
            if state.size:
                raise NotImplementedError("a second segment")
            return super().log_probs(inputs, state)

    with pytest.raises(NotImplementedError, match="a second segment"):
        check_batch_size_mismatch(Once(), Case(batch_size=batch_size, lengths=(3,)))


def test_tokens_that_are_read_again_leave_something_to_go_on_from():
    class ReadsAgain(WindowedLinear):
        ext_len = 2
        longest = 0

        def log_probs(self, inputs, state):
            ReadsAgain.longest = max(ReadsAgain.longest, state.shape[1])
            log_p, _ = super().log_probs(inputs, state)
            kept = self._text(inputs, state)[:, : state.shape[1] + max(0, inputs.shape[1] - 2)]
            return log_p, kept[:, -self.mem_len :]

    assert check_batch_size_mismatch(ReadsAgain(), Case(lengths=(1,))).compared == 2
    assert ReadsAgain.longest > 0


# Layers that are no average


@pytest.mark.parametrize("name", ["check_empty_start", "check_attention_averages"])
def test_of_values_that_depend_on_distances_the_remedy_is_named(name):
    with pytest.raises(InvariantBroken) as raised:
        CHECKS[name](RelativeValues(averages=True), Case())
    assert "Shaw et al. 2018, eq. 3" in raised.value.usually
    assert "declare averages = False" in raised.value.usually
    with pytest.raises(Inapplicable, match="averages = False"):
        CHECKS[name](RelativeValues(), Case())


# Dropout of which something does not show


def sinusoids(length, width=8):
    angles = np.arange(length)[:, None] / 10.0 ** np.arange(width // 2)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)  # [T, d]


@pytest.mark.parametrize("lengths", [(1,), (8,), (40, 3)])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("scale", [1 / 0.7, 1])
def test_what_is_added_after_dropout_is_not_taken_for_no_dropout(lengths, batch_size, scale):
    case = Case(batch_size=batch_size, lengths=lengths)
    for places in (0.5, sinusoids(case.length)):
        with pytest.raises(Inapplicable, match="is added after dropout") as raised:
            check_dropout_scale(DropsEmbeddings(places, scale), case)
        assert "are never 0" in str(raised.value)
        assert "let `embeddings` return what comes out of dropout" in str(raised.value)


@pytest.mark.parametrize("seed", range(10))
def test_a_scale_shows_where_nothing_is_added(seed):
    case = Case(seed=seed)
    finding = check_dropout_scale(DropsEmbeddings(), case)
    assert finding.figure <= finding.tolerance
    for wrong in (1, 0.7, 1 / 0.3):
        with pytest.raises(InvariantBroken):
            check_dropout_scale(DropsEmbeddings(scale=wrong), case)
    of_some = np.array([1, 1 / 0.7] * 4)
    with pytest.raises(InvariantBroken, match="that are kept and scaled by"):
        check_dropout_scale(DropsEmbeddings(scale=of_some), case)


def test_without_dropout_none_is_dropped():
    model = DropsEmbeddings(scale=1)
    model.rate = -1
    with pytest.raises(Inapplicable, match="none is dropped"):
        check_dropout_scale(model, Case())
    half = DropsEmbeddings(scale=np.array([1, 1 / 0.7] * 4))
    half.rate = np.array([-1, 0.3] * 4)
    with pytest.raises(InvariantBroken):
        check_dropout_scale(half, Case())
