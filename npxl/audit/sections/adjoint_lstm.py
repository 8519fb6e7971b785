"""Adjoint identities of an LSTM's layer, whose steps are products of what was computed before.

A layer returns neither what its gates are before σ and tanh, a, nor the gradients within a step.
But σ and tanh can be inverted, and where W_x is the identity the gradient of the inputs is that of
a; docs/audit.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Result
from npxl.audit.sections.identity import identity
from npxl.config import LSTMConfig
from npxl.layers.lstm import LSTMWeights, lstm_backward, lstm_forward

Array = NDArray[Any]

_BATCH_SIZE, _N_STEPS = 5, 7  # more streams than a tile has rows


def steps_of_lstm(config: LSTMConfig, draw: np.random.Generator) -> Iterator[Result]:
    """Each product of a step, of both of its factors."""
    d, shape = config.d_model, (_BATCH_SIZE, _N_STEPS)
    x, state = draw.standard_normal((*shape, d)), draw.standard_normal((_BATCH_SIZE, 2, d))
    dy = draw.standard_normal((*shape, d))
    weights = LSTMWeights(
        draw.standard_normal((4 * d, d)) / np.sqrt(d),
        draw.standard_normal((4 * d, d)) / np.sqrt(d),
        draw.standard_normal(4 * d),
    )
    _, grads, dx = _walk(x, state, weights, dy)
    yield identity("LSTM's W x of x and of W", x, dx, weights.w_x, grads.w_x)

    weights, x = weights._replace(w_x=np.eye(4 * d)), x @ weights.w_x.T
    cache, grads, da = _walk(x, state, weights, dy)  # da [B, T, 4d]
    gates = cache.gates[:, :_BATCH_SIZE, : 4 * d].swapaxes(0, 1)  # [B, T, 4d]
    i, f, o, g = np.split(gates, 4, axis=-1)
    a = np.concatenate([np.log(gates[..., : 3 * d] / (1 - gates[..., : 3 * d])), np.arctanh(g)], -1)
    hidden = cache.hidden[:, :_BATCH_SIZE].swapaxes(0, 1)  # [B, T + 1, d], the state first
    cells = cache.cells.swapaxes(0, 1)  # [B, T + 1, d]
    squashed = np.tanh(cells[:, 1:])
    wh, fc = a - x - weights.bias, cells[:, 1:] - i * g  # W_h h and f ⊙ c of the step before
    di, df, do, dg = np.split(da, 4, axis=-1)
    di, df, do = (each / (gate * (1 - gate)) for each, gate in ((di, i), (df, f), (do, o)))
    dg = dg / (1 - g * g)
    dh, dc = do / squashed, di / g  # of a step's own h and c
    dc_by_h = dh * o * (1 - squashed * squashed)

    bias = np.broadcast_to(weights.bias, da.shape)
    yield identity("LSTM's bias", bias, da, weights.bias, grads.bias)
    yield identity("LSTM's W h of W", wh, da, weights.w_h, grads.w_h)
    yield identity("LSTM's W h of h", wh[:, 1:], da[:, 1:], hidden[:, 1:-1], (dh - dy)[:, :-1])
    yield identity("LSTM's i ⊙ g of i and of g", i, di, g, dg)
    yield identity("LSTM's f ⊙ c of f", fc, dc, f, df)
    yield identity(
        "LSTM's f ⊙ c of c", fc[:, 1:], dc[:, 1:], cells[:, 1:-1], (dc - dc_by_h)[:, :-1]
    )


def _walk(
    x: Array, state: Array, weights: LSTMWeights, dy: Array
) -> tuple[Any, LSTMWeights, Array]:
    """There and back: the cache, and the gradients of weights and inputs."""
    _, cache = lstm_forward(x, state, weights)
    grads = LSTMWeights(*map(np.zeros_like, weights))
    return cache, grads, lstm_backward(dy, cache, weights, grads)
