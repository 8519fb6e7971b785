"""What the next segment may read and may not differentiate: SG(h), Dai et al. 2019, section 3.2."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.errors import NpxlError, described

Array = NDArray[Any]


class Memory:
    """Cached hidden states of the last m positions, a read-only copy.

    The stop-gradient of the paper is this class: nothing can write into it, no backward function
    returns a gradient for it, and it shares no storage with what it was made from.

    Parameters
    ----------
    states
        [n_layer, B, m, d_model]; slot 0 holds embeddings, slot n outputs of layer n.  Of an LSTM,
        whose m is 2, slot n holds the hidden state and the cell of layer n.  Copied.
    """

    def __init__(self, states: Array) -> None:
        if not isinstance(states, np.ndarray) or states.ndim != 4 or states.dtype.kind != "f":
            raise NpxlError(
                f"states is {described(states)}, but a memory needs an array of floating-point "
                "numbers [n_layer, batch, length, d_model]."
            )
        self._states = np.array(states, order="C")
        self._states.flags.writeable = False

    def __reduce__(self) -> tuple[type[Memory], tuple[Array]]:
        # NumPy forgets that an array is read-only when it copies or unpickles it.
        return Memory, (self._states,)

    @property
    def states(self) -> Array:
        """[n_layer, B, m, d_model], read-only."""
        return self._states

    @property
    def layers(self) -> tuple[Array, ...]:
        """What each layer reads: n_layer read-only arrays [B, m, d_model]."""
        return tuple(self._states)

    @property
    def length(self) -> int:
        """Positions m that are cached."""
        return int(self._states.shape[2])

    @property
    def batch_size(self) -> int:
        """Streams B."""
        return int(self._states.shape[1])

    def __repr__(self) -> str:
        n_layer, batch_size, length, d_model = self._states.shape
        return (
            f"Memory(n_layer={n_layer}, batch_size={batch_size}, length={length}, "
            f"d_model={d_model}, {self._states.dtype})"
        )

    def select(self, rows: Sequence[int] | slice | Array) -> Memory:
        """The memory of some streams, in the given order; NpxlError when there are none of them."""
        return Memory(selected(self._states, rows))

    def updated(self, hidden: Sequence[Array], mem_len: int, ext_len: int = 0) -> Memory:
        """The memory after a segment.

        Of the m cached positions followed by the q new ones, the last `mem_len` before the end are
        kept, where the end, m + max(0, q − ext_len), leaves out the tokens that the next segment
        reads again.

        Parameters
        ----------
        hidden
            What each layer read: n_layer arrays [B, q, d_model].
        mem_len
            Positions M to keep at most.
        ext_len
            Positions E at the segment's end that will be computed again.

        Raises
        ------
        NpxlError
            When `hidden` does not continue this memory.
        """
        self._check_hidden(hidden)
        old, new = self.length, hidden[0].shape[1]
        end = old + max(0, new - ext_len)
        start = max(0, end - mem_len)
        n_layer, batch_size, _, d_model = self._states.shape
        states = np.empty((n_layer, batch_size, end - start, d_model), self._states.dtype)
        kept = max(0, old - start)  # positions that stay from the old memory
        states[:, :, :kept] = self._states[:, :, start:old]
        for slot, layer_input in zip(states, hidden, strict=True):
            slot[:, kept:] = layer_input[:, max(0, start - old) : end - old]
        return Memory._adopt(states)

    def _check_hidden(self, hidden: Sequence[Array]) -> None:
        n_layer, batch_size, _, d_model = self._states.shape
        n_new = np.shape(hidden[0])[1:2] if len(hidden) else ()  # (q,)
        fits = len(hidden) == n_layer and all(
            isinstance(layer_input, np.ndarray)
            and layer_input.shape == (batch_size, *n_new, d_model)
            and layer_input.dtype == self._states.dtype
            for layer_input in hidden
        )
        if not fits:
            raise NpxlError(
                f"hidden is [{', '.join(map(described, hidden))}], but this memory goes on with "
                f"{n_layer} arrays of shape ({batch_size}, q, {d_model}) and type "
                f"{self._states.dtype}, one for each layer."
            )

    @classmethod
    def concatenate(cls, memories: Sequence[Memory]) -> Memory:
        """The streams of several memories of equal length, one after another."""
        lengths = sorted({memory.length for memory in memories})
        if len(lengths) != 1:
            raise NpxlError(
                f"The memories have lengths {lengths}, but streams of one batch need one length."
            )
        return cls._adopt(np.concatenate([memory.states for memory in memories], axis=1))

    @classmethod
    def _adopt(cls, states: Array) -> Memory:
        """A memory that owns `states`, which nobody else holds, without copying it again."""
        memory = cls.__new__(cls)
        states.flags.writeable = False
        memory._states = states
        return memory


def selected(states: Array, rows: Sequence[int] | slice | Array) -> Array:
    """Some of the streams of states [n_layer, B, ...], in the given order."""
    with contextlib.suppress(IndexError):
        picked: Array = states[:, rows]
        if picked.ndim == states.ndim:
            return picked
    raise NpxlError(
        f"rows are {rows!r}, but they must be a list, a slice or an array of the numbers of "
        f"streams, 0 to {states.shape[1] - 1}."
    )
