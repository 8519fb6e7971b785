"""The training loop: updates, evaluations and checkpoints; an interruption changes none of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from numpy.typing import NDArray

from npxl.config import Loss
from npxl.errors import NpxlError
from npxl.inference.evaluation import EvaluationStopped, bits_per_character, evaluate
from npxl.layers.dropout import MaskKey
from npxl.memory import Memory
from npxl.signals import StopRequest
from npxl.threads import available_cores
from npxl.training.budget import Budget, evaluation_in_updates
from npxl.training.checkpoints import (
    Checkpoint,
    Evaluation,
    Tally,
    load_progress,
    save_checkpoint,
)
from npxl.training.metrics import MetricsFile
from npxl.training.optimizers import clip_scale, gradient_norm, optimizer_for, restore
from npxl.training.reporting import Reporter, StepReport
from npxl.training.run import Run
from npxl.training.schedules import learning_rate
from npxl.training.segment_lengths import check_consumed, segment_length
from npxl.training.workers import Workers

Array = NDArray[Any]

_SAVING_AT_MOST = 1 / 20
"""Part of the time that saving between evaluations may take."""


class Diverged(NpxlError):
    """A loss or a gradient is not finite; nothing of that step was applied or saved."""


class Trainer:
    """Takes a run from its last checkpoint to its end.

    A run that was just created and one that was interrupted are the same to it: both continue from
    last.safetensors.  docs/training.md explains why the result has the same bytes either way.

    Parameters
    ----------
    run
        What to train.
    steps
        A new number of updates for the whole run, so that it goes on after its end for example; the
        cosine leads there from now on.  None: as before.

    Attributes
    ----------
    progress
        How far the run is.

    Raises
    ------
    NpxlError
        When the checkpoint is damaged or of another run or has made more than `steps` updates, or
        the corpus is not there or has changed.
    """

    def __init__(self, run: Run, steps: int | None = None) -> None:
        config, checkpoint = run.train_config, run.checkpoint()
        self._run, self._config, self._model = run, config, checkpoint.model
        self._optimizer = optimizer_for(self._model.params, config)
        n_workers = config.workers or available_cores()
        self._workers = Workers(self._model, config.batch_size, n_workers, config.batch_chunk)
        self._streams = run.corpus.train.streams(
            config.batch_size, config.tgt_len, run.model_config.ext_len, config.seed
        )
        try:
            if self._model.config != run.model_config or self._model.dtype != config.dtype:
                raise NpxlError("Its model is not the one that run.json describes.")
            check_consumed(checkpoint.progress.consumed, checkpoint.progress.step, config)
            restore(self._optimizer, checkpoint.optimizer, checkpoint.progress.step)
            self._workers.memory = checkpoint.memory
        except NpxlError as error:
            raise NpxlError(f"{run.last} does not belong to this run. {error}") from error
        self.progress = self._saved = checkpoint.progress
        if steps is not None:
            if steps < self.progress.step:
                raise NpxlError(
                    f"steps is {steps}, but the run {run.folder} has made {self.progress.step} "
                    "updates already; ask for at least as many."
                )
            self.progress = replace(self.progress, steps=steps)
        self._next_save = math.inf
        self._tokens, self._seconds = 0, 0.0  # since the last line of metrics

    @property
    def finished(self) -> bool:
        """Whether all updates are made and the last one is evaluated."""
        return self.progress.step == self.progress.steps and not self._evaluation_is_due

    def run(self, reporter: Reporter | None = None) -> bool:
        """Train until the end, or until Ctrl-C or SIGTERM, with everything saved either way.

        The first such signal ends the loop after the update that is being made, or gives up an
        evaluation, which a resumed run then makes; a second one is not held back any more.

        Returns
        -------
        bool
            Whether the run is finished.

        Raises
        ------
        Diverged
            When a loss or a gradient is not finite.
        NpxlError
            When the disk is full; or the run is being trained already, or was trained further since
            it was opened.  The last checkpoint stays as it was in all cases.
        """
        with self._run.locked():
            if load_progress(self._run.last) != self._saved:
                raise NpxlError(
                    f"The run {self._run.folder} has been trained further since it was opened: "
                    "open it again to continue it."
                )
            return self._run_alone(reporter or Reporter())

    def _run_alone(self, reporter: Reporter) -> bool:
        with (
            StopRequest() as stop,
            MetricsFile(self._run.metrics, self.progress) as metrics,
            self._workers,
            reporter,
        ):
            reporter.begin(self._run, self.progress)
            self._run.remove_leftovers()
            started = time.perf_counter() - metrics.elapsed
            budget = self._budget()
            self._save_if_changed()
            while not (stop.requested or self.finished):
                if self._evaluation_is_due:
                    record = self._evaluate(lambda: stop.requested, reporter.evaluating)
                else:
                    report = self.update()
                    reporter.step(report)
                    if self.progress.steps is None:
                        self._fix_steps(budget, report)
                    record = self._line_of_metrics(report)
                if record is not None:
                    elapsed = round(time.perf_counter() - started, 3)
                    record = {"step": self.progress.step, "elapsed": elapsed, **record}
                    metrics.append(record)
                    reporter.metrics(record)
                if self.progress.evaluated != self._saved.evaluated:
                    self._save_if_changed()
            self._save_if_changed()
            reporter.end(self._run, self.progress)
        return self.finished

    def update(self) -> StepReport:
        """Make one update: read a segment of every stream, and move the parameters.

        Raises
        ------
        Diverged
            When the loss or the norm of its gradient is not finite; the parameters are unchanged,
            the memory is not.
        """
        config, progress = self._config, self.progress
        started = time.perf_counter()
        step = progress.step + 1
        length = segment_length(step, config)
        inputs, targets = self._streams.batch(progress.consumed, length)
        # Saved between the gradient and the update, a state has proved to have a finite loss.
        memory = self._workers.memory if started >= self._next_save else None
        scored = scored_targets(targets, config.loss)
        result = self._workers.step(inputs, scored, MaskKey(config.seed, step))
        norm = gradient_norm(result.gradient.flat, result.gradient.runs())
        self._require_finite("loss", result.nll, step)
        self._require_finite("norm of the gradient", norm, step)
        if memory is not None:
            saving = time.perf_counter()
            self._save_if_changed(memory)
            started += time.perf_counter() - saving  # the update's speed has nothing of it
        lr = learning_rate(step, config, progress.steps, progress.plateau)
        scale = clip_scale(norm, config.clip)
        self._optimizer.update(self._model.params.flat, result.gradient.flat, lr, scale)
        tally = progress.tally
        self.progress = replace(
            progress,
            step=step,
            consumed=progress.consumed + length,
            tally=Tally(
                steps=tally.steps + 1,
                nll=tally.nll + result.nll,
                grad_norm=tally.grad_norm + norm,
                clipped=tally.clipped + (scale < 1),
            ),
        )
        seconds = time.perf_counter() - started
        self._tokens += targets.size
        self._seconds += seconds
        return StepReport(
            step=step,
            steps=progress.steps,
            nll=result.nll,
            bpc=bits_per_character(result.nll, self._run.corpus.train),
            lr=lr,
            tokens=targets.size,
            seconds=seconds,
        )

    @property
    def _evaluation_is_due(self) -> bool:
        progress = self.progress
        return (
            self._run.corpus.valid is not None
            and progress.step > progress.evaluated
            and (progress.step % self._config.eval_interval == 0 or progress.step == progress.steps)
        )

    def _evaluate(
        self, stop: Callable[[], bool], report: Callable[[int, int], None]
    ) -> dict[str, Any] | None:
        """Score the validation split, keep the model if it is the best; None if `stop` says so."""
        split, step = self._run.corpus.split("valid"), self.progress.step
        try:
            score = evaluate(
                self._model,
                split.tokens,
                tgt_len=self._config.tgt_len,
                n_workers=self._config.workers or available_cores(),
                progress=report,
                stop=stop,
            )
        except EvaluationStopped:
            return None
        self._require_finite("validation loss", score.nll, step)
        evaluation = Evaluation.of(step, score, split)
        best = self.progress.best
        is_best = best is None or evaluation.nll < best.nll
        if is_best:
            self._model.save(self._run.best)
        plateau = self.progress.plateau
        if self._config.schedule == "plateau":
            plateau = plateau.after_evaluation(score.nll, step, self._config)
        self.progress = replace(
            self.progress,
            evaluated=step,
            best=evaluation if is_best else best,
            plateau=plateau,
        )
        return {
            "split": "valid",
            **asdict(evaluation),
            "unknown": split.n_unknown,
            "best": is_best,
        }

    def _line_of_metrics(self, last: StepReport) -> dict[str, Any] | None:
        """Means since the last line, every `log_interval` updates and after the last one."""
        progress, tally = self.progress, self.progress.tally
        if progress.step % self._config.log_interval and progress.step != progress.steps:
            return None
        nll = tally.nll / tally.steps
        record = {
            "split": "train",
            "nll": nll,
            "bpc": bits_per_character(nll, self._run.corpus.train),
            "lr": last.lr,
            "grad_norm": tally.grad_norm / tally.steps,
            "clipped": tally.clipped / tally.steps,
            "tokens_per_second": round(self._tokens / self._seconds, 1),
        }
        self.progress = replace(progress, tally=Tally())
        self._tokens, self._seconds = 0, 0.0
        return record

    def _save_if_changed(self, memory: Memory | None = None) -> None:
        started = time.perf_counter()
        if self.progress != self._saved:
            save_checkpoint(
                self._run.last,
                Checkpoint(
                    self._model,
                    self._optimizer.state,
                    self._workers.memory if memory is None else memory,
                    self.progress,
                ),
            )
            self._saved = self.progress
        ended = time.perf_counter()
        pause = max(self._config.save_interval, (ended - started) / _SAVING_AT_MOST)
        self._next_save = ended + pause

    def _budget(self) -> Budget:
        """The minutes of the run, none when its number of steps is known."""
        config, model_config = self._config, self._run.model_config
        valid = self._run.corpus.valid
        n_scored = 0 if valid is None else len(valid) - 1
        return Budget(
            seconds=60 * (config.minutes or 0.0),
            # Until then kernels are compiled, and segments are cheaper: the memory is not full.
            unmeasured=2 + model_config.segments_to_fill(config.tgt_len),
            evaluation=evaluation_in_updates(n_scored, config.batch_size * config.tgt_len),
            eval_interval=config.eval_interval,
        )

    def _fix_steps(self, budget: Budget, report: StepReport) -> None:
        left = budget.steps_left(report.seconds)
        if left is not None:
            self.progress = replace(self.progress, steps=self.progress.step + left)

    def _require_finite(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            config = self._config
            raise Diverged(
                f"The {what} at step {step} is {value}, so training has stopped; the checkpoint of "
                f"step {self._saved.step} is kept in {self._run.folder}. Start a new run with a "
                f"lower lr (it was {config.lr:g}) or a longer warm-up (warmup_steps was "
                f"{config.warmup_steps})."
            )


def scored_targets(targets: Array, loss: Loss) -> Array:
    """Of the targets [B, T] of a segment those that the loss is the mean of.

    Half the loss (Dai et al. 2019, table 6) is that of the last ⌈T / 2⌉ positions.  The model reads
    and remembers the others all the same.
    """
    return targets[:, targets.shape[1] // 2 :] if loss == "half" else targets
