"""One layer: attention and feed-forward block, each with its residual connection and normalization.

Post-normalization is the paper's, x ← norm(x + f(x)); pre-normalization is x ← x + f(norm(x)).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.config import ModelConfig
from npxl.layers.attention import (
    AttentionCache,
    AttentionWeights,
    relative_attention_backward,
    relative_attention_forward,
)
from npxl.layers.dropout import MaskKey, site_of
from npxl.layers.feed_forward import (
    FeedForwardCache,
    FeedForwardWeights,
    feed_forward_backward,
    feed_forward_forward,
)
from npxl.layers.layer_norm import LayerNormCache, layer_norm_backward, layer_norm_forward
from npxl.params import Params

Array = NDArray[Any]


class NormWeights(NamedTuple):
    """Parameters of one layer normalization, or their gradients."""

    gain: Array  # [d_model]
    bias: Array  # [d_model]


class LayerWeights(NamedTuple):
    """Parameters of one layer, or their gradients."""

    attention: AttentionWeights
    attention_norm: NormWeights
    feed_forward: FeedForwardWeights
    feed_forward_norm: NormWeights


class LayerCache(NamedTuple):
    """What the backward pass needs."""

    attention: AttentionCache
    attention_norm: LayerNormCache
    feed_forward: FeedForwardCache
    feed_forward_norm: LayerNormCache


def layer_weights(params: Params, n: int, untie_r: bool) -> LayerWeights:
    """Views of layer n's parameters, or of their gradients; u and v are its own if `untie_r`."""

    def views(part: str, *names: str) -> list[Array]:
        return [params[f"{part}.{name}"] for name in names]

    attention = f"layers.{n}.attention"
    biases = attention if untie_r else "attention"
    return LayerWeights(
        AttentionWeights(
            *views(attention, "w_q", "w_k", "w_v", "w_r", "w_o"), *views(biases, "u", "v")
        ),
        NormWeights(*views(f"layers.{n}.attention_norm", *NormWeights._fields)),
        FeedForwardWeights(*views(f"layers.{n}.feed_forward", *FeedForwardWeights._fields)),
        NormWeights(*views(f"layers.{n}.feed_forward_norm", *NormWeights._fields)),
    )


def decoder_layer_forward(
    h: Array,
    memory: Array,
    positions: Array,
    weights: LayerWeights,
    config: ModelConfig,
    key: MaskKey | None,
    name: str,
) -> tuple[Array, LayerCache]:
    """The layer's output [B, q, d], of its input h [B, q, d] and its memory [B, m, d].

    positions R [m + q, d] by descending distance; `name` tells the dropout masks of layers apart.
    """
    epsilon = config.layer_norm_epsilon
    context = np.concatenate([memory, h], axis=1)  # h̃ = [SG(m) ∘ h], [B, K, d]
    if config.pre_lnorm:
        context, attention_norm = layer_norm_forward(context, *weights.attention_norm, epsilon)
    y, attention = relative_attention_forward(
        context, h.shape[1], positions, weights.attention, config.window(context.shape[1]),
        config.dropatt, config.dropout,
        site_of(key, f"{name}.attention_probabilities"), site_of(key, f"{name}.attention_output"),
    )  # fmt: skip
    h = h + y
    if not config.pre_lnorm:
        h, attention_norm = layer_norm_forward(h, *weights.attention_norm, epsilon)

    x = h
    if config.pre_lnorm:
        x, feed_forward_norm = layer_norm_forward(h, *weights.feed_forward_norm, epsilon)
    y, feed_forward = feed_forward_forward(
        x, weights.feed_forward, config.dropout,
        site_of(key, f"{name}.feed_forward_inner"), site_of(key, f"{name}.feed_forward_output"),
    )  # fmt: skip
    h = h + y
    if not config.pre_lnorm:
        h, feed_forward_norm = layer_norm_forward(h, *weights.feed_forward_norm, epsilon)
    return h, LayerCache(attention, attention_norm, feed_forward, feed_forward_norm)


def decoder_layer_backward(
    dh: Array, cache: LayerCache, weights: LayerWeights, grads: LayerWeights, pre_lnorm: bool
) -> Array:
    """The gradient of the layer's input h [B, q, d]; memory, a constant, has none."""
    gain = weights.feed_forward_norm.gain
    if not pre_lnorm:
        dh = layer_norm_backward(dh, cache.feed_forward_norm, gain, *grads.feed_forward_norm)
    dx = feed_forward_backward(dh, cache.feed_forward, weights.feed_forward, grads.feed_forward)
    if pre_lnorm:
        dx = layer_norm_backward(dx, cache.feed_forward_norm, gain, *grads.feed_forward_norm)
    dh = dh + dx

    gain = weights.attention_norm.gain
    if not pre_lnorm:
        dh = layer_norm_backward(dh, cache.attention_norm, gain, *grads.attention_norm)
    n_keys, n_queries = cache.attention.context.shape[1], dh.shape[1]
    n_memory = n_keys - n_queries
    # Under pre-normalization the memory's rows pass through the gain and bias as well, which
    # receive gradient from them; the memory itself still does not.
    d_context = relative_attention_backward(
        dh, cache.attention, weights.attention, grads.attention, first=0 if pre_lnorm else n_memory
    )
    if pre_lnorm:
        d_context = layer_norm_backward(
            d_context, cache.attention_norm, gain, *grads.attention_norm
        )
    return dh + d_context[:, d_context.shape[1] - n_queries :]
