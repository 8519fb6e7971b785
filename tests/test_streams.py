"""Streams against naive readers: of a circle of pairs, and of sentences without order."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl.data import ShuffledStreams, Streams, streams
from npxl.errors import NpxlError


class NaiveReader:
    """Reads pairs one at a time, remembering every input that it has read."""

    def __init__(self, tokens, first_pair):
        self.pairs = list(itertools.pairwise(tokens))
        self.next_pair = first_pair
        self.read = []

    def segment(self, length, n_again):
        again = self.read[-n_again:] if n_again else []
        inputs, targets = [], []
        for _ in range(length):
            token, following = self.pairs[self.next_pair]
            inputs.append(token)
            targets.append(following)
            self.next_pair = (self.next_pair + 1) % len(self.pairs)
        self.read += inputs
        return again + inputs, targets


tokens_of_any_length = st.integers(2, 60).flatmap(
    lambda n: st.integers(0, 2**32 - 1).map(
        lambda seed: np.random.default_rng(seed).integers(0, 256, n).astype(np.uint8)
    )
)


@given(
    tokens=tokens_of_any_length,
    batch_size=st.integers(1, 7),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    ext_len=st.integers(0, 50),
)
def test_each_stream_reads_on_where_it_stopped(tokens, batch_size, lengths, ext_len):
    """Also when segments change length, are longer than the text, or E exceeds what was read."""
    n_pairs = len(tokens) - 1
    readers = [
        NaiveReader(tokens.tolist(), stream * n_pairs // batch_size) for stream in range(batch_size)
    ]
    consumed = 0
    streams = Streams(tokens, batch_size, lengths[0], ext_len)
    for length in lengths:
        inputs, targets = streams.batch(consumed, length if consumed else None)
        n_again = min(ext_len, consumed)
        assert inputs.shape == (batch_size, n_again + length)
        assert targets.shape == (batch_size, length)
        assert inputs.dtype == targets.dtype == np.int64
        for row, reader in enumerate(readers):
            expected_inputs, expected_targets = reader.segment(length, n_again)
            assert inputs[row].tolist() == expected_inputs
            assert targets[row].tolist() == expected_targets
        consumed += length


@given(n=st.integers(2, 80), batch_size=st.integers(1, 9), tgt_len=st.integers(1, 20))
def test_every_stream_meets_every_pair_once_a_round(n, batch_size, tgt_len):
    """Tokens are their own positions, so that a made-up pair would show."""
    streams = Streams(np.arange(n), batch_size, tgt_len)
    pairs = [[] for _ in range(batch_size)]
    for step in range(-(-(n - 1) // tgt_len)):
        inputs, targets = streams.batch(step * tgt_len)
        assert (targets == inputs + 1).all()
        for row in range(batch_size):
            pairs[row] += inputs[row].tolist()
    for row in range(batch_size):
        assert sorted(pairs[row][: n - 1]) == list(range(n - 1))


@given(
    n=st.integers(2, 80),
    batch_size=st.integers(1, 9),
    tgt_len=st.integers(1, 9),
    ext_len=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_order_of_calls_does_not_matter(n, batch_size, tgt_len, ext_len, seed):
    streams = Streams(np.arange(n), batch_size, tgt_len, ext_len)
    positions = np.random.default_rng(seed).permutation(12) * tgt_len
    shuffled = {int(p): streams.batch(int(p)) for p in positions}
    for position in sorted(shuffled):
        again = Streams(np.arange(n), batch_size, tgt_len, ext_len).batch(position)
        for one, other in zip(shuffled[position], again, strict=True):
            np.testing.assert_array_equal(one, other)


def test_streams_start_evenly_apart():
    inputs, _ = Streams(np.arange(101), batch_size=4, tgt_len=1).batch(0)
    assert inputs[:, 0].tolist() == [0, 25, 50, 75]


def test_a_position_beyond_any_text_is_still_exact():
    """A long run on a short text consumes more than 64 bits of careless products would hold."""
    n_pairs = 999
    consumed = 10**20 * n_pairs + 5
    inputs, _ = Streams(np.arange(n_pairs + 1), 2, 3).batch(consumed)
    assert inputs.tolist() == [[5, 6, 7], [504, 505, 506]]


def test_a_batch_reads_only_its_own_part_of_a_mapped_text(tmp_path):
    """A sparse file of 64 GiB: reading it, or an index array over it, would not fit in memory."""
    path = tmp_path / "huge"
    size = 1 << 36
    with open(path, "wb") as file:
        file.truncate(size)
        file.seek(size // 2 - 1)
        file.write(b"\x07\x08")
    tokens = np.memmap(path, np.uint8, "r")
    inputs, targets = Streams(tokens, batch_size=2, tgt_len=4).batch(0)
    assert type(inputs) is np.ndarray
    assert inputs.tolist() == [[0, 0, 0, 0], [7, 8, 0, 0]]
    assert targets.tolist() == [[0, 0, 0, 0], [8, 0, 0, 0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.arange(1), 1, 1), "at least 2 whole numbers"),
        ((np.zeros((3, 3), np.int64), 1, 1), r"shape \(3, 3\)"),
        ((np.zeros(9), 1, 1), "float64"),
        ((np.array([3, 4, -1]), 1, 1), "its last token is -1"),
        ((np.arange(9), 0, 1), "batch_size is 0"),
        ((np.arange(9), 1, 0), "tgt_len is 0"),
        ((np.arange(9), 1, 1, -1), "ext_len is -1"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(NpxlError, match=message):
        Streams(*arguments)


def test_nothing_was_read_before_the_start():
    with pytest.raises(NpxlError, match="consumed is -1"):
        Streams(np.arange(9), 1, 1).batch(-1)


# Sentences without order


def numbered(lengths):
    """Sentences whose tokens say which token of which sentence they are: ids are all different."""
    return np.arange(sum(lengths)), np.array(lengths, np.uint32)


sentence_lengths = st.lists(st.integers(1, 7), min_size=2, max_size=40)


@pytest.mark.fault("KY #81")
@given(
    lengths=sentence_lengths,
    batch_size=st.integers(1, 6),
    segments=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    ext_len=st.integers(0, 20),
    block=st.integers(1, 9),
    seed=st.integers(0, 2**40),
)
def test_sentences_are_read_whole_in_rounds(lengths, batch_size, segments, ext_len, block, seed):
    """Each stream reads each of its sentences once a round, one after the other, none cut.

    KY #81: what is read again as context is what was read before, from the first segment on.
    """
    tokens, lengths = numbered(lengths)
    batch_size = min(batch_size, len(lengths))
    sentences = np.split(tokens, np.cumsum(lengths)[:-1])
    shares = [i * len(lengths) // batch_size for i in range(batch_size + 1)]
    rows, before = [[] for _ in range(batch_size)], [None] * batch_size
    consumed = 0
    for length in segments:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams, "_BLOCK", block)
            reader = ShuffledStreams(tokens, batch_size, 5, ext_len, lengths, seed)
            inputs, targets = reader.batch(consumed, length)
        n_again = min(ext_len, consumed)
        assert inputs.shape == (batch_size, n_again + length)
        assert targets.shape == (batch_size, length)
        assert inputs.dtype == targets.dtype == np.int64
        for row in range(batch_size):
            own = sentences[shares[row] : shares[row + 1]]
            if consumed == 0:
                before[row] = own[-1][-1]
            rows[row] += targets[row].tolist()
            # Each input is the target before it, those that are read again among them.
            history = [before[row], *rows[row]]
            stop = consumed + length
            assert inputs[row].tolist() == history[consumed - n_again : stop]
        consumed += length
    for row in range(batch_size):
        own = {int(s[0]): s.tolist() for s in sentences[shares[row] : shares[row + 1]]}
        n_round = sum(map(len, own.values()))
        read = rows[row]
        for start in range(0, len(read), n_round):
            this_round = read[start : start + n_round]
            left, position = dict(own), 0
            while position < len(this_round):
                sentence = left.pop(this_round[position])  # KeyError: cut, or read twice
                part = this_round[position : position + len(sentence)]
                assert part == sentence[: len(part)]
                position += len(part)


def rounds(seed, n_rounds=3, batch_size=2):
    """The orders in which streams read 40 sentences of one token each: [B, rounds, n]."""
    tokens, lengths = numbered([1] * 40)
    n = 40 // batch_size
    reader = ShuffledStreams(tokens, batch_size, n * n_rounds, 0, lengths, seed)
    return reader.batch(0)[1].reshape(batch_size, n_rounds, n)


def test_orders_differ_by_round_and_seed_and_depend_on_nothing_else(monkeypatch):
    monkeypatch.setattr(streams, "_BLOCK", 8)
    orders = rounds(seed=0)
    assert (orders == rounds(seed=0)).all()
    others = [orders[0, 0], orders[0, 1], orders[0, 2], rounds(seed=1)[0, 0], np.arange(20)]
    assert len({tuple(order) for order in others}) == len(others)
    assert not (orders[0] == orders[1] - 20).all()  # streams do not go in step
    # A change of the generator would make resumed runs read what they have read already.
    expected = [18, 19, 16, 17, 11, 13, 14, 15, 9, 12, 8, 10, 6, 2, 4, 0, 5, 3, 7, 1]
    assert orders[0, 0].tolist() == expected


@given(position=st.integers(0, 500), seed=st.integers(0, 9))
def test_the_order_of_calls_does_not_matter_to_sentences(position, seed):
    lengths = np.random.default_rng(seed).integers(1, 9, 50)
    tokens = np.arange(lengths.sum())
    used = ShuffledStreams(tokens, 3, 5, 2, lengths, seed)
    for before in (400, 0, 77):
        used.batch(before)
    fresh = ShuffledStreams(tokens, 3, 5, 2, lengths, seed)
    for one, other in zip(used.batch(position), fresh.batch(position), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_batch_of_sentences_reads_only_its_own_part_of_a_mapped_text(tmp_path):
    """A sparse file of 64 GiB: reading it, or an index array over it, would not fit in memory."""
    path = tmp_path / "huge"
    size, length = 1 << 36, 1 << 14
    with open(path, "wb") as file:
        file.truncate(size)
    tokens = np.memmap(path, np.uint8, "r")
    lengths = np.full(size // length, length, np.uint32)
    inputs, targets = ShuffledStreams(tokens, 2, 4, 0, lengths).batch(9)
    assert inputs.tolist() == targets.tolist() == [[0] * 4] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.arange(9), 4, 1, 0, np.array([3, 3, 3])), "batch_size is 4.* only 3 sentences"),
        ((np.arange(9), 2, 0, 0, np.array([3, 3, 3])), "tgt_len is 0"),
        ((np.arange(9), 2, 1, -1, np.array([3, 3, 3])), "ext_len is -1"),
        ((np.zeros(9), 1, 1, 0, np.array([9])), "float64"),
    ],
)
def test_arguments_of_sentences_are_checked(arguments, message):
    with pytest.raises(NpxlError, match=message):
        ShuffledStreams(*arguments)


def test_no_sentence_was_read_before_the_start():
    with pytest.raises(NpxlError, match="consumed is -1"):
        ShuffledStreams(np.arange(9), 1, 1, 0, np.array([4, 5])).batch(-1)
