"""The sides of a comparison, each alone in a process of its own."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from npxl.bench import OPTIMIZATIONS
from npxl.bench.plain import WITHOUT
from npxl.bench.shapes import Shape
from npxl.config import ModelConfig, TrainConfig
from npxl.errors import NpxlError
from npxl.interop.tensors import HUGGING_FACE, tensors
from npxl.interop.transfoxl import config_to_transfoxl
from npxl.models import Reader
from npxl.models.plain_reader import PlainReader
from npxl.models.reading import TransformerXLReader
from npxl.models.transformer_xl import TransformerXL
from npxl.params import Params
from npxl.threads import available_cores, run_parallel
from npxl.training.optimizers import clip_scale, gradient_norm, optimizer_for
from npxl.training.workers import Workers

Array = NDArray[Any]

_TRAIN = TrainConfig(lr=1e-4)
_SEED = 0


class Side(Protocol):
    """One implementation at one shape, with the weights of `TransformerXL(config, seed=0)`."""

    def losses(self, segments: list[Array]) -> Array:
        """nll of what follows in each segment [B, T], [n, B, T − 1], memory carried over."""

    def train(self, segments: list[Array]) -> None:
        """An update on each segment [B, T + 1]: forward, backward, clipping, Adam."""

    def evaluate(self, segments: list[Array]) -> None:
        """Score each segment [B, T + 1] with memory carried over from call to call."""

    def generate(self, n_tokens: int) -> None:
        """Feed tokens one by one, with memory carried over from call to call."""


class Npxl:
    """This package, or what it would be without one of its optimisations."""

    def __init__(self, shape: Shape, n_threads: int | None = None, without: str = "") -> None:
        if without in WITHOUT:
            WITHOUT[without]()
        self._without = without
        self._n_threads = 1 if without == "workers" else n_threads or available_cores()
        self._model = TransformerXL(shape.model, seed=_SEED)
        self._shape = shape
        self._workers: Workers | None = None
        self._adam = optimizer_for(self._model.params, _TRAIN)
        self._reader: Reader | None = None

    def losses(self, segments: list[Array]) -> Array:
        # The whole segment is remembered, its last token too, whose successor is not scored.
        batch_size = self._shape.batch_size
        memory, reader = self._model.init_memory(batch_size), self._new_reader(batch_size)
        nll = []
        for segment in segments:
            targets = np.roll(segment, -1, axis=1)
            fwd = self._model.forward(segment, targets, memory)
            memory = fwd.memory
            # In the segments that will be timed: a token alone may have a way of its own.
            parts = range(0, segment.shape[1], self._shape.tgt_len)
            slices = [slice(start, start + self._shape.tgt_len) for start in parts]
            read = np.concatenate(
                [reader.score(segment[:, part], targets[:, part]) for part in slices], axis=1
            )
            if not np.allclose(read, fwd.nll, atol=1e-4):
                raise NpxlError("npxl's reader and its model score a text differently.")
            nll.append(fwd.nll[:, :-1])
        return np.array(nll)

    def train(self, segments: list[Array]) -> None:
        params = self._model.params
        if self._workers is None:
            self._workers = Workers(self._model, self._shape.batch_size, self._n_threads)
            self._workers.__enter__()
        for segment in segments:
            result = self._workers.step(segment[:, :-1], segment[:, 1:], None)
            scale = clip_scale(
                gradient_norm(result.gradient.flat, result.gradient.runs()), _TRAIN.clip
            )
            self._adam.update(params.flat, result.gradient.flat, _TRAIN.lr, scale)

    def evaluate(self, segments: list[Array]) -> None:
        reader = self._reading(self._shape.batch_size)

        def read() -> None:
            for segment in segments:
                reader.score(segment[:, :-1], segment[:, 1:])

        run_parallel([read], self._n_threads)

    def generate(self, n_tokens: int) -> None:
        reader = self._reading(1)

        def read() -> None:
            for n in range(n_tokens):
                reader.log_probs(np.full((1, 1), n % self._shape.model.vocab_size))

        run_parallel([read], self._n_threads)

    def _reading(self, batch_size: int) -> Reader:
        if self._reader is None:
            self._reader = self._new_reader(batch_size)
        return self._reader

    def _new_reader(self, batch_size: int) -> Reader:
        if self._without == "projected-memory":
            return PlainReader(self._model, batch_size)
        if self._without == "one-token":
            return TransformerXLReader(self._model, batch_size, one_token=False)
        return self._model.reader(batch_size)


class HuggingFace:
    """TransfoXL of transformers, on torch."""

    def __init__(self, shape: Shape, n_threads: int | None = None) -> None:
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers' own use of torch
            from transformers import TransfoXLConfig, TransfoXLLMHeadModel, logging
        logging.set_verbosity_error()
        torch.set_num_threads(n_threads or available_cores())
        config = shape.model
        self._torch, self._shape = torch, shape
        self._model = TransfoXLLMHeadModel(
            TransfoXLConfig.from_dict(
                config_to_transfoxl(config) | {"dropout": 0.0, "dropatt": 0.0}
            )
        )
        _copy_parameters(TransformerXL(config, seed=_SEED).params, config, self._model)
        self._adam = torch.optim.Adam(self._model.parameters(), lr=_TRAIN.lr)
        self._memory: Any = None

    def losses(self, segments: list[Array]) -> Array:
        self._model.eval()
        memory, nll = None, []
        with self._torch.no_grad():
            for segment in segments:
                tokens = self._torch.from_numpy(segment)
                out = self._model(tokens, mems=memory, labels=tokens)
                memory = out.mems
                nll.append(self._in_reading_order(out.losses.numpy(), segment[:, 1:]))
        return np.array(nll)

    def _in_reading_order(self, losses: Array, targets: Array) -> Array:
        """Losses [B, T] of targets of that shape; it gives those of each cluster together."""
        flat = targets.reshape(-1)
        members = [
            np.flatnonzero((cluster.start <= flat) & (flat < cluster.stop))
            for cluster in self._shape.model.clusters
        ]
        nll: Array = np.empty(targets.size, losses.dtype)
        nll[np.concatenate(members)] = losses.reshape(-1)
        return nll.reshape(targets.shape)

    def train(self, segments: list[Array]) -> None:
        self._model.train()
        for segment in segments:
            # It shifts the labels itself: T + 1 tokens would be T + 1 queries.
            tokens = self._torch.from_numpy(segment[:, :-1])
            out = self._model(tokens, mems=self._memory, labels=tokens)
            self._memory = out.mems
            self._adam.zero_grad()
            out.loss.backward()
            self._torch.nn.utils.clip_grad_norm_(self._model.parameters(), _TRAIN.clip)
            self._adam.step()

    def evaluate(self, segments: list[Array]) -> None:
        self._model.eval()
        with self._torch.no_grad():
            for segment in segments:
                tokens = self._torch.from_numpy(segment[:, :-1])
                self._memory = self._model(tokens, mems=self._memory, labels=tokens).mems

    def generate(self, n_tokens: int) -> None:
        self._model.eval()
        with self._torch.no_grad():
            for n in range(n_tokens):
                token = self._torch.full((1, 1), n % self._shape.model.vocab_size)
                self._memory = self._model(token, mems=self._memory).mems


def _copy_parameters(params: Params, config: ModelConfig, peer: Any) -> None:
    """npxl's parameters into a TransfoXLLMHeadModel."""
    # What they tie or repeat is one tensor under several names: filled by any of them.
    theirs = {name: tensor.detach().numpy() for name, tensor in peer.named_parameters()}
    for tensor in tensors(config, HUGGING_FACE):
        if tensor.parts:
            for ours, part in tensor.pairs(params, theirs):
                part[...] = ours


PEERS = ("transformers",)

SIDES: dict[str, Callable[[Shape, int | None], Side]] = {
    "npxl": Npxl,
    "transformers": HuggingFace,
    **{f"without {name}": partial(Npxl, without=name) for name in OPTIMIZATIONS},
}


def serve(connection: Any, name: str, shape: Shape, n_threads: int | None) -> None:
    """Build a side and do what the connection asks, telling how long each took: a process's main.

    A request is a method's name and its arguments; the answer is its result and the seconds.
    """
    side = SIDES[name](shape, n_threads)
    while (request := connection.recv()) is not None:
        method, arguments = request
        if method == "peak_memory":
            connection.send((_peak_memory(), 0.0))
            continue
        started = time.perf_counter()
        result = getattr(side, method)(*arguments)
        connection.send((result, time.perf_counter() - started))


def _peak_memory() -> float | None:
    """Largest resident memory of this process so far, in megabytes."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
