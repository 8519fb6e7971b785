"""What a model's public methods are given: checked once, with errors that say what to pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.config import LanguageModelConfig
from npxl.errors import NpxlError, described
from npxl.kernels.cross_entropy import IGNORE
from npxl.memory import Memory
from npxl.params import Params, check_shapes

Array = NDArray[Any]


def checked_tokens(name: str, tokens: Array, vocab_size: int, or_ignore: bool = False) -> Array:
    """Token ids below vocab_size as an array of int64 [B, q]; a copy, which a backward pass reads
    when the caller's array may have changed.  With or_ignore, some may be IGNORE instead."""
    tokens = _as_array(name, tokens)
    if tokens.ndim != 2 or 0 in tokens.shape or tokens.dtype.kind not in "iu":
        raise NpxlError(
            f"{name} have shape {tokens.shape} and type {tokens.dtype}; they must be whole "
            "numbers [batch, length] with at least one of each."
        )
    if tokens.min() < (IGNORE if or_ignore else 0) or tokens.max() >= vocab_size:
        ignored = f", and {IGNORE} is for what is not scored" if or_ignore else ""
        raise NpxlError(
            f"{name} go from {tokens.min()} to {tokens.max()}, but the vocabulary has the "
            f"symbols 0 to {vocab_size - 1}{ignored}."
        )
    return tokens.astype(np.int64)


def checked_segment(inputs: Array, targets: Array, vocab_size: int) -> tuple[Array, Array]:
    """Inputs [B, E+T], and the targets [B, T], or IGNORE, of the last T of them."""
    inputs = checked_tokens("inputs", inputs, vocab_size)
    targets = checked_tokens("targets", targets, vocab_size, or_ignore=True)
    if len(targets) != len(inputs) or targets.shape[1] > inputs.shape[1]:
        raise NpxlError(
            f"targets have shape {targets.shape} and inputs {inputs.shape}; they need as many "
            "rows, and no more targets than inputs."
        )
    return inputs, targets


def check_embedded(embedded: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Vectors that replace the embeddings of the inputs, [B, q, d_model]."""
    is_array = isinstance(embedded, np.ndarray)
    if not is_array or embedded.shape != shape or embedded.dtype != dtype:
        raise NpxlError(
            f"embedded is {described(embedded)}, but these inputs and this model need an array of "
            f"shape {shape} and type {dtype}; start with model.embed(inputs)."
        )


def check_memory(
    memory: Memory,
    config: LanguageModelConfig,
    batch_size: int,
    dtype: np.dtype[Any],
    length: int | None = None,
) -> None:
    """The memory of as many streams as there are inputs, of a model of this configuration.

    Of any length, unless the model's memory has one.
    """
    if not isinstance(memory, Memory):
        raise NpxlError(
            f"memory is {described(memory)}, but it must be a npxl.Memory; start with "
            f"model.init_memory({batch_size}) and go on with the memory that forward returns."
        )
    length = memory.length if length is None else length
    expected = (config.n_layer, batch_size, length, config.d_model)
    if memory.states.shape != expected:
        raise NpxlError(
            f"memory has shape {memory.states.shape}, but this model and batch need "
            f"{expected}; start with model.init_memory({batch_size}), or pick streams with "
            "memory.select(rows)."
        )
    if memory.states.dtype != dtype:
        raise NpxlError(
            f"memory is {memory.states.dtype}, but the model is {dtype}; start with "
            f"model.init_memory({batch_size})."
        )


def check_streams(inputs: Array, batch_size: int) -> None:
    """As many rows of inputs as a reader reads streams."""
    if len(inputs) != batch_size:
        raise NpxlError(
            f"inputs have {len(inputs)} rows, but this reader reads {batch_size} streams; make "
            "another with model.reader(batch_size), or pick with select(rows)."
        )


def checked_cotangent(dnll: Array | None, nll: Array, n_scored: int) -> Array:
    """dnll [B, T] in the precision of nll; that of the mean of n_scored when there is none."""
    if dnll is None:
        return np.full(nll.shape, 1 / max(1, n_scored), nll.dtype)
    dnll = _as_array("dnll", dnll)
    if dnll.shape != nll.shape:
        raise NpxlError(f"dnll has shape {dnll.shape}, but nll has {nll.shape}.")
    if dnll.dtype.kind not in "fiu":
        raise NpxlError(f"dnll is of type {dnll.dtype}, but it must be real numbers.")
    return dnll.astype(nll.dtype, copy=False)


def check_grads(grads: Params, params: Params) -> None:
    """Where gradients are added: the shapes and the precision of the parameters."""
    if not isinstance(grads, Params):
        raise NpxlError(
            f"grads is {described(grads)}, but it must be a npxl.Params; start with "
            "model.params.zeros_like()."
        )
    try:
        check_shapes(grads.shapes, params.shapes)
    except NpxlError as error:
        raise NpxlError(
            f"grads do not fit; start with model.params.zeros_like(). {error}"
        ) from error
    if grads.dtype != params.dtype:
        raise NpxlError(
            f"grads are {grads.dtype}, but the model is {params.dtype}; start with "
            "model.params.zeros_like()."
        )


def _as_array(name: str, values: Any) -> Array:
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of several lengths
        raise NpxlError(f"{name} must be an array [batch, length]; NumPy says: {error}") from error
