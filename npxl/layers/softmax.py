"""A softmax over some symbols, and cross-entropy; derived in docs/softmax.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.kernels.cross_entropy import (
    IGNORE,
    cross_entropy_backward,
    cross_entropy_forward,
    log_softmax_rows,
)
from npxl.layers.linear import linear_backward, linear_forward

Array = NDArray[Any]


class OutputWeights(NamedTuple):
    """Parameters of the logits of some symbols, or their gradients."""

    weight: Array  # [V, d], the embedding table when tied
    bias: Array  # [V]


class SoftmaxCache(NamedTuple):
    """What the backward pass needs."""

    hidden: Array  # [..., d]
    targets: Array  # [...]
    probabilities: Array  # [n, V]; of targets to ignore, logits


def softmax_forward(
    hidden: Array, targets: Array, *outputs: OutputWeights
) -> tuple[Array, SoftmaxCache]:
    """nll = −log softmax(h Wᵀ + b)[target], in nats; exactly 0 for the target `IGNORE`.

    hidden [..., d], targets [...] int; W and b are those of all outputs one below the other;
    returns nll [...].
    """
    probabilities = _logits(hidden, outputs)  # [n, V], and logits so far
    nll = np.empty(targets.size, hidden.dtype)
    cross_entropy_forward(probabilities, targets.reshape(-1), nll)
    return nll.reshape(targets.shape), SoftmaxCache(hidden, targets, probabilities)


def softmax_backward(
    dnll: Array,
    cache: SoftmaxCache,
    outputs: Sequence[OutputWeights],
    grads: Sequence[OutputWeights],
) -> Array:
    """d_logits = dnll · (p − [symbol = target]); adds to the gradients; returns d_hidden."""
    d_logits = np.empty_like(cache.probabilities)  # [n, V]
    cross_entropy_backward(
        cache.probabilities, cache.targets.reshape(-1), dnll.reshape(-1), d_logits
    )
    d_hidden, *others = (
        linear_backward(d_logits[:, columns], cache.hidden, weight, *grad)
        for columns, (weight, _), grad in zip(_columns(outputs), outputs, grads, strict=True)
    )
    for other in others:
        d_hidden += other
    return d_hidden


def n_scored(targets: Array) -> int:
    """Number of targets that are not to be ignored."""
    return int(np.count_nonzero(targets != IGNORE))


def log_softmax(hidden: Array, *outputs: OutputWeights) -> Array:
    """log p of every symbol, in nats: hidden [..., d]; returns [..., V]."""
    log_p = _logits(hidden, outputs)
    log_softmax_rows(log_p)
    return log_p.reshape(*hidden.shape[:-1], -1)


def _logits(hidden: Array, outputs: Sequence[OutputWeights]) -> Array:
    """a = h Wᵀ + b: [n, V]."""
    rows = hidden.reshape(-1, hidden.shape[-1])  # [n, d]
    logits: Array = np.empty((len(rows), sum(len(bias) for _, bias in outputs)), hidden.dtype)
    for columns, output in zip(_columns(outputs), outputs, strict=True):
        linear_forward(rows, *output, out=logits[:, columns])
    return logits


def _columns(outputs: Sequence[OutputWeights]) -> Iterator[slice]:
    """Where the symbols of each output are among those of all."""
    bounds = accumulate((len(bias) for _, bias in outputs), initial=0)
    return (slice(*pair) for pair in pairwise(bounds))
