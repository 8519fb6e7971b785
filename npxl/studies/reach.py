r"""Reach (Dai et al. 2019, section 3.2): what a prediction depends on, and how much.

A segment reads the states of the segment before, and they those of the one before theirs, a layer
below. So "the largest possible dependency length grows linearly w.r.t. the number of layers as well
as the segment length, i.e., $O(N \times L)$" (section 3.2). With a window of $W$ keys it is exactly
$N (W - 1)$: in random configurations every token is exchanged in turn, and the predictions that
change by at least one bit are held against it.

How much of its reach a trained model uses is measured in three ways, by distance $\delta$: the norm
$\lVert \partial \ell_t / \partial x_{t-\delta} \rVert$ of a loss's gradient; what attention passes
on, the last row of $\prod_n (A_n + I) / 2$; and the probability that moves when a token is
exchanged, $\frac{1}{2} \sum_x |p(x) - p'(x)|$.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.invariants import cut
from npxl.audit.reach import furthest, measured_reach, predicted_reach
from npxl.config import AttentionType, ModelConfig
from npxl.config.checks import require_int
from npxl.models.transformer_xl import TransformerXL
from npxl.page.pictures import INK, Picture
from npxl.studies.frame import Result, Statement, Study, Table, octaves, spelled
from npxl.studies.influence import by_attention, by_exchange, by_gradient
from npxl.studies.lab import Lab
from npxl.studies.settings import QUICK_MODEL, QUICK_TRAIN, TextSetting

Array = NDArray[Any]

_LENGTH = 24
"""Tokens of a text in which every token is exchanged in turn."""


@dataclass(frozen=True)
class Setting(TextSetting):
    """Random configurations to find the reach of, and a trained model to find influences in."""

    n_configurations: int = 10
    n_texts: int = 64
    """Of the trained model's reach, with a window of mem_len + 1 keys."""
    n_distances: int = 24
    """At which tokens are exchanged."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_configurations", "n_texts", "n_distances"):
            require_int(self, name, minimum=1)
        require_int(self, "seed", minimum=0)

    @property
    def n_models(self) -> int:
        """That of the preset."""
        return 1


def random_model(draw: np.random.Generator) -> TransformerXL:
    """Of any form whose reach is exact, W ≤ mem_len + 1, and short enough to be seen."""
    n_layer, window = int(draw.integers(1, 5)), int(draw.integers(2, 6))
    attn_type: AttentionType = "dai" if draw.random() < 0.5 else "shaw"
    config = ModelConfig(
        vocab_size=11, n_layer=n_layer, n_head=2, d_model=8, d_head=4, d_inner=8,
        mem_len=window - 1 + int(draw.integers(0, 3)), attn_window=window, attn_type=attn_type,
        clamp_len=None if attn_type == "dai" else 6, pre_lnorm=bool(draw.integers(2)),
        init_std=0.4,  # so large that nothing is lost in rounding
    )  # fmt: skip
    return TransformerXL(config, seed=int(draw.integers(2**31)), dtype=np.float64)


def text_of(setting: Setting, lab: Lab) -> Array:
    """Tokens that have a text as long as the reach, one before it, and a target."""
    reach = setting.model.n_layer * setting.model.mem_len
    return np.asarray(lab.split(at_least=reach + 3).tokens, np.int64)


def run(setting: Setting, lab: Lab) -> Result:
    """The reach of random configurations, bit by bit; and three influences in a trained model."""
    window = setting.model.mem_len + 1
    reach = setting.model.n_layer * (window - 1)
    tokens = text_of(setting, lab)

    def exact() -> list[dict[str, Any]]:
        found = []
        for n in lab.track(range(setting.n_configurations), "configurations"):
            draw = np.random.default_rng((setting.seed, n))
            model = random_model(draw)
            lengths = cut(draw, _LENGTH)
            tokens = draw.integers(0, model.config.vocab_size, _LENGTH)
            moved = measured_reach(model, tokens, lengths)[-1]  # [s, t]
            expected = predicted_reach(model, lengths)[-1]
            found.append({
                "n_layer": model.config.n_layer, "window": model.config.attn_window,
                "mem_len": model.config.mem_len, "attn_type": model.config.attn_type,
                "segments": lengths, "reach": model.config.reach, "furthest": furthest(moved),
                "wrong": int((moved != expected).sum()), "moved": moved.astype(int).tolist(),
            })  # fmt: skip
        return found

    trained = lab.transformer(setting.model, setting.train)
    windowed = trained.reconfigured(mem_len=0, attn_window=window)
    windowed = windowed.astype(np.float64)  # so that what is small is not lost in rounding
    starts = np.linspace(0, len(tokens) - reach - 3, setting.n_texts).astype(int)
    texts = tokens[starts[:, None] + np.arange(reach + 3)]  # one more than reaches, and a target

    def influence() -> dict[str, Any]:
        draw = np.random.default_rng((setting.seed, setting.n_configurations))
        spread = np.geomspace(1, reach + 1, setting.n_distances)
        distances = sorted({0, reach, *np.round(spread).astype(int).tolist()})
        gradient, attention = (
            np.mean(
                [measure(windowed, text[None])[0] for text in lab.track(list(texts), name)], axis=0
            ).tolist()
            for measure, name in ((by_gradient, "gradient"), (by_attention, "attention"))
        )
        exchange = [
            float(by_exchange(windowed, texts, distance, draw).mean())
            for distance in lab.track(distances, "exchange")
        ]
        return {
            "gradient": gradient, "attention": attention,
            "exchange": exchange, "exchanged": distances,
        }  # fmt: skip

    return {
        "exact": lab.part("exact", exact),
        "trained_reach": reach,
        "n_layer": setting.model.n_layer,
        "window": window,
        **lab.part("influence", influence),
    }


def tables(result: Result) -> Iterable[Table]:
    """The configurations, and the influences by octave of distance."""
    names = ("n_layer", "window", "mem_len", "attn_type", "reach", "furthest", "wrong")
    columns = (
        "layers N", "window W", "memory", "encoding", "N (W − 1)", "furthest that moves it",
        "pairs that differ",
    )  # fmt: skip
    rows = tuple(tuple(each[name] for name in names) for each in result["exact"])
    yield Table("Reach of random configurations, in tokens", columns, rows)
    gradient, attention = (np.array(result[name]) for name in ("gradient", "attention"))
    yield Table(
        "Influence on a prediction by distance, mean of each octave",
        ("distance", "gradient, nats", "attention", "exchange"),
        tuple(
            (
                spelled(distances),
                float(gradient[distances].mean()),
                float(attention[distances].mean()),
                _mean_within(distances, result),
            )
            for distances in octaves(len(gradient))
        ),
    )


def pictures(result: Result) -> Iterable[Picture]:
    """Who moves whom in the deepest configuration, and influences by distance."""
    deepest = max(result["exact"], key=lambda each: each["reach"])

    def moved(figure: Any) -> None:
        axes = figure.subplots()
        axes.imshow(deepest["moved"], cmap="Blues", vmax=1.5)
        for edge in np.cumsum(deepest["segments"])[:-1]:
            axes.axvline(edge - 0.5, color=INK, linewidth=0.6)
            axes.axhline(edge - 0.5, color=INK, linewidth=0.6)
        axes.set(xlabel="prediction after token", ylabel="token that is exchanged")

    def influences(figure: Any) -> None:
        axes = figure.subplots()
        for name in _RAW:
            values = np.array(result[name][: reach + 1])
            axes.plot(np.arange(1, reach + 2), values / values[0], label=name, linewidth=1)
        values = np.array(result["exchange"][:-1])
        axes.plot(np.add(result["exchanged"][:-1], 1), values / values[0], ".-", label="exchange")
        axes.axvline(reach + 1, color=INK, linewidth=0.8, linestyle=":")
        axes.set(
            xscale="log", yscale="log", xlabel="distance + 1",
            ylabel="influence, relative to the last token's",
        )  # fmt: skip
        axes.legend()

    yield Picture(
        "Reach, bit by bit",
        f"Which predictions change by at least one bit (blue) when a token is exchanged: N = "
        f"{deepest['n_layer']} layers with a window of W = {deepest['window']} keys, so that "
        f"$N (W - 1) = {deepest['reach']}$; lines are where segments begin.",
        f"A field of {_LENGTH} × {_LENGTH} pairs, of which {np.sum(deepest['moved'])} are blue, up "
        f"to {deepest['furthest']} tokens right of the diagonal; {deepest['wrong']} pairs are not "
        "as that number of tokens says.",
        moved,
        (7.0, 3.8),
    )
    reach = result["trained_reach"]
    ends = "; ".join(
        f"{name}, from {result[name][0]:.2g} to {result[name][reach]:.2g}" for name in _RAW
    )
    ends += f"; exchange, from {result['exchange'][0]:.2g} to {result['exchange'][-2]:.2g}"
    yield Picture(
        "Influence by distance",
        "In a trained model: the norm of the gradient of a loss, what attention passes on "
        "through all layers, and how far the prediction moves when a token is exchanged. Beyond "
        f"the reach (dotted) the largest is {_beyond(result):g}.",
        f"Three curves from distance 0 to {reach}, each divided by its first value: {ends}.",
        influences,
        (7.0, 4.2),
    )


def statements(result: Result) -> Iterable[Statement]:
    """That the reach is exact, and is used up to where."""
    exact, reach = result["exact"], result["trained_reach"]
    yield Statement(
        "A prediction depends on exactly the N (W − 1) tokens before it.",
        all(each["wrong"] == 0 and each["furthest"] == each["reach"] for each in exact),
        f"{sum(each['wrong'] for each in exact)} of "
        f"{sum(len(each['moved']) ** 2 for each in exact):,} pairs of tokens and predictions of "
        f"{len(exact)} configurations differ from it",
    )
    beyond = _beyond(result)
    yield Statement(
        "In a trained model, too, the furthest token that has an influence is N (W − 1) away.",
        beyond == 0 and result["exchange"][-2] > 0,
        f"At {reach} tokens an exchange moves {result['exchange'][-2]:.2g} of the probability; "
        f"beyond it the largest influence is {beyond:g}",
    )
    window = result["window"]
    gradient = np.array(result["gradient"])
    share = float(gradient[window:].sum() / gradient.sum())
    yield Statement(
        "Context that is made use of grows with depth beyond what one layer sees.",
        share >= _SHARE,
        f"{share:.2%} of the gradient is on tokens that are further than the window of {window}; "
        f"{_SHARE:.0%} or more counts",
    )


_RAW = ("gradient", "attention")
_SHARE = 0.01


def _beyond(result: Result) -> float:
    """The largest influence from further than the reach of the trained model."""
    further = [result[name][result["trained_reach"] + 1 :] for name in _RAW]
    return float(np.abs([*np.concatenate(further), result["exchange"][-1]]).max())


def _mean_within(distances: range, result: Result) -> float | None:
    values = [
        value
        for distance, value in zip(result["exchanged"], result["exchange"], strict=True)
        if distance in distances
    ]
    return float(np.mean(values)) if values else None


STUDY = Study(
    "reach",
    "Reach",
    __doc__ or "",
    Setting(model=QUICK_MODEL, train=QUICK_TRAIN, n_texts=16, n_distances=8),
    Setting(),
    run,
    tables,
    pictures,
    statements,
    text_of,
)
