"""Linear maps of the last axis; derived in docs/linear.md."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


def linear_forward(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """y = x Wᵀ + b.

    x [..., D], weight [E, D], bias [E]; returns y [..., E].  The backward pass needs only x.
    """
    y: Array = x.reshape(-1, x.shape[-1]) @ weight.T  # [n, E]
    if bias is not None:
        y += bias
    return y.reshape(*x.shape[:-1], len(weight))


def linear_backward(
    dy: Array, x: Array, weight: Array, d_weight: Array, d_bias: Array | None = None
) -> Array:
    """dx = dy W; adds dyᵀ x to d_weight [E, D] and Σ dy to d_bias [E]."""
    dy_rows = dy.reshape(-1, dy.shape[-1])  # [n, E]
    d_weight += dy_rows.T @ x.reshape(-1, x.shape[-1])
    if d_bias is not None:
        d_bias += dy_rows.sum(0)
    return (dy_rows @ weight).reshape(x.shape)
