"""Layer normalisation (Ba et al. 2016); derived in docs/layer_norm.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.kernels.normalization import layer_norm_rows_backward, layer_norm_rows_forward

Array = NDArray[Any]


class LayerNormCache(NamedTuple):
    """What the backward pass needs."""

    normalized: Array  # [..., D]
    inv_std: Array  # [n]


def layer_norm_forward(
    x: Array, gain: Array, bias: Array, epsilon: float
) -> tuple[Array, LayerNormCache]:
    """y = gain · (x − μ) / √(σ² + ε) + bias over the last axis (equation 4).

    x [..., D], gain and bias [D]; returns y [..., D].
    """
    rows = x.reshape(-1, x.shape[-1])  # [n, D]
    y, normalized = np.empty_like(rows), np.empty_like(rows)
    inv_std = np.empty(len(rows), x.dtype)
    layer_norm_rows_forward(rows, gain, bias, x.dtype.type(epsilon), y, normalized, inv_std)
    return y.reshape(x.shape), LayerNormCache(normalized.reshape(x.shape), inv_std)


def layer_norm_backward(
    dy: Array, cache: LayerNormCache, gain: Array, d_gain: Array, d_bias: Array
) -> Array:
    """dx = (g − mean(g) − x̂ · mean(g · x̂)) / √(σ² + ε) with g = gain · dy and x̂ normalised x.

    Adds Σ dy · x̂ to d_gain and Σ dy to d_bias, both [D]; returns dx [..., D].
    """
    rows = dy.reshape(-1, dy.shape[-1])  # [n, D]
    dx = np.empty_like(rows)
    normalized = cache.normalized.reshape(rows.shape)
    layer_norm_rows_backward(rows, normalized, cache.inv_std, gain, dx, d_gain, d_bias)
    return dx.reshape(dy.shape)
