"""What tests of the whole model draw from: configurations, models, tokens and segmentations.

Strategies draw shapes, options and seeds, never the numbers in an array, so that a failure shrinks
to a configuration that a person can read.
"""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from npxl import ModelConfig, TransformerXL

DISTANCES = ["dai", "shaw"]
"""Values of attn_type with which states do not depend on their place."""
PLACES = ["vaswani", "al-rfou"]
"""Those with which they do."""
ATTN_TYPES = [*DISTANCES, *PLACES]
LEARNED = ["shaw", "al-rfou"]
"""Values of attn_type that need a table, and so the largest distance that it has a row for."""

_OPTIONS = {
    "vocab_size": st.integers(2, 7),
    "n_layer": st.integers(1, 3),
    "n_head": st.integers(1, 3),
    "d_model": st.sampled_from([4, 6, 8, 2]),
    "d_head": st.sampled_from([1, 3, 5, 2, 4]),
    "d_inner": st.integers(1, 7),
    "mem_len": st.integers(0, 6),
    "attn_window": st.none() | st.integers(1, 8),
    "attn_type": st.sampled_from(ATTN_TYPES),
    "clamp_len": st.none() | st.integers(1, 8),
    "ext_len": st.integers(0, 2),
    "dropout": st.sampled_from([0.0, 0.3]),
    "dropatt": st.sampled_from([0.0, 0.3]),
    "pre_lnorm": st.booleans(),
    "untie_r": st.booleans(),
    "tie_weight": st.booleans(),
    "initial_memory": st.sampled_from(["empty", "zeros"]),
}


@st.composite
def configs(draw, **options):
    """Small configurations over all options; an option given is a value or a strategy for it."""
    drawn = {}
    for name, strategy in {**_OPTIONS, **options}.items():
        drawn[name] = draw(strategy) if isinstance(strategy, st.SearchStrategy) else strategy
    if drawn["attn_type"] != "dai":
        drawn["untie_r"] = False
    if drawn["attn_type"] in LEARNED and drawn["clamp_len"] is None:
        drawn["clamp_len"] = draw(st.integers(1, 8))
    return ModelConfig(**{**draw(clusters(drawn["vocab_size"], drawn["d_model"])), **drawn})


@st.composite
def clusters(draw, vocab_size, d_model):
    """The options of clusters of symbols, which depend on one another."""
    cutoffs = draw(
        st.sets(st.integers(1, vocab_size - 1), max_size=3) if vocab_size > 1 else st.just(())
    )
    div_val = draw(st.sampled_from([1, 2, 4]))
    narrowest = div_val ** len(cutoffs)
    d_embed = draw(st.integers(narrowest, narrowest + 5))
    if d_model >= narrowest and draw(st.booleans()):
        d_embed = None
    tie_projs = ()
    if div_val > 1 or d_embed not in (None, d_model):
        size = len(cutoffs) + 1
        tie_projs = draw(st.just(()) | st.lists(st.booleans(), min_size=size, max_size=size))
    return dict(
        cutoffs=tuple(sorted(cutoffs)), div_val=div_val, d_embed=d_embed, tie_projs=tuple(tie_projs)
    )


def segmentations(length):
    """Ways to cut `length` tokens into segments: lists of their lengths."""
    cuts = st.sets(st.integers(1, length - 1)) if length > 1 else st.just(set())
    return cuts.map(lambda at: np.diff([0, *sorted(at), length]).tolist())


def model_for(config, seed=0, dtype=np.float64):
    """A model whose parameters, biases too, are so large that no gradient is lost to rounding."""
    model = TransformerXL(replace(config, init_std=0.4, proj_init_std=0.4), seed, dtype)
    rng = np.random.default_rng([seed, 1])
    for view in model.params.values():
        if not view.any():
            view[...] = rng.normal(0, 0.4, view.shape)
    return TransformerXL(config, params=model.params)


def tokens(shape, seed=0, vocab_size=5):
    """Random token ids."""
    return np.random.default_rng(seed).integers(vocab_size, size=shape)


def cut(stream, lengths):
    """The segments of `stream` [B, N], of the given lengths."""
    return np.split(stream, np.cumsum(lengths)[:-1], axis=1)


def read(model, stream, lengths, memory=None):
    """log p after every token of `stream` [B, N] read in segments, [B, N, V]; and the memory."""
    memory = model.init_memory(len(stream)) if memory is None else memory
    log_probs = []
    for segment in cut(stream, lengths):
        log_p, memory = model.log_probs(segment, memory)
        log_probs.append(log_p)
    return np.concatenate(log_probs, axis=1), memory
