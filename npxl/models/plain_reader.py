"""Reading without gradients, with the memory of hidden states that the model itself keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from npxl.layers.adaptive_softmax import adaptive_softmax_forward
from npxl.models.checks import check_streams, checked_segment, checked_tokens

if TYPE_CHECKING:
    from npxl.models import LanguageModel
    from npxl.models.segment_model import SegmentModel

Array = NDArray[Any]


class PlainReader:
    """Segments of B streams one after another, by all of what a model itself does for a segment.

    Keys and values of the whole memory are projected anew for every segment.

    Parameters
    ----------
    model
        What to read with.
    batch_size
        Streams B.
    """

    def __init__(self, model: SegmentModel, batch_size: int) -> None:
        self._model, self._memory = model, model.init_memory(batch_size)

    def log_probs(self, inputs: Array) -> Array:
        """log p of every symbol after each of the inputs [B, q]: [B, q, V], in nats."""
        inputs = checked_tokens("inputs", inputs, self._model.config.vocab_size)
        check_streams(inputs, self._memory.batch_size)
        log_p, self._memory = self._model.log_probs(inputs, self._memory)
        return log_p

    def score(self, inputs: Array, targets: Array) -> Array:
        """Negative log-likelihood of the targets [B, T] of the last T of the inputs, in nats."""
        inputs, targets = checked_segment(inputs, targets, self._model.config.vocab_size)
        check_streams(inputs, self._memory.batch_size)
        embedded = self._model.embed(inputs)
        scored, states = self._model.stack_read(embedded, self._memory, targets.shape[1])
        self._memory = self._model.next_memory(self._memory, states)
        return adaptive_softmax_forward(scored, targets, self._model.softmax(self._model.params))[0]

    def select(self, rows: Sequence[int] | slice | Array) -> None:
        """Go on with some of the streams, in the given order."""
        self._memory = self._memory.select(rows)


class WindowReader:
    """One stream, in which what was read last is read again as one segment without memory.

    For a model whose states depend on their place.

    Parameters
    ----------
    model
        What to read with.
    n_seen
        Tokens that are read for every prediction, the last one included.
    """

    def __init__(self, model: LanguageModel, n_seen: int) -> None:
        self._model, self._n_seen = model.reconfigured(mem_len=0), n_seen
        self._seen: Array = np.empty((1, 0), np.int64)

    def log_probs(self, inputs: Array) -> Array:
        """log p of every symbol after the last of the inputs [1, q], and as many as are seen."""
        self._seen = np.concatenate([self._seen, inputs], axis=1)[:, -self._n_seen :]
        return self._model.log_probs(self._seen, self._model.init_memory(1))[0]
