"""The learning rate's corners and shape."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl.config import TrainConfig
from npxl.errors import NpxlError
from npxl.training.schedules import learning_rate


def config(lr: float = 2.0, warmup: int = 10, ratio: float = 0.1) -> TrainConfig:
    return TrainConfig(lr=lr, warmup_steps=warmup, lr_min_ratio=ratio)


def test_warm_up_is_a_line_that_starts_at_the_first_step_not_at_zero():
    rates = [learning_rate(step, config(), 50) for step in range(1, 11)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0])


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


def test_without_a_number_of_steps_the_rate_stays_where_the_warm_up_ends():
    assert learning_rate(3, config(), None) == learning_rate(3, config(), 50)
    assert learning_rate(10_000, config(), None) == 2.0


@given(
    warmup=st.integers(0, 30),
    steps=st.integers(1, 60),
    lr=st.floats(1e-6, 10),
    ratio=st.floats(0, 1),
)
def test_it_rises_to_lr_and_falls_to_the_minimum(warmup, steps, lr, ratio):
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
