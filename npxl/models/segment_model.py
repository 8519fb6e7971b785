"""What all models share: a stack of layers between two ends, which reads segments of streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from npxl.config import LanguageModelConfig, checked_int, from_dict, to_dict
from npxl.errors import NpxlError, described
from npxl.layers.adaptive_softmax import (
    AdaptiveSoftmaxCache,
    SoftmaxCluster,
    adaptive_log_softmax,
    adaptive_softmax_backward,
    adaptive_softmax_forward,
)
from npxl.layers.dropout import MaskKey, mask_key
from npxl.layers.embedding import EmbeddingCluster, embedding_backward, embedding_forward
from npxl.layers.softmax import n_scored
from npxl.memory import Memory
from npxl.models import Continuation, Reader, Rng, Rows
from npxl.models.checks import (
    check_embedded,
    check_grads,
    checked_cotangent,
    checked_segment,
    checked_tokens,
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
from npxl.params import Params, Shapes, check_shapes, initialize

Array = NDArray[Any]
Model = TypeVar("Model", bound="SegmentModel")


class StackCache(Protocol):
    """What the backward pass of all layers needs."""

    @property
    def active(self) -> list[Array]:
        """By layer, which rectified units let a gradient through: positive and not dropped."""


@dataclass(frozen=True, repr=False)
class SegmentForward:
    """One segment's scores, the memory for the next one, and what `backward` needs."""

    nll: Array  # [B, T], nats
    memory: Memory
    inputs: Array  # [B, q]
    stack: Any  # of a class that is a StackCache
    n_scored: int  # targets that are not to be ignored
    softmax: AdaptiveSoftmaxCache

    def __repr__(self) -> str:
        shape, mean = list(self.nll.shape), self.nll.sum() / max(1, self.n_scored)
        memory = f"memory of {self.memory.length}"
        return f"{type(self).__name__}(nll {shape}, mean {mean:.4g} nats, {memory})"

    @property
    def active(self) -> list[Array]:
        """By layer, which rectified units let a gradient through: positive and not dropped."""
        found: list[Array] = self.stack.active
        return found


class SegmentModel(ABC):
    """An embedding, a stack of layers that reads a memory, and an output layer.

    Parameters
    ----------
    config
        Shape and semantics.
    seed
        Of the initial parameters.
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

    config_class: ClassVar[type[LanguageModelConfig]]
    config: LanguageModelConfig
    params: Params

    def __init__(
        self,
        config: LanguageModelConfig,
        seed: int = 0,
        dtype: DTypeLike = np.float32,
        params: Params | None = None,
    ) -> None:
        if not isinstance(config, self.config_class):
            raise NpxlError(
                f"config is {described(config)}, but the configuration of a {type(self).__name__} "
                f"is a npxl.{self.config_class.__name__}."
            )
        if params is not None and not isinstance(params, Params):
            raise NpxlError(f"params is {described(params)}, but it must be a npxl.Params.")
        dtype = np.dtype(dtype) if params is None else params.dtype
        if dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise NpxlError(f"dtype is {dtype}, but it must be float32 or float64.")
        self.config = config
        shapes = self.parameter_shapes(config)
        if params is None:
            self.params = Params(shapes, dtype=dtype)
            self._initialize(checked_int("seed", seed, minimum=0, maximum=None))
        else:
            check_shapes(params.shapes, shapes)
            self.params = params

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of parameters and arithmetic."""
        return self.params.dtype

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config}, {self.params})"

    @classmethod
    def parameter_shapes(cls, config: Any) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all tensors, in the order of the flat vector.

        A weight is stored as [outputs, inputs].
        """
        return {**embedding_shapes(config), **cls.stack_shapes(config), **softmax_shapes(config)}

    @staticmethod
    @abstractmethod
    def stack_shapes(config: Any) -> Shapes:
        """Names and shapes of the layers' tensors."""

    def _initialize(self, seed: int) -> None:
        """Draw new parameters."""
        initialize(self.params, self.config.init_std, self.config.proj_init_std, seed)

    @property
    @abstractmethod
    def reconfigurable(self) -> tuple[str, ...]:
        """Fields that neither shape parameters nor say what they are the parameters of."""

    def reconfigured(self: Model, **changes: Any) -> Model:
        """The same parameters, not copied, under `config` with some fields replaced.

        Parameters
        ----------
        **changes
            New values of fields in `reconfigurable`.

        Raises
        ------
        NpxlError
            For other fields, with which the parameters would not fit or would mean something else,
            and for values that a field does not allow.
        """
        config = from_dict(self.config_class, to_dict(self.config) | changes)
        others = [name for name in changes if name not in self.reconfigurable]
        if others:
            raise NpxlError(
                f"reconfigured cannot change {', '.join(others)}: with the same parameters that "
                f"would be another model. It can change {', '.join(self.reconfigurable)}; for the "
                f"rest make a new npxl.{type(self).__name__}."
            )
        return type(self)(config, params=self.params)

    def astype(self: Model, dtype: DTypeLike) -> Model:
        """A copy in another precision."""
        return type(self)(self.config, params=self.params.astype(dtype))

    @abstractmethod
    def init_memory(self, batch_size: int) -> Memory:
        """The memory before the first segment."""

    @abstractmethod
    def check_memory(self, memory: Memory, batch_size: int) -> None:
        """NpxlError unless it is the memory of as many streams of this model."""

    @abstractmethod
    def stack_forward(
        self, embedded: Array, memory: Memory, key: MaskKey | None
    ) -> tuple[Array, list[Array], Any]:
        """All layers: from embeddings [B, q, d] to hidden states [B, q, d].

        Also returns an array for each layer of which the next segment's memory is made, and the
        cache.
        """

    @abstractmethod
    def layer_inputs(self, states: list[Array], cache: Any) -> list[Array]:
        """What each layer read, n_layer arrays [B, q, d], when `stack_forward` returned these."""

    @abstractmethod
    def next_memory(self, memory: Memory, states: list[Array]) -> Memory:
        """The memory for the next segment, after one of which `stack_forward` returned states."""

    @abstractmethod
    def writes_memory(self, name: str) -> bool:
        """Whether a tensor has a part in what a segment leaves to the next one."""

    def stack_read(self, embedded: Array, memory: Memory, n_last: int) -> tuple[Array, list[Array]]:
        """What `stack_forward` returns for the last n_last positions, without dropout and cache."""
        hidden, states, _ = self.stack_forward(embedded, memory, None)
        return hidden[:, -n_last:], states

    @abstractmethod
    def stack_backward(self, d_hidden: Array, cache: Any, grads: Params) -> Array:
        """The gradient of the embeddings [B, q, d]; adds parameter gradients to `grads`."""

    def forward(
        self,
        inputs: Array,
        targets: Array,
        memory: Memory,
        rng: Rng = None,
        embedded: Array | None = None,
    ) -> SegmentForward:
        """Score a segment.

        Parameters
        ----------
        inputs
            [B, E+T] int: the segment, after E tokens that are read again as context.
        targets
            [B, T] int: the tokens that follow the last T inputs, or `npxl.IGNORE`, whose nll and
            gradient are 0.
        memory
            Of the segments before.
        rng
            Key of the dropout masks, or a generator to draw one from; None means no dropout.
        embedded
            [B, E+T, d_model] to read in place of the embeddings of `inputs`.

        Returns
        -------
        SegmentForward
            nll [B, T] in nats, in reading order, and the memory for the next segment.

        Raises
        ------
        NpxlError
            When tokens are not whole numbers below vocab_size or their shapes do not belong
            together, when the memory is of other streams, another model or another precision, and
            when `embedded` or `rng` is not as described.
        """
        inputs, targets = checked_segment(inputs, targets, self.config.vocab_size)
        self.check_memory(memory, len(inputs))
        if embedded is None:
            embedded = self.embed(inputs)
        check_embedded(embedded, (*inputs.shape, self.config.d_model), self.dtype)
        hidden, states, stack = self.stack_forward(embedded, memory, mask_key(rng))
        scored = hidden[:, hidden.shape[1] - targets.shape[1] :]  # [B, T, d]
        nll, softmax = adaptive_softmax_forward(scored, targets, self.softmax(self.params))
        memory = self.next_memory(memory, states)
        return SegmentForward(nll, memory, inputs, stack, n_scored(targets), softmax)

    def backward(
        self, fwd: SegmentForward, dnll: Array | None = None, grads: Params | None = None
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

    def touched(self, fwd: SegmentForward) -> Rows:
        """By name of a table, the rows to which `backward(fwd)` adds; other tensors have no name.

        Of a table of all words they are few: those of the inputs, and of the clusters of targets.
        """
        return touched_rows(fwd.inputs, fwd.softmax, self.config)

    def input_gradient(self, fwd: SegmentForward, dnll: Array | None = None) -> Array:
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

    def _backward(self, fwd: SegmentForward, dnll: Array | None, grads: Params) -> Array:
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
            Of the segments before.

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
        self.check_memory(memory, len(inputs))
        hidden, states, _ = self.stack_forward(self.embed(inputs), memory, None)
        log_p = adaptive_log_softmax(hidden, self.softmax(self.params))
        return log_p, self.next_memory(memory, states)

    def reader(self, batch_size: int) -> Reader:
        """For reading streams from their beginnings without gradients."""
        return PlainReader(self, batch_size)

    @abstractmethod
    def continuation(self, mem_len: int | None) -> Continuation:
        """For continuing one text, in whatever pieces it comes, from the last mem_len tokens.

        None: from as many as the configuration says.
        """

    def save(self, path: str | Path) -> None:
        """Write parameters and configuration to a safetensors file, atomically."""
        save_model(self, path)

    def embedding(self, params: Params) -> tuple[EmbeddingCluster, ...]:
        """Views of the embedding's parameters, or of their gradients."""
        return embedding_weights(params, self.config)

    def softmax(self, params: Params) -> tuple[SoftmaxCluster, ...]:
        """Views of the output layer's parameters, or of their gradients."""
        return softmax_weights(params, self.config)
