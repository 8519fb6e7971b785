"""Invariants of Transformer-XL that hold or not, whoever wrote it: a protocol, and named checks.

They know shapes and seeds and need nothing but NumPy; `npxl.testing` draws examples for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npxl.invariants.averages import check_attention_averages, check_empty_start
from npxl.invariants.batches import (
    check_batch_equivariance,
    check_batch_size_mismatch,
    check_select,
)
from npxl.invariants.causality import check_causality, check_exact_reach, check_window
from npxl.invariants.findings import (
    Case,
    Check,
    Finding,
    Inapplicable,
    InvariantBroken,
    Vacuous,
)
from npxl.invariants.learning import (
    check_dropout_gradients,
    check_gradient_linearity,
    check_gradients,
    check_repeated_tokens,
    check_stop_gradient,
)
from npxl.invariants.probabilities import (
    check_ignored_targets,
    check_large_scores,
    check_probabilities,
    check_reading_order,
)
from npxl.invariants.protocol import Implementation, capabilities, declared
from npxl.invariants.randomness import (
    check_determinism,
    check_dropout_masks,
    check_dropout_scale,
    check_generation,
)
from npxl.invariants.recurrence import (
    check_incremental,
    check_longer_memory,
    check_reference,
    check_segmentation_invariance,
    check_shift_covariance,
)
from npxl.invariants.states import check_memory_is_constant, check_memory_update

CHECKS: Mapping[str, Check[Any]] = {
    each.__name__: each
    for each in (
        check_probabilities,
        check_reading_order,
        check_ignored_targets,
        check_determinism,
        check_large_scores,
        check_causality,
        check_batch_equivariance,
        check_select,
        check_batch_size_mismatch,
        check_memory_update,
        check_memory_is_constant,
        check_empty_start,
        check_attention_averages,
        check_window,
        check_exact_reach,
        check_segmentation_invariance,
        check_incremental,
        check_shift_covariance,
        check_longer_memory,
        check_reference,
        check_generation,
        check_gradients,
        check_repeated_tokens,
        check_gradient_linearity,
        check_stop_gradient,
        check_dropout_masks,
        check_dropout_scale,
        check_dropout_gradients,
    )
}
"""All checks by name, in the order in which an implementer would want to see them pass."""

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
    "declared",
    *CHECKS,
]
