"""Running checks on broken models: who notices what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from broken.catalogue import implementation
from broken.mutant import Mutant
from npxl.invariants import Case, Check, Inapplicable, InvariantBroken, Vacuous


def cases(n: int) -> Iterator[Case]:
    """The first n of a fixed sequence of examples, so that whoever runs it finds the same."""
    for seed in range(n):
        draw = np.random.default_rng([seed, 5])
        longest = 80 if seed % 12 == 11 else (6, 6, 14)[seed % 3]  # more than a tile or two
        lengths = tuple(int(n) for n in draw.integers(1, longest + 1, size=draw.integers(1, 6)))
        batch_size, position, row = (int(n) for n in draw.integers((1, 0, 0), (4, 24, 3)))
        yield Case(batch_size, lengths, position, row, seed)


def caught(check: Check[Any], model: Any, n_cases: int) -> InvariantBroken | None:
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


def broken_model(mutant: Mutant) -> Any:
    """The model with the fault, as the checks take it."""
    return implementation(mutant.package(), mutant.options, mutant.reads, mutant.architecture)
