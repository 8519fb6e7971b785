"""Which earlier tokens move a layer's outputs: as windows add up, and as measured, bit by bit.

Derived in docs/memory.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.config import LanguageModelConfig
from npxl.invariants.adapters import NpxlModel
from npxl.invariants.dependence import dependence, oldest_tokens
from npxl.invariants.reading import segments
from npxl.models.segment_model import SegmentModel

Array = NDArray[Any]

_OTHER_TOKENS = 3
"""That each token is exchanged for: one of them might happen to move nothing."""


def predicted_reach(model: SegmentModel, lengths: Sequence[int]) -> Array:
    """Which tokens the outputs of each layer depend on in a text read in segments.

    Returns [n_layer, T, T] bool, at [n − 1, s, t] whether h^n_t depends on token s.
    """
    declared, layers = NpxlModel(model), []
    for n in range(1, model.config.n_layer + 1):
        declared.n_layer = n
        layers.append(dependence(oldest_tokens(declared, lengths)))
    return np.array(layers)


def measured_reach(model: SegmentModel, tokens: Array, lengths: Sequence[int]) -> Array:
    """Which tokens of a text [T] move which outputs by at least one bit: [n_layer, T, T] bool.

    At [n − 1, s, t] whether h^n_t has other bits when token s is another one.  Row s of a batch is
    the text with token s changed, and is compared with row s of a batch of unchanged texts, so that
    the same arithmetic is done at the same place: where it cannot know of the change, it gives the
    same bits.  The other token is one of the same cluster, if that has others: clusters are
    projected in products of as many rows as they have tokens.
    """
    length = len(tokens)
    text = np.tile(tokens, (length, 1))  # [T, T]
    unchanged = layer_outputs(model, text, lengths)
    moved = np.zeros((model.config.n_layer, length, length), bool)
    for n in range(_OTHER_TOKENS):
        other = text.copy()
        np.fill_diagonal(other, [_others(token, model.config)[n] for token in tokens.tolist()])
        moved |= (layer_outputs(model, other, lengths) != unchanged).any(-1)
    return moved


def _others(token: int, config: LanguageModelConfig) -> list[int]:
    """Some other tokens, those of its cluster first, and again if they are too few."""
    (own,) = (cluster for cluster in config.clusters if token in cluster)
    others = [each for each in own if each != token]
    others = others or [each for each in range(config.vocab_size) if each != token] or [token]
    return (others * _OTHER_TOKENS)[:_OTHER_TOKENS]


def furthest(depends: Array) -> int:
    """The largest distance between a token and an output that depends on it."""
    tokens, outputs = np.nonzero(depends)
    return int((outputs - tokens).max(initial=0))


def layer_outputs(model: SegmentModel, inputs: Array, lengths: Sequence[int]) -> Array:
    """The outputs of all layers, [n_layer, B, T, d_model], of inputs [B, T] read in segments."""
    memory = model.init_memory(len(inputs))
    pieces = []
    for start, stop in segments(lengths):
        embedded = model.embed(inputs[:, start:stop])
        hidden, states, cache = model.stack_forward(embedded, memory, None)
        memory = model.next_memory(memory, states)
        pieces.append(np.stack([*model.layer_inputs(states, cache)[1:], hidden]))
    return np.concatenate(pieces, axis=2)
