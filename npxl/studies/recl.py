r"""Relative effective context length (Dai et al. 2019, section 4.4): who makes use of how much.

"Transformer-XL learns dependency that is 80% longer than RNNs and 450% longer than vanilla
Transformers" (abstract): what is measured is how much context a model still gains from, relative to
what the best model of its group makes of less (section 4.4, appendix C). With $\ell_i(c, t)$ the
loss of model $i$ at $x_t$ after the $c$ tokens before it, $b(c, t) = \min_i \ell_i(c, t)$, and $T$
the fraction $r$ of positions at which $b(c, t)$ is largest, let $f_i(c, c')$ be the mean over $t
\in T$ of $\min(b(c, t), \ell_i(c', t))$ and

$g_i(c, c') = \frac{\exp f_i(c, c) - \exp f_i(c, c')}{\exp f_i(c, c)}.$

From a short $c$ on, $c$ becomes $c' = c + \Delta$ as long as $g_i(c, c')$ is at least 1 %; the
effective length is the $c$ at which that ends. All models have about as many parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.config import LSTMConfig, TrainConfig
from npxl.config.checks import require_int, require_tuple
from npxl.errors import NpxlError
from npxl.inference import evaluate
from npxl.inference.sliding import score_windows
from npxl.models import LanguageModel
from npxl.models.transformer_xl import TransformerXL
from npxl.page.pictures import Picture
from npxl.studies.effective_context import (
    effective_context,
    gain,
    interval,
    own_change,
    resampled,
)
from npxl.studies.frame import Cell, Result, Statement, Study, Table, all_of
from npxl.studies.lab import Lab
from npxl.studies.paper import TABLE_8
from npxl.studies.settings import (
    LSTM_MODEL,
    LSTM_TRAIN,
    QUICK_MODEL,
    QUICK_TRAIN,
    TextSetting,
    Variant,
)
from npxl.studies.statistics import N_BLOCKS, Estimate
from npxl.threads import available_cores

Array = NDArray[Any]

RATIOS = (0.1, 0.5, 1.0)

_FEWEST_CONTEXTS = 3
"""Two that are compared, and one that says where predictions are hard."""

_NEARLY_ALL = 0.95

_VARIANTS = {
    "Transformer-XL": Variant(),
    "with Shaw's encoding": Variant(attn_type="shaw"),
    "without recurrence": Variant(recurrence=False),
    "Transformer": Variant(recurrence=False, attn_type="al-rfou", loss="half"),
}
COMPARED = (*_VARIANTS, "LSTM")


@dataclass(frozen=True)
class Setting(TextSetting):
    """Contexts step, 2·step, … up to a limit, after which the last n_positions are predicted."""

    compared: tuple[str, ...] = COMPARED
    """Models of the paper's Table 8, Transformer-XL among them."""
    lstm: LSTMConfig = LSTM_MODEL
    lstm_train: TrainConfig = LSTM_TRAIN
    step: int = 32
    longest: int = 768
    n_positions: int = 6000
    windows: tuple[int, ...] = (1, 2, 4, 8)
    """Attention lengths to choose from, in multiples of that of the model's own training."""
    n_resampled: int = 2000
    """Texts that are made of blocks of this one."""

    def __post_init__(self) -> None:
        for name in ("step", "longest", "n_positions", "n_resampled"):
            require_int(self, name, minimum=1)
        require_tuple(self, "windows", int, minimum=1)
        if not {COMPARED[0]} < set(self.compared) <= set(COMPARED):
            raise NpxlError(
                f"compared is {self.compared}, but it must be {COMPARED[0]} and others of "
                f"{', '.join(COMPARED[1:])}."
            )

    @property
    def n_models(self) -> int:
        """Those that are compared."""
        return len(set(self.compared))

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Of them, those in each group of the paper's."""
        return tuple(tuple(name for name in group if name in self.compared) for group in TABLE_8)


def text_of(setting: Setting, lab: Lab) -> Array:
    """Tokens that have so many positions after the longest context."""
    fewest = math.ceil(N_BLOCKS / min(RATIOS))  # so that the hardest have one for each block
    if setting.n_positions < fewest or setting.longest < _FEWEST_CONTEXTS * setting.step:
        raise NpxlError(
            f"There are {setting.n_positions} positions and contexts of {setting.step} to "
            f"{setting.longest} tokens in steps of {setting.step}, but at least {fewest} positions "
            f"and {_FEWEST_CONTEXTS} contexts are needed: pass a larger n_positions or longest."
        )
    split = lab.split(at_least=setting.longest + setting.n_positions)
    return np.asarray(split.tokens, np.int64)


def run(setting: Setting, lab: Lab) -> Result:
    """Losses by context of all models, until none gains by more of it, and the groups' RECL."""
    tokens = text_of(setting, lab)
    places = np.linspace(setting.longest, len(tokens) - 1, setting.n_positions).astype(int)
    transformers = {
        name: lab.transformer(*variant.of(setting.model, setting.train))
        for name, variant in _VARIANTS.items()
        if name in setting.compared
    }
    models: dict[str, LanguageModel] = {**transformers}
    if "LSTM" in setting.compared:
        models["LSTM"] = lab.trained(setting.lstm, setting.lstm_train).model("last")
    windows = {
        name: lab.part(f"attention length of {name}", partial(_best_window, model, tokens, setting))
        for name, model in transformers.items()
        if model.config.encodes_distances
    }
    # Who knows places by a table has none beyond a segment of training.
    at_most = {name: setting.train.tgt_len for name in transformers if name not in windows}
    for name, window in windows.items():
        models[name] = models[name].reconfigured(mem_len=0, attn_window=window)

    def measure(context: int) -> dict[str, list[float]]:
        found = {}
        for name in lab.track(list(models), f"context {context}"):
            seen = min(context, at_most.get(name, context))
            # ℓ(c, t) of x_t is of the pair of tokens t − 1 and t.
            nll = score_windows(models[name], tokens, places - 1, seen, available_cores())
            found[name] = nll.astype(float)
        return {name: losses.round(6).tolist() for name, losses in found.items()}

    contexts: list[int] = []
    losses: list[dict[str, list[float]]] = []
    for context in range(setting.step, setting.longest + 1, setting.step):
        contexts.append(context)
        losses.append(lab.part(f"losses after {context}", partial(measure, context)))
        groups = [_effective_contexts(contexts, losses, group) for group in setting.groups]
        several = [group for group in groups if len(group) > 1]
        ends = [ended for group in several for found in group.values() for _, ended in found]
        if all(ends) and len(contexts) >= _FEWEST_CONTEXTS:
            break
    return {
        "groups": groups,
        "contexts": contexts,
        "resampled": lab.part(
            f"resampled up to {contexts[-1]}",
            lambda: [_resampled(contexts, losses, group, setting) for group in setting.groups],
        ),
        "gains": [_gains(losses, group) for group in setting.groups],
        "loss": {name: [float(np.mean(each[name])) for each in losses] for name in models},
        "attention_lengths": windows,
        "parameters": {name: model.params.flat.size for name, model in models.items()},
    }


def _effective_contexts(
    contexts: list[int], losses: list[dict[str, list[float]]], group: Sequence[str]
) -> dict[str, list[tuple[int, bool]]]:
    """By model, for each r, its RECL, and whether a longer context was seen to gain too little."""
    array = _losses_of(group, losses)
    found = {}
    for i, name in enumerate(group):
        each = [effective_context(array, i, r) for r in RATIOS]
        found[name] = [(contexts[c], ended) for c, ended in each]
    return found


def _resampled(
    contexts: list[int],
    losses: list[dict[str, list[float]]],
    group: Sequence[str],
    setting: Setting,
) -> dict[str, dict[str, Any]]:
    """By model, for each r: the 95 % interval of its RECL over resampled texts.

    And at the smallest r, in which part of the texts it is shorter than the first model's, and in
    which it is longer.
    """
    array = _losses_of(group, losses)
    found = [resampled(array, r, setting.n_resampled) for r in RATIOS]
    first = found[0][:, 0]
    return {
        name: {
            "interval": [[contexts[c] for c in interval(each[:, i])] for each in found],
            "shorter": float(np.mean(found[0][:, i] < first)),
            "longer": float(np.mean(found[0][:, i] > first)),
        }
        for i, name in enumerate(group)
    }


def _gains(
    losses: list[dict[str, list[float]]], group: Sequence[str]
) -> dict[str, list[tuple[float, Estimate]]]:
    """By model, for each step of context, at the smallest r: its gain, and its own change."""
    array = _losses_of(group, losses)
    return {
        name: [
            (gain(array, *step, i, RATIOS[0]), own_change(array, *step, i, RATIOS[0]))
            for step in pairwise(range(len(losses)))
        ]
        for i, name in enumerate(group)
    }


def _losses_of(group: Sequence[str], losses: list[dict[str, list[float]]]) -> Array:
    """Of a group's models, [M, C, T]."""
    return np.array([[each[name] for each in losses] for name in group])


def _best_window(model: TransformerXL, tokens: Array, setting: Setting) -> int:
    """The attention length with the best score, as of the paper's Table 6."""
    trained_with = model.config.mem_len + setting.train.tgt_len

    def nll(window: int) -> float:
        read = model.reconfigured(mem_len=window - 1, attn_window=window)
        return evaluate(read, tokens, setting.train.tgt_len, n_workers=available_cores()).nll

    return min((trained_with * multiple for multiple in setting.windows), key=nll)


def tables(result: Result) -> Iterable[Table]:
    """A table for each group, as the paper's, with its figures beside."""
    groups = zip(result["groups"], result["resampled"], TABLE_8, strict=True)
    for n, (group, texts, paper) in enumerate(groups, start=1):
        rows: list[tuple[Cell, ...]] = []
        for name, figures in paper.items():
            ours: list[Cell] = [None] * len(RATIOS)
            if name in group:
                ours = [
                    f"{_spelled(each, result)} ({low}–{high})"
                    for each, (low, high) in zip(group[name], texts[name]["interval"], strict=True)
                ]
            rows.append((name, result["parameters"].get(name), *ours, *figures))
        columns = (
            f"group {n}", "parameters", *(f"r = {r:g}" for r in RATIOS),
            *(f"paper, r = {r:g}" for r in RATIOS),
        )  # fmt: skip
        yield Table(
            "Relative effective context length, in tokens (and that of 95 % of resampled texts, "
            f"of which none can be below {result['contexts'][0]} or above "
            f"{result['contexts'][-1]})",
            columns,
            tuple(rows),
        )
    for n, gains in enumerate(result["gains"], start=1):
        yield Table(
            f"Gain of a longer context at r = {RATIOS[0]:g}, in percent (and change of the model's "
            "own loss where predictions are hard, nats)",
            (f"group {n}: from", "to", *gains),
            tuple(
                (*step, *(f"{100 * found:.2f} ({Estimate(*own)})" for found, own in each))
                for step, *each in zip(pairwise(result["contexts"]), *gains.values(), strict=True)
            ),
        )
    names = tuple(result["loss"])
    yield Table(
        "Mean loss after a context of so many tokens, nats",
        ("context", *names),
        tuple(
            (context, *(result["loss"][name][c] for name in names))
            for c, context in enumerate(result["contexts"])
        ),
    )
    yield Table(
        "Attention length in evaluation, with the best score",
        ("model", "keys"),
        tuple(result["attention_lengths"].items()),
    )


def pictures(result: Result) -> Iterable[Picture]:
    """Losses by context."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, losses in result["loss"].items():
            axes.plot(result["contexts"], losses, ".-", label=name)
        # The shortest context, which a model may not be made for, would hide what follows it.
        every = result["loss"].values()
        low, high = min(map(min, every)), max(losses[:2][-1] for losses in every)
        margin = 0.1 * (high - low)
        axes.set_ylim(low - margin, high + 3 * margin)
        axes.set(xlabel="context, tokens", ylabel="loss, nats")
        axes.legend()

    ends = "; ".join(
        f"{name}, from {losses[0]:.3f} to {losses[-1]:.3f} nats"
        for name, losses in result["loss"].items()
    )
    yield Picture(
        "Loss by context",
        "Mean loss of the same tokens after so many tokens before them; what a model gains from "
        "more of them is what its effective context is measured by. What lies above is cut off.",
        f"A curve for each model, from {result['contexts'][0]} to {result['contexts'][-1]} tokens: "
        f"{ends}.",
        draw,
    )


def statements(result: Result) -> Iterable[Statement]:
    """That Transformer-XL's is the longest in both groups."""
    every = zip(result["groups"], result["resampled"], result["gains"], TABLE_8, strict=True)
    for group, texts, gains, paper in every:
        first, *others = group
        if not others:
            continue
        ours = {name: found[0] for name, found in group.items()}
        ratios = ", ".join(
            f"{ours[first][0] / ours[name][0]:.2f} times the {_spelled(ours[name], result)} of "
            f"{name} ({paper[first][0] / paper[name][0]:.2f} in the paper; longer on "
            f"{texts[name]['shorter']:.0%} of resampled texts, shorter on "
            f"{texts[name]['longer']:.0%})"
            for name in others
        )
        falls = [Estimate(-mean, error).is_above(0) is True for _, (mean, error) in gains[first]]
        yield Statement(
            f"{first} has a longer effective context than others: {', '.join(others)}.",
            all_of(_is_shorter(texts[name]) for name in others),
            f"At r = {RATIOS[0]:g} it is {_spelled(ours[first], result)} tokens, {ratios}; its "
            f"own loss where predictions are hard surely falls in {sum(falls)} of {len(falls)} "
            "steps of context",
        )


def _is_shorter(texts: dict[str, float]) -> bool | None:
    """Whether a model's RECL is shorter than the first one's on nearly all texts; or longer."""
    if texts["shorter"] >= _NEARLY_ALL:
        return True
    return False if texts["longer"] >= _NEARLY_ALL else None


def _spelled(found: tuple[int, bool], result: Result) -> str:
    """A RECL; at the shortest context that was measured it may be less, at the longest more."""
    context, ended = found
    if not ended:
        return f"≥ {context}"
    return f"≤ {context}" if context == result["contexts"][0] else f"{context}"


STUDY = Study(
    "recl",
    "Relative effective context length",
    __doc__ or "",
    Setting(
        model=QUICK_MODEL, train=QUICK_TRAIN, lstm=replace(LSTM_MODEL, n_layer=1, d_model=90),
        lstm_train=replace(QUICK_TRAIN, lr=LSTM_TRAIN.lr), step=16, longest=128, n_positions=320,
        windows=(1, 2), n_resampled=200,
    ),
    Setting(),
    run,
    tables,
    pictures,
    statements,
    text_of,
)  # fmt: skip
