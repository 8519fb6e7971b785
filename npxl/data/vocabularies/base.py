"""What a vocabulary is, whatever its tokens are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from npxl.config import VocabularyKind
from npxl.errors import NpxlError

Ids = npt.NDArray[np.integer[Any]]

Grain = Literal["bytes", "characters", "words", "lines"]
"""What must come whole when a text is read in pieces, so that the pieces do not show."""


class Decoder(Protocol):
    """Token ids to text, piece by piece, for output that appears as it is generated."""

    def feed(self, ids: Ids | Sequence[int]) -> str:
        """The text that is certain after these ids, which follow those fed before."""

    def finish(self) -> str:
        """What was still held back because the text could have gone on."""


class Vocabulary(ABC):
    """The symbols of a model and how text turns into their ids 0 … size − 1 and back.

    Attributes
    ----------
    kind
        What a token is.
    grain
        What `encode_counted` needs whole.
    drops_newlines
        Whether newlines are read over, so that no length of a text counts them.
    """

    kind: ClassVar[VocabularyKind]
    grain: ClassVar[Grain]
    drops_newlines: ClassVar[bool] = False

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of symbols V."""

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The smallest of uint8, uint16 and uint32 that holds every id."""
        return np.min_scalar_type(self.size - 1)

    @property
    def start(self) -> Ids:
        """The ids at the start of a split, before those of its text: none, or [1]."""
        return np.empty(0, self.dtype)

    @property
    def opening(self) -> Ids:
        """Ids, at least one, that any text may follow: what is read when there is no prompt."""
        return self.encode("\n")

    @abstractmethod
    def encode_counted(self, text: str) -> tuple[Ids, int]:
        """The ids of `text`, [K] of `dtype`, and how many of them stand in for unknown symbols."""

    def encode(self, text: str) -> Ids:
        """The ids of `text`, [K] of `dtype`, the unknown symbol where the vocabulary lacks one."""
        return self.encode_counted(text)[0]

    def encode_each(self, pieces: Iterable[str]) -> Iterator[tuple[Ids, int]]:
        """`encode_counted` of each piece of a text, all of which end where a `grain` ends."""
        return map(self.encode_counted, pieces)

    @abstractmethod
    def first_token(self, text: str) -> bytes | None:
        """The bytes of `text` up to the end of its first token; None when it holds no whole one."""

    @abstractmethod
    def unknown(self, text: str) -> list[str]:
        """The symbols of `text` that the vocabulary lacks, each once, in order of appearance."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """A new decoder for a stream of ids."""

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """The text of `ids` [K].

        Raises
        ------
        NpxlError
            When an id is not a whole number from 0 to size − 1.
        """
        decoder = self.decoder()
        return decoder.feed(ids) + decoder.finish()

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The vocabulary as plain JSON values, for `vocabulary_from_dict`."""


def checked_ids(ids: Ids | Sequence[int], size: int) -> Ids:
    """`ids` as an array [K]; NpxlError unless they are whole numbers from 0 to size − 1."""
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise NpxlError(
            f"Token ids must be a list of whole numbers, but got {array.dtype} of shape "
            f"{array.shape}."
        )
    if array.min() < 0 or array.max() >= size:
        raise NpxlError(
            f"Token ids must be from 0 to {size - 1} in this vocabulary, but got ids from "
            f"{array.min()} to {array.max()}."
        )
    return array
