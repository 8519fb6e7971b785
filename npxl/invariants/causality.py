"""What a prediction may depend on: nothing later, nothing out of reach, and all within it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.comparing import (
    differences,
    hint_of_rounding,
    require_tokens_to_change,
    resolution,
    worst,
)
from npxl.invariants.dependence import dependence, drowned, oldest_tokens, reach, responses_to_texts
from npxl.invariants.findings import Case, Finding, InvariantBroken, Vacuous, check
from npxl.invariants.protocol import Implementation
from npxl.invariants.reading import LONGEST, read, stretched

Array = NDArray[Any]


@check()
def check_causality(implementation: Implementation, case: Case) -> Finding:
    """No score depends on a later token, bit by bit, in any segmentation.

    p(x_t | x_<t) of section 3, for every configuration: with and without memory and window.

    Broken by a causal mask that is missing, off by one or turned around, by a mask of finite
    numbers that hides nothing once everything is masked, by the unused cells of a relative shift
    that are read, and by a state that is taken from the wrong segment.
    """
    require_tokens_to_change(implementation, case)
    at = max(1, case.at[1])
    text = case.text(implementation)[:, :-1]
    other = text.copy()
    other[:, at:] += case.rng(1).integers(1, implementation.vocab_size, other[:, at:].shape)
    other %= implementation.vocab_size
    before, _ = read(implementation, text, case.lengths)
    after, _ = read(implementation, other, case.lengths)
    changed = differences(after, before)
    if not changed[:, at:].any():
        raise Vacuous(f"Other tokens from {at} on change no score at all, not even their own.")
    largest, where = worst(changed[:, :at])
    if largest > resolution(implementation):
        raise InvariantBroken(
            expected=f"scores before token {at} that other tokens from {at} on do not change",
            found=f"one that changes by {largest:.3g}",
            where=where,
            usually=hint_of_rounding(
                implementation,
                largest,
                "a causal mask that is off by one, or that hides nothing where it hides "
                "everything: keys are masked with a finite number, and softmax takes no notice "
                "when all of them are.",
            ),
        )
    return Finding(
        largest, resolution(implementation), "largest change by a later token", before[:, :at].size
    )


@check()
def check_exact_reach(implementation: Implementation, case: Case) -> Finding:
    """A score depends on exactly the tokens that layers, window and memory add up to, bit by bit.

    With W ≤ M + 1, token t depends on s if and only if 0 ≤ t − s ≤ N (W − 1); otherwise on what its
    memory still holds, which depends on the segmentation (section 3.2; derived in docs/memory.md).

    Broken by a window or a memory that is one position longer or shorter than declared, by a layer
    that does not read its memory, by a memory that is cut by its own length in place of M, by
    segments without memory that are not strangers, and by later tokens that are seen.

    Needs parameters so large that the furthest token does not drown in rounding.
    """
    require_tokens_to_change(implementation, case)
    lengths = _long_enough(implementation, case.lengths)
    moved, sometimes, scores = responses_to_texts(implementation, lengths, case.rng(0))
    expected = dependence(oldest_tokens(implementation, lengths))
    if not moved.any():
        raise Vacuous("No other token changes any score: the outputs are constant.")
    leaks, missing = (moved != 0) & ~expected, (moved == 0) & expected
    for s, t in [*np.argwhere(leaks), *np.argwhere(missing)]:
        if expected[s, t] and drowned(implementation, moved, s, t, scores):
            raise Vacuous(
                f"Token {s} moves token {t} by less than rounding shows; parameters with a larger "
                "standard deviation would tell."
            )
        n_wrong = int(((moved != 0) != expected).sum())
        exact = reach(implementation)
        declares = "what memory holds" if exact is None else f"a reach of {exact} tokens"
        raise InvariantBroken(
            expected=f"token {t} {'depends' if expected[s, t] else 'does not depend'} on token "
            f"{s}, {_away(t - s)} it: {_declaration(implementation)} make {declares}",
            found=f"another token {s} moves its scores by {moved[s, t]:.3g}; "
            f"{n_wrong} of {moved.size} pairs of tokens are not as expected",
            where=f"token {t}, in segments of {lengths}",
            usually="a window that counts the query's own key otherwise (W = mem_len and W = "
            "mem_len + 1 are both in use), or a memory that is cut one position too short or "
            "too long." if s <= t else "a causal mask that lets later keys through.",
        )  # fmt: skip
    if sometimes.any():
        raise Vacuous(_sometimes(*np.argwhere(sometimes)[0]))
    limits = implementation.window, implementation.mem_len
    limited = (_is_limited(implementation, lengths, by_window) for by_window in (True, False))
    if limits != (None, None) and not any(limited):
        raise Vacuous(f"All of the text is in reach of its window or memory: {_SMALLER}")
    return Finding(0.0, 0.0, "pairs of tokens that depend or do not against the law", moved.size)


@check()
def check_window(implementation: Implementation, case: Case) -> Finding:
    """A query's window begins W − 1 keys before its own, wherever it stands in its segment.

    Seen in the oldest token that moves each score; gaps and later keys are `check_exact_reach`'s.
    Read as one segment, and, where W ≤ M + 1, in several, with keys that come from memory.  The
    window is not looked at but inferred: the one number W whose dependence is what is measured.

    Broken by a window one key too wide or too narrow, by one that does not slide with the query,
    by one that counts the memory only or the segment only, and by one that is not there.
    """
    require_tokens_to_change(implementation, case)
    lengths = _long_enough(implementation, case.lengths)
    ways = [[sum(lengths)]]
    if reach(implementation) is not None and len(lengths) > 1:
        ways.append(lengths)
    compared, limited = 0, implementation.window is None
    for way in ways:
        moved, sometimes, scores = responses_to_texts(implementation, way, case.rng(0))
        oldest = np.where(moved.any(0), (moved != 0).argmax(0), len(moved))
        if (oldest > np.arange(len(moved))).any():
            raise Vacuous("Some token's scores do not even depend on itself.")
        declared_oldest = oldest_tokens(implementation, way)
        wider, narrower = oldest < declared_oldest, oldest > declared_oldest
        for t in np.flatnonzero(narrower) if not wider.any() else ():
            if drowned(implementation, moved, int(oldest[t]) - 1, int(t), scores):
                raise Vacuous(f"What token {t} sees furthest away drowns in rounding.")
        if (wider | narrower).any():
            first = int(np.flatnonzero(wider if wider.any() else narrower)[0])
            raise InvariantBroken(
                expected=f"window {implementation.window}: token {first} depends on tokens "
                f"{declared_oldest[first]} to {first}",
                found=f"{_like_window(implementation, way, oldest)}; it depends on tokens "
                f"{oldest[first]} to {first}",
                where=f"token {first}, in segments of {way}",
                usually="another way of counting: `same_length` of the original code shows "
                "mem_len keys, NVIDIA's mem_len + 1; a window counts the query's own key too.",
            )
        lost = np.flatnonzero(sometimes[declared_oldest, np.arange(len(moved))])
        if lost.size:
            raise Vacuous(_sometimes(declared_oldest[lost[0]], lost[0]))
        compared += len(moved)
        limited |= _is_limited(implementation, way, by_window=True)
    if not limited:
        raise Vacuous(f"A window of {implementation.window} holds the whole text: {_SMALLER}")
    return Finding(0.0, 0.0, "tokens with another number of visible keys", compared)


def _away(distance: int) -> str:
    return f"{distance} before" if distance >= 0 else f"{-distance} after"


def _sometimes(s: int, t: int) -> str:
    return (
        f"Token {s} moves token {t} in some texts and not in others: what it does is lost in "
        "rounding there, and parameters with a smaller standard deviation would tell, or it is "
        "left out for what it says."
    )


_SMALLER = "check a model with a smaller one."


def _is_limited(implementation: Implementation, lengths: Sequence[int], by_window: bool) -> bool:
    """Whether one key more, or one position more in memory, would make a difference."""
    window, mem_len = implementation.window, implementation.mem_len
    if by_window:
        larger = oldest_tokens(implementation, lengths, window and window + 1)
    else:
        larger = oldest_tokens(
            implementation, lengths, mem_len=None if mem_len is None else mem_len + 1
        )
    return not np.array_equal(larger, oldest_tokens(implementation, lengths))


def _like_window(implementation: Implementation, lengths: Sequence[int], oldest: Array) -> str:
    """Which window would make tokens depend on what they were seen to depend on."""
    for window in [*range(1, sum(lengths) + 1), None]:
        if (oldest_tokens(implementation, lengths, window) == oldest).all():
            keys = "1 key" if window == 1 else f"{window} keys"
            seen = "all keys" if window in (None, sum(lengths)) else keys
            return f"every query sees {seen}, itself included"
    return "queries see different numbers of keys"


def _declaration(implementation: Implementation) -> str:
    window, mem_len = implementation.window, implementation.mem_len
    seen = "no window" if window is None else f"a window of {window}"
    kept = "all" if mem_len is None else mem_len
    return f"{implementation.n_layer} layers with a memory of {kept} and {seen}"


def _long_enough(implementation: Implementation, lengths: Sequence[int]) -> list[int]:
    """Segments with more tokens than one depends on, so that one too many can be seen."""
    exact = reach(implementation)
    if exact is None:
        held = implementation.n_layer * (implementation.mem_len or 0)
        return stretched(lengths, min(LONGEST, max(held, implementation.window or 0) + 3))
    return stretched(lengths, min(LONGEST, exact + 3))
