"""Heads, side by side in what linear maps give, one behind another in what tiles are made from.

Each is walked in the order in which x [n, H, D] lies in memory: the pieces of one head would come
from far apart.
"""

from __future__ import annotations

import numpy as np

from npxl.kernels import kernel
from npxl.kernels.vectors import TILE_COLUMNS, TILE_ROWS


@kernel
def round_up(n, size):
    """n, or the next larger multiple of a tile's size."""
    return (n + size - 1) // size * size


@kernel
def pack(x, heads):
    """Some heads of x [n, H, D], rows and columns continued by zeros to tiles: [heads, n′, D′]."""
    n, _, width = x.shape
    shape = (heads[1] - heads[0], round_up(n, TILE_ROWS), round_up(width, TILE_COLUMNS))
    y = np.zeros(shape, x.dtype)
    pack_into(y, 0, 0, x, heads)
    return y


@kernel
def pack_into(y, first, at, x, heads):
    """Overwrite rows of y [H, n′, D′], from row `at` and head `first` on, as `pack` would."""
    for i in range(x.shape[0]):
        for h in range(heads[0], heads[1]):
            for d in range(x.shape[2]):
                y[first + h - heads[0], at + i, d] = x[i, h, d]


@kernel
def pack_biased(x, bias, heads):
    """`pack` of x + bias, whose rows are bias [H, D]."""
    y = pack(x, heads)
    for h in range(heads[0], heads[1]):
        for i in range(x.shape[0]):
            for d in range(x.shape[2]):
                y[h - heads[0], i, d] += bias[h, d]
    return y


@kernel
def pack_transposed(x, heads):
    """xᵀ of some heads of x [n, H, D], in tiles of C columns: [heads, tiles, D, C].

    A tile's rows lie one behind another, so that a product that walks down them stays in the
    nearest cache.
    """
    n, _, width = x.shape
    n_tiles = round_up(n, TILE_COLUMNS) // TILE_COLUMNS
    y = np.zeros((heads[1] - heads[0], n_tiles, width, TILE_COLUMNS), x.dtype)
    pack_transposed_into(y, 0, 0, x, heads)
    return y


@kernel
def pack_transposed_into(y, first, at, x, heads):
    """Overwrite columns of y [H, tiles, D, C], from column `at` and head `first` on, likewise."""
    for i in range(x.shape[0]):
        tile, column = (at + i) // TILE_COLUMNS, (at + i) % TILE_COLUMNS
        for h in range(heads[0], heads[1]):
            rows = y[first + h - heads[0], tile]
            for d in range(x.shape[2]):
                rows[d, column] = x[i, h, d]


@kernel
def unpack(y, heads, x):
    """The inverse of `pack`: overwrites those heads of x [n, H, D]."""
    for i in range(x.shape[0]):
        for h in range(heads[0], heads[1]):
            for d in range(x.shape[2]):
                x[i, h, d] = y[h - heads[0], i, d]
