"""The five benchmarks: read as the original reads them, held against its code written literally."""

import os
import re
import zipfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import (
    LINE,
    LM1B,
    entries,
    folder_of_splits,
    lines,
    memory_growth,
    one_file,
    only_on_linux,
    real,
    shards,
    splits_of,
    written,
)

from npxl import NpxlError, load_corpus
from npxl.config import DatasetName
from npxl.data import ByteVocabulary, layouts, load_whole
from npxl.datasets import DATASETS, unit_of

BENCHMARKS = [name for name in DATASETS if name != "text"]
NEWLINE = ord("\n")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("NPXL_CACHE_DIR", str(folder))
    return folder


class OriginalVocabulary:
    """Dai et al.'s `Vocab`, as far as their `Corpus` uses it for these texts."""

    def __init__(self, special=(), lower_case=False):
        self.special, self.lower_case = special, lower_case
        self.counter = Counter()

    def tokenize(self, line, add_eos):
        line = line.strip()
        if self.lower_case:
            line = line.lower()
        return line.split() + (["<eos>"] if add_eos else [])

    def count(self, lines):
        for line in lines:
            self.counter.update(self.tokenize(line, add_eos=False))

    def build(self):
        self.symbols = list(self.special)
        for symbol, _ in self.counter.most_common():
            if symbol not in self.symbols:
                self.symbols.append(symbol)

    def encode(self, lines, add_eos):
        tokens = [symbol for line in lines for symbol in self.tokenize(line, add_eos)]
        return [self.symbols.index(symbol) for symbol in tokens]


def lines_of(text):
    """As iterating over a file gives them: a last line without newline is one too."""
    return text.removesuffix("\n").split("\n") if text else []


# What is known of them


def test_the_table_has_every_dataset():
    assert list(DATASETS) == list(get_args(DatasetName))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_is_explained(name):
    page = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text()
    known = DATASETS[name]
    for fact in (f"`{name}`", known.title, known.address, f"{known.vocab_size:,}"):
        assert fact in page


@pytest.mark.fault("KY #16", "KY #35", "KY #109")
def test_the_papers_penn_treebank_is_not_claimed():
    """Nobody has reproduced its perplexity of 54.5."""
    pages = Path(__file__).parents[1].glob("docs/*.md")
    claims = [line for page in pages for line in page.read_text().splitlines() if "54.5" in line]
    assert claims
    assert all("is not claimed" in line for line in claims)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_what_is_missing_is_said_with_what_to_put_where(name, tmp_path):
    """Also where there is a folder or a file that is something else."""
    (tmp_path / "empty").mkdir()
    other = written(tmp_path / "other.txt", "some text\n")
    for path in (tmp_path / "nothing", tmp_path / "empty", "kjv"):
        with pytest.raises(NpxlError) as caught:
            load_corpus(path, dataset=name)
        message = str(caught.value)
        known = DATASETS[name]
        assert str(path) in message
        assert known.expected in message
        assert known.address in message
        assert "docs/benchmarks.md" in message
        assert message.endswith("--dataset text.")
    if name not in ("enwik8", "text8"):
        with pytest.raises(NpxlError, match=r"other\.txt is not a folder with"):
            load_corpus(other, dataset=name)


# enwik8 and text8


@pytest.mark.parametrize("name", ["enwik8", "text8"])
@pytest.mark.parametrize("where", ["file", "folder"])
def test_a_whole_file_is_cut_by_the_byte(tmp_path, name, where):
    path = one_file(tmp_path, name, "")
    os.truncate(path, 100_000_000)
    found = layouts.find(DATASETS[name], path if where == "file" else tmp_path, "bytes")
    assert {split: source.spans for split, source in found.sources.items()} == {
        "train": ((path, 0, 90_000_000),),
        "valid": ((path, 90_000_000, 95_000_000),),
        "test": ((path, 95_000_000, 100_000_000),),
    }
    assert found.remarks == ()


def test_nothing_but_newlines_is_said_to_be_that(tmp_path):
    with pytest.raises(NpxlError, match="nothing but newlines, which the vocabulary symbols leave"):
        load_corpus(one_file(tmp_path, "enwik8", "\n" * 1000), dataset="enwik8")


def test_a_file_that_is_not_whole_is_cut_into_per_cent_and_that_is_said(tmp_path):
    corpus = load_corpus(one_file(tmp_path, "enwik8", "<page>\n" * 100), dataset="enwik8")
    assert [split.n_bytes for split in splits_of(corpus)] == [540, 30, 30]
    (remark,) = corpus.remarks
    assert re.search(r"700 bytes and not the 100,000,000 of enwik8: .* 90/5/5 per cent", remark)


def prepared(data):
    """What prep_enwik8.py writes for a part: numbers, and newlines that are newlines."""
    return " ".join([str(c) if c != NEWLINE else "\n" for c in data])


def assert_symbols_are_the_originals(path, dataset, prepare):
    corpus = load_corpus(path, dataset=dataset)
    data = path.read_bytes()
    cuts = len(data) * 90 // 100, len(data) * 95 // 100
    parts = [prepare(part) for part in (data[: cuts[0]], data[cuts[0] : cuts[1]], data[cuts[1] :])]
    original = OriginalVocabulary()
    for part in parts:
        original.count(part.split("\n"))
    original.build()
    for part, split in zip(parts, splits_of(corpus), strict=True):
        assert split.tokens.tolist() == original.encode(part.split("\n"), add_eos=False)
    return corpus, original


@pytest.mark.fault("laekov/fastmoe #163", "facebookresearch/adaptive-span #5")
@given(st.binary(min_size=60).map(lambda data: data + b"\n<page>" * 9))
def test_symbols_are_those_of_the_originals_preprocessing(tmp_path_factory, data):
    """facebookresearch/adaptive-span #5: newlines are gone, and no length counts them."""
    path = one_file(tmp_path_factory.mktemp("enwik8"), "enwik8", data)
    corpus, original = assert_symbols_are_the_originals(path, "enwik8", prepared)
    assert [str(byte) for byte in corpus.vocab.symbols] == original.symbols
    for split in splits_of(corpus):
        assert split.n_bytes == len(split)
        assert split.scored_bytes == len(split) - 1
        assert split.n_unknown == 0


@pytest.mark.fault("laekov/fastmoe #163", "facebookresearch/adaptive-span #5")
def test_symbols_of_a_real_text_have_no_newline():
    """laekov/fastmoe #163: 204 symbols in enwik8, and one fewer than distinct bytes in any text."""
    path = real("enwiki/enwiki-shortened.xml")
    data = path.read_bytes()
    assert len(set(data)) == 201
    corpus = load_corpus(path, "symbols")
    assert corpus.vocab.size == 200
    assert NEWLINE not in corpus.vocab.symbols
    tokens = np.concatenate([split.tokens for split in splits_of(corpus)])
    decoded = np.frombuffer(corpus.vocab.symbols, np.uint8)[tokens].tobytes()
    assert decoded == data.replace(b"\n", b"")
    every_byte = load_corpus(path, "bytes")
    assert b"".join(split.tokens.tobytes() for split in splits_of(every_byte)) == data


def test_a_part_of_a_real_text_is_read_as_the_original_reads_it(tmp_path):
    data = real("enwiki/enwiki-shortened.xml").read_bytes()[:200_000]
    assert_symbols_are_the_originals(one_file(tmp_path, "enwik8", data), "enwik8", prepared)


def test_text8_has_27_symbols_as_the_original_reads_it(tmp_path):
    data = real("enwiki/text8style.txt").read_bytes()[:200_000]

    def prepare(part):
        return " ".join(["_" if c == " " else c for c in part.decode()])

    path = one_file(tmp_path, "text8", data)
    corpus, original = assert_symbols_are_the_originals(path, "text8", prepare)
    assert corpus.vocab.size == 27
    assert corpus.vocab.symbols.decode() == "".join(original.symbols).replace("_", " ")


@pytest.mark.fault("laekov/fastmoe #163", "facebookresearch/adaptive-span #5")
def test_enwik8_in_bytes_keeps_every_byte(tmp_path):
    data = bytes(range(256)) * 10
    corpus = load_corpus(one_file(tmp_path, "enwik8", data), "bytes", dataset="enwik8")
    assert corpus.vocab == ByteVocabulary()
    assert b"".join(split.tokens.tobytes() for split in splits_of(corpus)) == data


@pytest.mark.parametrize("vocabulary", ["symbols", "bytes", "characters"])
def test_a_zip_is_read_like_what_is_in_it(tmp_path, cache, vocabulary):
    text = "<page>\n<title>é</title>\n</page>\n" * 50
    raw = load_corpus(one_file(tmp_path, "enwik8", text), vocabulary, dataset="enwik8")
    before = entries(tmp_path)
    archive = tmp_path / "zipped" / "enwik8.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("enwik8", text)
        file.writestr("notes.txt", "something else")
    for path in (archive, archive.parent):
        zipped = load_corpus(path, vocabulary, dataset="enwik8")
        assert zipped.fingerprint == raw.fingerprint
        for one, other in zip(splits_of(zipped), splits_of(raw), strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
    assert entries(tmp_path) == sorted([*before, "enwik8.zip"])
    assert [path.name for path in (cache / "unpacked").glob("*/*")] == ["enwik8"]


def test_a_zip_is_unpacked_once_and_again_where_something_is_missing(tmp_path, cache):
    archive = tmp_path / "text8.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("text8", "some text " * 100)
    load_corpus(archive, dataset="text8")
    (unpacked,) = (cache / "unpacked").glob("*/text8")
    written_at = unpacked.stat().st_mtime_ns
    load_corpus(archive, dataset="text8")
    assert unpacked.stat().st_mtime_ns == written_at
    unpacked.write_bytes(b"cut")
    corpus = load_corpus(archive, dataset="text8")
    assert sum(split.n_bytes for split in splits_of(corpus)) == 1000


@pytest.mark.parametrize("damage", ["no zip", "without the file", "torn"])
def test_a_zip_that_is_none_is_refused(tmp_path, damage):
    archive = tmp_path / "enwik8.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("other" if damage == "without the file" else "enwik8", os.urandom(9999))
    if damage == "no zip":
        archive.write_bytes(b"<page>" * 99)
    if damage == "torn":
        contents = bytearray(archive.read_bytes())
        contents[5000] ^= 255
        archive.write_bytes(contents)
    with pytest.raises(NpxlError, match=r"enwik8.* cannot be unpacked|There is no file"):
        load_corpus(archive, dataset="enwik8")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_whose_compressed_bytes_are_damaged_is_refused(tmp_path, cache, method):
    """zlib, bz2 and lzma each raise an error of their own."""
    archive = tmp_path / "enwik8.zip"
    with zipfile.ZipFile(archive, "w", method) as file:
        file.writestr("enwik8", lines(999))
    contents = bytearray(archive.read_bytes())
    contents[60:90] = b"\xff" * 30
    archive.write_bytes(contents)
    with pytest.raises(NpxlError, match=r"cannot be unpacked \(.+\): it is damaged"):
        load_corpus(archive, dataset="enwik8")
    assert entries(cache) == []


def test_a_zip_cannot_write_outside_the_cache(tmp_path, cache):
    archive = tmp_path / "enwik8.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../../../enwik8", "some text\n" * 9)
    with pytest.raises(NpxlError, match="There is no file"):
        load_corpus(archive, dataset="enwik8")
    assert entries(tmp_path) == ["enwik8.zip"]
    assert entries(cache) == []


def test_a_zip_without_a_cache_folder_is_refused_with_what_to_do(tmp_path, monkeypatch):
    archive = tmp_path / "text8.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("text8", "some text " * 100)
    monkeypatch.setenv("NPXL_CACHE_DIR", str(written(tmp_path / "blocked", "a file")))
    with pytest.raises(NpxlError, match="unpack it yourself, or let NPXL_CACHE_DIR"):
        load_corpus(archive, dataset="text8")


# WikiText-103 and the Penn Treebank


def assert_words_are_the_originals(corpus, texts, counted, **options):
    """The same symbols in the same order, and the same tokens where the original has any."""
    original = OriginalVocabulary(special=["<eos>"], **options)
    for split in counted:
        original.count(lines_of(texts[split]))
    original.build()
    words = list(corpus.vocab.words)
    assert [word for word in words if word in original.symbols] == original.symbols
    assert set(words) - set(original.symbols) <= {"<unk>"}
    unknown = words.index("<unk>")
    for split in splits_of(corpus):
        text = next(texts[n] for n in texts if getattr(corpus, n) is split)
        lines = lines_of(text)
        expected, n_unknown = [], 0
        for line in lines:
            for symbol in original.tokenize(line, add_eos=True):
                known = symbol in words
                expected.append(words.index(symbol) if known else unknown)
                n_unknown += not known
        assert split.tokens.tolist() == expected
        assert split.n_unknown == n_unknown


@pytest.mark.parametrize(("name", "lower_case"), [("wt103", False), ("ptb", True)])
@given(
    texts=st.lists(
        st.lists(st.sampled_from(["a", "A", "b", "<unk>", "\n", "\n\n", "É"]), min_size=1).map(
            lambda words: "a b " + " ".join(words)
        ),
        min_size=3,
        max_size=3,
    )
)
def test_words_are_those_of_the_original(tmp_path_factory, name, lower_case, texts):
    splits = dict(zip(("train", "valid", "test"), texts, strict=True))
    folder = folder_of_splits(tmp_path_factory.mktemp(name), name, **splits)
    corpus = load_corpus(folder, dataset=name)
    counted = tuple(splits) if name == "ptb" else ("train",)
    assert_words_are_the_originals(corpus, splits, counted, lower_case=lower_case)
    (remark,) = corpus.remarks
    assert f"{DATASETS[name].vocab_size:,} of all of {DATASETS[name].title}" in remark


def test_wikitext_counts_blank_lines_and_keeps_capitals(tmp_path):
    text = real("wikitext-2/wiki.valid.tokens").read_text("utf-8")
    train, valid = text[:400_000].rpartition("\n")[0] + "\n", text[-40_000:].partition("\n")[2]
    folder = folder_of_splits(tmp_path, "wt103", train=train, valid=valid, test=text)
    corpus = load_corpus(folder, dataset="wt103")
    assert len(corpus.test) == 217_646
    assert "The" in corpus.vocab.words
    assert corpus.vocab.words[0] == "<eos>"
    assert corpus.train.n_unknown == 0
    vocabulary = set(corpus.vocab.words)
    assert corpus.test.n_unknown == sum(word not in vocabulary for word in text.split()) > 0
    original = OriginalVocabulary(special=["<eos>"])
    original.count(lines_of(train))
    original.build()
    assert list(corpus.vocab.words) == original.symbols


def test_penn_treebank_is_read_as_the_original_reads_it():
    corpus = load_corpus(real("ptb"), dataset="ptb")
    assert corpus.vocab.size == DATASETS["ptb"].vocab_size == 10_000
    assert len(corpus.train) == 929_589
    assert len(corpus.valid) == 73_760
    assert corpus.train.n_unknown == corpus.valid.n_unknown == 0
    assert not any("cannot be compared" in remark for remark in corpus.remarks)
    original = OriginalVocabulary(special=["<eos>"], lower_case=True)
    for split in ("train", "valid"):
        original.count(lines_of((real("ptb") / f"ptb.{split}.txt").read_text()))
    original.build()
    assert list(corpus.vocab.words) == original.symbols


@pytest.mark.parametrize("name", ["wt103", "ptb", "lm1b"])
@pytest.mark.parametrize("below", ["", "own"])
def test_folders_are_found_where_the_download_has_them(tmp_path, name, below):
    layout = DATASETS[name].layout
    inside = tmp_path / (layout.folders[-1] if below else "")
    texts = {"train": "a b c\n" * 3, "valid": "a b\n", "test": "b a\n"}
    folder_of_splits(inside, name, **texts)
    written(inside / "ptb.char.train.txt", "a _ b")
    corpus = load_corpus(tmp_path, dataset=name)
    assert len(corpus.train) == 12
    assert corpus.test is not None


def test_a_zip_with_a_file_for_each_split(tmp_path, cache):
    archive = tmp_path / "wikitext-103-v1.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for split in ("train", "valid", "test"):
            file.writestr(f"wikitext-103/wiki.{split}.tokens", f"a b {split}\n" * 3)
    corpus = load_corpus(archive, dataset="wt103")
    assert [len(split) for split in splits_of(corpus)] == [12, 12, 12]
    assert [split.n_unknown for split in splits_of(corpus)] == [0, 3, 3]
    assert entries(tmp_path) == ["wikitext-103-v1.zip"]


# One Billion Word


def test_shards_are_one_text_with_a_held_out_file(tmp_path):
    texts = ["a b c\na b\nc", "a d\n"]  # a last line without newline is one too
    corpus = load_corpus(shards(tmp_path, texts, "a z\nb\n"), dataset="lm1b", min_count=2)
    assert corpus.vocab.words == ("<S>", "a", "b", "c", "<UNK>")
    sentences = corpus.vocab.decode(corpus.train.tokens)
    assert sentences == "a b c\na b\nc\na <UNK>\n"
    assert corpus.train.sentence_lengths.tolist() == [4, 3, 2, 3]
    assert corpus.train.n_unknown == 1
    # The first word is scored too, after the symbol that stands between sentences.
    for split in (corpus.valid, corpus.test):
        assert split.tokens.tolist() == [0, 1, 4, 0, 2, 0]
        assert split.n_unknown == 1
        assert split.sentence_lengths is None
        assert split.scored_bytes == split.n_bytes == len("a z\nb\n")
    (remark,) = corpus.remarks
    assert "2 of the 99 training files" in remark


def test_a_file_of_words_is_the_vocabulary_when_it_is_there(tmp_path):
    """Words and their counts, as in 1b_word_vocab.txt, beside the folder or in it."""
    words = "<S> 30607716\n<UNK> 2\nthe 9\nb 3\n"
    folder = shards(tmp_path / LM1B.folders[0], ["the b z\n"] * 2, "the b\n")
    for place in (tmp_path, folder):
        written(place / "1b_word_vocab.txt", words)
        corpus = load_corpus(tmp_path, dataset="lm1b")
        assert corpus.vocab.words == ("<S>", "<UNK>", "the", "b")
        assert corpus.train.n_unknown == 2
        (place / "1b_word_vocab.txt").unlink()
    assert load_corpus(tmp_path, dataset="lm1b").vocab.words == ("<S>", "<UNK>")  # min_count is 3
    written(folder / "1b_word_vocab.txt", "the\nb\n")
    with pytest.raises(NpxlError, match=r"1b_word_vocab\.txt is no vocabulary.*<UNK> and <S>"):
        load_corpus(tmp_path, dataset="lm1b")
    with pytest.raises(NpxlError, match=r"min_count is 3, but no words are counted .*_vocab\.txt"):
        load_corpus(tmp_path, dataset="lm1b", min_count=3)


def test_a_split_that_is_not_there_is_said(tmp_path):
    corpus = load_corpus(folder_of_splits(tmp_path / "ptb", "ptb", train="a b\n"), dataset="ptb")
    assert corpus.remarks[-1].endswith("ptb has no valid and no test split of Penn Treebank.")
    folder = shards(tmp_path / "lm1b", ["a b\n"], "a b\n")
    (folder / LM1B.patterns["valid"][0]).unlink()
    corpus = load_corpus(folder, dataset="lm1b")
    assert "1 of the 99 training files" in corpus.remarks[0]
    assert "has no valid and no test split of One Billion Word" in corpus.remarks[1]
    written(tmp_path / "text" / "train.txt", "a b\n")
    assert load_corpus(tmp_path / "text").remarks == ()  # any text may have no more


@given(
    sentences=st.lists(st.lists(st.sampled_from("abc"), max_size=6), min_size=2, max_size=40),
    batch_size=st.integers(1, 5),
    tgt_len=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_no_word_of_any_sentence_is_dropped(tmp_path_factory, sentences, batch_size, tgt_len, seed):
    """The original's pairs, sentence by sentence: `<S>` before each word and after the last one.

    It throws a batch away when a stream runs out (KY #81 has another fault of the same iterator).
    """
    text = "".join(" ".join(sentence) + "\n" for sentence in sentences)
    folder = shards(tmp_path_factory.mktemp("lm1b"), [text], "a\n")
    corpus = load_corpus(folder, dataset="lm1b", min_count=1)
    batch_size = min(batch_size, len(sentences))
    streams = corpus.train.streams(batch_size, tgt_len, seed=seed)
    expected = Counter()
    for sentence in sentences:
        whole = ["<S>", *sentence, "<S>"]
        expected.update(pairwise(whole))
    # Streams end a round at different places; together they read each sentence once a round.
    found = Counter()
    bounds = [i * len(sentences) // batch_size for i in range(batch_size + 1)]
    for row in range(batch_size):
        own = sentences[bounds[row] : bounds[row + 1]]
        left = sum(len(sentence) + 1 for sentence in own)
        consumed = 0
        while left:
            inputs, targets = streams.batch(consumed)
            n = min(left, tgt_len)
            words = corpus.vocab.words
            pairs = zip(inputs[row, :n], targets[row, :n], strict=True)
            found.update((words[i], words[t]) for i, t in pairs)
            consumed += tgt_len
            left -= n
    assert found == expected


def test_real_sentences_survive(tmp_path):
    text = real("lm1b/1b_benchmark.dev.tokens").read_text("utf-8")
    folder = shards(tmp_path, [text], text[:9999].rpartition("\n")[0] + "\n")
    corpus = load_corpus(folder, dataset="lm1b", min_count=1)
    assert len(corpus.train.sentence_lengths) == 12_216
    assert corpus.vocab.decode(corpus.train.tokens) == text
    assert corpus.train.n_unknown == 0
    streams = corpus.train.streams(batch_size=8, tgt_len=32, seed=3)
    rows = np.concatenate([streams.batch(i * 32)[1] for i in range(200)], axis=1)
    sentences = set(text.split("\n"))
    for row in rows:
        read = corpus.vocab.decode(row).split("\n")[:-1]  # the last one goes on
        assert len(set(read)) > 150
        assert set(read) <= sentences


def test_the_whole_of_a_benchmark_is_each_file_once(tmp_path):
    corpus = load_corpus(shards(tmp_path, ["a b\n"] * 3, "a\nb\n"), dataset="lm1b")
    splits = load_whole(tmp_path, corpus.vocab, "lm1b")
    assert [split.n_bytes for split in splits] == [12, 4]


@only_on_linux
def test_memory_does_not_grow_with_the_shards(tmp_path):
    """Encoded, and read in another order, 2 and then 40 MB of sentences."""
    small = shards(tmp_path / "small", [LINE * 13_000] * 2, LINE)
    large = shards(tmp_path / "large", [LINE * 26_000] * 20, LINE)
    statement = "load_corpus(path, dataset='lm1b').train.streams(8, 32).batch(10**6)"
    assert memory_growth(statement, small, large) < 16_000  # KiB; the large text has 38,000


# Scores


@pytest.mark.parametrize(
    ("dataset", "vocabulary", "unit"),
    [
        ("text", "bytes", "bpc"), ("text", "words", "bpc"), ("wt103", "words", "ppl"),
        ("wt103", None, "ppl"), ("wt103", "subwords", "bpc"), ("enwik8", "symbols", "bpb"),
        ("enwik8", "bytes", "bpb"), ("text8", "symbols", "bpc"), ("lm1b", "words", "ppl"),
        ("ptb", "words", "ppl"), ("ptb", "characters", "bpc"),
    ],
)  # fmt: skip
def test_scores_are_in_the_papers_unit_where_it_has_a_meaning(dataset, vocabulary, unit):
    assert unit_of(dataset, vocabulary) == unit
