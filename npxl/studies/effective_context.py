"""Relative effective context length (Dai et al. 2019, appendix C), from losses alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

THRESHOLD = 0.01


def baseline(losses: Array) -> Array:
    """b(c, t) = min_i ℓ_i(c, t): of the losses [M, T] of a group's models, [T]."""
    least: Array = losses.min(0)
    return least


def hardest(base: Array, r: float) -> Array:
    """T: the fraction r of all positions at which b(c, t) [T] is largest, as their numbers."""
    return np.argsort(-base, kind="stable")[: max(1, round(r * len(base)))]


def gain(losses: Array, shorter: int, longer: int, model: int, r: float) -> float:
    """g_i(c, c′) = (exp f_i(c, c) − exp f_i(c, c′)) / exp f_i(c, c), of a group's losses [M, C, T].

    f_i(c, c′) is the mean over t ∈ T of min(b(c, t), ℓ_i(c′, t)): no model is credited with what
    the best one of the group knew already.  shorter and longer are numbers of contexts c and c′.
    """
    base = baseline(losses[:, shorter])
    chosen = hardest(base, r)
    at_c, at_longer = (
        np.minimum(base, losses[model, context])[chosen].mean() for context in (shorter, longer)
    )
    return float(1 - np.exp(at_longer - at_c))


def effective_context(
    losses: Array, model: int, r: float, threshold: float = THRESHOLD
) -> tuple[int, bool]:
    """The number of the first context whose successor gains less than the threshold.

    From a group's losses [M, C, T] with contexts at equal steps.  Also whether that was seen:
    otherwise the number is that of the longest context, and the effective one may be longer.
    """
    n_contexts = losses.shape[1]
    for c in range(n_contexts - 1):
        if gain(losses, c, c + 1, model, r) < threshold:
            return c, True
    return n_contexts - 1, False
