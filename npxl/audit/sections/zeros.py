"""Exact zeros, to the last bit, where nothing may flow.

Each row says beside what leaks how much flows where something may: a zero among zeros proves
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Check, Figure, Progress, Result, Subject, worst
from npxl.audit.segments import Segment, segment
from npxl.config import ModelConfig
from npxl.kernels.cross_entropy import IGNORE
from npxl.layers.attention import attend_backward, attend_forward
from npxl.layers.dropout import MaskKey, dropout_forward
from npxl.layers.embedding import embedding_backward
from npxl.layers.lstm import LSTMCache
from npxl.memory import Memory
from npxl.models.ends import tables
from npxl.models.segment_model import SegmentModel

Array = NDArray[Any]

_LEAST_FLOW = 1e-6
_TGT_LEN = 4
_HUGE = 1e100
_N_QUERIES, _N_MEMORY = 37, 6  # more queries than a block of the kernel has


def _row(name: str, leak: float, flow: float, detail: str = "") -> Result:
    figures = {"leak": Figure.zero(leak), "flow": Figure(float(flow), at_least=_LEAST_FLOW)}
    return Result(name, figures, detail)


def _run(subject: Subject, progress: Progress) -> Iterator[Result]:
    yield from _keys(subject)
    model = subject.model()
    part = segment(subject, model, "structure/zeros", _TGT_LEN)
    yield from _beyond_the_window(subject, model)
    yield from _padding(model, part)
    yield _later_inputs(model, part)
    yield _other_streams(model, part)
    yield from _ignored(model, part)
    yield from _unused_rows(model, part)
    yield _dropped(subject)


def _keys(subject: Subject) -> Iterator[Result]:
    """Query by query: what it must not see has no gradient, and changes no bit of its output."""
    config, draw = subject.small, subject.draw("structure/zeros/keys")
    if not isinstance(config, ModelConfig):
        yield Result.nothing("keys that are masked", "There is no attention, and so no key.")
        return
    q, m, shape = _N_QUERIES, _N_MEMORY, (config.n_head, config.d_head)
    n_keys = m + q
    window = config.window(n_keys)
    query, d_attended = draw.standard_normal((2, 1, q, *shape))
    key, value = draw.standard_normal((2, 1, n_keys, *shape))
    relative, (u, v) = draw.standard_normal((n_keys, *shape)), draw.standard_normal((2, *shape))
    attended, cache = attend_forward(query, key, value, relative, u, v, window)
    leaks = dict.fromkeys(("keys", "distances"), 0.0)
    flows, changed = dict(leaks), 0.0
    for i in range(q):
        behind = m + i - np.arange(n_keys)  # each key's distance
        seen = (behind >= 0) & (behind < window)  # [K]
        distances = np.arange(n_keys) >= n_keys - min(window, m + i + 1)  # row c is that of K−1−c
        alone = np.zeros_like(d_attended)
        alone[:, i] = d_attended[:, i]
        _, d_key, d_value, d_relative = attend_backward(
            alone, cache, u, v, np.zeros_like(u), np.zeros_like(v)
        )
        for gradient in (d_key, d_value):
            leaks["keys"] = worst((leaks["keys"], _largest(gradient[:, ~seen])))
            flows["keys"] = worst((flows["keys"], _largest(gradient[:, seen])))
        leaks["distances"] = worst((leaks["distances"], _largest(d_relative[~distances])))
        flows["distances"] = worst((flows["distances"], _largest(d_relative[distances])))
        loud = [np.where(seen[:, None, None], x, x * _HUGE) for x in (key, value)]
        far = np.where(distances[:, None, None], relative, relative * _HUGE)
        again, _ = attend_forward(query, loud[0], loud[1], far, u, v, window)
        changed = worst((changed, _largest(again[:, i] - attended[:, i])))
    about = f"{q} queries one at a time, each sees up to {min(window, n_keys)} of {n_keys} keys."
    yield _row("keys that are masked", leaks["keys"], flows["keys"], f"Gradient; {about}")
    if window > 1:
        name = "distances that nobody has"
        yield _row(
            name, leaks["distances"], flows["distances"], "Gradient: the garbage of the shift."
        )
    yield _row(
        "masked keys and garbage cells times 1e100", changed, _largest(attended),
        "Change of the output of the query that does not see them.",
    )  # fmt: skip


def _beyond_the_window(subject: Subject, model: SegmentModel) -> Iterator[Result]:
    """Memory that no query sees: longer than the window, whatever the configuration keeps."""
    name, config = "memory beyond the window", model.config
    if config.attn_window is None:
        yield Result.nothing(name, "There is no window: all of the memory is seen.")
        return
    reach = config.attn_window - 1
    part = segment(subject, model, "structure/zeros/window", _TGT_LEN)
    draw = subject.draw("structure/zeros/memory")
    states = draw.standard_normal((config.n_layer, 2, reach + 3, config.d_model))
    further = states.copy()
    further[:, :, : states.shape[2] - reach] *= _HUGE
    nearer = states.copy()
    nearer[:, :, states.shape[2] - reach :] *= 1.5
    results = []
    for each in (states, further, nearer):
        fwd = model.forward(part.inputs, part.targets, Memory(each))
        results.append(np.append(fwd.nll.ravel(), model.backward(fwd, part.dnll).flat))
    detail = f"Change of losses and gradients when all but the last {reach} positions are changed"
    if reach == 0:
        yield Result(name, {"leak": Figure.zero(_largest(results[1] - results[0]))}, f"{detail}.")
        return
    flow = _largest(results[2] - results[0])
    detail += f", or, under flow, those {reach}."
    yield _row(name, _largest(results[1] - results[0]), flow, detail)


def _padding(model: SegmentModel, part: Segment) -> Iterator[Result]:
    """Rows and columns that fill up a recurrent layer's tiles."""
    fwd = model.forward(part.inputs, part.targets, part.memory)
    for n, cache in enumerate(fwd.stack.layers):
        if isinstance(cache, LSTMCache):
            _, n_streams, d = cache.cells.shape
            own = np.zeros(cache.gates.shape, bool)
            own[:, :n_streams, : 4 * d] = True
            leak = worst((_largest(cache.gates[~own]), _largest(cache.hidden[:, n_streams:])))
            detail = "Gates of no unit, and hidden states of no stream."
            yield _row(f"padding of layer {n}", leak, _largest(cache.gates[own]), detail)


def _later_inputs(model: SegmentModel, part: Segment) -> Result:
    """Causality, as a gradient: ∂nll_t / ∂(embedded inputs after t)."""
    leak = flow = 0.0
    first = part.inputs.shape[1] - part.targets.shape[1]
    fwd = model.forward(part.inputs, part.targets, part.memory)
    for t in range(part.targets.shape[1]):
        dnll = np.zeros_like(part.dnll)
        dnll[:, t] = part.dnll[:, t]
        gradient = model.input_gradient(fwd, dnll)
        leak = worst((leak, _largest(gradient[:, first + t + 1 :])))
        flow = worst((flow, _largest(gradient[:, : first + t + 1])))
    return _row("inputs after the scored one", leak, flow, "Gradient of one loss at a time.")


def _other_streams(model: SegmentModel, part: Segment) -> Result:
    dnll = part.dnll.copy()
    dnll[1:] = 0
    fwd = model.forward(part.inputs, part.targets, part.memory)
    gradient = model.input_gradient(fwd, dnll)
    detail = "Gradient with respect to the other streams' inputs."
    return _row("other streams", _largest(gradient[1:]), _largest(gradient[:1]), detail)


def _ignored(model: SegmentModel, part: Segment) -> Iterator[Result]:
    targets = part.targets.copy()
    targets[:, ::2] = IGNORE
    fwd = model.forward(part.inputs, targets, part.memory)
    loud = np.where(targets == IGNORE, _HUGE, part.dnll)
    quiet = model.backward(fwd, part.dnll).flat
    change = _largest(model.backward(fwd, loud).flat - quiet)
    detail = "Change of the gradient when the cotangents of targets to ignore are 1e100."
    yield _row("cotangents of ignored targets", change, _largest(quiet), detail)
    scored = targets != IGNORE
    detail = "Losses of targets to ignore, and of the others."
    yield _row(
        "losses of ignored targets", _largest(fwd.nll[~scored]), _largest(fwd.nll[scored]), detail
    )


def _unused_rows(model: SegmentModel, part: Segment) -> Iterator[Result]:
    """Of tables, with symbols 0 and 1 alone in the segment: by the embedding, and by both ends."""
    inputs, targets = part.inputs % 2, np.zeros_like(part.targets)
    fwd = model.forward(inputs, targets, part.memory)
    grads, read = model.backward(fwd, part.dnll), model.params.zeros_like()
    embedding_backward(
        model.input_gradient(fwd, part.dnll), inputs,
        model.embedding(model.params), model.embedding(read),
    )  # fmt: skip
    name = next(iter(sorted(tables(model.config))))  # of the symbols from 0 on
    yield _row(
        "rows of symbols that are not read", _largest(read[name][2:]), _largest(read[name][:2]),
        f"Gradient of {name} by the embedding alone, for {len(read[name]) - 2} symbols.",
    )  # fmt: skip
    touched = model.touched(fwd)
    for name in sorted(tables(model.config)):
        unused = np.ones(len(grads[name]), bool)
        for rows in touched[name]:
            unused[rows] = False
        if unused.any():
            leak, flow = _largest(grads[name][unused]), _largest(grads[name][~unused])
            figures = {"leak": Figure.zero(leak), "flow": Figure(flow)}
            detail = f"Gradient of {unused.sum()} of {len(unused)} rows, by both ends."
            yield Result(f"unused rows of {name}", figures, detail)


def _dropped(subject: Subject) -> Result:
    """Entries of the embedding that the mask drops."""
    model = subject.model(dropout=0.5, dropatt=0.5)
    part = segment(subject, model, "structure/zeros/dropped", _TGT_LEN)
    key = MaskKey(subject.seed)
    fwd = model.forward(part.inputs, part.targets, part.memory, key)
    ones = np.ones((*part.inputs.shape, model.config.d_model))
    kept = dropout_forward(ones, model.config.dropout, key.site("embedding"))[0] != 0
    gradient = model.input_gradient(fwd, part.dnll)
    detail = f"Gradient of {(~kept).sum()} of {kept.size} entries of the embedding."
    return _row("dropped entries", _largest(gradient[~kept]), _largest(gradient[kept]), detail)


def _largest(x: Array) -> float:
    """NaN if an entry is."""
    return float(np.abs(x).max(initial=0.0))


ZEROS = Check(
    name="zeros",
    proves="What must not matter does not, to the last bit: neither a masked key, nor a garbage "
    "cell of the shift, nor memory beyond the window, nor what fills up a tile, nor a later token, "
    "another stream, a target to ignore, a row of a table that no token uses, or a dropped entry.",
    equation=r"\frac{\partial L}{\partial x} = 0 \quad \text{exactly}",
    run=_run,
)
