"""Gradients: that they are right, and that they stop at the memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.comparing import differences, what_scales
from npxl.invariants.findings import Case, Finding, Inapplicable, InvariantBroken, Vacuous, check
from npxl.invariants.protocol import Gradients, LearnsWithDropout, State
from npxl.invariants.reading import inputs_of, losses_of, segments
from npxl.invariants.slopes import (
    TOLERANCE,
    direction,
    dtype_of,
    require_that_writing_matters,
    slope,
)

Array = NDArray[Any]

_SATURATED = 1e-3
"""Where all gradients are smaller, for a cotangent of 1, a model is sure of its text."""


class _Segment(NamedTuple):
    """The last segment of a text, the state before it, and a cotangent of its losses."""

    inputs: Array  # [B, E+T]
    targets: Array  # [B, T]
    state: State
    dnll: Array  # [B, T]

    def loss(self, implementation: Gradients, state: State = None) -> tuple[float, float]:
        """Σ dnll · nll and Σ |dnll · nll|, from this or another state; Vacuous if infinite."""
        state = self.state if state is None else state
        nll, _ = losses_of(implementation, self.inputs.copy(), self.targets.copy(), state)
        if np.isinf(nll).any():
            raise Vacuous("A target has no probability, so that its loss has no derivative.")
        terms = self.dnll * nll.astype(np.float64)
        return float(terms.sum()), float(np.abs(terms).sum())

    def gradients(self, implementation: Gradients, dnll: Array | None = None) -> dict[str, Array]:
        """A copy of the gradients, of another cotangent if given; for the parameters, all of them.

        Raises InvariantBroken where names and shapes are not those of the parameters.
        """
        dnll = self.dnll if dnll is None else dnll
        found = implementation.gradients(
            self.inputs.copy(), self.targets.copy(), self.state, dnll.copy()
        )
        parameters = implementation.parameters()
        shapes = {name: np.shape(each) for name, each in found.items()}
        expected = {name: each.shape for name, each in parameters.items()}
        if shapes != expected:
            raise InvariantBroken(
                expected=f"a gradient for each parameter, of its shape, and for nothing else: "
                f"{expected}",
                found=f"{shapes}",
                where="the gradients' names",
                usually="a gradient for the memory, which is a constant, or parameters that were "
                "left out.",
            )
        return {name: np.array(each) for name, each in found.items()}


@check("gradients")
def check_gradients(implementation: Gradients, case: Case) -> Finding:
    """The gradient of every tensor is that of the losses, for any cotangent.

    A segment with memory before it; each tensor moves along a direction of its own, and the losses
    with random weights, so that errors do not cancel.  Needs float64 to be sharp.

    Broken by any fault of a backward pass: a sign, a transposed matrix, a missing term of a softmax
    or a normalisation, one use of a tied tensor forgotten, keys and values of memory rows without
    a gradient for their weights.
    """
    return _gradients_are_slopes(
        implementation,
        _segment(implementation, case),
        case,
        usually="a backward pass with a wrong sign, a missing term, or one use of a tied tensor "
        "forgotten.",
    )


@check("gradients")
def check_repeated_tokens(implementation: Gradients, case: Case) -> Finding:
    """A symbol that occurs several times has the sum of its gradients.

    As check_gradients, on texts of two symbols at most.

    Broken by `dW[ids] += dY`, which adds only once for each symbol, and by counting that forgets
    that targets repeat, too.
    """
    symbols = case.rng(7).integers(implementation.vocab_size, size=2)
    text = symbols[case.rng(8).integers(2, size=(case.batch_size, case.length + 1))]
    return _gradients_are_slopes(
        implementation,
        _segment(implementation, case, text),
        case,
        usually="gradients of a symbol's occurrences that are not added up: dW[ids] += dY keeps "
        "one of them, np.add.at adds all. If check_gradients fails too, it is something else.",
    )


@check("gradients")
def check_gradient_linearity(implementation: Gradients, case: Case) -> Finding:
    """Gradients are linear in the cotangent, nothing is left of the last ones, and 0 gives 0.

    g(a + b) = g(a) + g(b), g(0) = 0 exactly, and the same call twice gives the same.

    Broken by gradients that are not set to zero before they are added to, or are returned as views
    of one buffer; by a mean where a sum is weighted; and by weights that are left out.
    """
    segment = _segment(implementation, case)
    a = segment.dnll
    b = case.rng(9).standard_normal(a.shape).astype(a.dtype)
    of_a, of_b, of_both, of_a_again, of_zero = (
        segment.gradients(implementation, dnll) for dnll in (a, b, a + b, a, np.zeros_like(a))
    )
    size = max(float(np.abs(g).max(initial=0)) for each in (of_a, of_b) for g in each.values())
    if size == 0:
        raise Vacuous("All gradients are zero.")
    if size < _SATURATED * float(np.abs([a, b]).max()):
        raise Vacuous("Of p − 1, with p nearly 1, rounding leaves little: all gradients are tiny.")
    largest, tolerance = 0.0, 100 * implementation.tolerance
    for name in of_a:
        for found, expected, what in (
            (of_zero[name], np.zeros_like(of_zero[name]), "no gradient without a cotangent"),
            (of_a_again[name], of_a[name], "the same gradient from the same call"),
            (of_both[name], of_a[name] + of_b[name], "the gradient of a sum to be their sum"),
        ):
            apart = float(differences(found, expected).max(initial=0)) / size
            largest = max(largest, apart)
            if not apart <= tolerance:
                raise InvariantBroken(
                    expected=f"{what}, to {tolerance:g} of the largest",
                    found=f"one that is off by {apart:.3g}",
                    where=f"tensor {name}",
                    usually="gradients that are added to those of the call before, or a mean over "
                    "targets in place of the weights that were given.",
                )
    n_numbers = 3 * sum(each.size for each in of_a.values())
    return Finding(largest, tolerance, "largest relative difference", n_numbers)


@check("gradients")
def check_stop_gradient(implementation: Gradients, case: Case) -> Finding:
    """The gradient is that of the losses with the memory held constant: SG of section 3.2.

    In three ways.  With the memory frozen, differences are what the gradient says.  With the memory
    computed anew by the moved parameters they are something else, which shows that the memory
    matters and was cut off.  And gradients have the names of parameters: none is for the memory.

    Broken by a memory that was not detached, and by one that is detached too much: the weights of
    keys and values do learn from memory rows.
    """
    if implementation.mem_len == 0 or implementation.window == 1:
        raise Inapplicable("Without a memory that is read, there is nothing to stop at.")
    text = case.text(implementation)
    lengths = case.lengths if len(case.lengths) > 1 else (*case.lengths, *case.lengths)
    text = np.concatenate([text] * 2, axis=1)[:, : sum(lengths) + 1]
    segment = _segment(implementation, case, text, lengths)
    found = segment.gradients(implementation)
    parameters = implementation.parameters()
    rng = case.rng(10)
    along = {name: direction(each, rng) for name, each in found.items()}
    size = np.sqrt(sum(float(np.sum(each**2)) for each in along.values()))
    along = {name: each / size for name, each in along.items()}
    value = sum(float(np.vdot(found[name], each)) for name, each in along.items())

    def recomputed() -> tuple[float, float]:
        return segment.loss(implementation, _state(implementation, text, lengths[:-1]))

    frozen = slope(lambda: segment.loss(implementation), parameters, along)
    through = slope(recomputed, parameters, along)
    doubt = 10 * (frozen.doubt + through.doubt)
    length = max(abs(frozen.value), _length(found))
    allowed = doubt + TOLERANCE[dtype_of(parameters)] * length
    if value != 0 and frozen.value == through.value == 0:
        require_that_writing_matters(lambda: segment.loss(implementation), parameters, found)
    if abs(through.value - frozen.value) <= 2 * doubt:
        raise Vacuous("The memory hardly depends on the parameters here: it would not tell.")
    off, off_through = abs(value - frozen.value), abs(value - through.value)
    if off_through < off and off_through <= allowed:
        raise InvariantBroken(
            expected=f"the derivative with the memory held constant, {frozen.value:.9g}",
            found=f"{value:.9g}, the derivative with the memory computed anew",
            where="a direction in all parameters",
            usually="a memory that was not detached: the gradient goes on into earlier segments.",
        )
    if not off <= min(allowed, off_through):
        raise InvariantBroken(
            expected=f"the derivative with the memory held constant, {frozen.value:.9g}",
            found=f"{value:.9g}; with the memory computed anew it is {through.value:.9g}",
            where="a direction in all parameters",
            usually="a gradient that is wrong elsewhere (see check_gradients), or that is cut too "
            "early: the weights of keys and values learn from memory rows too.",
        )
    return Finding(off / length, allowed / length, "error relative to the gradient", len(found))


@check("gradients", "dropout")
def check_dropout_gradients(implementation: LearnsWithDropout, case: Case) -> Finding:
    """With dropout, the gradient is that of the losses under the same masks.

    Broken by masks that are drawn anew for the backward pass, or not applied in it, and by a scale
    1 / (1 − p) that one of the passes forgets.
    """
    trained = implementation.train(case.seed)
    return _gradients_are_slopes(
        trained,
        _segment(trained, case),
        case,
        usually="masks that are drawn anew for the backward pass, or not applied in it, or a scale "
        "1 / (1 - p) that one pass forgets. If check_gradients fails too, it is something else.",
    )


def _gradients_are_slopes(
    implementation: Gradients, segment: _Segment, case: Case, usually: str
) -> Finding:
    found = segment.gradients(implementation)
    parameters = implementation.parameters()
    tolerance, loss = TOLERANCE[dtype_of(parameters)], partial(segment.loss, implementation)
    here = loss()
    rng, known, unknown = case.rng(11), [], []
    for name, gradient in found.items():
        along = direction(gradient, rng)
        value = float(np.vdot(gradient, along))
        measured = slope(loss, parameters, {name: along}, here)
        length = max(float(np.linalg.norm(gradient)), abs(measured.value))
        error, allowed = abs(value - measured.value), tolerance * length + 10 * measured.doubt
        if not error <= allowed:
            if measured.value == 0:
                require_that_writing_matters(loss, parameters, [name])
            factor = _common_factor(implementation, segment, found, case)
            all_of_them = "" if factor is None else f", and all are {factor:.6g} times as large"
            raise InvariantBroken(
                expected=f"a derivative of {measured.value:.9g}, known to {measured.doubt:.1g}",
                found=f"{value:.9g}{all_of_them}",
                where=f"tensor {name}, along a direction of length one",
                usually=usually
                if factor is None
                else f"{what_scales(factor, segment.dnll.shape)}, in gradients or in nll: one is "
                "not that of the other (check_reading_order looks at nll alone).",
            )
        if allowed < 0.1 * length:
            known.append((error / length, allowed / length))  # relative to the gradient
        elif measured.value != 0 or gradient.any():
            unknown.append(name)
    if not (known or unknown):
        raise Vacuous("No loss moves with any parameter.")
    if len(known) < len(unknown):
        raise Vacuous(
            f"Of {len(unknown)} of {len(found)} tensors the derivative is not known to a tenth of "
            "it: losses are flat, or near kinks, or parameters too small for their precision (draw "
            "them with a standard deviation of about 0.4, and in float64 if possible)."
        )
    error, allowed = max(known, key=lambda pair: pair[0] / pair[1])
    measured_in_words = "error relative to a tensor's gradient, the worst"
    return Finding(error, allowed, measured_in_words, len(known), unknown=tuple(unknown))


def _common_factor(
    implementation: Gradients, segment: _Segment, found: Mapping[str, Array], case: Case
) -> float | None:
    """By what all gradients are too large, if that is one number along two directions of each."""
    parameters, rng, factors = implementation.parameters(), case.rng(13), []
    for name, gradient in found.items():
        for along in (direction(gradient, rng), direction(gradient, rng)):
            measured = slope(lambda: segment.loss(implementation), parameters, {name: along})
            if 10 * measured.doubt < 0.1 * abs(measured.value):
                factor = float(np.vdot(gradient, along)) / measured.value
                factors.append((10 * measured.doubt * abs(factor / measured.value), factor))
    if len(factors) < 2:
        return None
    least, best = min(factors)
    if all(abs(each - best) <= least + doubt + 1e-4 * abs(best) for doubt, each in factors):
        return best
    return None


def _segment(
    implementation: Gradients,
    case: Case,
    text: Array | None = None,
    lengths: tuple[int, ...] | None = None,
) -> _Segment:
    """The last segment of a text, after those before it were read."""
    text = case.text(implementation) if text is None else text
    lengths = case.lengths if lengths is None else lengths
    stop = sum(lengths)
    start = stop - lengths[-1]
    dnll = case.rng(12).standard_normal((len(text), stop - start))
    return _Segment(
        inputs_of(implementation, text, start, stop),
        text[:, start + 1 : stop + 1],
        _state(implementation, text, lengths[:-1]),
        dnll.astype(dtype_of(implementation.parameters())),
    )


def _state(implementation: Gradients, text: Array, lengths: tuple[int, ...]) -> State:
    """The state after some segments, as training goes through them."""
    state = implementation.start(len(text))
    for start, stop in segments(lengths):
        inputs = inputs_of(implementation, text, start, stop)
        _, state = implementation.nll(inputs, text[:, start + 1 : stop + 1].copy(), state)
    return state


def _length(gradients: Mapping[str, Array]) -> float:
    return float(np.sqrt(sum(float(np.sum(each**2)) for each in gradients.values())))
