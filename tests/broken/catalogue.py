"""All broken models, and how to make one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support import model_for

from broken import of_attention, of_dropout, of_layers, of_lstm, of_memory, of_reading
from broken.copies import Copy
from broken.mutant import Mutant
from npxl.config import config_of

MUTANTS: tuple[Mutant, ...] = (
    *of_memory.MUTANTS,
    *of_attention.MUTANTS,
    *of_layers.MUTANTS,
    *of_dropout.MUTANTS,
    *of_reading.MUTANTS,
    *of_lstm.MUTANTS,
)

KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "memory": (
        "what a segment leaves to the next one",
        (
            "check_memory_update",
            "check_memory_is_constant",
            "check_longer_memory",
            "check_segmentation_invariance",
        ),
    ),
    "start": ("what the first segment finds", ("check_empty_start",)),
    "window": (
        "how far a query looks",
        ("check_window", "check_exact_reach", "check_segmentation_invariance"),
    ),
    "causality": ("what comes later", ("check_causality",)),
    "positions": (
        "how far apart two tokens are",
        (
            "check_reference",
            "check_shift_covariance",
            "check_segmentation_invariance",
        ),
    ),
    "attention": (
        "what is a query and what a key, and how they are compared",
        (
            "check_reference",
            "check_attention_averages",
            "check_segmentation_invariance",
        ),
    ),
    "recurrence": (
        "what an LSTM hands on from step to step",
        (
            "check_reference",
            "check_segmentation_invariance",
            "check_incremental",
            "check_exact_reach",
            "check_memory_is_constant",
        ),
    ),
    "numerics": (
        "precision and range",
        ("check_reference", "check_large_scores", "check_determinism"),
    ),
    "probabilities": ("what adds up to one", ("check_probabilities",)),
    "losses": (
        "which number belongs to which target",
        ("check_reading_order", "check_ignored_targets"),
    ),
    "gradient": (
        "the way back",
        ("check_gradients", "check_repeated_tokens", "check_gradient_linearity"),
    ),
    "dropout": (
        "masks",
        (
            "check_dropout_masks",
            "check_dropout_scale",
            "check_dropout_gradients",
            "check_determinism",
            "check_attention_averages",
            "check_reference",
        ),
    ),
    "batch": (
        "streams that must not know of each other",
        ("check_batch_equivariance", "check_select", "check_batch_size_mismatch"),
    ),
    "reader": (
        "reading with keys and values that are kept",
        (
            "check_incremental",
            "check_segmentation_invariance",
            "check_exact_reach",
            "check_select",
            "check_generation",
        ),
    ),
    "generation": ("continuing a text", ("check_generation",)),
}
"""What can be wrong, and the checks that name it."""

ORDINARY: Mapping[str, Mapping[str, Any]] = {
    "transformer_xl": dict(
        vocab_size=7, n_layer=2, n_head=2, d_model=4, d_head=3, d_inner=5, mem_len=4, attn_window=5,
    ),
    "lstm": dict(vocab_size=7, n_layer=2, d_model=4),
}  # fmt: skip
"""Of the model that is broken: so small that a check takes milliseconds."""


def implementation(
    package: Copy,
    options: Mapping[str, Any] = {},
    reads: str = "NpxlModel",
    architecture: str = "transformer_xl",
) -> Any:
    """A model of this copy of npxl as the checks take it, in float64; seed and shapes are fixed."""
    values = {**ORDINARY[architecture], **options}
    params = model_for(config_of(architecture, values)).params
    own_config = package["npxl.config"].config_of(architecture, values)
    kind = package["npxl.models.architectures"].model_class(own_config)
    return getattr(package["npxl.invariants.adapters"], reads)(kind(own_config, params=params))
