"""Positions that are added to the states that attention reads; docs/absolute_positions.md.

They count back from the segment's last token, in memory too, and are added where states are read:
what is cached has none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.layers.dropout import Site, dropout_forward
from npxl.layers.positions import (
    learned_positions_backward,
    learned_positions_forward,
    sinusoid,
)

Array = NDArray[Any]


def add_sinusoids(
    h: Array, memory: Array, clamp_len: int | None, dropout: float, site: Site | None
) -> tuple[Array, Array]:
    """h + U and memory + U, with the sinusoids U of Vaswani et al. 2017, section 3.5.

    h [B, q, d] are embeddings after dropout, by the mask that U is dropped by there too: it is that
    of the sum.  memory [B, m, d].  U is a constant, so both gradients pass as they are.
    """
    n_memory, d_model = memory.shape[1:]
    positions = sinusoid(n_memory + h.shape[1], d_model, clamp_len, h.dtype)  # [K, d]
    of_segment = np.broadcast_to(positions[n_memory:], h.shape)
    dropped, _ = dropout_forward(of_segment, dropout, site)
    return h + dropped, memory + positions[:n_memory]


def add_learned_forward(context: Array, table: Array) -> Array:
    """h̃ + P, with a layer's own table P [C + 1, d] (Al-Rfou et al. 2019): context [B, K, d]."""
    y: Array = context + learned_positions_forward(table, context.shape[1])
    return y


def add_learned_backward(d_context: Array, d_table: Array) -> None:
    """Adds to d_table; the gradient of the context is d_context [B, K, d] as it is."""
    learned_positions_backward(d_context.sum(0), d_table)
