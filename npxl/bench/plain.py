"""What the fast code replaces, in plain NumPy: to measure what each optimisation earns.

Every entry of `WITHOUT` puts a plain twin in the place of something fast, for the whole process.
The results stay the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl import threads
from npxl.kernels.random_mask import drop
from npxl.layers import attention, feed_forward, layer_norm
from npxl.layers.attention import AttentionWeights, PackedMemory
from npxl.layers.dropout import DropoutCache, dropout_forward
from npxl.models import reading
from npxl.training import optimizers

Array = NDArray[Any]


class PlainAttendCache(NamedTuple):
    """What `attend_backward` needs."""

    query: Array  # [B, q, H, d_head]
    key: Array  # [B, K, H, d_head]
    value: Array  # [B, K, H, d_head]
    relative: Array  # [K, H, d_head]
    attended: Array  # [B, q, H, d_head]
    probabilities: Array  # [B, H, q, K]
    dropped: Array  # [B, H, q, K], after dropout
    scale: Any
    dropout: DropoutCache | None


def attend_forward(
    query: Array, key: Array, value: Array, relative: Array, u: Array, v: Array, window: int,
    dropout: DropoutCache | None = None, scale: Any = None,
) -> tuple[Array, PlainAttendCache]:  # fmt: skip
    """`npxl.layers.attention.attend_forward`: products, the shift of appendix B, a mask."""
    scale = attention.score_scale(query) if scale is None else scale
    n_queries, n_keys = query.shape[1], key.shape[1]
    content = _heads(query + u) @ _heads(key).swapaxes(2, 3)  # [B, H, q, K]
    position = _heads(query + v) @ _heads(relative[None]).swapaxes(2, 3)  # [B, H, q, K]
    scores = (content + shift(position)) * scale
    distances = np.arange(n_keys - n_queries, n_keys)[:, None] - np.arange(n_keys)  # [q, K]
    scores[..., (distances < 0) | (distances >= window)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    probabilities = weights / weights.sum(-1, keepdims=True)
    dropped = probabilities
    if dropout is not None:
        dropped, _ = dropout_forward(probabilities, *dropout)
    attended = (dropped @ _heads(value)).swapaxes(1, 2)  # [B, q, H, d_head]
    return attended, PlainAttendCache(
        query, key, value, relative, attended, probabilities, dropped, scale, dropout
    )


def attend_backward(
    d_attended: Array, cache: PlainAttendCache, u: Array, v: Array, d_u: Array, d_v: Array
) -> tuple[Array, Array, Array, Array]:
    """`npxl.layers.attention.attend_backward`, one matrix product after another."""
    query, key, value, relative = cache.query, cache.key, cache.value, cache.relative
    d_out = _heads(d_attended)  # [B, H, q, d_head]
    d_value = cache.dropped.swapaxes(2, 3) @ d_out
    dp = d_out @ _heads(value).swapaxes(2, 3)  # [B, H, q, K]
    if cache.dropout is not None:
        dp, _ = dropout_forward(dp, *cache.dropout)
    p = cache.probabilities
    d_content = p * (dp - (p * dp).sum(-1, keepdims=True)) * cache.scale
    d_position = shift_back(d_content)
    d_query_u = d_content @ _heads(key)
    d_query_v = d_position @ _heads(relative[None])
    d_key = d_content.swapaxes(2, 3) @ _heads(query + u)
    d_relative = (d_position.swapaxes(2, 3) @ _heads(query + v)).sum(0, keepdims=True)
    d_u += d_query_u.sum((0, 2))
    d_v += d_query_v.sum((0, 2))
    d_query, d_key, d_value, d_relative = (
        np.ascontiguousarray(x.swapaxes(1, 2))
        for x in (d_query_u + d_query_v, d_key, d_value, d_relative)
    )
    return d_query, d_key, d_value, d_relative[0]


def shift(x: Array) -> Array:
    """Appendix B: rows by distance [..., q, K] to rows by key; cells of later keys are garbage."""
    *batch, n_queries, n_keys = x.shape
    padded = np.concatenate([np.zeros((*batch, n_queries, 1), x.dtype), x], axis=-1)
    shifted: Array = padded.reshape(*batch, n_keys + 1, n_queries)[..., 1:, :].reshape(x.shape)
    return shifted


def shift_back(x: Array) -> Array:
    """The adjoint of `shift` without its garbage: x [..., q, K] is zero for later keys."""
    *batch, n_queries, n_keys = x.shape
    wrapped = x.reshape(*batch, n_queries * n_keys)
    first = np.zeros((*batch, n_queries), x.dtype)
    padded = np.concatenate([first, wrapped], axis=-1).reshape(*batch, n_queries, n_keys + 1)
    return padded[..., 1:]


def _heads(x: Array) -> Array:
    """[B, n, H, d_head] with heads in front of positions: [B, H, n, d_head]."""
    swapped: Array = x.swapaxes(1, 2)
    return swapped


def rectify_forward(x: Array, bias: Array, rule: Any) -> None:
    """`npxl.kernels.rectifier.rectify_forward`, a pass an operation."""
    x += bias
    np.maximum(x, 0, out=x)
    if rule.threshold > 0:
        drop(x.reshape(len(x), -1), x.reshape(len(x), -1), rule)


def rectify_backward(dy: Array, y: Array, factor: Any, d_bias: Array) -> None:
    """`npxl.kernels.rectifier.rectify_backward`, a pass an operation."""
    dy *= factor
    dy *= y > 0
    d_bias += dy.sum(0)


def layer_norm_rows_forward(
    x: Array, gain: Array, bias: Array, epsilon: Any, y: Array, normalized: Array, inv_std: Array
) -> None:
    """`npxl.kernels.normalization.layer_norm_rows_forward`, a pass an operation."""
    centered = x - x.mean(-1, keepdims=True)
    inv_std[:] = 1 / np.sqrt((centered * centered).mean(-1) + epsilon)
    normalized[:] = centered * inv_std[:, None]
    y[:] = gain * normalized + bias


def layer_norm_rows_backward(
    dy: Array, normalized: Array, inv_std: Array, gain: Array, dx: Array, d_gain: Array,
    d_bias: Array,
) -> None:  # fmt: skip
    """`npxl.kernels.normalization.layer_norm_rows_backward`, a pass an operation."""
    g = gain * dy
    mean_gz = (g * normalized).mean(-1, keepdims=True)
    dx[:] = (g - g.mean(-1, keepdims=True) - normalized * mean_gz) * inv_std[:, None]
    d_gain += (dy * normalized).sum(0)
    d_bias += dy.sum(0)


def adam_update(
    params: Array, gradient: Array, first: Array, second: Array, scale: Any, decay1: Any,
    gain1: Any, decay2: Any, gain2: Any, step_size: Any, root2: Any, epsilon: Any,
) -> None:  # fmt: skip
    """`npxl.kernels.adam.adam_update`, a pass an operation."""
    g = gradient * scale
    first *= decay1
    first += gain1 * g
    second *= decay2
    second += gain2 * g * g
    params -= step_size * first / (np.sqrt(second) * root2 + epsilon)


def _replace(module: Any, *functions: Callable[..., Any]) -> None:
    for function in functions:
        assert hasattr(module, function.__name__)
        setattr(module, function.__name__, function)


def attend_packed(
    query: Array, memory: PackedMemory, seen: tuple[int, int], weights: AttentionWeights,
    window: int, heads: range, attended: Array,
) -> None:  # fmt: skip
    """`npxl.layers.attention.attend_packed` by `attend_forward`, of what is unpacked first."""
    start, stop = seen
    part = slice(heads.start, heads.stop)
    width = query.shape[3]
    key_t, values, relative_t = memory.key_t[:, part], memory.values[:, part], memory.relative_t
    key = key_t.swapaxes(3, 4).reshape(*values.shape[:3], width)[:, :, start:stop]
    value = values[:, :, start:stop, :width]
    relative = relative_t[part].swapaxes(2, 3).reshape(len(heads), -1, width)
    distances = np.arange(stop - start)[::-1]
    columns = memory.n_distances - 1 - np.minimum(distances, memory.n_distances - 1)
    attended[:, :, part], _ = attend_forward(
        query[:, :, part], key.swapaxes(1, 2), value.swapaxes(1, 2),
        relative[:, columns].swapaxes(0, 1), weights.u[part], weights.v[part], window,
    )  # fmt: skip


def _without_fused_attention() -> None:
    _replace(attention, attend_forward, attend_backward)
    _replace(reading, attend_packed)


WITHOUT: dict[str, Callable[[], None]] = {
    "fused-attention": _without_fused_attention,
    "fused-rectifier": lambda: _replace(feed_forward, rectify_forward, rectify_backward),
    "fused-norm": lambda: _replace(layer_norm, layer_norm_rows_forward, layer_norm_rows_backward),
    "fused-adam": lambda: _replace(optimizers, adam_update),
    "kept-memory": lambda: setattr(threads, "keep_freed_memory", lambda: False),
}
"""Names of optimisations, and what takes them out of this process.

Three more are known to `npxl.bench.sides`: `workers`, without which one thread does it all,
`projected-memory`, without which every segment projects the whole memory's keys and values anew,
and `one-token`, without which a token alone is read as any segment is.
"""
