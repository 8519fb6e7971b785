"""Workers: shards of the streams, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.errors import NpxlError
from npxl.layers.dropout import MaskKey
from npxl.memory import Memory
from npxl.models import LanguageModel
from npxl.params import Params
from npxl.threads import Threads, shards, spread

Array = NDArray[Any]


@dataclass(frozen=True)
class StepResult:
    """What one step over all streams gives."""

    nll: float
    """Mean negative log-likelihood of all B · T targets, in nats a token."""
    gradient: Params
    """Gradient of `nll`; it is overwritten by the next step."""


class Workers:
    """Forward and backward passes over B streams, shared among threads; a context manager.

    The threads exist inside the context; outside, the shards are computed one after another.

    The streams are cut into contiguous shards whose sizes differ by at most one.  Each worker owns
    the memory of its shard and a gradient of its own; it computes the shard's part of the gradient
    of the mean over all B · T targets, and the parts are added in the order of the shards.  So the
    same number of workers gives the same bits whatever the threads' timing, and another number the
    same up to rounding.

    The contract, for workers that span processes or machines instead:

    - `step` takes the whole batch and returns the mean and its gradient over all of it, both the
      same for the same parameters, batch, key and number of workers; parameters are read from
      the model and never written.
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
        Threads to use.  With a single stream they divide what its layers do.

    Raises
    ------
    NpxlError
        When batch_size or n_workers is less than 1.
    """

    def __init__(self, model: LanguageModel, batch_size: int, n_workers: int) -> None:
        if batch_size < 1:
            raise NpxlError(f"batch_size is {batch_size}, but it must be at least 1.")
        self._threads = Threads(n_workers, batch_size)
        self._model = model
        self._batch_size = batch_size
        self._rows = [slice(s.start, s.stop) for s in shards(batch_size, n_workers)]
        self._memories = [model.init_memory(rows.stop - rows.start) for rows in self._rows]
        self._gradients = [model.params.zeros_like() for _ in self._rows]

    def __enter__(self) -> Workers:
        self._threads.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._threads.__exit__(*error)

    @property
    def memory(self) -> Memory:
        """Memory of all streams, [n_layer, B, m, d_model]."""
        return Memory.concatenate(self._memories)

    @memory.setter
    def memory(self, memory: Memory) -> None:
        if memory.batch_size != self._batch_size:
            raise NpxlError(
                f"The memory is of {memory.batch_size} streams, "
                f"but these workers read {self._batch_size}."
            )
        self._memories = [memory.select(rows) for rows in self._rows]

    def step(self, inputs: Array, targets: Array, rng: MaskKey | None) -> StepResult:
        """Read one segment of every stream, and advance the memory past it.

        Parameters
        ----------
        inputs, targets
            [B, E + T] and [B, T] whole numbers, as `model.forward` takes them.
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

        def task(shard: int) -> Callable[[], float]:
            return lambda: self._run_shard(shard, inputs, targets, rng)

        sums = self._threads.run([task(shard) for shard in range(len(self._rows))])
        size = self._model.params.flat.size
        spread(self._add_gradients, size, cost=8 * size)
        return StepResult(sum(sums) / targets.size, self._gradients[0])

    def _add_gradients(self, part: range) -> None:
        """Make the first worker's gradient the sum of all, in a part of the vector."""
        total, *others = (gradient.flat[part.start : part.stop] for gradient in self._gradients)
        for other in others:
            total += other

    def _run_shard(self, shard: int, inputs: Array, targets: Array, rng: MaskKey | None) -> float:
        """Sum of the shard's nll; its part of the gradient goes to its own vector."""
        rows, gradient = self._rows[shard], self._gradients[shard]
        if rng is not None:
            rng = rng._replace(first_stream=rng.first_stream + rows.start)
        # A diverging loss overflows here first; whoever trains looks at the result.
        with np.errstate(all="ignore"):
            forward = self._model.forward(
                inputs[rows], targets[rows], self._memories[shard], rng=rng
            )
            gradient.flat.fill(0)
            # Of the whole batch's mean, so that the shards' gradients need only be added.
            dnll = np.full_like(forward.nll, 1 / targets.size)
            self._model.backward(forward, dnll=dnll, grads=gradient)
        self._memories[shard] = forward.memory
        return float(forward.nll.sum(dtype=np.float64))
