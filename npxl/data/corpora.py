"""Corpora: a text in up to three splits, ready to be read as tokens."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from npxl.config import VocabularyKind
from npxl.data.encoded import Encoded, digest_of, encode, map_file
from npxl.data.sources import (
    PERCENT,
    Source,
    Survey,
    count_characters,
    find_sources,
    opened,
    whole_file,
)
from npxl.data.vocabularies import ByteVocabulary, Vocabulary
from npxl.errors import NpxlError

BUNDLED = {"kjv": Path(__file__).parent / "text" / "kjv_genesis_2kings.txt"}


@dataclass(frozen=True, eq=False)
class Split:
    """One split of a corpus: its tokens, and the lengths of the text that they stand for.

    Attributes
    ----------
    tokens
        [N] unsigned integers, N ≥ 2, read-only and memory-mapped.
    n_bytes, n_characters
        Length of the original text.
    scored_bytes, scored_characters
        Length of the original text after its first token: a model predicts every token but the
        first, so these are what bits per byte and per character are counted over.
    n_unknown
        Tokens that stand in for a symbol which the vocabulary lacks.
    """

    tokens: npt.NDArray[np.unsignedinteger[Any]]
    n_bytes: int
    n_characters: int
    scored_bytes: int
    scored_characters: int
    n_unknown: int

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text in up to three splits and the vocabulary that its tokens are in.

    Attributes
    ----------
    name
        Of the bundled text, the file or the folder.
    path
        Of the file or the folder.
    vocab
        What the tokens mean.
    fingerprint
        Hexadecimal digest that changes when any token of any split changes.
    train, valid, test
        The splits; None where a folder has no such file.
    """

    name: str
    path: Path
    vocab: Vocabulary
    fingerprint: str
    train: Split
    valid: Split | None
    test: Split | None

    def __repr__(self) -> str:
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        lengths = [f"{n} {len(split):,}" for n, split in splits.items() if split is not None]
        kind, size = self.vocab.kind, self.vocab.size
        return f"Corpus({self.name}: {', '.join(lengths)} {kind}, vocabulary {size:,})"

    def split(self, name: str) -> Split:
        """The split called train, valid or test; NpxlError names those there are."""
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        split = splits.get(name)
        if split is None:
            names = [each for each, there in splits.items() if there is not None]
            raise NpxlError(f"{self.name} has no split {name!r}; it has {', '.join(names)}.")
        return split


def load_corpus(
    path_or_name: str | os.PathLike[str] = "kjv",
    vocabulary: VocabularyKind = "bytes",
    min_count: int = 1,
    vocab: Vocabulary | None = None,
) -> Corpus:
    """Open a text as tokens.

    Tokens are memory-mapped: bytes straight from the text itself, characters and words from a file
    in the cache folder that is written the first time.  See docs/data.md.

    Parameters
    ----------
    path_or_name
        "kjv", the bundled text; or a file, which is cut into 90 % training, 5 % validation and 5 %
        test text; or a folder with a file for each split, such as train.txt, valid.txt, test.txt.
    vocabulary
        What a token is, "bytes", "characters" or "words", when a vocabulary is to be built from the
        text; it becomes the corpus's `vocab`.
    min_count
        Words seen less often than this in the training split become <unk>.
    vocab
        A vocabulary that there is already, such as the `vocab` of the corpus that a model was
        trained on, to read another text with.  `vocabulary` and `min_count` then say nothing.

    Raises
    ------
    NpxlError
        When there is no such text, it cannot be read as such tokens, it has no training split, or a
        split is too short to predict anything.
    """
    if vocabulary not in get_args(VocabularyKind):
        raise NpxlError(
            f"vocabulary is {vocabulary!r}, but it must be one of "
            f"{', '.join(get_args(VocabularyKind))}."
        )
    kind = vocabulary if vocab is None else vocab.kind
    if min_count < 1:
        raise NpxlError(f"min_count is {min_count!r}, but it must be at least 1.")
    path = _locate(path_or_name)
    sources = find_sources(path, kind)
    surveys, encoded = _read(sources, kind, min_count, vocab)
    digests = {split: survey.sha256 for split, survey in surveys.items()}
    splits = {split: _split(split, sources[split], surveys[split], encoded) for split in sources}
    return Corpus(
        name=path_or_name if path_or_name in BUNDLED else path.resolve().name,
        path=path,
        vocab=encoded.vocab,
        fingerprint=digest_of({"splits": digests, "vocabulary": encoded.vocab.to_dict()}),
        train=splits["train"],
        valid=splits.get("valid"),
        test=splits.get("test"),
    )


def load_whole(path_or_name: str | os.PathLike[str], vocab: Vocabulary) -> list[Split]:
    """Open a text whole: a file as one stretch, a folder as its files in reading order.

    Parameters
    ----------
    path_or_name
        As for `load_corpus`.
    vocab
        To read the text with.

    Raises
    ------
    NpxlError
        When there is no such text, it cannot be read as such tokens, or is too short to predict
        anything.
    """
    path = _locate(path_or_name)
    sources = find_sources(path, vocab.kind) if path.is_dir() else {"all": whole_file(path)}
    surveys, encoded = _read(sources, vocab.kind, 1, vocab)
    return [_split(name, sources[name], surveys[name], encoded) for name in sources]


def _read(
    sources: dict[str, Source], kind: VocabularyKind, min_count: int, vocab: Vocabulary | None
) -> tuple[dict[str, Survey], Encoded]:
    surveys = {split: source.survey() for split, source in sources.items()}
    if kind == "bytes":
        return surveys, _bytes_of(sources)
    digests = {split: survey.sha256 for split, survey in surveys.items()}
    return surveys, encode(sources, digests, kind, min_count, vocab)


def _locate(path_or_name: str | os.PathLike[str]) -> Path:
    if isinstance(path_or_name, str) and path_or_name in BUNDLED:
        return BUNDLED[path_or_name]
    path = Path(os.path.expanduser(path_or_name))  # which leaves an unknown user's ~ as it is
    # "" is not the working folder; below an unreadable folder, nothing exists.
    if not os.fspath(path_or_name) or not os.path.exists(path):
        raise NpxlError(
            f"There is no file or folder {os.fspath(path_or_name)!r}, nor a bundled text of that "
            f"name: pass a path, or one of {', '.join(BUNDLED)}."
        )
    return path


def _bytes_of(sources: dict[str, Source]) -> Encoded:
    tokens = {}
    for split, source in sources.items():
        with opened(source.path) as file:
            tokens[split] = map_file(file, np.uint8, source.start, source.stop - source.start)
    return Encoded(ByteVocabulary(), tokens, dict.fromkeys(sources, 0))


def _split(name: str, source: Source, survey: Survey, encoded: Encoded) -> Split:
    tokens = encoded.tokens[name]
    what = f"The {name} split of {source.path}" if name in PERCENT else f"The text {source.path}"
    kind = encoded.vocab.kind
    if len(tokens) < 2:
        need = f"2 {kind} are needed"
        if survey.n_bytes < source.path.stat().st_size:
            n_enough = 2 * 100 // min(PERCENT.values())
            parts = "/".join(map(str, PERCENT.values()))
            need = f"a file that is cut {parts} needs about {n_enough} {kind}"
        raise NpxlError(
            f"{what} is too short to predict anything: it has {len(tokens)} "
            f"token{'s' * (len(tokens) != 1)} in {survey.n_bytes} bytes, but {need}; add text."
        )
    first = source.first_token(kind)
    first_characters = count_characters(np.frombuffer(first, np.uint8))
    if survey.n_characters == first_characters:
        raise NpxlError(
            f"{what} has no characters after its first token, so that there are no bits per "
            "character: add text."
        )
    return Split(
        tokens=tokens,
        n_bytes=survey.n_bytes,
        n_characters=survey.n_characters,
        scored_bytes=survey.n_bytes - len(first),
        scored_characters=survey.n_characters - first_characters,
        n_unknown=encoded.n_unknown[name],
    )
