"""Softmax and negative log-likelihood of one target a row."""

from __future__ import annotations

import numpy as np

from npxl.kernels import kernel
from npxl.kernels.exponential import exp


@kernel
def cross_entropy_forward(logits, targets, nll):
    """Overwrite logits [N, V] by probabilities, and nll [N] by −log p of the targets [N]."""
    zero, one = logits.dtype.type(0), logits.dtype.type(1)
    for n in range(logits.shape[0]):
        row = logits[n]
        target_logit = row[targets[n]]
        largest = row[0]
        for j in range(row.size):
            largest = row[j] if row[j] > largest else largest
        total = zero
        for j in range(row.size):
            weight = exp(row[j] - largest)
            row[j] = weight
            total += weight
        normaliser = one / total
        for j in range(row.size):
            row[j] *= normaliser
        nll[n] = np.log(total) + (largest - target_logit)


@kernel
def cross_entropy_backward(probabilities, targets, d_nll, d_logits):
    """Write (p − [j = target]) · d_nll into d_logits [N, V]."""
    for n in range(probabilities.shape[0]):
        p = probabilities[n]
        row = d_logits[n]
        for j in range(p.size):
            row[j] = p[j] * d_nll[n]
        row[targets[n]] -= d_nll[n]


@kernel
def log_softmax(logits):
    """Overwrite logits [N, V] by log-probabilities."""
    zero = logits.dtype.type(0)
    for n in range(logits.shape[0]):
        row = logits[n]
        largest = row[0]
        for j in range(row.size):
            largest = row[j] if row[j] > largest else largest
        total = zero
        # The largest is subtracted first and for good: added to log(total), it would swamp it.
        for j in range(row.size):
            row[j] -= largest
            total += exp(row[j])
        log_total = np.log(total)
        for j in range(row.size):
            row[j] -= log_total
