"""Reading a text in segments, and saying what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.protocol import Implementation, State, declared

Array = NDArray[Any]


def segments(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where each segment begins and ends."""
    stop = 0
    for length in lengths:
        start, stop = stop, stop + length
        yield start, stop


def read(
    implementation: Implementation, text: Array, lengths: Sequence[int], state: State = None
) -> tuple[Array, State]:
    """log p after every token of `text` [B, N] read in segments, [B, N, V]; and the last state.

    The ext_len tokens before a segment are read again with it, as far as the text goes back.
    """
    state = implementation.start(len(text)) if state is None else state
    ext_len = declared(implementation, "ext_len")
    scores = []
    for start, stop in segments(lengths):
        again = min(start, ext_len)
        log_p, state = implementation.log_probs(text[:, start - again : stop].copy(), state)
        scores.append(np.asarray(log_p)[:, again:])
    return np.concatenate(scores, axis=1), state


def differences(found: Array, expected: Array) -> Array:
    """The largest difference at each token, [B, N]; infinite where either is NaN.

    Two log-probabilities of −∞ do not differ.
    """
    with np.errstate(invalid="ignore"):
        apart = np.where(found == expected, 0, np.abs(found - expected)).max(-1)
    return np.where(np.isnan(apart), np.inf, apart)


def worst(apart: Array) -> tuple[float, str]:
    """The largest of the differences [B, N], and where it is."""
    row, token = np.unravel_index(np.argmax(apart), apart.shape)
    return float(apart[row, token]), f"stream {row}, token {token}"
