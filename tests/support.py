"""Models whose gradients are large, and texts that they read.

What is drawn is in npxl.testing, but for configurations of other models than a Transformer-XL.
"""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import strategies as st

from npxl import LSTMConfig
from npxl.models.architectures import model_class
from npxl.testing.strategies import clusters, configs


@st.composite
def lstm_configs(draw, **options):
    """Small configurations over all options; an option given is a value or a strategy for it."""
    strategies = {
        "vocab_size": st.integers(2, 7),
        "n_layer": st.integers(1, 3),
        "d_model": st.integers(1, 6),
        "dropout": st.sampled_from([0.0, 0.3]),
        "tie_weight": st.booleans(),
    }
    drawn = {
        name: draw(value) if isinstance(value, st.SearchStrategy) else value
        for name, value in {**strategies, **options}.items()
    }
    return LSTMConfig(**{**draw(clusters(drawn["vocab_size"], drawn["d_model"])), **drawn})


def kinds(**options):
    """By kind of model, small configurations; options given are for the kinds that have them."""
    of_an_lstm = {field.name for field in fields(LSTMConfig)}
    return {
        "transformer-xl": configs(**options),
        "vanilla": configs(**{**options, "mem_len": 0, "attn_type": "al-rfou"}),
        "lstm": lstm_configs(**{n: value for n, value in options.items() if n in of_an_lstm}),
    }


def each_kind(**options):
    """A test for each kind of model: its `configs` are those of `kinds`."""
    found = kinds(**options)
    return pytest.mark.parametrize("configs", found.values(), ids=found)


def model_for(config, seed=0, dtype=np.float64):
    """A model whose parameters, biases too, are so large that no gradient is lost to rounding."""
    kind = model_class(config)
    proj_init_std = 0.4 if config.has_projections else config.proj_init_std
    model = kind(replace(config, init_std=0.4, proj_init_std=proj_init_std), seed, dtype)
    rng = np.random.default_rng([seed, 1])
    for view in model.params.values():
        if not view.any():
            view[...] = rng.normal(0, 0.4, view.shape)
    return kind(config, params=model.params)


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
