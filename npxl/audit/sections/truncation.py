"""Where the gradient is cut off: at the memory, exactly there, and what that leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Check, Figure, Progress, Result, Section, Subject, worst
from npxl.audit.sections.left_out import LEFT_OUT, TRAINED, pictures
from npxl.audit.sections.two_segments import NOTHING, TwoSegments

Array = NDArray[Any]

TOLERANCE = 1e-11
_LEAST_DIFFERENCE = 1e-6


def _run_proof(subject: Subject, progress: Progress) -> Iterator[Result]:
    two = TwoSegments(subject)
    if two.n_seen == 0:
        yield Result.nothing("gradients", NOTHING)
        return
    draw = subject.draw("truncation/stop-gradient")
    for n, (name, gradient) in enumerate(two.truncated.items()):
        progress(n, len(two.truncated))
        direction = draw.standard_normal(gradient.shape)
        along = float((gradient * direction).sum())
        scale = max(float(np.abs(gradient * direction).sum()), 1e-12)
        frozen, recomputed = (
            abs(two.slope(name, ..., direction, memory) - along) / scale
            for memory in ("frozen", "recomputed")
        )
        expected = {"at_least": _LEAST_DIFFERENCE}
        if not two.model.writes_memory(name):
            expected = {"at_most": TOLERANCE}
        yield Result(
            name,
            {"frozen": Figure(frozen, TOLERANCE), "recomputed": Figure(recomputed, **expected)},
        )


def _run_memory(subject: Subject, progress: Progress) -> Iterator[Result]:
    two = TwoSegments(subject)
    if two.n_seen == 0:
        yield Result.nothing("memory", NOTHING)
        return
    model, part, draw = two.model, two.part, subject.draw("truncation/memory")
    scale = worst(np.abs(gradient).max() for gradient in two.truncated.values())
    for n, states in enumerate(part.memory.layers):
        slope = abs(two.memory_slope(n, draw.standard_normal(states.shape)))
        detail = "The loss does depend on it, along a random direction."
        yield Result.of(f"slope by layer {n}'s memory", slope / scale, None, detail,
                        at_least=_LEAST_DIFFERENCE)  # fmt: skip
    embedded = model.embed(part.inputs)
    fwd = model.forward(part.inputs, part.targets, part.memory, embedded=embedded)
    before = part.memory.states.copy()
    grads = model.backward(fwd, part.dnll)
    others = set(grads) - set(model.params)
    yield Result(
        "gradients that are no parameter's", {"figure": Figure.zero(len(others))},
        f"A backward pass returns {len(grads)} gradients, one for each tensor, none for memory.",
    )  # fmt: skip
    change = np.abs(part.memory.states - before).max()
    yield Result("memory changed by a backward pass", {"figure": Figure.zero(change)})
    made = fwd.memory
    yield Result(
        "arrays of memory that can be written",
        {"figure": Figure.zero(sum(map(_writable, made.layers)))},
    )
    shared = sum(
        np.shares_memory(states, array)
        for states in made.layers
        for array in (part.memory.states, embedded, *_arrays(fwd.stack))
    )
    detail = "With the memory before, with what was read, or with what the backward pass needs."
    yield Result("arrays of memory that share storage", {"figure": Figure.zero(shared)}, detail)


def _writable(states: Array) -> bool:
    """Whether NumPy lets anybody write."""
    if states.flags.writeable:
        return True
    try:
        states[...] = states
    except ValueError:
        return False
    return True


def _arrays(cache: Any) -> Iterator[Array]:
    """All arrays in a cache, at any depth."""
    if isinstance(cache, np.ndarray):
        yield cache
    elif isinstance(cache, list | tuple):
        for part in cache:
            yield from _arrays(part)


_SEPARATE = (
    r"g = \frac{\partial L(\theta, m)}{\partial \theta}\bigg|_{m = m(\theta)} \qquad "
    r"g_\infty = \frac{d L(\theta, m(\theta))}{d \theta} = g + "
    r"\frac{\partial L}{\partial m} \frac{\partial m}{\partial \theta}"
)

TRUNCATION = Section(
    name="truncation",
    title="Truncation: where the gradient stops",
    proves="The memory $m$ is made by the same parameters $\\theta$, and held constant: the "
    "gradient $g$ that npxl returns is the partial derivative, and what would come through the "
    "memory is left out of it. That is measured on two segments, without dropout and with nothing "
    "read twice, through the reference, by complex steps.\n\n"
    "How much is left out depends on the parameters. Those of an audit are large and random, so "
    "that no gradient is lost to rounding: more goes through the memory there than in a trained "
    "model.",
    checks=(
        Check(
            "stop-gradient",
            "With the memory frozen, the derivative along a random direction of a tensor is that "
            "of the gradient; with the memory computed anew by the moved parameters it is another "
            "one if the tensor has a part in the memory, and the same if it has none.",
            _SEPARATE,
            _run_proof,
        ),
        Check(
            "memory",
            "The memory matters to the loss, and yet there is no gradient for it, and nothing that "
            "could write into it.",
            r"\frac{\partial L}{\partial m} \ne 0",
            _run_memory,
        ),
        LEFT_OUT,
        TRAINED,
    ),
    pictures=pictures,
)
