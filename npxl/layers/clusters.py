"""Which tokens belong to which cluster of symbols; the clusters divide the vocabulary in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Members(NamedTuple):
    """The tokens of one cluster."""

    places: Any  # [n] int, or a slice: where they are
    symbols: Array  # [n] int: which of the cluster's symbols each of them is


def cluster_members(tokens: Array, sizes: Sequence[int]) -> Iterator[Members]:
    """For each cluster, in order, its tokens among `tokens` [N], given the clusters' sizes."""
    if len(sizes) == 1:
        yield Members(slice(None), tokens)
        return
    starts = list(accumulate(sizes, initial=0))[:-1]
    clusters = np.searchsorted(starts, tokens, side="right") - 1  # [N]
    for i, start in enumerate(starts):
        places = np.flatnonzero(clusters == i)
        yield Members(places, tokens[places] - start)
