"""Sinusoidal encoding of distances (Vaswani et al. 2017, section 3.5); docs/positions.md."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]


@functools.lru_cache(maxsize=4)
def sinusoid(
    n_keys: int, d_model: int, clamp_len: int | None = None, dtype: DTypeLike = np.float64
) -> Array:
    """R: one row for each distance K − 1, …, 1, 0, the order in which a query meets its keys.

    Row p is [sin(p · ω₀) … sin(p · ω_{d/2−1}), cos(p · ω₀) … cos(p · ω_{d/2−1})] with
    ω_i = 10000^(−2i/d); distances beyond `clamp_len` are encoded as `clamp_len`.  Computed in
    float64; returns [n_keys, d_model], read-only and the same array when asked again.  It is a
    constant: there is no backward pass.
    """
    distances = np.arange(n_keys - 1, -1, -1, dtype=np.float64)  # [K]
    if clamp_len is not None:
        distances = np.minimum(distances, clamp_len)
    frequencies = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)  # [d/2]
    angles = distances[:, None] * frequencies  # [K, d/2]
    encoding = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(dtype)  # [K, d]
    encoding.flags.writeable = False
    return encoding
