"""Sinusoidal positions against Vaswani et al.'s formula and against what they are for."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import assert_adjoint

from npxl.layers.positions import (
    learned_positions_backward,
    learned_positions_forward,
    sinusoid,
)

lengths = st.integers(1, 40)
widths = st.integers(1, 9).map(lambda half: 2 * half)
clamps = st.none() | st.integers(1, 45)


def encoded(distance, d_model):
    """[all sines, all cosines] of one distance, one number at a time."""
    angles = [distance / 10000 ** (2 * i / d_model) for i in range(d_model // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


@pytest.mark.fault("KY #111")
@given(n_keys=lengths, d_model=widths, clamp_len=clamps)
def test_rows_are_the_papers_from_the_furthest_to_the_nearest(n_keys, d_model, clamp_len):
    r = sinusoid(n_keys, d_model, clamp_len)
    distances = range(n_keys - 1, -1, -1)
    expected = [
        encoded(min(d, n_keys if clamp_len is None else clamp_len), d_model) for d in distances
    ]
    assert r.shape == (n_keys, d_model)
    assert r.dtype == np.float64
    np.testing.assert_allclose(r, expected, rtol=0, atol=1e-13)


def test_known_values():
    # d = 4: frequencies 1 and 1/100.
    r = sinusoid(2, 4)
    nearest = [0, 0, 1, 1]
    np.testing.assert_array_equal(r[-1], nearest)
    np.testing.assert_allclose(
        r[0],
        [0.8414709848078965, 0.009999833334166664, 0.5403023058681398, 0.9999500004166653],
        rtol=1e-15,
    )


@given(n_keys=lengths, d_model=widths, clamp_len=clamps)
def test_float32_is_the_rounded_float64(n_keys, d_model, clamp_len):
    single = sinusoid(n_keys, d_model, clamp_len, np.float32)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(
        single, sinusoid(n_keys, d_model, clamp_len, np.float64).astype(np.float32)
    )


def test_distances_are_exact_where_half_precision_would_round_them():
    # Neighbouring distances beyond 2048 differ by one radian in the first frequency.
    r = sinusoid(5000, 2, dtype=np.float32)
    np.testing.assert_allclose(r[0], [math.sin(4999), math.cos(4999)], atol=1e-7)


@given(n_keys=lengths, d_model=widths, more=st.integers(0, 5))
def test_clamping_at_or_beyond_the_furthest_distance_changes_nothing(n_keys, d_model, more):
    clamped = sinusoid(n_keys, d_model, max(1, n_keys - 1 + more))
    np.testing.assert_array_equal(clamped, sinusoid(n_keys, d_model))


@given(n_keys=st.integers(2, 40), d_model=widths, clamp_len=st.integers(1, 45))
def test_rows_beyond_the_clamp_are_one_row(n_keys, d_model, clamp_len):
    r = sinusoid(n_keys, d_model, clamp_len)
    beyond = r[: max(0, n_keys - clamp_len)]
    assert (beyond == r[max(0, n_keys - 1 - clamp_len)]).all()
    np.testing.assert_array_equal(r[-clamp_len:], sinusoid(n_keys, d_model)[-clamp_len:])


@given(n_keys=lengths, more=st.integers(0, 10), d_model=widths)
def test_the_last_rows_do_not_depend_on_how_many_keys_there_are(n_keys, more, d_model):
    # A block of queries takes the last rows of the whole segment's R.
    longer = sinusoid(n_keys + more, d_model)
    np.testing.assert_array_equal(longer[more:], sinusoid(n_keys, d_model))


@pytest.mark.parametrize("shift", [1, 3])
def test_a_fixed_rotation_moves_every_distance_by_the_same_offset(shift):
    # R_{p+s} = rotation(s) R_p: why a linear map of R can express relative offsets.
    d_model = 6
    r = sinusoid(12, d_model)[::-1]  # r[distance]
    half = d_model // 2
    angles = shift * 10000.0 ** (-2 * np.arange(half) / d_model)
    sines, cosines = r[:, :half], r[:, half:]
    moved = np.concatenate(
        [sines * np.cos(angles) + cosines * np.sin(angles),
         cosines * np.cos(angles) - sines * np.sin(angles)], axis=1,
    )  # fmt: skip
    np.testing.assert_allclose(moved[:-shift], r[shift:], atol=1e-13)


@given(n_keys=lengths, clamp_len=st.integers(1, 45), width=st.integers(1, 3))
def test_rows_of_a_learned_table_are_looked_up_by_clamped_distance(n_keys, clamp_len, width):
    table = np.random.default_rng(n_keys).standard_normal((clamp_len + 1, width))
    rows = learned_positions_forward(table, n_keys)
    expected = [table[clamp_len - min(d, clamp_len)] for d in range(n_keys - 1, -1, -1)]
    np.testing.assert_array_equal(rows, expected)
    longer = learned_positions_forward(table, n_keys + 3)
    np.testing.assert_array_equal(longer[3:], rows)


@given(n_keys=lengths, clamp_len=st.integers(1, 45), width=st.integers(1, 3))
def test_learned_rows_backward_is_the_adjoint_and_adds(n_keys, clamp_len, width):
    draw = np.random.default_rng(n_keys)
    table, before = draw.standard_normal((2, clamp_len + 1, width))
    d_rows = draw.standard_normal((n_keys, width))
    d_table = before.copy()
    learned_positions_backward(d_rows, d_table)
    assert_adjoint(learned_positions_forward(table, n_keys), d_rows, table, d_table - before)
