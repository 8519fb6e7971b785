"""Recurrence: segments and memory give what one long segment would; docs/audit.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Check, Figure, Progress, Result, Rows, Section, Subject, worst
from npxl.audit.invariants import cases, cut, row
from npxl.audit.reach import furthest, measured_reach, predicted_reach
from npxl.config import ModelConfig, with_options
from npxl.inference.evaluation import score, warm_up_segments
from npxl.invariants.adapters import NpxlModel
from npxl.invariants.averages import check_empty_start
from npxl.invariants.batches import check_batch_equivariance, check_select
from npxl.invariants.causality import check_causality
from npxl.invariants.randomness import check_generation
from npxl.invariants.reading import read, segments
from npxl.invariants.recurrence import (
    check_incremental,
    check_segmentation_invariance,
    check_shift_covariance,
)
from npxl.invariants.states import check_memory_is_constant, check_memory_update
from npxl.models.plain_reader import PlainReader
from npxl.models.segment_model import SegmentModel
from npxl.page.pictures import Picture

Array = NDArray[Any]

ROUNDING = 1e-12
"""Of log-probabilities of a few layers in float64 that are added up in another order."""
CLEARLY = 1e-6
"""What a difference that has to be there exceeds, far above rounding."""
_NO_ATTENTION = "There is no attention: all that was read is in the state."
_LENGTH = 24
_MOST_LAYERS = 3


def _windowed(subject: Subject, **changes: Any) -> SegmentModel:
    """A model whose window is as wide as its memory allows without a cut being noticed."""
    config = subject.small
    window = config.attn_window
    if config.mem_len is not None:
        window = min(window or config.mem_len + 1, config.mem_len + 1)
    return subject.model(**{"attn_window": window, "ext_len": 0, **changes})


def _read(model: SegmentModel, text: Array, lengths: Sequence[int]) -> Array:
    """log p [B, T, V] after every token of a text [B, T] that is read in segments."""
    return read(NpxlModel(model), text, lengths)[0]


def _text(model: SegmentModel, draw: np.random.Generator, batch_size: int = 2) -> Array:
    return draw.integers(0, model.config.vocab_size, (batch_size, _LENGTH))


def _apart(a: Array, b: Array) -> float:
    """The largest difference; NaN where there is one."""
    return float(np.abs(a - b).max(initial=0))


def _window(model: SegmentModel) -> str:
    if not model.config.attends:
        return ""
    return f"W = {model.config.attn_window}, M = {model.config.mem_len}"


def _segmentation(subject: Subject, progress: Progress) -> Iterable[Result]:
    model, draw = _windowed(subject), subject.draw("recurrence/segmentation")
    text, halves = _text(model, draw), [_LENGTH // 2, _LENGTH // 2]
    named, config = "however a text is cut", model.config
    if isinstance(config, ModelConfig) and not config.encodes_distances:
        yield Result.nothing(
            named,
            f"attn_type {config.attn_type} encodes places: what is remembered has the place "
            "that it had, so scores depend on the segmentation, and the next row says how much.",
        )
        yield Result.of(
            "places notice a cut",
            _apart(_read(model, text, halves), _read(model, text, [_LENGTH])),
            at_least=CLEARLY,
            detail=f"In nats, two segments against one, {_window(model)}: what the paper argues "
            "against.",
        )
        return
    examples = cases(draw, _LENGTH)
    check = check_segmentation_invariance
    yield row(named, check, NpxlModel(model), examples, _window(model))
    if config.mem_len is None:
        yield Result.nothing("with tokens that are read again", _NO_ATTENTION)
        yield Result.nothing("one key more notices a cut", _NO_ATTENTION)
        return
    again = _windowed(subject, ext_len=subject.small.ext_len or 2)
    told = f"{_window(again)}, ext_len {again.config.ext_len}"
    yield row("with tokens that are read again", check, NpxlModel(again), examples, told)
    wider = model.reconfigured(attn_window=config.mem_len + 2)
    yield Result.of(
        "one key more notices a cut",
        _apart(_read(wider, text, halves), _read(wider, text, [_LENGTH])),
        at_least=CLEARLY,
        detail=f"In nats, two segments against one, {_window(wider)}.",
    )


def _incremental(subject: Subject, progress: Progress) -> Iterable[Result]:
    draw, model = subject.draw("recurrence/incremental"), _windowed(subject)
    examples = cases(draw, _LENGTH)
    yield row("token by token", check_incremental, NpxlModel(model), examples, _window(model))
    yield row(
        "what generation says", check_generation, NpxlModel(model), examples[:3], _window(model)
    )


def _memory(subject: Subject, progress: Progress) -> Iterable[Result]:
    model = NpxlModel(subject.model())
    examples = cases(subject.draw("recurrence/memory"), _LENGTH)
    for name, check in (
        ("what is kept", check_memory_update),
        ("nothing writes into it", check_memory_is_constant),
        ("how it begins", check_empty_start),
    ):
        if "memory" in check.needs and model.memory is None:
            why = "It is a state of one size, and no cache of positions."
            yield Result.nothing(name, why)
        else:
            told = f"initial_memory {model.initial_memory}" if model.averages else ""
            yield row(name, check, model, examples, told)


def _reach(subject: Subject, progress: Progress) -> Iterable[Result]:
    if not subject.config.attends:
        why = "There is no window that layers could add up: the next check says what is reached."
        yield Result.nothing("layer 1", why)
        return
    model = _windowed(subject, n_layer=min(subject.config.n_layer, _MOST_LAYERS))
    yield from _reach_of(model, cut(subject.draw("recurrence/reach"), _LENGTH), subject)


def _reach_as_configured(subject: Subject, progress: Progress) -> Iterable[Result]:
    config = subject.small
    if config.reach_is_exact and config.attends:
        why = f"W = {config.attn_window} is at most M + 1, with M = {config.mem_len}: as above."
        yield Result.nothing("layer 1", why)
        return
    model = subject.model(n_layer=min(subject.config.n_layer, _MOST_LAYERS), ext_len=0)
    length = 2 + (config.mem_len or 0) // 2
    yield from _reach_of(model, [length] * (_LENGTH // length), subject)


def _reach_of(model: SegmentModel, lengths: Sequence[int], subject: Subject) -> Iterable[Result]:
    """A row for each layer: how many cells differ from what windows and memory let through."""
    config = model.config
    tokens = subject.draw("recurrence/reach/text").integers(0, config.vocab_size, sum(lengths))
    predicted = predicted_reach(model, lengths)
    measured = measured_reach(model, tokens, lengths)
    # Two hidden units that are normalised are ±1, and forget what they were computed from.
    may_miss = config.d_model <= 2
    for n, (found, expected) in enumerate(zip(measured, predicted, strict=True), 1):
        yield Result(
            f"layer {n}",
            {
                "reach": Figure(furthest(found)),
                "expected": Figure(furthest(expected)),
                "beyond": Figure(int((found & ~expected).sum()), 0, 0),
                "missing": Figure(int((expected & ~found).sum()), None if may_miss else 0),
            },
            "; ".join(filter(None, [_window(model), f"{expected.sum()} cells"]))
            + f", in segments {list(lengths)}.",
            (found, expected),
        )


def _causality(subject: Subject, progress: Progress) -> Iterable[Result]:
    examples = cases(subject.draw("recurrence/causality"), _LENGTH)
    yield row("as configured", check_causality, NpxlModel(subject.model()), examples)
    for name, model in {
        "without memory": subject.model(mem_len=0),
        "a window of one key": subject.model(attn_window=1),
    }.items():
        if model.config.attends:
            yield row(name, check_causality, NpxlModel(model), examples)
        else:
            yield Result.nothing(name, _NO_ATTENTION)


def _shift(subject: Subject, progress: Progress) -> Iterable[Result]:
    model, draw = _windowed(subject), subject.draw("recurrence/shift")
    examples, name = cases(draw, _LENGTH), "behind other tokens"
    yield row(name, check_shift_covariance, NpxlModel(model), examples, _window(model))
    if model.config.encodes_distances:
        return
    text, lengths = _text(model, draw), [_LENGTH // 3] * 3
    before, reach = text[:, :5], model.config.reach or 0
    here = _read(model, text, lengths)[:, reach:]
    there = _read(model, np.concatenate([before, text], axis=1), [*lengths, 5])[:, reach + 5 :]
    yield Result.of(
        "places notice a shift", _apart(here, there), at_least=CLEARLY,
        detail=f"In nats, behind 5 more tokens; after the first {reach} tokens, the reach.",
    )  # fmt: skip


def _clamp(subject: Subject, progress: Progress) -> Iterable[Result]:
    config, draw = subject.small, subject.draw("recurrence/clamp")
    if not isinstance(config, ModelConfig):
        yield Result.nothing("no key beyond C", "There are no distances.")
        return
    furthest = config.clamp_len or _CLAMP_LEN
    length = (furthest + 2) // 2
    options: dict[str, Any] = {"attn_window": None, "ext_len": 0, "initial_memory": "empty"}
    lengths = [length] * 4
    told = "" if config.clamp_len else f"The configuration clamps nothing: C = {furthest}. "
    for name, n_keys in (("no key beyond C", furthest + 1), ("one key beyond C", furthest + 2)):
        model = subject.model(**options, clamp_len=furthest, mem_len=n_keys - length)
        wider = _with_clamp_len(model, furthest + 3)
        text = draw.integers(0, model.config.vocab_size, (2, sum(lengths)))
        apart = _apart(_read(model, text, lengths), _read(wider, text, lengths))
        detail = (
            f"{told}In nats, clamp_len {furthest} against {furthest + 3}; K = {n_keys} keys at "
            f"most, the furthest at distance {n_keys - 1}."
        )
        if n_keys <= furthest + 1:
            yield Result.of(name, apart, at_most=0, detail=detail)
        else:
            yield Result.of(name, apart, at_least=CLEARLY, detail=detail)

    one_layer = subject.model(**options, n_layer=1, clamp_len=furthest)
    far = np.arange(furthest, furthest + 7) % one_layer.config.vocab_size
    near = draw.integers(0, one_layer.config.vocab_size, furthest)
    text = np.concatenate([far, near])[None]
    last = _read(one_layer, text, [text.size])[:, -1]
    turned = np.concatenate([far[::-1], near])[None]
    yield Result.of(
        "what is far is a set",
        _apart(_read(one_layer, turned, [text.size])[:, -1], last),
        at_most=ROUNDING,
        detail=f"{told}One layer's last prediction, when the {far.size} tokens from distance C on "
        "are read in reverse.",
    )


_CLAMP_LEN = 4


def _with_clamp_len(model: SegmentModel, clamp_len: int) -> SegmentModel:
    """The same parameters with a longer clamp; learned tables get rows for what is further."""
    longer = type(model)(with_options(model.config, clamp_len=clamp_len), 1, model.dtype)
    for name, view in model.params.items():
        rows = longer.params[name]
        rows[len(rows) - len(view) :] = view
    return longer


def _streams(subject: Subject, progress: Progress) -> Iterable[Result]:
    model = NpxlModel(subject.model())
    examples = cases(subject.draw("recurrence/streams"), _LENGTH, batch_size=3)
    yield row("side by side, in any order", check_batch_equivariance, model, examples)
    yield row("some go on", check_select, model, examples)


def _reader(subject: Subject, progress: Progress) -> Iterable[Result]:
    model, draw = subject.model(), subject.draw("recurrence/reader")
    config, text = model.config, _text(model, draw, 3)
    told = "It reads by forward. " if isinstance(model.reader(1), PlainReader) else ""
    apart = 0.0
    for lengths in ([1] * _LENGTH, [_LENGTH], *(cut(draw, _LENGTH) for _ in range(4))):
        for rows in (slice(0, 1), slice(0, 3)):  # one token of one stream has its own kernels
            reader, memory = model.reader(rows.stop), model.init_memory(rows.stop)
            for start, stop in segments(lengths):
                segment = text[rows, start:stop]
                log_p, memory = model.log_probs(segment, memory)
                apart = worst((apart, _apart(reader.log_probs(segment), log_p)))
    yield Result.of(
        "log-probabilities", apart, at_most=ROUNDING,
        detail=f"{told}One stream and three, in segments of 1, of {_LENGTH}, and of any length.",
    )  # fmt: skip

    reader, memory, apart = model.reader(3), model.init_memory(3), 0.0
    for start in range(0, _LENGTH - 4, 4):
        if start == 8:
            reader.select([2, 0])
            memory, text = memory.select([2, 0]), text[[2, 0]]
        inputs = text[:, max(0, start - config.ext_len) : start + 4]
        targets = text[:, start + 1 : start + 5]
        fwd = model.forward(inputs, targets, memory)
        apart = worst((apart, _apart(reader.score(inputs, targets), fwd.nll)))
        memory = fwd.memory
    yield Result.of(
        "losses", apart, at_most=ROUNDING,
        detail=f"{told}ext_len {config.ext_len}; two of three streams go on after 8 tokens.",
    )  # fmt: skip


def _evaluation(subject: Subject, progress: Progress) -> Iterable[Result]:
    model, draw = subject.model(), subject.draw("recurrence/evaluation")
    tgt_len = 3
    warm_up = warm_up_segments(model.config, tgt_len)
    told = f"{warm_up} segments of {tgt_len} warm each stream up."
    if warm_up is None:
        told = "One pass, however many streams are asked for: nothing less warms a state up."
    n_tokens = tgt_len * ((warm_up or 0) + 4 * 3) + 2  # and a tail that is no whole segment
    tokens = draw.integers(0, model.config.vocab_size, n_tokens)
    sequential = score(model, tokens, tgt_len, n_streams=1)
    for n_streams, n_workers in ((4, 1), (3, 2)):
        parallel = score(model, tokens, tgt_len, n_streams, n_workers)
        yield Result.of(
            f"{n_streams} streams, {n_workers} workers", _apart(parallel, sequential),
            at_most=ROUNDING,
            detail=f"Losses of {n_tokens - 1} tokens. {told}",
        )  # fmt: skip


def _pictures(rows: Rows) -> Iterable[Picture]:
    for name, of_what in (("reach", "with a window"), ("reach-as-configured", "as configured")):
        layers = [result.data for result in rows.get(name, ()) if result.data is not None]
        if layers:
            yield _picture_of_reach(layers, of_what)


def _picture_of_reach(layers: Sequence[tuple[Array, Array]], of_what: str) -> Picture:
    distances = [furthest(found) for found, _ in layers]
    n_wrong = sum(int((found != expected).sum()) for found, expected in layers)

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(layers), sharey=True, squeeze=False)[0]
        for n, (ax, (found, expected)) in enumerate(zip(axes, layers, strict=True), 1):
            for token, outputs in enumerate(found):
                ends = np.flatnonzero(np.diff(outputs, prepend=False, append=False))
                runs = [(start - 0.5, stop - start) for start, stop in ends.reshape(-1, 2)]
                ax.broken_barh(runs, (token - 0.5, 1), color="C0")
            edges = np.arange(len(found) + 1) - 0.5
            # A token moves its own output, and later ones up to the last that depend on it.
            last = len(expected) - expected[:, ::-1].argmax(axis=1) - 0.5
            for border in (np.arange(len(expected)) - 0.5, last):
                ax.plot(np.repeat(border, 2), np.repeat(edges, 2)[1:-1], color="C1", lw=1.5)
            ax.set(title=f"layer {n}: {distances[n - 1]}", xlabel="output", aspect="equal")
        axes[0].invert_yaxis()
        axes[0].set_ylabel("token")

    return Picture(
        f"Reach, {of_what}",
        r"Cell $(s, t)$ is filled where another token $s$ changes a bit of the layer's output at "
        r"$t$; the line surrounds what is predicted. Above each, the furthest distance.",
        f"{len(layers)} matrices, one for each layer, with distances up to "
        f"{', '.join(map(str, distances))}; {n_wrong} cells are not as predicted.",
        draw,
        (7.0, 7.0 / len(layers) + 0.6),
    )


RECURRENCE = Section(
    name="recurrence",
    title="Recurrence",
    proves=(
        "Segments and a memory are a way to compute, not a part of the function: with a window "
        r"$W \le M + 1$ and an encoding of distances, a prediction is a function of the "
        r"$N(W-1)$ tokens before it and of nothing else, however the text is cut, whoever reads "
        "beside it, and whichever of the ways to read is taken.\n\n"
        "Where the configuration's own window is wider, or there is none, what depends on cuts is "
        r"checked with $W = M + 1$, and the rest as it is configured. A state of one size, as an "
        "LSTM's, has no window: a prediction is a function of all tokens before it."
    ),
    checks=(
        Check(
            "segmentation",
            "Where a text is cut into segments changes no score, nor do tokens that are read again "
            "as context; one key more, and it does.",
            r"\log p^{(c)}(x_{t+1} \mid x_{\le t}) = \log p^{(c')}(x_{t+1} \mid x_{\le t})"
            r"\quad\text{for all cuts } c, c' \text{ if } W \le M + 1",
            _segmentation,
        ),
        Check(
            "reach",
            r"An output of layer $n$ depends on exactly the $n(W-1)$ tokens before its own.",
            r"h^n_t \text{ depends on } x_s \quad\iff\quad 0 \le t - s \le n(W - 1)",
            _reach,
        ),
        Check(
            "reach-as-configured",
            r"Whatever the window, the memory and the cuts: an output of layer $n$ depends on what "
            "the states depend on that it sees.",
            r"D^n_t = \bigcup_{s \text{ seen by } t} D^{n-1}_s, \quad D^0_t = \{t\}",
            _reach_as_configured,
        ),
        Check(
            "causality",
            "No score depends on a later token, bit by bit.",
            r"x_{\le t} = x'_{\le t} \quad\implies\quad \log p(\cdot \mid x_{\le t}) = "
            r"\log p(\cdot \mid x'_{\le t})",
            _causality,
        ),
        Check(
            "shift",
            "Scores know distances, not places: the same tokens further on have the same scores.",
            r"A_{ij} = f(h_i, h_j, i - j) \quad\implies\quad \log p(\tau_k x) = \tau_k \log p(x)",
            _shift,
        ),
        Check(
            "clamp",
            r"A clamp $C \ge K - 1$ changes no bit; what is $C$ or further away has no order.",
            r"R^{C}_{\delta} = R_{\min(\delta, C)}",
            _clamp,
        ),
        Check(
            "memory",
            "After $q$ tokens memory is the last $M$ of the states before $q - E$, unchanged; "
            "nothing that comes later changes it; and it begins as configured.",
            r"\text{memory} = [\text{end} - M, \text{end}), \quad "
            r"\text{end} = m + \max(0, q - E)",
            _memory,
        ),
        Check(
            "incremental",
            "One token at a time with memory gives what one pass over all of them gives, and "
            "generation says of its tokens what a pass over them says.",
            r"\log p(\cdot \mid x_t, \text{memory}_{t-1}) = \log p(\cdot \mid x_{\le t})",
            _incremental,
        ),
        Check(
            "streams",
            "Streams of a batch do not know of each other, and may change places.",
            r"f(\pi x) = \pi f(x)",
            _streams,
        ),
        Check(
            "reader",
            "The fast way to read, with keys and values that stay projected, is the forward pass.",
            r"W_k \,\mathrm{SG}(h) = \mathrm{SG}(W_k h)",
            _reader,
        ),
        Check(
            "evaluation",
            "Streams that begin in the middle of a text and warm up give the sequential losses.",
            r"R = \min\left(N \left\lceil M/T \right\rceil + \left\lceil E/T \right\rceil, "
            r"\left\lceil N(W-1)/T \right\rceil\right) \text{ segments}",
            _evaluation,
        ),
    ),
    pictures=_pictures,
)
