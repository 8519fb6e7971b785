"""Workers: shards of the streams, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.errors import NpxlError
from npxl.layers.dropout import MaskKey
from npxl.layers.softmax import n_scored
from npxl.memory import Memory
from npxl.models import LanguageModel
from npxl.threads import Threads, shards
from npxl.training.gradients import Gradient

Array = NDArray[Any]


@dataclass(frozen=True)
class StepResult:
    """What one step over all streams gives."""

    nll: float
    """Mean negative log-likelihood of the targets that are not ignored, in nats a token."""
    gradient: Gradient
    """Gradient of `nll`; it is overwritten by the next step."""


class Workers:
    """Forward and backward passes over B streams, shared among threads; a context manager.

    The threads exist inside the context; outside, the shards are computed one after another.

    The streams are cut into contiguous chunks, computed one after another, and each chunk into
    contiguous shards, one for each worker, computed side by side; sizes differ by at most one.  A
    shard has a memory of its own.  A worker has a gradient of its own, to which it adds, chunk by
    chunk, its shard's part of the gradient of the mean over all targets; then the workers'
    gradients are added in their order.  So the same numbers of workers and chunks give the same
    bits whatever the threads' timing, and others the same up to rounding.

    What a backward pass needs exists for one chunk at a time: more chunks take less memory.  A
    chunk of fewer streams than workers leaves some idle.

    The contract, for workers that span processes or machines instead:

    - `step` takes the whole batch and returns the mean and its gradient over all of it, both the
      same for the same parameters, batch, key and numbers of workers and chunks; parameters are
      read from the model and never written.
    - `memory`, read, is that of all streams in their order after the last step; assigned, it is
      what the next step reads.
    - Row b of the batch draws the dropout masks of stream `rng.first_stream` + b.
    - What goes wrong in a worker is raised by `step`, when no worker runs any more; the memory
      must then be assigned anew.

    Parameters
    ----------
    model
        Read at every step, so that an optimiser may change `model.params.flat` in between.
    batch_size
        Number of streams B.
    n_workers
        Threads to use.  A chunk of a single stream they share by dividing what its layers do.
    batch_chunk
        Number of chunks.

    Raises
    ------
    NpxlError
        When batch_size or n_workers is less than 1, or batch_chunk not in 1 … B.
    """

    def __init__(
        self, model: LanguageModel, batch_size: int, n_workers: int, batch_chunk: int = 1
    ) -> None:
        if batch_size < 1:
            raise NpxlError(f"batch_size is {batch_size}, but it must be at least 1.")
        if not 1 <= batch_chunk <= batch_size:
            raise NpxlError(
                f"batch_chunk is {batch_chunk}, but {batch_size} streams can be cut into 1 to "
                f"{batch_size} chunks."
            )
        most = -(-batch_size // batch_chunk)  # streams at once
        self._threads = Threads(n_workers, most)
        self._model = model
        self._batch_size = batch_size
        self._rows = [_cut(chunk, n_workers) for chunk in shards(batch_size, batch_chunk)]
        self._memories = self._cut_memory(model.init_memory(batch_size))
        shapes, dtype = model.params.shapes, model.dtype
        self._gradients = [Gradient(shapes, dtype) for _ in range(min(n_workers, most))]

    def __enter__(self) -> Workers:
        self._threads.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._threads.__exit__(*error)

    @property
    def memory(self) -> Memory:
        """Memory of all streams, [n_layer, B, m, d_model]."""
        return Memory.concatenate([memory for chunk in self._memories for memory in chunk])

    @memory.setter
    def memory(self, memory: Memory) -> None:
        if memory.batch_size != self._batch_size:
            raise NpxlError(
                f"The memory is of {memory.batch_size} streams, "
                f"but these workers read {self._batch_size}."
            )
        self._memories = self._cut_memory(memory)

    def step(self, inputs: Array, targets: Array, rng: MaskKey | None) -> StepResult:
        """Read one segment of every stream, and advance the memory past it.

        Parameters
        ----------
        inputs, targets
            [B, E + T] and [B, T] whole numbers, as `model.forward` takes them, IGNORE among them.
        rng
            Key of the dropout masks; None for none.

        Raises
        ------
        NpxlError
            When the batch has another number of streams, and what the model raises.
        """
        if len(inputs) != self._batch_size or len(targets) != self._batch_size:
            raise NpxlError(
                f"The batch has {len(inputs)} rows of inputs and {len(targets)} of targets, "
                f"but these workers read {self._batch_size} streams."
            )

        def task(chunk: int, worker: int) -> Callable[[], float]:
            return lambda: self._run_shard(chunk, worker, inputs, targets, rng)

        sums: list[float] = []
        for chunk, rows in enumerate(self._rows):
            sums += self._threads.run([task(chunk, worker) for worker in range(len(rows))])
        total, *others = self._gradients
        total.add(others)
        return StepResult(sum(sums) / max(1, n_scored(targets)), total)

    def _cut_memory(self, memory: Memory) -> list[list[Memory]]:
        return [[memory.select(rows) for rows in chunk] for chunk in self._rows]

    def _run_shard(
        self, chunk: int, worker: int, inputs: Array, targets: Array, rng: MaskKey | None
    ) -> float:
        """Sum of the shard's nll; its part of the gradient is added to the worker's."""
        rows, gradient = self._rows[chunk][worker], self._gradients[worker]
        if rng is not None:
            rng = rng._replace(first_stream=rng.first_stream + rows.start)
        # A diverging loss overflows here first; whoever trains looks at the result.
        with np.errstate(all="ignore"):
            forward = self._model.forward(
                inputs[rows], targets[rows], self._memories[chunk][worker], rng=rng
            )
            if not any(worker < len(earlier) for earlier in self._rows[:chunk]):
                gradient.clear()
            gradient.touch(self._model.touched(forward))
            # Of the whole batch's mean, so that the shards' gradients need only be added.
            dnll = np.full_like(forward.nll, 1 / max(1, n_scored(targets)))
            self._model.backward(forward, dnll=dnll, grads=gradient)
        self._memories[chunk][worker] = forward.memory
        return float(forward.nll.sum(dtype=np.float64))


def _cut(chunk: range, n_workers: int) -> list[slice]:
    """The rows of each worker's shard of a chunk."""
    parts = shards(len(chunk), n_workers)
    return [slice(chunk[part.start], chunk[part.start] + len(part)) for part in parts]
