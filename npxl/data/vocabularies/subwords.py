"""Vocabularies of subwords: what a tokenizer of Hugging Face's makes of a text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from npxl.data.vocabularies.base import Ids, Vocabulary, checked_ids
from npxl.errors import NpxlError

_LINES_AT_ONCE = 1000
"""Lines that the library shares among its threads."""

_MOST_HELD_BACK = 4
"""Tokens that may stand for bytes of one character, before it is shown as it is."""


@dataclass(frozen=True)
class SubwordVocabulary(Vocabulary):
    """A token is what a tokenizer.json of Hugging Face's library `tokenizers` says.

    A text is encoded line by line, without the special tokens, the padding and the truncation that
    a tokenizer may add.  What it does not know becomes its unknown symbol; characters that a
    tokenizer without one would drop are dropped, and counted as unknown too.

    Parameters
    ----------
    description
        The contents of the file, as JSON in the form that `json.dumps` gives it.
    """

    description: str

    kind = "subwords"
    grain = "lines"

    def __post_init__(self) -> None:
        if not self._tokenizer.get_vocab():
            raise NpxlError("The tokenizer has an empty vocabulary.")
        model = json.loads(self.description)["model"]
        kind = model.get("type", "BPE")
        if self._unknown_id is None and kind != "BPE" and not model.get("byte_fallback"):
            raise NpxlError(
                f"The tokenizer is of type {kind} and has no unknown symbol, so that it cannot "
                "encode every text: set its unk_token to a symbol that it has."
            )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> SubwordVocabulary:
        """The tokenizer in the file `path`; NpxlError when it cannot be used."""
        try:
            values = json.loads(Path(path).expanduser().read_bytes())
        except OSError as error:
            raise NpxlError(f"The tokenizer {path} cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise NpxlError(f"The tokenizer {path} is not JSON: {error}.") from error
        try:
            return cls.from_json(values)
        except NpxlError as error:
            raise NpxlError(f"{path} cannot be used. {error}") from error

    @classmethod
    def from_json(cls, values: Any) -> SubwordVocabulary:
        """The tokenizer that the JSON object `values` describes."""
        if not isinstance(values, dict):
            raise NpxlError(
                f"A tokenizer is described by an object, but this is a {type(values).__name__}."
            )
        return cls(json.dumps(values))

    @cached_property
    def size(self) -> int:
        """Number of symbols V: all ids up to the largest."""
        return int(1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values()))

    @property
    def opening(self) -> Ids:
        ids = self.encode("\n")
        return ids if len(ids) else np.zeros(1, self.dtype)

    def encode_counted(self, text: str) -> tuple[Ids, int]:
        each = list(self.encode_each(_lines(text)))
        ids = np.concatenate([np.empty(0, self.dtype), *(ids for ids, _ in each)])
        return ids, sum(n_unknown for _, n_unknown in each)

    def encode_each(self, pieces: Iterable[str]) -> Iterator[tuple[Ids, int]]:
        """The ids of each line, and how many unknown things it has."""
        remaining = iter(pieces)
        while lines := list(islice(remaining, _LINES_AT_ONCE)):
            for line, encoding in self._encodings(lines):
                ids = np.array(encoding.ids, self.dtype)
                yield ids, len(self._unknown_in(line, encoding))

    def first_token(self, text: str) -> bytes | None:
        start = 0
        for line, encoding in self._encodings(_lines(text)):
            if encoding.offsets:
                return text[: start + encoding.offsets[0][1]].encode()
            start += len(line)
        return None

    def unknown(self, text: str) -> list[str]:
        each = (self._unknown_in(*pair) for pair in self._encodings(_lines(text)))
        return list(dict.fromkeys(symbol for symbols in each for symbol in symbols))

    def decoder(self) -> _SubwordDecoder:
        return _SubwordDecoder(self._tokenizer, self.size)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "tokenizer": json.loads(self.description)}

    def _encodings(self, lines: Iterable[str]) -> list[tuple[str, Any]]:
        """Lines, and what the tokenizer makes of each."""
        lines = list(lines)
        encodings = self._tokenizer.encode_batch(lines, add_special_tokens=False)
        return list(zip(lines, encodings, strict=True))

    def _unknown_in(self, line: str, encoding: Any) -> list[str]:
        """What of a line is not known: read as the unknown symbol, or dropped."""
        if self._unknown_id is not None:
            where = np.flatnonzero(np.array(encoding.ids) == self._unknown_id)
            offsets = encoding.offsets if len(where) else []
            symbols = [line[slice(*offsets[i])] for i in where]
            return [symbol for symbol in symbols if symbol != self._unknown_symbol]
        if self._knows_all_bytes:
            return []
        dropped = {character for character in set(line) if self._drops(character)}
        return [character for character in line if character in dropped]

    def _drops(self, character: str) -> bool:
        if character not in self._is_dropped:
            ids = self._tokenizer.encode(character, add_special_tokens=False).ids
            self._is_dropped[character] = not ids and not character.isspace()
        return self._is_dropped[character]

    @cached_property
    def _is_dropped(self) -> dict[str, bool]:
        return {}

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise NpxlError(
                "Subwords need the package tokenizers: pip install 'npxl[tokenizers]'."
            ) from error
        try:
            tokenizer = Tokenizer.from_str(self.description)
        except Exception as error:  # the library raises nothing more special
            raise NpxlError(
                f"A vocabulary of subwords needs what the library tokenizers can read: {error}."
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _unknown_id(self) -> int | None:
        model = json.loads(self.description)["model"]
        symbol, unknown = model.get("unk_token"), model.get("unk_id")
        if symbol:
            unknown = self._tokenizer.token_to_id(symbol)
        return None if unknown is None else int(unknown)

    @cached_property
    def _unknown_symbol(self) -> str:
        return str(self._tokenizer.id_to_token(self._unknown_id))

    @cached_property
    def _knows_all_bytes(self) -> bool:
        from tokenizers.pre_tokenizers import ByteLevel

        values = json.loads(self.description)
        if values["model"].get("byte_fallback"):
            return True
        before = json.dumps([values.get("pre_tokenizer"), values.get("normalizer")])
        return '"ByteLevel"' in before and set(ByteLevel.alphabet()) <= set(
            self._tokenizer.get_vocab()
        )


class _SubwordDecoder:
    """Decodes the last tokens again with each new one, because how it looks depends on them."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self._tokenizer, self._size = tokenizer, size
        self._ids: list[int] = []
        self._n_shown = 0  # of these tokens

    def feed(self, ids: Ids | Sequence[int]) -> str:
        return "".join(map(self._add, checked_ids(ids, self._size).tolist()))

    def finish(self) -> str:
        rest = self._not_shown()
        self._ids, self._n_shown = [], 0
        return rest

    def _add(self, token: int) -> str:
        self._ids.append(token)
        new = self._not_shown()
        held_back = len(self._ids) - self._n_shown
        if new.endswith("\ufffd") and held_back < _MOST_HELD_BACK:
            return ""  # the first bytes of a character
        self._ids = self._ids[self._n_shown :]
        self._n_shown = len(self._ids)
        return new

    def _not_shown(self) -> str:
        shown = self._decode(self._ids[: self._n_shown])
        return self._decode(self._ids)[len(shown) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def _lines(text: str) -> Iterator[str]:
    """The lines of a text, each with its newline; what cannot be UTF-8 becomes a question mark."""
    text = text.encode("utf-8", "replace").decode()
    start = 0
    while start < len(text):
        stop = text.find("\n", start) + 1 or len(text)
        yield text[start:stop]
        start = stop
