"""Gradients that know where they are zero: nothing is missed, and a large table is hardly met."""

import math
import tracemalloc
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import seeds
from support import each_kind, model_for, tokens

from npxl import ModelConfig, TransformerXL, threads
from npxl.layers import softmax
from npxl.training import gradients
from npxl.training.gradients import Gradient
from npxl.training.optimizers import gradient_norm
from npxl.training.workers import Workers

blocks = st.integers(1, 9)
SHAPES = {"table": (7, 3), "bias": (5,), "other": (4, 2)}


@st.composite
def touches(draw):
    """Rows of some of the tensors: numbers with repetitions, or slices."""
    rows = {}
    for name in draw(st.sets(st.sampled_from(list(SHAPES)))):
        size = SHAPES[name][0]
        numbers = st.lists(st.integers(0, size - 1), max_size=4).map(lambda n: np.array(n, int))
        bounds = st.tuples(st.integers(0, size - 1), st.integers(1, size))
        slices = bounds.map(lambda pair: slice(min(pair), max(max(pair), min(pair) + 1)))
        rows[name] = draw(st.lists(numbers | slices, max_size=3))
    return rows


def expected_mask(block, *touched):
    """Which numbers are touched, one row after another."""
    mask = []
    for name, shape in SHAPES.items():
        of_tensor = np.zeros(shape, bool)
        for rows in touched:
            for each in rows.get(name, [slice(None)]):
                of_tensor[each] = True
        mask += list(of_tensor.flat)
    whole = [any(mask[start : start + block]) for start in range(0, len(mask), block)]
    return np.repeat(whole, block)[: len(mask)]


def mask_of(gradient):
    mask = np.zeros(gradient.flat.size, bool)
    for run in gradient.runs():
        assert not mask[run].any()
        mask[run] = True
    return mask


@given(block=blocks, first=touches(), second=touches())
def test_runs_are_what_was_touched_in_blocks(block, first, second):
    with mock.patch.object(gradients, "_BLOCK", block):
        gradient = Gradient(SHAPES, np.float32)
        assert gradient.runs() == []
        gradient.touch(first)
        np.testing.assert_array_equal(mask_of(gradient), expected_mask(block, first))
        gradient.touch(second)
        np.testing.assert_array_equal(mask_of(gradient), expected_mask(block, first, second))
        runs = gradient.runs()
        # Next to each other they would be one.
        assert all(a.stop < b.start for a, b in pairwise(runs))
        gradient.clear()
        assert gradient.runs() == []


@given(
    block=blocks,
    touched=st.lists(touches(), min_size=1, max_size=3),
    n_helpers=st.integers(0, 2),
    seed=seeds,
)
def test_sums_clearing_and_the_norm_are_those_of_the_whole_vector(block, touched, n_helpers, seed):
    draw = np.random.default_rng(seed)
    with (
        mock.patch.object(gradients, "_BLOCK", block),
        mock.patch.object(threads, "_WORTH_SPREADING", 1),
        threads.helpers(n_helpers),
    ):
        each = [Gradient(SHAPES, np.float64) for _ in touched]
        for gradient, rows in zip(each, touched, strict=True):
            gradient.touch(rows)
            mask = mask_of(gradient)
            gradient.flat[mask] = draw.standard_normal(mask.sum())
        total, *others = each
        expected = np.sum([gradient.flat for gradient in each], axis=0)
        total.add(others)
        np.testing.assert_allclose(total.flat, expected, rtol=1e-15)
        assert not total.flat[~mask_of(total)].any()
        norm = gradient_norm(total.flat, total.runs())
        assert math.isclose(norm, np.linalg.norm(expected), rel_tol=1e-14)
        total.clear()
        assert not total.flat.any()


@each_kind(vocab_size=st.integers(4, 30), ext_len=0, mem_len=2, n_layer=1)
@given(
    data=st.data(),
    block=blocks,
    n_workers=st.integers(1, 3),
    batch_chunk=st.integers(1, 2),
    seed=seeds,
)
def test_steps_leave_nothing_behind_and_miss_nothing(
    configs, data, block, n_workers, batch_chunk, seed
):
    """Other rows in every step, other clusters; the gradient is the model's own, zeros included."""
    config = data.draw(configs)
    model = model_for(config, seed)
    with mock.patch.object(gradients, "_BLOCK", block):
        workers = Workers(model, 3, n_workers, batch_chunk)
        for step in range(3):
            inputs, targets = tokens((2, 3, 2), seed + step, config.vocab_size)
            fwd = model.forward(inputs, targets, workers.memory)
            expected = model.backward(fwd).flat
            gradient = workers.step(inputs, targets, None).gradient
            mask = mask_of(gradient)
            assert not expected[~mask].any()
            assert not gradient.flat[~mask].any()
            tolerance = 1e-12 * np.abs(expected).max()
            np.testing.assert_allclose(gradient.flat, expected, rtol=0, atol=tolerance)


WORDS = 267_735
CUTOFFS = (20_000, 40_000, 200_000)
SIZES = np.diff([0, *CUTOFFS, WORDS])


def a_step(targets, **options):
    """Numbers of the gradient that a step over such targets touches, and logits it computes."""
    config = ModelConfig(
        vocab_size=WORDS, cutoffs=CUTOFFS, n_layer=1, n_head=1, d_model=8, d_head=4, d_inner=8,
        mem_len=4, **options,
    )  # fmt: skip
    workers = Workers(TransformerXL(config), 2, 2)
    cells = {"forward": 0, "backward": 0}

    def counted(direction, function):
        def count(logits, *rest):
            cells[direction] += logits.size
            return function(logits, *rest)

        return count

    with (
        mock.patch.object(
            softmax, "cross_entropy_forward", counted("forward", softmax.cross_entropy_forward)
        ),
        mock.patch.object(
            softmax, "cross_entropy_backward", counted("backward", softmax.cross_entropy_backward)
        ),
    ):
        gradient = workers.step(np.flip(targets), targets, None).gradient
    touched = sum(run.stop - run.start for run in gradient.runs())
    assert cells["forward"] == cells["backward"]
    return touched, cells["forward"], gradient


@pytest.mark.parametrize("tails", [(), (3,), (1, 3), (1, 2, 3)])
@pytest.mark.parametrize("div_val", [1, 2])
def test_a_step_costs_the_head_and_the_clusters_that_it_meets(tails, div_val):
    """At WikiText-103's vocabulary: logits, and rows of the tables."""
    n = 300
    targets = np.arange(n).reshape(2, n // 2) % CUTOFFS[0]
    for tail in tails:  # two of each, both in one stream
        targets[0, 2 * tail : 2 * tail + 2] = CUTOFFS[tail - 1] + np.array([0, SIZES[tail] - 1])
    touched, cells, gradient = a_step(targets, div_val=div_val)
    assert cells == n * (CUTOFFS[0] + 3) + sum(2 * SIZES[tail] for tail in tails)
    assert cells < n * WORDS / 5

    widths = 8 // div_val ** np.arange(4)
    met = [0, *tails]
    tables = (SIZES * widths)[met].sum()
    others = gradient.flat.size - (SIZES * widths).sum()
    n_ends = 2 * (len(gradient) + len(met))
    assert tables + others <= touched <= tables + others + n_ends * gradients._BLOCK


def test_no_array_of_a_step_has_a_number_for_each_token_and_word():
    n = 300
    targets = np.arange(n).reshape(2, n // 2) % CUTOFFS[0]
    targets[0, :3] = CUTOFFS
    tracemalloc.start()
    try:
        _, _, gradient = a_step(targets)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    model_and_gradients = 3 * gradient.flat.nbytes  # two workers
    assert peak - model_and_gradients < n * WORDS * 4 / 5


def test_untied_tables_are_touched_where_the_inputs_are():
    targets = np.array([[5, 30_000, 250_000], [5, 6, 7]])
    _, _, gradient = a_step(targets, tie_weight=False)
    embedding = gradient["embedding.weight"]
    assert sorted(np.flatnonzero(embedding.any(1))) == [5, 6, 7, 30_000, 250_000]
    inside = np.zeros(gradient.flat.size, bool)
    for run in gradient.runs():
        inside[run] = True
    of_table = inside[: embedding.size]  # the first tensor
    assert 0 < of_table.sum() <= 5 * 2 * gradients._BLOCK
