"""The texts that npxl knows: the five benchmarks of the paper, and any other text.

What is known of each stands in one table: which files it comes in, how the original reads them
(Dai et al.'s PyTorch code), and what the paper scores it in.  docs/benchmarks.md explains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from npxl.config import DatasetName, VocabularyKind

Unit = Literal["ppl", "bpc", "bpb"]

UNITS: dict[Unit, str] = {
    "ppl": "perplexity",
    "bpc": "bits per character",
    "bpb": "bits per byte",
}


@dataclass(frozen=True)
class WordRule:
    """How the lines of a text become words: what stands between white space, in this order.

    Attributes
    ----------
    end
        Symbol at the end of every line, blank ones too.
    unknown
        Symbol for every word that a vocabulary lacks.
    lower_case
        Read capital letters as small ones.
    starts_with_end
        A split of the text begins with `end`, as if after a line, so that its first word is scored.
    """

    end: str = "<eos>"
    unknown: str = "<unk>"
    lower_case: bool = False
    starts_with_end: bool = False


ANY_WORDS = WordRule()


@dataclass(frozen=True)
class OneFile:
    """A file that is cut into three splits.

    Attributes
    ----------
    name
        Of the file, raw or zipped.
    lengths
        Bytes of each split, when the file has as many as they have together.
    """

    name: str
    lengths: Mapping[str, int]


@dataclass(frozen=True)
class FilePerSplit:
    """A folder, or its zip, with files for each split.

    Attributes
    ----------
    patterns
        Of each split, the paths below the folder, with `*` for any part of a name, one of which its
        files have.
    folders
        Where the files may lie below what the user names.
    n_train
        Files that the training split has when it is whole.
    words
        Name of a file with the words of the vocabulary, one at the beginning of each line, which is
        used when it is there.
    """

    patterns: Mapping[str, tuple[str, ...]]
    folders: tuple[str, ...] = ()
    n_train: int = 1
    words: str | None = None


@dataclass(frozen=True)
class Dataset:
    """What is known of a text.

    Attributes
    ----------
    title
        Its name, for people.
    vocabulary
        What a token is, unless the user says otherwise.
    unit
        What it is scored in.
    layout
        The files that it comes in; None: any file, or folder with a file for each split.
    vocab_size
        Symbols of `vocabulary` in the whole text; None where every text has its own.
    words
        How lines become words.
    counted
        The splits whose words make the vocabulary.
    min_count
        Words seen less often become unknown, unless the user says otherwise.
    shuffled
        Whether lines are sentences without order, which are shuffled in training.
    expected
        What the files are, in words.
    address
        Where they are to be had.
    """

    title: str
    vocabulary: VocabularyKind
    unit: Unit
    layout: OneFile | FilePerSplit | None = None
    vocab_size: int | None = None
    words: WordRule = ANY_WORDS
    counted: tuple[str, ...] = ("train",)
    min_count: int = 1
    shuffled: bool = False
    expected: str = ""
    address: str = ""


_LM1B_FOLDER = "1-billion-word-language-modeling-benchmark-r13output"
_LM1B_TRAIN = "training-monolingual.tokenized.shuffled/news.en-*"
_LM1B_HELD_OUT = "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
_LENGTHS = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}

DATASETS: dict[DatasetName, Dataset] = {
    "text": Dataset("any text", vocabulary="bytes", unit="bpc"),
    "wt103": Dataset(
        "WikiText-103",
        vocabulary="words",
        unit="ppl",
        layout=FilePerSplit(
            {name: (f"wiki.{name}.tokens", f"{name}.txt") for name in _LENGTHS},
            folders=("wikitext-103",),
        ),
        vocab_size=267_735,
        expected="a folder with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, or "
        "wikitext-103-v1.zip",
        address="https://wikitext.smerity.com/wikitext-103-v1.zip",
    ),
    "enwik8": Dataset(
        "enwik8",
        vocabulary="symbols",
        unit="bpb",
        layout=OneFile("enwik8", _LENGTHS),
        vocab_size=204,
        expected="the file enwik8, enwik8.zip, or a folder with one of them",
        address="http://mattmahoney.net/dc/enwik8.zip",
    ),
    "text8": Dataset(
        "text8",
        vocabulary="symbols",
        unit="bpc",
        layout=OneFile("text8", _LENGTHS),
        vocab_size=27,
        expected="the file text8, text8.zip, or a folder with one of them",
        address="http://mattmahoney.net/dc/text8.zip",
    ),
    "lm1b": Dataset(
        "One Billion Word",
        vocabulary="words",
        unit="ppl",
        layout=FilePerSplit(
            {"train": (_LM1B_TRAIN,), "valid": (_LM1B_HELD_OUT,), "test": (_LM1B_HELD_OUT,)},
            folders=(_LM1B_FOLDER,),
            n_train=99,
            words="1b_word_vocab.txt",
        ),
        vocab_size=793_470,
        words=WordRule(end="<S>", unknown="<UNK>", starts_with_end=True),
        min_count=3,
        shuffled=True,
        expected=f"the unpacked folder {_LM1B_FOLDER} with {_LM1B_TRAIN} and {_LM1B_HELD_OUT}",
        address=f"http://www.statmt.org/lm-benchmark/{_LM1B_FOLDER}.tar.gz",
    ),
    "ptb": Dataset(
        "Penn Treebank",
        vocabulary="words",
        unit="ppl",
        layout=FilePerSplit(
            {name: (f"ptb.{name}.txt", f"{name}.txt") for name in _LENGTHS},
            folders=("data", "simple-examples/data"),
        ),
        vocab_size=10_000,
        words=WordRule(lower_case=True),
        counted=("train", "valid", "test"),
        expected="a folder with ptb.train.txt, ptb.valid.txt and ptb.test.txt",
        address="http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
    ),
}


def unit_of(dataset: DatasetName, vocabulary: VocabularyKind | None) -> Unit:
    """What scores are compared in: the dataset's unit, where it has a meaning for such tokens.

    Perplexities compare only between equal vocabularies; with another one than the dataset's, bits
    per character are what compares.
    """
    known = DATASETS[dataset]
    if known.unit == "ppl" and vocabulary not in (None, known.vocabulary):
        return "bpc"
    return known.unit
