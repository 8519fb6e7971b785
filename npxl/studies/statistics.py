"""Means with error bars: neighbouring tokens are not independent, blocks of a text nearly are."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.errors import NpxlError

Array = NDArray[Any]

N_BLOCKS = 30
_T_95 = 2.045
"""Of Student's distribution with N_BLOCKS − 1 degrees of freedom: 95 % lie within ± this."""


class Estimate(NamedTuple):
    """A value, and half the width of the interval around it: of a mean, unless said, of 95 %."""

    mean: float
    error: float

    @classmethod
    def between(cls, low: float, high: float) -> Estimate:
        """With that interval."""
        return cls((low + high) / 2, (high - low) / 2)

    def is_above(self, bound: float = 0.0) -> bool | None:
        """Whether the whole interval is above a bound; None if only a part of it is."""
        if self.mean - self.error > bound:
            return True
        return False if self.mean + self.error <= bound else None

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.error:.4f}"


def over_blocks(values: Array) -> list[Estimate]:
    """Of each column of values [N, K] the mean, by the spread over blocks of successive rows.

    The error is t · s / √n, with s the standard deviation of the means of the n blocks.  NpxlError
    when there are fewer rows than blocks.
    """
    if len(values) < N_BLOCKS:
        raise NpxlError(
            f"There are {len(values)} rows of values, but error bars are of {N_BLOCKS} blocks of "
            "them: pass at least one row for each."
        )
    means = np.array([block.mean(0) for block in np.array_split(values, N_BLOCKS)])  # [n, K]
    errors = _T_95 * means.std(0, ddof=1) / math.sqrt(N_BLOCKS)
    return [Estimate(float(m), float(e)) for m, e in zip(means.mean(0), errors, strict=True)]


def over_text(values: Array) -> Estimate:
    """Of values [N] in reading order."""
    return over_blocks(values[:, None])[0]
