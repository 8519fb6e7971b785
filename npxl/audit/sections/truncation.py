"""Where the gradient is cut off: at the memory, exactly there, and what that leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl import reference
from npxl.audit.frame import Check, Figure, Progress, Result, Rows, Section, Subject
from npxl.audit.segments import segment
from npxl.config import ModelConfig
from npxl.models.transformer_xl import TransformerXL
from npxl.page.pictures import Picture
from npxl.params import Params

Array = NDArray[Any]

TOLERANCE = 1e-11
_LEAST_DIFFERENCE = 1e-6
_STEP = 1e-30
_TGT_LEN = 4
_NOTHING = "There is no memory that a query sees."


class _TwoSegments:
    """A loss of the second of two segments, as a function of parameters, with what is read first.

    In the paper's form: nothing is read twice, and the memory is empty to begin with.
    """

    def __init__(self, subject: Subject) -> None:
        self.model = subject.model(ext_len=0, initial_memory="empty", dropout=0.0, dropatt=0.0)
        self.config = self.model.config
        self.part = segment(
            subject, self.model, "truncation", _TGT_LEN, n_before=max(2, self.config.mem_len)
        )
        fwd = self.model.forward(self.part.inputs, self.part.targets, self.part.memory)
        self.truncated = self.model.backward(fwd, self.part.dnll)
        self.params = Params(self.model.params.shapes, self.model.params.flat.astype(complex))

    @property
    def n_seen(self) -> int:
        """Positions of the memory that the first query of the second segment sees."""
        return min(self.part.memory.length, self.config.window(self.part.memory.length + 1) - 1)

    def slope(self, name: str, index: Any, direction: Any, memory: str) -> float:
        """Along a direction of a tensor, by a complex step; with memory "frozen", "recomputed"."""
        tensor = self.params[name]
        real = tensor[index].copy()
        tensor[index] = real + 1j * _STEP * direction
        states: Sequence[Array] = self.part.memory.layers
        if memory == "recomputed":
            empty = [np.zeros_like(layer[:, :0]) for layer in states]
            nothing = np.zeros((len(self.part.before), 0), int)
            states = self._score(self.part.before, nothing, empty).memory
        slope = self._slope(states)
        tensor[index] = real
        return slope

    def memory_slope(self, layer: int, direction: Array) -> float:
        """Along a direction of one layer's memory."""
        states = [states.astype(complex) for states in self.part.memory.layers]
        states[layer] += 1j * _STEP * direction
        return self._slope(states)

    def _slope(self, states: Any) -> float:
        nll = self._score(self.part.inputs, self.part.targets, states).nll
        return float((nll.imag * self.part.dnll).sum() / _STEP)

    def _score(self, inputs: Array, targets: Array, states: Any) -> reference.Output:
        return reference.forward(self.params, self.config, inputs, targets, states)


def _writes_memory(name: str, config: ModelConfig) -> bool:
    """Whether a tensor has a part in what is cached: all but the last layer's and the output's."""
    parts = name.split(".")
    if parts[0] == "layers":
        return int(parts[1]) < config.n_layer - 1
    return parts[0] == "embedding" or (parts[0] == "attention" and config.n_layer > 1)


def _run_proof(subject: Subject, progress: Progress) -> Iterator[Result]:
    two = _TwoSegments(subject)
    if two.n_seen == 0:
        yield Result.nothing("gradients", _NOTHING)
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
        if not _writes_memory(name, two.config):
            expected = {"at_most": TOLERANCE}
        yield Result(
            name,
            {"frozen": Figure(frozen, TOLERANCE), "recomputed": Figure(recomputed, **expected)},
        )


def _run_memory(subject: Subject, progress: Progress) -> Iterator[Result]:
    two = _TwoSegments(subject)
    if two.n_seen == 0:
        yield Result.nothing("memory", _NOTHING)
        return
    model, part, draw = two.model, two.part, subject.draw("truncation/memory")
    scale = max(np.abs(gradient).max() for gradient in two.truncated.values())
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
        "gradients that are no parameter's", {"number": Figure.zero(len(others))},
        f"A backward pass returns {len(grads)} gradients, one for each tensor, none for memory.",
    )  # fmt: skip
    change = np.abs(part.memory.states - before).max()
    yield Result("memory changed by a backward pass", {"change": Figure.zero(change)})
    made = fwd.memory
    yield Result(
        "arrays of memory that can be written",
        {"number": Figure.zero(sum(map(_writable, made.layers)))},
    )
    shared = sum(
        np.shares_memory(states, array)
        for states in made.layers
        for array in (part.memory.states, embedded, *_arrays(fwd.stack))
    )
    detail = "With the memory before, with what was read, or with what the backward pass needs."
    yield Result("arrays of memory that share storage", {"number": Figure.zero(shared)}, detail)


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


def _run_left_out(subject: Subject, progress: Progress) -> Iterator[Result]:
    two = _TwoSegments(subject)
    if two.n_seen == 0:
        yield Result.nothing("gradients", _NOTHING)
        return
    whole = Params(two.truncated.shapes, dtype=np.float64)
    done = 0
    for name, gradient in whole.items():
        for index in np.ndindex(gradient.shape):
            if done % 20 == 0:
                progress(done, whole.flat.size)
            gradient[index] = two.slope(name, index, 1.0, "recomputed")
            done += 1
    yield _compared("all", two.truncated.flat, whole.flat)
    for name in whole:
        yield _compared(name, two.truncated[name], whole[name])
    yield _one_segment(two, whole)


def _compared(name: str, truncated: Array, whole: Array) -> Result:
    """What a reader can use: how much is missing, and how far the direction is off."""
    norm = float(np.linalg.norm(whole))
    cosine = float((truncated * whole).sum()) / (float(np.linalg.norm(truncated)) * norm)
    figures = {
        "left out": Figure(float(np.linalg.norm(whole - truncated)) / norm),
        "length": Figure(float(np.linalg.norm(truncated)) / norm),
        "cosine": Figure(cosine),
    }
    return Result(name, figures, data=(norm, cosine))


def _one_segment(two: _TwoSegments, whole: Params) -> Result:
    """Read as one segment, nothing is cut off: its backward pass has the untruncated gradient."""
    name, config, part = "both segments read as one", two.config, two.part
    if not config.encodes_distances:
        return Result.nothing(name, "Places in one segment would be others.")
    model: TransformerXL = two.model
    text = np.concatenate([part.before, part.inputs], axis=1)
    fwd = model.forward(text, part.targets, model.init_memory(len(text)))
    error = (
        np.abs(model.backward(fwd, part.dnll).flat - whole.flat).max() / np.abs(whole.flat).max()
    )
    detail = (
        "Where nothing is memory nothing is cut off: the backward pass over both segments as one "
        "has the untruncated gradient, which confirms it by hand."
    )
    return Result.of(name, error, TOLERANCE, detail)


def _pictures(rows: Rows) -> Iterable[Picture]:
    compared = [row for row in rows.get("left-out", ()) if "left out" in row.figures]
    if not compared:
        return
    names = [row.name for row in compared]
    values = [row.figures["left out"].value for row in compared]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        places = np.arange(len(names))[::-1]
        axes.barh(places, values, height=0.7)
        axes.set_yticks(places, names)
        axes.set_ylim(-0.7, len(names) - 0.3)
        axes.set_xlabel("part of the untruncated gradient that is left out")
        axes.grid(axis="x")

    worst = max(zip(values, names, strict=True))
    yield Picture(
        "What truncation leaves out, by tensor",
        r"$\lVert g_\infty - g \rVert / \lVert g_\infty \rVert$, of two segments. Tensors of the "
        "last layer and of the output have no part in the memory: nothing of theirs is left out.",
        f"A bar for each of {len(names)} tensors. Of all together {values[0]:.2g} is left out, "
        f"most of {worst[1]}, {worst[0]:.2g}.",
        draw,
        (7.0, 0.6 + 0.2 * len(names)),
    )


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
    "read twice, through `npxl.reference`, by complex steps.\n\n"
    "How much is left out depends on the parameters. Those of an audit are large and random, so "
    "that no gradient is lost to rounding: more goes through the memory there than in a trained "
    "model.",
    checks=(
        Check(
            "stop-gradient",
            "With the memory frozen, the derivative along a random direction of a tensor is that "
            "of the gradient; with the memory computed anew by the moved parameters it is another "
            "one if the tensor has a part in what is cached, and the same if it has none.",
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
        Check(
            "left-out",
            "The untruncated gradient $g_\\infty$, entry by entry, against $g$. `left out` is the "
            "norm of the difference, and `length` that of $g$, both as a part of the norm of "
            "$g_\\infty$; `cosine` is 1 where truncation does not turn the gradient at all.",
            r"\frac{\lVert g_\infty - g \rVert}{\lVert g_\infty \rVert}, \qquad "
            r"\frac{\lVert g \rVert}{\lVert g_\infty \rVert}, \qquad "
            r"\frac{\langle g, g_\infty \rangle}{\lVert g \rVert \lVert g_\infty \rVert}",
            _run_left_out,
        ),
    ),
    pictures=_pictures,
)
