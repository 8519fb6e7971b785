"""What attention does before and after it attends, however positions are encoded.

Derived in docs/attention.md.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from npxl.layers.dropout import DropoutCache, Site, dropout_backward, dropout_forward
from npxl.layers.linear import (
    linear_backward,
    linear_backward_input,
    linear_backward_weight,
    linear_forward,
)

Array = NDArray[Any]


class ProjectionWeights(Protocol):
    """Parameters of one layer, or their gradients."""

    @property
    def w_q(self) -> Array:
        """[H·d_head, d_model]"""

    @property
    def w_k(self) -> Array:
        """[H·d_head, d_model]"""

    @property
    def w_v(self) -> Array:
        """[H·d_head, d_model]"""


def project_forward(
    context: Array, n_queries: int, weights: ProjectionWeights, n_heads: int
) -> tuple[Array, Array, Array]:
    """q_i = W_q h_i of the last q of K positions, k_j = W_k h̃_j and v_j = W_v h̃_j of all.

    context h̃ [B, K, d_model] is memory and segment; returns queries [B, q, H, d_head], and keys and
    values [B, K, H, d_head].
    """
    segment = context[:, context.shape[1] - n_queries :]  # [B, q, d_model]
    query, key, value = (
        linear_forward(x, weight).reshape(*x.shape[:2], n_heads, -1)
        for x, weight in (
            (segment, weights.w_q),
            (context, weights.w_k),
            (context, weights.w_v),
        )
    )
    return query, key, value


def project_backward(
    d_query: Array,
    d_key: Array,
    d_value: Array,
    context: Array,
    weights: ProjectionWeights,
    grads: ProjectionWeights,
    first: int = 0,
) -> Array:
    """The gradient of context[:, first:], [B, K − first, d_model]; adds to the arrays of `grads`.

    With first = K − q it is that of the segment alone.  W_k and W_v receive gradient from every
    position in any case.
    """
    n_memory = context.shape[1] - d_query.shape[1]
    d_query, d_key, d_value = map(_joined, (d_query, d_key, d_value))
    linear_backward_weight(d_key, context, grads.w_k)
    linear_backward_weight(d_value, context, grads.w_v)
    linear_backward_weight(d_query, context[:, n_memory:], grads.w_q)
    d_context = linear_backward_input(d_key[:, first:], weights.w_k)
    d_context += linear_backward_input(d_value[:, first:], weights.w_v)
    d_context[:, n_memory - first :] += linear_backward_input(d_query, weights.w_q)
    return d_context


def output_forward(
    attended: Array, w_o: Array, dropout: float, site: Site | None
) -> tuple[Array, DropoutCache | None]:
    """y_i = W_o o_i, and dropout: attended o [B, q, H, d_head] to y [B, q, d_model]."""
    return dropout_forward(linear_forward(_joined(attended), w_o), dropout, site)


def output_backward(
    dy: Array, attended: Array, dropout: DropoutCache | None, w_o: Array, d_w_o: Array
) -> Array:
    """The gradient of `attended`; adds to d_w_o [d_model, H·d_head]."""
    dy = dropout_backward(dy, dropout)
    return linear_backward(dy, _joined(attended), w_o, d_w_o).reshape(attended.shape)


def _joined(x: Array) -> Array:
    """Heads side by side: [B, n, H, d_head] to [B, n, H·d_head]."""
    return x.reshape(*x.shape[:2], -1)
