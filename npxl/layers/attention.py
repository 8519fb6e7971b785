"""Relative multi-head attention over memory and segment (Dai et al. 2019, section 3.3, appendix B).

Derived in docs/attention.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.kernels.relative_softmax import relative_softmax_backward, relative_softmax_forward
from npxl.layers.dropout import (
    DropoutCache,
    Site,
    dropout_backward,
    dropout_block,
    dropout_cache,
    dropout_forward,
)
from npxl.layers.linear import linear_backward, linear_forward

Array = NDArray[Any]

_BLOCK = 128  # queries handled together: keys that none of them may see are not computed


class AttentionWeights(NamedTuple):
    """Parameters of one layer, or their gradients; the paper's W_q, W_{k,E}, W_v, W_{k,R}, u, v."""

    w_q: Array  # [H·d_head, d_model]
    w_k: Array  # [H·d_head, d_model]
    w_v: Array  # [H·d_head, d_model]
    w_r: Array  # [H·d_head, d_model]
    w_o: Array  # [d_model, H·d_head]
    u: Array  # [H, d_head]
    v: Array  # [H, d_head]


class AttentionCache(NamedTuple):
    """What the backward pass needs."""

    context: Array  # [B, K, d_model]
    positions: Array  # [K, d_model]
    query_u: Array  # [B, q, H, d_head]: query + u
    query_v: Array  # [B, q, H, d_head]: query + v
    key: Array  # [B, K, H, d_head]
    value: Array  # [B, K, H, d_head]
    relative: Array  # [K, H, d_head]: W_{k,R} R
    probabilities: list[Array]  # a block of queries each: [H, B, rows, keys]
    attended: Array  # [B, q, H·d_head]
    scale: Any  # 1 / √d_head, in the precision of the scores
    window: int
    attention_dropout: DropoutCache | None
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
    batch_size, n_keys, _ = context.shape
    n_heads, d_head = weights.u.shape
    heads = (n_heads, d_head)
    segment = context[:, n_keys - n_queries :]  # [B, q, d_model]
    query = linear_forward(segment, weights.w_q).reshape(batch_size, n_queries, *heads)
    key = linear_forward(context, weights.w_k).reshape(batch_size, n_keys, *heads)
    value = linear_forward(context, weights.w_v).reshape(batch_size, n_keys, *heads)
    relative = linear_forward(positions, weights.w_r).reshape(n_keys, *heads)
    query_u, query_v = query + weights.u, query + weights.v  # [B, q, H, d_head]

    scale = score_scale(d_head, context.dtype)
    attention_dropout = dropout_cache(dropatt, attention_site)
    attended, probabilities = attend(
        query_u, query_v, key, value, relative, scale, window, attention_dropout
    )
    attended = attended.reshape(batch_size, n_queries, -1)
    y = linear_forward(attended, weights.w_o)  # [B, q, d_model]
    y, output_dropout = dropout_forward(y, dropout, output_site)
    return y, AttentionCache(
        context, positions, query_u, query_v, key, value, relative,
        probabilities, attended, scale, window, attention_dropout, output_dropout,
    )  # fmt: skip


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
    batch_size, n_keys, d_model = cache.context.shape
    _, n_queries, n_heads, d_head = cache.query_u.shape

    dy = dropout_backward(dy, cache.output_dropout)
    d_attended = linear_backward(dy, cache.attended, weights.w_o, grads.w_o)
    d_attended = d_attended.reshape(batch_size, n_queries, n_heads, d_head)
    d_query_u, d_query_v = np.empty_like(cache.query_u), np.empty_like(cache.query_v)
    d_key, d_value = np.zeros_like(cache.key), np.zeros_like(cache.value)
    d_relative = np.zeros_like(cache.relative)  # [K, H, d_head]

    blocks = _blocks(n_queries, n_keys, cache.window)
    for (rows, keys, distances), p in zip(blocks, cache.probabilities, strict=True):
        d_out, v = _by_head(d_attended, rows), _by_head(cache.value, keys)
        a = _dropped(p, cache.attention_dropout, rows, keys, n_queries, n_keys)
        _by_head(d_value, keys)[...] += a.swapaxes(2, 3) @ d_out
        da = _matmul(d_out, v.swapaxes(2, 3))  # [H, B, rows, keys]
        # The gradient of the probabilities, which the kernel overwrites by that of content scores.
        d_content = _dropped(da, cache.attention_dropout, rows, keys, n_queries, n_keys)
        d_position = np.empty_like(d_content)  # [H, B, rows, distances]
        relative_softmax_backward(
            _rows(d_content), _rows(p), _rows(d_position), cache.scale, cache.window
        )

        k, r = _by_head(cache.key, keys), _by_head(cache.relative[None], distances)
        np.matmul(d_content, k, out=_by_head(d_query_u, rows))
        np.matmul(d_position, r, out=_by_head(d_query_v, rows))
        dk = d_content.swapaxes(2, 3) @ _by_head(cache.query_u, rows)  # [H, B, keys, d_head]
        dr = d_position.swapaxes(2, 3) @ _by_head(cache.query_v, rows)  # [H, B, distances, d_head]
        _by_head(d_key, keys)[...] += dk
        _by_head(d_relative[None], distances)[...] += dr.sum(1, keepdims=True)

    grads.u[...] += d_query_u.sum((0, 1))
    grads.v[...] += d_query_v.sum((0, 1))
    d_query = (d_query_u + d_query_v).reshape(batch_size, n_queries, -1)
    d_key = d_key.reshape(batch_size, n_keys, -1)
    d_value = d_value.reshape(batch_size, n_keys, -1)
    linear_backward(d_relative.reshape(n_keys, -1), cache.positions, weights.w_r, grads.w_r)

    n_memory = n_keys - n_queries
    d_context = np.zeros((batch_size, n_keys - first, d_model), dy.dtype)
    segment = cache.context[:, n_memory:]
    d_context[:, n_memory - first :] = linear_backward(d_query, segment, weights.w_q, grads.w_q)
    # Not `linear_backward`, which would compute the gradient of the rows before `first` as well.
    context = cache.context.reshape(-1, d_model)  # [B·K, d_model]
    for d_projected, weight, d_weight in (
        (d_key, weights.w_k, grads.w_k),
        (d_value, weights.w_v, grads.w_v),
    ):
        d_weight += d_projected.reshape(-1, d_projected.shape[-1]).T @ context
        d_context += d_projected[:, first:] @ weight
    return d_context


def attend(
    query_u: Array,
    query_v: Array,
    key: Array,
    value: Array,
    relative: Array,
    scale: Any,
    window: int,
    dropout: DropoutCache | None = None,
) -> tuple[Array, list[Array]]:
    """Σ_j a_ij v_j with a = softmax_j(A · scale), of queries, keys and values already projected.

    query_u, query_v [B, q, H, d_head]; key, value [B, K, H, d_head]; relative [K, H, d_head];
    scale as `score_scale` gives it.
    Returns [B, q, H, d_head] and the probabilities of each block of queries, [H, B, rows, keys].
    """
    n_queries, n_keys = query_u.shape[1], key.shape[1]
    attended: Array = np.empty_like(query_u)  # [B, q, H, d_head]
    probabilities = []
    for rows, keys, distances in _blocks(n_queries, n_keys, window):
        k, r = _by_head(key, keys), _by_head(relative[None], distances)
        # Content scores, which the kernel overwrites by the probabilities.
        p = _matmul(_by_head(query_u, rows), k.swapaxes(2, 3))  # [H, B, rows, keys]
        position_scores = _matmul(_by_head(query_v, rows), r.swapaxes(2, 3))
        relative_softmax_forward(_rows(p), _rows(position_scores), scale, window)
        probabilities.append(p)
        a = _dropped(p, dropout, rows, keys, n_queries, n_keys)
        np.matmul(a, _by_head(value, keys), out=_by_head(attended, rows))
    return attended, probabilities


def score_scale(d_head: int, dtype: np.dtype[Any]) -> Any:
    """1 / √d_head as a scalar of the scores' precision, which a kernel must not widen."""
    return dtype.type(1 / math.sqrt(d_head))


def _blocks(n_queries: int, n_keys: int, window: int) -> Iterator[tuple[slice, slice, slice]]:
    """Blocks of queries, the keys that any of them sees, and the rows of R for their distances.

    Each block is relative attention of its own: its queries are the last of its keys.
    """
    n_memory = n_keys - n_queries
    for start in range(0, n_queries, _BLOCK):
        stop = min(start + _BLOCK, n_queries)
        first_key = max(0, n_memory + start + 1 - window)
        last_key = n_memory + stop
        yield (
            slice(start, stop),
            slice(first_key, last_key),
            slice(n_keys - (last_key - first_key), n_keys),
        )


def _by_head(x: Array, rows: slice) -> Array:
    """A view of the rows of x [B, n, H, d_head] with heads in front: [H, B, rows, d_head]."""
    view: Array = x[:, rows].transpose(2, 0, 1, 3)
    return view


def _matmul(x: Array, y: Array) -> Array:
    """x y in a contiguous array, which the kernels can then overwrite."""
    out: Array = np.empty((*x.shape[:-1], y.shape[-1]), x.dtype)
    np.matmul(x, y, out=out)
    return out


def _rows(scores: Array) -> Array:
    """A view of contiguous [H, B, q, K] as the kernels take it: [H·B, q, K]."""
    return scores.reshape(-1, *scores.shape[2:])


def _dropped(
    p: Array, cache: DropoutCache | None, rows: slice, keys: slice, n_queries: int, n_keys: int
) -> Array:
    """Dropout of a block of the attention probabilities [H, B, q, K] of a whole segment."""
    if cache is None:
        return p
    start = rows.start * n_keys + keys.start
    return dropout_block(p, cache, start, strides=(n_queries * n_keys, n_keys))
