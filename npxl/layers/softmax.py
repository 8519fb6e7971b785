"""The output layer: softmax over the vocabulary and cross-entropy; derived in docs/softmax.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.kernels.cross_entropy import (
    cross_entropy_backward,
    cross_entropy_forward,
    log_softmax_rows,
)
from npxl.layers.linear import linear_backward, linear_forward

Array = NDArray[Any]


class SoftmaxCache(NamedTuple):
    """What the backward pass needs."""

    hidden: Array  # [B, T, d]
    targets: Array  # [B, T]
    probabilities: Array  # [B·T, V]


def softmax_forward(
    hidden: Array, targets: Array, weight: Array, bias: Array
) -> tuple[Array, SoftmaxCache]:
    """nll = −log softmax(h Wᵀ + b)[target], in nats.

    hidden [B, T, d], targets [B, T] int, weight [V, d] (the embedding table when tied), bias [V];
    returns nll [B, T] in reading order.
    """
    probabilities = linear_forward(hidden, weight, bias).reshape(-1, len(weight))  # logits so far
    nll = np.empty(targets.size, hidden.dtype)
    cross_entropy_forward(probabilities, targets.reshape(-1), nll)
    return nll.reshape(targets.shape), SoftmaxCache(hidden, targets, probabilities)


def softmax_backward(
    dnll: Array, cache: SoftmaxCache, weight: Array, d_weight: Array, d_bias: Array
) -> Array:
    """d_logits = dnll · (p − [symbol = target]); adds to d_weight and d_bias; returns d_hidden."""
    d_logits = np.empty_like(cache.probabilities)  # [B·T, V]
    cross_entropy_backward(
        cache.probabilities, cache.targets.reshape(-1), dnll.reshape(-1), d_logits
    )
    return linear_backward(d_logits, cache.hidden, weight, d_weight, d_bias)


def log_softmax(hidden: Array, weight: Array, bias: Array) -> Array:
    """log p of every symbol, in nats: hidden [..., d]; returns [..., V]."""
    logits = linear_forward(hidden, weight, bias)  # [..., V]
    log_softmax_rows(logits.reshape(-1, len(weight)))
    return logits
