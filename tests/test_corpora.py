"""Corpora: which bytes become which tokens of which split, and what cannot be read."""

import errno
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import LINE, entries, memory_growth, only_on_linux, real, splits_of, written

from npxl.data import CharacterVocabulary, WordVocabulary, layouts, load_corpus, sources
from npxl.datasets import DATASETS
from npxl.errors import NpxlError

KINDS = ("bytes", "characters", "words")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("NPXL_CACHE_DIR", str(folder))
    return folder


def folder_of(path, **texts):
    for split, text in texts.items():
        written(path / f"{split}.txt", text)
    return path


def spans_of(path, grain):
    """The bytes of each split of a file."""
    found = layouts.find(DATASETS["text"], path, grain).sources
    return {split: source.spans[0] for split, source in found.items()}


# The bundled text and the cuts


def test_the_bundled_text_is_the_one_described():
    path = Path(sources.__file__).parent / "text" / "kjv_genesis_2kings.txt"
    contents = path.read_bytes()
    assert hashlib.sha256(contents).hexdigest().startswith("101e0b7a9e8a")
    corpus = load_corpus()
    assert corpus.name == "kjv"
    assert b"".join(split.tokens.tobytes() for split in splits_of(corpus)) == contents
    assert [len(s) for s in splits_of(corpus)] == [1_387_937, 77_108, 77_108]
    assert corpus.vocab.size == 256
    assert load_corpus("kjv", "characters").vocab.size == 72 + 1  # its distinct bytes, and U+FFFD


@pytest.mark.parametrize("kind", KINDS)
def test_the_splits_are_the_text_in_order(tmp_path, kind):
    """Nothing is lost, doubled or reordered where a file is cut, whatever a token is."""
    text = "".join(f"línea número {i % 7} — 漢字 𝄞\n" for i in range(100))
    corpus = load_corpus(written(tmp_path / "text", text), kind)
    decoded = [corpus.vocab.decode(split.tokens) for split in splits_of(corpus)]
    size = len(text.encode())
    lengths = [split.n_bytes for split in splits_of(corpus)]
    assert sum(lengths) == size
    if kind == "bytes":
        assert lengths[:2] == [int(0.9 * size), int(0.95 * size) - int(0.9 * size)]
        joined = b"".join(split.tokens.tobytes() for split in splits_of(corpus))
        assert joined.decode() == text
    else:
        assert "".join(decoded) == text
        assert [len(part.encode()) for part in decoded] == lengths
        assert [len(part) for part in decoded] == [s.n_characters for s in splits_of(corpus)]
    if kind == "words":
        assert all(part.endswith("\n") for part in decoded)


@given(
    st.text(
        st.characters(codec="utf-8", categories=["L", "Zs"], include_characters="\n"), min_size=60
    )
)
def test_a_cut_moves_back_no_further_than_it_must(tmp_path_factory, text):
    data = text.encode()
    path = written(tmp_path_factory.mktemp("cut") / "text", data)
    start = 0
    found = spans_of(path, "characters")
    for split, fraction in (("train", 0.9), ("valid", 0.95)):
        assert found[split].start == start
        start = found[split].stop
        cut = int(fraction * len(data))
        assert start == len(data[:cut].decode(errors="ignore").encode())
    start = 0
    found = spans_of(path, "words")
    for split, fraction in (("train", 0.9), ("valid", 0.95)):
        piece = data[start : int(fraction * len(data))]
        lines, words = piece.rpartition(b"\n")[:2], piece.rpartition(b" ")[:2]
        kept = b"".join(lines) or b"".join(words)
        assert (found[split].start, found[split].stop) == (start, start + len(kept))
        start += len(kept)


def test_enwik8_and_text8_get_their_customary_splits(tmp_path):
    path = written(tmp_path / "enwik8", "")
    os.truncate(path, 100_000_000)
    found = spans_of(path, "bytes")
    assert [(s.start, s.stop) for s in found.values()] == [
        (0, 90_000_000),
        (90_000_000, 95_000_000),
        (95_000_000, 100_000_000),
    ]


def test_a_text_of_one_line_is_cut_between_words(tmp_path):
    text = " ".join(f"w{i}" for i in range(200))
    corpus = load_corpus(written(tmp_path / "text", text), "words")
    assert corpus.vocab.decode(corpus.train.tokens).split() == text.split()[: len(corpus.train)]
    # Lines that a cut would have interrupted do not end there; the file's last line does.
    eos = corpus.vocab.words.index("<eos>")
    assert [np.count_nonzero(split.tokens == eos) for split in splits_of(corpus)] == [0, 0, 1]
    assert sum(len(split) for split in splits_of(corpus)) == 201


# Folders


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"),
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        ("Train", "dev", "TEST"),
        ("my-train-set", "my_val.txt", "my.test-set.raw"),
        ("train.en", "validation.en", "test.en"),
    ],
)
def test_a_folder_has_a_file_for_each_split(tmp_path, names):
    for name, text in zip(names, ("aa", "bbb", "cccc"), strict=True):
        written(tmp_path / name, text)
    written(tmp_path / ".train.txt.swp", "hidden")
    written(tmp_path / "README.md", "training, validation and testing")
    written(tmp_path / "attest.txt", "a name that only contains the word")
    (tmp_path / "train.old").mkdir()
    corpus = load_corpus(tmp_path)
    assert corpus.name == tmp_path.name
    assert [bytes(split.tokens) for split in splits_of(corpus)] == [b"aa", b"bbb", b"cccc"]


def test_a_folder_may_lack_validation_and_test_text(tmp_path):
    corpus = load_corpus(folder_of(tmp_path / "mine", train="some text", test="more"))
    assert corpus.valid is None
    assert corpus.split("test") is corpus.test
    assert corpus.split("train") is corpus.train
    with pytest.raises(NpxlError, match="mine has no split 'valid'; it has train, test"):
        corpus.split("valid")
    with pytest.raises(NpxlError, match="no split 'all'"):
        corpus.split("all")


# Tokens against naive truth


def test_penn_treebank_has_the_papers_numbers():
    corpus = load_corpus(real("ptb"), "words")
    assert corpus.vocab.size == 10_000
    assert len(corpus.train) == 929_589
    assert len(corpus.valid) == 73_760
    assert corpus.test is None
    assert corpus.train.n_unknown == corpus.valid.n_unknown == 0
    assert corpus.vocab.words[:3] == ("<eos>", "the", "<unk>")


def test_wikitext_counts_blank_lines():
    corpus = load_corpus(real("wikitext-2/wiki.valid.tokens"), "words")
    assert sum(len(split) for split in splits_of(corpus)) == 217_646


def test_a_real_text_in_several_scripts_round_trips():
    path = real("enwiki/enwiki-shortened.xml")
    text = path.read_bytes().decode()
    corpus = load_corpus(path, "characters")
    assert set(corpus.vocab.alphabet) == set(text) - {"\ufffd"}
    assert "".join(corpus.vocab.decode(split.tokens) for split in splits_of(corpus)) == text


@given(
    texts=st.lists(st.text(st.sampled_from("ab漢𝄞é \n"), min_size=4), min_size=3, max_size=3),
    block=st.integers(1, 9),
    kind=st.sampled_from(["characters", "words"]),
)
def test_blocks_do_not_show_in_the_tokens(tmp_path_factory, texts, block, kind):
    """Characters and words that straddle the blocks in which a file is read come out whole."""
    texts = ["x y\n" + text for text in texts]
    folder = folder_of(
        tmp_path_factory.mktemp("corpus"), train=texts[0], valid=texts[1], test=texts[2]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPXL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(sources, "_BLOCK", block)
        corpus = load_corpus(folder, kind)
    if kind == "characters":
        symbols = ["\ufffd", *sorted(set("".join(texts)))]
        expected = [list(text) for text in texts]
    else:
        symbols = list(corpus.vocab.words)
        expected = []
        for text in texts:
            lines = text.removesuffix("\n").split("\n")
            tokens = [word for line in lines for word in [*line.split(" "), "<eos>"] if word]
            expected.append([token if token in symbols else "<unk>" for token in tokens])
    for split, text, tokens in zip(splits_of(corpus), texts, expected, strict=True):
        assert [symbols[i] for i in split.tokens] == tokens
        assert split.n_bytes == len(text.encode())
        assert split.n_characters == len(text)
    assert corpus.vocab.size == len(symbols)


def test_words_come_from_the_training_split_and_characters_from_all(tmp_path):
    folder = folder_of(tmp_path, train="a b a\n", valid="a z z\n", test="é b\n")
    words = load_corpus(folder, "words")
    assert words.vocab.words == ("<eos>", "a", "b", "<unk>")
    assert [split.n_unknown for split in splits_of(words)] == [0, 2, 1]
    characters = load_corpus(folder, "characters")
    assert characters.vocab.alphabet == "\n abzé"
    assert [split.n_unknown for split in splits_of(characters)] == [0, 0, 0]
    rare = load_corpus(folder, "words", min_count=2)
    assert rare.vocab.words == ("<eos>", "a", "<unk>")
    assert rare.train.n_unknown == 1


def test_another_text_is_read_with_the_models_vocabulary(tmp_path):
    folder = folder_of(tmp_path, train="a b c\n", valid="c z\n")
    for vocab, unknown in (
        (CharacterVocabulary(" ab\n"), [1, 2]),
        (WordVocabulary(("<eos>", "<unk>", "a", "b")), [1, 2]),
    ):
        corpus = load_corpus(folder, vocab=vocab)
        assert corpus.vocab == vocab
        assert [split.n_unknown for split in splits_of(corpus)] == unknown
        np.testing.assert_array_equal(corpus.train.tokens, vocab.encode("a b c\n"))


# Lengths that bits per byte and per character are counted over


@pytest.mark.parametrize(
    ("kind", "text", "scored"),
    [
        ("bytes", "été", "té"),  # less one byte of the first character
        ("characters", "été", "té"),
        ("characters", "𝄞 漢", " 漢"),
        ("words", "été là\n", " là\n"),
        ("words", " \n = 漢 =\n", " = 漢 =\n"),  # with the white space before it
        ("words", "  a b\n", " b\n"),
    ],
)
def test_the_first_token_is_not_scored(tmp_path, kind, text, scored):
    split = load_corpus(folder_of(tmp_path, train=text), kind).train
    half_read = kind == "bytes"
    assert split.n_bytes == len(text.encode())
    assert split.n_characters == len(text)
    assert split.scored_bytes == len(scored.encode()) + half_read
    assert split.scored_characters == len(scored)


def test_a_first_token_that_is_unknown_counts_with_its_own_length(tmp_path):
    vocab = CharacterVocabulary("ab")
    split = load_corpus(folder_of(tmp_path, train="𝄞ab"), vocab=vocab).train
    assert (split.n_bytes, split.scored_bytes) == (6, 2)


@given(st.binary(min_size=2, max_size=40))
def test_bytes_that_are_not_utf8_have_a_length_in_characters(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bytes")
    written(folder / "train", data)
    split = load_corpus(folder).train
    assert bytes(split.tokens) == data
    assert split.n_characters == sum(not 0x80 <= byte < 0xC0 for byte in data)


# Memory


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_mapped_and_cannot_be_changed(tmp_path, kind):
    for split in splits_of(load_corpus(written(tmp_path / "text", "ab cd\n" * 100), kind)):
        assert isinstance(split.tokens, np.memmap)
        assert not split.tokens.flags.writeable


@only_on_linux
@pytest.mark.parametrize("kind", [*KINDS, "symbols"])
def test_memory_does_not_grow_with_the_text(tmp_path, kind):
    small = written(tmp_path / "small", LINE * 26_000)
    large = written(tmp_path / "large", LINE * 520_000)
    growth = memory_growth(f"load_corpus(path, {kind!r})", small, large)
    assert growth < 16_000  # KiB; the large text alone has 38,000


# The cache


@pytest.mark.parametrize("kind", ["characters", "words"])
def test_the_second_time_nothing_is_encoded(tmp_path, cache, kind, monkeypatch):
    path = written(tmp_path / "text", "ab cd\n" * 100)
    first = load_corpus(path, kind)
    assert len(entries(cache)) == 2  # tokens and vocabulary

    def encode_again(*arguments):
        raise AssertionError("encoded twice")

    monkeypatch.setattr(type(first.vocab), "encode_counted", encode_again)
    monkeypatch.setattr(type(first.vocab), "of", encode_again)
    second = load_corpus(path, kind)
    assert second.vocab == first.vocab
    assert second.fingerprint == first.fingerprint
    for one, other in zip(splits_of(first), splits_of(second), strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        assert one.n_unknown == other.n_unknown


def test_a_stale_cache_is_never_read(tmp_path, cache):
    """Contents of the same length with the same times, another cut, another vocabulary."""
    path = written(tmp_path / "text", "ab cd\n" * 100)
    load_corpus(path, "words")
    times = path.stat()
    written(path, "ab ce\n" * 100)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "ce" in load_corpus(path, "words").vocab.words
    moved = folder_of(tmp_path / "folder", train="ab ce\n" * 100)
    assert len(load_corpus(moved, "words").train) == 300
    assert load_corpus(path, "words", min_count=1000).vocab.size == 2
    assert load_corpus(path, vocab=WordVocabulary(("<unk>", "<eos>"))).train.n_unknown == 180
    assert len(entries(cache)) == 5 + 4  # of texts, and of vocabularies made from them


@pytest.mark.parametrize("damage", ["cut", "emptied", "footer", "lengthened", "folder"])
def test_a_damaged_cache_is_not_read(tmp_path, cache, damage):
    path = written(tmp_path / "text", "ab cd\n" * 100)
    fresh = load_corpus(path, "words")
    expected = [split.tokens.tolist() for split in splits_of(fresh)]
    (entry,) = (path for path in (cache / "corpora").iterdir() if not path.suffix)
    contents = entry.read_bytes()
    entry.unlink()  # and not changed in place: it is mapped
    if damage == "folder":
        entry.mkdir()
    else:
        entry.write_bytes(
            {
                "cut": contents[:-20],
                "emptied": b"",
                "footer": contents.replace(b'"train"', b'"brain"'),
                "lengthened": b"\0" + contents,
            }[damage]
        )
    again = load_corpus(path, "words")
    assert [split.tokens.tolist() for split in splits_of(again)] == expected


@pytest.mark.parametrize("contents", ["", "[]", "null", '{"kind": "words", "words": ["ab"]}'])
def test_a_damaged_vocabulary_in_the_cache_is_made_again(tmp_path, cache, contents):
    path = written(tmp_path / "text", "ab cd\n" * 100)
    fresh = load_corpus(path, "words")
    (entry,) = (cache / "corpora").glob("*.json")
    entry.write_text(contents)
    assert load_corpus(path, "words").vocab == fresh.vocab
    assert len(entry.read_text()) > len(contents)


def test_a_cache_folder_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    """A file in its place refuses even the superuser."""
    blocked = written(tmp_path / "blocked", "a file")
    monkeypatch.setenv("NPXL_CACHE_DIR", str(blocked))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    corpus = load_corpus(written(tmp_path / "text", "ab cd\n" * 100), "words")
    assert corpus.vocab.decode(corpus.train.tokens) == "ab cd\n" * 90
    assert isinstance(corpus.train.tokens, np.memmap)
    assert entries(scratch) == []
    assert blocked.read_text() == "a file"


@pytest.mark.parametrize("call", ["fsync", "mkdir"])
def test_a_full_disk_is_said_and_leaves_nothing_behind(tmp_path, cache, monkeypatch, call):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = written(tmp_path / "text", "ab cd\n" * 100)
    monkeypatch.setattr(os, call, full)
    with pytest.raises(NpxlError, match="no room left") as caught:
        load_corpus(path, "words")
    assert str(cache / "corpora") in str(caught.value)
    assert entries(cache) == []
    monkeypatch.undo()
    monkeypatch.setenv("NPXL_CACHE_DIR", str(cache))
    assert len(load_corpus(path, "words").train) == 270


def test_where_a_file_ends_within_a_line_is_a_part_of_what_was_encoded(tmp_path):
    """The same bytes: cut within the only line of a file, or each the end of a file."""
    words = " ".join(f"w{n}" for n in range(100))
    (tmp_path / "one.txt").write_text(words)
    one = load_corpus(tmp_path / "one.txt", "words")
    parts, start = tmp_path / "parts", 0
    parts.mkdir()
    for name in ("train", "valid", "test"):
        stop = start + one.split(name).n_bytes
        (parts / f"{name}.txt").write_text(words[start:stop])
        start = stop
    several = load_corpus(parts, "words")
    assert len(several.train) == len(one.train) + 1  # <eos>
    assert several.fingerprint != one.fingerprint


def test_the_fingerprint_changes_with_any_token(tmp_path):
    base = {"train": "ab cd\n", "valid": "ab ab\n", "test": "cd ab\n"}
    seen = set()
    for number, changed in enumerate(
        [
            base,
            base | {"train": "ab ce\n"},
            base | {"valid": "ab cd\n"},
            base | {"test": "cd cd\n"},
            {"train": base["train"], "valid": base["test"], "test": base["valid"]},
            {"train": base["train"], "valid": base["valid"]},
            {"train": base["train"], "test": base["valid"]},
        ]
    ):
        folder = folder_of(tmp_path / str(number), **changed)
        seen |= {load_corpus(folder, kind).fingerprint for kind in KINDS}
    seen |= {load_corpus(tmp_path / "0", "words", min_count=9).fingerprint}
    assert len(seen) == 7 * 3 + 1
    copy = folder_of(tmp_path / "elsewhere", **base)
    assert load_corpus(copy).fingerprint == load_corpus(tmp_path / "0").fingerprint


# Errors


def refused(match, *arguments, **options):
    with pytest.raises(NpxlError, match=match) as caught:
        load_corpus(*arguments, **options)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_a_name_that_is_nothing_lists_the_bundled_texts(tmp_path):
    for name in ("shakespear", tmp_path / "missing.txt", "a\0b"):
        assert "kjv" in refused("no file or folder", name)


def test_empty_texts_are_refused(tmp_path):
    refused("text is empty", written(tmp_path / "text", ""))
    refused("train.txt is empty", folder_of(tmp_path / "folder", train=""))


def test_what_is_no_text_is_refused(tmp_path):
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        refused("neither a file nor a folder", tmp_path / "pipe")


def test_folders_without_training_text_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    refused("holds no files", tmp_path / "empty")
    message = refused("no training text", folder_of(tmp_path / "mine", valid="ab", test="cd"))
    assert "test.txt, valid.txt" in message


def test_ambiguous_folders_are_refused(tmp_path):
    folder = folder_of(tmp_path / "two", train="ab", valid="ab", dev="ab")
    message = refused("could be the valid split", folder)
    assert "dev.txt" in message
    assert "valid.txt" in message
    written(tmp_path / "one" / "train-dev.txt", "ab")
    refused("more than one split", tmp_path / "one")


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() == 0, reason="the superuser may read everything"
)
def test_texts_that_may_not_be_read_are_refused(tmp_path):
    path = written(tmp_path / "text", "ab" * 100)
    path.chmod(0)
    refused("cannot be read", path)


def test_a_refusal_of_the_system_is_passed_on(tmp_path, monkeypatch):
    path = written(tmp_path / "text", "ab" * 100)

    def forbidden(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(sources, "open", forbidden, raising=False)
    assert "Permission denied" in refused("cannot be read", path)


@pytest.mark.parametrize("kind", ["characters", "words"])
def test_what_is_not_utf8_is_refused_with_its_place(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK", 64)
    good = "é word\n".encode() * 100
    for place, bad in ((8, b"\xff"), (496, b"\xc3("), (768, b"\xed\xa0\x80"), (792, b"\xe6\xbc")):
        path = written(tmp_path / "text", good[:place] + bad + good[place:])
        message = refused(f"byte {place} ", path, kind)
        assert str(path) in message
        assert "--vocabulary bytes" in message
    path = written(tmp_path / "text", good + b"\xe6\xbc")  # the file ends inside a character
    refused(f"byte {len(good)} ", path, kind)


def test_splits_too_short_to_predict_are_refused(tmp_path):
    message = refused("train split", folder_of(tmp_path / "mine", train="a"))
    assert "1 token in 1 bytes" in message
    assert "2 bytes are needed" in message
    message = refused("valid split", written(tmp_path / "short", "abcdefghijkl"))
    assert "cut 90/5/5 needs about 40 bytes" in message
    assert "short" in message
    refused("train split", written(tmp_path / "blank", "  "), "words")
    refused("train split", written(tmp_path / "oneword", "supercalifragilistic" * 9), "words")
    load_corpus(written(tmp_path / "enough", "abcd" * 10))


def test_options_are_checked():
    refused("vocabulary is 'letters', .* bytes, characters, words", "kjv", "letters")
    for wrong in (0, 1.5, "3", True):
        refused(f"min_count is {wrong!r}", "kjv", "words", min_count=wrong)
    refused("only words are counted", "kjv", min_count=2)
