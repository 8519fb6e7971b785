"""Encoded corpora: the tokens of a text in one file that is written once and memory-mapped after.

The file holds the tokens of the splits one after the other, then a JSON footer (the vocabulary, and
per split the number of tokens and of unknown ones), then the length of the footer in 8 bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from npxl.cache import cache_folder
from npxl.config import VocabularyKind
from npxl.data.sources import Source
from npxl.data.vocabularies import (
    CharacterVocabulary,
    Vocabulary,
    WordVocabulary,
    vocabulary_from_dict,
)
from npxl.files import atomic_write, full_disk_is_an_error_of_the_user

_FORMAT = 1
_FOOTER_LENGTH_BYTES = 8

Tokens = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Tokens [N] and number of unknown ones of each split, and the vocabulary that they are in."""

    vocab: Vocabulary
    tokens: dict[str, Tokens]
    n_unknown: dict[str, int]


def encode(
    sources: dict[str, Source],
    digests: dict[str, str],
    kind: VocabularyKind,
    min_count: int,
    vocab: Vocabulary | None,
) -> Encoded:
    """The sources in characters or words, from the cache folder when they were encoded before.

    The name of a cached file is the digest of all that its tokens depend on, so a file that is
    there is right.  When the folder cannot be written, the tokens go to a temporary file that
    nobody else sees and that is gone when it is no longer used.

    Parameters
    ----------
    sources, digests
        Of each split, its text and the SHA-256 of its bytes.
    kind, min_count
        How to build a vocabulary, unless there is one:
    vocab
        An existing vocabulary to encode with.

    Raises
    ------
    NpxlError
        When the text is not UTF-8, or there is no room for the tokens.
    """
    recipe = {"kind": kind, "min_count": min_count} if vocab is None else vocab.to_dict()
    key = digest_of({"format": _FORMAT, "splits": digests, "vocabulary": recipe})
    entry = cache_folder() / "corpora" / key
    if (encoded := _open_entry(entry)) is not None:
        return encoded
    if vocab is None:
        vocab = _build_vocabulary(sources, kind, min_count)
    try:
        with full_disk_is_an_error_of_the_user(entry.parent):
            entry.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(entry) as file:
            _write(file, sources, vocab)
            return _map(file)
    except OSError:
        pass  # the folder cannot be written
    with full_disk_is_an_error_of_the_user(tempfile.gettempdir()), tempfile.TemporaryFile() as file:
        _write(file, sources, vocab)
        return _map(file)


def map_file(file: BinaryIO, dtype: npt.DTypeLike, start: int, n_tokens: int) -> Tokens:
    """`n_tokens` tokens of an open file from byte `start` on, read-only, without reading them."""
    if n_tokens == 0:
        return np.empty(0, dtype)
    return np.memmap(file, dtype, "r", start, (n_tokens,))


def digest_of(values: Any) -> str:
    """SHA-256, in hexadecimal, of plain JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _build_vocabulary(
    sources: dict[str, Source], kind: VocabularyKind, min_count: int
) -> Vocabulary:
    if kind == "words":
        return WordVocabulary.of(sources["train"].texts(kind), min_count)
    return CharacterVocabulary.of(text for s in sources.values() for text in s.texts(kind))


def _write(file: BinaryIO, sources: dict[str, Source], vocab: Vocabulary) -> None:
    counts = {}
    for split, source in sources.items():
        n_tokens = n_unknown = 0
        for text in source.texts(vocab.kind):
            ids, unknown = vocab.encode_counted(text)
            file.write(ids.astype(vocab.dtype, copy=False).data)
            n_tokens += len(ids)
            n_unknown += unknown
        counts[split] = (n_tokens, n_unknown)
    footer = json.dumps({"vocabulary": vocab.to_dict(), "splits": counts}).encode()
    file.write(footer)
    file.write(len(footer).to_bytes(_FOOTER_LENGTH_BYTES, "little"))
    file.flush()


def _open_entry(path: Path) -> Encoded | None:
    """A cached file, or None when there is none or somebody damaged it."""
    try:
        with open(path, "rb") as file:
            return _map(file)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _map(file: BinaryIO) -> Encoded:
    size = file.seek(-_FOOTER_LENGTH_BYTES, os.SEEK_END)
    length = int.from_bytes(file.read(_FOOTER_LENGTH_BYTES), "little")
    end = file.seek(size - length)
    footer = json.loads(file.read(length))
    vocab = vocabulary_from_dict(footer["vocabulary"])
    tokens = {}
    start = 0
    for split, (n_tokens, _) in footer["splits"].items():
        tokens[split] = map_file(file, vocab.dtype, start, n_tokens)
        start += n_tokens * vocab.dtype.itemsize
    if start != end:
        raise ValueError("the footer does not describe the tokens")
    return Encoded(vocab, tokens, {split: count for split, (_, count) in footer["splits"].items()})
