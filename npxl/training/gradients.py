"""A gradient that knows where it is zero: of a table of all words a step touches few rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from npxl.models import Rows
from npxl.params import Params, Shapes
from npxl.threads import spread

Array = NDArray[Any]

_BLOCK = 2**12
"""Numbers that are touched together."""


class Gradient(Params):
    """A vector in which gradients are added up, and the runs of it that may be other than zero.

    It is zero elsewhere, so that clearing, a sum over workers and a norm leave the rest alone: most
    of a table of all words.  Where everything is touched there is one run.

    Parameters
    ----------
    shapes, dtype
        As of the parameters.
    """

    def __init__(self, shapes: Shapes, dtype: DTypeLike) -> None:
        super().__init__(shapes, dtype=dtype)
        self._touched = np.zeros(-(-self.flat.size // _BLOCK), bool)

    def touch(self, rows: Rows) -> None:
        """Take note of what `LanguageModel.touched` says of a backward pass that adds to it."""
        start = 0
        for name, view in self.items():
            width = view[0].size
            for each in rows.get(name, [slice(0, len(view))]):
                if isinstance(each, slice):
                    first, last = start + each.start * width, start + each.stop * width - 1
                    self._touched[first // _BLOCK : last // _BLOCK + 1] = True
                else:
                    for column in (*range(0, width, _BLOCK), width - 1):
                        self._touched[(start + each * width + column) // _BLOCK] = True
            start += view.size

    def runs(self) -> list[slice]:
        """Parts of the vector outside of which it is zero, in order."""
        edges = np.flatnonzero(np.diff(self._touched, prepend=False, append=False)) * _BLOCK
        return [slice(start, min(stop, self.flat.size)) for start, stop in edges.reshape(-1, 2)]

    def clear(self) -> None:
        """Make all of it zero."""
        for run in self.runs():
            self.flat[run] = 0
        self._touched[:] = False

    def add(self, others: Sequence[Gradient]) -> None:
        """Add other gradients, in their order."""
        runs = [other.runs() for other in others]

        def task(part: range) -> None:
            for other, own in zip(others, runs, strict=True):
                for run in _within(part, own):
                    self.flat[run] += other.flat[run]

        touched = sum(run.stop - run.start for each in runs for run in each)
        spread(task, self.flat.size, cost=8 * touched)
        for other in others:
            self._touched |= other._touched


def _within(part: range, runs: Sequence[slice]) -> Iterator[slice]:
    """The runs as far as they lie in a part of the vector."""
    for run in runs:
        start, stop = max(part.start, run.start), min(part.stop, run.stop)
        if start < stop:
            yield slice(start, stop)
