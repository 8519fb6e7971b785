"""Attention with a learned table of relative positions (Shaw et al. 2018), docs/shaw_attention.md.

The form that Dai et al. 2019 compare with in their tables 6 and 7, as in their code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.layers.attention import AttendCache, attend_backward, attend_forward, score_scale
from npxl.layers.dropout import DropoutCache, Site, dropout_cache
from npxl.layers.positions import learned_positions_backward, learned_positions_forward
from npxl.layers.projections import (
    output_backward,
    output_forward,
    project_backward,
    project_forward,
)

Array = NDArray[Any]


class ShawWeights(NamedTuple):
    """Parameters of one layer, or their gradients; tables have a row for each distance C … 0."""

    w_q: Array  # [H·d_head, d_model]
    w_k: Array  # [H·d_head, d_model]
    w_v: Array  # [H·d_head, d_model]
    w_o: Array  # [d_model, H·d_head]
    u: Array  # [H, d_head]
    relative: Array  # [C + 1, H, d_head]
    relative_bias: Array  # [C + 1, H]


class ShawCache(NamedTuple):
    """What the backward pass needs."""

    context: Array  # [B, K, d_model]
    attend: AttendCache
    output_dropout: DropoutCache | None


def shaw_attention_forward(
    context: Array,
    n_queries: int,
    weights: ShawWeights,
    window: int,
    dropatt: float = 0.0,
    dropout: float = 0.0,
    attention_site: Site | None = None,
    output_site: Site | None = None,
) -> tuple[Array, ShawCache]:
    """The last q of K positions attend to what lies before them, and to themselves.

    Score of query i for key j, whose distance is δ = (K − q + i) − j, with rows r_δ and b_δ of the
    tables, those of distance C for δ > C:

        A_ij = (q_i + u)ᵀ k_j + q_iᵀ r_δ + b_δ        terms (a) + (c), (b), (d)

    and a = softmax_j(A / √d_head) over the W nearest keys, y = W_o Σ_j a_ij v_j.

    context [B, K, d_model] is memory and segment; returns y [B, q, d_model].  `dropatt` is the rate
    at which a is dropped, `dropout` that of y.
    """
    query, key, value = project_forward(context, n_queries, weights, len(weights.u))
    tables = weights.relative, weights.relative_bias[..., None]
    relative, bias = (learned_positions_forward(table, context.shape[1]) for table in tables)
    # A = [q + u, 0]ᵀ [k, 0] + [q, 1]ᵀ [r, b]: relative attention with v = [0, …, 0, 1].
    attended, attend_cache = attend_forward(
        _widened(query), _widened(key), value, np.concatenate([relative, bias], axis=-1),
        _widened(weights.u), _last_unit(weights.u), window,
        dropout_cache(dropatt, attention_site), score_scale(query),
    )  # fmt: skip
    y, output_dropout = output_forward(attended, weights.w_o, dropout, output_site)
    return y, ShawCache(context, attend_cache, output_dropout)


def shaw_attention_backward(
    dy: Array, cache: ShawCache, weights: ShawWeights, grads: ShawWeights, first: int = 0
) -> Array:
    """The adjoint of each step in reverse; adds to the arrays of `grads`.

    Returns the gradient of context[:, first:], [B, K − first, d_model].
    """
    d_attended = output_backward(
        dy, cache.attend.attended, cache.output_dropout, weights.w_o, grads.w_o
    )
    u, v = _widened(weights.u), _last_unit(weights.u)
    d_u, d_v = np.zeros_like(u), np.zeros_like(v)
    d_query, d_key, d_value, d_relative = attend_backward(d_attended, cache.attend, u, v, d_u, d_v)
    grads.u[...] += d_u[..., :-1]
    learned_positions_backward(d_relative[..., :-1], grads.relative)
    learned_positions_backward(d_relative[..., -1], grads.relative_bias)
    return project_backward(
        d_query[..., :-1], d_key[..., :-1], d_value, cache.context, weights, grads, first
    )


def _widened(x: Array) -> Array:
    """x [..., d_head] with a column of zeros behind: [..., d_head + 1]."""
    return np.concatenate([x, np.zeros((*x.shape[:-1], 1), x.dtype)], axis=-1)


def _last_unit(u: Array) -> Array:
    """[0, …, 0, 1] for each head, [H, d_head + 1]."""
    v = np.zeros_like(_widened(u))
    v[:, -1] = 1
    return v
