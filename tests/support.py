"""Models whose gradients are large, and texts that they read; what is drawn is in npxl.testing."""

from dataclasses import replace

import numpy as np

from npxl import TransformerXL


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
