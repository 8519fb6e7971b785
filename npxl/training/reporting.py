"""What a run says while it goes on: live lines on a terminal, a line for each metric elsewhere."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from npxl.datasets import Unit
from npxl.inference.evaluation import perplexity
from npxl.training.budget import TimeLeft, evaluation_in_updates
from npxl.training.checkpoints import Progress
from npxl.training.run import Run

_SMOOTHING = 0.95

_SHORTEST_BAR = 10

_FREE_COLUMNS = 3
"""At the end of a live line, so that it stays one line when the terminal adds ^C and a cursor."""


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
    """Read in this step, of all streams."""
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
    """Reports on a console: live lines if it is a terminal, a line for each metric if not.

    When nobody reads the console any more, because its pipe is closed, the reports end and the
    training goes on.

    Parameters
    ----------
    console
        Where to report.
    says_how_to_resume
        Whether a run that was stopped is continued by `npxl train`, which is then said.
    """

    def __init__(self, console: Console, says_how_to_resume: bool = True) -> None:
        self._console = console
        self._says_how_to_resume = says_how_to_resume
        self._lines = _Lines()
        self._live = Live(self._lines, console=console)
        self._left: TimeLeft | None = None
        self._seen = 0.0  # when the last step or score was reported, by time.perf_counter
        self._loss, self._bpc = _Smooth(), _Smooth()
        self._tokens, self._seconds = _Smooth(), _Smooth()
        self._unit: Unit = "bpc"

    def __enter__(self) -> ConsoleReporter:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.stop()

    def begin(self, run: Run, progress: Progress) -> None:
        """Say what is trained where, and how much of the text the vocabulary lacks."""
        corpus, config = run.corpus, run.train_config
        action = f"Continuing at step {progress.step}" if progress.step else "Training"
        self._print(
            f"{action}: {run.n_parameters:,} parameters on {corpus.name} "
            f"({len(corpus.train):,} {corpus.vocab.kind}, vocabulary {corpus.vocab.size:,}), "
            f"in {run.folder}"
        )
        self._unit = run.unit
        for sentence in corpus.remarks:
            self._print(sentence)
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
        if corpus.valid is not None:
            self._left = TimeLeft(
                config.eval_interval,
                progress.evaluated,
                evaluation_in_updates(len(corpus.valid) - 1, config.batch_size * config.tgt_len),
            )
        else:
            self._left = TimeLeft(None, 0, 0.0)
        self._seen = time.perf_counter()
        said = ("starting", "a first run compiles its kernels")
        self._lines.training = _Line(progress.step, progress.steps, said)

    def step(self, report: StepReport) -> None:
        """Move the bar."""
        if self._left is None:
            return
        self._seen = time.perf_counter()
        loss, bpc = self._loss.add(report.nll), self._bpc.add(report.bpc)
        score = f"{perplexity(loss):.1f} ppl" if self._unit == "ppl" else f"{bpc:.3f} bpc"
        fields = [f"loss {loss:.3f}", score]
        if self._left.add_update(report.seconds):
            speed = self._tokens.add(report.tokens) / self._seconds.add(report.seconds)
            fields.append(f"{speed:,.0f} tok/s")
        fields.append(f"lr {report.lr:.1e}")
        ends = None
        if report.steps is not None:
            left = self._left.seconds(report.step, report.steps)
            ends = None if left is None else self._seen + left
        self._lines.training = _Line(report.step, report.steps, tuple(fields), ends, True)

    def metrics(self, record: dict[str, Any]) -> None:
        """A line for an evaluation, and without a bar also for training."""
        self._lines.evaluation = None
        bits = f"{record['bpc']:.4f} bpc"
        if self._unit == "ppl" and record["split"] == "train":
            bits = f"perplexity {perplexity(record['nll']):.2f}"
        if record["split"] == "valid":
            now = time.perf_counter()
            if self._left is not None:
                self._left.add_evaluation(record["step"], now - self._seen)
            self._seen = now
            if record["bpb"] != record["bpc"]:
                bits += f"  {record['bpb']:.4f} bpb"
            self._print(
                f"step {record['step']:6}  validation: loss {record['nll']:.4f}  {bits}  "
                f"perplexity {record['ppl']:.2f}{'  (best)' if record['best'] else ''}"
            )
        elif not self._console.is_terminal:
            self._print(
                f"step {record['step']:6}  loss {record['nll']:.4f}  {bits}  "
                f"lr {record['lr']:.1e}  |g| {record['grad_norm']:.2f}  "
                f"{record['tokens_per_second']:,.0f} tok/s  "
                f"elapsed {timedelta(seconds=round(record['elapsed']))}"
            )

    def evaluating(self, done: int, total: int) -> None:
        """Show a second line until the result is there."""
        self._lines.evaluation = _Line(done, total, ("validation",))

    def end(self, run: Run, progress: Progress) -> None:
        """Say how it ended, and how to go on."""
        self._lines.evaluation = None
        self._live.stop()
        if progress.step == progress.steps:
            self._print(f"Finished after {progress.step} steps; the run is in {run.folder}")
        else:
            command = f"npxl train --out {shlex.quote(str(run.folder))} --resume"
            how = f" Continue with:\n{command}" if self._says_how_to_resume else ""
            of = "" if progress.steps is None else f" of {progress.steps}"
            self._print(f"Stopped after step {progress.step}{of}; everything is saved.{how}")

    def _print(self, line: str) -> None:
        try:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        except BrokenPipeError:
            self._console.quiet = True


class _Line(NamedTuple):
    """A live line: how much is done, and what stands beside it, the least important last."""

    done: int
    total: int | None
    """None while it is not known."""
    fields: tuple[str, ...]
    ends: float | None = None
    """When the work will be done, by time.perf_counter; None while it is not known."""
    has_end: bool = False
    """Whether to say when, or that this is being measured."""

    def render(self, width: int) -> Iterator[RenderableType]:
        """The line, without its least important fields where there is no room for them."""
        head = f"{self.done}/{'?' if self.total is None else self.total}"
        tail = []
        if self.has_end:
            tail.append("measuring" if self.ends is None else f"{_left(self.ends)} left")
        fields = list(self.fields)
        while fields and len("  ".join([head, *fields, *tail])) > width:
            fields.pop()
        rest = "".join("  " + text for text in (*fields, *tail))
        yield Text(head, no_wrap=True, end="")
        room = width - len(head) - len(rest) - 2
        if room >= _SHORTEST_BAR:
            yield Text("  ", end="")
            yield ProgressBar(self.total, self.done, room)
        yield Text(rest, no_wrap=True, end="")


class _Lines:
    """The training, and the evaluation while there is one."""

    def __init__(self) -> None:
        self.training: _Line | None = None
        self.evaluation: _Line | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [line for line in (self.training, self.evaluation) if line is not None]
        for i, line in enumerate(lines):
            if i:
                yield Segment.line()
            yield from line.render(options.max_width - _FREE_COLUMNS)


def _left(ends: float) -> timedelta:
    return timedelta(seconds=round(max(0.0, ends - time.perf_counter())))


class _Smooth:
    """An exponential average, corrected for its start."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> float:
        self._sum = _SMOOTHING * self._sum + (1 - _SMOOTHING) * value
        self._weight = _SMOOTHING * self._weight + (1 - _SMOOTHING)
        return self._sum / self._weight
