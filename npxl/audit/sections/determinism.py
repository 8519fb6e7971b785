"""Determinism: the same seed gives the same bytes, whoever computes them; docs/audit.md."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Check, Figure, Progress, Result, Section, Subject
from npxl.config import LanguageModelConfig, TrainConfig, with_options
from npxl.layers.dropout import MaskKey, dropout_forward
from npxl.models.architectures import model_class
from npxl.models.files import load_model
from npxl.threads import shards
from npxl.training.loop import Trainer
from npxl.training.reporting import Reporter, StepReport
from npxl.training.run import Run
from npxl.training.workers import Workers

Array = NDArray[Any]

STEPS, EVALUATED_AT, CRASHED_AT = 12, 4, 7
ROUNDING = 1e-12
"""Of sums in float64 that are added up in another order, relative to the largest entry."""
_DROPOUT = 0.25
_STREAMS, _TGT_LEN = 5, 4


class _Crash(BaseException):
    """As sudden as a power cut: nothing in the loop catches it."""


class _Crashing(Reporter):
    def step(self, report: StepReport) -> None:
        if report.step == CRASHED_AT:
            raise _Crash


def _config(subject: Subject) -> LanguageModelConfig:
    """With dropout, so that there is randomness to repeat."""
    return with_options(
        subject.small,
        dropout=subject.small.dropout or _DROPOUT,
        dropatt=subject.small.dropatt or _DROPOUT,
    )


class _Runs:
    """Small runs in a folder that goes away with them."""

    def __init__(self, folder: Path, config: LanguageModelConfig) -> None:
        self._folder, self._config = folder, config
        words = random.Random(0).choices(["ababa", "cadabra", "abba", "bar", "dad"], k=600)
        (folder / "text.txt").write_text(" ".join(words))

    def create(self, name: str, seed: int, workers: int) -> Run:
        train = TrainConfig(
            batch_size=_STREAMS, tgt_len=_TGT_LEN, steps=STEPS, warmup_steps=2, seed=seed,
            eval_interval=EVALUATED_AT, save_interval=1e6, workers=workers,
        )  # fmt: skip
        return Run.create(self._folder / name, self._folder / "text.txt", self._config, train)

    def finished(self, name: str, seed: int, workers: int = 1) -> dict[str, bytes]:
        """The files of a run from its beginning to its end."""
        run = self.create(name, seed, workers)
        _finish(run)
        return _files(run)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    # A file that is mapped into memory cannot be deleted everywhere.
    with tempfile.TemporaryDirectory(prefix="npxl-audit-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _runs(subject: Subject) -> Iterator[_Runs]:
    with _temporary_folder() as folder:
        yield _Runs(folder, _config(subject))


def _finish(run: Run, reporter: Reporter | None = None) -> None:
    """Train to the end; a signal that stops the training is meant for the audit."""
    if not Trainer(run).run(reporter):
        raise KeyboardInterrupt


def _files(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run.last, run.best)}


def _compared(
    ours: dict[str, bytes], expected: dict[str, bytes], what: str = ""
) -> Iterable[Result]:
    for name, content in ours.items():
        figure = _different_bytes(content, expected[name])
        digests = " and ".join(
            hashlib.sha256(each).hexdigest()[:16] for each in (content, expected[name])
        )
        yield Result.of(
            f"{what}{name}", figure, 0,
            f"{len(content):,} bytes, SHA-256 {digests}, after {STEPS} updates.", at_least=0,
        )  # fmt: skip


def _different_bytes(a: bytes, b: bytes) -> int:
    """Bytes at which two files differ, and by how many one is longer."""
    n = min(len(a), len(b))
    common = np.frombuffer(a[:n], np.uint8) != np.frombuffer(b[:n], np.uint8)
    return int(common.sum()) + abs(len(a) - len(b))


def _same_seed(subject: Subject, progress: Progress) -> Iterable[Result]:
    with _runs(subject) as runs:
        first = runs.finished("first", subject.seed)
        yield from _compared(runs.finished("again", subject.seed), first)
        other = runs.finished("other", subject.seed + 1)
        name = "last.safetensors"
        yield Result.of(
            "another seed", _different_bytes(other[name], first[name]), at_least=1,
            detail=f"Bytes of {name} that are others with seed {subject.seed + 1}.",
        )  # fmt: skip


def _resumed(subject: Subject, progress: Progress) -> Iterable[Result]:
    with _runs(subject) as runs:
        whole = runs.finished("whole", subject.seed)
        run = runs.create("stopped", subject.seed, 1)
        reached = STEPS
        try:
            _finish(run, _Crashing())
        except _Crash:
            reached = CRASHED_AT
        step = run.checkpoint().progress.step
        yield Result.of(
            "updates that were lost", reached - step, at_least=1,
            detail=f"Stopped dead after update {CRASHED_AT}, resumed from that of update {step}.",
        )  # fmt: skip
        _finish(Run.open(run.folder))
        yield from _compared(_files(run), whole)


def _workers(subject: Subject, progress: Progress) -> Iterable[Result]:
    with _runs(subject) as runs:
        first = runs.finished("first", subject.seed, workers=2)
        again = runs.finished("again", subject.seed, workers=2)
        yield from _compared(again, first, "two workers twice: ")
    one = _steps(subject, 1)
    for name, other in (
        ("one worker and two", _steps(subject, 2)),
        ("one chunk and three", _steps(subject, 1, batch_chunk=3)),
    ):
        yield Result(
            name,
            {
                "losses": Figure(_relative(other[0], one[0]), ROUNDING),
                "gradients": Figure(_relative(other[1], one[1]), ROUNDING),
                "memory": Figure(_relative(other[2], one[2]), ROUNDING),
            },
            f"{_STREAMS} streams, three segments with dropout, float64: sums in another order.",
        )


def _steps(subject: Subject, n_workers: int, batch_chunk: int = 1) -> tuple[Array, Array, Array]:
    """Losses and gradients of three steps, and the memory after them."""
    config = _config(subject)
    model = model_class(config)(config, subject.seed, np.float64)
    draw, losses, gradients = subject.draw("determinism/workers"), [], []
    with Workers(model, _STREAMS, n_workers, batch_chunk) as workers:
        for step in range(3):
            again = config.ext_len if step else 0
            text = draw.integers(0, config.vocab_size, (_STREAMS, again + _TGT_LEN + 1))
            key = MaskKey(subject.seed, step)
            result = workers.step(text[:, :-1], text[:, again + 1 :], key)
            losses.append(result.nll)
            gradients.append(result.gradient.flat.copy())
        return np.array(losses), np.array(gradients), workers.memory.states


def _relative(a: Array, b: Array) -> float:
    return float(np.abs(a - b).max(initial=0) / (np.abs(b).max(initial=0) or 1.0))


_RATE = 0.3
_SITES = {
    "transformer_xl": ("embedding", "positions", "layers.0.attention_probabilities"),
    "lstm": ("embedding", "layers.0.output"),
}


def _mask(seed: int, step: int, name: str, rows: range) -> Array:
    """What dropout multiplies 1000 numbers of each of some streams by; one mask for positions."""
    site = MaskKey(seed, step, rows.start).site(name)
    if name == "positions":
        shared = dropout_forward(np.ones((1, 40, 25)), _RATE, site.shared())[0]
        return np.repeat(shared, len(rows), axis=0)
    return dropout_forward(np.ones((len(rows), 40, 25)), _RATE, site)[0]


def _masks(subject: Subject, progress: Progress) -> Iterable[Result]:
    seed, every, sites = subject.seed, range(_STREAMS), _SITES[subject.config.architecture]
    masks = {(name, step): _mask(seed, step, name, every) for name in sites for step in (0, 1)}
    wrong = 0
    for name in sites:
        for n_shards in range(2, _STREAMS + 1):
            parts = [_mask(seed, 0, name, rows) for rows in shards(_STREAMS, n_shards)]
            wrong += int((np.concatenate(parts) != masks[name, 0]).sum())
    yield Result.of(
        "streams split among workers", wrong, 0, at_least=0,
        detail=f"Entries that differ, of masks at {len(sites)} sites, in 2 to {_STREAMS} shards.",
    )  # fmt: skip
    independent = [mask[0] for mask in masks.values()] + list(masks["embedding", 0][1:])
    expected = 2 * _RATE * (1 - _RATE)
    least = min(float((a != b).mean()) for i, a in enumerate(independent) for b in independent[:i])
    yield Result.of(
        "another step, site or stream", least, at_least=expected / 2,
        detail="The smallest part of entries in which two masks differ; where they are drawn "
        f"independently, {expected:.2g} is expected.",
    )  # fmt: skip
    yield _split_losses(subject)


def _split_losses(subject: Subject) -> Result:
    """Of the whole model, with all its masks."""
    config = _config(subject)
    model = model_class(config)(config, subject.seed, np.float64)
    draw, length = subject.draw("determinism/masks"), config.ext_len + _TGT_LEN + 1
    text = draw.integers(0, config.vocab_size, (_STREAMS, length))

    def nll(rows: range) -> Array:
        segment = text[rows.start : rows.stop]
        key = MaskKey(subject.seed, 1, rows.start)
        memory = model.init_memory(len(rows))
        return model.forward(segment[:, :-1], segment[:, config.ext_len + 1 :], memory, key).nll

    parts = np.concatenate([nll(rows) for rows in shards(_STREAMS, 3)])
    return Result.of(
        "losses with dropout, split", _relative(parts, nll(range(_STREAMS))), ROUNDING,
        "Of the whole model in three shards, to rounding.",
    )  # fmt: skip


def _twice(subject: Subject, progress: Progress) -> Iterable[Result]:
    config = _config(subject)
    model = model_class(config)(config, subject.seed, np.float32)
    draw = subject.draw("determinism/twice")
    text = draw.integers(0, config.vocab_size, (2, 2 * (config.ext_len + _TGT_LEN + 1)))
    before, now = np.split(text, 2, axis=1)
    _, memory = model.log_probs(before, model.init_memory(2))
    params, states = model.params.flat.copy(), memory.states.copy()

    def compute() -> list[Array]:
        key = MaskKey(subject.seed)
        fwd = model.forward(now[:, :-1], now[:, config.ext_len + 1 :], memory, key)
        return [fwd.nll, fwd.memory.states, model.backward(fwd).flat]

    first, again = compute(), compute()
    for name, a, b in zip(("losses", "memory", "gradients"), first, again, strict=True):
        yield Result.of(name, _different_bytes(a.tobytes(), b.tobytes()), 0, _BYTES, at_least=0)
    changed = _different_bytes(params.tobytes(), model.params.flat.tobytes())
    yield Result.of("parameters that a pass changed", changed, 0, _BYTES, at_least=0)
    changed = _different_bytes(states.tobytes(), memory.states.tobytes())
    yield Result.of("memory that a pass changed", changed, 0, _BYTES, at_least=0)


_BYTES = "Bytes that differ."


def _saved(subject: Subject, progress: Progress) -> Iterable[Result]:
    with _temporary_folder() as folder:
        for dtype in (np.float32, np.float64):
            model = subject.model(dtype)
            path = folder / f"{np.dtype(dtype).name}.safetensors"
            model.save(path)
            loaded = load_model(path)
            figure = _different_bytes(model.params.flat.tobytes(), loaded.params.flat.tobytes())
            yield Result.of(np.dtype(dtype).name, figure, 0, _BYTES, at_least=0)


DETERMINISM = Section(
    name="determinism",
    title="Determinism",
    proves=(
        "All that an update depends on is its arguments and the checkpoint: parameters, moments, "
        "memory, the number of the step and the seed. So the same seed, configuration, text and "
        "number of workers give the same bytes, interrupted or not.\n\n"
        "Bit by bit the same for any number of workers are the batches and the masks of dropout, "
        "which belong to a stream and not to its place in a shard. Losses, gradients and memory of "
        "another number of workers agree to rounding, because sums are made in another order and "
        "BLAS multiplies matrices of other shapes."
    ),
    checks=(
        Check(
            "same-seed",
            "Two trainings with one seed end with the same bytes, and with another seed with "
            "others.",
            r"\theta_{t+1} = F(\theta_t, m_t, v_t, \text{memory}_t; t, \text{seed}, \text{text})",
            _same_seed,
        ),
        Check(
            "resumed",
            "A run that died and was resumed ends with the bytes of one that did not.",
            r"F^{T}(s_0) = F^{T - k}(F^{k}(s_0))",
            _resumed,
        ),
        Check(
            "workers",
            "The same number of workers gives the same bytes, whatever the threads' timing; "
            "another number, or chunks, the same to rounding.",
            r"\frac{1}{BT} \sum_{b,t} \ell_{bt} = "
            r"\sum_w \Big[ \frac{1}{BT} \sum_{b \in w} \sum_t \ell_{bt} \Big]",
            _workers,
        ),
        Check(
            "masks",
            "A dropout mask is a function of seed, step, site, stream and entry: not of the shard "
            "in which the stream is.",
            r"\mu_{bi} = \frac{[\mathrm{hash}(\text{seed}, t, \text{site}, b, i) \ge p]}{1 - p}",
            _masks,
        ),
        Check(
            "twice",
            "A pass computed twice gives the same bits, and leaves parameters and memory alone.",
            r"f(x) \equiv f(x)",
            _twice,
        ),
        Check(
            "saved",
            "A model that was saved and loaded has the same bits.",
            r"\mathrm{load}(\mathrm{save}(\theta)) \equiv \theta",
            _saved,
        ),
    ),
)
