"""What a trained model looks at: attention by layer, head and distance, and its part in memory.

The probabilities $a_{ij}$ of every head of a trained model are averaged by distance $i - j$ over a
text, and summed over the keys that are in memory. The paper shows such averages of one model and
finds that most heads look at what is near, and some at all of the memory (appendix D).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.config.checks import require_int
from npxl.data import ShuffledStreams, Streams
from npxl.page.pictures import INK, Picture
from npxl.studies.frame import Result, Statement, Study, Table, octaves, spelled
from npxl.studies.influence import probabilities
from npxl.studies.lab import Lab
from npxl.studies.settings import QUICK_MODEL, QUICK_TRAIN, TextSetting, filling

Array = NDArray[Any]


@dataclass(frozen=True)
class Setting(TextSetting):
    """Streams and segments that are looked at once the memory is full."""

    n_streams: int = 8
    n_segments: int = 16

    def __post_init__(self) -> None:
        for name in ("n_streams", "n_segments"):
            require_int(self, name, minimum=1)

    @property
    def n_models(self) -> int:
        """That of the preset."""
        return 1


def by_distance(attention: Array) -> Array:
    """What queries give to the key at each distance 0 … K − 1, summed over them: [..., K].

    attention is a [..., q, K]; the queries are those of the last q of the K positions.
    """
    n_queries, n_keys = attention.shape[-2:]
    sums = np.zeros((*attention.shape[:-2], n_keys))
    for i in range(n_queries):
        nearest_first = attention[..., i, n_keys - n_queries + i :: -1]
        sums[..., : nearest_first.shape[-1]] += nearest_first
    return sums


_READ = 0.01
"""Of a layer's attention: more than this in memory is reading it."""


def text_of(setting: Setting, lab: Lab) -> Streams | ShuffledStreams:
    """Streams of segments that fill the memory, and of those that are looked at."""
    tgt_len = setting.train.tgt_len
    n_segments = filling(setting.model, setting.train) + setting.n_segments
    n_read = setting.n_streams * n_segments * tgt_len
    return lab.split(at_least=n_read + 1).streams(setting.n_streams, tgt_len)


def run(setting: Setting, lab: Lab) -> Result:
    """Means over all queries of segments that are read with full memory."""
    mem_len, tgt_len = setting.model.mem_len, setting.train.tgt_len
    skipped, streams = filling(setting.model, setting.train), text_of(setting, lab)
    model = lab.transformer(setting.model, setting.train)

    def measure() -> dict[str, Any]:
        memory = model.init_memory(setting.n_streams)
        n_memory = min(mem_len, model.config.window(mem_len + tgt_len) - 1)  # that any query sees
        n_keys = n_memory + tgt_len
        n_queries = 0
        heads = (setting.model.n_layer, setting.model.n_head)
        distances = np.zeros((*heads, n_keys))
        in_memory, entropy = np.zeros(heads), np.zeros(heads)
        own = 1 + np.arange(tgt_len)  # keys of the segment that are not after the query
        seen = np.minimum(n_memory + own, model.config.window(n_keys))
        even = (np.arange(n_keys) < seen[:, None]) / seen[:, None]  # [T, K], by distance
        for segment in lab.track(range(skipped + setting.n_segments), "segments"):
            inputs, targets = streams.batch(segment * tgt_len)
            fwd = model.forward(inputs, targets, memory)
            memory = fwd.memory
            if segment < skipped:
                continue
            a = probabilities(model, fwd).astype(float)  # [N, B, H, q, K]
            n_queries += inputs.size
            distances += by_distance(a).sum(1)  # [N, H, K]
            in_memory += a[..., :n_memory].sum((1, 3, 4))  # [N, H]
            entropy -= (a * np.log(np.maximum(a, 1e-30))).sum((1, 3, 4))
        shares = distances / n_queries
        return {
            "by_distance": shares.tolist(),
            "in_memory": (in_memory / n_queries).tolist(),
            "by_distance_if_even": even.mean(0).tolist(),
            "in_memory_if_even": float((1 - np.minimum(own / seen, 1)).mean()),
            "mean_distance": (shares @ np.arange(n_keys)).tolist(),
            "effective_keys": np.exp(entropy / n_queries).tolist(),
        }

    return {"mem_len": mem_len, "tgt_len": tgt_len, **lab.part("attention", measure)}


def tables(result: Result) -> Iterable[Table]:
    """By head, and by distance."""
    figures = ("in_memory", "mean_distance", "effective_keys")
    rows = [
        (layer + 1, head + 1, *(result[figure][layer][head] for figure in figures))
        for layer, heads in enumerate(result["in_memory"])
        for head in range(len(heads))
    ]
    columns = ("layer", "head", "in memory", "mean distance", "keys looked at")
    yield Table("Attention by head", columns, tuple(rows))
    layers = np.array(result["by_distance"]).mean(1)  # [N, K]
    yield Table(
        "Share of attention by distance",
        ("distance", *(f"layer {n + 1}" for n in range(len(layers)))),
        tuple(
            (spelled(distances), *map(float, layers[:, distances].sum(1)))
            for distances in octaves(layers.shape[1])
        ),
    )


def pictures(result: Result) -> Iterable[Picture]:
    """Curves by distance, and a field of heads."""
    heads = np.array(result["by_distance"])  # [N, H, K]

    def by_distance(figure: Any) -> None:
        every = figure.subplots(1, len(heads), sharey=True, squeeze=False)[0]
        for n, (axes, layer) in enumerate(zip(every, heads, strict=True)):
            for head in layer:
                axes.plot(np.arange(1, len(head) + 1), head, linewidth=1)
            axes.axvline(result["tgt_len"], color=INK, linewidth=0.8, linestyle=":")
            axes.set(xscale="log", yscale="log", title=f"layer {n + 1}", xlabel="distance + 1")
            axes.set_ylim(1e-5, 1)
        every[0].set_ylabel("share of attention")

    def in_memory(figure: Any) -> None:
        axes = figure.subplots()
        shares = np.array(result["in_memory"])
        image = axes.imshow(shares, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        for (n, head), share in np.ndenumerate(shares):
            axes.text(
                head, n, f"{share:.0%}", ha="center", va="center",
                color="white" if share < 0.6 else "black",
            )  # fmt: skip
        axes.set(xlabel="head", ylabel="layer")
        axes.set_xticks(range(shares.shape[1]), range(1, shares.shape[1] + 1))
        axes.set_yticks(range(len(shares)), range(1, len(shares) + 1))
        figure.colorbar(image, label="part of attention in memory")

    shares = ", ".join(f"{share:.1%}" for share in heads[..., result["tgt_len"] :].sum(-1).mean(1))
    yield Picture(
        "Attention by distance",
        "What a query gives to the key at each distance, on average, a line for each head. "
        f"Keys right of the dotted line, at {result['tgt_len']} tokens, are in memory for every "
        "query.",
        f"A panel for each layer, with a line for each of {heads.shape[1]} heads. Right of the "
        f"dotted line are {shares} of attention, layer by layer.",
        by_distance,
        (9.0, 3.2),
    )
    yield Picture(
        "Attention in memory",
        "The part of each head's attention that goes to keys in memory; "
        f"{result['in_memory_if_even']:.0%} if all keys were given the same.",
        "A field of percentages, one for each head of each layer.",
        in_memory,
        (6.0, 3.6),
    )


def statements(result: Result) -> Iterable[Statement]:
    """That memory is read, and what the paper's appendix D finds in its model."""
    in_memory = np.array(result["in_memory"])  # [N, H]
    layers = in_memory.mean(1)
    yield Statement(
        "Memory is read in every layer.",
        bool((layers > _READ).all()),
        f"{', '.join(f'{share:.1%}' for share in layers)} of attention, by layer, is in memory; "
        f"more than {_READ:.0%} counts",
    )
    by_distance = np.array(result["by_distance"])  # [N, H, K]
    nearest = max(1, by_distance.shape[-1] // 10)
    near = by_distance[..., :nearest].sum(-1) > 0.5
    yield Statement(
        "Most heads look at what is near.",
        bool(near.mean() > 0.5),
        f"{near.sum()} of {near.size} heads give more than half of their attention to the nearest "
        f"{nearest} of {by_distance.shape[-1]} keys",
    )
    n_far = max(1, by_distance.shape[-1] // 4)
    furthest = by_distance[..., -n_far:].sum(-1)
    if_even = float(np.sum(result["by_distance_if_even"][-n_far:]))
    all_over = furthest > if_even / 2
    yield Statement(
        "Some heads look at all of the memory.",
        bool(all_over.any()),
        f"{all_over.sum()} of {all_over.size} heads give the furthest quarter of distances more "
        f"than half of the {if_even:.1%} that it would get if all keys were given the same; the "
        f"most that one gives is {furthest.max():.1%}",
    )


STUDY = Study(
    "attention",
    "What attention is on",
    __doc__ or "",
    Setting(model=QUICK_MODEL, train=QUICK_TRAIN, n_segments=4),
    Setting(),
    run,
    tables,
    pictures,
    statements,
    text_of,
)
