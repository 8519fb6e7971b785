"""Models: assembly of layers, without arithmetic of their own, under one protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from npxl.config import LanguageModelConfig
from npxl.layers.dropout import MaskKey
from npxl.memory import Memory
from npxl.params import Params

Array = NDArray[Any]
Rng = MaskKey | np.random.Generator | None
Rows = Mapping[str, Sequence[slice | Array]]
"""By name of a tensor, numbers of some of its rows."""


class Forward(Protocol):
    """What a forward pass returns."""

    @property
    def nll(self) -> Array:
        """Negative log-likelihood of each target, [B, T], in nats and in reading order."""

    @property
    def memory(self) -> Memory:
        """What the next segment may read."""


class Reader(Protocol):
    """Reads segments of some streams one after another, without gradients."""

    def score(self, inputs: Array, targets: Array) -> Array:
        """The nll [B, T] that `LanguageModel.forward` gives for the next segment, in nats."""

    def log_probs(self, inputs: Array) -> Array:
        """log p of every symbol after each input of the next segment, [B, q, V] in nats."""

    def select(self, rows: Sequence[int] | slice | Array) -> None:
        """Go on with some of the streams, in the given order."""


class Continuation(Protocol):
    """Reads one stream, of which only what follows its last token is wanted."""

    def log_probs(self, inputs: Array) -> Array:
        """log p of every symbol after the last of the next inputs [1, q]: [1, ·, V] in nats.

        Before it there may be those after earlier inputs.
        """


class LanguageModel(Protocol):
    """What workers, loop, evaluation and generation ask of a model."""

    params: Params

    @property
    def config(self) -> LanguageModelConfig:
        """Shape and semantics."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of parameters and arithmetic."""

    def init_memory(self, batch_size: int) -> Memory:
        """The memory before the first segment."""

    def forward(self, inputs: Array, targets: Array, memory: Memory, rng: Rng = None) -> Forward:
        """Score the targets [B, T] of the last T of the inputs [B, E+T]."""

    def backward(self, fwd: Any, dnll: Array | None = None, grads: Params | None = None) -> Params:
        """Add the gradient of Σ dnll · nll to `grads`; without dnll, of the mean.

        fwd is what this model's own `forward` returned.
        """

    def touched(self, fwd: Any) -> Rows:
        """Rows outside of which `backward(fwd)` adds nothing, of tensors of which it knows some."""

    def log_probs(self, inputs: Array, memory: Memory) -> tuple[Array, Memory]:
        """log p of every symbol after each input, [B, q, V] in nats, and the next memory."""

    def reader(self, batch_size: int) -> Reader:
        """For reading B streams from their beginnings, faster than by `forward`."""

    def continuation(self, mem_len: int | None) -> Continuation:
        """For continuing one text, in whatever pieces it comes, from the last mem_len tokens.

        None: from as many as the configuration says.
        """

    def reconfigured(self, **changes: Any) -> LanguageModel:
        """The same parameters under another configuration, such as a longer memory."""

    def save(self, path: str | Path) -> None:
        """Write the model to a safetensors file."""
