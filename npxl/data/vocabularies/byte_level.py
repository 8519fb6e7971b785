"""Vocabularies of bytes: all 256, or those that a text has."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from npxl.data.vocabularies.base import Ids, Vocabulary, checked_ids
from npxl.errors import NpxlError

_NEWLINE = ord("\n")


@dataclass(frozen=True)
class ByteVocabulary(Vocabulary):
    """A token is a byte: 256 symbols, any file, nothing unknown."""

    kind = "bytes"
    grain = "bytes"

    @property
    def size(self) -> int:
        return 256

    def encode_counted(self, text: str) -> tuple[Ids, int]:
        return bytes_of(text), 0

    def first_token(self, text: str) -> bytes | None:
        return bytes_of(text)[:1].tobytes() or None

    def unknown(self, text: str) -> list[str]:
        return []

    def decoder(self) -> _ByteDecoder:
        return _ByteDecoder(np.arange(256, dtype=np.uint8))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True)
class SymbolVocabulary(Vocabulary):
    """A token is a byte of those that a text has, newlines left out.

    This is the original's preprocessing of enwik8 (its prep_enwik8.py writes each byte as a number,
    and each newline as one that later ends a line and is gone), which has 204 symbols, and of
    text8, which has 27.  An unknown byte is read as a space, or as symbol 0 where there is none.

    Parameters
    ----------
    symbols
        The bytes that are known, each once, in the order of their ids.
    """

    symbols: bytes

    kind = "symbols"
    grain = "bytes"
    drops_newlines = True

    def __post_init__(self) -> None:
        distinct = set(self.symbols)
        if not distinct or len(distinct) != len(self.symbols) or _NEWLINE in distinct:
            raise NpxlError(
                "A vocabulary of symbols lists at least one byte, each once, and no newline."
            )

    @classmethod
    def of(cls, texts: Iterable[str]) -> SymbolVocabulary:
        """The bytes of `texts`, the most frequent first, equals in order of appearance."""
        counts = np.zeros(256, np.int64)
        in_order: list[int] = []
        for text in texts:
            data = bytes_of(text)
            here = np.bincount(data, minlength=256)
            new = np.flatnonzero((here > 0) & (counts == 0)).tolist()
            in_order += sorted(new, key=lambda byte: int(np.argmax(data == byte)))
            counts += here
        in_order = [byte for byte in in_order if byte != _NEWLINE]
        if not in_order:
            raise NpxlError(
                "The text is nothing but newlines, which the vocabulary symbols leaves out: add "
                "text, or read it in bytes."
            )
        return cls(bytes(sorted(in_order, key=lambda byte: -counts[byte])))

    @property
    def size(self) -> int:
        return len(self.symbols)

    @property
    def opening(self) -> Ids:
        return self.encode(" ")

    def encode_counted(self, text: str) -> tuple[Ids, int]:
        data = bytes_of(text)
        data = data[data != _NEWLINE]  # [K]
        return self._id_of_byte[data], int(np.count_nonzero(self._is_unknown[data]))

    def first_token(self, text: str) -> bytes | None:
        return bytes_of(text).tobytes().replace(b"\n", b"")[:1] or None

    def unknown(self, text: str) -> list[str]:
        return [c for c in dict.fromkeys(text) if self._is_unknown[bytes_of(c)].any()]

    def decoder(self) -> _ByteDecoder:
        return _ByteDecoder(np.frombuffer(self.symbols, np.uint8))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "symbols": list(self.symbols)}

    @cached_property
    def _id_of_byte(self) -> Ids:
        stand_in = max(0, self.symbols.find(b" "))
        table = np.full(256, stand_in, self.dtype)
        table[np.frombuffer(self.symbols, np.uint8)] = np.arange(self.size)
        return table

    @cached_property
    def _is_unknown(self) -> npt.NDArray[np.bool_]:
        table = np.ones(256, bool)
        table[np.frombuffer(self.symbols, np.uint8)] = False
        table[_NEWLINE] = False
        return table


def bytes_of(text: str) -> npt.NDArray[np.uint8]:
    """The bytes of a text [K]; those that are not UTF-8 reach Python escaped as surrogates."""
    return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)


class _ByteDecoder:
    """Bytes to text; `byte_of_id` [V]."""

    def __init__(self, byte_of_id: npt.NDArray[np.uint8]) -> None:
        self._byte_of_id = byte_of_id
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Ids | Sequence[int]) -> str:
        checked = checked_ids(ids, len(self._byte_of_id))
        return self._utf8.decode(self._byte_of_id[checked].tobytes())

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)
