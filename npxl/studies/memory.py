r"""Reusing states (Dai et al. 2019, section 3.3): which encodings bear a memory, and how long.

States can be reused if what a query knows of their positions is their distance. With positions that
are added, a model that reads $E_\tau + U_{1 \dots L}$ and then $E_{\tau+1} + U_{1 \dots L}$ "has no
information to distinguish the positional difference" (section 3.3). Here places are counted from
the end of the keys, memory and segment together, so that it is not the first layer that confuses
them, but those above it: the states that they find in memory have the places of an earlier segment
in them. An encoding of distances also generalises to memories longer than those of training
(section 4.1).

The loss of a text is measured with memories from none to many times that of training: for the
paper's encoding (dai) and the two encodings of places, sinusoids (vaswani) and a learned table
(al-rfou), each trained with the same memory and, as the paper's Transformers with places are,
without any. Distances and places beyond those of training are also clamped to the furthest of them;
a learned table has no others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from npxl.config import AttentionType
from npxl.errors import NpxlError
from npxl.inference import score
from npxl.models.transformer_xl import TransformerXL
from npxl.page.pictures import INK, Picture
from npxl.studies.frame import Cell, Result, Statement, Study, Table
from npxl.studies.lab import Lab
from npxl.studies.paper import EVALUATED_WITH, TRAINED_FOR
from npxl.studies.settings import QUICK_MODEL, QUICK_TRAIN, TextSetting, Variant
from npxl.studies.statistics import N_BLOCKS, Estimate, over_text
from npxl.threads import available_cores

Array = NDArray[Any]

_HARM = 0.01
"""Nats: a cost that is surely above this is harm, one that is surely below it is none."""
_ENCODINGS: tuple[AttentionType, ...] = ("dai", "vaswani", "al-rfou")


@dataclass(frozen=True)
class Setting(TextSetting):
    """Memory lengths of evaluation, in multiples of that of training, among which are 0 and 1."""

    multiples: tuple[float, ...] = (0, 0.25, 0.5, 1, 2, 4, 8, 16, 32)

    @property
    def n_models(self) -> int:
        """Each encoding, trained with memory and without."""
        return 2 * len(_ENCODINGS)


def text_of(setting: Setting, lab: Lab) -> Array:
    """Tokens that fill the longest memory, and a loss for each block after them."""
    return lab.split(at_least=max(lengths_of(setting)) + N_BLOCKS + 1).tokens


def lengths_of(setting: Setting) -> list[int]:
    """Of memories, from the shortest."""
    return sorted({round(multiple * setting.model.mem_len) for multiple in setting.multiples})


def run(setting: Setting, lab: Lab) -> Result:
    """Losses by memory length; differences, on the same tokens, from no memory and training's.

    Of tokens after those that fill the longest memory.
    """
    trained_with, tgt_len = setting.model.mem_len, setting.train.tgt_len
    multiples = setting.multiples
    if not {0, 1} <= set(multiples) or max(multiples) <= 1 or trained_with == 0:
        raise NpxlError(
            f"multiples are {multiples} of a mem_len of {trained_with}, but losses with no memory, "
            "with that of training and with a longer one are compared: pass 0, 1 and more among "
            "them, and a model that has a memory."
        )
    furthest = tgt_len + trained_with - 1  # distance that training has shown
    tokens, lengths = text_of(setting, lab), lengths_of(setting)

    def model(attn_type: AttentionType, recurrence: bool) -> TransformerXL:
        variant = Variant(recurrence, attn_type)
        return lab.transformer(*variant.of(setting.model, setting.train))

    models: dict[str, TransformerXL] = {}
    for name in _ENCODINGS:
        models[name] = model(name, True)
        if models[name].config.clamp_len is None:
            models[f"{name}, clamped"] = models[name].reconfigured(clamp_len=furthest)
        models[f"{name}, trained without"] = model(name, False)

    def measure(name: str) -> list[dict[str, Any]]:
        every = []
        for mem_len in lengths:
            read = models[name].reconfigured(mem_len=mem_len)
            nll = score(read, tokens, tgt_len, n_workers=available_cores()).astype(float)
            every.append(nll[max(lengths) :])
        without, as_trained = every[lengths.index(0)], every[lengths.index(trained_with)]
        return [
            {
                "loss": over_text(nll),
                "change": over_text(nll - without),
                "over_trained": over_text(nll - as_trained),
            }
            for nll in every
        ]

    curves = {name: lab.part(name, partial(measure, name)) for name in models}
    return {"lengths": lengths, "trained_with": trained_with, "curves": curves}


def tables(result: Result) -> Iterable[Table]:
    """Losses, and what a memory changes."""
    names = tuple(result["curves"])
    for title, field in (
        ("Loss by memory length of evaluation, nats", "loss"),
        ("Change of the loss by the memory, nats", "change"),
        ("Change of the loss from that with the memory of training, nats", "over_trained"),
    ):
        rows: list[tuple[Cell, ...]] = []
        for i, mem_len in enumerate(result["lengths"]):
            estimates = [Estimate(*result["curves"][name][i][field]) for name in names]
            rows.append((mem_len, *map(str, estimates)))
        yield Table(title, ("memory", *names), tuple(rows))


def pictures(result: Result) -> Iterable[Picture]:
    """A curve for each model."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        colors = {name: f"C{n}" for n, name in enumerate(_ENCODINGS)}
        styles = {"": ".-", " clamped": ".:", " trained without": ".--"}
        for name, curve in result["curves"].items():
            means, errors = zip(*(point["loss"] for point in curve), strict=True)
            encoding, *other = name.split(",")
            axes.errorbar(
                result["lengths"], means, errors, label=name, capsize=2,
                color=colors[encoding], fmt=styles["".join(other)],
            )  # fmt: skip
        axes.axvline(result["trained_with"], color=INK, linewidth=0.8, linestyle=":")
        axes.set_xscale("symlog", linthresh=max(1, result["trained_with"] // 4))
        axes.set(xlabel="memory in evaluation, tokens", ylabel="loss, nats")
        figure.legend(loc="outside right upper")

    ends = "; ".join(
        f"{name}, from {curve[0]['loss'][0]:.3f} to {curve[-1]['loss'][0]:.3f} nats"
        for name, curve in result["curves"].items()
    )
    yield Picture(
        "Memory in evaluation",
        f"Mean loss with memories of other lengths than in training, {result['trained_with']} "
        "(dotted); bars are 95 % intervals over blocks of the text.",
        f"A curve for each model, from no memory to {result['lengths'][-1]} tokens: {ends}.",
        draw,
        (8.5, 4.5),
    )


def statements(result: Result) -> Iterable[Statement]:
    """That states can be reused with distances, and cannot with places."""
    curves, at = result["curves"], result["lengths"].index(result["trained_with"])

    def change(name: str, i: int = at) -> Estimate:
        return Estimate(*curves[name][i]["change"])

    def longest(name: str) -> Estimate:
        return Estimate(*curves[name][-1]["over_trained"])

    helped, further = change("dai"), longest("dai")
    harms = further.is_above(_HARM)
    times = f"{result['lengths'][-1] / result['trained_with']:g}"
    yield Statement(
        "With an encoding of distances, memory helps.",
        Estimate(-helped.mean, helped.error).is_above(0),
        f"{helped} nats with the memory of training",
    )
    yield Statement(
        f"With an encoding of distances, a memory {times} times as long as in training is no harm.",
        None if harms is None else not harms,
        f"{further} nats, {longest('dai, clamped')} with clamped distances, where more than "
        f"{_HARM} is harm; the paper goes from {TRAINED_FOR} in training to {EVALUATED_WITH:,} in "
        "evaluation on enwik8",
    )
    for name in ("vaswani", "al-rfou"):
        harmed = change(f"{name}, trained without")
        yield Statement(
            f"With an encoding of places, a memory that training has not shown is harm ({name}).",
            harmed.is_above(_HARM),
            f"{harmed} nats with the same memory, and {change('dai, trained without')} with an "
            "encoding of distances that was trained without",
        )
    for name in ("vaswani", "al-rfou"):
        harmed = longest(name)
        clamped = (
            f", {longest('vaswani, clamped')} with clamped places" if name == "vaswani" else ""
        )
        yield Statement(
            f"With an encoding of places, a memory longer than in training is harm ({name}).",
            harmed.is_above(_HARM),
            f"{change(name)} nats with the memory of training, {harmed} more with the longest"
            f"{clamped}",
        )


STUDY = Study(
    "memory",
    "Memory in evaluation",
    __doc__ or "",
    Setting(model=QUICK_MODEL, train=QUICK_TRAIN, multiples=(0, 1, 4)),
    Setting(),
    run,
    tables,
    pictures,
    statements,
    text_of,
)
