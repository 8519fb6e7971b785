"""Attention by content alone (Vaswani et al. 2017, section 3.2), docs/absolute_positions.md.

Of places it knows what is in the states that it reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.layers.attention import AttendCache, attend_backward, attend_forward
from npxl.layers.dropout import DropoutCache, Site, dropout_cache
from npxl.layers.projections import (
    output_backward,
    output_forward,
    project_backward,
    project_forward,
)

Array = NDArray[Any]


class ContentWeights(NamedTuple):
    """Parameters of one layer, or their gradients."""

    w_q: Array  # [H·d_head, d_model]
    w_k: Array  # [H·d_head, d_model]
    w_v: Array  # [H·d_head, d_model]
    w_o: Array  # [d_model, H·d_head]


class ContentCache(NamedTuple):
    """What the backward pass needs."""

    context: Array  # [B, K, d_model]
    attend: AttendCache
    output_dropout: DropoutCache | None


def content_attention_forward(
    context: Array,
    n_queries: int,
    n_heads: int,
    weights: ContentWeights,
    window: int,
    dropatt: float = 0.0,
    dropout: float = 0.0,
    attention_site: Site | None = None,
    output_site: Site | None = None,
) -> tuple[Array, ContentCache]:
    """The last q of K positions attend to what lies before them, and to themselves.

        A_ij = q_iᵀ k_j

    and a = softmax_j(A / √d_head) over the W nearest keys, y = W_o Σ_j a_ij v_j.

    context [B, K, d_model] is memory and segment; returns y [B, q, d_model].  `dropatt` is the rate
    at which a is dropped, `dropout` that of y.
    """
    query, key, value = project_forward(context, n_queries, weights, n_heads)
    attended, attend_cache = attend_forward(
        query, key, value, *_nothing_else(key), window, dropout_cache(dropatt, attention_site)
    )
    y, output_dropout = output_forward(attended, weights.w_o, dropout, output_site)
    return y, ContentCache(context, attend_cache, output_dropout)


def content_attention_backward(
    dy: Array, cache: ContentCache, weights: ContentWeights, grads: ContentWeights, first: int = 0
) -> Array:
    """The adjoint of each step in reverse; adds to the arrays of `grads`.

    Returns the gradient of context[:, first:], [B, K − first, d_model].
    """
    d_attended = output_backward(
        dy, cache.attend.attended, cache.output_dropout, weights.w_o, grads.w_o
    )
    _, u, v = _nothing_else(cache.attend.key)
    d_query, d_key, d_value, _ = attend_backward(
        d_attended, cache.attend, u, v, np.empty_like(u), np.empty_like(v)
    )
    return project_backward(d_query, d_key, d_value, cache.context, weights, grads, first)


def _nothing_else(key: Array) -> tuple[Array, Array, Array]:
    """What makes relative attention this: no distances, r [K, H, 0], and no biases u and v."""
    _, n_keys, n_heads, d_head = key.shape
    bias = np.zeros((n_heads, d_head), key.dtype)
    return np.zeros((n_keys, n_heads, 0), key.dtype), bias, bias
