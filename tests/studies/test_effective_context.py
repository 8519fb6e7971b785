"""RECL from losses: against the appendix's text in plain loops, and where the answer is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl.studies.effective_context import (
    baseline,
    effective_context,
    gain,
    hardest,
    interval,
    own_change,
    resampled,
)


def naive(losses, i, r, threshold):
    """Appendix C, step by step: losses[m][c][t] as nested lists."""

    def b(c, t):
        return min(model[c][t] for model in losses)

    def f(c, longer):
        places = sorted(range(len(losses[i][c])), key=lambda t: (-b(c, t), t))
        chosen = places[: max(1, round(r * len(places)))]
        return sum(min(b(c, t), losses[i][longer][t]) for t in chosen) / len(chosen)

    def g(c, longer):
        return (math.exp(f(c, c)) - math.exp(f(c, longer))) / math.exp(f(c, c))

    c = 0
    while c + 1 < len(losses[i]):
        if g(c, c + 1) < threshold:
            return c, True
        c += 1
    return c, False


@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 30),
    st.sampled_from([0.1, 0.37, 0.5, 1.0]),
    st.sampled_from([0.0, 0.01, 0.05]),
    st.integers(0, 2**32 - 1),
)
def test_the_algorithm_is_the_appendix_s(n_models, n_contexts, n_places, r, threshold, seed):
    draw = np.random.default_rng(seed)
    falling = np.linspace(0, -0.03 * n_contexts, n_contexts)[:, None]
    losses = 2 + falling + 0.05 * draw.standard_normal((n_models, n_contexts, n_places))
    for i in range(n_models):
        found = effective_context(losses, i, r, threshold)
        assert found == naive(losses.tolist(), i, r, threshold)


def curve(until, start=3.0, n_contexts=9, n_places=20):
    """Losses [C, T] that fall by 0.05 nats with every step of context until one."""
    steps = np.minimum(np.arange(n_contexts), until)
    return np.tile((start - 0.05 * steps)[:, None], (1, n_places))


@pytest.mark.parametrize("r", [0.1, 0.5, 1.0])
def test_a_model_s_length_is_where_it_stops_to_gain(r):
    losses = np.array([curve(3), curve(5)])
    assert gain(losses, 0, 1, 0, r) == pytest.approx(1 - math.exp(-0.05))
    assert effective_context(losses, 0, r) == (3, True)
    assert effective_context(losses, 1, r) == (5, True)


def test_a_gain_over_oneself_is_none_over_the_best_of_the_group():
    losses = np.array([curve(8, start=4.0), curve(2)])
    assert effective_context(losses, 0, 1.0) == (0, True)
    assert effective_context(losses[:1], 0, 1.0) == (8, False)  # alone, it is its own baseline


def test_only_the_hardest_places_count():
    losses = curve(2)[None]
    losses[:, :, 7] = curve(6, start=5.0)[:, 0]  # one place of twenty
    assert hardest(baseline(losses[:, 0]), 0.05).tolist() == [7]
    assert effective_context(losses, 0, 0.05) == (6, True)
    assert effective_context(losses, 0, 1.0) == (2, True)


def test_without_an_end_the_longest_context_is_a_lower_bound():
    assert effective_context(curve(100)[None], 0, 1.0) == (8, False)


def test_without_noise_every_text_gives_the_same_length():
    losses = np.array([curve(3, n_places=200), curve(5, n_places=200)])
    found = resampled(losses, 0.5, n_texts=20)
    assert found.shape == (20, 2)
    assert (found == [3, 5]).all()
    assert [interval(each) for each in found.T] == [(3, 3), (5, 5)]
    assert (resampled(losses[:, :, :2], 1.0, 5) == [3, 5]).all()  # fewer positions than blocks


def test_an_interval_is_wide_where_the_length_hangs_on_a_part_of_the_text():
    losses = curve(2, n_places=300)[None]
    losses[:, :, :10] = curve(6, start=3.5, n_places=10)  # one block of thirty
    assert interval(resampled(losses, 1.0, 200)[:, 0]) == (2, 2)
    losses[:, 3:, :10] -= 0.5 * np.arange(1, 7)[:, None]  # which gains a lot by more
    found = resampled(losses, 1.0, 200)[:, 0]
    low, high = interval(found)
    assert low == 2
    assert high > 2
    assert (resampled(losses, 1.0, 200)[:, 0] == found).all()


@pytest.mark.parametrize("r", [0.1, 0.5, 1.0])
def test_changes_by_chance_gain_and_are_no_change_of_the_own_loss(r):
    """A minimum takes what has become better: the whole gain is its doing, wherever it is taken."""
    draw = np.random.default_rng(3)
    hard = 2 + draw.random(20_000)
    losses = (hard + 0.2 * draw.standard_normal((5, hard.size)))[None]  # anew after each context
    for step in range(4):
        assert gain(losses, step, step + 1, 0, r) > 0.05
        own = own_change(losses, step, step + 1, 0, r)
        assert abs(own.mean) < 2 * own.error < 0.05


def test_the_own_change_is_that_of_places_that_are_hard_after_other_contexts():
    draw = np.random.default_rng(4)
    losses = 2 + draw.random((2, 4, 400))
    hard = draw.choice(400, 100, replace=False)
    losses[:, 2:, hard] += 5
    losses[0, 1, hard] = losses[0, 0, hard] - 0.25
    assert own_change(losses, 0, 1, 0, 0.25) == pytest.approx((-0.25, 0), abs=1e-12)
    losses[1, 2:, hard] -= 5  # not hard for the best model
    assert own_change(losses, 0, 1, 0, 0.25) != pytest.approx((-0.25, 0), abs=1e-2)
