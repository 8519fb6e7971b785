"""Transformer-XL (Dai et al. 2019): the layers put together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from npxl.config import ModelConfig, checked_int, from_dict, to_dict
from npxl.errors import NpxlError, described
from npxl.layers.absolute_positions import add_sinusoids
from npxl.layers.adaptive_softmax import (
    AdaptiveSoftmaxCache,
    SoftmaxCluster,
    adaptive_log_softmax,
    adaptive_softmax_backward,
    adaptive_softmax_forward,
)
from npxl.layers.dropout import (
    DropoutCache,
    MaskKey,
    dropout_backward,
    dropout_forward,
    mask_key,
    site_of,
)
from npxl.layers.embedding import EmbeddingCluster, embedding_backward, embedding_forward
from npxl.layers.positions import sinusoid
from npxl.layers.softmax import n_scored
from npxl.memory import Memory
from npxl.models import Reader, Rng, Rows
from npxl.models.checks import (
    check_embedded,
    check_grads,
    check_memory,
    checked_cotangent,
    checked_segment,
    checked_tokens,
)
from npxl.models.decoder_layer import (
    LayerCache,
    LayerWeights,
    decoder_layer_backward,
    decoder_layer_forward,
    layer_weights,
    layers_shapes,
)
from npxl.models.ends import (
    embedding_shapes,
    embedding_weights,
    softmax_shapes,
    softmax_weights,
    touched_rows,
)
from npxl.models.files import save_model
from npxl.models.plain_reader import PlainReader
from npxl.models.reading import TransformerXLReader
from npxl.params import Params, check_shapes, initialize

Array = NDArray[Any]

RECONFIGURABLE = (
    "mem_len", "attn_window", "clamp_len", "ext_len", "dropout", "dropatt", "initial_memory",
)  # fmt: skip
"""Fields that neither shape parameters nor say what function they are the parameters of."""


class StackCache(NamedTuple):
    """What the backward pass of all layers needs."""

    embedding_dropout: DropoutCache | None
    layers: list[LayerCache]
    hidden_dropout: DropoutCache | None


@dataclass(frozen=True, repr=False)
class TransformerXLForward:
    """One segment's scores, the memory for the next one, and what `backward` needs."""

    nll: Array  # [B, T], nats
    memory: Memory
    inputs: Array  # [B, q]
    stack: StackCache
    n_scored: int  # targets that are not to be ignored
    softmax: AdaptiveSoftmaxCache

    def __repr__(self) -> str:
        shape, mean = list(self.nll.shape), self.nll.sum() / max(1, self.n_scored)
        memory = f"memory of {self.memory.length}"
        return f"TransformerXLForward(nll {shape}, mean {mean:.4g} nats, {memory})"

    @property
    def active(self) -> list[Array]:
        """By layer, which rectified units let a gradient through: positive and not dropped."""
        return [layer.feed_forward.inner > 0 for layer in self.stack.layers]


class TransformerXL:
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
        When the seed or the precision is not as described, or `params` do not fit `config`.
    """

    def __init__(
        self,
        config: ModelConfig,
        seed: int = 0,
        dtype: DTypeLike = np.float32,
        params: Params | None = None,
    ) -> None:
        if params is not None and not isinstance(params, Params):
            raise NpxlError(f"params is {described(params)}, but it must be a npxl.Params.")
        dtype = np.dtype(dtype) if params is None else params.dtype
        if dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise NpxlError(f"dtype is {dtype}, but it must be float32 or float64.")
        self.config = config
        shapes = self.parameter_shapes(config)
        if params is None:
            params = Params(shapes, dtype=dtype)
            seed = checked_int("seed", seed, minimum=0, maximum=None)
            initialize(params, config.init_std, config.proj_init_std, seed)
        check_shapes(params.shapes, shapes)
        self.params = params

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of parameters and arithmetic."""
        return self.params.dtype

    def __repr__(self) -> str:
        return f"TransformerXL({self.config}, {self.params})"

    @staticmethod
    def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all tensors, in the order of the flat vector.

        A weight is stored as [outputs, inputs].
        """
        return {**embedding_shapes(config), **layers_shapes(config), **softmax_shapes(config)}

    def reconfigured(self, **changes: Any) -> TransformerXL:
        """The same parameters, not copied, under `config` with some fields replaced.

        Parameters
        ----------
        **changes
            New values of fields in `RECONFIGURABLE`.

        Raises
        ------
        NpxlError
            For other fields, with which the parameters would not fit or would mean something else,
            and for values that a field does not allow.
        """
        config = from_dict(ModelConfig, to_dict(self.config) | changes)
        fixed = ("clamp_len",) if self.config.learns_positions else ()  # the rows of its tables
        allowed = [name for name in RECONFIGURABLE if name not in fixed]
        others = [name for name in changes if name not in allowed]
        if others:
            raise NpxlError(
                f"reconfigured cannot change {', '.join(others)}: with the same parameters that "
                f"would be another model. It can change {', '.join(allowed)}; for the rest "
                "make a new npxl.TransformerXL."
            )
        return TransformerXL(config, params=self.params)

    def init_memory(self, batch_size: int) -> Memory:
        """The memory before the first segment: of length 0, or zeros if the configuration asks."""
        config = self.config
        batch_size = checked_int("batch_size", batch_size, minimum=1)
        length = config.mem_len if config.initial_memory == "zeros" else 0
        return Memory(np.zeros((config.n_layer, batch_size, length, config.d_model), self.dtype))

    def astype(self, dtype: DTypeLike) -> TransformerXL:
        """A copy in another precision."""
        return TransformerXL(self.config, params=self.params.astype(dtype))

    def forward(
        self,
        inputs: Array,
        targets: Array,
        memory: Memory,
        rng: Rng = None,
        embedded: Array | None = None,
    ) -> TransformerXLForward:
        """Score a segment.

        Parameters
        ----------
        inputs
            [B, E+T] int: the segment, after E tokens that are read again as context.
        targets
            [B, T] int: the tokens that follow the last T inputs, or `npxl.IGNORE`, whose nll and
            gradient are 0.
        memory
            Of the segments before; of any length.
        rng
            Key of the dropout masks, or a generator to draw one from; None means no dropout.
        embedded
            [B, E+T, d_model] to read in place of the embeddings of `inputs`.

        Returns
        -------
        TransformerXLForward
            nll [B, T] in nats, in reading order, and the memory for the next segment.

        Raises
        ------
        NpxlError
            When tokens are not whole numbers below vocab_size or their shapes do not belong
            together, when the memory is of other streams, another model or another precision, and
            when `embedded` or `rng` is not as described.
        """
        inputs, targets = checked_segment(inputs, targets, self.config.vocab_size)
        check_memory(memory, self.config, len(inputs), self.dtype)
        if embedded is None:
            embedded = self.embed(inputs)
        check_embedded(embedded, (*inputs.shape, self.config.d_model), self.dtype)
        hidden, states, stack = self.stack_forward(embedded, memory, mask_key(rng))
        scored = hidden[:, hidden.shape[1] - targets.shape[1] :]  # [B, T, d]
        nll, softmax = adaptive_softmax_forward(scored, targets, self.softmax(self.params))
        memory = memory.updated(states, self.config.mem_len, self.config.ext_len)
        return TransformerXLForward(nll, memory, inputs, stack, n_scored(targets), softmax)

    def backward(
        self,
        fwd: TransformerXLForward,
        dnll: Array | None = None,
        grads: Params | None = None,
    ) -> Params:
        """The gradient of Σ dnll · nll with respect to all parameters.

        Parameters
        ----------
        fwd
            What `forward` returned.
        dnll
            [B, T] cotangent; when not given that of the mean, one over the number of targets that
            are not to be ignored.
        grads
            Where to add the gradient; new zeros when not given.

        Returns
        -------
        Params
            `grads`.

        Raises
        ------
        NpxlError
            When `dnll` is not of the shape of nll, or `grads` not of that of the parameters.
        """
        if grads is None:
            grads = self.params.zeros_like()
        check_grads(grads, self.params)
        d_embedded = self._backward(fwd, dnll, grads)
        embedding_backward(
            d_embedded, fwd.inputs, self.embedding(self.params), self.embedding(grads)
        )
        return grads

    def touched(self, fwd: TransformerXLForward) -> Rows:
        """By name of a table, the rows to which `backward(fwd)` adds; other tensors have no name.

        Of a table of all words they are few: those of the inputs, and of the clusters of targets.
        """
        return touched_rows(fwd.inputs, fwd.softmax, self.config)

    def input_gradient(self, fwd: TransformerXLForward, dnll: Array | None = None) -> Array:
        """The gradient of Σ dnll · nll with respect to the embedded inputs, [B, q, d_model]."""
        return self._backward(fwd, dnll, self.params.zeros_like())

    def embed(self, inputs: Array) -> Array:
        """What the first layer reads, before dropout: [B, q] int to [B, q, d_model].

        Raises
        ------
        NpxlError
            When the inputs are not tokens of the vocabulary.
        """
        inputs = checked_tokens("inputs", inputs, self.config.vocab_size)
        return embedding_forward(inputs, self.embedding(self.params))

    def _backward(self, fwd: TransformerXLForward, dnll: Array | None, grads: Params) -> Array:
        """Everything down to the embedded inputs, whose gradient [B, q, d] is returned."""
        dnll = checked_cotangent(dnll, fwd.nll, fwd.n_scored)
        d_scored = adaptive_softmax_backward(
            dnll, fwd.softmax, self.softmax(self.params), self.softmax(grads)
        )
        d_hidden = np.zeros((*fwd.inputs.shape, self.config.d_model), self.dtype)  # [B, q, d]
        d_hidden[:, d_hidden.shape[1] - d_scored.shape[1] :] = d_scored
        return self.stack_backward(d_hidden, fwd.stack, grads)

    def log_probs(self, inputs: Array, memory: Memory) -> tuple[Array, Memory]:
        """log p of every symbol after each input, and the memory for the next segment.

        Parameters
        ----------
        inputs
            [B, q] int.
        memory
            Of the segments before; of any length.

        Returns
        -------
        tuple
            Log-probabilities [B, q, V] in nats, and the memory.

        Raises
        ------
        NpxlError
            When inputs or memory are wrong, as for `forward`.
        """
        inputs = checked_tokens("inputs", inputs, self.config.vocab_size)
        check_memory(memory, self.config, len(inputs), self.dtype)
        hidden, states, _ = self.stack_forward(self.embed(inputs), memory, None)
        log_p = adaptive_log_softmax(hidden, self.softmax(self.params))
        return log_p, memory.updated(states, self.config.mem_len, self.config.ext_len)

    def reader(self, batch_size: int) -> Reader:
        """For reading streams from their beginnings without gradients.

        Where the memory's keys can be kept from segment to segment, faster than by `forward`.
        """
        if self.config.attn_type == "dai":
            return TransformerXLReader(self, batch_size)
        return PlainReader(self, batch_size)

    def stack_forward(
        self, embedded: Array, memory: Memory, key: MaskKey | None
    ) -> tuple[Array, list[Array], StackCache]:
        """All layers: from embeddings [B, q, d] to hidden states [B, q, d].

        Also returns what each layer read, n_layer arrays [B, q, d], without places that were added
        to it: the states to cache.
        """
        config = self.config
        # The first query sees W − 1 cached positions, the others fewer: the rest is not read.
        n_memory = min(memory.length, config.window(memory.length + 1) - 1)
        n_keys = n_memory + embedded.shape[1]
        positions = self._positions(n_keys, key) if config.attn_type == "dai" else None
        h, embedding_dropout = dropout_forward(embedded, config.dropout, site_of(key, "embedding"))
        states, caches = [], []
        for n, layer_memory in enumerate(memory.layers):
            states.append(h)
            seen = layer_memory[:, memory.length - n_memory :]  # [B, K − q, d]
            if n == 0 and config.attn_type == "vaswani":
                site = site_of(key, "embedding")
                h, seen = add_sinusoids(h, seen, config.clamp_len, config.dropout, site)
            h, cache = decoder_layer_forward(
                h, seen, positions, self.layer(self.params, n), config, key, f"layers.{n}"
            )
            caches.append(cache)
        h, hidden_dropout = dropout_forward(h, config.dropout, site_of(key, "hidden"))
        return h, states, StackCache(embedding_dropout, caches, hidden_dropout)

    def _positions(self, n_keys: int, key: MaskKey | None) -> Array:
        """R [K, d] by descending distance, after dropout."""
        config = self.config
        positions = sinusoid(n_keys, config.d_model, config.clamp_len, self.dtype)  # [K, d]
        if key is not None:  # one mask for all layers and streams
            shared = key.site("positions").shared()
            positions = dropout_forward(positions[None], config.dropout, shared)[0][0]
        return positions

    def stack_backward(self, d_hidden: Array, cache: StackCache, grads: Params) -> Array:
        """The gradient of the embeddings [B, q, d]; adds parameter gradients to `grads`."""
        dh = dropout_backward(d_hidden, cache.hidden_dropout)
        for n in reversed(range(self.config.n_layer)):
            dh = decoder_layer_backward(
                dh, cache.layers[n], self.layer(self.params, n), self.layer(grads, n),
                self.config.pre_lnorm,
            )  # fmt: skip
        return dropout_backward(dh, cache.embedding_dropout)

    def save(self, path: str | Path) -> None:
        """Write parameters and configuration to a safetensors file, atomically."""
        save_model(self, path)

    def layer(self, params: Params, n: int) -> LayerWeights:
        """Views of layer n's parameters, or of their gradients."""
        return layer_weights(params, n, self.config)

    def embedding(self, params: Params) -> tuple[EmbeddingCluster, ...]:
        """Views of the embedding's parameters, or of their gradients."""
        return embedding_weights(params, self.config)

    def softmax(self, params: Params) -> tuple[SoftmaxCluster, ...]:
        """Views of the output layer's parameters, or of their gradients."""
        return softmax_weights(params, self.config)
