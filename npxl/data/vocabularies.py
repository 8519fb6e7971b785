"""Vocabularies: what a token is, as bytes, characters or words."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from npxl.config import VocabularyKind
from npxl.errors import NpxlError

Ids = npt.NDArray[np.integer[Any]]

UNKNOWN_CHARACTER = "\ufffd"
UNKNOWN_WORD = "<unk>"
END_OF_LINE = "<eos>"


class Decoder(Protocol):
    """Token ids to text, piece by piece, for output that appears as it is generated."""

    def feed(self, ids: Ids | Sequence[int]) -> str:
        """The text that is certain after these ids, which follow those fed before."""

    def finish(self) -> str:
        """What was still held back because the text could have gone on."""


class Vocabulary(ABC):
    """The symbols of a model and how text turns into their ids 0 … size − 1 and back."""

    kind: VocabularyKind

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of symbols V."""

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The smallest of uint8, uint16 and uint32 that holds every id."""
        return np.min_scalar_type(self.size - 1)

    @abstractmethod
    def encode_counted(self, text: str) -> tuple[Ids, int]:
        """The ids of `text`, [K] of `dtype`, and how many of them stand in for unknown symbols."""

    def encode(self, text: str) -> Ids:
        """The ids of `text`, [K] of `dtype`, the unknown symbol where the vocabulary lacks one."""
        return self.encode_counted(text)[0]

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


@dataclass(frozen=True)
class ByteVocabulary(Vocabulary):
    """A token is a byte: 256 symbols, any file, nothing unknown."""

    kind = "bytes"

    @property
    def size(self) -> int:
        return 256

    def encode_counted(self, text: str) -> tuple[Ids, int]:
        # A command line that is not UTF-8 reaches Python with its bytes escaped as surrogates.
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8), 0

    def unknown(self, text: str) -> list[str]:
        return []

    def decoder(self) -> Decoder:
        return _ByteDecoder()

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


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

    def unknown(self, text: str) -> list[str]:
        return [c for c in dict.fromkeys(text) if c not in self._symbols]

    def decoder(self) -> Decoder:
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


@dataclass(frozen=True)
class WordVocabulary(Vocabulary):
    """A token is a word between white space, or `<eos>` at the end of a line.

    Words outside the vocabulary become `<unk>`.  Either symbol may also be written in the text.

    Parameters
    ----------
    words
        The symbols in the order of their ids, `<unk>` and `<eos>` among them.
    """

    words: tuple[str, ...]

    kind = "words"

    def __post_init__(self) -> None:
        if len(self._ids) != len(self.words) or not {UNKNOWN_WORD, END_OF_LINE} <= set(self._ids):
            raise NpxlError(
                f"A vocabulary of words lists each word once, {UNKNOWN_WORD} and {END_OF_LINE} "
                "among them."
            )

    @classmethod
    def of(cls, texts: Iterable[str], min_count: int = 1) -> WordVocabulary:
        """The words that occur at least `min_count` times in `texts`, the most frequent first.

        Words that are equally frequent are in alphabetical order.  `<unk>` counts as often as the
        rarer words together, and `<eos>` as often as there are newlines.  No word may begin in one
        text and end in the next.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_words(text))
        kept = {word: count for word, count in counts.items() if count >= min_count}
        kept |= {END_OF_LINE: counts[END_OF_LINE], UNKNOWN_WORD: 0}
        kept[UNKNOWN_WORD] = counts.total() - sum(kept.values())
        return cls(tuple(sorted(kept, key=lambda word: (-kept[word], word))))

    @property
    def size(self) -> int:
        return len(self.words)

    def encode_counted(self, text: str) -> tuple[Ids, int]:
        words = _words(text)
        found = np.fromiter((self._ids.get(word, -1) for word in words), np.int64, len(words))
        missing = found < 0  # [K]
        found[missing] = self._ids[UNKNOWN_WORD]
        return found.astype(self.dtype), int(np.count_nonzero(missing))

    def unknown(self, text: str) -> list[str]:
        return [word for word in dict.fromkeys(_words(text)) if word not in self._ids]

    def decoder(self) -> Decoder:
        return _WordDecoder(self.words)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "words": list(self.words)}

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}


def vocabulary_from_dict(values: dict[str, Any]) -> Vocabulary:
    """The vocabulary that `Vocabulary.to_dict` described.

    Raises
    ------
    NpxlError
        When `values` describe no vocabulary.
    """
    match values:
        case {"kind": "bytes"}:
            return ByteVocabulary()
        case {"kind": "characters", "alphabet": str(alphabet)}:
            return CharacterVocabulary(alphabet)
        case {"kind": "words", "words": list(words)} if all(isinstance(w, str) for w in words):
            return WordVocabulary(tuple(words))
    raise NpxlError(
        f"A vocabulary was expected, of bytes, characters (with its alphabet) or words (with its "
        f"list of words), but the description is of kind {values.get('kind')!r}."
    )


class _ByteDecoder:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Ids | Sequence[int]) -> str:
        return self._utf8.decode(_checked(ids, 256).astype(np.uint8).tobytes())

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _CharacterDecoder:
    def __init__(self, symbols: str) -> None:
        self._symbols = symbols

    def feed(self, ids: Ids | Sequence[int]) -> str:
        return "".join([self._symbols[i] for i in _checked(ids, len(self._symbols)).tolist()])

    def finish(self) -> str:
        return ""


class _WordDecoder:
    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self._inside_line = False

    def feed(self, ids: Ids | Sequence[int]) -> str:
        pieces = []
        for i in _checked(ids, len(self._words)).tolist():
            word = self._words[i]
            if word == END_OF_LINE:
                pieces.append("\n")
                self._inside_line = False
            else:
                pieces.append(" " + word if self._inside_line else word)
                self._inside_line = True
        return "".join(pieces)

    def finish(self) -> str:
        return ""


def _words(text: str) -> list[str]:
    return text.replace("\n", f" {END_OF_LINE} ").split()


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")  # [K]


def _checked(ids: Ids | Sequence[int], size: int) -> Ids:
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
