"""Adding rows into a table, repeated indices included."""

from __future__ import annotations

from npxl.kernels import kernel


@kernel
def scatter_add(table, indices, rows, scale):
    """table[indices[n]] += scale · rows[n] for every n in order: table [V, D], rows [N, D]."""
    for n in range(indices.size):
        target = table[indices[n]]
        row = rows[n]
        for d in range(row.size):
            target[d] += scale * row[d]
