"""Encodings of distances, from the furthest to the nearest; docs/positions.md.

Sinusoids are those of Vaswani et al. 2017, section 3.5; learned tables have a row a distance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]


def sinusoid(
    n_keys: int, d_model: int, clamp_len: int | None = None, dtype: DTypeLike = np.float64
) -> Array:
    """R: one row for each distance K − 1, …, 1, 0, the order in which a query meets its keys.

    Row p is [sin(p · ω₀) … sin(p · ω_{d/2−1}), cos(p · ω₀) … cos(p · ω_{d/2−1})] with
    ω_i = 10000^(−2i/d); distances beyond `clamp_len` are encoded as `clamp_len`.  Computed in
    float64; returns [n_keys, d_model].  It is a constant: there is no backward pass.
    """
    distances = np.arange(n_keys - 1, -1, -1, dtype=np.float64)  # [K]
    if clamp_len is not None:
        distances = np.minimum(distances, clamp_len)
    angles = distances[:, None] * frequencies(d_model)  # [K, d/2]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(dtype)  # [K, d]


def frequencies(d_model: int) -> Array:
    """ω_i = 10000^(−2i/d), [d_model / 2] in float64."""
    omega: Array = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    return omega


def learned_positions_forward(table: Array, n_keys: int) -> Array:
    """Rows of a learned table for the distances K − 1, …, 1, 0.

    table [C + 1, ...] has a row for each distance C … 0, the first of which is for all further ones
    too; returns [n_keys, ...].
    """
    rows: Array = table[np.maximum(0, np.arange(len(table) - n_keys, len(table)))]
    return rows


def learned_positions_backward(d_rows: Array, d_table: Array) -> None:
    """Adds the gradient of the rows [K, ...] to d_table [C + 1, ...]: its first gets several's."""
    n_further = max(0, len(d_rows) - len(d_table))
    d_table[0] += d_rows[:n_further].sum(0)
    d_table[max(0, len(d_table) - len(d_rows)) :] += d_rows[n_further:]
