"""The learning rate of a step: a pure function, so that resuming a run needs nothing of it."""

from __future__ import annotations

import math

from npxl.config import TrainConfig
from npxl.errors import NpxlError


def learning_rate(step: int, config: TrainConfig, steps: int | None) -> float:
    """Linear warm-up to `config.lr`, then a cosine down to `config.lr · config.lr_min_ratio`.

    With t the step, W the warm-up and S the number of steps,

        t ≤ W:  lr · t / W
        t > W:  lr · (r + (1 − r) · (1 + cos(π · (t − W) / (S − W))) / 2),  r = lr_min_ratio

    so that step 1 uses lr / W and step S exactly lr · r.

    Parameters
    ----------
    step
        1 for the first update.
    config
        Its `lr`, `lr_min_ratio` and `warmup_steps` are read.
    steps
        Number of updates of the whole run; None while it is not known yet: the rate then stays
        at `lr` after the warm-up.

    Raises
    ------
    NpxlError
        When the step lies outside 1 … steps.
    """
    if step < 1 or (steps is not None and step > steps):
        end = "" if steps is None else f" and at most {steps}"
        raise NpxlError(f"The step is {step}, but it must be at least 1{end}.")
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if steps is None:
        return config.lr
    progress = (step - config.warmup_steps) / (steps - config.warmup_steps)
    ratio = config.lr_min_ratio
    return config.lr * (ratio + (1 - ratio) * (1 + math.cos(math.pi * progress)) / 2)
