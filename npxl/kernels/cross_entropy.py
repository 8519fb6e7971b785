"""Softmax and negative log-likelihood of one target a row."""

from __future__ import annotations

import numpy as np

from npxl.kernels import kernel
from npxl.kernels.exponential import exp

IGNORE = -1
"""The target of a position that is not scored, such as padding: it has no loss and no gradient."""


@kernel
def cross_entropy_forward(logits, targets, nll):
    """Overwrite logits a [N, V] by p = softmax(a), and nll [N] by log Σ_j e^{a_j} − a_target.

    Where the target is IGNORE, nll is 0 and the logits stay.
    """
    zero, one = logits.dtype.type(0), logits.dtype.type(1)
    for n in range(logits.shape[0]):
        if targets[n] == IGNORE:
            nll[n] = zero
            continue
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
        normalizer = one / total
        for j in range(row.size):
            row[j] *= normalizer
        nll[n] = np.log(total) + (largest - target_logit)


@kernel
def cross_entropy_backward(probabilities, targets, dnll, d_logits):
    """Write da_j = (p_j − [j = target]) · dnll into d_logits [N, V], 0 for the target IGNORE."""
    for n in range(probabilities.shape[0]):
        p = probabilities[n]
        row = d_logits[n]
        if targets[n] == IGNORE:
            row[:] = 0
            continue
        for j in range(p.size):
            row[j] = p[j] * dnll[n]
        row[targets[n]] -= dnll[n]


@kernel
def log_softmax_rows(logits):
    """Overwrite logits a [N, V] by log-probabilities a_j − log Σ_k e^{a_k}."""
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
