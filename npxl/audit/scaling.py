"""A configuration at a size at which every entry of every gradient can be checked."""

from __future__ import annotations

import math
from typing import TypeVar

from npxl.config import LanguageModelConfig, to_dict, with_options

Config = TypeVar("Config", bound=LanguageModelConfig)

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
# Large enough for tiles and blocks of the kernels to end within it.
_LARGER = {
    "vocab_size": 500,
    "n_layer": 3,
    "n_head": 3,
    "d_model": 32,
    "d_head": 16,
    "d_inner": 64,
    "mem_len": 40,
    "clamp_len": 24,
    "ext_len": 2,
}
_MOST_CUTOFFS, _DIV_VAL = 3, 2
# Parameters as small as a fresh model's would leave gradients too small to tell from rounding.
# At this width-independent scale of W x, attention still looks at several keys.
_INIT_STD = 0.98


def scaled_down(config: Config, larger: bool = False) -> Config:
    """The same form with every size cut to what can be checked entry by entry.

    The window keeps its relation to the memory: W ≤ mem_len + 1 or not.  The vocabulary is cut
    into equal clusters, and embeddings are projected if they were.

    Parameters
    ----------
    config
        Any configuration.
    larger
        Cut less, to what can be checked along one direction of each tensor.
    """
    limits = _LARGER if larger else _LARGEST
    sizes = {
        name: min(value, largest)
        for name, largest in limits.items()
        if (value := to_dict(config).get(name)) is not None
    }
    if config.attn_window is not None and config.mem_len is not None:
        within = config.attn_window <= config.mem_len + 1
        longest = sizes["mem_len"] + (1 if within else 2)
        sizes["attn_window"] = min(config.attn_window, longest)
    d_model = sizes["d_model"]
    std = round(_INIT_STD / math.sqrt(d_model), 3)
    n_clusters = min(len(config.clusters), _MOST_CUTOFFS + 1)
    return with_options(
        config,
        **sizes,
        cutoffs=tuple(sizes["vocab_size"] * i // n_clusters for i in range(1, n_clusters)),
        div_val=min(config.div_val, _DIV_VAL),
        d_embed=max(8, d_model + 2) if config.has_projections else None,
        tie_projs=config.tie_projs[:n_clusters],
        init_std=std,
        proj_init_std=std if config.has_projections else config.proj_init_std,
    )
