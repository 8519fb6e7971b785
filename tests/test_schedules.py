"""The learning rate's corners and shape, and what a plateau makes of it."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl.config import ScheduleName, TrainConfig
from npxl.errors import NpxlError
from npxl.training.schedules import Plateau, learning_rate

every_schedule = pytest.mark.parametrize("schedule", get_args(ScheduleName))


def config(lr: float = 2.0, warmup: int = 10, ratio: float = 0.1, **others) -> TrainConfig:
    if others.get("schedule", "cosine") in ("cosine", "plateau"):
        others["lr_min_ratio"] = ratio
    return TrainConfig(lr=lr, warmup_steps=warmup, **others)


@every_schedule
def test_warm_up_is_a_line_that_starts_at_the_first_step_not_at_zero(schedule):
    rates = [learning_rate(step, config(schedule=schedule), 50) for step in range(1, 11)]
    peak = 2.0 / math.sqrt(10) if schedule == "inv_sqrt" else 2.0
    assert rates == pytest.approx([peak * step / 10 for step in range(1, 11)])


@every_schedule
@given(warmup=st.integers(1, 5000), lr=st.floats(1e-6, 10), ratio=st.floats(0.01, 1))
def test_there_is_no_jump_at_the_end_of_the_warm_up(schedule, warmup, lr, ratio):
    """Neither from the step before nor to the one after, each a small part of the way."""
    chosen = config(lr, warmup, schedule=schedule)
    state = Plateau(ratio=ratio)
    before, at, after = (
        learning_rate(warmup + i, chosen, 100 * warmup, state) if warmup + i else 0.0
        for i in (-1, 0, 1)
    )
    assert at - before == pytest.approx(at / warmup, rel=1e-9)
    assert 0 <= at - after <= at / warmup


@given(warmup=st.integers(0, 100), step=st.integers(1, 1000))
def test_the_inverse_root_is_the_originals(warmup, step):
    """Its multiplier of lr at step t; there it is the rate of the update after, here of t's own."""
    expected = step**-0.5 if step > warmup else step / warmup**1.5
    chosen = config(1.0, warmup, schedule="inv_sqrt")
    assert learning_rate(step, chosen, None) == pytest.approx(expected, rel=1e-12)


@given(warmup=st.integers(0, 20), step=st.integers(1, 1000))
def test_constant_is_lr_after_the_warm_up(warmup, step):
    """And not lr · (W − 1) / W, as in the original, which sets none at the warm-up's last step."""
    chosen = config(3.0, warmup, schedule="constant")
    expected = 3.0 if step >= warmup else 3.0 * step / warmup
    assert learning_rate(step, chosen, None) == pytest.approx(expected, rel=1e-12)


def test_cosine_starts_at_the_end_of_the_warm_up_and_ends_at_the_last_step():
    assert learning_rate(10, config(), 50) == 2.0
    assert learning_rate(20, config(), 50) == pytest.approx(
        2.0 * (0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2)
    )
    assert learning_rate(30, config(), 50) == pytest.approx(2.0 * (0.1 + 0.9 / 2))
    assert learning_rate(50, config(), 50) == pytest.approx(0.2)


def test_without_warm_up_the_cosine_begins_at_once():
    assert learning_rate(1, config(warmup=0), 2) == pytest.approx(2.0 * (0.1 + 0.9 / 2))
    assert learning_rate(1, config(warmup=0), 1) == pytest.approx(0.2)


def test_a_run_shorter_than_its_warm_up_never_leaves_it():
    assert learning_rate(4, config(), 4) == pytest.approx(0.8)


def test_without_a_number_of_steps_the_cosine_stays_where_the_warm_up_ends():
    assert learning_rate(3, config(), None) == learning_rate(3, config(), 50)
    assert learning_rate(10_000, config(), None) == 2.0


@pytest.mark.parametrize("schedule", ["inv_sqrt", "plateau", "constant"])
def test_the_other_schedules_do_not_ask_for_the_number_of_steps(schedule):
    chosen, state = config(schedule=schedule), Plateau(0.25)
    for step in range(1, 51):
        rates = {learning_rate(step, chosen, steps, state) for steps in (None, 50, 10**6)}
        assert len(rates) == 1


def test_without_a_state_the_plateau_begins():
    assert learning_rate(50, config(schedule="plateau"), None) == 2.0
    assert learning_rate(50, config(schedule="plateau"), None, Plateau(0.125)) == 0.25


losses = st.lists(st.sampled_from([1.0, 0.99995, 0.9998, 0.9, 0.5, 0.500001, 2.0]), max_size=20)


@given(
    losses=losses,
    patience=st.integers(0, 3),
    decay_rate=st.sampled_from([0.5, 0.1, 0.9]),
    ratio=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_the_plateau_is_torchs(losses, patience, decay_rate, ratio):
    torch = pytest.importorskip("torch")
    chosen = config(
        warmup=0, ratio=ratio, schedule="plateau", patience=patience, decay_rate=decay_rate
    )
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=decay_rate, patience=patience, min_lr=2.0 * ratio, eps=0.0
    )
    state = Plateau()
    for step, loss in enumerate(losses, start=1):
        state = state.after_evaluation(loss, step, chosen)
        theirs.step(loss)
        lr = learning_rate(step + 1, chosen, None, state)
        assert lr == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


@given(losses=losses, patience=st.integers(0, 3), warmup=st.integers(0, 10))
def test_the_plateau_falls_when_patience_is_at_an_end(losses, patience, warmup):
    """Told by all losses at once: a fall where the last ones in a row are none better."""
    chosen = config(warmup=warmup, ratio=0.0, schedule="plateau", patience=patience)
    state, falls, in_a_row, best = Plateau(), 0, 0, math.inf
    for step, loss in enumerate(losses, start=1):
        if loss < best * 0.9999:
            best, in_a_row = loss, 0
        elif step > warmup:
            in_a_row += 1
        if in_a_row == patience + 1:
            falls, in_a_row = falls + 1, 0
        state = state.after_evaluation(loss, step, chosen)
        assert state == Plateau(0.5**falls, best, in_a_row)


def test_the_plateau_has_a_floor():
    chosen = config(warmup=0, ratio=0.2, schedule="plateau")
    state = Plateau(best=1.0)
    ratios = []
    for step in range(1, 6):
        state = state.after_evaluation(1.0, step, chosen)
        ratios.append(state.ratio)
    assert ratios == [0.5, 0.25, 0.2, 0.2, 0.2]


def test_a_state_does_not_change_in_place():
    state = Plateau(best=1.0)
    before = replace(state)
    state.after_evaluation(2.0, 5, config(warmup=0, schedule="plateau"))
    assert state == before


@given(
    warmup=st.integers(0, 30),
    steps=st.integers(1, 60),
    lr=st.floats(1e-6, 10),
    ratio=st.floats(0, 1),
)
def test_the_cosine_rises_to_lr_and_falls_to_the_minimum(warmup, steps, lr, ratio):
    chosen = config(lr, warmup, ratio)
    rates = [learning_rate(step, chosen, steps) for step in range(1, steps + 1)]
    top = min(warmup, steps)
    assert all(a <= b for a, b in pairwise(rates[:top]))
    assert all(a >= b * (1 - 1e-12) for a, b in pairwise(rates[top:]))
    assert max(rates) <= lr * (1 + 1e-12)
    if steps > warmup:
        assert rates[-1] == pytest.approx(lr * ratio, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("step", [0, -1, 51])
def test_a_step_outside_the_run_is_an_error(step):
    with pytest.raises(NpxlError, match=f"step is {step}"):
        learning_rate(step, config(), 50)
