"""What is drawn at random, and what is not: evaluation, dropout, generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.comparing import (
    differences,
    equal_scores,
    require_scores_that_vary,
    worst,
)
from npxl.invariants.dependence import reach
from npxl.invariants.findings import Case, Finding, Inapplicable, InvariantBroken, Vacuous, check
from npxl.invariants.protocol import Generates, Implementation, Trains, declared, offering
from npxl.invariants.reading import losses_of, read, scores_of

Array = NDArray[Any]


@check()
def check_determinism(implementation: Implementation, case: Case) -> Finding:
    """Reading the same text twice gives the same scores, bit by bit: evaluation draws nothing.

    Broken by dropout in evaluation, by state that stays in the model from one text to the next, and
    by arrays that are read before they were written.
    """
    text = case.text(implementation)[:, :-1]
    first, _ = read(implementation, text, case.lengths)
    second, _ = read(implementation, text, case.lengths)
    require_scores_that_vary(implementation, first)
    largest, where = worst(differences(second, first))
    if largest > 0:
        raise InvariantBroken(
            expected="the same scores for the same text, bit by bit",
            found=f"one that is off by {largest:.3g} nats the second time",
            where=where,
            usually="dropout in evaluation, or something that the model remembers by itself.",
        )
    return Finding(0.0, 0.0, "scores that differ the second time", first.size)


@check("losses", "dropout")
def check_dropout_masks(implementation: Trains, case: Case) -> Finding:
    """Dropout's masks depend on their seed, and on the stream; none are drawn in evaluation.

    One seed draws the same masks every time; others draw others; two streams of the same words have
    different ones.  Where `masks_by_stream` is declared, a part of a batch has those that it has in
    the whole, so that results do not depend on how streams are shared among workers.

    Broken by a global generator, by a mask that is drawn once for all streams, by masks that depend
    on the place in a batch, and by dropout that is not switched on, or off.
    """
    batch_size = max(2, case.batch_size)
    text = np.repeat(case.text(implementation)[:1], batch_size, axis=0)
    inputs, targets = text[:, :-1], text[:, 1:]

    def losses(reader: Any, rows: slice = slice(None)) -> Array:
        start = reader.start(len(inputs[rows]))
        nll, _ = losses_of(reader, inputs[rows].copy(), targets[rows].copy(), start)
        return np.array(nll)

    def some(differ: Callable[[Array], Any]) -> bool:
        # At a low rate, most masks of a small model drop nothing.
        seeds = range(case.seed, case.seed + _SEEDS)
        return any(np.any(differ(losses(implementation.train(seed)))) for seed in seeds)

    evaluated, trained = losses(implementation), losses(implementation.train(case.seed))
    again = losses(implementation.train(case.seed))
    usually = "masks from a global generator, or a seed that is not used."
    for fine, expected, found in (
        (np.array_equal(trained, again), "the same losses for the same seed", "others"),
        (
            some(lambda drawn: drawn != evaluated),
            "other losses with dropout than without",
            "the same",
        ),
        (some(lambda drawn: drawn != trained), "other losses for another seed", "the same"),
        (
            some(lambda drawn: drawn[:1] != drawn[1:]),
            "other masks for another stream of the same words",
            "the same losses in every stream: one mask for all of them",
        ),
    ):
        if not fine:
            # In a few tokens, no mask may have had anything to drop.
            if found != "others" and case.length * batch_size < _ENOUGH_TO_DROP:
                raise Vacuous("So short a text may have nothing dropped.")
            seeds = f"seeds {case.seed} to {case.seed + _SEEDS - 1}"
            where = f"seed {case.seed}" if found == "others" else seeds
            raise InvariantBroken(expected, found, where, usually)
    compared = 4 * trained.size
    if not declared(implementation, "masks_by_stream"):
        return Finding(0.0, 0.0, "masks that are not as declared", compared)
    first = 1 + case.row % (batch_size - 1)
    part = losses(implementation.train(case.seed, first), slice(first, None))
    return equal_scores(
        implementation,
        part,
        trained[first:],
        expected=f"the losses of streams {first} to {batch_size - 1} in a batch of their own",
        usually="masks that are drawn for places in a batch, in place of streams.",
    )


@check("losses", "dropout")
def check_dropout_scale(implementation: Trains, case: Case) -> Finding:
    """What dropout keeps is scaled up by as much as it drops, so that averages stay as they are.

    Seen in the embeddings after dropout, as they are shown, or as the first layer's memory keeps
    them: each number is 0 or c times that of evaluation, and the part that is kept is 1/c
    (Srivastava et al. 2014, section 10).

    Broken by a scale that is left out or applied in the other direction, and by a rate that is
    taken for the part that is kept.
    """
    text = case.text(implementation)
    inputs, targets = text[:, :-1], text[:, 1:]

    def embeddings(reader: Any) -> Array:
        start = reader.start(len(inputs))
        if shown:
            return np.array(reader.embeddings(inputs.copy(), start))
        return np.array(reader.memory(reader.nll(inputs.copy(), targets.copy(), start)[1])[0])

    trained = implementation.train(case.seed)
    shown = offering(trained, "embeddings") is not None
    if not shown and (offering(trained, "memory") is None or implementation.mem_len == 0):
        raise Inapplicable("In training, neither embeddings nor a memory can be looked at.")
    evaluated = embeddings(implementation)
    told = np.abs(evaluated) > 1e-3 * np.abs(evaluated).max(initial=0)
    if not told.any():
        raise Vacuous("There are no embeddings to look at, or zeros.")
    n_seeds = max(_SEEDS_OF_A_NUMBER, -(-_ENOUGH_TO_COUNT // int(told.sum())))
    factors = np.array([
        embeddings(implementation.train(case.seed + n))[told] / evaluated[told]
        for n in range(n_seeds)
    ])  # fmt: skip
    _require_nothing_added(factors)
    kept = factors[factors != 0]
    if kept.size == factors.size:
        raise Inapplicable(f"Of {factors.size} numbers of its embeddings, none is dropped.")
    scale = float(np.median(kept)) if kept.size else 0.0
    spread = float(np.abs(kept - scale).max(initial=0))
    mean, deviation = scale * kept.size / factors.size, 0.0
    if scale > 1:
        deviation = float(np.sqrt((scale - 1) / factors.size))
    allowed = 6 * deviation
    if not (spread <= _SAME_FACTOR and abs(mean - 1) <= allowed):
        raise InvariantBroken(
            expected=f"numbers that are dropped or scaled up, by 1 on average, to {allowed:.2g}",
            found=f"{kept.size} of {factors.size} that are kept and scaled by {scale:.6g} ± "
            f"{spread:.2g}, by {mean:.4g} on average",
            where=f"what layer 0 reads, seeds {case.seed} to {case.seed + n_seeds - 1}",
            usually="a factor 1 / (1 − p) that is left out, or a rate of keeping taken for p.",
        )
    return Finding(abs(mean - 1), allowed, "how far the average factor is from 1", factors.size)


def _require_nothing_added(factors: Array) -> None:
    """Inapplicable where numbers, by seed their factors [S, n], are dropped and are not 0 then.

    Where something is added to what dropout leaves, a number has two values, and neither is 0.
    Where nothing is, those that are never dropped have one.
    """
    never = (factors != 0).all(axis=0)  # [n]
    added = never & (np.ptp(factors, axis=0) > _SAME_FACTOR)
    at_times = factors[:, ~never]
    kept = at_times[at_times != 0]
    if added.any() and (kept.size == 0 or np.ptp(kept) <= 2 * _SAME_FACTOR):
        raise Inapplicable(
            f"With {len(factors)} seeds, {added.sum()} of {added.size} numbers of its embeddings "
            "change and are never 0: something, such as an encoding of places, is added after "
            "dropout, and its scale does not show. To have it checked, let `embeddings` return "
            "what comes out of dropout, before anything is added."
        )


@check("generation")
def check_generation(implementation: Generates, case: Case) -> Finding:
    """Generation's log-probabilities are those of reading the text that it wrote.

    log p of each token of a continuation, held against one pass over prompt and continuation; and
    the same seed draws the same.  On texts of which nothing is forgotten, unless W ≤ M + 1.

    Broken by a prompt that is fed again beside its own memory, or from its second token on, by a
    token that is read twice or never, and by log-probabilities after temperature.
    """
    n_tokens = case.length
    if reach(implementation) is None or not declared(implementation, "encodes_distances"):
        if implementation.mem_len == 0:
            raise Inapplicable("Without a memory, what it generates depends on one token alone.")
        if declared(implementation, "initial_memory") == "zeros" and implementation.mem_len:
            raise Inapplicable("How many zeros a token sees depends on where the text is cut.")
        if implementation.mem_len is not None:
            n_tokens = min(n_tokens, implementation.mem_len + 1)
    n_prompt = 1 + case.position % n_tokens
    n_new = n_tokens + 1 - n_prompt
    prompt = case.text(implementation)[0, :n_prompt]
    tokens, found = implementation.generate(prompt.copy(), n_new, case.seed)
    again, _ = implementation.generate(prompt.copy(), n_new, case.seed)
    where = f"{n_new} tokens after a prompt of {n_prompt}, seed {case.seed}"
    if not np.array_equal(tokens, again):
        raise InvariantBroken(
            expected="the same tokens for the same seed",
            found=f"{np.asarray(tokens).tolist()} and {np.asarray(again).tolist()}",
            where=where,
            usually="a global generator of random numbers.",
        )
    if len(tokens) != n_new or not (
        0 <= np.min(tokens) <= np.max(tokens) < implementation.vocab_size
    ):
        raise InvariantBroken(
            expected=f"{n_new} of the tokens 0 to {implementation.vocab_size - 1}",
            found=f"{np.asarray(tokens).tolist()}",
            where=where,
            usually="a continuation that is returned together with its prompt.",
        )
    text = np.concatenate([prompt, tokens])[None]
    scores = _after_each(implementation, text[:, :-1], n_prompt)
    require_scores_that_vary(implementation, scores)
    of_targets = np.take_along_axis(scores, text[:, n_prompt:, None], 2)[..., 0]  # [1, n]
    return equal_scores(
        implementation,
        np.asarray(found)[None],
        of_targets,
        expected=f"log-probabilities of one pass over prompt and continuation ({where})",
        usually="a prompt that is fed again beside its own memory, a token that is read twice, or "
        "log-probabilities after temperature.",
    )


def _after_each(implementation: Implementation, text: Array, first: int) -> Array:
    """log p after each token of `text` [1, K] from number `first` − 1 on, [1, n, V].

    In one pass; with encodings of places, which may count from the segment's end, in one for each.
    """
    start = implementation.start(1)
    if declared(implementation, "encodes_distances"):
        return scores_of(implementation, text, start)[0][:, first - 1 :]
    stops = range(first, text.shape[1] + 1)
    passes = [scores_of(implementation, text[:, :stop].copy(), start)[0] for stop in stops]
    return np.concatenate([scores[:, -1:] for scores in passes], axis=1)


_ENOUGH_TO_DROP = 24
_ENOUGH_TO_COUNT = 1000
_SEEDS_OF_A_NUMBER = 4
_SAME_FACTOR = 1e-3
_SEEDS = 32
