"""Vocabularies: round trips, unknown symbols, streaming, and naive truth for the fast paths."""

import json
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from texts import WORDS, word_level

from npxl.data import (
    ByteVocabulary,
    CharacterVocabulary,
    SubwordVocabulary,
    SymbolVocabulary,
    WordVocabulary,
    vocabulary_from_dict,
)
from npxl.datasets import WordRule
from npxl.errors import NpxlError

valid_text = st.text(st.characters(exclude_categories=["Cs"]))
alphabets = st.sets(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")).map(
    lambda characters: "".join(sorted(characters))
)
a_word = st.text(st.sampled_from("abcäß漢𝄞-.,"), min_size=1, max_size=4)
word_vocabularies = st.sets(a_word, max_size=12).map(
    lambda words: WordVocabulary(("<eos>", *sorted(words), "<unk>"))
)
symbol_vocabularies = st.sets(st.integers(0, 255).filter(lambda byte: byte != 10), min_size=1).map(
    lambda symbols: SymbolVocabulary(bytes(sorted(symbols, reverse=True)))
)
vocabularies = st.one_of(
    st.just(ByteVocabulary()),
    alphabets.map(CharacterVocabulary),
    word_vocabularies,
    symbol_vocabularies,
)


@st.composite
def vocabularies_with_ids(draw, vocabularies=vocabularies):
    vocab = draw(vocabularies)
    return vocab, draw(st.lists(st.integers(0, vocab.size - 1), max_size=30))


@given(valid_text)
def test_bytes_round_trip(text):
    vocab = ByteVocabulary()
    ids = vocab.encode(text)
    assert bytes(ids.tolist()) == text.encode()
    assert vocab.decode(ids) == text
    assert vocab.unknown(text) == []


def test_bytes_of_a_command_line_that_is_not_utf8_are_kept():
    argument = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert bytes(ByteVocabulary().encode(argument).tolist()) == b"caf\xe9"


@given(alphabets, valid_text)
@example("a", "a\ufffdb")  # a known character that shares its symbol with the unknown ones
def test_characters_against_a_dictionary(alphabet, text):
    vocab = CharacterVocabulary(alphabet)
    ids = {"\ufffd": 0} | {character: i for i, character in enumerate(alphabet, 1)}
    encoded, n_unknown = vocab.encode_counted(text)
    assert encoded.tolist() == [ids.get(character, 0) for character in text]
    assert n_unknown == sum(character not in ids for character in text)
    assert vocab.unknown(text) == list(dict.fromkeys(c for c in text if c not in ids))
    assert vocab.decode(encoded) == "".join(c if c in ids else "\ufffd" for c in text)
    assert vocab.size == len(ids)


@given(st.lists(valid_text))
@example(["a\ufffd", "b"])
def test_characters_of_a_text_round_trip(texts):
    vocab = CharacterVocabulary.of(texts)
    text = "".join(texts)
    assert vocab.alphabet == "".join(sorted(set(text) - {"\ufffd"}))
    ids, n_unknown = vocab.encode_counted(text)
    assert n_unknown == 0
    assert vocab.decode(ids) == text


@pytest.mark.fault("HF #466", "HF #2000", "HF #4459")
@given(vocabularies_with_ids(word_vocabularies))
def test_any_words_survive_being_written(vocab_and_ids):
    vocab, ids = vocab_and_ids
    assert vocab.encode(vocab.decode(ids)).tolist() == ids


@given(
    word_vocabularies,
    st.lists(st.lists(a_word), min_size=1),
    st.lists(st.sampled_from([" ", "  ", "\t", "\r", "\u3000"]), min_size=1),
)
def test_words_against_lines_split_one_by_one(vocab, lines, spaces):
    """What the definition says, a line at a time: white space collapses, `<eos>` ends a line."""
    text = "\n".join(spaces[0] + spaces[-1].join(line) + spaces[0] for line in lines)
    expected = []
    for line in lines:
        expected += [word if word in vocab.words else "<unk>" for word in line] + ["<eos>"]
    expected.pop()  # the last line has no newline
    ids, n_unknown = vocab.encode_counted(text)
    assert [vocab.words[i] for i in ids] == expected
    assert n_unknown == sum(word not in vocab.words for line in lines for word in line)
    assert vocab.decode(ids) == "\n".join(
        " ".join(word if word in vocab.words else "<unk>" for word in line) for line in lines
    )
    unknown = (word for line in lines for word in line if word not in vocab.words)
    assert vocab.unknown(text) == list(dict.fromkeys(unknown))


def test_words_are_ranked_by_count_and_then_by_appearance():
    vocab = WordVocabulary.of(["b a a\nd ", "b\nc a\n"])
    assert vocab.words == ("<eos>", "a", "b", "d", "c", "<unk>")


@given(st.lists(st.sampled_from(["a", "b", "c", "d", "<unk>", "<eos>", "\n"])), st.integers(1, 4))
def test_rare_words_count_as_unknown(words, min_count):
    vocab = WordVocabulary.of([" ".join(words)], min_count)
    counts = Counter(words)
    counts["<eos>"] += counts.pop("\n", 0)
    kept = {w for w, count in counts.items() if count >= min_count} | {"<eos>", "<unk>"}
    assert set(vocab.words) == kept
    ids, n_unknown = vocab.encode_counted(" ".join(words))
    assert n_unknown == sum(count for word, count in counts.items() if word not in kept)
    # Ranks are by what the encoded text holds, <unk> included: what adaptive models rely on.
    occurrences = np.bincount(ids, minlength=vocab.size)
    assert (np.diff(occurrences[1:]) <= 0).all()
    assert vocab.words[0] == "<eos>"


@given(vocabularies_with_ids(), st.data())
def test_streaming_gives_the_text_of_the_whole(vocab_and_ids, data):
    vocab, ids = vocab_and_ids
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    decoder = vocab.decoder()
    pieces = [
        decoder.feed(ids[start:stop])
        for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True)
    ]
    assert "".join(pieces) + decoder.finish() == vocab.decode(ids)


@given(st.binary(max_size=20))
def test_bytes_that_are_not_utf8_are_shown_as_replacement_characters(data):
    assert ByteVocabulary().decode(list(data)) == data.decode("utf-8", "replace")


def test_a_character_of_several_bytes_appears_when_it_is_complete():
    decoder = ByteVocabulary().decoder()
    assert [decoder.feed([byte]) for byte in "é漢".encode()] == ["", "é", "", "", "漢"]
    assert decoder.feed([0xE6]) + decoder.finish() == "\ufffd"


@given(vocabularies_with_ids())
def test_a_vocabulary_survives_json(vocab_and_ids):
    vocab, ids = vocab_and_ids
    again = vocabulary_from_dict(json.loads(json.dumps(vocab.to_dict())))
    assert again == vocab
    assert type(again) is type(vocab)
    assert again.decode(ids) == vocab.decode(ids)


@pytest.mark.parametrize(
    ("size", "dtype"), [(2, np.uint8), (256, np.uint8), (257, np.uint16), (65537, np.uint32)]
)
def test_ids_take_as_little_room_as_they_can(size, dtype):
    vocab = WordVocabulary(("<unk>", "<eos>", *map(str, range(size - 2))))
    last = vocab.encode(vocab.words[-1])
    assert last.dtype == vocab.dtype == dtype
    assert last.tolist() == [size - 1]


@pytest.mark.parametrize(
    "vocab",
    [
        ByteVocabulary(),
        CharacterVocabulary("ab"),
        WordVocabulary(("<unk>", "<eos>", "a")),
        SymbolVocabulary(b"ab"),
    ],
)
@pytest.mark.parametrize("ids", [[-1], [0, 256], [0.5], [[0]]])
def test_ids_that_mean_nothing_are_refused(vocab, ids):
    for use in (vocab.decode, vocab.decoder().feed):
        with pytest.raises(NpxlError, match="Token ids must be"):
            use(ids)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"kind": "syllables"},
        {"kind": "characters"},
        {"kind": "words", "words": [1]},
        {"kind": "words", "words": ["a"]},
        {"kind": "words", "words": ["<unk>", "<eos>", "a", "a"]},
        {"kind": "characters", "alphabet": "aa"},
        {"kind": "characters", "alphabet": "a\ufffd"},
        {"kind": "words", "words": ["<S>", "<UNK>"], "rule": {"end": "<S>", "unknown": 3}},
        {"kind": "words", "words": ["<S>", "<UNK>"], "rule": {"start": "<S>"}},
        {"kind": "words", "words": ["<unk>", "<eos>"], "rule": ["<eos>"]},
        {"kind": "words", "words": ["<unk>", "<eos>"], "rule": {"end": "<S>"}},
        {"kind": "symbols"},
        {"kind": "symbols", "symbols": []},
        {"kind": "symbols", "symbols": [10, 11]},
        {"kind": "symbols", "symbols": [65, 65]},
        {"kind": "symbols", "symbols": [256]},
        {"kind": "symbols", "symbols": [True]},
        {"kind": "subwords"},
        {"kind": "subwords", "tokenizer": {}},
    ],
)
def test_a_broken_description_is_refused(values):
    with pytest.raises(NpxlError, match=r"vocabulary|alphabet"):
        vocabulary_from_dict(values)


# Symbols


@given(st.binary(min_size=1), st.binary())
def test_symbols_against_a_dictionary(known, text):
    """Newlines are gone; an unknown byte is a space, or symbol 0 where there is none."""
    known = bytes(dict.fromkeys(known.replace(b"\n", b"a")))
    vocab = SymbolVocabulary(known)
    stand_in = known.index(b" ") if b" " in known else 0
    kept = [byte for byte in text if byte != ord("\n")]
    ids, n_unknown = vocab.encode_counted(text.decode("utf-8", "surrogateescape"))
    assert ids.tolist() == [known.index(b) if b in known else stand_in for b in kept]
    assert n_unknown == sum(byte not in known for byte in kept)
    assert vocab.size == len(known)


def test_symbols_are_ranked_by_count_and_then_by_appearance():
    assert SymbolVocabulary.of(["b\nca", "ab\n\nc", "d\n"]).symbols == b"bcad"


def test_symbols_decode_to_text_and_know_what_they_lack():
    vocab = SymbolVocabulary("aé ".encode())
    assert vocab.decode(vocab.encode("a\né a")) == "aé a"
    assert vocab.unknown("a\nébéb漢") == ["b", "漢"]
    assert vocab.decode(vocab.opening) == " "
    assert SymbolVocabulary(b"ab").opening.tolist() == [0]


# Words with another rule


def test_words_by_another_rule():
    rule = WordRule(end="<S>", unknown="<UNK>", lower_case=True, starts_with_end=True)
    vocab = WordVocabulary.of(["The cat\nthe DOG\n"], 1, rule)
    assert vocab.words == ("<S>", "the", "cat", "dog", "<UNK>")
    assert vocab.start.tolist() == [0]
    ids, n_unknown = vocab.encode_counted("The bird\nDog\n")
    assert ids.tolist() == [1, 4, 0, 3, 0]
    assert n_unknown == 1
    assert vocab.unknown("the Bird") == ["bird"]
    assert vocab.decode(ids) == "the <UNK>\ndog\n"
    again = vocabulary_from_dict(json.loads(json.dumps(vocab.to_dict())))
    assert again == vocab
    assert again != WordVocabulary((*vocab.words, "<eos>", "<unk>"))


# Subwords


@pytest.fixture(scope="module")
def bpe():
    """A byte-level tokenizer as GPT-2's, trained on a few lines."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["the cat sat on the mat\n"] * 9, trainer)
    return SubwordVocabulary.from_json(json.loads(tokenizer.to_str()))


@given(st.text(st.sampled_from("the cat\n é漢\t"), max_size=40))
def test_subwords_of_bytes_round_trip(bpe, text):
    ids, n_unknown = bpe.encode_counted(text)
    assert n_unknown == 0
    assert bpe.unknown(text) == []
    assert ids.dtype == bpe.dtype == np.uint16
    assert bpe.decode(ids) == text
    decoder = bpe.decoder()
    assert "".join(decoder.feed([i]) for i in ids) + decoder.finish() == text
    assert bpe.decode(bpe.encode(text + "\udce9")) == text + "?"
    # Line by line, however the lines come.
    lines = text.splitlines(keepends=True)
    each = [ids for ids, _ in bpe.encode_each(lines)]
    assert np.concatenate([*each, ids[:0]]).tolist() == ids.tolist()


@given(st.data())
def test_any_subwords_stream_to_the_text_of_the_whole(bpe, data):
    """Also ids that no text gives: torn characters, which are U+FFFD and do not pile up."""
    ids = data.draw(st.lists(st.integers(0, bpe.size - 1), max_size=30))
    decoder = bpe.decoder()
    pieces = [decoder.feed([i]) for i in ids]
    assert "".join(pieces) + decoder.finish() == bpe.decode(ids)
    assert len(decoder._ids) == 0


def test_subwords_ignore_truncation_padding_and_special_tokens():
    """What a tokenizer.json may ask for is not what a text consists of."""
    pytest.importorskip("tokenizers")
    vocab = SubwordVocabulary.from_json(word_level())
    ids, n_unknown = vocab.encode_counted("The cat sat on the mat .\nthe DOG sat\n<unk>\n")
    assert [WORDS[i] for i in ids] == (
        ["the", "cat", "sat", "on", "the", "mat", ".", "the", "<unk>", "sat", "<unk>"]
    )
    assert n_unknown == 1  # <unk> as a word is known
    assert vocab.unknown("the dog and the Dog") == ["dog", "and", "Dog"]
    assert vocab.decode(ids[:3]) == "the cat sat"
    assert len(vocab.opening) == 1
    assert vocab.first_token(" \n  the cat") == b" \n  the"
    assert vocab.first_token(" \n ") is None
    again = vocabulary_from_dict(json.loads(json.dumps(vocab.to_dict())))
    assert again == vocab
    for use in (vocab.decode, vocab.decoder().feed):
        with pytest.raises(NpxlError, match="Token ids must be from 0 to 8"):
            use([9])


def test_what_a_tokenizer_would_drop_is_counted():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    vocab = SubwordVocabulary.from_json(json.loads(tokenizer.to_str()))
    ids, n_unknown = vocab.encode_counted("ab xa\nyb z\n")
    assert ids.tolist() == [2, 0, 1]
    assert n_unknown == 3
    assert vocab.unknown("xa xb y") == ["x", "y"]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "described by an object, but this is a list"),
        ("{}", "what the library tokenizers can read"),
        (json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}), "empty vocabulary"),
        (json.dumps(word_level(unk_token="<other>")), "has no unknown symbol"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(tmp_path, contents, message):
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    if contents is not None:
        path.write_text(contents)
    with pytest.raises(NpxlError, match=message) as caught:
        SubwordVocabulary.from_file(path)
    assert str(path) in str(caught.value)


def test_subwords_without_the_library_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(NpxlError, match=r"pip install 'npxl\[tokenizers\]'"):
        SubwordVocabulary.from_json(word_level())
