"""Embeddings, multiplied by √d_model; a table for each cluster; derived in docs/embedding.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.kernels.scatter import scatter_add
from npxl.layers.clusters import Members, cluster_members
from npxl.layers.linear import (
    linear_backward_input,
    linear_backward_weight,
    linear_forward,
)

Array = NDArray[Any]


class EmbeddingCluster(NamedTuple):
    """Parameters of the embeddings of one cluster of symbols, or their gradients."""

    table: Array  # [V_i, d_i]
    projection: Array | None = None  # [d, d_i]; without one, d_i is d


def embedding_forward(tokens: Array, clusters: Sequence[EmbeddingCluster]) -> Array:
    """y = √d · P_i E_i[token − start of i], with i the cluster of the token.

    tokens [...] int; the clusters divide the symbols in order; returns y [..., d].  The backward
    pass needs only the tokens.
    """
    first = clusters[0]
    d = first.table.shape[1] if first.projection is None else len(first.projection)
    y: Array = np.empty((tokens.size, d), first.table.dtype)
    members = _members(tokens.reshape(-1), clusters)
    for (table, projection), (places, symbols) in zip(clusters, members, strict=True):
        rows = table[symbols]  # [n_i, d_i]
        y[places] = rows if projection is None else linear_forward(rows, projection)
    y *= _scale(y)
    return y.reshape(*tokens.shape, d)


def embedding_backward(
    dy: Array,
    tokens: Array,
    clusters: Sequence[EmbeddingCluster],
    grads: Sequence[EmbeddingCluster],
) -> None:
    """Adds √d · P_iᵀ dy to the row of each token, and √d · dy Eᵀ to the projections.

    A row receives a contribution for every time that its symbol occurs, and the others none.
    """
    d_rows = dy.reshape(-1, dy.shape[-1])  # [n, d]
    scale, members = _scale(dy), _members(tokens.reshape(-1), clusters)
    for cluster, grad, (places, symbols) in zip(clusters, grads, members, strict=True):
        d_row = d_rows[places]  # [n_i, d]
        if cluster.projection is not None:
            assert grad.projection is not None
            rows = cluster.table[symbols] * scale  # [n_i, d_i]
            linear_backward_weight(d_row, rows, grad.projection)
            d_row = linear_backward_input(d_row, cluster.projection)  # [n_i, d_i]
        scatter_add(grad.table, symbols, d_row, scale)


def _members(tokens: Array, clusters: Sequence[EmbeddingCluster]) -> Iterator[Members]:
    return cluster_members(tokens, [len(cluster.table) for cluster in clusters])


def _scale(y: Array) -> Any:
    """√d for vectors y [..., d], in their precision."""
    return y.dtype.type(math.sqrt(y.shape[-1]))
