"""Every gradient against central differences and complex steps; docs/gradcheck.md."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from npxl.audit.frame import Check, Figure, Progress, Result, Section, Subject
from npxl.audit.gradients import gradcheck
from npxl.audit.report import GradientReport
from npxl.layers.dropout import MaskKey

_BATCH_SIZE = 2


def _segment(
    name: str, tgt_len: int, after_memory: bool, dropout: bool, subject: Subject, progress: Progress
) -> Iterable[Result]:
    """A row for each tensor, of every entry of its gradient at one segment."""
    model, draw = subject.model(), subject.draw(f"gradients/{name}")
    config, memory = model.config, model.init_memory(_BATCH_SIZE)
    shapes = {"before": config.mem_len + 2, "inputs": config.ext_len + tgt_len, "targets": tgt_len}
    tokens = {
        what: draw.integers(0, config.vocab_size, (_BATCH_SIZE, length))
        for what, length in shapes.items()
    }
    if after_memory:
        _, memory = model.log_probs(tokens["before"], memory)
    report = gradcheck(
        model, tokens["inputs"], tokens["targets"], memory,
        MaskKey(subject.seed) if dropout else None,
        entries=None, seed=subject.seed, progress=progress,
    )  # fmt: skip
    return rows(report)


def rows(report: GradientReport) -> Iterable[Result]:
    """A row for each tensor."""
    for check in report.tensors:
        figures = {
            "complex": Figure(check.complex_step.relative, report.complex_tolerance),
            "direction": Figure(check.direction, report.complex_tolerance),
            "central": Figure(check.best_central.relative, report.central_tolerance),
            "order": Figure(check.order),
        }
        yield Result(check.name, figures, data=check)


_SEGMENTS = {
    "after-memory": (4, True, True, "A segment of 4 tokens after memory, with dropout."),
    "one-token": (1, True, False, "A segment of a single token after memory."),
    "first-segment": (3, False, False, "A segment of 3 tokens without memory before it."),
}

GRADIENTS = Section(
    name="gradients",
    title="Gradients of every tensor",
    proves="The hand-written backward pass is the derivative of the forward pass.",
    checks=tuple(
        Check(
            name,
            proves,
            r"\frac{\partial L}{\partial \theta} = \frac{L(\theta + h) - L(\theta - h)}{2h}"
            r" + O(h^2) = \frac{\operatorname{Im} L(\theta + ih)}{h} + O(h^2)",
            partial(_segment, name, tgt_len, after_memory, dropout),
        )
        for name, (tgt_len, after_memory, dropout, proves) in _SEGMENTS.items()
    ),
)
