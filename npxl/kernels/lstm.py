"""The walk of an LSTM layer through a segment, and back: one step after another.

All that does not wait for the step before, the products with inputs and the gradients of weights,
is done outside for the whole segment at once.
"""

from __future__ import annotations

import numpy as np

from npxl.kernels import kernel
from npxl.kernels.hyperbolic import sigmoid, tanh
from npxl.kernels.vectors import TILE_COLUMNS, TILE_ROWS, multiply_tile


@kernel
def lstm_steps_forward(gates, w_h_t, hidden, cells, squashed):
    """Fill hidden and cells from their first entries, the state before the segment, on.

    gates [T, B′, G] hold W_x x + b and are overwritten by i, f, o and g side by side, G ≥ 4d.
    w_h_t [G / C, d, C] is W_hᵀ in tiles, hidden [T + 1, B′, d], cells [T + 1, B, d], and squashed
    [T, B, d] becomes tanh(c).  B′ is a multiple of 4 and the last rows, of no stream, are zero.
    """
    for t in range(len(gates)):
        _multiply_rows(hidden[t], w_h_t, gates[t], True)
        for b in range(cells.shape[1]):
            _step_of_one(gates[t, b], cells[t, b], cells[t + 1, b], squashed[t, b])
            _open_by(gates[t, b], squashed[t, b], hidden[t + 1, b])


@kernel
def lstm_steps_backward(d_hidden, gates, cells, squashed, w_h, d_gates):
    """Fill d_gates [T, B′, G], of what the gates were before σ and tanh; the rest of it is zero.

    d_hidden [T, B, d] is the gradient of the layer's outputs; gates, cells and squashed are as the
    way forward has left them; w_h [d′ / C, 4d, C] is W_h in tiles.  The state before the segment,
    a constant, has no gradient.
    """
    n_steps, n_streams, d = d_hidden.shape
    d_next = np.zeros((gates.shape[1], w_h.shape[0] * TILE_COLUMNS), gates.dtype)  # W_hᵀ d_gates
    d_cell = np.zeros((n_streams, d), gates.dtype)  # through the next step's f
    one = gates.dtype.type(1)
    for t in range(n_steps - 1, -1, -1):
        for b in range(n_streams):
            row, d_row = gates[t, b], d_gates[t, b]
            for k in range(d):
                i, f, o, g = row[k], row[d + k], row[2 * d + k], row[3 * d + k]
                y = squashed[t, b, k]
                dh = d_hidden[t, b, k] + d_next[b, k]
                dc = d_cell[b, k] + dh * o * (one - y * y)
                d_row[k] = dc * g * i * (one - i)
                d_row[d + k] = dc * cells[t, b, k] * f * (one - f)
                d_row[2 * d + k] = dh * y * o * (one - o)
                d_row[3 * d + k] = dc * i * (one - g * g)
                d_cell[b, k] = dc * f
        if t > 0:
            _multiply_rows(d_gates[t], w_h, d_next, False)


@kernel
def _step_of_one(gates, before, cell, squashed):
    """i, f, o = σ(·) and g = tanh(·) in gates [G]; cell [d] = f ⊙ before + i ⊙ g, and its tanh."""
    d = cell.size
    # Loops over few arrays each, of which LLVM makes vectors.
    for k in range(3 * d):
        gates[k] = sigmoid(gates[k])
    for k in range(3 * d, 4 * d):
        gates[k] = tanh(gates[k])
    for k in range(d):
        cell[k] = gates[d + k] * before[k] + gates[k] * gates[3 * d + k]
    for k in range(d):
        squashed[k] = tanh(cell[k])


@kernel
def _open_by(gates, squashed, hidden):
    """hidden [d] = o ⊙ squashed."""
    d = hidden.size
    for k in range(d):
        hidden[k] = gates[2 * d + k] * squashed[k]


@kernel
def _multiply_rows(a, tiles, out, add):
    """out [B′, ·] = A B, or += A B; A: the first n columns of a [B′, ·], B: in tiles [·, n, C]."""
    for tile in range(len(tiles)):
        for b in range(0, len(a), TILE_ROWS):
            multiply_tile(
                a, b * a.shape[1], (a.shape[1], 1), tiles[tile], 0, TILE_COLUMNS,
                out, b * out.shape[1] + tile * TILE_COLUMNS, out.shape[1], tiles.shape[1], add,
            )  # fmt: skip
