"""Token embeddings, multiplied by √d_model; derived in docs/embedding.md."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from npxl.kernels.scatter import scatter_add

Array = NDArray[Any]


def embedding_forward(tokens: Array, table: Array) -> Array:
    """y = √d · E[token].

    tokens [...] int, table E [V, d]; returns y [..., d].  The backward pass needs only the tokens.
    """
    y: Array = table[tokens] * table.dtype.type(math.sqrt(table.shape[1]))
    return y


def embedding_backward(dy: Array, tokens: Array, d_table: Array) -> None:
    """Adds √d · dy to the rows of d_table [V, d], once for every time that a token occurs."""
    rows = dy.reshape(-1, dy.shape[-1])  # [n, d]
    scale = dy.dtype.type(math.sqrt(d_table.shape[1]))
    scatter_add(d_table, tokens.reshape(-1), rows, scale)
