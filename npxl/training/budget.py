"""Minutes as a number of updates, and the minutes that are left, from the speed so far."""

from __future__ import annotations

import math
import statistics
import time

_PART_TO_MEASURE = 0.1
_UPDATES_TO_MEASURE = 5
_UPDATES_TO_AVERAGE = 200


def evaluation_in_updates(n_scored: int, tokens: int) -> float:
    """What scoring so many tokens costs, in updates of `tokens` each, until it is measured."""
    return n_scored / tokens / 2  # a forward pass is at most half of an update


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
        self._measured: list[float] = []

    def steps_left(self, seconds: float) -> int | None:
        """After one more update, which took `seconds`: how many will fit, None if not yet known."""
        left = self._end - time.perf_counter()
        if left <= 0:
            return 0
        if self._unmeasured > 0:
            self._unmeasured -= 1
            return None
        self._measured.append(seconds)
        if sum(self._measured) < self._enough or len(self._measured) < _UPDATES_TO_MEASURE:
            return None
        # Not the mean: what else the machine does for a while is not the speed of the rest.
        updates = left / statistics.median(self._measured)
        # One evaluation after every interval, and one more at the end.
        updates = (updates - self._evaluation) / (1 + self._evaluation / self._eval_interval)
        return max(0, math.floor(updates))


class TimeLeft:
    """How long the updates and evaluations that are left will take, at the speed so far.

    Parameters
    ----------
    eval_interval
        Updates between two evaluations; None when there are none.
    evaluated
        The last step whose evaluation is done.
    evaluation
        What an evaluation costs, in updates, until one has been made.
    """

    def __init__(self, eval_interval: int | None, evaluated: int, evaluation: float) -> None:
        self._eval_interval, self._evaluated = eval_interval, evaluated
        self._in_updates = evaluation
        self._evaluation: float | None = None
        self._update: float | None = None
        self._n_updates = -1

    def add_update(self, seconds: float) -> bool:
        """One more update, and whether it counts: in the first one, kernels are compiled."""
        self._n_updates += 1
        if self._n_updates == 0:
            return False
        mean = seconds if self._update is None else self._update
        weight = 1 / min(self._n_updates, _UPDATES_TO_AVERAGE)
        self._update = mean + weight * (seconds - mean)
        return True

    def add_evaluation(self, step: int, seconds: float) -> None:
        """The evaluation after `step`."""
        self._evaluated, self._evaluation = step, seconds

    def seconds(self, step: int, steps: int) -> float | None:
        """From `step` on to the end of all `steps`; None while no update has been measured."""
        if self._update is None:
            return None
        left = (steps - step) * self._update
        if self._eval_interval is not None:
            evaluation = self._evaluation
            if evaluation is None:
                evaluation = self._in_updates * self._update
            left += self._evaluations_left(steps, self._eval_interval) * evaluation
        return left

    def _evaluations_left(self, steps: int, interval: int) -> int:
        """One after every interval, and one at the end."""
        if self._evaluated >= steps:
            return 0
        return -(-steps // interval) - self._evaluated // interval
