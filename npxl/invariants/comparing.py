"""What differs and where, and what has to be so for a comparison to mean anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.findings import Case, Finding, Inapplicable, InvariantBroken, Vacuous
from npxl.invariants.protocol import Implementation, declared

Array = NDArray[Any]


def differences(found: Array, expected: Array) -> Array:
    """By entry how far apart two arrays are; infinite where either is NaN.

    Two log-probabilities of −∞ are not apart.
    """
    with np.errstate(invalid="ignore"):
        apart = np.where(found == expected, 0.0, np.abs(found - expected))
    return np.where(np.isnan(apart), np.inf, apart)


def worst(apart: Array) -> tuple[float, str]:
    """The largest of the differences [B, N, ...], and the stream and token where it is."""
    index = np.unravel_index(int(np.argmax(apart)), apart.shape)
    return float(apart[index]), f"stream {index[0]}, token {index[1]}"


def first_beyond(apart: Array, limit: float) -> str:
    """The earliest token, and its stream, of differences [B, N, ...] beyond a limit."""
    beyond: Array = np.any(apart.reshape(*apart.shape[:2], -1) > limit, axis=-1)  # [B, N]
    token = int(beyond.any(0).argmax())
    return f"stream {int(beyond[:, token].argmax())}, token {token}"


def equal_scores(
    implementation: Implementation, found: Array, exact: Array, expected: str, usually: str
) -> Finding:
    """Log-probabilities [B, N, V], or losses [B, N], that are the same but for rounding."""
    apart, limit = differences(found, np.broadcast_to(exact, found.shape)), implementation.tolerance
    largest = float(apart.max(initial=0))
    if not largest <= limit:
        raise InvariantBroken(
            expected=f"{expected}, to {limit:g}",
            found=f"{np.sum(apart > limit)} of {apart.size} are off, by up to {largest:.3g} nats",
            where=first_beyond(apart, limit),
            usually=usually,
        )
    return Finding(largest, limit, "largest difference in nats", found.size)


def resolution(implementation: Implementation) -> float:
    """The largest change of a score that does not depend on what was changed."""
    return 0.0 if declared(implementation, "bitwise") else implementation.tolerance


def hint_of_rounding(implementation: Implementation, largest: float, usually: str) -> str:
    """What usually causes a change that should be none: rounding, where it is as small."""
    if largest > implementation.tolerance:
        return usually
    return (
        "rounding, if tokens decide on the shapes of products, as in embeddings that are projected "
        "cluster by cluster (declare bitwise = False then); a mask by a number that is not large "
        "enough; or " + usually
    )


def what_scales(factor: float, shape: Sequence[int]) -> str:
    """What usually makes losses [B, T], or their gradients, so many times as large."""
    batch_size, length = shape
    for name, known in (
        (
            f"a mean over the {batch_size * length} targets in place of their sum",
            batch_size * length,
        ),
        (f"a mean over the {length} tokens of a stream", length),
        (f"a mean over the {batch_size} streams", batch_size),
        ("bits in place of nats", np.log(2)),
        ("a wrong sign", -1),
    ):
        if known != 1 and any(abs(factor * scale - 1) < 1e-3 for scale in (known, 1 / known)):
            return name
    return "a factor too much"


def require_distances(implementation: Implementation) -> None:
    """Inapplicable where scores depend on the place of a token in its segment."""
    if not declared(implementation, "encodes_distances"):
        raise Inapplicable(
            "It declares encodes_distances = False: scores depend on places, and so on where a "
            "text is cut."
        )


def require_mem_len(implementation: Implementation) -> int:
    """Positions that a state keeps; Inapplicable where their number has no limit."""
    if implementation.mem_len is None:
        raise Inapplicable("It declares mem_len = None: no number of positions is what it keeps.")
    return implementation.mem_len


def require_scores_that_vary(implementation: Implementation, scores: Array) -> None:
    """Vacuous where all scores [B, N, V] are the same."""
    flat = scores.reshape(-1, scores.shape[-1])
    if not (differences(flat, flat[:1]) > implementation.tolerance).any():
        raise Vacuous("All tokens have the same scores, whatever was read.")


def require_tokens_to_change(implementation: Implementation, case: Case) -> None:
    """Vacuous where there is no other token, or no other symbol."""
    if implementation.vocab_size < 2 or case.length < 2:
        raise Vacuous("With one symbol or one token, there is no other token to change.")
