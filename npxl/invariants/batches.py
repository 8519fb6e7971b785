"""Streams side by side: none of them notices the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.comparing import (
    differences,
    equal_scores,
    hint_of_rounding,
    require_scores_that_vary,
    require_tokens_to_change,
    resolution,
    worst,
)
from npxl.invariants.findings import Case, Finding, Inapplicable, InvariantBroken, check
from npxl.invariants.protocol import Implementation, Selects, declared
from npxl.invariants.reading import inputs_of, read, scores_of, segments, stretched

Array = NDArray[Any]


@check()
def check_batch_equivariance(implementation: Implementation, case: Case) -> Finding:
    """A batch is its streams side by side, in any order, each with its own memory.

    Streams in another order have their scores in that order; a stream alone has the scores that it
    has in a batch; and other words in one stream change not a bit in the others.

    Broken by batch and time taken for each other in a reshape, statistics over the batch, memory
    of another stream, and broadcasting from one stream to all.
    """
    require_tokens_to_change(implementation, case)
    batch_size = max(2, case.batch_size)
    text = case.text(implementation, batch_size)[:, :-1]
    row = case.row % batch_size
    together, _ = read(implementation, text, case.lengths)
    require_scores_that_vary(implementation, together)

    other = text.copy()
    other[row] = (other[row] + 1) % implementation.vocab_size
    changed = differences(read(implementation, other, case.lengths)[0], together)
    changed[row] = 0
    largest, where = worst(changed)
    if largest > resolution(implementation):
        raise InvariantBroken(
            expected=f"no bit of another stream's scores to change with the words of stream {row}",
            found=f"one that is off by {largest:.3g} nats",
            where=where,
            usually=hint_of_rounding(
                implementation,
                largest,
                "batch and time taken for each other in a reshape, or one stream's memory read by "
                "all.",
            ),
        )
    order = case.rng(4).permutation(batch_size)
    reordered, _ = read(implementation, text[order], case.lengths)
    alone, _ = read(implementation, text[[row]], case.lengths)
    return equal_scores(
        implementation,
        np.concatenate([reordered, alone]),
        np.concatenate([together[order], together[[row]]]),
        expected=f"streams in the order {order.tolist()}, then stream {row} alone, to be scored as "
        "side by side",
        usually="statistics or noise that depend on a stream's place in the batch.",
    )


@check("select")
def check_select(implementation: Selects, case: Case) -> Finding:
    """Streams can be reordered, dropped and doubled between segments, memory and all.

    Broken by memory that stays in the old order, by an axis that is not the streams', and by a
    selection that changes the state it was made from.
    """
    batch_size = max(2, case.batch_size)
    lengths = [*case.lengths, 2]
    text = case.text(implementation, batch_size)
    text = np.concatenate([text, text[:, :1]], axis=1)  # [B, N + 2]
    rows = case.rng(5).integers(batch_size, size=1 + case.position % 4).tolist()
    *before, (start, stop) = segments(lengths)
    _, state = read(implementation, text[:, :start], [j - i for i, j in before])
    inputs = inputs_of(implementation, text, start, stop)
    chosen = implementation.select(state, rows)
    selected, _ = scores_of(implementation, inputs[rows], chosen)
    straight, _ = scores_of(implementation, inputs, state)
    require_scores_that_vary(implementation, straight)
    return equal_scores(
        implementation,
        selected,
        straight[rows],
        expected=f"streams {rows} to go on as they would have",
        usually="memory that stays in the old order, or another axis that is selected from.",
    )


@check()
def check_batch_size_mismatch(implementation: Implementation, case: Case) -> Finding:
    """A state of other streams than there are inputs is an error, not an answer.

    Of one stream for inputs of two, which NumPy and torch broadcast, and of B for B + 1.  As many
    streams are read first, and the state is gone on from, so that an error is one of its size.

    Broken by broadcasting: one stream's memory read by all, or by memory that is begun anew.
    """
    if implementation.mem_len == 0:
        raise Inapplicable("Without a memory, a state may fit any streams.")
    lengths = stretched(case.lengths, 1 + declared(implementation, "ext_len"))  # some are cached
    stop, pairs = sum(lengths), sorted({(1, 2), (case.batch_size, case.batch_size + 1)})
    shape = (pairs[-1][1], stop + 1)
    text = case.rng(0).integers(implementation.vocab_size, size=shape)
    for before, after in pairs:
        read(implementation, text[:after], [*lengths, 1])
        _, state = read(implementation, text[:before], lengths)
        inputs = inputs_of(implementation, text[:after], stop, stop + 1)
        implementation.log_probs(inputs[:before].copy(), state)
        try:
            scores, _ = implementation.log_probs(inputs, state)
        except Exception:  # whatever it is, it says that something is wrong
            continue
        raise InvariantBroken(
            expected=f"an error for inputs of {after} streams with a state of {before}",
            found=f"scores of shape {list(np.shape(scores))}",
            where=f"the segment after {stop} tokens",
            usually="broadcasting of one stream's memory to all; offer a way to select streams, "
            "and refuse what does not fit.",
        )
    return Finding(0.0, 0.0, "batches scored with the memory of others", len(pairs))
