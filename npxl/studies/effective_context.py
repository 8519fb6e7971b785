"""Relative effective context length (Dai et al. 2019, appendix C), from losses alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.studies.statistics import N_BLOCKS, Estimate, over_text

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


def own_change(losses: Array, shorter: int, longer: int, model: int, r: float) -> Estimate:
    """The mean of ℓ_i(c′, t) − ℓ_i(c, t) where predictions are hard, with its interval.

    What f takes the minimum with b away from, which keeps what has become better and leaves out
    what has become worse: a gain may be all chance where this is not below zero.  Hard is where the
    best model's mean loss after all *other* contexts is in the largest fraction r: where ℓ_i(c, t)
    itself is large, it falls by chance.  At least three contexts are needed.
    """
    others = np.delete(losses, [shorter, longer], axis=1).mean(1)  # [M, T]
    chosen = np.sort(hardest(baseline(others), r))  # in reading order
    return over_text((losses[model, longer] - losses[model, shorter])[chosen])


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


def resampled(losses: Array, r: float, n_texts: int, seed: int = 0) -> NDArray[np.int64]:
    """`effective_context` of all models on the same resampled texts: numbers [n_texts, M].

    By the bootstrap of blocks: each text is made of as many blocks of successive positions of
    losses [M, C, T], in reading order, drawn with replacement.
    """
    draw = np.random.default_rng(seed)
    blocks = np.array_split(np.arange(losses.shape[2]), min(N_BLOCKS, losses.shape[2]))
    found = np.empty((n_texts, len(losses)), np.int64)
    for row in found:
        chosen = np.concatenate([blocks[n] for n in draw.integers(len(blocks), size=len(blocks))])
        text = losses[:, :, chosen]
        row[:] = [effective_context(text, model, r)[0] for model in range(len(losses))]
    return found


def interval(found: Array) -> tuple[int, int]:
    """The lowest and the highest number of 95 % of resampled texts [n]."""
    low, high = np.percentile(found, [2.5, 97.5], method="nearest")
    return int(low), int(high)
