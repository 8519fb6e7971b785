"""What recurrence and the encoding are each worth (Dai et al. 2019, tables 6 and 7).

One thing is changed at a time: recurrence, the encoding of positions, and whether all positions of
a segment are scored in training or the last half. On WikiText-103, whose articles are long, the
paper finds recurrence and its encoding both necessary (Table 6); on One Billion Word, whose
sentences are shuffled, recurrence still helps, because it resolves context fragmentation (Table 7).

Here the first is a text, and the second the same text with its lines shuffled. Every cell is
trained from several seeds and shown as mean ± standard deviation. As in the paper, a model is
scored with the attention length of training and with the best one. Encodings are those of
distances, the paper's (dai) and Shaw's learned table (shaw), and of places, sinusoids (vaswani) and
a learned table (al-rfou).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from npxl.config import ModelConfig, TrainConfig
from npxl.config.checks import require_tuple
from npxl.data import Corpus
from npxl.errors import NpxlError
from npxl.files import new_folder
from npxl.inference import evaluate
from npxl.inference.evaluation import bits_per_byte
from npxl.page.pictures import Picture
from npxl.studies.frame import Cell, Result, Statement, Study, Table
from npxl.studies.lab import Lab
from npxl.studies.paper import TABLE_6, TABLE_7
from npxl.studies.settings import FULL_TRAIN, QUICK_MODEL, QUICK_TRAIN, TextSetting, Variant
from npxl.studies.statistics import Estimate
from npxl.threads import available_cores
from npxl.training.run import Run

IN_ORDER = tuple(Variant(row.recurrence, row.attn_type, row.loss) for row in TABLE_6)
SHUFFLED = tuple(Variant(recurrence, attn_type) for recurrence, attn_type in TABLE_7)
_STEPS = FULL_TRAIN.steps // 4
SHORTER = replace(FULL_TRAIN, steps=_STEPS, eval_interval=_STEPS)
"""A quarter of the updates of other studies, since there are 36 models."""


@dataclass(frozen=True)
class Setting(TextSetting):
    """Rows of Table 6 on the text, those of Table 7 on its lines in random order."""

    train: TrainConfig = SHORTER
    seeds: tuple[int, ...] = (0, 1, 2)
    lengths: tuple[int, ...] = (2, 4, 8)
    """Attention lengths to choose the best from besides that of training, in segments."""

    def __post_init__(self) -> None:
        require_tuple(self, "seeds", int, minimum=0)
        require_tuple(self, "lengths", int, minimum=1)

    @property
    def n_models(self) -> int:
        """A model for each cell and seed."""
        return (len(IN_ORDER) + len(SHUFFLED)) * len(self.seeds)


def text_of(setting: Setting, lab: Lab) -> Path:
    """The text with its lines in random order, as `shuffled_text` makes it."""
    lab.split()  # which there has to be
    return shuffled_text(lab.corpus, lab.folder / "texts")


def run(setting: Setting, lab: Lab) -> Result:
    """Scores of every variant, seed by seed, on the text and on the same in disorder."""
    shuffled = text_of(setting, lab)
    texts = {"in order": (None, IN_ORDER), "shuffled": (shuffled, SHUFFLED)}
    return {
        text: [
            {
                **variant._asdict(),
                "seeds": [_of_seed(variant, seed, source, setting, lab) for seed in setting.seeds],
            }
            for variant in variants
        ]
        for text, (source, variants) in texts.items()
    }


def _of_seed(
    variant: Variant, seed: int, source: Path | None, setting: Setting, lab: Lab
) -> dict[str, Any]:
    model, train = variant.of(setting.model, setting.train, seed)
    trained = lab.trained(model, train, source)
    of_text = "" if source is None else " shuffled"
    return lab.part(f"{variant} {seed}{of_text}", partial(_scores, trained, model, setting))


def _scores(trained: Run, config: ModelConfig, setting: Setting) -> dict[str, Any]:
    """Bits a byte with the attention length of training, and with the best one."""
    model, split = trained.model("last"), trained.corpus.split(setting.split)
    tgt_len = setting.train.tgt_len

    def bits(mem_len: int) -> float:
        read = model.reconfigured(mem_len=mem_len)
        found = evaluate(read, split.tokens, tgt_len, n_workers=available_cores())
        return bits_per_byte(found.nll, split)

    memories = {config.mem_len}
    if config.encodes_distances:  # others cannot reuse states
        memories |= {(length - 1) * tgt_len for length in setting.lengths}
    found = {memory: bits(memory) for memory in sorted(memories)}
    best = min(found, key=lambda memory: found[memory])
    return {
        "initial": found[config.mem_len],
        "best": found[best],
        "attention_length": best + tgt_len,
    }


def shuffled_text(corpus: Corpus, folder: Path) -> Path:
    """The corpus with the lines of each split in random order: a folder, made if it is not there.

    Blank lines are left out.  A line of the bundled text is a verse, or a heading, so that what a
    verse depends on then lies within it.  NpxlError when a split is a single line.
    """
    path = folder / f"shuffled-{corpus.fingerprint[:12]}"
    if not path.exists():
        draw = np.random.default_rng(0)
        with new_folder(path) as draft:
            for name, split in corpus.splits.items():
                lines = split.tokens.tobytes().split(b"\n")  # tokens are bytes
                lines = [line for line in lines if line.strip()]
                if len(lines) < 2:
                    raise NpxlError(
                        f"The {name} split of {corpus.name} is a single line, but the study "
                        "ablation puts lines in random order: pass a text whose sentences are "
                        "lines, or name other studies."
                    )
                shuffled = [lines[i] + b"\n" for i in draw.permutation(len(lines))]
                (draft / f"{name}.txt").write_bytes(b"".join(shuffled))
    return path


def tables(result: Result) -> Iterable[Table]:
    """As the paper's tables, each cell with its spread over seeds, and the paper's perplexities."""
    figures: dict[str, dict[Any, tuple[Cell, ...]]] = {
        "in order": {(row.recurrence, row.attn_type, row.loss): row[3:] for row in TABLE_6},
        "shuffled": {(*key, "full"): (f"{value}", None, None) for key, value in TABLE_7.items()},
    }
    columns = (
        "recurrence", "encoding", "loss", "bits a byte", "best", "attention length",
        "paper, perplexity", "paper, best", "paper, length",
    )  # fmt: skip
    for text, title in (
        ("in order", "The text as it is; the paper's Table 6 is of WikiText-103"),
        ("shuffled", "Its lines in random order; the paper's Table 7 is of One Billion Word"),
    ):
        rows: list[tuple[Cell, ...]] = []
        for row in result[text]:
            key = (row["recurrence"], row["attn_type"], row["loss"])
            lengths = sorted({each["attention_length"] for each in row["seeds"]})
            rows.append((
                "yes" if row["recurrence"] else "no", *key[1:],
                *(_spelled(_values(row, field)) for field in ("initial", "best")),
                ", ".join(map(str, lengths)), *figures[text][key],
            ))  # fmt: skip
        yield Table(title, columns, tuple(rows))
    repeated = _repeated(result)
    over_seeds = ": mean over seeds, and the largest spread of either side" if repeated else ""
    yield Table(
        f"What is gained, bits a byte{over_seeds}",
        ("", *result),
        tuple(
            (
                name,
                *(
                    f"{mean:.4f}, {spread:.4f}" if repeated else f"{mean:.4f}"
                    for mean, spread in map(gain, _rows(result))
                ),
            )
            for name, gain in _GAINS.items()
        ),
    )


def pictures(result: Result) -> Iterable[Picture]:
    """A point for each seed of each cell."""

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(result), sharey=False)
        for axes, (text, rows) in zip(panels, result.items(), strict=True):
            for n, row in enumerate(rows):
                axes.plot(_values(row, "initial"), [n] * len(row["seeds"]), "o", color="C0")
                axes.plot(_values(row, "best"), [n] * len(row["seeds"]), "x", color="C1")
            names = [str(_variant(row)) for row in rows]
            axes.set_yticks(range(len(rows)), names)
            axes.invert_yaxis()
            axes.set(title=text, xlabel="bits a byte")
            axes.grid(axis="x", alpha=0.3)

    means = "; ".join(
        f"{text}, {_variant(row)}, {np.mean(_values(row, 'best')):.3f}"
        for text, rows in result.items()
        for row in rows
    )
    yield Picture(
        "Ablation",
        "Bits a byte of each variant, a point for each seed: with the attention length of training "
        "(circles) and with the best one (crosses).",
        f"A panel for each text, a row for each variant. Means with the best length: {means}.",
        draw,
        (10.0, 4.2),
    )


def statements(result: Result) -> Iterable[Statement]:
    """That both help by more than the spread, and less where sentences have no order."""
    in_order, shuffled = _rows(result)
    repeated = _repeated(result)

    def over_seeds(spread: float) -> str:
        return f"seeds spread {spread:.4f}" if repeated else "one seed has no spread"

    for name, gain in _GAINS.items():
        mean, spread = gain(in_order)
        yield Statement(
            f"{name[0].upper()}{name[1:]} helps.",
            Estimate(mean, spread).is_above(0) if repeated else None,
            f"By {mean:.4f} bits a byte; {over_seeds(spread)}",
        )
    (mean, spread), (less, other) = (_GAINS["recurrence"](rows) for rows in (in_order, shuffled))
    yield Statement(
        "Recurrence helps less where sentences are in random order.",
        Estimate(mean - less, max(spread, other)).is_above(0) if repeated else None,
        f"By {less:.4f} instead of {mean:.4f} bits a byte; {over_seeds(max(spread, other))}",
    )


Rows = dict[Variant, dict[str, Any]]


def _rows(result: Result) -> list[Rows]:
    return [{_variant(row): row for row in rows} for rows in result.values()]


def _variant(row: dict[str, Any]) -> Variant:
    return Variant(row["recurrence"], row["attn_type"], row["loss"])


def _gain(rows: Rows, of: Variant, over: Variant) -> tuple[float, float]:
    """How many bits a byte fewer one needs than the other, and the largest range over seeds."""
    ours, theirs = (_values(rows[variant], "best") for variant in (of, over))
    return float(np.mean(theirs) - np.mean(ours)), float(max(np.ptp(ours), np.ptp(theirs)))


_GAINS = {
    "recurrence": partial(_gain, of=Variant(), over=Variant(recurrence=False)),
    "the paper's encoding, against Shaw's,": partial(
        _gain, of=Variant(), over=Variant(attn_type="shaw")
    ),
}


def _values(row: dict[str, Any], field: str) -> list[float]:
    return [each[field] for each in row["seeds"]]


def _spelled(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}"


def _repeated(result: Result) -> bool:
    return len(result["in order"][0]["seeds"]) > 1


STUDY = Study(
    "ablation",
    "Ablation",
    __doc__ or "",
    Setting(model=QUICK_MODEL, train=QUICK_TRAIN, seeds=(0,), lengths=(2,)),
    Setting(),
    run,
    tables,
    pictures,
    statements,
    text_of,
)
