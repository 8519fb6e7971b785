"""Long short-term memory (Hochreiter & Schmidhuber 1997; Gers et al. 2000); docs/lstm.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.kernels.lstm import lstm_steps_backward, lstm_steps_forward
from npxl.kernels.packing import pack_transposed, round_up
from npxl.kernels.vectors import TILE_COLUMNS, TILE_ROWS
from npxl.layers.linear import linear_backward, linear_backward_weight, linear_forward

Array = NDArray[Any]


class LSTMWeights(NamedTuple):
    """Parameters of one layer, or their gradients: rows of i, f, o and g, one block after another.

    i, f and o are the input, forget and output gates, and g is what is offered to the cell.
    """

    w_x: Array  # [4d, D]
    w_h: Array  # [4d, d]
    bias: Array  # [4d]


class LSTMCache(NamedTuple):
    """What the backward pass needs, step after step; rows and columns in excess are zero."""

    x: Array  # [T, B, D]
    gates: Array  # [T, B′, G]: i, f, o and g
    hidden: Array  # [T + 1, B′, d], the state before the segment first
    cells: Array  # [T + 1, B, d]
    squashed: Array  # [T, B, d]: tanh(c)

    @property
    def state(self) -> Array:
        """h and c after the segment, [B, 2, d]."""
        last = self.cells[-1]
        return np.stack([self.hidden[-1, : len(last)], last], axis=1)


def lstm_forward(
    x: Array, state: Array, weights: LSTMWeights, w_h_t: Array | None = None
) -> tuple[Array, LSTMCache]:
    """With a_t = W_x x_t + W_h h_{t−1} + b in four blocks, for one step after another:

        i, f, o = σ(a_i), σ(a_f), σ(a_o),  g = tanh(a_g)
        c_t = f ⊙ c_{t−1} + i ⊙ g,         h_t = o ⊙ tanh(c_t)

    x [B, T, D], state [B, 2, d] with h_0 and c_0; returns y = h_1 … h_T, [B, T, d].  `w_h_t` is
    `recurrent_tiles(w_h)`, when it is there already.
    """
    n_streams, n_steps, _ = x.shape
    d = weights.w_h.shape[1]
    n_rows, n_columns = round_up(n_streams, TILE_ROWS), round_up(4 * d, TILE_COLUMNS)
    x = np.ascontiguousarray(x.swapaxes(0, 1))  # [T, B, D]
    gates = np.zeros((n_steps, n_rows, n_columns), x.dtype)
    gates[:, :n_streams, : 4 * d] = linear_forward(x, weights.w_x, weights.bias)
    hidden = np.zeros((n_steps + 1, n_rows, d), x.dtype)
    cells = np.empty((n_steps + 1, n_streams, d), x.dtype)
    hidden[0, :n_streams], cells[0] = state[:, 0], state[:, 1]
    squashed = np.empty((n_steps, n_streams, d), x.dtype)
    w_h_t = recurrent_tiles(weights.w_h) if w_h_t is None else w_h_t
    lstm_steps_forward(gates, w_h_t, hidden, cells, squashed)
    y = hidden[1:, :n_streams].swapaxes(0, 1)  # [B, T, d]
    return y, LSTMCache(x, gates, hidden, cells, squashed)


def lstm_backward(dy: Array, cache: LSTMCache, weights: LSTMWeights, grads: LSTMWeights) -> Array:
    """Backpropagation through time, which ends at the state before the segment, a constant.

    With dh and dc what later steps send back, from the last step to the first:

        dc ← dc + dh ⊙ o ⊙ (1 − tanh² c_t)
        da_i = dc ⊙ g ⊙ i (1 − i),        da_f = dc ⊙ c_{t−1} ⊙ f (1 − f)
        da_o = dh ⊙ tanh c_t ⊙ o (1 − o),  da_g = dc ⊙ i ⊙ (1 − g²)
        dc ← dc ⊙ f,                       dh ← dy_{t−1} + W_hᵀ da

    dy [B, T, d]; adds to the arrays of `grads`; returns dx = da W_x, [B, T, D].
    """
    n_streams, d = cache.cells.shape[1:]
    d_hidden = np.ascontiguousarray(dy.swapaxes(0, 1))  # [T, B, d]
    d_gates = np.zeros_like(cache.gates)  # [T, B′, G]
    lstm_steps_backward(
        d_hidden, cache.gates, cache.cells, cache.squashed, recurrent_tiles(weights.w_h.T), d_gates
    )
    d_a = d_gates[:, :n_streams, : 4 * d]  # [T, B, 4d]
    linear_backward_weight(d_a, cache.hidden[:-1, :n_streams], grads.w_h)
    dx = linear_backward(d_a, cache.x, weights.w_x, grads.w_x, grads.bias)  # [T, B, D]
    by_stream: Array = dx.swapaxes(0, 1)
    return by_stream


def recurrent_tiles(weight: Array) -> Array:
    """Wᵀ of a weight [E, D] in tiles of C columns, [⌈E / C⌉, D, C], as kernels multiply by."""
    tiles: Array = pack_transposed(np.ascontiguousarray(weight)[:, None], (0, 1))[0]
    return tiles
