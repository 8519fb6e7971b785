"""Transformer-XL (Dai et al. 2019): the layers put together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.config import ModelConfig, checked_int
from npxl.layers.absolute_positions import add_sinusoids
from npxl.layers.dropout import (
    DropoutCache,
    MaskKey,
    dropout_backward,
    dropout_forward,
    site_of,
)
from npxl.layers.positions import sinusoid
from npxl.memory import Memory
from npxl.models import Continuation, Reader
from npxl.models.checks import check_memory
from npxl.models.decoder_layer import (
    LayerCache,
    LayerWeights,
    decoder_layer_backward,
    decoder_layer_forward,
    layer_weights,
    layers_shapes,
)
from npxl.models.plain_reader import PlainReader, WindowReader
from npxl.models.reading import TransformerXLReader
from npxl.models.segment_model import SegmentModel
from npxl.params import Params, Shapes

Array = NDArray[Any]

_RECONFIGURABLE = (
    "mem_len", "attn_window", "clamp_len", "ext_len", "dropout", "dropatt", "initial_memory",
)  # fmt: skip


class TransformerXLCache(NamedTuple):
    """What the backward pass of all layers needs."""

    embedding_dropout: DropoutCache | None
    layers: list[LayerCache]
    hidden_dropout: DropoutCache | None

    @property
    def active(self) -> list[Array]:
        """By layer, which rectified units let a gradient through: positive and not dropped."""
        return [layer.feed_forward.inner > 0 for layer in self.layers]


class TransformerXL(SegmentModel):
    """Segments that read the hidden states of earlier segments.

    Parameters
    ----------
    config
        Shape and semantics.
    seed
        Of the initial parameters: weights, u and v from N(0, init_std²), projections of embeddings
        from N(0, proj_init_std²), gains from N(1, init_std²), biases zero, as in the original code.
    dtype
        Precision of parameters and all arithmetic: float32, or float64 for audits.
    params
        Parameters to use instead of new ones; held, not copied.

    Raises
    ------
    NpxlError
        When the configuration is another model's, the seed or the precision is not as described,
        or `params` do not fit `config`.
    """

    config_class = ModelConfig
    config: ModelConfig

    @staticmethod
    def stack_shapes(config: ModelConfig) -> Shapes:
        """Names and shapes of the layers' tensors."""
        return layers_shapes(config)

    @property
    def reconfigurable(self) -> tuple[str, ...]:
        """Fields that neither shape parameters nor say what they are the parameters of."""
        fixed = ("clamp_len",) if self.config.learns_positions else ()  # the rows of its tables
        return tuple(name for name in _RECONFIGURABLE if name not in fixed)

    def init_memory(self, batch_size: int) -> Memory:
        """The memory before the first segment: of length 0, or zeros if the configuration asks."""
        config = self.config
        batch_size = checked_int("batch_size", batch_size, minimum=1)
        length = config.mem_len if config.initial_memory == "zeros" else 0
        return Memory(np.zeros((config.n_layer, batch_size, length, config.d_model), self.dtype))

    def check_memory(self, memory: Memory, batch_size: int) -> None:
        """NpxlError unless it is the memory of as many streams of this model; of any length."""
        check_memory(memory, self.config, batch_size, self.dtype)

    def reader(self, batch_size: int) -> Reader:
        """For reading streams from their beginnings without gradients.

        Where the memory's keys can be kept from segment to segment, faster than by `forward`.
        """
        if self.config.attn_type == "dai":
            return TransformerXLReader(self, batch_size)
        return PlainReader(self, batch_size)

    def continuation(self, mem_len: int | None) -> Continuation:
        """For one stream in which it does not matter how it is cut.

        Every token is predicted from the last mem_len + 1 in every layer, or from attn_window of
        them if that is less; docs/evaluation.md.  None: from as many as the configuration says.
        """
        config = self.config
        mem_len = config.mem_len if mem_len is None else mem_len
        window = config.window(mem_len + 1)
        model = self.reconfigured(mem_len=mem_len, attn_window=min(window, mem_len + 1), ext_len=0)
        if config.encodes_distances:
            return model.reader(1)
        return WindowReader(model, mem_len + 1)

    def stack_forward(
        self, embedded: Array, memory: Memory, key: MaskKey | None
    ) -> tuple[Array, list[Array], TransformerXLCache]:
        """All layers: from embeddings [B, q, d] to hidden states [B, q, d].

        Also returns what each layer read, n_layer arrays [B, q, d], without places that were added
        to it: the states to cache.
        """
        caches: list[LayerCache] = []
        h, states, embedding_dropout = self._stack(embedded, memory, key, caches)
        h, hidden_dropout = dropout_forward(h, self.config.dropout, site_of(key, "hidden"))
        return h, states, TransformerXLCache(embedding_dropout, caches, hidden_dropout)

    def layer_inputs(self, states: list[Array], cache: TransformerXLCache) -> list[Array]:
        """What each layer read, without places: the states to cache."""
        return states

    def next_memory(self, memory: Memory, states: list[Array]) -> Memory:
        """The last mem_len positions of what was remembered and what has been read."""
        return memory.updated(states, self.config.mem_len, self.config.ext_len)

    def writes_memory(self, name: str) -> bool:
        """Whether it has a part in what a layer reads: all but the last layer's and the output's.

        Biases u and v that layers share have one if there are several.
        """
        part, *rest = name.split(".")
        if part == "layers":
            return int(rest[0]) < self.config.n_layer - 1
        return part == "embedding" or (part == "attention" and self.config.n_layer > 1)

    def stack_read(self, embedded: Array, memory: Memory, n_last: int) -> tuple[Array, list[Array]]:
        """What `stack_forward` returns for the last n_last positions, without dropout and cache.

        The last layer has no other queries.
        """
        hidden, states, _ = self._stack(embedded, memory, None, None, n_last)
        return hidden, states

    def _stack(
        self,
        embedded: Array,
        memory: Memory,
        key: MaskKey | None,
        caches: list[LayerCache] | None,
        n_last: int | None = None,
    ) -> tuple[Array, list[Array], DropoutCache | None]:
        """The layers, of which caches are put into the list if there is one."""
        config = self.config
        # The first query sees W − 1 cached positions, the others fewer: the rest is not read.
        n_memory = min(memory.length, config.window(memory.length + 1) - 1)
        n_keys = n_memory + embedded.shape[1]
        positions = self._positions(n_keys, key) if config.attn_type == "dai" else None
        h, embedding_dropout = dropout_forward(embedded, config.dropout, site_of(key, "embedding"))
        states = []
        for n, layer_memory in enumerate(memory.layers):
            states.append(h)
            seen = layer_memory[:, memory.length - n_memory :]  # [B, K − q, d]
            if n == 0 and config.attn_type == "vaswani":
                site = site_of(key, "embedding")
                h, seen = add_sinusoids(h, seen, config.clamp_len, config.dropout, site)
            if n_last and n == config.n_layer - 1 and n_last < h.shape[1]:
                # To the last layer's queries the others' places are no different from memory.
                seen, h = np.concatenate([seen, h[:, :-n_last]], axis=1), h[:, -n_last:]
            h, cache = decoder_layer_forward(
                h, seen, positions, self.layer(self.params, n), config, key, f"layers.{n}"
            )
            if caches is not None:
                caches.append(cache)
        return h, states, embedding_dropout

    def _positions(self, n_keys: int, key: MaskKey | None) -> Array:
        """R [K, d] by descending distance, after dropout."""
        config = self.config
        positions = sinusoid(n_keys, config.d_model, config.clamp_len, self.dtype)  # [K, d]
        if key is not None:  # one mask for all layers and streams
            shared = key.site("positions").shared()
            positions = dropout_forward(positions[None], config.dropout, shared)[0][0]
        return positions

    def stack_backward(self, d_hidden: Array, cache: TransformerXLCache, grads: Params) -> Array:
        """The gradient of the embeddings [B, q, d]; adds parameter gradients to `grads`."""
        dh = dropout_backward(d_hidden, cache.hidden_dropout)
        for n in reversed(range(self.config.n_layer)):
            dh = decoder_layer_backward(
                dh, cache.layers[n], self.layer(self.params, n), self.layer(grads, n),
                self.config.pre_lnorm,
            )  # fmt: skip
        return dropout_backward(dh, cache.embedding_dropout)

    def layer(self, params: Params, n: int) -> LayerWeights:
        """Views of layer n's parameters, or of their gradients."""
        return layer_weights(params, n, self.config)
