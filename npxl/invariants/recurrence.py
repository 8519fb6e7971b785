"""Segments that cannot be noticed: where a text is cut, and where in a stream it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.comparing import (
    differences,
    equal_scores,
    require_distances,
    require_mem_len,
    require_scores_that_vary,
)
from npxl.invariants.dependence import reach
from npxl.invariants.findings import Case, Finding, Inapplicable, InvariantBroken, Vacuous, check
from npxl.invariants.protocol import (
    HasReference,
    Implementation,
    Resizes,
    capabilities,
    declared,
)
from npxl.invariants.reading import losses, read, segments, stretched

Array = NDArray[Any]


@check()
def check_segmentation_invariance(implementation: Implementation, case: Case) -> Finding:
    """Scores do not depend on where a text is cut into segments.

    Holds for distances without dropout where W ≤ M + 1 (docs/memory.md), and with any window for
    texts of up to M + 1 tokens, of which nothing is forgotten.

    Broken by memory that is cut wrongly, in another order, from other states than those that the
    layer reads, or never read; by distances that do not go on through memory; by a position that is
    encoded a second time when its states are cached; by a window that depends on the segment.
    """
    return _as_in_one_pass(implementation, case, _cut_without_loss(implementation, case.lengths))


@check()
def check_incremental(implementation: Implementation, case: Case) -> Finding:
    """Token by token gives what one pass gives: a prompt at once, then one token at a time.

    Segmentation invariance with segments of a single query, which generation lives on.

    Broken by code of its own for one token, by a dimension of one that is squeezed away, and by
    positions or masks that begin again with every call.
    """
    lengths = _cut_without_loss(implementation, case.lengths)
    prompt = 1 + case.position % min(3, sum(lengths))
    return _as_in_one_pass(implementation, case, [prompt] + [1] * (sum(lengths) - prompt))


@check()
def check_shift_covariance(implementation: Implementation, case: Case) -> Finding:
    """The same words later in a stream have the same scores: only distances count.

    The terms (b) and (d) of section 3.3 depend on i − j alone; what is out of reach differs.

    Broken by absolute positions, by positions counted from the beginning of a segment, a stream or
    memory, and by a state that grows with what has been read.
    """
    require_distances(implementation)
    exact = reach(implementation)
    if exact is None:
        raise Inapplicable(
            "check_shift_covariance needs a window W ≤ mem_len + 1: otherwise what was read before "
            "moves the scores."
        )
    lengths = [*stretched(case.lengths, exact), *case.lengths]
    rng, vocab_size = case.rng(2), implementation.vocab_size
    text = rng.integers(vocab_size, size=(case.batch_size, sum(lengths)))
    before = rng.integers(vocab_size, size=(case.batch_size, 1 + case.position))
    at_once, _ = read(implementation, text, lengths)
    later, _ = read(
        implementation, np.concatenate([before, text], axis=1), [before.shape[1], *lengths]
    )
    require_scores_that_vary(implementation, at_once)
    return equal_scores(
        implementation,
        later[:, -case.length :],
        at_once[:, -case.length :],
        expected=f"the same log-probabilities for words that come {before.shape[1]} tokens later",
        usually="a position that is counted from the beginning of the stream or of memory, in "
        "place of the distance between query and key.",
    )


@check("mem_len")
def check_longer_memory(implementation: Resizes, case: Case) -> Finding:
    """More memory than in training is legal, and changes nothing where the window is the limit.

    Distances that were never trained with are encoded like all others (section 3.3).  Where memory
    is the limit, scores are the same as far as nothing has been forgotten, and finite beyond.

    Broken by tables and buffers of the trained length, by distances counted from the oldest key,
    and by more memory that is not used.
    """
    require_distances(implementation)
    mem_len = require_mem_len(implementation)
    more = mem_len + 1 + case.position % 5
    longer = implementation.with_mem_len(more)
    lengths = stretched(case.lengths, more + 1)
    text = case.rng(0).integers(implementation.vocab_size, size=(case.batch_size, sum(lengths)))
    short, _ = read(implementation, text, lengths)
    long, _ = read(longer, text, lengths, may_be_nan=True)
    lost = np.isnan(long) | np.isinf(long) & np.isfinite(short)
    if longer.mem_len != more or lost.any():
        raise InvariantBroken(
            expected=f"finite scores with a memory of {more}",
            found=f"a memory of {longer.mem_len}, and {np.sum(lost)} that are not",
            where=f"segments of {lengths}",
            usually="a table or a buffer for the distances of training.",
        )
    if longer.window != implementation.window:
        raise Inapplicable(
            "check_longer_memory compares scores under one window, but with another memory this "
            f"one's becomes {longer.window} from {implementation.window}."
        )
    n_same = sum(lengths)
    if reach(implementation) is None:
        if declared(implementation, "initial_memory") != "empty":
            raise Inapplicable("With a longer memory, more zeros would be attended to.")
        n_same = max(stop for start, stop in segments(lengths) if start <= mem_len)
    require_scores_that_vary(implementation, short)
    beyond = differences(long[:, n_same:], short[:, n_same:])
    if beyond.size and not (beyond > implementation.tolerance).any():
        raise Vacuous("What the longer memory keeps moves no score.")
    return equal_scores(
        implementation,
        long[:, :n_same],
        short[:, :n_same],
        expected=f"log-probabilities with a memory of {more} as with {mem_len}",
        usually="distances counted from the oldest key, or a window that grows with the memory.",
    )


@check("reference")
def check_reference(implementation: HasReference, case: Case) -> Finding:
    """Scores are those of a trusted implementation with the same parameters, segment by segment.

    The one check that sees a fault which is the same everywhere and always: the other invariants
    hold for many functions, and only one of them is Transformer-XL.  Where both have dropout, its
    losses in training are compared too, under the same masks.

    Broken by any fault of the forward pass: a scale or a root left out, u and v exchanged, sines
    and cosines in another order, a term of the scores missing, a layer normalised elsewhere,
    dropout in another place.
    """
    trusted = implementation.reference()
    text = case.text(implementation)
    found, _ = read(implementation, text[:, :-1], case.lengths)
    expected, _ = read(trusted, text[:, :-1], case.lengths)
    require_scores_that_vary(implementation, expected)
    evaluated = equal_scores(
        implementation,
        found,
        expected,
        expected=f"the log-probabilities of {type(trusted).__name__}",
        usually="an equation that is written otherwise, or parameters that were exchanged.",
    )
    readers = implementation, trusted
    if not all({"losses", "dropout"} <= capabilities(each) for each in readers):
        return evaluated
    found, expected = (losses(each.train(case.seed), text, case.lengths) for each in readers)  # type: ignore[attr-defined]
    trained = equal_scores(
        implementation,
        found,
        expected,
        expected=f"the losses of {type(trusted).__name__} under the same masks of dropout",
        usually="dropout in another place, or of what is never dropped, such as what a layer keeps "
        "for its own next step.",
    )
    return replace(
        max(evaluated, trained, key=lambda finding: finding.figure),
        compared=evaluated.compared + trained.compared,
    )


def _as_in_one_pass(implementation: Implementation, case: Case, lengths: Sequence[int]) -> Finding:
    if len(lengths) < 2:
        raise Vacuous("A text in one segment is one pass.")
    text = case.text(implementation)[:, : sum(lengths)]
    pieces, _ = read(implementation, text, lengths)
    whole, _ = read(implementation, text, [sum(lengths)])
    require_scores_that_vary(implementation, whole)
    strangers = np.concatenate(
        [read(implementation, text[:, i:j], [j - i])[0] for i, j in segments(lengths)], axis=1
    )
    if not (differences(strangers, whole) > implementation.tolerance).any():
        raise Vacuous("What was read before makes no difference here.")
    return equal_scores(
        implementation,
        pieces,
        whole,
        expected=f"log-probabilities in segments of {list(lengths)} as in one pass",
        usually="a memory that is cut, ordered or read wrongly, distances that do not count on "
        "through memory, or a window that depends on the segment.",
    )


def _cut_without_loss(implementation: Implementation, lengths: Sequence[int]) -> list[int]:
    """The segments, up to where it would matter that they are several."""
    require_distances(implementation)
    if implementation.window == 1:
        raise Inapplicable("With a window of one key, no token reads another.")
    if reach(implementation) is not None or implementation.mem_len is None:
        return list(lengths)
    if declared(implementation, "initial_memory") != "empty" or implementation.mem_len == 0:
        raise Inapplicable(
            "Scores depend on the segmentation where the window is not limited to mem_len + 1 "
            "and zeros are attended to, or nothing is remembered."
        )
    longest = implementation.mem_len + 1
    return [min(stop, longest) - start for start, stop in segments(lengths) if start < longest]
