"""The LSTM as it is written down, as `npxl.reference` is Transformer-XL: the oracle.

One stream, one step, one unit at a time, on real arrays or complex ones.  Equations are those of
Zaremba et al. 2014, section 3.1, and both ends are Transformer-XL's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.config import LSTMConfig
from npxl.reference import Mask, Output, embedding, no_dropout, scores

Array = NDArray[Any]


def forward(
    params: Mapping[str, Array],
    config: LSTMConfig,
    inputs: Array,
    targets: Array,
    memory: Sequence[Array],
    mask: Mask = no_dropout,
    embedded: Array | None = None,
) -> Output:
    """Score one segment.

    inputs [B, E+T] and targets [B, T] int, −1 for what is not scored; memory n_layer arrays
    [B, 2, d_model], the hidden state and the cell.  The last T positions are scored.  `embedded`
    [B, E+T, d_model] replaces the embeddings of the inputs.
    """
    if embedded is None:
        embedded = np.array([[embedding(params, config, token) for token in row] for row in inputs])
    x = mask("embedding", embedded)  # [B, q, d]
    after = []
    for n in range(config.n_layer):
        y = np.zeros(x.shape, np.result_type(x, params[f"layers.{n}.w_x"]))
        states = np.zeros(memory[n].shape, y.dtype)
        for b in range(len(x)):
            h, c = memory[n][b]
            for t in range(x.shape[1]):
                h, c = step(params, n, x[b, t], h, c)
                y[b, t] = h
            states[b] = h, c
        after.append(states)
        x = mask(f"layers.{n}.output", y)

    nll, log_probs = scores(params, config, x, targets)
    return Output(nll, log_probs, after, kink=math.inf)


def step(params: Mapping[str, Array], n: int, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """h and c of layer n after one more input, from those before: all of them [d]."""
    w_x, w_h, bias = (params[f"layers.{n}.{name}"] for name in ("w_x", "w_h", "bias"))
    d = len(h)
    new_h, new_c = [], []
    for k in range(d):
        i, f, o, g = (
            w_x[block * d + k] @ x + w_h[block * d + k] @ h + bias[block * d + k]
            for block in range(4)
        )
        new_c.append(sigmoid(f) * c[k] + sigmoid(i) * np.tanh(g))
        new_h.append(sigmoid(o) * np.tanh(new_c[k]))
    return np.array(new_h), np.array(new_c)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^−x)."""
    return 1 / (1 + np.exp(-x))
