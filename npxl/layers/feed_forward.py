"""The position-wise feed-forward block (Vaswani et al. 2017, section 3.3); docs/feed_forward.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.layers.dropout import DropoutCache, Site, dropout_backward, dropout_forward
from npxl.layers.linear import linear_backward, linear_forward

Array = NDArray[Any]


class FeedForwardWeights(NamedTuple):
    """Parameters of the block, or their gradients."""

    w_1: Array  # [d_inner, d_model]
    b_1: Array  # [d_inner]
    w_2: Array  # [d_model, d_inner]
    b_2: Array  # [d_model]


class FeedForwardCache(NamedTuple):
    """What the backward pass needs."""

    x: Array  # [..., d_model]
    active: Array  # [..., d_inner] bool: where the ReLU let its input through
    inner: Array  # [..., d_inner], after dropout
    inner_dropout: DropoutCache | None
    outer_dropout: DropoutCache | None


def feed_forward_forward(
    x: Array,
    weights: FeedForwardWeights,
    dropout: float = 0.0,
    inner_site: Site | None = None,
    outer_site: Site | None = None,
) -> tuple[Array, FeedForwardCache]:
    """y = drop(drop(max(0, x W₁ᵀ + b₁)) W₂ᵀ + b₂).

    x [..., d_model]; returns y [..., d_model].
    """
    inner = linear_forward(x, weights.w_1, weights.b_1)  # [..., d_inner]
    active = inner > 0
    np.maximum(inner, 0, out=inner)
    inner, inner_dropout = dropout_forward(inner, dropout, inner_site)
    y = linear_forward(inner, weights.w_2, weights.b_2)  # [..., d_model]
    y, outer_dropout = dropout_forward(y, dropout, outer_site)
    return y, FeedForwardCache(x, active, inner, inner_dropout, outer_dropout)


def feed_forward_backward(
    dy: Array, cache: FeedForwardCache, weights: FeedForwardWeights, grads: FeedForwardWeights
) -> Array:
    """dx = (drop(drop(dy) W₂) · [x W₁ᵀ + b₁ > 0]) W₁; adds to the arrays of `grads`."""
    dy = dropout_backward(dy, cache.outer_dropout)
    d_inner = linear_backward(dy, cache.inner, weights.w_2, grads.w_2, grads.b_2)
    d_inner = dropout_backward(d_inner, cache.inner_dropout)
    d_inner *= cache.active
    return linear_backward(d_inner, cache.x, weights.w_1, grads.w_1, grads.b_1)
