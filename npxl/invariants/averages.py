"""Attention is an average: what that says of a text in which all tokens are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.comparing import (
    differences,
    equal_scores,
    require_distances,
    require_scores_that_vary,
    worst,
)
from npxl.invariants.dependence import reach
from npxl.invariants.findings import Case, Finding, Inapplicable, InvariantBroken, check
from npxl.invariants.protocol import Implementation, declared
from npxl.invariants.reading import read, stretched

Array = NDArray[Any]

_NO_AVERAGE = (
    "Or a layer that is meant to be something else than an average of values that depend on their "
    "symbols alone, as with values that depend on distances (Shaw et al. 2018, eq. 3): declare "
    "averages = False then."
)
"""What a right model may be that breaks this."""


@check()
def check_empty_start(implementation: Implementation, case: Case) -> Finding:
    """The first token of a text attends to itself alone, or to the zeros that are declared.

    Where all tokens are one symbol, all values are equal, and so is their average, whatever the
    weights: the first token is scored like the second, unless there is something else to attend to.

    Broken by a memory that begins as zeros (or as anything else) and is not hidden, and, where
    `initial_memory` is declared "zeros", by zeros that are not attended to.
    """
    scores, _ = _one_symbol(implementation, case)
    if not _attends_to_zeros(implementation):
        return equal_scores(
            implementation,
            scores[:, 1:2],
            scores[:, :1],
            expected="log-probabilities after the second token as after the first, which is the "
            "same symbol, since there is nothing else to attend to",
            usually="a memory that begins as zeros, of which keys and values are computed like "
            'those of any other states; declare initial_memory = "zeros" if that is meant. '
            + _NO_AVERAGE,
        )
    apart, where = worst(differences(scores[:, :1], scores[:, -1:]))
    if not apart > implementation.tolerance:
        raise InvariantBroken(
            expected='a first segment that attends to zeros, as initial_memory = "zeros" declares',
            found=f"a first token scored as after many of the same symbol, to {apart:.3g} nats",
            where=where,
            usually="a start that is empty after all.",
        )
    return Finding(0.0, 0.0, "starts that are not as declared", scores[:, 0].size)


@check()
def check_attention_averages(implementation: Implementation, case: Case) -> Finding:
    """Attention is an average: where every token is the same symbol, every score is the same.

    The weights of a softmax add up to one (section 3.3), so that equal values come out as they are.

    Broken by weights that do not add up to one: by a mask after the softmax, a softmax over the
    wrong axis or over cells that are no keys, or dropout in evaluation.
    """
    scores, settled = _one_symbol(implementation, case)
    return equal_scores(
        implementation,
        scores[:, settled + 1 :],
        scores[:, settled : settled + 1],
        expected="the same log-probabilities after every token of a text of one symbol",
        usually="attention weights that do not add up to one: a mask after the softmax, or a "
        "softmax over the wrong axis. " + _NO_AVERAGE,
    )


def _one_symbol(implementation: Implementation, case: Case) -> tuple[Array, int]:
    """Scores of texts of one symbol each, and after how many tokens zeros are forgotten."""
    require_distances(implementation)
    if not declared(implementation, "averages"):
        raise Inapplicable("It declares averages = False: its layers are not attention.")
    if implementation.window == 1:
        raise Inapplicable("With a window of one key there is nothing to average.")
    alphabet = np.arange(implementation.vocab_size)[None]
    require_scores_that_vary(implementation, read(implementation, alphabet, [alphabet.size])[0])
    settled = 0
    if _attends_to_zeros(implementation):
        kept = implementation.mem_len or 0
        longest = kept + max(case.lengths) + declared(implementation, "ext_len")
        exact = reach(implementation)
        settled = implementation.n_layer * longest if exact is None else exact
    lengths = stretched(case.lengths, settled + 2)
    symbols = case.rng(0).integers(implementation.vocab_size, size=(case.batch_size, 1))
    return read(implementation, np.repeat(symbols, sum(lengths), axis=1), lengths)[0], settled


def _attends_to_zeros(implementation: Implementation) -> bool:
    zeros = declared(implementation, "initial_memory") == "zeros"
    return zeros and bool(implementation.mem_len) and implementation.window != 1
