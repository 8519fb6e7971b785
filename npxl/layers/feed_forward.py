"""The position-wise feed-forward block (Vaswani et al. 2017, section 3.3); docs/feed_forward.md."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from npxl.kernels.rectifier import rectify_backward, rectify_forward
from npxl.layers.dropout import (
    DropoutCache,
    Site,
    dropout_backward,
    dropout_cache,
    dropout_forward,
    dropout_rule,
)
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

    x: Array  # [B, ..., d_model]
    inner: Array  # [B, ..., d_inner], rectified and after dropout
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

    x [B, ..., d_model]; returns y [B, ..., d_model].
    """
    inner = linear_forward(x, weights.w_1)  # [B, ..., d_inner]
    inner_dropout = dropout_cache(dropout, inner_site)
    rows = inner.reshape(len(x), -1, inner.shape[-1])
    rectify_forward(rows, weights.b_1, dropout_rule(inner_dropout, x.dtype))
    y = linear_forward(inner, weights.w_2, weights.b_2)  # [B, ..., d_model]
    y, outer_dropout = dropout_forward(y, dropout, outer_site)
    return y, FeedForwardCache(x, inner, inner_dropout, outer_dropout)


def feed_forward_backward(
    dy: Array, cache: FeedForwardCache, weights: FeedForwardWeights, grads: FeedForwardWeights
) -> Array:
    """dx = (drop(drop(dy) W₂) · [x W₁ᵀ + b₁ > 0]) W₁; adds to the arrays of `grads`."""
    dy = dropout_backward(dy, cache.outer_dropout)
    d_inner = linear_backward(dy, cache.inner, weights.w_2, grads.w_2, grads.b_2)
    factor, width = dropout_rule(cache.inner_dropout, dy.dtype).factor, d_inner.shape[-1]
    rectify_backward(d_inner.reshape(-1, width), cache.inner.reshape(-1, width), factor, grads.b_1)
    return linear_backward(d_inner, cache.x, weights.w_1, grads.w_1)
