"""Minutes as a number of updates, from the speed of the first ones."""

from __future__ import annotations

import math
import time

_PART_TO_MEASURE = 0.02
_UPDATES_TO_MEASURE = 5


class Budget:
    """How many updates fit in a time, once their speed is known.

    Parameters
    ----------
    seconds
        The time for updates and evaluations, from now on.
    unmeasured
        Updates at the start that say nothing about the speed.
    evaluation
        What an evaluation costs, in updates.
    eval_interval
        Updates between two evaluations.
    """

    def __init__(
        self, seconds: float, unmeasured: int, evaluation: float, eval_interval: int
    ) -> None:
        self._end = time.perf_counter() + seconds
        self._enough = _PART_TO_MEASURE * seconds
        self._unmeasured = unmeasured
        self._evaluation, self._eval_interval = evaluation, eval_interval
        self._measured, self._n_measured = 0.0, 0

    def steps_left(self, seconds: float) -> int | None:
        """After one more update, which took `seconds`: how many will fit, None if not yet known."""
        left = self._end - time.perf_counter()
        if left <= 0:
            return 0
        if self._unmeasured > 0:
            self._unmeasured -= 1
            return None
        self._measured += seconds
        self._n_measured += 1
        if self._measured < self._enough or self._n_measured < _UPDATES_TO_MEASURE:
            return None
        updates = left * self._n_measured / self._measured
        # One evaluation after every interval, and one more at the end.
        updates = (updates - self._evaluation) / (1 + self._evaluation / self._eval_interval)
        return max(0, math.floor(updates))
