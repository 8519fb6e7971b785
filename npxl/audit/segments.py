"""Segments to check: tokens of every cluster, after memory that was read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Subject
from npxl.memory import Memory
from npxl.models.segment_model import SegmentModel

Array = NDArray[Any]


@dataclass(frozen=True)
class Segment:
    """What a model reads, and a cotangent."""

    before: Array
    """[B, n] int: what the memory was made from; none without memory."""
    inputs: Array  # [B, E + T] int
    targets: Array  # [B, T] int
    memory: Memory
    dnll: Array  # [B, T]

    def stream(self, b: int) -> Segment:
        """One of the streams alone."""
        rows = slice(b, b + 1)
        return replace(
            self, before=self.before[rows], inputs=self.inputs[rows], targets=self.targets[rows],
            memory=self.memory.select(rows), dnll=self.dnll[rows],
        )  # fmt: skip


def segment(
    subject: Subject,
    model: SegmentModel,
    name: str,
    tgt_len: int,
    batch_size: int = 2,
    n_before: int | None = None,
) -> Segment:
    """A segment of `tgt_len` scored tokens after a memory of `n_before` others.

    The memory is full unless `n_before` says otherwise.  Tokens are drawn for the check `name`,
    from all clusters by turns; some are read twice, in one stream and in two.
    """
    config, draw = model.config, subject.draw(name)
    if n_before is None:
        n_before = config.segments_to_fill(1) + config.ext_len + 1

    def tokens(length: int) -> Array:
        n = batch_size * length
        orders = [draw.permutation(symbols) for symbols in config.clusters]
        by_turns = [s for turn in zip_longest(*orders) for s in turn if s is not None]
        n_repeats = (n >= 4) + (n >= 6 and length >= 3)
        once = draw.permutation(np.resize(by_turns, n - n_repeats))
        if n_repeats:  # twice in a row, and in the first stream and in the last
            once = np.concatenate([once[:n_repeats], once[1:], once[:1]])
        return once.reshape(batch_size, length)

    before, inputs, targets = map(tokens, (n_before, config.ext_len + tgt_len, tgt_len))
    memory = model.init_memory(batch_size)
    if n_before:
        _, memory = model.log_probs(before, memory)
    return Segment(before, inputs, targets, memory, draw.standard_normal(targets.shape))
