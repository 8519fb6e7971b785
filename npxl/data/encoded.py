"""Encoded corpora: vocabularies and tokens in files that are written once and read after.

A file of tokens holds those of the splits one after the other, then the lengths of the sentences of
shuffled splits, then a JSON footer (per split the number of tokens, of unknown ones and of
sentences), then the length of the footer in 8 bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from npxl.cache import cache_folder
from npxl.config import VocabularyKind
from npxl.data.sources import Source
from npxl.data.vocabularies import (
    CharacterVocabulary,
    SymbolVocabulary,
    Vocabulary,
    WordVocabulary,
    vocabulary_from_dict,
)
from npxl.datasets import WordRule
from npxl.files import atomic_write, full_disk_is_an_error_of_the_user

_FORMAT = 3
_FOOTER_LENGTH_BYTES = 8
_LENGTH = np.dtype("<u4")
"""Of the length of a sentence."""

_IN_MEMORY = 1 << 20
"""Bytes of these lengths that are held in memory while they are written."""

Tokens = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Recipe:
    """How the vocabulary of a text is made from it.

    Attributes
    ----------
    kind
        Characters, symbols or words.
    min_count, rule, counted
        Of words: how often they must occur, how lines become words, in which splits they count.
    """

    kind: VocabularyKind
    min_count: int
    rule: WordRule
    counted: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Of each split, its tokens [N] and the number of unknown ones; of a shuffled one, the lengths
    of its sentences [S] in tokens."""

    tokens: dict[str, Tokens]
    n_unknown: dict[str, int]
    lengths: dict[str, npt.NDArray[np.uint32]]


def vocabulary_of(
    sources: Mapping[str, Source], digests: Mapping[str, str], recipe: Recipe
) -> Vocabulary:
    """The vocabulary of a text, from the cache folder when it was made before.

    Parameters
    ----------
    sources, digests
        Of each split, its text and the digest of a survey of it.

    Raises
    ------
    NpxlError
        When the text cannot be read as such tokens.
    """
    key = digest_of({"format": _FORMAT, "splits": digests, "recipe": asdict(recipe)})
    entry = _folder() / f"{key}.json"
    try:
        return vocabulary_from_dict(json.loads(entry.read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError):
        pass  # there is none, or somebody damaged it
    vocab = _build(sources, recipe)
    try:
        _make_folder(entry.parent)
        with atomic_write(entry) as file:
            file.write(json.dumps(vocab.to_dict()).encode())
    except OSError:
        pass  # the folder cannot be written
    return vocab


def encode(sources: Mapping[str, Source], digests: Mapping[str, str], vocab: Vocabulary) -> Encoded:
    """The sources in the tokens of `vocab`, from the cache folder when they were encoded before.

    The name of a cached file is the digest of all that its tokens depend on, so a file that is
    there is right.  When the folder cannot be written, the tokens go to a temporary file that
    nobody else sees and that is gone when it is no longer used.

    Parameters
    ----------
    sources, digests
        Of each split, its text and the digest of a survey of it.
    vocab
        To encode with.

    Raises
    ------
    NpxlError
        When the text cannot be read as such tokens, or there is no room for them.
    """
    shuffled = [split for split, source in sources.items() if source.is_shuffled]
    key = digest_of(
        {"format": _FORMAT, "splits": digests, "shuffled": shuffled, "vocabulary": vocab.to_dict()}
    )
    entry = _folder() / key
    if (encoded := _open_entry(entry, vocab)) is not None and set(encoded.tokens) == set(sources):
        return encoded
    try:
        _make_folder(entry.parent)
        with atomic_write(entry) as file:
            _write(file, sources, vocab)
            return _map(file, vocab)
    except OSError:
        pass  # the folder cannot be written
    with full_disk_is_an_error_of_the_user(tempfile.gettempdir()), tempfile.TemporaryFile() as file:
        _write(file, sources, vocab)
        return _map(file, vocab)


def map_file(file: BinaryIO, dtype: npt.DTypeLike, start: int, n_tokens: int) -> Tokens:
    """`n_tokens` tokens of an open file from byte `start` on, read-only, without reading them."""
    if n_tokens == 0:
        return np.empty(0, dtype)
    return np.memmap(file, dtype, "r", start, (n_tokens,))


def digest_of(values: Any) -> str:
    """SHA-256, in hexadecimal, of plain JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _folder() -> Path:
    return cache_folder() / "corpora"


def _make_folder(folder: Path) -> None:
    with full_disk_is_an_error_of_the_user(folder):
        folder.mkdir(parents=True, exist_ok=True)


def _build(sources: Mapping[str, Source], recipe: Recipe) -> Vocabulary:
    match recipe.kind:
        case "words":
            counted = (sources[split] for split in recipe.counted if split in sources)
            texts = (text for source in counted for text in source.pieces("words"))
            return WordVocabulary.of(texts, recipe.min_count, recipe.rule)
        case "characters":
            texts = (text for source in sources.values() for text in source.pieces("characters"))
            return CharacterVocabulary.of(texts)
        case "symbols":
            texts = (text for source in sources.values() for text in source.pieces("bytes"))
            return SymbolVocabulary.of(texts)
    raise AssertionError(f"no vocabulary of {recipe.kind} is made from a text")


def _write(file: BinaryIO, sources: Mapping[str, Source], vocab: Vocabulary) -> None:
    counts = {}
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as lengths:
        for split, source in sources.items():
            is_shuffled = source.is_shuffled
            # A shuffled split has no beginning, and its sentences are lines.
            n_tokens = 0 if is_shuffled else _append(file, vocab.start, vocab.dtype)
            n_unknown = n_sentences = 0
            pieces = source.pieces("lines" if is_shuffled else vocab.grain)
            for ids, unknown in vocab.encode_each(pieces):
                n_tokens += _append(file, ids, vocab.dtype)
                n_unknown += unknown
                if is_shuffled:
                    n_sentences += _append(lengths, [len(ids)], _LENGTH)
            counts[split] = (n_tokens, n_unknown, n_sentences)
        file.write(bytes(-file.tell() % _LENGTH.itemsize))
        lengths.seek(0)
        shutil.copyfileobj(lengths, file)
    footer = json.dumps(counts).encode()
    file.write(footer)
    file.write(len(footer).to_bytes(_FOOTER_LENGTH_BYTES, "little"))
    file.flush()


def _append(file: IO[bytes], numbers: npt.ArrayLike, dtype: np.dtype[Any]) -> int:
    """Write whole numbers [K]; returns K."""
    array = np.asarray(numbers, dtype)
    file.write(array.data)
    return len(array)


def _open_entry(path: Path, vocab: Vocabulary) -> Encoded | None:
    """A cached file, or None when there is none or somebody damaged it."""
    try:
        with open(path, "rb") as file:
            return _map(file, vocab)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _map(file: BinaryIO, vocab: Vocabulary) -> Encoded:
    size = file.seek(-_FOOTER_LENGTH_BYTES, os.SEEK_END)
    length = int.from_bytes(file.read(_FOOTER_LENGTH_BYTES), "little")
    end = file.seek(size - length)
    encoded = Encoded({}, {}, {})
    start = 0
    footer = json.loads(file.read(length))
    for split, (n_tokens, n_unknown, _) in footer.items():
        encoded.tokens[split] = map_file(file, vocab.dtype, start, n_tokens)
        encoded.n_unknown[split] = n_unknown
        start += n_tokens * vocab.dtype.itemsize
    start += -start % _LENGTH.itemsize
    for split, (_, _, n_sentences) in footer.items():
        if n_sentences:
            encoded.lengths[split] = map_file(file, _LENGTH, start, n_sentences)
            start += n_sentences * _LENGTH.itemsize
    if start != end:
        raise ValueError("the footer does not describe the tokens")
    return encoded
