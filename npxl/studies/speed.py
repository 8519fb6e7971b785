"""Time of evaluation (Dai et al. 2019, section 4.5, table 9): states reused, windows read anew.

A Transformer without memory is evaluated by a window that slides by one token at a time: all of it
is read anew for each prediction. Transformer-XL reuses the states of the segments before, and "is
up to 1,800+ times faster than vanilla Transformers during evaluation" (abstract, Table 9).

Both sides have the same shape and the same attention length, random parameters and random tokens;
losses of each are first held against another way to compute them. On each core, Transformer-XL
reads segments of a stream of its own, with a full memory, as an evaluation does; the other side
reads whole windows, one for each token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.config import ModelConfig
from npxl.config.checks import require_int, require_tuple
from npxl.errors import NpxlError
from npxl.inference.sliding import score_windows
from npxl.models import Reader
from npxl.models.transformer_xl import TransformerXL
from npxl.page.pictures import INK, Picture
from npxl.presets import preset
from npxl.studies.frame import Cell, Result, Statement, Study, Table
from npxl.studies.lab import Lab
from npxl.studies.paper import TABLE_9
from npxl.studies.statistics import Estimate
from npxl.threads import available_cores, run_parallel

Array = NDArray[Any]

LARGEST_DIFFERENCE = 1e-3
"""Nats that two ways to compute a loss may differ by in single precision."""


@dataclass(frozen=True)
class Setting:
    """Shapes by name, and the attention lengths that both sides have."""

    shapes: tuple[tuple[str, ModelConfig], ...]
    lengths: tuple[int, ...] = tuple(TABLE_9)
    tgt_len: int = 1024
    """Of the segments that Transformer-XL reads: what one has computed, all its tokens share."""
    n_segments: int = 2
    """Of each stream."""
    n_windows: int = 4
    """At least; so many that all cores have as many."""
    rounds: int = 6
    """In each of which both sides are timed; medians count.

    If nothing but chance tells them apart, the median is between the lowest and the highest of six
    rounds with a probability of 97 %, one minus two sixth powers of a half.
    """
    seed: int = 0

    def __post_init__(self) -> None:
        require_tuple(self, "lengths", int, minimum=1)
        if not self.shapes or len(set(self.lengths)) < 2:
            raise NpxlError(
                f"There are {len(self.shapes)} shapes, and lengths is {self.lengths}, but at least "
                "one shape is needed, and two lengths, to say how the times grow."
            )
        for name in ("tgt_len", "n_segments", "n_windows", "rounds"):
            require_int(self, name, minimum=1)
        require_int(self, "seed", minimum=0)


def run(setting: Setting, lab: Lab) -> Result:
    """Seconds a token of both sides, by shape and attention length."""
    n_workers = available_cores()
    return {
        "workers": n_workers,
        "tgt_len": setting.tgt_len,
        "shapes": {
            name: [
                lab.part(
                    f"{name} {length} on {n_workers} cores",
                    partial(measure, shape, length, setting, n_workers),
                )
                for length in setting.lengths
            ]
            for name, shape in setting.shapes
        },
    }


def measure(shape: ModelConfig, length: int, setting: Setting, n_workers: int) -> dict[str, Any]:
    """Both sides at one attention length: first whether they are right, then how long they take."""
    draw = np.random.default_rng(setting.seed)
    n_windows = -(-setting.n_windows // n_workers) * n_workers
    segments = draw.integers(0, shape.vocab_size, (setting.n_segments, 1, setting.tgt_len + 1))
    tokens = draw.integers(0, shape.vocab_size, length + n_windows + 1)
    reusing, sliding = sides(shape, length, setting.seed)
    differences = wrong_by(reusing, segments[:2]), wrong_by_sliding(sliding, tokens, length)
    difference = float(np.max(differences))  # which is not a number if one of them is not
    if not difference < LARGEST_DIFFERENCE:
        raise NpxlError(
            f"Two ways to compute a loss differ by {difference:.2g} nats, so that the speed of "
            "one of them is the speed of something else."
        )
    # With full memories, as in the middle of a text.
    readers = [reusing.reader(1) for _ in range(n_workers)]

    def read_segments(reader: Reader) -> None:
        for segment in segments:
            reader.score(segment[:, :-1], segment[:, 1:])

    def reuse() -> None:
        run_parallel([partial(read_segments, reader) for reader in readers], n_workers)

    def slide() -> None:
        score_windows(sliding, tokens, range(length, length + n_windows), length, n_workers)

    by_reusing, by_sliding = [], []
    for _ in range(setting.rounds):
        by_reusing.append(_timed(reuse) / (n_workers * segments[:, 0, 1:].size))
        by_sliding.append(_timed(slide) / n_windows)
    return {
        "length": length,
        "reusing": float(np.median(by_reusing)),
        "sliding": float(np.median(by_sliding)),
        "rounds": np.divide(by_sliding, by_reusing).tolist(),
        "difference": difference,
    }


def sides(shape: ModelConfig, length: int, seed: int) -> tuple[TransformerXL, TransformerXL]:
    """Transformer-XL whose queries see `length` keys, and a Transformer that reads as many tokens.

    The memory begins as zeros, so that it is full at once.  Parameters are so large that what is
    read or not makes a difference.
    """
    shape = replace(shape, init_std=shape.d_model**-0.5)
    reusing = replace(shape, mem_len=length, attn_window=length, initial_memory="zeros")
    sliding = replace(shape, mem_len=0, attn_type="al-rfou", clamp_len=length - 1)
    return TransformerXL(reusing, seed=seed), TransformerXL(sliding, seed=seed)


def wrong_by(model: TransformerXL, segments: Array) -> float:
    """How far losses of the reader are from those with a memory of states, in nats."""
    reader, memory, differences = model.reader(1), model.init_memory(1), []
    for segment in segments:
        fwd = model.forward(segment[:, :-1], segment[:, 1:], memory)
        memory = fwd.memory
        read = reader.score(segment[:, :-1], segment[:, 1:])
        differences.append(np.abs(read - fwd.nll))
    return float(np.max(differences))


def wrong_by_sliding(model: TransformerXL, tokens: Array, length: int) -> float:
    """How far the loss after the second window is from that of a forward pass, in nats."""
    window, target = tokens[None, 1 : length + 1], tokens[None, length + 1 : length + 2]
    fwd = model.forward(window, target, model.init_memory(1))
    (slid,) = score_windows(model, tokens, range(length, length + 1), length)
    return float(np.abs(fwd.nll[0, 0] - slid))


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def slowdowns(rows: list[dict[str, Any]]) -> Array:
    """How many times longer a window a token takes, at each length."""
    return np.array([row["sliding"] / row["reusing"] for row in rows])


def growth(lengths: Iterable[float], values: Iterable[Any]) -> tuple[float, float]:
    """a and k of a · length^k, by least squares of the logarithms."""
    k, log_a = np.polyfit(np.log(list(lengths)), np.log(list(values)), 1)
    return float(np.exp(log_a)), float(k)


def tables(result: Result) -> Iterable[Table]:
    """As the paper's, and how the times grow."""
    rows: list[tuple[Cell, ...]] = [
        (
            name, row["length"], 1e3 * row["reusing"], 1e3 * row["sliding"],
            float(slowdown), TABLE_9.get(row["length"]), float(slowdown) / row["length"],
        )
        for name, found in result["shapes"].items()
        for row, slowdown in zip(found, slowdowns(found), strict=True)
    ]  # fmt: skip
    columns = (
        "shape", "attention length", "Transformer-XL, ms a token", "sliding window, ms a token",
        "slowdown", "paper, slowdown", "slowdown / length",
    )  # fmt: skip
    yield Table("Time of evaluation", columns, tuple(rows))
    yield Table(
        "Growth with the attention length L: a · L^k",
        ("shape", "of", "a", "k"),
        tuple((name, what, *fit) for name, what, fit in _fits(result)),
    )


def pictures(result: Result) -> Iterable[Picture]:
    """Slowdowns by attention length, and the paper's."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, found in result["shapes"].items():
            axes.plot([row["length"] for row in found], slowdowns(found), "o-", label=name)
        axes.plot(list(TABLE_9), list(TABLE_9.values()), "s--", color=INK, label="paper")
        axes.set(xlabel="attention length", ylabel="slowdown of a sliding window")
        axes.set_ylim(bottom=0)
        axes.legend()

    ends = "; ".join(
        f"{name}, {slowdowns(found)[0]:.0f} and {slowdowns(found)[-1]:.0f} times"
        for name, found in result["shapes"].items()
    )
    yield Picture(
        "Slowdown of a sliding window",
        "How many times longer a token takes when a window is read anew for it than when the "
        f"states of earlier segments are reused, on {result['workers']} cores, and on the paper's "
        "GPU.",
        f"A line for each shape, and one for the paper's figures. At the shortest and the longest "
        f"attention length: {ends}; paper, {min(TABLE_9.values())} and {max(TABLE_9.values())}.",
        draw,
    )


def statements(result: Result) -> Iterable[Statement]:
    """That the largest shape is slowed down as much as in the paper."""
    name, found = list(result["shapes"].items())[-1]
    slowdown, length = float(slowdowns(found)[-1]), found[-1]["length"]
    low, high = min(found[-1]["rounds"]), max(found[-1]["rounds"])
    if length not in TABLE_9:
        yield Statement(
            f"Evaluation is up to {max(TABLE_9.values()):,} times faster.",
            None,
            f"{slowdown:,.0f} times at length {length:,} and shape {name}; the paper's lengths are "
            f"{min(TABLE_9):,} to {max(TABLE_9):,}",
        )
    else:
        yield Statement(
            f"Evaluation is up to {TABLE_9[length]:,} times faster.",
            Estimate.between(low, high).is_above(TABLE_9[length]),
            f"{slowdown:,.0f} times at length {length:,} and shape {name}, and {low:,.0f} to "
            f"{high:,.0f} in {len(found[-1]['rounds'])} rounds; losses of two ways to compute them "
            f"differ by {max(row['difference'] for row in found):.1g} nats at most",
        )


def _fits(result: Result) -> Iterable[tuple[str, str, tuple[float, float]]]:
    for name, found in result["shapes"].items():
        lengths = [row["length"] for row in found]
        series: dict[str, Iterable[float]] = {
            "Transformer-XL, ms": [1e3 * row["reusing"] for row in found],
            "sliding window, ms": [1e3 * row["sliding"] for row in found],
            "slowdown": slowdowns(found),
        }
        for what, values in series.items():
            yield name, what, growth(lengths, values)
    yield "paper", "slowdown", growth(TABLE_9, TABLE_9.values())


def _shape(name: str) -> ModelConfig:
    model: ModelConfig = preset(name).model
    return replace(model, dropout=0.0)


STUDY = Study(
    "speed",
    "Time of evaluation",
    __doc__ or "",
    Setting(
        (("4 layers of 128", _shape("default")),), lengths=(200, 400), tgt_len=128, n_segments=8
    ),
    Setting((
        ("4 layers of 128", _shape("default")),
        ("12 layers of 512", _shape("enwik8-base")),
    )),
    run,
    tables,
    pictures,
    statements,
)  # fmt: skip
