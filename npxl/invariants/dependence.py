"""Which tokens a prediction depends on: as an implementation declares, and as measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.comparing import differences, resolution
from npxl.invariants.protocol import Implementation, declared
from npxl.invariants.reading import read, segments

Array = NDArray[Any]

SHARP = 1e4
"""An effect this many times above rounding cannot have drowned in it one token further on."""

_MOST_REPLACEMENTS = 3

_MOST_TEXTS = 5


def oldest_tokens(
    implementation: Implementation,
    lengths: Sequence[int],
    window: int | None = -1,
    mem_len: int | None = -1,
) -> Array:
    """By token t of a text read in segments, the first token that its prediction depends on.

    The recursion h_t^n = f(h_s^{n−1}, s among the keys that t sees) of section 3.2, run on numbers
    of tokens in place of states: what t depends on are the tokens from this number to t, without
    a gap, since the keys lie side by side.  With W ≤ M + 1 it is t − N (W − 1) (docs/memory.md).

    Parameters
    ----------
    implementation
        Whose layers, memory and declarations hold.
    lengths
        Of the segments.
    window
        Keys that a query sees, in place of what is declared.
    mem_len
        Positions that are remembered, in place of what is declared.

    Returns
    -------
    Array
        [N] int.
    """
    window = implementation.window if window == -1 else window
    mem_len = implementation.mem_len if mem_len == -1 else mem_len
    ext_len, n_tokens = declared(implementation, "ext_len"), sum(lengths)
    n_zeros = (mem_len or 0) if declared(implementation, "initial_memory") == "zeros" else 0
    # A vector of zeros depends on no token: it comes after all of them, as far as minima go.
    memory = [np.full(n_zeros, n_tokens) for _ in range(implementation.n_layer)]
    oldest = []
    for start, stop in segments(lengths):
        again = min(start, ext_len)
        h = np.arange(start - again, stop)  # [q], what each token's embedding depends on
        for n, cached in enumerate(memory):
            keys = np.concatenate([cached, h])
            end = len(keys) - max(0, min(ext_len, len(h)))
            memory[n] = keys[0 if mem_len is None else max(0, end - mem_len) : end]
            h = np.array([
                keys[0 if window is None else max(0, i - window + 1) : i + 1].min()
                for i in range(len(cached), len(keys))
            ])  # fmt: skip
        oldest.append(h[again:])
    return np.concatenate(oldest)


def dependence(oldest: Array) -> Array:
    """[N, N] bool: whether token t, the column, depends on token s, the row."""
    s, t = np.arange(len(oldest))[:, None], np.arange(len(oldest))
    return (oldest <= s) & (s <= t)


def reach(implementation: Implementation) -> int | None:
    """N (W − 1), where it is the same for every token and segmentation: W ≤ M + 1; else None."""
    window, mem_len = implementation.window, implementation.mem_len
    if window is None or (mem_len is not None and window > mem_len + 1):
        return None
    return implementation.n_layer * (window - 1)


def responses(implementation: Implementation, text: Array, lengths: Sequence[int]) -> Array:
    """How much each score moves when one token is replaced.

    Every replacement is a row of one batch, held against the same row of a batch without any, so
    that sums are added up in the same order and what does not depend does not change a bit.

    Parameters
    ----------
    implementation
        What reads.
    text
        [N] tokens.
    lengths
        Of its segments.

    Returns
    -------
    Array
        [N, N]: the largest change of a log-probability at t, the column, when token s, the row,
        becomes one of up to three others; 0 where that is rounding.
    """
    n_tokens, vocab_size = len(text), implementation.vocab_size
    n_others = min(vocab_size - 1, _MOST_REPLACEMENTS)
    same = np.tile(text, (n_tokens * n_others, 1))  # [N R, N]
    other = same.copy()
    at = np.repeat(np.arange(n_tokens), n_others)
    other[np.arange(len(at)), at] += np.tile(np.arange(1, n_others + 1), n_tokens)
    other %= vocab_size
    moved = differences(
        read(implementation, other, lengths)[0], read(implementation, same, lengths)[0]
    )
    largest = moved.max(-1).reshape(n_tokens, n_others, n_tokens).max(1)  # [s, t]
    return np.where(largest > resolution(implementation), largest, 0.0)


class Responses(NamedTuple):
    """`responses` to several random texts."""

    moved: Array
    """[N, N]: the largest of them."""
    sometimes: Array
    """[N, N] bool: what should be there, and is in some texts and not in others."""
    scores: Array
    """Those of the last text."""


def responses_to_texts(
    implementation: Implementation, lengths: Sequence[int], rng: np.random.Generator
) -> Responses:
    """`responses` to one random text; to up to five, while anything is missing in all of them.

    A sharp attention can give a token so little in one text that nothing of it is left, and can
    look, there, like a window that is too narrow: that leaves a key out of every text.
    """
    expected = dependence(oldest_tokens(implementation, lengths))
    moved, missing = np.zeros(expected.shape), np.zeros(expected.shape, bool)
    for _ in range(_MOST_TEXTS):
        text = rng.integers(implementation.vocab_size, size=sum(lengths))
        found = responses(implementation, text, lengths)
        moved, missing = np.maximum(moved, found), missing | (expected & (found == 0))
        if moved[expected].all():
            break
    scores, _ = read(implementation, text[None], lengths)
    return Responses(moved, missing & (moved != 0), scores)


def drowned(implementation: Implementation, moved: Array, s: int, t: int, scores: Array) -> bool:
    """Whether token s, which does not move t, may do so by less than rounding shows.

    Then the next token that does move it, nearer to t, does so by hardly more than rounding.
    """
    nearer = moved[s + 1 : t + 1, t]
    effect = nearer[np.flatnonzero(nearer)[:1]]
    rounding = float(np.finfo(scores.dtype).eps) * max(1.0, float(np.abs(scores).max()))
    return bool((effect < SHARP * max(rounding, resolution(implementation))).all())
