"""The output layer: a softmax over frequent symbols and clusters of rare ones, one in each cluster.

Grave et al. 2017, with widths of Baevski & Auli 2019; derived in docs/adaptive_softmax.md.  With
one cluster and no projection it is the ordinary softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.layers.clusters import Members, cluster_members
from npxl.layers.linear import linear_backward, linear_forward
from npxl.layers.softmax import (
    OutputWeights,
    SoftmaxCache,
    log_softmax,
    softmax_backward,
    softmax_forward,
)

Array = NDArray[Any]


class SoftmaxCluster(NamedTuple):
    """Parameters of the softmax within one cluster, or their gradients.

    Of the first cluster, the head, there are two outputs if there are other clusters, the tails:
    after its symbols, one for each tail in order.
    """

    outputs: tuple[OutputWeights, ...]  # of V_i symbols first, [V_i, d_i] and [V_i]
    projection: Array | None = None  # [d, d_i]; without one, d_i is d


class ClusterCache(NamedTuple):
    """What the backward pass needs of one cluster."""

    places: Any  # [n] int, or a slice: the positions that need this cluster's softmax
    hidden: Array  # [n, d]
    softmax: SoftmaxCache


class AdaptiveSoftmaxCache(NamedTuple):
    """What the backward pass needs: of each cluster, and None of those that no target is in."""

    clusters: list[ClusterCache | None]


def adaptive_softmax_forward(
    hidden: Array, targets: Array, clusters: Sequence[SoftmaxCluster]
) -> tuple[Array, AdaptiveSoftmaxCache]:
    """nll = −log p(cluster of the target) − log p(target | its cluster), in nats.

    hidden [..., d], targets [...] int or IGNORE, whose nll is exactly 0; returns nll [...] in
    reading order.
    """
    rows = hidden.reshape(-1, hidden.shape[-1])  # [n, d]
    nll = np.zeros(len(rows), hidden.dtype)
    caches: list[ClusterCache | None] = []
    members = _members(targets.reshape(-1), clusters)
    for cluster, (places, symbols) in zip(clusters, members, strict=True):
        if symbols.size == 0:  # nothing of this cluster is read or written
            caches.append(None)
            continue
        own = rows[places]
        part, cache = softmax_forward(_narrowed(own, cluster), symbols, *cluster.outputs)
        nll[places] += part
        caches.append(ClusterCache(places, own, cache))
    return nll.reshape(targets.shape), AdaptiveSoftmaxCache(caches)


def adaptive_softmax_backward(
    dnll: Array,
    cache: AdaptiveSoftmaxCache,
    clusters: Sequence[SoftmaxCluster],
    grads: Sequence[SoftmaxCluster],
) -> Array:
    """Adds to the gradients of the clusters that a target is in; returns d_hidden [..., d]."""
    head = cache.clusters[0]
    assert head is not None
    d_rows = np.zeros_like(head.hidden)  # [n, d]
    for cluster, grad, cached in zip(clusters, grads, cache.clusters, strict=True):
        if cached is None:
            continue
        part = dnll.reshape(-1)[cached.places]
        d_own = softmax_backward(part, cached.softmax, cluster.outputs, grad.outputs)  # [n_i, d_i]
        if cluster.projection is not None:
            assert grad.projection is not None
            d_own = linear_backward(d_own, cached.hidden, cluster.projection.T, grad.projection.T)
        d_rows[cached.places] += d_own
    return d_rows.reshape(*dnll.shape, -1)


def adaptive_log_softmax(hidden: Array, clusters: Sequence[SoftmaxCluster]) -> Array:
    """log p of every symbol, in nats: hidden [..., d]; returns [..., V]."""
    first, *tails = clusters
    n_first = len(first.outputs[0].bias)
    head = log_softmax(_narrowed(hidden, first), *first.outputs)  # [..., V_0 + tails]
    if not tails:
        return head
    parts = [head[..., :n_first]]
    for column, tail in enumerate(tails, start=n_first):
        within = log_softmax(_narrowed(hidden, tail), *tail.outputs)  # [..., V_i]
        parts.append(head[..., column, None] + within)
    return np.concatenate(parts, axis=-1)


def _members(targets: Array, clusters: Sequence[SoftmaxCluster]) -> list[Members]:
    """Which positions need the softmax of each cluster, and for which of its symbols.

    All need the head's, where tail i is symbol V_0 + i − 1.
    """
    sizes = [len(cluster.outputs[0].bias) for cluster in clusters]
    _, *tails = cluster_members(targets, sizes)
    symbols = targets.copy()
    for column, tail in enumerate(tails, start=sizes[0]):
        symbols[tail.places] = column
    return [Members(slice(None), symbols), *tails]


def _narrowed(hidden: Array, cluster: SoftmaxCluster) -> Array:
    """Hidden states [..., d] at the width of the cluster: h P_i, [..., d_i]."""
    if cluster.projection is None:
        return hidden
    return linear_forward(hidden, cluster.projection.T)
