"""Reading without gradients, with the memory of hidden states that the model itself keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from npxl.models.checks import check_streams, checked_segment, checked_tokens

if TYPE_CHECKING:
    from npxl.models import LanguageModel

Array = NDArray[Any]


class PlainReader:
    """Segments of B streams one after another, by `forward` and `log_probs` of any model.

    Keys and values of the whole memory are projected anew for every segment.

    Parameters
    ----------
    model
        What to read with.
    batch_size
        Streams B.
    """

    def __init__(self, model: LanguageModel, batch_size: int) -> None:
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
        fwd = self._model.forward(inputs, targets, self._memory)
        self._memory = fwd.memory
        return fwd.nll

    def select(self, rows: Sequence[int] | slice | Array) -> None:
        """Go on with some of the streams, in the given order."""
        self._memory = self._memory.select(rows)
