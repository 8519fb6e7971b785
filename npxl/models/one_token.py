"""The layers of a Transformer-XL, read by one token of one stream without allocating anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from npxl.kernels.one_token import (
    add_product,
    attention_of_one,
    normalize_one,
    rectified_product,
    room_for_one,
)
from npxl.layers.attention import PackedMemory, score_scale

if TYPE_CHECKING:
    from npxl.models.transformer_xl import TransformerXL

Array = NDArray[Any]


class OneToken:
    """What `decoder_layer_forward` does without dropout, for a segment of one token.

    In one thread: a core alone reads nearly as much from memory as all of them together.
    """

    def __init__(self, model: TransformerXL) -> None:
        config, dtype = model.config, model.dtype
        self._config = config
        self._layers = [model.layer(model.params, n) for n in range(config.n_layer)]
        self._normalized: Array = np.empty(config.d_model, dtype)
        self._room: Array = np.empty((config.n_head, 0), dtype)
        self._attended: Array = np.empty((config.n_head, config.d_head), dtype)
        self._inner: Array = np.empty(config.d_inner, dtype)
        self._no_bias: Array = np.zeros(config.d_model, dtype)
        self._epsilon = dtype.type(config.layer_norm_epsilon)

    def read(self, n: int, h: Array, memory: PackedMemory, seen: tuple[int, int]) -> None:
        """Overwrite h [d], layer n's input, by its output.

        Its key and value take the place seen[1] − 1 in the memory of the one stream.
        """
        layer, pre_lnorm, epsilon = self._layers[n], self._config.pre_lnorm, self._epsilon
        x = h
        if pre_lnorm:
            x = self._normalized
            normalize_one(h, *layer.attention_norm, epsilon, x)
        self._attend(n, x, memory, seen)
        add_product(h, layer.attention.w_o, self._no_bias, self._attended.reshape(-1))
        if not pre_lnorm:
            normalize_one(h, *layer.attention_norm, epsilon, h)

        x = h
        if pre_lnorm:
            x = self._normalized
            normalize_one(h, *layer.feed_forward_norm, epsilon, x)
        w_1, b_1, w_2, b_2 = layer.feed_forward
        rectified_product(w_1, b_1, x, self._inner)
        add_product(h, w_2, b_2, self._inner)
        if not pre_lnorm:
            normalize_one(h, *layer.feed_forward_norm, epsilon, h)

    def _attend(self, n: int, x: Array, memory: PackedMemory, seen: tuple[int, int]) -> None:
        w_q, w_k, w_v, _, _, u, v = self._layers[n].attention
        start, stop = seen
        start = max(start, stop - self._config.window(stop))
        key_t, values = memory.key_t[0], memory.values[0]
        _, length, padded = values.shape
        if self._room.shape[1] < (size := room_for_one(length, u.shape[1], padded)):
            self._room = np.empty((len(u), size), x.dtype)
        attention_of_one(
            x, w_q, w_k, w_v, u, v, key_t, values, memory.relative_t, memory.n_distances,
            score_scale(u), (start, stop), self._room, self._attended,
        )  # fmt: skip
