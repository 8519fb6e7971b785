"""Streams: how a split is read in batches, each row continuing where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from npxl.errors import NpxlError

_BLOCK = 1024
"""Sentences of a stream that are shuffled among themselves."""


@dataclass(frozen=True, eq=False)
class Streams:
    """B readers of one text that never stop and never skip.

    The N − 1 pairs (token, next token) of a text of N tokens form a circle.  Stream b starts at
    pair ⌊b (N − 1) / B⌋ and reads on for ever, so that every stream reads every pair in turn, none
    is dropped to make a rectangle, and no pair is made up where the circle closes.

    Parameters
    ----------
    tokens
        [N] whole numbers, N ≥ 2; may be memory-mapped, and only what a batch needs is read.
    batch_size
        Number of streams B.
    tgt_len
        Pairs of each stream in a batch, unless another number is asked for: the segment length T.
    ext_len
        Tokens E before each segment that are read again as context.

    Raises
    ------
    NpxlError
        When an argument is not as described.
    """

    tokens: npt.NDArray[np.integer[Any]]
    batch_size: int
    tgt_len: int
    ext_len: int = 0

    def __post_init__(self) -> None:
        require_text(self.tokens)
        _require_sizes(self)

    def batch(
        self, consumed: int, length: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The segment that follows after each stream has read `consumed` pairs.

        A pure function: the position in the streams is this one number.  The segment has `length`
        pairs, T when not given.

        Returns
        -------
        inputs
            [B, E' + T]: the E' = min(ext_len, consumed) tokens read last, then those to read now.
        targets
            [B, T]: the token that follows each of the last T inputs in the text.
        """
        _require_position(consumed)
        n_pairs = len(self.tokens) - 1
        starts = np.arange(self.batch_size) * n_pairs // self.batch_size  # [B]
        length = self.tgt_len if length is None else length
        return segment(self.tokens, starts, consumed, length, self.ext_len)


@dataclass(frozen=True, eq=False)
class ShuffledStreams:
    """B readers of sentences that have no order, which never stop and never skip one.

    Of S sentences, stream b has those from ⌊b S / B⌋ to ⌊(b + 1) S / B⌋ − 1.  It reads all of them
    in one order, then all of them in another, and so on: each token is a target once in a round,
    and the input of the next one.  What comes before the very first target is the last token of the
    stream's part, such as the end of a sentence.

    An order is drawn in two steps, so that no more than a block of `_BLOCK` sentences of a stream
    is held in memory: the order of the blocks, then that of the sentences in each.  It depends on
    the seed, the stream and the number of the round, and on nothing else.

    Parameters
    ----------
    tokens, batch_size, tgt_len, ext_len
        As for `Streams`.
    lengths
        [S] tokens of each sentence, N together; may be memory-mapped.
    seed
        Of the orders.

    Raises
    ------
    NpxlError
        When an argument is not as described, or there are fewer sentences than streams.
    """

    tokens: npt.NDArray[np.integer[Any]]
    batch_size: int
    tgt_len: int
    ext_len: int
    lengths: npt.NDArray[np.integer[Any]]
    seed: int = 0

    def __post_init__(self) -> None:
        require_text(self.tokens)
        _require_sizes(self)
        if len(self.lengths) < self.batch_size:
            raise NpxlError(
                f"batch_size is {self.batch_size}, but there are only {len(self.lengths)} "
                "sentences to share among as many streams: choose a smaller batch_size."
            )

    def batch(
        self, consumed: int, length: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The segment that follows after each stream has read `consumed` pairs, as of `Streams`."""
        _require_position(consumed)
        start = consumed - min(self.ext_len, consumed)
        stop = consumed + (self.tgt_len if length is None else length)
        rows = [part.read(start - 1, stop) for part in self._parts]
        tokens = np.array(rows, np.int64)  # [B, 1 + E' + T]
        return tokens[:, :-1], tokens[:, consumed - start + 1 :]

    @cached_property
    def _parts(self) -> list[_Part]:
        bounds = [i * len(self.lengths) // self.batch_size for i in range(self.batch_size + 1)]
        parts: list[_Part] = []
        first = 0
        for stream, (start, stop) in enumerate(pairwise(bounds)):
            parts.append(_Part(self.tokens, first, self.lengths[start:stop], (self.seed, stream)))
            first += parts[-1].n_tokens
        return parts


class _Part:
    """The sentences of one stream: those of `lengths` from the token `first` on.

    The rounds that it reads are one row without end, whose token 0 is the first of the first round.
    """

    def __init__(
        self,
        tokens: npt.NDArray[np.integer[Any]],
        first: int,
        lengths: npt.NDArray[np.integer[Any]],
        key: tuple[int, ...],
    ) -> None:
        self._tokens, self._lengths, self._key = tokens, lengths, key
        cuts = np.arange(0, len(lengths), _BLOCK)
        self._sizes = np.add.reduceat(lengths, cuts, dtype=np.int64)  # [blocks], in tokens
        self._starts = first + np.cumsum(self._sizes) - self._sizes  # [blocks]
        self._last = tokens[first + self.n_tokens - 1]
        self._block: tuple[int, int, npt.NDArray[Any]] = (-1, -1, tokens[:0])
        if self.n_tokens == 0:
            raise NpxlError("A stream has sentences without any token: choose fewer streams.")

    @property
    def n_tokens(self) -> int:
        """In one round."""
        return int(self._sizes.sum())

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Tokens start … stop − 1 of the row; token −1 is the last of the part."""
        pieces = [np.array([self._last])] if start < 0 else []
        position = max(start, 0)
        while position < stop:
            round_, place = divmod(position, self.n_tokens)
            order = _order(len(self._sizes), *self._key, round_)
            ends = np.cumsum(self._sizes[order])  # [blocks]
            rank = int(np.searchsorted(ends, place, side="right"))
            block = self._shuffled(round_, int(order[rank]))
            piece = block[place - int(ends[rank]) + len(block) :][: stop - position]
            pieces.append(piece)
            position += len(piece)
        return np.concatenate(pieces)

    def _shuffled(self, round_: int, block: int) -> npt.NDArray[Any]:
        """The tokens of a block in the order of a round, kept for the next call."""
        if self._block[:2] != (round_, block):
            lengths = self._lengths[block * _BLOCK : (block + 1) * _BLOCK].astype(np.int64)
            starts = self._starts[block] + np.cumsum(lengths) - lengths
            order = _order(len(lengths), *self._key, round_, 1 + block)
            spans = zip(starts[order].tolist(), lengths[order].tolist(), strict=True)
            sentences = [self._tokens[start : start + length] for start, length in spans]
            self._block = (round_, block, np.concatenate(sentences))
        return self._block[2]


def _order(n: int, *key: int) -> npt.NDArray[np.intp]:
    """The numbers 0 … n − 1 in an order that depends on the key alone, in every NumPy: [n]."""
    bits = np.random.PCG64(np.random.SeedSequence(key)).random_raw(n)
    return np.argsort(bits, kind="stable")


def segment(
    tokens: npt.NDArray[np.integer[Any]],
    starts: npt.NDArray[np.integer[Any]],
    consumed: int,
    length: int,
    ext_len: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The next `length` pairs of readers that began at the pairs `starts` [B].

    Each has read `consumed` pairs; the last E' = min(ext_len, consumed) of them it reads again.
    After the last pair of the text comes the first.

    Returns
    -------
    inputs
        [B, E' + length]
    targets
        [B, length]
    """
    n_pairs = len(tokens) - 1
    n_again = min(ext_len, consumed)
    offsets = np.arange(-n_again, length) + consumed % n_pairs  # [E' + T]
    pairs = (starts[:, None] + offsets) % n_pairs  # [B, E' + T]
    inputs = tokens[pairs].astype(np.int64)
    targets = tokens[pairs[:, n_again:] + 1].astype(np.int64)  # [B, T]
    return inputs, targets


def _require_sizes(streams: Streams | ShuffledStreams) -> None:
    for name, minimum in (("batch_size", 1), ("tgt_len", 1), ("ext_len", 0)):
        value = getattr(streams, name)
        if value < minimum:
            raise NpxlError(f"{name} is {value!r}, but it must be at least {minimum}.")


def _require_position(consumed: int) -> None:
    if consumed < 0:
        raise NpxlError(f"consumed is {consumed}, but streams start at 0.")


def require_text(tokens: npt.NDArray[Any]) -> None:
    """NpxlError unless there is something to read and to predict: [N] whole numbers, N ≥ 2."""
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or len(tokens) < 2:
        raise NpxlError(
            "A text is one row of at least 2 whole numbers, but the tokens are "
            f"{tokens.dtype} of shape {tokens.shape}."
        )
    if tokens[-1] < 0:  # the others are read, and then refused; this one is only predicted
        raise NpxlError(f"A text is symbols, counted from 0, but its last token is {tokens[-1]}.")
