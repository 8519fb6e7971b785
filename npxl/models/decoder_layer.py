"""One layer: attention and feed-forward block, each with its residual connection and normalization.

Post-normalization is the paper's, x ← norm(x + f(x)); pre-normalization is x ← x + f(norm(x)).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.config import ModelConfig
from npxl.layers.absolute_positions import add_learned_backward, add_learned_forward
from npxl.layers.attention import (
    AttentionCache,
    AttentionWeights,
    relative_attention_backward,
    relative_attention_forward,
)
from npxl.layers.content_attention import (
    ContentCache,
    ContentWeights,
    content_attention_backward,
    content_attention_forward,
)
from npxl.layers.dropout import MaskKey, site_of
from npxl.layers.feed_forward import (
    FeedForwardCache,
    FeedForwardWeights,
    feed_forward_backward,
    feed_forward_forward,
)
from npxl.layers.layer_norm import LayerNormCache, layer_norm_backward, layer_norm_forward
from npxl.layers.shaw_attention import (
    ShawCache,
    ShawWeights,
    shaw_attention_backward,
    shaw_attention_forward,
)
from npxl.params import Params, Shapes

Array = NDArray[Any]


class NormWeights(NamedTuple):
    """Parameters of one layer normalization, or their gradients."""

    gain: Array  # [d_model]
    bias: Array  # [d_model]


class LayerWeights(NamedTuple):
    """Parameters of one layer, or their gradients."""

    position: Array | None  # [C + 1, d_model], where places are learned
    attention: Any  # of a class in _ATTENTION_WEIGHTS
    attention_norm: NormWeights
    feed_forward: FeedForwardWeights
    feed_forward_norm: NormWeights


class LayerCache(NamedTuple):
    """What the backward pass needs."""

    attention: AttentionCache | ShawCache | ContentCache
    attention_norm: LayerNormCache
    feed_forward: FeedForwardCache
    feed_forward_norm: LayerNormCache


_ATTENTION_WEIGHTS: dict[str, Any] = {
    "dai": AttentionWeights,
    "shaw": ShawWeights,
    "vaswani": ContentWeights,
    "al-rfou": ContentWeights,
}
"""What attention has parameters for, by `attn_type`."""


def layers_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all layers' tensors, in the order of the flat vector.

    A weight is stored as [outputs, inputs].
    """
    d, width, heads = config.d_model, config.n_head * config.d_head, (config.n_head, config.d_head)
    attention = {
        "w_q": (width, d), "w_k": (width, d), "w_v": (width, d), "w_r": (width, d),
        "w_o": (d, width), "u": heads, "v": heads,
        "relative": (config.n_learned, *heads), "relative_bias": (config.n_learned, config.n_head),
    }  # fmt: skip
    norm = {"gain": (d,), "bias": (d,)}
    feed_forward = {
        "w_1": (config.d_inner, d), "b_1": (config.d_inner,),
        "w_2": (d, config.d_inner), "b_2": (d,),
    }  # fmt: skip
    of_attention = _ATTENTION_WEIGHTS[config.attn_type]._fields
    parts: dict[str, Shapes] = {
        "attention": {name: attention[name] for name in of_attention},
        "attention_norm": norm,
        "feed_forward": feed_forward,
        "feed_forward_norm": norm,
    }
    tensors = {f"{part}.{name}": shape for part in parts for name, shape in parts[part].items()}
    if config.attn_type == "al-rfou":
        tensors = {"position": (config.n_learned, d), **tensors}
    shapes = {
        _name(config, n, tensor): shape
        for n in range(config.n_layer)
        for tensor, shape in tensors.items()
    }
    # What all layers share comes first.
    return dict(sorted(shapes.items(), key=lambda item: item[0].startswith("layers.")))


def layer_weights(params: Params, n: int, config: ModelConfig) -> LayerWeights:
    """Views of layer n's parameters, or of their gradients."""

    def views(part: str, kind: type[Any]) -> Any:
        return kind(*(params[_name(config, n, f"{part}.{name}")] for name in kind._fields))

    return LayerWeights(
        params.get(_name(config, n, "position")),
        views("attention", _ATTENTION_WEIGHTS[config.attn_type]),
        views("attention_norm", NormWeights),
        views("feed_forward", FeedForwardWeights),
        views("feed_forward_norm", NormWeights),
    )


def _name(config: ModelConfig, n: int, tensor: str) -> str:
    """Of layer n's tensor in the flat vector; u and v may be those of all layers."""
    is_shared = tensor in ("attention.u", "attention.v") and config.shares_biases
    return tensor if is_shared else f"layers.{n}.{tensor}"


def decoder_layer_forward(
    h: Array,
    memory: Array,
    positions: Array | None,
    weights: LayerWeights,
    config: ModelConfig,
    key: MaskKey | None,
    name: str,
) -> tuple[Array, LayerCache]:
    """The layer's output [B, q, d], of its input h [B, q, d] and its memory [B, m, d].

    positions are R [m + q, d] by descending distance, where attention is the paper's own; `name`
    tells the dropout masks of layers apart.
    """
    epsilon = config.layer_norm_epsilon
    context = np.concatenate([memory, h], axis=1)  # h̃ = [SG(m) ∘ h], [B, K, d]
    if weights.position is not None:
        context = add_learned_forward(context, weights.position)
        h = context[:, memory.shape[1] :]
    if config.pre_lnorm:
        context, attention_norm = layer_norm_forward(context, *weights.attention_norm, epsilon)
    y, attention = _attention_forward(
        context, h.shape[1], positions, weights.attention, config, key, name
    )
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
    # The memory, a constant, has no gradient.  But what is added to its rows has, and so have the
    # gain and bias that they pass through under pre-normalization.
    first = 0 if pre_lnorm or weights.position is not None else n_keys - n_queries
    d_context = _attention_backward(dh, cache.attention, weights.attention, grads.attention, first)
    if pre_lnorm:
        d_context = layer_norm_backward(
            d_context, cache.attention_norm, gain, *grads.attention_norm
        )
    of_segment = d_context[:, d_context.shape[1] - n_queries :]
    of_segment += dh
    if grads.position is not None:
        add_learned_backward(d_context, grads.position)
    return of_segment


def _attention_forward(
    context: Array,
    n_queries: int,
    positions: Array | None,
    weights: Any,
    config: ModelConfig,
    key: MaskKey | None,
    name: str,
) -> tuple[Array, Any]:
    """That of the configuration's `attn_type`."""
    options = (
        weights, config.window(context.shape[1]), config.dropatt, config.dropout,
        site_of(key, f"{name}.attention_probabilities"), site_of(key, f"{name}.attention_output"),
    )  # fmt: skip
    if config.attn_type == "shaw":
        return shaw_attention_forward(context, n_queries, *options)
    if config.attn_type == "dai":
        assert positions is not None
        return relative_attention_forward(context, n_queries, positions, *options)
    return content_attention_forward(context, n_queries, config.n_head, *options)


def _attention_backward(dy: Array, cache: Any, weights: Any, grads: Any, first: int) -> Array:
    """That of what `_attention_forward` returned."""
    if isinstance(cache, ShawCache):
        return shaw_attention_backward(dy, cache, weights, grads, first)
    if isinstance(cache, AttentionCache):
        return relative_attention_backward(dy, cache, weights, grads, first)
    return content_attention_backward(dy, cache, weights, grads, first)
