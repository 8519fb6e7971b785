"""Relative multi-head attention over memory and segment (Dai et al. 2019, section 3.3, appendix B).

Derived in docs/attention.md.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.kernels.relative_attention import (
    packed_attention_heads_forward,
    relative_attention_heads_backward,
    relative_attention_heads_forward,
)
from npxl.layers.dropout import DropoutCache, Site, dropout_cache, dropout_rule
from npxl.layers.linear import linear_backward_weight, linear_forward
from npxl.layers.projections import (
    output_backward,
    output_forward,
    project_backward,
    project_forward,
)
from npxl.threads import spread

Array = NDArray[Any]


class AttentionWeights(NamedTuple):
    """Parameters of one layer, or their gradients; the paper's W_q, W_{k,E}, W_v, W_{k,R}, u, v."""

    w_q: Array  # [H·d_head, d_model]
    w_k: Array  # [H·d_head, d_model]
    w_v: Array  # [H·d_head, d_model]
    w_r: Array  # [H·d_head, d_model]
    w_o: Array  # [d_model, H·d_head]
    u: Array  # [H, d_head]
    v: Array  # [H, d_head]


class AttendCache(NamedTuple):
    """What `attend_backward` needs."""

    query: Array  # [B, q, H, d_head]
    key: Array  # [B, K, H, d_head]
    value: Array  # [B, K, H, d_head]
    relative: Array  # [K, H, d_head]: W_{k,R} R
    attended: Array  # [B, q, H, d_head]
    largest: Array  # [B, H, q]: of each query's scores A
    normalizer: Array  # [B, H, q]: 1 / Σ_j e^{(A_ij − largest) / √d_head}
    scale: Any  # 1 / √d_head, of the scores' precision
    window: int
    dropout: DropoutCache | None


class AttentionCache(NamedTuple):
    """What the backward pass needs."""

    context: Array  # [B, K, d_model]
    positions: Array  # [K, d_model]
    attend: AttendCache
    output_dropout: DropoutCache | None


def relative_attention_forward(
    context: Array,
    n_queries: int,
    positions: Array,
    weights: AttentionWeights,
    window: int,
    dropatt: float = 0.0,
    dropout: float = 0.0,
    attention_site: Site | None = None,
    output_site: Site | None = None,
) -> tuple[Array, AttentionCache]:
    """The last q of K positions attend to what lies before them, and to themselves.

    Score of query i for key j, whose distance is δ = (K − q + i) − j:

        A_ij = (q_i + u)ᵀ k_j + (q_i + v)ᵀ W_{k,R} R_δ        terms (a) + (c), (b) + (d)

    and a = softmax_j(A / √d_head) over the W nearest keys, y = W_o Σ_j a_ij v_j.

    context [B, K, d_model] is memory and segment; positions R [K, d_model] has one row for each
    distance K − 1 … 0; returns y [B, q, d_model].  `dropatt` is the rate at which a is dropped,
    `dropout` that of y.
    """
    query, key, value = project_forward(context, n_queries, weights, len(weights.u))
    relative = linear_forward(positions, weights.w_r).reshape(len(positions), *weights.u.shape)
    attended, attend_cache = attend_forward(
        query, key, value, relative, weights.u, weights.v, window,
        dropout_cache(dropatt, attention_site),
    )  # fmt: skip
    y, output_dropout = output_forward(attended, weights.w_o, dropout, output_site)
    return y, AttentionCache(context, positions, attend_cache, output_dropout)


def relative_attention_backward(
    dy: Array,
    cache: AttentionCache,
    weights: AttentionWeights,
    grads: AttentionWeights,
    first: int = 0,
) -> Array:
    """The adjoint of each step in reverse; adds to the arrays of `grads`.

    Returns the gradient of context[:, first:], [B, K − first, d_model]: with first = K − q that of
    the segment alone, since memory is a constant.  W_k and W_v receive gradient from every key.
    """
    d_attended = output_backward(
        dy, cache.attend.attended, cache.output_dropout, weights.w_o, grads.w_o
    )
    d_query, d_key, d_value, d_relative = attend_backward(
        d_attended, cache.attend, weights.u, weights.v, grads.u, grads.v
    )
    d_relative = d_relative.reshape(len(d_relative), -1)  # [K, H·d_head]
    linear_backward_weight(d_relative, cache.positions, grads.w_r)  # positions are constants
    return project_backward(d_query, d_key, d_value, cache.context, weights, grads, first)


def attend_forward(
    query: Array,
    key: Array,
    value: Array,
    relative: Array,
    u: Array,
    v: Array,
    window: int,
    dropout: DropoutCache | None = None,
    scale: Any = None,
) -> tuple[Array, AttendCache]:
    """Σ_j ã_ij v_j of queries [B, q, H, d_head] and keys and values [B, K, H, d_head].

    relative [K, H, d_head] by descending distance; ã is a = softmax_j(A · scale) after dropout,
    where the scale is 1 / √d_head unless given.  Returns [B, q, H, d_head].
    """
    scale = score_scale(query) if scale is None else scale
    batch_size, n_queries, n_heads, _ = query.shape
    attended: Array = np.empty((*query.shape[:3], value.shape[3]), query.dtype)
    largest: Array = np.empty((batch_size, n_heads, n_queries), query.dtype)
    normalizer = np.empty_like(largest)
    rule = dropout_rule(dropout, query.dtype)

    def task(heads: range) -> None:
        relative_attention_heads_forward(
            query, key, value, relative, u, v, scale, window, rule, (heads.start, heads.stop),
            attended, largest, normalizer,
        )  # fmt: skip

    spread(task, n_heads, cost=3 * query.size * key.shape[1])
    return attended, AttendCache(
        query, key, value, relative, attended, largest, normalizer, scale, window, dropout
    )


def attend_backward(
    d_attended: Array, cache: AttendCache, u: Array, v: Array, d_u: Array, d_v: Array
) -> tuple[Array, Array, Array, Array]:
    """The gradients of query, key, value and relative; adds to d_u and d_v [H, d_head].

    `relative_attention_heads_backward` has the equations; docs/attention.md derives them.
    """
    query, key, value, relative = cache.query, cache.key, cache.value, cache.relative
    d_query, d_key, d_value, d_relative = map(np.empty_like, (query, key, value, relative))
    rule = dropout_rule(cache.dropout, query.dtype)

    def task(heads: range) -> None:
        relative_attention_heads_backward(
            d_attended, cache.attended, cache.largest, cache.normalizer,
            query, key, value, relative, u, v, cache.scale, cache.window, rule,
            (heads.start, heads.stop), d_query, d_key, d_value, d_relative, d_u, d_v,
        )  # fmt: skip

    spread(task, query.shape[2], cost=8 * query.size * key.shape[1])
    return d_query, d_key, d_value, d_relative


def attention_probabilities(cache: AttendCache, u: Array, v: Array) -> Array:
    """a [B, H, q, K], before dropout: what attending to the unit vectors finds.

    For tests and pictures; neither pass has them all at once.
    """
    batch_size, n_keys, n_heads, _ = cache.key.shape
    units = np.eye(n_keys, dtype=cache.key.dtype)[None, :, None]
    units = np.broadcast_to(units, (batch_size, n_keys, n_heads, n_keys))
    attended, _ = attend_forward(
        cache.query, cache.key, units, cache.relative, u, v, cache.window, scale=cache.scale
    )
    probabilities: Array = attended.swapaxes(1, 2)
    return probabilities


class PackedMemory(NamedTuple):
    """Keys, values and distances of one layer, laid out as `npxl.kernels.packing` describes."""

    key_t: Array  # [B, H, tiles, d_head, C], C = TILE_COLUMNS
    values: Array  # [B, H, K′, D′], K′ = tiles · C
    relative_t: Array  # [H, tiles, d_head, C]: W_{k,R} R by descending distance
    n_distances: int  # that relative_t has; the first one stands for all that are further


def attend_packed(
    query: Array, memory: PackedMemory, seen: tuple[int, int], weights: AttentionWeights,
    window: int, heads: range, attended: Array,
) -> None:  # fmt: skip
    """`attend_forward` for some heads of queries [B, q, H, d_head] that see keys already packed.

    The queries are those of the last keys in range(*seen).  Fills attended [B, q, H, d_head].
    """
    packed_attention_heads_forward(
        query, *memory, weights.u, weights.v, score_scale(query), seen, window,
        dropout_rule(None, query.dtype), (heads.start, heads.stop), attended,
    )  # fmt: skip


def score_scale(query: Array) -> Any:
    """1 / √d_head as a scalar of the scores' precision, which a kernel must not widen."""
    return query.dtype.type(1 / math.sqrt(query.shape[-1]))
