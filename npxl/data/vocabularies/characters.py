"""Vocabularies of Unicode characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from npxl.data.vocabularies.base import Ids, Vocabulary, checked_ids
from npxl.errors import NpxlError

UNKNOWN_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class CharacterVocabulary(Vocabulary):
    """A token is a Unicode character; id 0 is U+FFFD, which stands for every unknown one.

    Parameters
    ----------
    alphabet
        The known characters except U+FFFD, each once: ids 1, 2, … in this order.
    """

    alphabet: str

    kind = "characters"
    grain = "characters"

    def __post_init__(self) -> None:
        if len(set(self.alphabet) | {UNKNOWN_CHARACTER}) != len(self.alphabet) + 1:
            raise NpxlError(
                "An alphabet lists each character once, and never U+FFFD, which is always symbol 0."
            )

    @classmethod
    def of(cls, texts: Iterable[str]) -> CharacterVocabulary:
        """The characters that occur in `texts`, in the order of their code points."""
        seen = np.zeros(0x110000, bool)
        for text in texts:
            seen[_code_points(text)] = True
        seen[ord(UNKNOWN_CHARACTER)] = False
        return cls("".join(map(chr, np.flatnonzero(seen).tolist())))

    @property
    def size(self) -> int:
        return len(self.alphabet) + 1

    def encode_counted(self, text: str) -> tuple[Ids, int]:
        codes = _code_points(text)
        ids = self._id_of_code_point[codes]  # [K]
        stand_ins = (ids == 0) & (codes != ord(UNKNOWN_CHARACTER))  # [K]
        return ids, int(np.count_nonzero(stand_ins))

    def first_token(self, text: str) -> bytes | None:
        return text[:1].encode() or None

    def unknown(self, text: str) -> list[str]:
        return [c for c in dict.fromkeys(text) if c not in self._symbols]

    def decoder(self) -> _CharacterDecoder:
        return _CharacterDecoder(self._symbols)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "alphabet": self.alphabet}

    @cached_property
    def _symbols(self) -> str:
        return UNKNOWN_CHARACTER + self.alphabet

    @cached_property
    def _id_of_code_point(self) -> Ids:
        table = np.zeros(0x110000, self.dtype)
        table[_code_points(self.alphabet)] = np.arange(1, self.size)
        return table


class _CharacterDecoder:
    def __init__(self, symbols: str) -> None:
        self._symbols = symbols

    def feed(self, ids: Ids | Sequence[int]) -> str:
        return "".join([self._symbols[i] for i in checked_ids(ids, len(self._symbols)).tolist()])

    def finish(self) -> str:
        return ""


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")  # [K]
