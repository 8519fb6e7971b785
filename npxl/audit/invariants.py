"""Rows of an audit from the named checks of `npxl.invariants`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from npxl.audit.frame import Figure, Result
from npxl.invariants import Case, Check, Inapplicable, InvariantBroken, Vacuous

_CASES = 8


def cut(draw: np.random.Generator, length: int) -> list[int]:
    """`length` tokens cut into segments anywhere: their lengths."""
    at = 1 + np.flatnonzero(draw.random(length - 1) < 0.3)
    lengths: list[int] = np.diff([0, *at, length]).tolist()
    return lengths


def cases(
    draw: np.random.Generator, length: int, batch_size: int = 2, n: int = _CASES
) -> list[Case]:
    """Examples whose texts are `length` tokens long."""
    return [
        Case(
            batch_size=batch_size,
            lengths=tuple(cut(draw, length)),
            position=int(draw.integers(length)),
            row=int(draw.integers(batch_size)),
            seed=int(draw.integers(2**31)),
        )
        for _ in range(n)
    ]


def row(
    name: str, check: Check[Any], implementation: Any, examples: Iterable[Case], detail: str = ""
) -> Result:
    """The worst that a check finds in some examples, or 1, that has to be 0, where one breaks it.

    An example that could not have shown anything does not count, and where all are such, nothing
    was shown: the row is wrong.
    """
    findings = []
    for case in examples:
        try:
            findings.append(check(implementation, case))
        except Vacuous:
            continue
        except Inapplicable as reason:
            return Result.nothing(name, str(reason))
        except InvariantBroken as broken:
            why = f"An example broke it: {broken} ({case})"
            return Result(name, {"figure": Figure.zero(1)}, why)
    if not findings:
        why = f"No example could have shown that {check.__name__} is broken."
        return Result.of(name, math.nan, at_most=implementation.tolerance, detail=why)
    worst = findings[int(np.argmax([finding.figure for finding in findings]))]  # or a NaN
    compared = sum(finding.compared for finding in findings)
    parts = (detail, f"{worst.measured}, of {compared} in {len(findings)} texts")
    return Result.of(name, worst.figure, worst.tolerance, "; ".join(filter(None, parts)))
