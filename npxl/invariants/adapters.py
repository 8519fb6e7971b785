"""npxl's own models as the checks take them: by forward and backward, and by their reader."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.inference.generation import generate
from npxl.kernels.cross_entropy import IGNORE
from npxl.layers.dropout import MaskKey
from npxl.memory import Memory
from npxl.models import Reader
from npxl.models.segment_model import SegmentModel
from npxl.reference import Output
from npxl.references import reference_mask, reference_of

Array = NDArray[Any]

TOLERANCE = {"float32": 1e-4, "float64": 1e-12}
"""Rounding in log-probabilities of a few layers, by precision."""


class _Declared:
    """What a model's configuration declares, of whatever kind the model is."""

    ignore_index = IGNORE

    def __init__(self, model: SegmentModel, tolerance: float | None = None) -> None:
        config = model.config
        self.model = model
        self.vocab_size = config.vocab_size
        self.n_layer = config.n_layer
        self.mem_len = config.mem_len
        self.window = config.attn_window
        self.tolerance = TOLERANCE[model.dtype.name] if tolerance is None else tolerance
        self.averages = config.attends
        self.encodes_distances = config.encodes_distances
        self.initial_memory = config.initial_memory
        self.ext_len = config.ext_len
        self.bitwise = not (config.cutoffs and config.has_projections)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    @property
    def _caches(self) -> bool:
        """Whether memory is a cache of positions, and not a state of one size."""
        return self.model.config.mem_len is not None

    @property
    def _drops(self) -> bool:
        """Whether anything is dropped in training."""
        return bool(self.model.config.dropout or self.model.config.dropatt)


class NpxlModel(_Declared):
    """A model of npxl by `forward`, `backward` and `log_probs`; a state is its memory.

    Parameters
    ----------
    model
        The model; its parameters are not copied.
    tolerance
        The largest difference that is rounding; None: 1e-12 in float64 and 1e-4 in float32.
    """

    masks_by_stream = True

    def __init__(
        self, model: SegmentModel, tolerance: float | None = None, rng: MaskKey | None = None
    ) -> None:
        super().__init__(model, tolerance)
        self._rng = rng

    def start(self, batch_size: int) -> Memory:
        """The memory before the first segment."""
        return self.model.init_memory(batch_size)

    def log_probs(self, inputs: Array, state: Memory) -> tuple[Array, Memory]:
        """log p [B, q, V], without dropout."""
        return self.model.log_probs(inputs, state)

    def nll(self, inputs: Array, targets: Array, state: Memory) -> tuple[Array, Memory]:
        """Losses [B, T]."""
        fwd = self.model.forward(inputs, targets, state, self._rng)
        return fwd.nll, fwd.memory

    def parameters(self) -> Mapping[str, Array]:
        """Views of the model's parameters."""
        return self.model.params

    def gradients(
        self, inputs: Array, targets: Array, state: Memory, dnll: Array
    ) -> Mapping[str, Array]:
        """What `backward` adds up."""
        return self.model.backward(self.model.forward(inputs, targets, state, self._rng), dnll)

    def embeddings(self, inputs: Array, state: Memory) -> Array:
        """What the first layer reads of the inputs, [B, q, d]."""
        embedded = self.model.embed(inputs)
        _, states, cache = self.model.stack_forward(embedded, state, self._rng)
        return self.model.layer_inputs(states, cache)[0]

    @property
    def memory(self) -> Callable[[Memory], Array] | None:
        """The cached states, where memory is a cache."""
        return self._memory if self._caches else None

    def _memory(self, state: Memory) -> Array:
        return state.states

    def select(self, state: Memory, rows: Sequence[int]) -> Memory:
        """The memory of some streams."""
        return state.select(rows)

    @property
    def with_mem_len(self) -> Callable[[int], NpxlModel] | None:
        """The model reconfigured, with the same window, where memory has a length."""
        return self._with_mem_len if self._caches else None

    def _with_mem_len(self, mem_len: int) -> NpxlModel:
        return NpxlModel(self.model.reconfigured(mem_len=mem_len), self.tolerance, self._rng)

    def generate(self, prompt: Array, n_tokens: int, seed: int) -> tuple[Array, Array]:
        """A continuation at temperature 1."""
        drawn = list(generate(self.model, prompt, n_tokens, seed=seed))
        return np.array([each.token for each in drawn]), np.array([each.log_prob for each in drawn])

    def reference(self) -> NpxlReference:
        """The equations, literally, of the same parameters."""
        return NpxlReference(self.model, self.tolerance)

    @property
    def train(self) -> Callable[[int, int], NpxlModel] | None:
        """With dropout, where the configuration has some."""
        return self._train if self._drops else None

    def _train(self, seed: int, first_stream: int = 0) -> NpxlModel:
        key = MaskKey(seed=seed, first_stream=first_stream)
        return NpxlModel(self.model, self.tolerance, key)


class NpxlReference(_Declared):
    """A model of npxl by its equations, literally: `npxl.reference`, or an LSTM's.

    Parameters
    ----------
    model
        Whose parameters and configuration are used.
    tolerance
        The largest difference that is rounding; None: 1e-12 in float64 and 1e-4 in float32.
    """

    masks_by_stream = True

    def __init__(
        self, model: SegmentModel, tolerance: float | None = None, rng: MaskKey | None = None
    ) -> None:
        super().__init__(model, tolerance)
        self._rng = rng

    def start(self, batch_size: int) -> Array:
        """States [N, B, m, d] before the first segment."""
        return self.model.init_memory(batch_size).states

    def log_probs(self, inputs: Array, state: Array) -> tuple[Array, Array]:
        """log p [B, q, V], without dropout."""
        read = self._read(inputs, inputs, state, None)
        return read.log_probs, np.stack(read.memory)

    def nll(self, inputs: Array, targets: Array, state: Array) -> tuple[Array, Array]:
        """Losses [B, T]."""
        read = self._read(inputs, targets, state, self._rng)
        return read.nll, np.stack(read.memory)

    @property
    def memory(self) -> Callable[[Array], Array] | None:
        """The cached states, where memory is a cache."""
        return self._memory if self._caches else None

    def _memory(self, state: Array) -> Array:
        return state

    def select(self, state: Array, rows: Sequence[int]) -> Array:
        """The states of some streams."""
        return state[:, rows]

    @property
    def train(self) -> Callable[[int, int], NpxlReference] | None:
        """With the masks of `NpxlModel.train`, where the configuration has dropout."""
        return self._train if self._drops else None

    def _train(self, seed: int, first_stream: int = 0) -> NpxlReference:
        key = MaskKey(seed=seed, first_stream=first_stream)
        return NpxlReference(self.model, self.tolerance, key)

    def _read(self, inputs: Array, targets: Array, state: Array, key: MaskKey | None) -> Output:
        model = self.model
        return reference_of(model.config)(
            model.params, model.config, inputs, targets, list(state),
            reference_mask(key, model.config),
        )  # fmt: skip


class NpxlReader(_Declared):
    """A model of npxl by its `reader`, which keeps keys and values projected; a state is a reader.

    Parameters
    ----------
    model
        The model, whose parameters must not change.
    tolerance
        The largest difference that is rounding; None: 1e-12 in float64 and 1e-4 in float32.
    """

    def start(self, batch_size: int) -> Reader:
        """A new reader."""
        return self.model.reader(batch_size)

    def log_probs(self, inputs: Array, state: Reader) -> tuple[Array, Reader]:
        """log p [B, q, V]."""
        state = self._copy(state)
        return state.log_probs(inputs), state

    def nll(self, inputs: Array, targets: Array, state: Reader) -> tuple[Array, Reader]:
        """Losses [B, T]."""
        state = self._copy(state)
        return state.score(inputs, targets), state

    def select(self, state: Reader, rows: Sequence[int]) -> Reader:
        """A reader of some streams."""
        state = self._copy(state)
        state.select(rows)
        return state

    def _copy(self, reader: Reader) -> Reader:
        """A reader goes on where it is; as a value, it is copied first, all but the model."""
        return copy.deepcopy(reader, {id(self.model): self.model})
