"""Scoring a text: what one sequential pass would give, read by parallel streams."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from npxl.config import LanguageModelConfig, checked_int
from npxl.data import Split
from npxl.data.streams import require_text, segment
from npxl.models import LanguageModel, Reader
from npxl.threads import run_parallel, shards

Array = NDArray[Any]
T = TypeVar("T")

TOKENS_AT_ONCE = 256
"""Tokens in a worker's forward pass beyond which more streams make it larger, but no faster."""

_AFFORDABLE_WARM_UP = 1 / 8
"""Part of a text that may be read a second time for the sake of parallel streams."""


class EvaluationStopped(Exception):
    """`stop()` asked to abandon an evaluation."""


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text.

    Attributes
    ----------
    tokens
        Tokens scored: all but the first of the text.
    nll
        Mean negative log-likelihood, in nats a token; inf or nan when the model's output is.
    tokens_per_second
        Tokens scored in a second.
    """

    tokens: int
    nll: float
    tokens_per_second: float


class Reading:
    """What all threads of an evaluation have read so far, and whether they are to go on.

    They are not if `stop` says so, or after `give_up`, as when Ctrl-C interrupts the main thread.

    Parameters
    ----------
    n_reads
        Tokens to predict, those of the warm-up included.
    progress, stop
        As for `evaluate`.
    """

    def __init__(
        self,
        n_reads: int,
        progress: Callable[[int, int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self._n_reads, self._progress, self._stop = n_reads, progress, stop
        self._n_done, self._lock = 0, threading.Lock()
        self._given_up = False

    def score(self, reader: Reader, inputs: Array, targets: Array) -> Array:
        """What the reader's `score` returns; EvaluationStopped when it is not to go on."""
        if self._given_up or (self._stop is not None and self._stop()):
            raise EvaluationStopped
        # A model that diverged overflows; its score says so.
        with np.errstate(all="ignore"):
            nll = reader.score(inputs, targets)
        with self._lock:
            self._n_done += targets.size
            if self._progress is not None:
                self._progress(self._n_done, self._n_reads)
        return nll

    def give_up(self) -> None:
        """Let all threads end before they read any more."""
        self._given_up = True


def bits_per_character(nll: float, *splits: Split) -> float:
    """Nats a token of all the splits as bits a character of their text, after the first tokens."""
    n_tokens = sum(len(split) - 1 for split in splits)
    return nll / math.log(2) * n_tokens / sum(split.scored_characters for split in splits)


def bits_per_byte(nll: float, *splits: Split) -> float:
    """Nats a token of all the splits as bits a byte of their text, after the first tokens."""
    n_tokens = sum(len(split) - 1 for split in splits)
    return nll / math.log(2) * n_tokens / sum(split.scored_bytes for split in splits)


def perplexity(nll: float) -> float:
    """exp of nats a token; infinite beyond the range of a float."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def evaluate(
    model: LanguageModel,
    tokens: Array,
    tgt_len: int,
    n_streams: int | None = None,
    n_workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Score:
    """Score every token of a text but the first.

    The result is that of one pass from beginning to end, segment after segment with the memory
    carried along, up to rounding; docs/evaluation.md shows why parallel streams give the same.

    Parameters
    ----------
    model
        For another memory or window than it was trained with, pass `model.reconfigured(...)`.
    tokens
        [N] whole numbers, N ≥ 2; may be memory-mapped.
    tgt_len
        Segment length T.
    n_streams
        Streams that read in parallel; fewer where the text is too short.  None: as many as pay.
    n_workers
        Threads that share the streams.
    progress
        Called with the tokens read so far and the tokens to read, warm-up included; from any
        thread, one call at a time.
    stop
        Asked before every segment, from any thread, whether to give up.

    Raises
    ------
    NpxlError
        When an argument is not as described.
    EvaluationStopped
        When `stop` returned true.
    """
    tokens = np.asarray(tokens)
    plan = _plan(model.config, tokens, tgt_len, n_streams, n_workers)
    started = time.perf_counter()
    sums = _read(model, tokens, plan, n_workers, _sum, progress, stop)
    seconds = time.perf_counter() - started
    return Score(plan.n_pairs, sum(sums) / plan.n_pairs, plan.n_pairs / seconds)


def score(
    model: LanguageModel,
    tokens: Array,
    tgt_len: int,
    n_streams: int | None = None,
    n_workers: int = 1,
) -> Array:
    """Negative log-likelihood of each token but the first, [N − 1], in nats and in reading order.

    Entry i is −log p(tokens[i + 1] | tokens[0 … i]), as far as the memory reaches back.  Parameters
    and errors are those of `evaluate`.
    """
    tokens = np.asarray(tokens)
    plan = _plan(model.config, tokens, tgt_len, n_streams, n_workers)
    nll = np.empty(plan.n_pairs, model.dtype)

    def keep(scored: Iterator[tuple[Array, Array]]) -> None:
        for first, values in scored:
            nll[first[:, None] + np.arange(values.shape[1])] = values

    _read(model, tokens, plan, n_workers, keep)
    return nll


def warm_up_segments(config: LanguageModelConfig, tgt_len: int) -> int | None:
    """Segments R before a segment that its scores depend on; derived in docs/evaluation.md.

    The smaller of what the memory passes on, n_layer · ⌈mem_len / T⌉ + ⌈ext_len / T⌉, and what the
    window lets through, ⌈n_layer · (W − 1) / T⌉.  None where it is all of them.
    """
    if config.longest_reach(tgt_len) is None:
        return None
    passed_on = config.n_layer * config.segments_to_fill(tgt_len)
    passed_on += _ceil_div(config.ext_len, tgt_len)
    if config.reach is None:
        return passed_on
    return min(passed_on, _ceil_div(config.reach, tgt_len))


@dataclass(frozen=True)
class _Plan:
    """Stream b starts at segment b · S and reads R + S segments, the last one on to the end.

    Stream 0 scores all that it reads, the others what follows their R segments of warm-up.
    """

    n_pairs: int
    tgt_len: int
    n_streams: int
    warm_up: int
    stride: int

    @property
    def n_reads(self) -> int:
        """Tokens that are read, those of the warm-up included."""
        return self.n_pairs + (self.n_streams - 1) * self.warm_up * self.tgt_len


def _plan(
    config: LanguageModelConfig, tokens: Array, tgt_len: int, n_streams: int | None, n_workers: int
) -> _Plan:
    require_text(tokens)
    tgt_len = checked_int("tgt_len", tgt_len, minimum=1)
    n_workers = checked_int("n_workers", n_workers, minimum=1)
    n_streams = checked_int("n_streams", n_streams, minimum=1, optional=True)
    n_pairs = len(tokens) - 1
    n_segments = n_pairs // tgt_len
    warm_up = warm_up_segments(config, tgt_len)
    if warm_up is None:
        warm_up = n_segments  # so that there is nothing for a second stream
    if n_streams is None:
        n_streams = _streams_that_pay(n_segments, warm_up, tgt_len, n_workers)
    n_streams = max(1, min(n_streams, n_segments - warm_up))
    if n_streams == 1:
        return _Plan(n_pairs, tgt_len, 1, 0, n_segments)
    return _Plan(n_pairs, tgt_len, n_streams, warm_up, (n_segments - warm_up) // n_streams)


def _streams_that_pay(n_segments: int, warm_up: int, tgt_len: int, n_workers: int) -> int:
    """One stream for each worker, and more while the passes are small and warm-up is cheap."""
    n_streams = n_workers * max(1, TOKENS_AT_ONCE // tgt_len)
    if warm_up > 0:
        n_streams = min(n_streams, 1 + int(_AFFORDABLE_WARM_UP * n_segments / warm_up))
    return max(n_workers, n_streams - n_streams % n_workers)


def _read(
    model: LanguageModel,
    tokens: Array,
    plan: _Plan,
    n_workers: int,
    consume: Callable[[Iterator[tuple[Array, Array]]], T],
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[T]:
    """What `consume` makes of the scores of each worker's share of the streams."""
    reading = Reading(plan.n_reads, progress, stop)

    def task(streams: range) -> Callable[[], T]:
        return lambda: consume(_scored(model, tokens, plan, streams, reading))

    tasks = [task(streams) for streams in shards(plan.n_streams, n_workers)]
    return run_parallel(tasks, n_workers, reading.give_up)


def _scored(
    model: LanguageModel,
    tokens: Array,
    plan: _Plan,
    streams: range,
    reading: Reading,
) -> Iterator[tuple[Array, Array]]:
    """Scores of some streams, piece by piece: numbers of the first pairs [b], and nll [b, T]."""
    starts = np.array(streams) * plan.stride * plan.tgt_len  # [b]
    reader = model.reader(len(streams))
    stop = (plan.warm_up + plan.stride) * plan.tgt_len
    for position in range(0, stop, plan.tgt_len):
        pairs = segment(tokens, starts, position, plan.tgt_len, model.config.ext_len)
        nll = reading.score(reader, *pairs)
        is_warm = position >= plan.warm_up * plan.tgt_len
        rows = slice(None) if is_warm else slice(int(streams.start == 0))
        yield starts[rows] + position, nll[rows]
    if streams.stop == plan.n_streams:
        last = starts[-1:]
        reader.select([-1])
        for position in range(stop, plan.n_pairs - int(last[0]), plan.tgt_len):
            length = min(plan.tgt_len, plan.n_pairs - int(last[0]) - position)
            pairs = segment(tokens, last, position, length, model.config.ext_len)
            nll = reading.score(reader, *pairs)
            yield last + position, nll


def _sum(scored: Iterator[tuple[Array, Array]]) -> float:
    return sum(float(nll.sum(dtype=np.float64)) for _, nll in scored)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
