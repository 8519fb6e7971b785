"""All broken models, and how to make one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support import model_for

from broken import of_attention, of_dropout, of_layers, of_memory, of_reading
from broken.copies import Copy
from broken.mutant import Mutant
from npxl import ModelConfig

MUTANTS: tuple[Mutant, ...] = (
    *of_memory.MUTANTS,
    *of_attention.MUTANTS,
    *of_layers.MUTANTS,
    *of_dropout.MUTANTS,
    *of_reading.MUTANTS,
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

ORDINARY: Mapping[str, Any] = dict(
    vocab_size=7, n_layer=2, n_head=2, d_model=4, d_head=3, d_inner=5, mem_len=4, attn_window=5,
)  # fmt: skip
"""Of the model that is broken: so small that a check takes milliseconds."""


def implementation(package: Copy, options: Mapping[str, Any] = {}, reads: str = "NpxlModel") -> Any:
    """A model of this copy of npxl as the checks take it, in float64; seed and shapes are fixed."""
    config = {**ORDINARY, **options}
    params = model_for(ModelConfig(**config)).params
    own_config = package["npxl.config"].ModelConfig(**config)
    model = package["npxl.models.transformer_xl"].TransformerXL(own_config, params=params)
    return getattr(package["npxl.invariants.adapters"], reads)(model)
