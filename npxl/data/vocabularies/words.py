"""Vocabularies of words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from npxl.data.vocabularies.base import Ids, Vocabulary, checked_ids
from npxl.datasets import ANY_WORDS, WordRule
from npxl.errors import NpxlError

_FIRST_WORD = re.compile(r"[^\S\n]*(\n|\S+)")


@dataclass(frozen=True)
class WordVocabulary(Vocabulary):
    """A token is a word between white space, or the symbol for the end of a line.

    Words outside the vocabulary become the unknown symbol.  Either symbol may also be written in
    the text.

    Parameters
    ----------
    words
        The symbols in the order of their ids, those of the rule among them.
    rule
        How lines become words.
    """

    words: tuple[str, ...]
    rule: WordRule = ANY_WORDS

    kind = "words"
    grain = "words"

    def __post_init__(self) -> None:
        own = {self.rule.unknown, self.rule.end}
        if len(self._ids) != len(self.words) or not own <= set(self._ids):
            raise NpxlError(
                f"A vocabulary of words lists each word once, {self.rule.unknown} and "
                f"{self.rule.end} among them."
            )

    @classmethod
    def of(
        cls, texts: Iterable[str], min_count: int = 1, rule: WordRule = ANY_WORDS
    ) -> WordVocabulary:
        """The words that occur at least `min_count` times in `texts`, the most frequent first.

        The end of a line is symbol 0, as in the original; words that are equally frequent are in
        the order in which they appear.  The unknown symbol counts as often as it is written, and as
        the rarer words together.  No word may begin in one text and end in the next.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_split(text, rule))
        total = counts.total()
        counts.setdefault(rule.unknown, 0)
        kept = {w: n for w, n in counts.items() if n >= min_count or w in (rule.end, rule.unknown)}
        kept[rule.unknown] += total - sum(kept.values())
        kept.pop(rule.end, None)
        return cls((rule.end, *sorted(kept, key=lambda word: -kept[word])), rule)

    @classmethod
    def from_file(cls, path: Path, rule: WordRule) -> WordVocabulary:
        """The words at the beginnings of the lines of a file; what follows a word is its count.

        Raises
        ------
        NpxlError
            When the file cannot be read, or lacks a symbol of the rule.
        """
        try:
            lines = path.read_text("utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise NpxlError(f"The words in {path} cannot be read: {error}.") from error
        words = dict.fromkeys(line.split()[0] for line in lines if line.strip())
        try:
            return cls(tuple(words), rule)
        except NpxlError as error:
            raise NpxlError(f"{path} is no vocabulary. {error}") from error

    @property
    def size(self) -> int:
        return len(self.words)

    @property
    def start(self) -> Ids:
        ids = [self._ids[self.rule.end]] if self.rule.starts_with_end else []
        return np.array(ids, self.dtype)

    def encode_counted(self, text: str) -> tuple[Ids, int]:
        words = _split(text, self.rule)
        found = np.fromiter((self._ids.get(word, -1) for word in words), np.int64, len(words))
        missing = found < 0  # [K]
        found[missing] = self._ids[self.rule.unknown]
        return found.astype(self.dtype), int(np.count_nonzero(missing))

    def first_token(self, text: str) -> bytes | None:
        match = _FIRST_WORD.match(text)
        return None if match is None else match[0].encode()

    def unknown(self, text: str) -> list[str]:
        words = dict.fromkeys(_split(text, self.rule))
        return [word for word in words if word not in self._ids]

    def decoder(self) -> _WordDecoder:
        return _WordDecoder(self.words, self.rule.end)

    def to_dict(self) -> dict[str, Any]:
        rule = {} if self.rule == ANY_WORDS else {"rule": asdict(self.rule)}
        return {"kind": self.kind, "words": list(self.words), **rule}

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}


class _WordDecoder:
    def __init__(self, words: tuple[str, ...], end: str) -> None:
        self._words, self._end = words, end
        self._inside_line = False

    def feed(self, ids: Ids | Sequence[int]) -> str:
        pieces = []
        for i in checked_ids(ids, len(self._words)).tolist():
            word = self._words[i]
            if word == self._end:
                pieces.append("\n")
                self._inside_line = False
            else:
                pieces.append(" " + word if self._inside_line else word)
                self._inside_line = True
        return "".join(pieces)

    def finish(self) -> str:
        return ""


def _split(text: str, rule: WordRule) -> list[str]:
    if rule.lower_case:
        text = text.lower()
    return text.replace("\n", f" {rule.end} ").split()
