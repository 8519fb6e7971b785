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
        Pairs of each stream in a batch: the segment length T.
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
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "iu" or len(self.tokens) < 2:
            raise NpxlError(
                "Streams read one row of at least 2 whole numbers, but the tokens are "
                f"{self.tokens.dtype} of shape {self.tokens.shape}."
            )
        for name, minimum in (("batch_size", 1), ("tgt_len", 1), ("ext_len", 0)):
            value = getattr(self, name)
            if value < minimum:
                raise NpxlError(f"{name} is {value!r}, but it must be at least {minimum}.")

    def batch(
        self, consumed: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The segment that follows after each stream has read `consumed` pairs.

        A pure function: the position in the streams is this one number.

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
        n_again = min(self.ext_len, consumed)
        starts = np.arange(self.batch_size) * n_pairs // self.batch_size  # [B]
        offsets = np.arange(-n_again, self.tgt_len) + consumed % n_pairs  # [E' + T]
        pairs = (starts[:, None] + offsets) % n_pairs  # [B, E' + T]
        inputs = self.tokens[pairs].astype(np.int64)
        targets = self.tokens[pairs[:, n_again:] + 1].astype(np.int64)  # [B, T]
        return inputs, targets
