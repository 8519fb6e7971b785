"""How far float32 is from float64: by layer, by position, and over a long memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Figure, Progress, Result, Subject
from npxl.audit.reach import layer_outputs
from npxl.config import ModelConfig
from npxl.layers.positions import sinusoid
from npxl.models.segment_model import SegmentModel
from npxl.page.pictures import Picture

Array = NDArray[Any]

EPSILON = 2.0**-23
"""Of float32: the distance from 1 to the next number."""

LONG, _LONG_SEGMENT, _LONG_ROUNDING = 10_000, 500, 5e-5
_FURTHEST = 20_000
_SEGMENT = 24
_MOST_GROWTH = 2.0


def allowed(n: Any) -> Any:
    """The relative error after n layers: theirs are independent, and add up as their squares."""
    return 4 * EPSILON * np.sqrt(n)


def precision(subject: Subject, progress: Progress) -> Iterable[Result]:
    single = subject.model(np.float32, larger=True, ext_len=0)
    double, config = single.astype(np.float64), single.config
    draw, length = subject.draw("numerics/precision"), 8 * _SEGMENT
    text = draw.integers(0, config.vocab_size, (4, length))
    lengths = [_SEGMENT] * 8
    exact = layer_outputs(double, text, lengths)
    apart = layer_outputs(single, text, lengths) - exact  # [N, B, T, d]
    size = np.sqrt((exact**2).mean(axis=(1, 2, 3)))  # [N]
    by_position = np.sqrt((apart**2).mean(axis=(1, 3))) / size[:, None]  # [N, T]
    for n, errors in enumerate(by_position, 1):
        yield Result(
            f"layer {n}",
            {
                "rms": Figure(float(np.sqrt((errors**2).mean())), allowed(n)),
                "late/early": Figure(_growth(errors), _MOST_GROWTH),
            },
            f"Relative to the layer's states; the last quarter of {length} positions against the "
            "first.",
            errors,
        )
    yield from _scores_and_gradients(single, double, text)


def _scores_and_gradients(
    single: SegmentModel, double: SegmentModel, text: Array
) -> Iterable[Result]:
    inputs, targets = text[:, :_SEGMENT], text[:, 1 : _SEGMENT + 1]
    (log_p, _), (exact, _) = (
        model.log_probs(inputs, model.init_memory(len(text))) for model in (single, double)
    )
    yield Result.of("log-probabilities", np.abs(log_p - exact).max(), 2e-5, "In nats.")
    ours, expected = (
        model.backward(model.forward(inputs, targets, model.init_memory(len(text))))
        for model in (single, double)
    )
    floor = 1e-4 * np.abs(expected.flat).max()
    errors = {
        name: float(np.abs(ours[name] - each).max() / max(np.abs(each).max(), floor))
        for name, each in expected.items()
    }
    worst = list(errors)[int(np.argmax(list(errors.values())))]  # NaN before all others
    yield Result.of(
        "gradients", errors[worst], 2e-5,
        f"Relative to the largest entry of each tensor's; worst of {worst}.",
    )  # fmt: skip


def _growth(errors: Array) -> float:
    """The error of the last quarter of the positions relative to that of the first."""
    quarter = len(errors) // 4
    early, late = (np.sqrt((part**2).mean()) for part in (errors[:quarter], errors[-quarter:]))
    return float(late / early)


def long_memory(subject: Subject, progress: Progress) -> Iterable[Result]:
    """Read 10,000 tokens in either precision, of which nothing is forgotten."""
    single = subject.model(
        np.float32, larger=True, n_layer=min(subject.config.n_layer, 2), mem_len=LONG,
        attn_window=None, ext_len=0, initial_memory="empty",
    )  # fmt: skip
    double, config = single.astype(np.float64), single.config
    text = subject.draw("numerics/long-memory").integers(0, config.vocab_size, (1, LONG))
    reader, memories = single.reader(1), [model.init_memory(1) for model in (single, double)]
    errors, of_reader, sums = [], [], []
    for start in range(0, LONG, _LONG_SEGMENT):
        progress(start, LONG)
        segment = text[:, start : start + _LONG_SEGMENT]
        ours, memories[0] = single.log_probs(segment, memories[0])
        exact, memories[1] = double.log_probs(segment, memories[1])
        errors.append(np.abs(ours - exact).max(axis=(0, 2)))
        of_reader.append(np.abs(reader.log_probs(segment) - exact).max(axis=(0, 2)))
        sums.append(np.abs(np.exp(ours.astype(np.float64)).sum(-1) - 1).max(axis=0))
    by_position = np.concatenate(errors)  # [T]
    told = f"In nats, of {LONG:,} tokens with all before them in memory"
    yield Result(
        "log-probabilities",
        {
            "largest": Figure(float(by_position.max()), _LONG_ROUNDING),
            "exponent": Figure(_exponent(by_position), 1.0),
        },
        f"{told}; p of the medians' growth as (tokens)ᵖ.",
        by_position,
    )
    yield Result.of("by the reader", np.concatenate(of_reader).max(), _LONG_ROUNDING, f"{told}.")
    yield Result.of("sum of probabilities", np.concatenate(sums).max(), 1e-5, "From 1, in float32.")


def _exponent(errors: Array) -> float:
    """p of errors ≈ c · tᵖ, fitted to the medians of twenty parts."""
    medians = np.median(errors.reshape(20, -1), axis=1)
    centers = (np.arange(20) + 0.5) * len(errors) / 20
    return float(np.polyfit(np.log(centers), np.log(medians), 1)[0])


def far_positions(subject: Subject, progress: Progress) -> Iterable[Result]:
    if not isinstance(subject.config, ModelConfig):
        yield Result.nothing("sinusoids", "There are no positions.")
        return
    if subject.config.learns_positions:
        why = f"attn_type {subject.config.attn_type} has a table instead of sinusoids."
        yield Result.nothing("sinusoids", why)
        return
    d_model = subject.config.d_model
    single, double = (sinusoid(_FURTHEST, d_model, None, dtype) for dtype in (np.float32, float))
    yield Result.of(
        "sinusoids", np.abs(single - double).max(), EPSILON / 4,
        f"Distances up to {_FURTHEST - 1:,}, width {d_model}: rounded once, which is 2⁻²⁵ at most.",
    )  # fmt: skip


def picture_of_precision(errors: Array) -> Picture:
    n_layer, length = errors.shape
    by_layer = np.sqrt((errors**2).mean(axis=1))

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(2, 3))
        layers = np.arange(1, n_layer + 1)
        left.plot(layers, by_layer / EPSILON, "o-", label="measured")
        left.plot(layers, allowed(layers) / EPSILON, "--", label="allowed")
        left.set(xlabel="layer", ylabel="error / ε", xticks=layers)
        left.set_ylim(bottom=0)
        left.legend()
        edges = np.arange(n_layer + 1) + 0.5
        mesh = right.pcolormesh(np.arange(length + 1), edges, errors / EPSILON, vmin=0)
        right.set(xlabel="position", ylabel="layer", yticks=layers)
        figure.colorbar(mesh, ax=right, label="error / ε")

    return Picture(
        "float32 against float64, by layer and by position",
        r"Left, the relative root-mean-square error of each layer's outputs; right, of each "
        r"position's, over several segments with memory. $\epsilon = 2^{-23}$.",
        f"Errors of {by_layer[0]:.1e} after the first layer and {by_layer[-1]:.1e} after layer "
        f"{n_layer}. Over {length} positions of each layer they are {errors.min():.1e} to "
        f"{errors.max():.1e}.",
        draw,
    )


def picture_of_long_memory(errors: Array) -> Picture:
    n_bins = 100
    binned = errors[: len(errors) // n_bins * n_bins].reshape(n_bins, -1)

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        at = (np.arange(n_bins) + 0.5) * binned.shape[1]
        ax.plot(at, binned.max(axis=1), label="largest of 100 tokens")
        ax.plot(at, np.median(binned, axis=1), label="median")
        ax.set(xlabel="tokens in memory", ylabel="error in nats", yscale="log")
        ax.legend()

    return Picture(
        f"float32 against float64 over {len(errors):,} tokens",
        "The error of log-probabilities when everything that was read is still remembered.",
        f"Two lines, at {np.median(binned[:10]):.1e} nats in the beginning and "
        f"{np.median(binned[-10:]):.1e} in the end (medians).",
        draw,
    )
