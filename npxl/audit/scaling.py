"""A configuration at a size at which every entry of every gradient can be checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from npxl.config import ModelConfig

# Large enough for every mechanism to act, small enough to perturb entry by entry.
_LARGEST = {
    "vocab_size": 11,
    "n_layer": 2,
    "n_head": 2,
    "d_model": 6,
    "d_head": 4,
    "d_inner": 8,
    "mem_len": 5,
    "clamp_len": 4,
    "ext_len": 1,
}
# Embeddings of the fourth cluster have width 8 // 2³.
_MOST_CUTOFFS, _DIV_VAL, _D_EMBED = 3, 2, 8
# Parameters as small as a fresh model's would leave gradients too small to tell from rounding.
_INIT_STD = 0.4


def scaled_down(config: ModelConfig, largest: Mapping[str, int] = _LARGEST) -> ModelConfig:
    """The same form with every size cut to what can be checked entry by entry.

    The window keeps its relation to the memory: W ≤ mem_len + 1 or not.  The vocabulary is cut
    into equal clusters, and embeddings are projected if they were.
    """
    sizes = {
        name: min(value, limit)
        for name, limit in largest.items()
        if (value := getattr(config, name)) is not None
    }
    if config.attn_window is not None:
        within = config.attn_window <= config.mem_len + 1
        longest = sizes["mem_len"] + (1 if within else 2)
        sizes["attn_window"] = min(config.attn_window, longest)
    n_clusters = min(len(config.clusters), _MOST_CUTOFFS + 1)
    return replace(
        config,
        **sizes,
        cutoffs=tuple(sizes["vocab_size"] * i // n_clusters for i in range(1, n_clusters)),
        div_val=min(config.div_val, _DIV_VAL),
        d_embed=_D_EMBED if config.has_projections else None,
        tie_projs=config.tie_projs[:n_clusters],
        init_std=_INIT_STD,
        proj_init_std=_INIT_STD,
    )
