"""Vocabularies: round trips, unknown symbols, streaming, and naive truth for the fast paths."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npxl.data import (
    ByteVocabulary,
    CharacterVocabulary,
    WordVocabulary,
    vocabulary_from_dict,
)
from npxl.errors import NpxlError

valid_text = st.text(st.characters(exclude_categories=["Cs"]))
alphabets = st.sets(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")).map(
    lambda characters: "".join(sorted(characters))
)
a_word = st.text(st.sampled_from("abcäß漢𝄞-.,"), min_size=1, max_size=4)
word_vocabularies = st.sets(a_word, max_size=12).map(
    lambda words: WordVocabulary(("<eos>", *sorted(words), "<unk>"))
)
vocabularies = st.one_of(
    st.just(ByteVocabulary()), alphabets.map(CharacterVocabulary), word_vocabularies
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


def test_words_are_ranked_by_count_and_then_alphabet():
    vocab = WordVocabulary.of(["b a a\nc ", "b\nd a\n"])
    assert vocab.words == ("<eos>", "a", "b", "c", "d", "<unk>")


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
    assert (np.diff(occurrences) <= 0).all()


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
    ],
)
def test_a_broken_description_is_refused(values):
    with pytest.raises(NpxlError, match=r"vocabulary|alphabet"):
        vocabulary_from_dict(values)
