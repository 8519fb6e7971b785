"""Log-probabilities are those of a distribution, and losses are taken from them in order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.comparing import differences, equal_scores, what_scales, worst
from npxl.invariants.findings import Case, Finding, Inapplicable, InvariantBroken, Vacuous, check
from npxl.invariants.protocol import HasParameters, Implementation, Losses, declared, offering
from npxl.invariants.reading import inputs_of, losses, losses_of, read, scores_of, segments
from npxl.invariants.slopes import moved

Array = NDArray[Any]


@check()
def check_probabilities(implementation: Implementation, case: Case) -> Finding:
    """After every token, the probabilities of all symbols are real, not negative, and add up to 1.

    Broken by a softmax over the wrong axis, logits in place of log-probabilities, clusters of an
    adaptive softmax that are weighted by the wrong column or counted twice, and a query that sees
    nothing, whose scores are NaN.
    """
    text = case.text(implementation)[:, :-1]
    state = implementation.start(case.batch_size)
    largest, where, n_scores = 0.0, "", 0
    for start, stop in segments(case.lengths):
        inputs = inputs_of(implementation, text, start, stop)
        scores, state = scores_of(implementation, inputs, state)
        total = np.exp(scores.astype(np.float64)).sum(-1)
        off, place = worst(np.abs(total - 1))
        if off >= largest:
            largest, where = off, f"{place} of segment {start} to {stop}"
        n_scores += scores.size
    if largest > implementation.tolerance:
        raise InvariantBroken(
            expected=f"probabilities that add up to 1, to {implementation.tolerance:g}",
            found=f"a sum that is off by {largest:.3g}",
            where=where,
            usually="logits that were not normalised, or clusters of an adaptive softmax that are "
            "weighted by another cluster's column.",
        )
    return Finding(largest, implementation.tolerance, "largest |Σ p − 1|", n_scores)


@check("parameters")
def check_large_scores(implementation: HasParameters, case: Case) -> Finding:
    """Scores stay finite where they are large, and exp of a logit is no number any more.

    Parameters are multiplied until log-probabilities lie further apart than twice the logarithm of
    the smallest number there is: about 1,400 in float64 and 175 in float32.  Losses stay finite,
    too.  A symbol that never has any probability, as by a mask, goes on having none.

    Broken by a softmax that does not subtract the largest score, in evaluation or in the loss, by
    the logarithm of a softmax, and by masks whose numbers meet infinity.
    """
    text = case.text(implementation)
    parameters, trains = implementation.parameters(), offering(implementation, "losses")
    before, _ = read(implementation, text[:, :-1], case.lengths)
    possible = np.isfinite(before)
    if not possible.any():
        raise Vacuous("No symbol has any probability.")
    for factor in (10.0, 100.0, 1000.0, 10_000.0):
        growth = {name: (factor - 1) * each for name, each in parameters.items()}
        with moved(parameters, growth) as move, np.errstate(all="ignore"):
            move(1.0)
            scores, _ = read(implementation, text[:, :-1], case.lengths, may_be_nan=True)
            nll = None if trains is None else losses(trains, text, case.lengths, may_be_nan=True)
        _require_finite(scores, possible, "log-probabilities", factor)
        if nll is not None:
            of_targets = np.take_along_axis(possible, text[:, 1:, None], 2)[..., 0]  # [B, N]
            _require_finite(nll, of_targets, "losses", factor)
        if np.ptp(scores[possible]) > -2 * np.log(np.finfo(scores.dtype).tiny):
            return Finding(0.0, 0.0, "scores that are not finite", scores.size)
    if np.array_equal(scores, before):
        raise Vacuous(
            "Writing to parameters changed no score: parameters() gave copies, or nothing is "
            "computed from them."
        )
    raise Vacuous("Scores do not become large with the parameters.")


def _require_finite(found: Array, possible: Array, what: str, factor: float) -> None:
    """InvariantBroken where what was possible [B, N, ...] is no finite number any more."""
    lost = possible & ~np.isfinite(found) | np.isnan(found)
    if lost.any():
        _, place = worst(lost)
        raise InvariantBroken(
            expected=f"finite {what} when all parameters are {factor:g} times as large",
            found=f"{int(np.isnan(found).sum())} times NaN, {int(np.isinf(found[possible]).sum())} "
            "times infinity",
            where=place,
            usually="a softmax that does not subtract its largest score, or log of a softmax.",
        )


@check("losses")
def check_reading_order(implementation: Losses, case: Case) -> Finding:
    """Losses are −log p of the targets, position by position, as they are read.

    The two ways to ask the same: `nll` with targets, and `log_probs` gathered at them.

    Broken by losses in the order of the clusters of an adaptive softmax, targets that are shifted
    once more or not at all, and columns of clusters that differ between the two ways.
    """
    text = case.text(implementation)
    state = scores_state = implementation.start(case.batch_size)
    largest, compared, order = 0.0, 0, False
    for start, stop in segments(case.lengths):
        inputs, targets = (
            inputs_of(implementation, text, start, stop),
            text[:, start + 1 : stop + 1],
        )
        nll, state = losses_of(implementation, inputs.copy(), targets.copy(), state)
        scores, scores_state = scores_of(implementation, inputs.copy(), scores_state)
        scores = scores[:, -targets.shape[1] :]
        expected = -np.take_along_axis(scores, targets[..., None], 2)[..., 0]  # [B, T]
        order |= bool((differences(expected, expected.flat[0]) > implementation.tolerance).any())
        finding = equal_scores(
            implementation,
            nll,
            expected,
            expected=f"losses of segment {start} to {stop} that are −log p of their targets",
            usually=_unlike(nll, expected, implementation.tolerance),
        )
        largest, compared = max(largest, finding.figure), compared + nll.size
    if not order:
        raise Vacuous("All losses are the same, in any order.")
    return Finding(largest, implementation.tolerance, "largest difference in nats", compared)


@np.errstate(invalid="ignore")  # of infinite losses
def _unlike(nll: Array, expected: Array, tolerance: float) -> str:
    """What usually makes losses [B, T] of −log p [B, T]."""
    permuted = differences(np.sort(nll, axis=None), np.sort(expected, axis=None)).max()
    if permuted <= tolerance:
        return (
            "the right losses in another order: an adaptive softmax that returns them cluster by "
            "cluster."
        )
    factor = float(np.vdot(expected, nll) / max(float(np.vdot(expected, expected)), tolerance))
    if nll.size > 1 and float(differences(nll, factor * expected).max()) <= tolerance:
        return f"{what_scales(factor, nll.shape)}: each is {factor:.6g} times what it should be."
    return "targets that are shifted once more or not at all, or another state."


@check("losses")
def check_ignored_targets(implementation: Losses, case: Case) -> Finding:
    """A target to ignore has a loss of 0 and no gradient, and changes nothing else.

    Also where a whole stream is to be ignored, the first one too.

    Broken by an index that is looked up like any other, by losses that move into its place, by a
    target that is written into the caller's array, and by a mean over targets that do not count.
    """
    ignore = declared(implementation, "ignore_index")
    if ignore is None:
        raise Inapplicable("It declares no ignore_index.")
    text = case.text(implementation)
    inputs, targets = text[:, :-1], text[:, 1:]
    rng = case.rng(6)
    hidden = rng.random(targets.shape) < 0.5
    hidden[0] |= case.row % 2 == 0
    hidden[case.at] = True
    if hidden.all():
        raise Vacuous("Every target is ignored.")
    some = np.where(hidden, ignore, targets)
    given = some.copy()
    start = implementation.start(case.batch_size)
    nll, _ = losses_of(implementation, inputs.copy(), given, start)
    everything, _ = losses_of(implementation, inputs.copy(), targets.copy(), start)
    if not np.array_equal(given, some):
        raise InvariantBroken(
            expected="targets as they were given",
            found=f"{given.tolist()} in place of {some.tolist()}",
            where="the caller's array",
            usually="a workaround for a row without any target, written in place.",
        )
    finding = equal_scores(
        implementation,
        nll,
        np.where(hidden, 0, everything),
        expected="losses of 0 where targets are ignored, and no others elsewhere",
        usually="an index that is looked up like any other, or losses that close the gaps.",
    )
    learns = offering(implementation, "gradients")
    if learns is not None:
        of_parameters = np.result_type(*learns.parameters().values())
        dnll = rng.standard_normal(targets.shape).astype(of_parameters)
        with_ignored = learns.gradients(inputs, some, start, dnll)
        without = learns.gradients(inputs, targets, start, np.where(hidden, 0, dnll))
        scale = max(float(np.abs(g).max(initial=0)) for g in without.values())
        for name, expected in without.items():
            apart = float(differences(with_ignored[name], expected).max(initial=0))
            if apart > 100 * implementation.tolerance * max(scale, 1e-3):
                raise InvariantBroken(
                    expected="the gradient of the other targets' losses alone",
                    found=f"one that is off by {apart:.3g}",
                    where=f"tensor {name}",
                    usually="probabilities that are pushed down where nothing is pushed up.",
                )
    return finding
