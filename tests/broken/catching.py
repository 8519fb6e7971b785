"""Running checks on broken models: who notices what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from broken.catalogue import implementation
from broken.copies import Copy
from broken.mutant import Mutant
from npxl.invariants import CHECKS, Case, Inapplicable, InvariantBroken, Vacuous


def cases(n: int) -> Iterator[Case]:
    """The first n of a fixed sequence of examples, so that whoever runs it finds the same."""
    for seed in range(n):
        draw = np.random.default_rng([seed, 5])
        longest = (6, 6, 14)[seed % 3]
        lengths = tuple(int(n) for n in draw.integers(1, longest + 1, size=draw.integers(1, 6)))
        batch_size, position, row = (int(n) for n in draw.integers((1, 0, 0), (4, 24, 3)))
        yield Case(batch_size, lengths, position, row, seed)


def audit_gradients(package: Copy, implementation: Any, case: Case) -> None:
    """What `npxl audit` does with gradients: differences, and complex steps of the reference."""
    model, rng = implementation.model, package["npxl.layers.dropout"].MaskKey(case.seed)
    text, state = case.text(implementation), implementation.start(case.batch_size)
    n_last = min(4, case.length)
    before, inputs, targets = np.split(text, [case.length - n_last, case.length], axis=1)
    if before.size:
        _, state = model.log_probs(before, state)
    targets = np.concatenate([inputs[:, 1:], targets], axis=1)
    config = model.config
    report = package["npxl.audit.gradients"].gradcheck(
        model, inputs, targets, state, rng if config.dropout or config.dropatt else None, entries=2
    )
    if not report.passed:
        names = ", ".join(check.name for check in report.failures)
        raise InvariantBroken("gradients that are right", names, "these tensors", "a wrong sign")


def checks(package: Copy) -> dict[str, Callable[[Any, Case], Any]]:
    """All checks by name, and rows of the audit."""
    return {**CHECKS, "audit_gradients": partial(audit_gradients, package)}


def caught(check: Callable[[Any, Case], Any], model: Any, n_cases: int) -> InvariantBroken | None:
    """What the check finds in the first cases; None when it finds nothing or is not applicable."""
    for case in cases(n_cases):
        try:
            with np.errstate(all="ignore"):
                check(model, case)
        except InvariantBroken as broken:
            return broken
        except Inapplicable:
            return None
        except Vacuous:
            continue
    return None


def broken_model(mutant: Mutant) -> tuple[Any, dict[str, Callable[[Any, Case], Any]]]:
    """The model with the fault, and the checks that it is to be given to."""
    package = mutant.package()
    return implementation(package, mutant.options, mutant.reads), checks(package)
