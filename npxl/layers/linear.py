"""Linear maps of the last axis; derived in docs/linear.md."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.threads import spread

Array = NDArray[Any]

_PRODUCT = 2**20
"""Numbers of a weight's gradient that are computed before they are added: not a second table."""


def linear_forward(
    x: Array, weight: Array, bias: Array | None = None, out: Array | None = None
) -> Array:
    """y = x Wᵀ + b.

    x [..., D], weight [E, D], bias [E]; returns y [..., E], which is written to `out` [n, E] if
    given.  The backward pass needs only x.
    """
    rows = x.reshape(-1, x.shape[-1])  # [n, D]
    y: Array = np.empty((len(rows), len(weight)), x.dtype) if out is None else out

    def task(part: range) -> None:
        columns = slice(part.start, part.stop)
        np.matmul(rows, weight[columns].T, out=y[:, columns])

    spread(task, len(weight), cost=rows.size * len(weight))
    if bias is not None:
        y += bias
    return y.reshape(*x.shape[:-1], len(weight))


def linear_backward(
    dy: Array, x: Array, weight: Array, d_weight: Array, d_bias: Array | None = None
) -> Array:
    """dx = dy W; adds dyᵀ x to d_weight [E, D] and Σ dy to d_bias [E]."""
    linear_backward_weight(dy, x, d_weight, d_bias)
    return linear_backward_input(dy, weight).reshape(x.shape)


def linear_backward_input(dy: Array, weight: Array) -> Array:
    """dx = dy W alone: [..., D]."""
    dy_rows = dy.reshape(-1, dy.shape[-1])  # [n, E]
    dx: Array = np.empty((len(dy_rows), weight.shape[1]), dy.dtype)

    def task(part: range) -> None:
        rows = slice(part.start, part.stop)
        np.matmul(dy_rows[rows], weight, out=dx[rows])

    spread(task, len(dy_rows), cost=dy_rows.size * weight.shape[1])
    return dx.reshape(*dy.shape[:-1], weight.shape[1])


def linear_backward_weight(
    dy: Array, x: Array, d_weight: Array, d_bias: Array | None = None
) -> None:
    """The gradients of weight and bias alone, added as by `linear_backward`: for a constant x."""
    dy_rows, x_rows = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])  # [n, E], [n, D]
    at_once = max(1, _PRODUCT // x.shape[-1])

    def task(part: range) -> None:
        for start in range(part.start, part.stop, at_once):
            outputs = slice(start, min(start + at_once, part.stop))
            d_weight[outputs] += dy_rows[:, outputs].T @ x_rows

    spread(task, len(d_weight), cost=dy_rows.size * x.shape[-1])
    if d_bias is not None:
        d_bias += dy_rows.sum(0)
