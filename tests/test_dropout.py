"""Dropout masks: what its masks depend on, what they do not, and how they are distributed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import (
    assert_adjoint,
    assert_eq,
    central_difference,
    leading_shapes,
    read_only,
    seeds,
    widths,
)

from npxl.errors import NpxlError
from npxl.kernels import random_mask
from npxl.layers.dropout import (
    MaskKey,
    dropout_backward,
    dropout_cache,
    dropout_forward,
    dropout_rule,
    mask_key,
    site_of,
)

batches = leading_shapes.filter(len)
rates = st.sampled_from([0.1, 0.25, 0.5, 0.9])


def keep(shape, rate=0.5, seed=0, step=0, first_stream=0, site="hidden"):
    """1 where the mask keeps an entry, 0 where it drops it."""
    y, _ = dropout_forward(np.ones(shape), rate, MaskKey(seed, step, first_stream).site(site))
    return y > 0


@given(seeds, batches, widths, rates)
def test_entries_are_dropped_or_scaled_by_exactly_one_factor(seed, leading, d, rate):
    x = read_only(np.random.default_rng(seed).standard_normal((*leading, d)))
    y, cache = dropout_forward(x, rate, MaskKey(seed).site("hidden"))
    kept = keep(x.shape, rate, seed)
    assert_eq(y, np.where(kept, x * (1 / (1 - rate)), 0.0))
    assert cache is not None


@given(seeds, batches, widths, rates)
def test_backward_is_the_same_linear_map(seed, leading, d, rate):
    x, dy = np.random.default_rng(seed).standard_normal((2, *leading, d))
    site = MaskKey(seed, 7).site("hidden")
    y, cache = dropout_forward(x, rate, site)
    dx = dropout_backward(read_only(dy), cache)
    assert_adjoint(y, dy, x, dx)
    expected = central_difference(lambda: dropout_forward(x, rate, site)[0], x, dy)
    assert_eq(dx, expected, rtol=1e-8, atol=1e-9)


def test_no_rate_and_no_site_are_the_identity():
    x = np.random.default_rng(0).standard_normal((2, 3))
    for rate, site in ((0.0, MaskKey().site("hidden")), (0.5, None)):
        y, cache = dropout_forward(x, rate, site)
        assert_eq(y, x)
        assert cache is None
        assert_eq(dropout_backward(x, cache), x)


@given(seeds, st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 5), widths)
def test_a_row_draws_the_masks_of_its_stream(seed, first_stream, n_rows, length, d):
    whole = keep((n_rows, length, d), seed=seed, first_stream=first_stream)
    for b in range(n_rows):
        alone = keep((1, length, d), seed=seed, first_stream=first_stream + b)
        assert_eq(alone[0], whole[b])


def test_a_shared_mask_does_not_depend_on_the_streams():
    x = np.ones((1, 50, 4))
    masks = [
        dropout_forward(x, 0.5, MaskKey(1, 2, first_stream).site("positions").shared())[0]
        for first_stream in (0, 1, 17)
    ]
    assert_eq(masks[1], masks[0])
    assert_eq(masks[2], masks[0])
    assert not np.array_equal(masks[0] > 0, keep(x.shape, seed=1, step=2, site="positions"))


@given(seeds, batches, widths, rates, st.sampled_from([np.float32, np.float64]))
def test_a_kernel_takes_the_decisions_of_the_whole_one_by_one(seed, leading, d, rate, dtype):
    """By their numbers alone, in any order: what attention does with those of its cells."""
    whole, cache = dropout_forward(
        np.ones((*leading, d), dtype), rate, MaskKey(seed, 1, 3).site("attention_probabilities")
    )
    rule = dropout_rule(cache, np.dtype(dtype))
    for b in reversed(range(len(whole))):
        for n, factor in reversed(list(enumerate(whole[b].flat))):
            assert random_mask.keep(rule, b, n) == factor


def test_the_rule_of_no_dropout_keeps_everything():
    for dtype in (np.float32, np.float64):
        assert dropout_cache(0.0, MaskKey().site("hidden")) is dropout_cache(0.5, None) is None
        rule = dropout_rule(None, np.dtype(dtype))
        assert type(rule[-1]) is dtype
        assert all(random_mask.keep(rule, b, n) == 1 for b in range(4) for n in range(100))


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.75, 0.99])
def test_the_rate_is_met_within_five_sigma(rate):
    n = 400_000
    dropped = n - keep((4, n // 4), rate).sum()
    assert abs(dropped - n * rate) < 5 * math.sqrt(n * rate * (1 - rate))


def test_the_expectation_of_the_output_is_the_input():
    total = sum(
        dropout_forward(np.ones((4, 1000)), 0.3, MaskKey(0, step).site("hidden"))[0].mean()
        for step in range(50)
    )
    sigma = math.sqrt(0.3 / 0.7 / (50 * 4000))
    assert total / 50 == pytest.approx(1, abs=5 * sigma)


def test_masks_that_differ_in_anything_are_independent():
    """Every pair agrees on half of the entries, within five sigma; lags of one mask included."""
    shape, n = (1, 40_000), 40_000
    masks = [
        keep(shape, seed=seed, step=step, first_stream=stream, site=site)
        for seed in (0, 1)
        for step in (0, 1)
        for stream in (0, 1)
        for site in ("layers.0.attention_output", "layers.1.attention_output", "hidden")
    ]
    masks += [np.roll(masks[0], lag) for lag in (1, 2, 3, 8, 64, 200, 1024)]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs((a == b).sum() - n / 2) < 5 * math.sqrt(n / 4)


def test_masks_do_not_change_from_one_version_to_the_next():
    """A run that is resumed after an upgrade draws the masks that it would have drawn before."""
    bits = "".join("01"[int(k)] for k in keep((2, 16)).flat)
    assert bits == "10010111110010111110001001101010"


@given(seeds, batches, widths, rates)
def test_float32_draws_the_same_masks_and_stays_float32(seed, leading, d, rate):
    x = np.random.default_rng(seed).standard_normal((*leading, d)).astype(np.float32)
    site = MaskKey(seed).site("hidden")
    double, _ = dropout_forward(x.astype(np.float64), rate, site)
    assert_eq(dropout_forward(x, rate, site)[0], double.astype(np.float32), rtol=2e-7)


def test_arrays_with_strides():
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    site = MaskKey(0).site("hidden")
    y, _ = dropout_forward(x, 0.5, site)
    for strided in (np.array(x.T, order="C").T, np.repeat(x, 2, axis=1)[:, ::2]):
        assert_eq(dropout_forward(strided, 0.5, site)[0], y)


def test_dropped_nan_is_zero_and_kept_nan_is_nan():
    y, _ = dropout_forward(np.full((2, 50), np.nan), 0.5, MaskKey(0).site("hidden"))
    assert_eq(np.isnan(y), keep((2, 50)))
    assert (y[~np.isnan(y)] == 0).all()


def test_rng_may_be_a_key_a_generator_or_none():
    assert mask_key(None) is None
    key = MaskKey(3, 1)
    assert mask_key(key) is key
    drawn = mask_key(np.random.default_rng(0))
    assert drawn == mask_key(np.random.default_rng(0))
    assert drawn != mask_key(np.random.default_rng(1))


@pytest.mark.parametrize("rng", [0, 1.5, "seed", (1, 2)])
def test_anything_else_as_rng_is_refused_with_what_to_pass(rng):
    with pytest.raises(NpxlError, match=r"MaskKey.*Generator.*None"):
        mask_key(rng)


def test_a_place_has_the_masks_of_its_name_and_without_a_key_none():
    assert site_of(None, "hidden") is None
    assert site_of(MaskKey(3), "hidden") == MaskKey(3).site("hidden")
    assert site_of(MaskKey(3), "hidden") != site_of(MaskKey(3), "embedding")


def test_a_generator_gives_seeds_of_63_bits():
    seeds = {mask_key(np.random.default_rng(n)).seed for n in range(8)}
    assert len(seeds) == 8
    assert max(seeds) > 2**60
