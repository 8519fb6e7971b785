"""Scoring a text by a window that slides one token at a time, as models without memory are.

Al-Rfou et al. 2019: every token is predicted from as many before it as a segment of training has,
all of which are read again for its sake.  The paper's table 9 compares with the time of this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.config import checked_int
from npxl.data.streams import require_text
from npxl.inference.evaluation import TOKENS_AT_ONCE, Reading, Score
from npxl.models import LanguageModel
from npxl.threads import run_parallel, shards

Array = NDArray[Any]


def evaluate_sliding(
    model: LanguageModel,
    tokens: Array,
    window: int,
    n_workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Score:
    """Score every token of a text but the first from the `window` tokens before it, read anew.

    Parameters
    ----------
    model
        Of any architecture; it reads each window as the beginning of a text.
    tokens
        [N] whole numbers, N ≥ 2; may be memory-mapped.
    window
        Tokens n before each token that is predicted.  The first n predictions are those of the
        first window, as in a segment: a token has all tokens before it while they are fewer.
    n_workers
        Threads that share the windows.
    progress
        Called with the tokens predicted so far and the tokens to predict; from any thread, one call
        at a time.
    stop
        Asked before every few windows, from any thread, whether to give up.

    Raises
    ------
    NpxlError
        When an argument is not as described.
    EvaluationStopped
        When `stop` returned true.
    """
    started = time.perf_counter()
    nll = _scored(model, tokens, window, n_workers, progress, stop)
    seconds = time.perf_counter() - started
    return Score(len(nll), float(nll.mean(dtype=np.float64)), len(nll) / seconds)


def score_sliding(model: LanguageModel, tokens: Array, window: int, n_workers: int = 1) -> Array:
    """Negative log-likelihood of each token but the first, [N − 1], in nats and in reading order.

    Entry i is −log p(tokens[i + 1] | tokens[max(0, i + 1 − window) … i]).  Parameters and errors
    are those of `evaluate_sliding`.
    """
    return _scored(model, tokens, window, n_workers)


def _scored(
    model: LanguageModel,
    tokens: Array,
    window: int,
    n_workers: int,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Array:
    tokens = np.asarray(tokens)
    require_text(tokens)
    window = checked_int("window", window, minimum=1)
    n_workers = checked_int("n_workers", n_workers, minimum=1)
    n_pairs = len(tokens) - 1
    first = min(window, n_pairs)  # pairs in the first window
    nll = np.empty(n_pairs, model.dtype)
    reading = Reading(n_pairs, progress, stop)

    nll[:first] = _read(model, tokens[None, :first], tokens[None, 1 : first + 1], reading)[0]
    others = range(first, n_pairs)
    nll[first:] = score_windows(model, tokens, others, window, n_workers, reading)
    return nll


def score_windows(
    model: LanguageModel,
    tokens: Array,
    pairs: range | Array,
    window: int,
    n_workers: int = 1,
    reading: Reading | None = None,
) -> Array:
    """−log p(tokens[i + 1] | tokens[i + 1 − window … i]) for each i of `pairs` [P]: [P], in nats.

    Any i ≥ window − 1 in any order; a window is read as the beginning of a text.  This is what
    `score_sliding` does after the first window, before which there is nothing.
    """
    reading = reading or Reading(len(pairs))
    nll = np.empty(len(pairs), model.dtype)

    def task(part: range) -> Callable[[], None]:
        def run() -> None:
            for batch in _batches(part, max(1, TOKENS_AT_ONCE // window)):
                rows = slice(batch.start, batch.stop)
                places = np.asarray(pairs[rows])  # [b]: numbers of the last pairs of some windows
                inputs = tokens[places[:, None] + np.arange(1 - window, 1)]  # [b, n]
                nll[rows] = _read(model, inputs, tokens[places + 1][:, None], reading)[:, 0]

        return run

    if len(pairs):
        tasks = [task(part) for part in shards(len(pairs), n_workers)]
        run_parallel(tasks, n_workers, reading.give_up)
    return nll


def _read(model: LanguageModel, inputs: Array, targets: Array, reading: Reading) -> Array:
    reader = model.reader(len(inputs))  # which has read nothing
    return reading.score(reader, inputs.astype(np.int64), targets.astype(np.int64))


def _batches(pairs: range, size: int) -> Iterator[range]:
    return (pairs[start : start + size] for start in range(0, len(pairs), size))
