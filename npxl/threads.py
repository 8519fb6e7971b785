"""Threads: tasks side by side with one BLAS thread each, or BLAS with all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from npxl.allocation import keep_freed_memory
from npxl.errors import NpxlError

T = TypeVar("T")


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


def run_parallel(tasks: Sequence[Callable[[], T]], n_workers: int) -> list[T]:
    """Results of the tasks, in their order, from at most `n_workers` threads.

    Two or more tasks run side by side, each with single-threaded BLAS; a single task, or a single
    worker, runs in the calling thread with `n_workers` BLAS threads.  BLAS has its own number of
    threads back afterwards.

    Raises
    ------
    NpxlError
        When n_workers is less than 1.
    Exception
        What the first of the failing tasks raised, once all have ended.
    """
    with Threads(n_workers, len(tasks)) as threads:
        return threads.run(tasks)


class Threads:
    """`n_workers` threads: for tasks side by side if there are several, else for BLAS.

    A context manager, in which the threads exist and BLAS is limited; outside, tasks run one after
    another.
    """

    def __init__(self, n_workers: int, n_tasks: int) -> None:
        if n_workers < 1:
            raise NpxlError(f"The number of workers is {n_workers}, but it must be at least 1.")
        self._n_threads = min(n_workers, n_tasks)
        self._n_blas_threads = 1 if self._n_threads > 1 else n_workers
        self._pool: ThreadPoolExecutor | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Threads:
        keep_freed_memory()
        self._stack.enter_context(threadpool_limits(self._n_blas_threads))
        if self._n_threads > 1:
            # OpenMP counts threads for each thread that calls it, so every worker sets the limit.
            self._pool = self._stack.enter_context(
                ThreadPoolExecutor(
                    self._n_threads, "npxl-worker", threadpool_limits, (self._n_blas_threads,)
                )
            )
        return self

    def __exit__(self, *error: Any) -> None:
        self._pool = None
        self._stack.close()

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Results of the tasks, in their order; all have ended when one that failed raises."""
        if self._pool is None:
            return [task() for task in tasks]
        futures = [self._pool.submit(task) for task in tasks]
        wait(futures)
        return [future.result() for future in futures]
