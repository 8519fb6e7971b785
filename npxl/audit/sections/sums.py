"""Gradients that are sums: of a tensor's uses, of streams, of targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Check, Figure, Progress, Result, Subject
from npxl.audit.segments import Segment, segment
from npxl.config import LanguageModelConfig, with_options
from npxl.models.architectures import model_class
from npxl.models.segment_model import SegmentModel

Array = NDArray[Any]

TOLERANCE = 1e-13
_LEAST_USE = 1e-6
_TGT_LEN = 4


def _run_tied(subject: Subject, progress: Progress) -> Iterator[Result]:
    """Against a model that has a tensor of its own for each use, with the same values."""
    tied = subject.model()
    config = tied.config
    apart = with_options(config, tie_weight=False, tie_projs=())
    if config.shares_biases:
        apart = with_options(apart, untie_r=True)
    untied: SegmentModel = model_class(apart)(apart, dtype=np.float64)
    uses: dict[str, list[str]] = {}
    for name, tensor in untied.params.items():
        source = _source(name, config)
        tensor[...] = tied.params[source]
        uses.setdefault(source, []).append(name)
    shared = {source: names for source, names in uses.items() if len(names) > 1}
    if not shared:
        yield Result.nothing("tensors", "No tensor is used in two places.")
        return
    part = segment(subject, tied, "structure/tied", _TGT_LEN)
    total, single = (_gradient(model, part, part.dnll) for model in (tied, untied))
    for source, names in shared.items():
        terms = [single[name] for name in names]
        largest = np.abs(total[source]).max()
        error = np.abs(total[source] - sum(terms)).max() / largest
        least = min(np.abs(term).max() for term in terms) / largest
        figures = {
            "error": Figure(float(error), TOLERANCE),
            "least use": Figure(float(least), at_least=_LEAST_USE),
        }
        yield Result(source, figures, f"{len(names)} uses: {', '.join(names)}.")


def _source(name: str, config: LanguageModelConfig) -> str:
    """The tensor of the model with ties that an untied model's tensor is a use of."""
    parts = name.split(".")
    if config.shares_biases and parts[-2:] in (["attention", "u"], ["attention", "v"]):
        return ".".join(parts[-2:])
    if parts[0] == "softmax" and parts[-1] == "weight" and config.tie_weight:
        return name.replace("softmax", "embedding")
    if parts[0] == "softmax" and parts[-1] == "projection":
        cluster = int(parts[1])
        if config.tie_projs and config.tie_projs[cluster]:
            return (
                "embedding.projection" if config.div_val == 1 else f"embedding.{cluster}.projection"
            )
    return name


def _run_sums(subject: Subject, progress: Progress) -> Iterator[Result]:
    model = subject.model()
    part = segment(subject, model, "structure/sums", _TGT_LEN)
    total = _flat(model, part, part.dnll)
    largest = np.abs(total).max()
    batch_size, tgt_len = part.targets.shape
    streams = sum(_flat(model, part.stream(b), part.dnll[b : b + 1]) for b in range(batch_size))
    cotangents = [np.zeros_like(part.dnll) for _ in range(part.dnll.size)]
    for cotangent, place in zip(cotangents, np.ndindex(batch_size, tgt_len), strict=True):
        cotangent[place] = part.dnll[place]
    targets = sum(_flat(model, part, cotangent) for cotangent in cotangents)
    for name, parts, detail in (
        ("streams", streams, f"{batch_size} streams, each with its memory, one at a time."),
        (
            "targets",
            targets,
            f"{part.dnll.size} targets: it is linear in the cotangents.",
        ),
    ):
        yield Result.of(name, np.abs(total - parts).max() / largest, TOLERANCE, detail)


def _gradient(model: SegmentModel, part: Segment, dnll: Array) -> Any:
    fwd = model.forward(part.inputs, part.targets, part.memory)
    return model.backward(fwd, dnll)


def _flat(model: SegmentModel, part: Segment, dnll: Array) -> Array:
    flat: Array = _gradient(model, part, dnll).flat
    return flat


TIED = Check(
    name="tied",
    proves="The gradient of a tensor that is used in several places is the sum of those that the "
    "same model has without the tie. Each use has to matter: `least use` is the smallest of them.",
    equation=r"\frac{\partial L}{\partial \theta} = \sum_k \frac{\partial L}{\partial \theta_k}"
    r"\bigg|_{\theta_1 = \theta_2 = \dots = \theta}",
    run=_run_tied,
)
SUMS = Check(
    name="sums",
    proves="The gradient of a batch is the sum of its streams', and that of all targets the sum of "
    "what each of them gives alone.",
    equation=r"\nabla_\theta \sum_{b,t} \bar n_{bt} n_{bt} "
    r"= \sum_{b,t} \bar n_{bt} \nabla_\theta n_{bt}",
    run=_run_sums,
)
