"""Threads: tasks side by side, one thread each, or all threads for the parts of one task."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from npxl.allocation import keep_freed_memory
from npxl.errors import NpxlError

T = TypeVar("T")

_WORTH_SPREADING = 2**24
"""Multiplications that another thread has to be given at least: to wake one takes 0.1 to 0.5 ms."""

_AWAKE = 0.1
"""Seconds that a thread waits at most without a look at signals.

One that arrives just before the thread falls asleep does not wake it.
"""

_helpers = threading.local()
"""Of a thread that has helpers: `pool`, and their number `n`."""


def available_cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def shards(n_streams: int, n_workers: int) -> list[range]:
    """The streams 0 … n_streams − 1, cut into one contiguous range for each worker.

    Their lengths differ by at most one; none is empty, so that there are fewer ranges than workers
    when there are fewer streams.
    """
    n_shards = min(n_workers, n_streams)
    bounds = [n_streams * shard // n_shards for shard in range(n_shards + 1)]
    return [range(*pair) for pair in pairwise(bounds)]


def run_parallel(
    tasks: Sequence[Callable[[], T]], n_workers: int, give_up: Callable[[], None] | None = None
) -> list[T]:
    """Results of the tasks, in their order, from at most `n_workers` threads.

    Two or more tasks run side by side, each with single-threaded BLAS; a single task, or a single
    worker, runs in the calling thread, where `spread` divides what it does among `n_workers`.  BLAS
    has its own number of threads back afterwards.  `give_up` is called when Ctrl-C interrupts the
    calling thread, so that tasks of other threads, which it cannot interrupt, may end early.

    Raises
    ------
    NpxlError
        When n_workers is less than 1.
    Exception
        What the first of the failing tasks raised, once all have ended.
    """
    with Threads(n_workers, len(tasks)) as threads:
        return threads.run(tasks, give_up)


def spread(task: Callable[[range], None], n: int, cost: int | None = None) -> None:
    """Run `task` on parts of range(n), side by side if the caller has helpers.

    Those of `Threads` help the thread that has entered it: between its tasks, and inside of a
    single one, which runs in that thread; and `helpers` lends some.  Parts must write to places of
    their own.

    Parameters
    ----------
    task
        Given a part.
    n
        Number of things to do.
    cost
        Of all of them, in multiplications; too few are not worth waiting for another thread.

    Raises
    ------
    Exception
        What the first of the failing parts raised, once all have ended.
    """
    pool, n_helpers = _get_helpers()
    n_parts = n_helpers + 1
    if cost is not None:
        n_parts = min(n_parts, cost // _WORTH_SPREADING)
    if pool is None or n < 2 or n_parts < 2:
        task(range(n))
        return
    errors = np.geterr()  # of this thread alone

    def run(part: range) -> None:
        with np.errstate(**errors):
            task(part)

    mine, *others = shards(n, n_parts)
    futures = [pool.submit(run, part) for part in others]
    try:
        with helpers(0):  # who are busy: a part is not divided again
            task(mine)
    finally:
        wait(futures)
    for future in futures:
        future.result()


@contextmanager
def helpers(n: int) -> Iterator[None]:
    """Let `n` threads help the calling one, inside this context, with what it spreads."""
    before = _get_helpers()
    _set_helpers(_pool_of_helpers(n) if n else None, n)
    try:
        yield
    finally:
        _set_helpers(*before)


@functools.cache
def _pool_of_helpers(n: int) -> ThreadPoolExecutor:
    """Threads that wait for work, and for the interpreter's end."""
    # Where BLAS runs on OpenMP, which counts threads for each thread that calls it.
    return ThreadPoolExecutor(n, "npxl-helper", threadpool_limits, (1, "openmp"))


def _forget_helpers() -> None:
    """After a fork the pools are still known, but their threads are the parent's."""
    _pool_of_helpers.cache_clear()
    _set_helpers(None, 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helpers)


class Threads:
    """`n_workers` threads: for tasks side by side if there are several, else for parts of one.

    A context manager, in which the threads exist and BLAS has one thread for each of them; outside,
    tasks run one after another.  Two or more tasks have one thread each, also when there are fewer
    than workers.  A single task runs in the calling thread, and `spread` divides what it does.
    BLAS would do so too, but its threads keep a core busy while they wait.
    """

    def __init__(self, n_workers: int, n_tasks: int) -> None:
        if n_workers < 1:
            raise NpxlError(f"The number of workers is {n_workers}, but it must be at least 1.")
        self._n_workers = n_workers
        self._n_threads = min(n_workers, n_tasks)
        self._pool: ThreadPoolExecutor | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Threads:
        keep_freed_memory()
        self._stack.enter_context(threadpool_limits(1))
        if self._n_threads > 1:
            # OpenMP counts threads for each thread that calls it, so every worker sets the limit.
            self._pool = self._stack.enter_context(
                ThreadPoolExecutor(self._n_threads, "npxl-worker", threadpool_limits, (1,))
            )
        self._stack.enter_context(helpers(self._n_workers - 1))
        return self

    def __exit__(self, *error: Any) -> None:
        self._pool = None
        self._stack.close()

    def run(
        self, tasks: Sequence[Callable[[], T]], give_up: Callable[[], None] | None = None
    ) -> list[T]:
        """Results of the tasks, in their order; all have ended when one that failed raises.

        `give_up` as for `run_parallel`.
        """
        if self._pool is None or len(tasks) == 1:
            return [task() for task in tasks]
        try:
            futures = [self._pool.submit(task) for task in tasks]
            while wait(futures, _AWAKE).not_done:
                pass
        except BaseException:
            if give_up is not None:
                give_up()
            raise
        return [future.result() for future in futures]


def _get_helpers() -> tuple[ThreadPoolExecutor | None, int]:
    return getattr(_helpers, "pool", None), getattr(_helpers, "n", 0)


def _set_helpers(pool: ThreadPoolExecutor | None, n: int) -> None:
    _helpers.pool, _helpers.n = pool, n
