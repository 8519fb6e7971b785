"""Streams against one naive reader a stream that walks round the circle of pairs."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl.data import Streams
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
