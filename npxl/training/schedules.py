"""The learning rate of a step: a pure function, so that resuming a run needs nothing but its state.

Only the schedule `plateau` has a state, which changes after evaluations and is saved with the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from npxl.config import TrainConfig
from npxl.errors import NpxlError

_IMPROVEMENT = 1e-4
"""Part of the best loss by which a lower one has to be better: torch's, and the original's."""


@dataclass(frozen=True)
class Plateau:
    """What the schedule `plateau` has seen on the validation split."""

    ratio: float = 1.0
    """The rate after the warm-up, as a fraction of lr."""
    best: float | None = None
    """Lowest loss that was an improvement, in nats a token; None before the first evaluation."""
    bad: int = 0
    """Evaluations since then, or since the rate fell, that were not better."""

    def after_evaluation(self, nll: float, step: int, config: TrainConfig) -> Plateau:
        """The state after the validation loss of `step` is known.

        After more than `config.patience` evaluations in a row that are no improvement, the ratio
        is multiplied by `config.decay_rate`, down to `config.lr_min_ratio`.  During the warm-up
        none counts as bad: the rate has not been what it will be.
        """
        if self.best is None or nll < self.best * (1 - _IMPROVEMENT):
            return replace(self, best=nll, bad=0)
        if step <= config.warmup_steps:
            return self
        if self.bad < config.patience:
            return replace(self, bad=self.bad + 1)
        lower = max(self.ratio * config.decay_rate, config.lr_min_ratio)
        return replace(self, ratio=lower, bad=0)


def learning_rate(
    step: int, config: TrainConfig, steps: int | None, plateau: Plateau | None = None
) -> float:
    """A line up to what the schedule asks for at the warm-up's end, and then the schedule.

    With t the step, W the warm-up and S the number of steps, the rate is f(t) for t > W and
    f(W) · t / W for t ≤ W, where, by `config.schedule`,

        cosine    f(t) = lr · (r + (1 − r) · (1 + cos(π · (t − W) / (S − W))) / 2)
        inv_sqrt  f(t) = lr / √t
        plateau   f(t) = lr · plateau.ratio
        constant  f(t) = lr

    and r = lr_min_ratio.  So step 1 uses f(W) / W, and the cosine's step S exactly lr · r.

    Parameters
    ----------
    step
        1 for the first update.
    config
        Its `schedule`, `lr`, `lr_min_ratio` and `warmup_steps` are read.
    steps
        Number of updates of the whole run; None while it is not known yet: the cosine, which alone
        asks for it, then stays at `lr` after the warm-up.
    plateau
        State of the schedule `plateau`; that of its start when not given.

    Raises
    ------
    NpxlError
        When the step lies outside 1 … steps.
    """
    if step < 1 or (steps is not None and step > steps):
        end = "" if steps is None else f" and at most {steps}"
        raise NpxlError(f"The step is {step}, but it must be at least 1{end}.")
    warmup = config.warmup_steps
    if step < warmup:
        return _after_warm_up(warmup, config, steps, plateau) * step / warmup
    return _after_warm_up(step, config, steps, plateau)


def _after_warm_up(
    step: int, config: TrainConfig, steps: int | None, plateau: Plateau | None
) -> float:
    """f(step) for a step from the warm-up's end on."""
    lr, warmup = config.lr, config.warmup_steps
    if config.schedule == "inv_sqrt":
        return lr / math.sqrt(step)
    if config.schedule == "plateau":
        return lr * (plateau or Plateau()).ratio
    if config.schedule == "constant" or steps is None or step == warmup:
        return lr
    progress = (step - warmup) / (steps - warmup)
    ratio = config.lr_min_ratio
    return lr * (ratio + (1 - ratio) * (1 + math.cos(math.pi * progress)) / 2)
