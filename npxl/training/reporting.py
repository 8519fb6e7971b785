"""What a run says while it goes on: a live bar on a terminal, lines elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bar,
)

from npxl.training.checkpoints import Progress
from npxl.training.run import Run

_SMOOTHING = 0.95


@dataclass(frozen=True)
class StepReport:
    """One update."""

    step: int
    steps: int | None
    """Updates of the whole run, None while that is being measured."""
    nll: float
    """Mean over the batch, in nats a token."""
    bpc: float
    """The same in bits per character."""
    lr: float
    tokens: int
    """Predicted in this step."""
    seconds: float
    """That it took."""


class Reporter:
    """What the training loop tells; a context manager.  This one keeps it to itself."""

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *error: Any) -> None:
        """The loop has ended, maybe by an error."""

    def begin(self, run: Run, progress: Progress) -> None:
        """The loop is about to begin, or to continue, at `progress`."""

    def step(self, report: StepReport) -> None:
        """An update has been made."""

    def metrics(self, record: dict[str, Any]) -> None:
        """A line has been added to the metrics; docs/training.md describes it."""

    def evaluating(self, done: int, total: int) -> None:
        """`done` of `total` tokens of an evaluation are read; called from any thread."""

    def end(self, run: Run, progress: Progress) -> None:
        """The run is finished, or was stopped with everything saved, at `progress`."""


class ConsoleReporter(Reporter):
    """Reports on a console: a live bar if it is a terminal, a line for each metric if not."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
            speed_estimate_period=60,
            disable=not console.is_terminal,
        )
        self._training: TaskID | None = None
        self._evaluation: TaskID | None = None
        self._loss, self._bpc, self._speed = _Smooth(), _Smooth(), _Smooth()

    def __enter__(self) -> ConsoleReporter:
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.stop()

    def begin(self, run: Run, progress: Progress) -> None:
        """Say what is trained where, and how much of the text the vocabulary lacks."""
        action = f"Continuing at step {progress.step}" if progress.step else "Training"
        self._print(
            f"{action}: {run.n_parameters:,} parameters on {run.corpus.name} "
            f"({len(run.corpus.train):,} tokens), in {run.folder}"
        )
        corpus = run.corpus
        unknown = [
            f"{split.n_unknown:,} of {len(split):,} tokens for {purpose}"
            for purpose, split in (("training", corpus.train), ("validation", corpus.valid))
            if split is not None and split.n_unknown > 0
        ]
        if unknown:
            self._print(
                f"{' and '.join(unknown)} are not in the vocabulary and read as the unknown "
                "symbol; scores cannot be compared with those of a model that spells them."
            )
        self._training = self._bar.add_task(
            "compiling" if progress.step == 0 else "",
            total=progress.steps,
            completed=progress.step,
        )

    def step(self, report: StepReport) -> None:
        """Move the bar."""
        if self._training is None:
            return
        loss, bpc = self._loss.add(report.nll), self._bpc.add(report.bpc)
        speed = report.tokens / self._speed.add(report.seconds)
        self._bar.update(
            self._training,
            total=report.steps,
            completed=report.step,
            description=f"loss {loss:.3f}  {bpc:.3f} bpc  lr {report.lr:.1e}  {speed:,.0f} tok/s",
        )

    def metrics(self, record: dict[str, Any]) -> None:
        """A line for an evaluation, and without a bar also for training."""
        self._remove_evaluation()
        if record["split"] == "valid":
            self._print(
                f"step {record['step']:6}  validation: loss {record['nll']:.4f}  "
                f"{record['bpc']:.4f} bpc  {record['bpb']:.4f} bpb  "
                f"perplexity {record['ppl']:.2f}{'  (best)' if record['best'] else ''}"
            )
        elif not self._console.is_terminal:
            self._print(
                f"step {record['step']:6}  loss {record['nll']:.4f}  {record['bpc']:.4f} bpc  "
                f"lr {record['lr']:.1e}  gradient {record['grad_norm']:.2f}  "
                f"{record['tokens_per_second']:,.0f} tok/s  "
                f"{timedelta(seconds=round(record['elapsed']))}"
            )

    def evaluating(self, done: int, total: int) -> None:
        """Show a second bar until the result is there."""
        if self._evaluation is None:
            self._evaluation = self._bar.add_task("validation", total=total)
        self._bar.update(self._evaluation, completed=done)

    def end(self, run: Run, progress: Progress) -> None:
        """Say how it ended, and how to go on."""
        self._remove_evaluation()
        self._bar.stop()
        if progress.step == progress.steps:
            self._print(f"Finished after {progress.step} steps; the run is in {run.folder}")
        else:
            of = "" if progress.steps is None else f" of {progress.steps}"
            self._print(
                f"Stopped after step {progress.step}{of}; everything is saved. Continue with: "
                f"npxl train --out {run.folder} --resume"
            )

    def _remove_evaluation(self) -> None:
        if self._evaluation is not None:
            self._bar.remove_task(self._evaluation)
            self._evaluation = None

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Smooth:
    """An exponential average, corrected for its start."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> float:
        self._sum = _SMOOTHING * self._sum + (1 - _SMOOTHING) * value
        self._weight = _SMOOTHING * self._weight + (1 - _SMOOTHING)
        return self._sum / self._weight
