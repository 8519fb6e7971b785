"""A language model of LSTM layers (Zaremba et al. 2014): the layers put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.config import LSTMConfig, checked_int
from npxl.errors import NpxlError
from npxl.layers.adaptive_softmax import adaptive_log_softmax, adaptive_softmax_forward
from npxl.layers.dropout import (
    DropoutCache,
    MaskKey,
    dropout_backward,
    dropout_forward,
    site_of,
)
from npxl.layers.lstm import LSTMCache, LSTMWeights, lstm_backward, lstm_forward, recurrent_tiles
from npxl.memory import Memory
from npxl.models import Reader
from npxl.models.checks import check_memory, check_streams, checked_segment, checked_tokens
from npxl.models.segment_model import SegmentModel
from npxl.params import Params, Shapes

Array = NDArray[Any]

FORGET_BIAS = 1.0
"""What the forget gates' biases start at, so that a new cell keeps most of what it has."""


class LSTMStackCache(NamedTuple):
    """What the backward pass of all layers needs."""

    dropouts: list[DropoutCache | None]  # of the embedding, and of each layer's output
    layers: list[LSTMCache]

    @property
    def active(self) -> list[Array]:
        """No unit is rectified."""
        return []


class LSTM(SegmentModel):
    """Segments that go on with the state that earlier segments left.

    The memory is that state: h and c of every layer, [n_layer, B, 2, d_model].  It is a constant,
    so that backpropagation through time ends where the segment begins.  Without dropout, scores do
    not depend on how a text is cut into segments.

    Parameters
    ----------
    config
        Shape.
    seed
        Of the initial parameters: weights from N(0, init_std²), projections of embeddings from
        N(0, proj_init_std²); biases zero, but those of the forget gates 1 (Jozefowicz et al. 2015).
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

    config_class = LSTMConfig
    config: LSTMConfig

    @staticmethod
    def stack_shapes(config: LSTMConfig) -> Shapes:
        """Names and shapes of the layers' tensors."""
        d = config.d_model
        tensors = {"w_x": (4 * d, d), "w_h": (4 * d, d), "bias": (4 * d,)}
        return {
            f"layers.{n}.{name}": shape
            for n in range(config.n_layer)
            for name, shape in tensors.items()
        }

    def _initialize(self, seed: int) -> None:
        super()._initialize(seed)
        d = self.config.d_model
        for n in range(self.config.n_layer):
            self.layer(self.params, n).bias[d : 2 * d] = FORGET_BIAS

    @property
    def reconfigurable(self) -> tuple[str, ...]:
        """Fields that do not shape parameters."""
        return ("dropout",)

    def init_memory(self, batch_size: int) -> Memory:
        """The state before the first segment: zeros."""
        batch_size = checked_int("batch_size", batch_size, minimum=1)
        config = self.config
        return Memory(np.zeros((config.n_layer, batch_size, 2, config.d_model), self.dtype))

    def check_memory(self, memory: Memory, batch_size: int) -> None:
        """NpxlError unless it is the state of as many streams of this model."""
        check_memory(memory, self.config, batch_size, self.dtype, length=2)

    def reader(self, batch_size: int) -> Reader:
        """For reading streams from their beginnings without gradients."""
        return LSTMReader(self, batch_size)

    def continuation(self, mem_len: int | None) -> Reader:
        """For one stream, which can be cut anywhere."""
        if mem_len is not None:
            raise NpxlError(
                f"mem_len is {mem_len}, but an LSTM remembers all that it has read, in a state of "
                "one size: leave mem_len out."
            )
        return self.reader(1)

    def stack_forward(
        self, embedded: Array, memory: Memory, key: MaskKey | None
    ) -> tuple[Array, list[Array], LSTMStackCache]:
        """All layers: from embeddings [B, q, d] to hidden states [B, q, d].

        Also returns the state of each layer for the next segment, and the cache.
        """
        rate = self.config.dropout
        h, dropout = dropout_forward(embedded, rate, site_of(key, "embedding"))
        dropouts, caches = [dropout], []
        for n, state in enumerate(memory.layers):
            h, cache = lstm_forward(h, state, self.layer(self.params, n))
            h, dropout = dropout_forward(h, rate, site_of(key, f"layers.{n}.output"))
            caches.append(cache)
            dropouts.append(dropout)
        return h, [cache.state for cache in caches], LSTMStackCache(dropouts, caches)

    def layer_inputs(self, states: list[Array], cache: LSTMStackCache) -> list[Array]:
        """What each layer read, n_layer arrays [B, q, d], after dropout."""
        return [layer.x.swapaxes(0, 1) for layer in cache.layers]

    def next_memory(self, memory: Memory, states: list[Array]) -> Memory:
        """The states [B, 2, d] of all layers; of what was before there is nothing to add."""
        return Memory(np.stack(states))

    def writes_memory(self, name: str) -> bool:
        """Whether it has a part in a layer's state: all but the output's."""
        return not name.startswith("softmax.")

    def stack_backward(self, d_hidden: Array, cache: LSTMStackCache, grads: Params) -> Array:
        """The gradient of the embeddings [B, q, d]; adds parameter gradients to `grads`."""
        embedding_dropout, *dropouts = cache.dropouts
        dh = d_hidden
        for n in reversed(range(self.config.n_layer)):
            dh = dropout_backward(dh, dropouts[n])
            dh = lstm_backward(
                dh, cache.layers[n], self.layer(self.params, n), self.layer(grads, n)
            )
        return dropout_backward(dh, embedding_dropout)

    def layer(self, params: Params, n: int) -> LSTMWeights:
        """Views of layer n's parameters, or of their gradients."""
        return LSTMWeights(*(params[f"layers.{n}.{name}"] for name in LSTMWeights._fields))


class LSTMReader:
    """Segments of B streams one after another, with the scores that `model.forward` gives.

    The recurrent weights are laid out for the kernel once.  Parameters must not change while a
    reader is used.

    Parameters
    ----------
    model
        What to read with.
    batch_size
        Streams B.
    """

    def __init__(self, model: LSTM, batch_size: int) -> None:
        self._model, self._memory = model, model.init_memory(batch_size)
        self._layers = [model.layer(model.params, n) for n in range(model.config.n_layer)]
        self._tiles = [recurrent_tiles(layer.w_h) for layer in self._layers]

    def log_probs(self, inputs: Array) -> Array:
        """log p of every symbol after each of the inputs [B, q]: [B, q, V], in nats."""
        hidden = self._read(inputs)
        return adaptive_log_softmax(hidden, self._model.softmax(self._model.params))

    def score(self, inputs: Array, targets: Array) -> Array:
        """Negative log-likelihood of the targets [B, T] of the last T of the inputs, in nats."""
        inputs, targets = checked_segment(inputs, targets, self._model.config.vocab_size)
        scored = self._read(inputs)[:, inputs.shape[1] - targets.shape[1] :]
        clusters = self._model.softmax(self._model.params)
        return adaptive_softmax_forward(scored, targets, clusters)[0]

    def select(self, rows: Sequence[int] | slice | Array) -> None:
        """Go on with some of the streams, in the given order."""
        self._memory = self._memory.select(rows)

    def _read(self, inputs: Array) -> Array:
        """Hidden states [B, q, d] of the next segment, after which the state is another."""
        inputs = checked_tokens("inputs", inputs, self._model.config.vocab_size)
        check_streams(inputs, self._memory.batch_size)
        h, states = self._model.embed(inputs), []
        for weights, tiles, state in zip(
            self._layers, self._tiles, self._memory.layers, strict=True
        ):
            h, cache = lstm_forward(h, state, weights, tiles)
            states.append(cache.state)
        self._memory = self._model.next_memory(self._memory, states)
        return h
