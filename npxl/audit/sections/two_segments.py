"""Two segments, of which the second reads the memory of the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Subject
from npxl.audit.segments import segment
from npxl.params import Params
from npxl.reference import Output
from npxl.references import reference_of

Array = NDArray[Any]

NOTHING = "There is no memory that a query sees."
_STEP = 1e-30
_TGT_LEN = 4


class TwoSegments:
    """A loss of the second of two segments, as a function of parameters, with what is read first.

    In the paper's form: nothing is read twice, and the memory is empty to begin with, or an LSTM's
    state zero.  The first segment has `n_before` tokens, or, unless given, as many as fill the
    memory and two at least: a token alone attends to itself, whatever its query and its key.
    """

    def __init__(self, subject: Subject, n_before: int | None = None) -> None:
        self.model = subject.model(ext_len=0, initial_memory="empty", dropout=0.0, dropatt=0.0)
        self.config = self.model.config
        if n_before is None:
            n_before = max(2, self.config.segments_to_fill(1))
        self.part = segment(subject, self.model, "truncation", _TGT_LEN, n_before=n_before)
        fwd = self.model.forward(self.part.inputs, self.part.targets, self.part.memory)
        self.truncated = self.model.backward(fwd, self.part.dnll)
        self.params = Params(self.model.params.shapes, self.model.params.flat.astype(complex))

    @property
    def n_seen(self) -> int:
        """Positions of the memory that the second segment reads."""
        return min(self.part.memory.length, self.config.window(self.part.memory.length + 1) - 1)

    def slope(self, name: str, index: Any, direction: Any, memory: str) -> float:
        """Along a direction of a tensor, by a complex step; with memory "frozen", "recomputed"."""
        tensor = self.params[name]
        real = tensor[index].copy()
        tensor[index] = real + 1j * _STEP * direction
        states: Sequence[Array] = self.part.memory.layers
        if memory == "recomputed":
            start = self.model.init_memory(len(self.part.before)).layers
            nothing = np.zeros((len(self.part.before), 0), int)
            states = self._score(self.part.before, nothing, start).memory
        slope = self._slope(states)
        tensor[index] = real
        return slope

    def memory_slope(self, layer: int, direction: Array) -> float:
        """Along a direction of one layer's memory."""
        states = [states.astype(complex) for states in self.part.memory.layers]
        states[layer] += 1j * _STEP * direction
        return self._slope(states)

    def _slope(self, states: Any) -> float:
        nll = self._score(self.part.inputs, self.part.targets, states).nll
        return float((nll.imag * self.part.dnll).sum() / _STEP)

    def _score(self, inputs: Array, targets: Array, states: Any) -> Output:
        return reference_of(self.config)(self.params, self.config, inputs, targets, states)
