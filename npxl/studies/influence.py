"""How much a trained model's prediction is moved by what lies how far back, in three measures.

Texts are read as one segment; with a window W ≤ mem_len + 1 the scores are those of any
segmentation, and a backward pass reaches all of the text and not just its last segment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.errors import NpxlError
from npxl.layers.attention import attention_probabilities
from npxl.models.transformer_xl import TransformerXL

Array = NDArray[Any]


def probabilities(model: TransformerXL, fwd: Any) -> Array:
    """a of every layer [N, B, H, q, K] in a forward pass of a model with the paper's encoding."""
    attention = []
    for n, cache in enumerate(fwd.stack.layers):
        weights = model.layer(model.params, n).attention
        attention.append(attention_probabilities(cache.attention.attend, weights.u, weights.v))
    return np.array(attention)


def by_gradient(model: TransformerXL, texts: Array) -> Array:
    """‖∂ℓ / ∂x_{t−δ}‖ by distance δ, of the loss ℓ at the last token's prediction: [B, n].

    x are the embedded inputs; texts are [B, n + 1].
    """
    inputs, targets = texts[:, :-1], texts[:, -1:]
    fwd = model.forward(inputs, targets, model.init_memory(len(inputs)))
    gradient = model.input_gradient(fwd, np.ones_like(fwd.nll))  # [B, n, d]
    norms: Array = np.linalg.norm(gradient, axis=-1)
    return norms[:, ::-1]


def by_attention(model: TransformerXL, texts: Array) -> Array:
    """What attention passes on from distance δ to the last input (Abnar & Zuidema 2020): [B, n].

    A layer mixes states by (A + I) / 2, with A the mean of its heads and I for the residual
    connection; "attention rollout" is the last row of the product over all layers.
    """
    inputs, targets = texts[:, :-1], texts[:, -1:]
    fwd = model.forward(inputs, targets, model.init_memory(len(inputs)))
    passed = np.zeros(inputs.shape)
    passed[:, -1] = 1
    for heads in probabilities(model, fwd)[::-1]:  # [B, H, n, n]
        passed = (np.einsum("bi,bij->bj", passed, heads.mean(1)) + passed) / 2
    return passed[:, ::-1]


def by_exchange(
    model: TransformerXL, texts: Array, distance: int, draw: np.random.Generator
) -> Array:
    """How much probability moves when the token at that distance is another one: [B].

    ½ Σ_x |p(x) − p′(x)|, of the last predictions p and p′; the other token is one of the same text,
    or where that has no other, of all texts.  NpxlError when these have no other, either.
    """
    inputs = texts[:, :-1]
    place = inputs.shape[1] - 1 - distance
    others = inputs.copy()
    for row in others:
        elsewhere = row[row != row[place]]
        if not elsewhere.size:
            elsewhere = texts[texts != row[place]]
        if not elsewhere.size:
            raise NpxlError(
                f"All texts are token {row[place]} again and again, so that there is no other one "
                "to exchange it for: pass a text with several symbols."
            )
        row[place] = draw.choice(elsewhere)
    before, after = (
        np.exp(model.log_probs(each, model.init_memory(len(each)))[0][:, -1])
        for each in (inputs, others)
    )
    moved: Array = np.abs(before - after).sum(-1) / 2
    return moved
