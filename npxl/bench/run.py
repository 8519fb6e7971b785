"""One measurement: processes side by side, taking turns."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from npxl.bench.arithmetic import (
    reading,
    reading_traffic,
    training_step,
    training_traffic,
)
from npxl.bench.shapes import EVALUATION, GENERATION, TRAINING, Shape
from npxl.bench.sides import serve
from npxl.errors import NpxlError
from npxl.threads import available_cores, run_parallel, shards

Task = Literal["train", "evaluate", "generate"]

SHAPES: dict[Task, dict[str, Shape]] = {
    "train": TRAINING,
    "evaluate": EVALUATION,
    "generate": GENERATION,
}

_SECONDS_A_TURN = 1.0
_SECONDS_TO_LEAVE = 5.0
_SECONDS_OF_SPINNING = 0.2
"""For which BLAS's threads may go on to wait for another product, on the cores of the next turn."""

_LARGEST_DISAGREEMENT = 1e-3
"""In nats: both sides compute in float32."""


@dataclass(frozen=True)
class Result:
    """What one side did at one task and shape."""

    task: Task
    shape: str
    side: str
    tokens_per_second: float
    """The median over the turns."""
    arithmetic: float
    """Operations needed for a token."""
    traffic: float
    """Bytes that have to come from memory or go there for a token, at least."""
    sgemm_share: float
    """Operations needed a second, as part of what the machine's own matrix product makes."""
    sgemm: float
    """What that product makes: operations a second, the median of one measurement a turn."""
    peak_memory: float | None
    """Of the whole process, in megabytes; None where the system does not tell."""
    ratio: float | None
    """npxl's tokens a second to this side's, the median over pairs of turns; None for npxl."""
    disagreement: float | None
    """Largest difference of the nll of one token before timing, in nats; None for npxl."""


def measure(
    task: Task,
    name: str,
    others: Sequence[str] = (),
    rounds: int = 5,
    n_threads: int | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Run npxl and its peers on the same work, in turn.

    Each side is a process of its own, idle while another has its turn.  Before timing, all score
    the same text with the same weights and must agree.

    Parameters
    ----------
    task, name
        A key of `SHAPES` and of what is there.
    others
        Other sides, of `npxl.bench.sides.SIDES`.
    rounds
        Turns of each side.
    n_threads
        Of each side; None for one a core.
    report
        Told what is being done.
    """
    shape = SHAPES[task][name]
    needed, traffic = _needed(task, shape)
    names = ("npxl", *others)
    with _processes(names, shape, n_threads) as sides:
        report(f"{task} {name}: do the sides agree?")
        disagreements = _disagreements(sides, shape)
        sizes = {}
        for side, ask in sides.items():
            report(f"{task} {name}: {side} warms up")
            work = _work(task, shape)
            ask(task, work(1))  # compiles and allocates
            _, seconds = ask(task, work(1))
            sizes[side] = max(1, round(_SECONDS_A_TURN / seconds))
        speeds: dict[str, list[float]] = {side: [] for side in names}
        sgemm = []
        for turn in range(rounds):
            report(f"{task} {name}: round {turn + 1} of {rounds}")
            sgemm.append(sgemm_rate(n_threads or available_cores()))
            time.sleep(_SECONDS_OF_SPINNING)
            # None goes first more often than another: what ran before leaves its traces.
            for side in names[:: 1 if turn % 2 == 0 else -1]:
                _, seconds = sides[side](task, work(sizes[side]))
                n_tokens = sizes[side] * shape.batch_size * shape.tgt_len
                speeds[side].append(n_tokens / seconds)
        peaks = {side: ask("peak_memory")[0] for side, ask in sides.items()}
    rate = statistics.median(sgemm)
    results = []
    for side in names:
        speed = statistics.median(speeds[side])
        ratios = [a / b for a, b in zip(speeds["npxl"], speeds[side], strict=True)]
        results.append(
            Result(
                task, name, side, speed, needed, traffic, speed * needed / rate, rate, peaks[side],
                None if side == "npxl" else statistics.median(ratios), disagreements.get(side),
            )
        )  # fmt: skip
    return results


def sgemm_rate(n_threads: int, size: int = 2048, repeats: int = 3) -> float:
    """Operations a second of a float32 matrix product."""
    x = np.ones((size, size), np.float32)
    y = np.empty_like(x)
    seconds = []
    with threadpool_limits(n_threads):
        for _ in range(repeats + 1):
            started = time.perf_counter()
            np.matmul(x, x, out=y)
            seconds.append(time.perf_counter() - started)
    return 2 * size**3 / statistics.median(seconds[1:])


def memory_bandwidth(n_threads: int, size: int = 2**26, repeats: int = 5) -> float:
    """Bytes a second that copying float32 arrays reads and writes, a part of them a thread."""
    source, target = np.ones(size, np.float32), np.zeros(size, np.float32)
    parts = [slice(part.start, part.stop) for part in shards(size, n_threads)]

    def copy(part: slice) -> None:
        target[part] = source[part]

    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run_parallel([partial(copy, part) for part in parts], n_threads)
        seconds.append(time.perf_counter() - started)
    return 2 * source.nbytes / statistics.median(seconds)


def _needed(task: Task, shape: Shape) -> tuple[float, float]:
    """Operations and bytes a token."""
    model, batch_size, tgt_len = shape.model, shape.batch_size, shape.tgt_len
    n_tokens = batch_size * tgt_len
    if task == "train":
        step = training_step(model, batch_size, tgt_len)
        return step / n_tokens, training_traffic(model, batch_size, tgt_len) / n_tokens
    traffic = reading_traffic(model, batch_size, tgt_len)
    return reading(model, tgt_len, task == "generate") / tgt_len, traffic / n_tokens


def _work(task: Task, shape: Shape) -> Callable[[int], Any]:
    """The argument for n segments, or n tokens, of the task."""
    if task == "generate":
        return lambda n: n
    rng = np.random.default_rng(0)
    size = (shape.batch_size, shape.tgt_len + 1)
    return lambda n: [rng.integers(0, shape.model.vocab_size, size) for _ in range(n)]


def _disagreements(sides: dict[str, Callable[..., Any]], shape: Shape) -> dict[str, float]:
    """The largest difference to npxl over two segments, the second of which reads the first."""
    size = (shape.batch_size, max(2, shape.tgt_len))
    rng = np.random.default_rng(1)
    segments = [rng.integers(0, shape.model.vocab_size, size) for _ in range(2)]
    losses: dict[str, NDArray[Any]] = {
        side: ask("losses", segments)[0] for side, ask in sides.items()
    }
    found = {}
    for side, nll in losses.items():
        if side != "npxl":
            found[side] = float(np.abs(nll - losses["npxl"]).max())
            if not found[side] < _LARGEST_DISAGREEMENT:
                raise NpxlError(
                    f"npxl and {side} give one token's loss {found[side]:.2g} nats apart with the "
                    "same weights, so their speeds cannot be compared."
                )
    return found


@contextmanager
def _processes(
    names: Sequence[str], shape: Shape, n_threads: int | None
) -> Iterator[dict[str, Callable[..., Any]]]:
    """A way to ask each side; they have started when this begins."""
    context = multiprocessing.get_context("spawn")
    started: list[tuple[Any, Any]] = []
    try:
        asks: dict[str, Callable[..., Any]] = {}
        for name in names:
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, name, shape, n_threads))
            process.start()
            theirs.close()
            started.append((process, ours))
            asks[name] = _asking(name, ours)
        yield asks
    finally:
        for process, connection in started:
            with suppress(OSError):
                connection.send(None)
            connection.close()
            process.join(_SECONDS_TO_LEAVE)
            process.terminate()


def _asking(name: str, connection: Any) -> Callable[..., Any]:
    def ask(method: str, *arguments: Any) -> Any:
        try:
            connection.send((method, arguments))
            return connection.recv()
        except (EOFError, OSError) as error:
            raise NpxlError(
                f"The process of {name} has ended before its work was done; what it printed says "
                "why."
            ) from error

    return ask
