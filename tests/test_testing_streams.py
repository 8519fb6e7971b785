"""The stateful test of streams: what it says of an implementation whose memory changes nothing."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from support import model_for
from toy_models import FadingAverage, Indifferent, WindowedLinear

from npxl import ModelConfig
from npxl.testing import InvariantBroken, NothingShown, NpxlModel, stream_machine

SMALL = dict(vocab_size=5, n_layer=1, n_head=1, d_model=6, d_head=3, d_inner=5)


class Faint(WindowedLinear):
    """So small that rounding hides whether it remembers anything, which it does not."""

    tolerance = 1e-4
    memory = None

    def __init__(self):
        super().__init__()
        self.tables *= 1e-5

    def log_probs(self, inputs, state):
        log_p, _ = super().log_probs(inputs, state[:, :0])
        return log_p, self._text(inputs, state)[:, -self.mem_len :]

    def select(self, state, rows):
        return np.zeros_like(state[rows])


class OneKey(WindowedLinear):
    """Sees its own symbol alone, and declares it in one way or the other."""

    def __init__(self, window=1, mem_len=0):
        super().__init__(window)
        self.tables[1:] = 0
        self.mem_len = mem_len

    def log_probs(self, inputs, state):
        return super().log_probs(inputs, state)[0], self._text(inputs, state)[:, :0]


def run(make, max_examples=20):
    stream_machine(make, max_examples=max_examples).TestCase("runTest").runTest()


@pytest.mark.parametrize("make", [Indifferent, Faint, lambda: OneKey(window=2, mem_len=1)])
def test_where_memory_changes_no_score_nothing_is_shown(make):
    with pytest.raises(NothingShown, match=r"memory change a score by more than .* nats") as raised:
        run(make)
    assert "standard deviation of about 0.4" in str(raised.value)
    assert "declare mem_len = 0" in str(raised.value)


def test_how_much_it_changes_is_said():
    with pytest.raises(NothingShown, match=r"by more than 0 nats, and 0.0001 is rounding"):
        run(Faint)


@pytest.mark.parametrize(
    "make",
    [
        WindowedLinear,
        FadingAverage,
        OneKey,
        lambda: OneKey(window=1, mem_len=4),
        lambda: NpxlModel(model_for(ModelConfig(**SMALL, mem_len=3, attn_window=1))),
        # The one token that it looks back at is read again.
        lambda: NpxlModel(model_for(ModelConfig(**SMALL, mem_len=3, attn_window=2, ext_len=1))),
    ],
)
def test_who_remembers_or_declares_no_memory_is_not_accused(make):
    run(make, max_examples=10)


def test_one_symbol_again_and_again_accuses_nobody():
    machine = stream_machine(FadingAverage)
    program = machine()
    program.begin(batch_size=1)
    for _ in range(3):
        program.read(length=1, seed=0)
    assert machine.effect is None
    program.read(length=3, seed=1)
    assert machine.effect > 0.1


def test_a_second_run_is_judged_by_itself():
    makes = [WindowedLinear, Indifferent]
    machine = stream_machine(lambda: makes[0](), max_examples=10)
    machine.TestCase("runTest").runTest()
    makes.pop(0)
    with pytest.raises(NothingShown):
        machine.TestCase("runTest").runTest()


def test_a_machine_with_a_rule_more_is_judged_and_has_its_rule():
    class Watched(stream_machine(Indifferent, max_examples=10)):
        watched = False

        @rule(_=st.none())
        def watch(self, _):
            type(self).watched = True

    with pytest.raises(NothingShown, match="Watched: in no program"):
        Watched.TestCase("runTest").runTest()
    assert Watched.watched


def test_what_is_broken_is_said_first():
    class Mixed(Indifferent):
        def log_probs(self, inputs, state):
            log_p, state = super().log_probs(inputs, state)
            return log_p + np.arange(len(inputs))[:, None, None], state

    with pytest.raises(InvariantBroken, match="alone, from its beginning"):
        run(Mixed)
