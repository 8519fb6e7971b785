"""What a prediction may depend on: nothing later than itself, and nothing out of reach."""

from __future__ import annotations

from npxl.invariants.findings import Case, Finding, InvariantBroken, Vacuous, check
from npxl.invariants.protocol import Implementation
from npxl.invariants.reading import differences, read, worst


@check()
def check_causality(implementation: Implementation, case: Case) -> Finding:
    """No score depends on a later token, bit by bit, in any segmentation.

    p(x_t | x_<t) of section 3, for every configuration: with and without memory and window.

    Broken by a causal mask that is missing, off by one or turned around, by a mask of finite
    numbers that hides nothing once everything is masked, by the unused cells of a relative shift
    that are read, and by a state that is taken from the wrong segment.
    """
    if implementation.vocab_size < 2 or case.length < 2:
        raise Vacuous("With one symbol or one token, there is no later token to change.")
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
    if changed[:, :at].any():
        largest, where = worst(changed[:, :at])
        raise InvariantBroken(
            expected=f"scores before token {at} that other tokens from {at} on do not change",
            found=f"one that changes by {largest:.3g}",
            where=where,
            usually="a causal mask that is off by one, or that hides nothing where it hides "
            "everything: keys are masked with a finite number, and softmax takes no notice "
            "when all of them are.",
        )
    compared = before[:, :at].size
    return Finding("", 0.0, 0.0, "scores that depend on a later token", compared)
