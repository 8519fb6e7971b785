"""The length of a step's segments: a pure function, so that resuming a run needs nothing of it."""

from __future__ import annotations

import zlib

import numpy as np

from npxl.config import TrainConfig
from npxl.errors import NpxlError

_STD = 5
_SHORTEST = 5
_DEVIATIONS = 3
_HALVED = 0.05
"""How often the mean is half of tgt_len."""

_VARLEN = zlib.crc32(b"varlen")


def segment_length(step: int, config: TrainConfig) -> int:
    """Tokens T of each stream that a step predicts: `tgt_len`, or with `varlen` around it.

    The original code's rule, after AWD-LSTM's (Merity et al. 2018): the whole part of a draw from
    N(μ, 5²) within the `length_bounds`, with μ = tgt_len, or at one step in twenty tgt_len / 2.

    Parameters
    ----------
    step
        1 for the first update.
    config
        Its `tgt_len`, `varlen` and `seed` are read.
    """
    if not config.varlen:
        return config.tgt_len
    draw = np.random.default_rng((config.seed, step, _VARLEN))
    mean = config.tgt_len / 2 if draw.random() < _HALVED else config.tgt_len
    shortest, longest = length_bounds(config)
    return min(longest, max(shortest, int(draw.normal(mean, _STD))))


def length_bounds(config: TrainConfig) -> tuple[int, int]:
    """The shortest and the longest segment that a step can have.

    With `varlen`, 5, or tgt_len where that is less, and tgt_len + 15.
    """
    if not config.varlen:
        return config.tgt_len, config.tgt_len
    return min(_SHORTEST, config.tgt_len), config.tgt_len + _DEVIATIONS * _STD


def check_consumed(consumed: int, step: int, config: TrainConfig) -> None:
    """NpxlError when the segments of so many steps cannot have so many tokens together."""
    shortest, longest = length_bounds(config)
    if not step * shortest <= consumed <= step * longest:
        lengths = f"{shortest} tokens" if shortest == longest else f"{shortest} to {longest} tokens"
        raise NpxlError(
            f"It has read {consumed} tokens in {step} segments, which have {lengths} each in this "
            "run."
        )
