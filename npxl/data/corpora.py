"""Corpora: a text in up to three splits, ready to be read as tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from npxl.config import DatasetName, VocabularyKind, checked_int
from npxl.data.encoded import Encoded, Recipe, digest_of, encode, map_file, vocabulary_of
from npxl.data.layouts import PERCENT, Found, find, missing
from npxl.data.sources import Source, Survey, count_characters, opened, whole_file
from npxl.data.streams import ShuffledStreams, Streams
from npxl.data.vocabularies import (
    VOCABULARIES,
    ByteVocabulary,
    SubwordVocabulary,
    Vocabulary,
    WordVocabulary,
)
from npxl.datasets import DATASETS, Dataset
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
        Length of the original text; without its newlines where the vocabulary drops them.
    scored_bytes, scored_characters
        Length of the original text after its first token: a model predicts every token but the
        first, so these are what bits per byte and per character are counted over.
    n_unknown
        Tokens that stand in for a symbol which the vocabulary lacks.
    sentence_lengths
        [S] tokens of each sentence of a text whose sentences are without order; else None.
    """

    tokens: npt.NDArray[np.unsignedinteger[Any]]
    n_bytes: int
    n_characters: int
    scored_bytes: int
    scored_characters: int
    n_unknown: int
    sentence_lengths: npt.NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def streams(
        self, batch_size: int, tgt_len: int, ext_len: int = 0, seed: int = 0
    ) -> Streams | ShuffledStreams:
        """Readers of the split, of its sentences in an order drawn from `seed` if they have none.

        Parameters and errors are those of `Streams` and `ShuffledStreams`.
        """
        if self.sentence_lengths is None:
            return Streams(self.tokens, batch_size, tgt_len, ext_len)
        return ShuffledStreams(
            self.tokens, batch_size, tgt_len, ext_len, self.sentence_lengths, seed
        )


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
    remarks
        What the user should know about the text, in sentences.
    """

    name: str
    path: Path
    vocab: Vocabulary
    fingerprint: str
    train: Split
    valid: Split | None
    test: Split | None
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lengths = [f"{name} {len(split):,}" for name, split in self.splits.items()]
        kind, size = self.vocab.kind, self.vocab.size
        return f"Corpus({self.name}: {', '.join(lengths)} {kind}, vocabulary {size:,})"

    @property
    def splits(self) -> dict[str, Split]:
        """Those there are, by name, in the order train, valid, test."""
        every = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: split for name, split in every.items() if split is not None}

    def split(self, name: str) -> Split:
        """The split called train, valid or test; NpxlError names those there are."""
        if name not in self.splits:
            names = ", ".join(self.splits)
            raise NpxlError(f"{self.name} has no split {name!r}; it has {names}.")
        return self.splits[name]


def load_corpus(
    path_or_name: str | os.PathLike[str] = "kjv",
    vocabulary: VocabularyKind | None = None,
    min_count: int | None = None,
    vocab: Vocabulary | None = None,
    dataset: DatasetName = "text",
    tokenizer: str | os.PathLike[str] | None = None,
) -> Corpus:
    """Open a text as tokens.

    Tokens are memory-mapped: bytes straight from the text itself, others from a file in the cache
    folder that is written the first time.  See docs/data.md, and docs/benchmarks.md for datasets.

    Parameters
    ----------
    path_or_name
        "kjv", the bundled text; or a file, which is cut into 90 % training, 5 % validation and 5 %
        test text; or a folder with a file for each split, such as train.txt, valid.txt, test.txt;
        or a dataset as it is downloaded.
    vocabulary
        What a token is, "bytes", "characters", "words", "symbols" or "subwords", when a vocabulary
        is to be built from the text; it becomes the corpus's `vocab`.  None: what the dataset is
        read in, or subwords if there is a tokenizer.
    min_count
        Words seen less often than this become unknown; None: as the dataset says, 1 for a text.
    vocab
        A vocabulary that there is already, such as the `vocab` of the corpus that a model was
        trained on, to read another text with.  `vocabulary`, `min_count` and `tokenizer` then say
        nothing.
    dataset
        How the text lies in files and becomes words: "text" as described here, or as one of the
        benchmarks "wt103", "enwik8", "text8", "lm1b" and "ptb".
    tokenizer
        For subwords, the path of a tokenizer.json.

    Raises
    ------
    NpxlError
        When there is no such text, it cannot be read as such tokens, it has no training split, or a
        split is too short to predict anything.
    """
    for name, value, choices in (
        ("dataset", dataset, get_args(DatasetName)),
        ("vocabulary", vocabulary, (*get_args(VocabularyKind), None)),
    ):
        if value not in choices:
            raise NpxlError(
                f"{name} is {value!r}, but it must be one of {', '.join(filter(None, choices))}."
            )
    min_count = checked_int("min_count", min_count, minimum=1, optional=True)
    known = DATASETS[dataset]
    path = _locate(path_or_name, dataset)
    if vocab is None and (tokenizer is not None or vocabulary == "subwords"):
        vocab = _subwords(vocabulary, tokenizer)
    kind = vocab.kind if vocab is not None else vocabulary or known.vocabulary
    if min_count is not None and kind != "words":
        raise NpxlError(
            f"min_count is {min_count!r}, but only words are counted, and the vocabulary is "
            f"{kind}: leave min_count out, or choose words."
        )
    found = find(known, path, VOCABULARIES[kind].grain)
    surveys = {split: source.survey() for split, source in found.sources.items()}
    digests = {split: survey.digest for split, survey in surveys.items()}
    if vocab is None:
        vocab = _vocabulary_of(known, kind, min_count, found, digests)
    splits = _splits(found.sources, surveys, vocab)
    remarks = found.remarks or _remarks_on(vocab, known)
    return Corpus(
        name=path_or_name if path_or_name in BUNDLED else path.resolve().name,
        path=path,
        vocab=vocab,
        fingerprint=digest_of({"splits": digests, "vocabulary": vocab.to_dict()}),
        train=splits["train"],
        valid=splits.get("valid"),
        test=splits.get("test"),
        remarks=(*remarks, *_missing_splits(known, path, found)),
    )


def load_whole(
    path_or_name: str | os.PathLike[str], vocab: Vocabulary, dataset: DatasetName = "text"
) -> list[Split]:
    """Open a text whole: a file as one stretch, a folder or a benchmark split by split.

    Parameters
    ----------
    path_or_name, dataset
        As for `load_corpus`.
    vocab
        To read the text with.

    Raises
    ------
    NpxlError
        When there is no such text, it cannot be read as such tokens, or is too short to predict
        anything.
    """
    path = _locate(path_or_name, dataset)
    if dataset == "text" and not path.is_dir():
        sources = {"all": Source((whole_file(path),))}
    else:
        found = find(DATASETS[dataset], path, vocab.grain).sources
        once = {source.spans: split for split, source in reversed(found.items())}
        sources = {split: source for split, source in found.items() if split in once.values()}
    surveys = {split: source.survey() for split, source in sources.items()}
    return list(_splits(sources, surveys, vocab).values())


def _locate(path_or_name: str | os.PathLike[str], dataset: DatasetName) -> Path:
    if isinstance(path_or_name, str) and path_or_name in BUNDLED:
        if dataset != "text":
            raise missing(DATASETS[dataset], f"{path_or_name} is the bundled text")
        return BUNDLED[path_or_name]
    path = Path(os.path.expanduser(path_or_name))  # which leaves an unknown user's ~ as it is
    # "" is not the working folder; below an unreadable folder, nothing exists.
    if not os.fspath(path_or_name) or not os.path.exists(path):
        if dataset != "text":
            name = os.fspath(path_or_name)
            raise missing(DATASETS[dataset], f"There is no file or folder {name!r}")
        raise NpxlError(
            f"There is no file or folder {os.fspath(path_or_name)!r}, nor a bundled text of that "
            f"name: pass a path, or one of {', '.join(BUNDLED)}."
        )
    return path


def _subwords(
    vocabulary: VocabularyKind | None, tokenizer: str | os.PathLike[str] | None
) -> SubwordVocabulary:
    if tokenizer is None:
        raise NpxlError("Subwords are those of a tokenizer: give the path of a tokenizer.json.")
    if vocabulary not in (None, "subwords"):
        raise NpxlError(
            f"vocabulary is {vocabulary!r}, but tokenizer is {os.fspath(tokenizer)!r}, whose "
            "tokens are subwords: leave one of them out."
        )
    return SubwordVocabulary.from_file(tokenizer)


def _vocabulary_of(
    known: Dataset,
    kind: VocabularyKind,
    min_count: int | None,
    found: Found,
    digests: Mapping[str, str],
) -> Vocabulary:
    if kind == "bytes":
        return ByteVocabulary()
    if kind == "words" and found.words is not None:
        if min_count is not None:
            raise NpxlError(
                f"min_count is {min_count}, but no words are counted where their list is in "
                f"{found.words}: leave min_count out, or move that file elsewhere."
            )
        return WordVocabulary.from_file(found.words, known.words)
    recipe = Recipe(kind, min_count or known.min_count, known.words, known.counted)
    return vocabulary_of(found.sources, digests, recipe)


def _remarks_on(vocab: Vocabulary, known: Dataset) -> tuple[str, ...]:
    if known.vocab_size in (None, vocab.size) or vocab.kind != known.vocabulary:
        return ()
    return (
        f"The vocabulary has {vocab.size:,} {vocab.kind}, and not the {known.vocab_size:,} of all "
        f"of {known.title}: scores cannot be compared with published ones.",
    )


def _missing_splits(known: Dataset, path: Path, found: Found) -> tuple[str, ...]:
    """Of a benchmark, which has all three."""
    lacks = [split for split in PERCENT if split not in found.sources]
    if known.layout is None or not lacks:
        return ()
    return (f"{path} has no {' and no '.join(lacks)} split of {known.title}.",)


def _splits(
    sources: Mapping[str, Source], surveys: Mapping[str, Survey], vocab: Vocabulary
) -> dict[str, Split]:
    digests = {split: survey.digest for split, survey in surveys.items()}
    in_place = vocab.kind == "bytes" and not any(
        source.is_shuffled or len(source.spans) > 1 for source in sources.values()
    )
    encoded = _bytes_of(sources) if in_place else encode(sources, digests, vocab)
    return {
        split: _split(split, source, surveys[split], vocab, encoded)
        for split, source in sources.items()
    }


def _bytes_of(sources: Mapping[str, Source]) -> Encoded:
    tokens = {}
    for split, source in sources.items():
        (span,) = source.spans
        with opened(span.path) as file:
            tokens[split] = map_file(file, np.uint8, span.start, span.stop - span.start)
    return Encoded(tokens, dict.fromkeys(sources, 0), {})


def _split(name: str, source: Source, survey: Survey, vocab: Vocabulary, encoded: Encoded) -> Split:
    tokens, kind = encoded.tokens[name], vocab.kind
    what = f"The {name} split of {source.name}" if name in PERCENT else f"The text {source.name}"
    n_dropped = survey.n_newlines if vocab.drops_newlines else 0
    n_bytes, n_characters = survey.n_bytes - n_dropped, survey.n_characters - n_dropped
    if len(tokens) < 2:
        need = f"2 {kind} are needed"
        if source.is_part_of_a_file:
            n_enough = 2 * 100 // min(PERCENT.values())
            parts = "/".join(map(str, PERCENT.values()))
            need = f"a file that is cut {parts} needs about {n_enough} {kind}"
        raise NpxlError(
            f"{what} is too short to predict anything: it has {len(tokens)} "
            f"token{'s' * (len(tokens) != 1)} in {n_bytes} bytes, but {need}; add text."
        )
    has_start = len(vocab.start) and not source.is_shuffled
    first = b"" if has_start else source.first_token(vocab)
    first_characters = count_characters(np.frombuffer(first, np.uint8))
    if n_characters == first_characters:
        raise NpxlError(
            f"{what} has no characters after its first token, so that there are no bits per "
            "character: add text."
        )
    return Split(
        tokens=tokens,
        n_bytes=n_bytes,
        n_characters=n_characters,
        scored_bytes=n_bytes - len(first),
        scored_characters=n_characters - first_characters,
        n_unknown=encoded.n_unknown[name],
        sentence_lengths=encoded.lengths.get(name),
    )
