r"""Context fragmentation (Dai et al. 2019, sections 1 and 3.1): what a cut in the text costs.

A model that reads segments on their own "lacks necessary contextual information needed to well
predict the first few symbols" (section 1). The loss at position $i$ of a segment, averaged over all
segments of a text, is compared on the same tokens for a model with memory, for the same model with
its memory taken away, and for one that never had any; the gap is $\ell^{\text{without}}_i -
\ell^{\text{with}}_i$.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.inference import score
from npxl.page.pictures import INK, Picture
from npxl.studies.frame import Cell, Result, Statement, Study, Table, all_of, octaves, spelled
from npxl.studies.lab import Lab
from npxl.studies.paper import TABLE_7
from npxl.studies.settings import (
    QUICK_MODEL,
    QUICK_TRAIN,
    TextSetting,
    Variant,
    filling,
)
from npxl.studies.statistics import N_BLOCKS, Estimate, over_blocks, over_text
from npxl.threads import available_cores

Array = NDArray[Any]


@dataclass(frozen=True)
class Setting(TextSetting):
    """Segments of tgt_len; the losses of the split `valid`, or of another one."""

    @property
    def n_models(self) -> int:
        """With recurrence, and without."""
        return 2


_PAPER = math.log(TABLE_7[False, "dai"] / TABLE_7[True, "dai"])

_LABELS = {
    "memory": "with memory",
    "taken away": "memory taken away",
    "never": "never had one",
}


def text_of(setting: Setting, lab: Lab) -> Array:
    """Tokens of as many segments as there are blocks, after those that fill the memory."""
    tgt_len = setting.train.tgt_len
    n_segments = filling(setting.model, setting.train) + N_BLOCKS
    return lab.split(at_least=n_segments * tgt_len + 1).tokens


def run(setting: Setting, lab: Lab) -> Result:
    """Losses by position in the segment, of the same tokens: with memory and without."""
    tgt_len = setting.train.tgt_len
    full, tokens = filling(setting.model, setting.train), text_of(setting, lab)
    recurrent, isolated = (
        lab.transformer(*Variant(recurrence).of(setting.model, setting.train))
        for recurrence in (True, False)
    )
    models = {
        "memory": recurrent,
        "taken away": recurrent.reconfigured(mem_len=0),
        "never": isolated,
    }

    def measure() -> dict[str, Any]:
        losses = {}
        for name, model in models.items():
            nll = score(model, tokens, tgt_len, n_workers=available_cores())
            whole = len(nll) // tgt_len * tgt_len
            losses[name] = nll[:whole].reshape(-1, tgt_len)[full:].astype(float)  # [S, T]
        gaps = {name: nll - losses["memory"] for name, nll in losses.items() if name != "memory"}
        parts = [slice(part.start, part.stop) for part in octaves(tgt_len)]

        def by_octave(gap: Array) -> list[Estimate]:
            return over_blocks(np.stack([gap[:, part].mean(1) for part in parts], axis=1))

        return {
            "segments": len(losses["memory"]),
            "loss": {name: over_blocks(nll) for name, nll in losses.items()},
            "gap": {name: over_blocks(gap) for name, gap in gaps.items()},
            "gap_by_octave": {name: by_octave(gap) for name, gap in gaps.items()},
            "mean_gap": {name: over_text(gap.mean(1)) for name, gap in gaps.items()},
        }

    return {"tgt_len": tgt_len, "mem_len": setting.model.mem_len, **lab.part("losses", measure)}


def tables(result: Result) -> Iterable[Table]:
    """By position, octave after octave."""
    loss, gap = result["loss"], result["gap_by_octave"]
    rows: list[tuple[Cell, ...]] = []
    for n, positions in enumerate(octaves(result["tgt_len"])):
        means = [np.mean([loss[name][i][0] for i in positions]) for name in _LABELS]
        gaps = [Estimate(*gap[name][n]) for name in gap]
        from_one = range(positions.start + 1, positions.stop + 1)
        rows.append((spelled(from_one), *map(float, means), *map(str, gaps)))
    columns = (
        "position", *(f"loss, {label}" for label in _LABELS.values()),
        *(f"gap, {_LABELS[name]}" for name in gap),
    )  # fmt: skip
    yield Table("Loss by position in the segment, from 1, in nats", columns, tuple(rows))


def pictures(result: Result) -> Iterable[Picture]:
    """Losses above, gaps below."""

    def draw(figure: Any) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        positions = range(1, result["tgt_len"] + 1)
        for color, (name, label) in enumerate(_LABELS.items()):
            means, _ = zip(*result["loss"][name], strict=True)
            above.plot(positions, means, ".-", color=f"C{color}", label=label)
            if name in result["gap"]:
                means, errors = zip(*result["gap"][name], strict=True)
                below.errorbar(positions, means, errors, color=f"C{color}", fmt=".-", capsize=2)
        below.axhline(0, color=INK, linewidth=0.8)
        below.set(xscale="log", xlabel="position in the segment, from 1", ylabel="gap, nats")
        above.set(ylabel="loss, nats")
        above.legend()

    losses, gaps = (
        "; ".join(
            f"{_LABELS[name]}, from {each[0][0]:.3f} to {each[-1][0]:.3f} nats"
            for name, each in result[field].items()
        )
        for field in ("loss", "gap")
    )
    yield Picture(
        "Context fragmentation",
        f"Mean loss at each position of segments of {result['tgt_len']} tokens, with a memory of "
        f"{result['mem_len']} and without, and how much more it is without; bars are 95 % "
        "intervals over blocks of the text.",
        f"Above, a curve for each model from the first position to the last: {losses}. Below, the "
        f"gaps: {gaps}.",
        draw,
        (7.0, 5.0),
    )


def statements(result: Result) -> Iterable[Statement]:
    """That the gap is there at the first position, and is more than nothing on average."""
    for name, gaps in result["gap"].items():
        first, mean = Estimate(*gaps[0]), Estimate(*result["mean_gap"][name])
        yield Statement(
            f"Cut into segments, a text is harder to predict ({_LABELS[name]}).",
            all_of(each.is_above(0) for each in (first, mean)),
            f"{first} nats at the first position, {mean} on average; in the paper recurrence is "
            f"worth {_PAPER:.3f} nats a word where sentences are shuffled (Table 7)",
        )


STUDY = Study(
    "fragmentation",
    "Context fragmentation",
    __doc__ or "",
    Setting(model=QUICK_MODEL, train=QUICK_TRAIN),
    Setting(),
    run,
    tables,
    pictures,
    statements,
    text_of,
)
