"""Reading a text in segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.findings import InvariantBroken
from npxl.invariants.protocol import Implementation, Losses, State, declared

Array = NDArray[Any]

LONGEST = 48
"""Tokens beyond which a text is not made longer to pass a large window or a large memory."""


def segments(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where each segment begins and ends."""
    stop = 0
    for length in lengths:
        start, stop = stop, stop + length
        yield start, stop


def inputs_of(implementation: Implementation, text: Array, start: int, stop: int) -> Array:
    """A segment of `text` [B, N], after the ext_len tokens before it as far as there are any.

    A copy: what an implementation does to its inputs must not reach the text.
    """
    again: int = min(start, declared(implementation, "ext_len"))
    segment: Array = text[:, start - again : stop].copy()
    return segment


def read(
    implementation: Implementation,
    text: Array,
    lengths: Sequence[int],
    may_be_nan: bool = False,
) -> tuple[Array, State]:
    """log p after every token of `text` [B, N] read in segments, [B, N, V]; and the last state.

    InvariantBroken where they are none; `may_be_nan` leaves it to the caller to look for NaN.
    """
    state = implementation.start(len(text))
    scores = []
    for start, stop in segments(lengths):
        inputs = inputs_of(implementation, text, start, stop)
        log_p, state = scores_of(implementation, inputs, state, may_be_nan)
        scores.append(log_p[:, inputs.shape[1] - (stop - start) :])
    return np.concatenate(scores, axis=1), state


def scores_of(
    implementation: Implementation, inputs: Array, state: State, may_be_nan: bool = False
) -> tuple[Array, State]:
    """What `log_probs` returns, if it is V numbers for each of the inputs [B, E+T]."""
    shape = (*inputs.shape, implementation.vocab_size)
    scores, after = implementation.log_probs(inputs, state)
    scores = np.asarray(scores)
    if scores.shape != shape or scores.dtype.kind != "f":
        raise InvariantBroken(
            expected=f"log-probabilities [B, T, V] of shape {list(shape)}, floating-point",
            found=f"{list(scores.shape)} of type {scores.dtype}",
            where="what log_probs returns",
            usually="time before batch, or scores of targets in place of all symbols.",
        )
    if not may_be_nan:
        _require_numbers(
            scores,
            "log_probs",
            "a query all of whose keys are hidden: each must see at least itself.",
        )
    return scores, after


def losses(
    implementation: Losses, text: Array, lengths: Sequence[int], may_be_nan: bool = False
) -> Array:
    """−log p of all but the first tokens of `text` [B, N + 1] read in segments, [B, N]."""
    state = implementation.start(len(text))
    found = []
    for start, stop in segments(lengths):
        inputs = inputs_of(implementation, text, start, stop)
        targets = text[:, start + 1 : stop + 1].copy()
        nll, state = losses_of(implementation, inputs, targets, state, may_be_nan)
        found.append(nll)
    return np.concatenate(found, axis=1)


def losses_of(
    implementation: Losses,
    inputs: Array,
    targets: Array,
    state: State,
    may_be_nan: bool = False,
) -> tuple[Array, State]:
    """What `nll` returns, if it is a loss for each of the targets [B, T]."""
    nll, state = implementation.nll(inputs, targets, state)
    nll = np.asarray(nll)
    if nll.shape != targets.shape:
        raise InvariantBroken(
            expected=f"one loss for each target, {list(targets.shape)}",
            found=f"{list(nll.shape)}",
            where="what nll returns",
            usually="targets that are shifted once more, or a mean in place of losses.",
        )
    if not may_be_nan:
        _require_numbers(nll, "nll", "0 times infinity where a target has no probability.")
    return nll, state


def _require_numbers(found: Array, method: str, usually: str) -> None:
    """InvariantBroken where something that was returned [B, T, ...] is NaN."""
    is_nan = np.isnan(found)
    if is_nan.any():
        stream, token = np.argwhere(is_nan)[0][:2]
        raise InvariantBroken(
            expected="numbers",
            found=f"{int(is_nan.sum())} times NaN",
            where=f"stream {stream}, token {token} of what {method} returns for a segment",
            usually=usually,
        )


def stretched(lengths: Sequence[int], n_tokens: int) -> list[int]:
    """The segments again and again, until they have at least so many tokens."""
    return list(lengths) * max(1, -(-n_tokens // sum(lengths)))
