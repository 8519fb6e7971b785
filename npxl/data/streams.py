"""Streams: how a split is read in batches, each row continuing where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npxl.errors import NpxlError


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
        for name, minimum in (("batch_size", 1), ("tgt_len", 1), ("ext_len", 0)):
            value = getattr(self, name)
            if value < minimum:
                raise NpxlError(f"{name} is {value!r}, but it must be at least {minimum}.")

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
        if consumed < 0:
            raise NpxlError(f"consumed is {consumed}, but streams start at 0.")
        n_pairs = len(self.tokens) - 1
        starts = np.arange(self.batch_size) * n_pairs // self.batch_size  # [B]
        length = self.tgt_len if length is None else length
        return segment(self.tokens, starts, consumed, length, self.ext_len)


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


def require_text(tokens: npt.NDArray[Any]) -> None:
    """NpxlError unless there is something to read and to predict: [N] whole numbers, N ≥ 2."""
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or len(tokens) < 2:
        raise NpxlError(
            "A text is one row of at least 2 whole numbers, but the tokens are "
            f"{tokens.dtype} of shape {tokens.shape}."
        )
