"""Invariants of Transformer-XL that hold or not, whoever wrote it: a protocol, and named checks.

They know shapes and seeds and need nothing but NumPy; `npxl.testing` draws examples for them.
"""

from npxl.invariants.causality import check_causality
from npxl.invariants.findings import (
    CHECKS,
    Case,
    Check,
    Finding,
    Inapplicable,
    InvariantBroken,
    Vacuous,
)
from npxl.invariants.protocol import Implementation, capabilities, declared

__all__ = [
    "CHECKS",
    "Case",
    "Check",
    "Finding",
    "Implementation",
    "Inapplicable",
    "InvariantBroken",
    "Vacuous",
    "capabilities",
    "check_causality",
    "declared",
]
