"""Continuing a text: the prompt once, then one token at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from npxl.config import checked_int
from npxl.errors import NpxlError
from npxl.models import Continuation, LanguageModel
from npxl.threads import available_cores, helpers

Array = NDArray[Any]

_PROMPT_SEGMENT = 128
"""Tokens of the prompt read at once; any number gives the same text."""


class Generated(NamedTuple):
    """One token of a continuation."""

    token: int
    log_prob: float
    """log p(token | all before it) of the model itself, in nats: before temperature and cuts."""


def generate(
    model: LanguageModel,
    prompt: Sequence[int] | Array,
    n_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | np.random.Generator = 0,
    mem_len: int | None = None,
) -> Iterator[Generated]:
    """Draw tokens that continue a prompt.

    Every token is predicted from the last mem_len + 1 tokens in every layer, or from attn_window
    of them where the model has a smaller window.  So it does not matter how the prompt is cut into
    segments, and the log-probabilities are those of one pass over the whole text with
    `model.reconfigured(mem_len=mem_len, attn_window=min(attn_window, mem_len + 1), ext_len=0)`.
    That needs states that do not depend on their place.  Where they do, with an encoding of places,
    the last mem_len + 1 tokens are read again for every token: as one segment, without memory.

    Parameters
    ----------
    model
        The model, whose configuration may be that of training.
    prompt
        [K] token ids, K ≥ 1, such as `vocab.encode(text)`.
    n_tokens
        Tokens to draw.
    temperature
        Divides the log-probabilities; 0 takes the most probable token, the first of equals.
    top_k
        Draw only from the k most probable tokens.
    top_p
        Draw only from the smallest set of most probable tokens whose probabilities, after
        temperature and top_k, add up to at least p.
    seed
        The same seed draws the same tokens; or a generator to draw from.
    mem_len
        Tokens to remember; None: as many as the model's configuration says.  An LSTM remembers
        all of them in its own way, and takes no number.

    Yields
    ------
    Generated
        Token id and its log-probability under the model.

    Raises
    ------
    NpxlError
        When an argument is not as described, at once; or when the model's probabilities are not
        finite.
    """
    ids = np.asarray(prompt)
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
        raise NpxlError(
            "A prompt is a row of at least one token id, but got "
            f"{ids.dtype} of shape {ids.shape}; a newline is a neutral beginning."
        )
    n_tokens = checked_int("The number of tokens", n_tokens, minimum=0, maximum=None)
    top_k = checked_int("top_k", top_k, minimum=1, maximum=None, optional=True)
    if not 0 <= temperature < math.inf:
        raise NpxlError(f"temperature is {temperature!r}, but it must be a number of at least 0.")
    if top_p is not None and not 0 < top_p <= 1:
        raise NpxlError(f"top_p is {top_p!r}, but it must be more than 0 and at most 1.")
    if isinstance(seed, int) and seed < 0:
        raise NpxlError(f"seed is {seed}, but it must be at least 0.")
    reader, rng = model.continuation(mem_len), np.random.default_rng(seed)
    return _continuation(reader, ids, n_tokens, temperature, top_k, top_p, rng)


def _continuation(
    reader: Continuation,
    prompt: Array,
    n_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    rng: np.random.Generator,
) -> Iterator[Generated]:
    blas = ThreadpoolController().select(user_api="blas")

    def after(ids: Array) -> Array:
        # Each token alone, so that a caller who does not ask for more leaves no limit behind.
        with blas.limit(limits=1), helpers(available_cores() - 1):
            return _next_log_probs(reader, ids)

    for start in range(0, len(prompt), _PROMPT_SEGMENT):
        log_p = after(prompt[start : start + _PROMPT_SEGMENT])
    for i in range(n_tokens):
        token = choose(log_p, temperature, top_k, top_p, rng)
        yield Generated(token, float(log_p[token]))
        if i + 1 < n_tokens:
            log_p = after(np.array([token]))


def _next_log_probs(reader: Continuation, ids: Array) -> Array:
    """log p of every symbol after the last of `ids` [K], which is read: float64 [V]."""
    with np.errstate(all="ignore"):
        log_p = reader.log_probs(ids[None])
    last: Array = log_p[0, -1].astype(np.float64)
    if np.isnan(last).any() or last.max() == -math.inf:
        raise NpxlError(
            "The model's probabilities are not numbers, so nothing can be drawn: its parameters "
            "are not finite, or too large; use another checkpoint."
        )
    return last


def choose(
    log_p: Array,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    rng: np.random.Generator,
) -> int:
    """Draw from the distribution log_p, float64 [V] in nats, sharpened and cut as in `generate`.

    Of equally probable tokens, those with smaller ids count as more probable.
    """
    if temperature == 0:
        return int(log_p.argmax())
    order = np.argsort(-log_p, kind="stable")[:top_k]
    # A tiny temperature sends all but the largest to −inf, which exp turns into 0.
    with np.errstate(over="ignore"):
        weights = np.exp((log_p[order] - log_p[order[0]]) / temperature)
    cumulative = np.cumsum(weights)
    if top_p is not None:
        n_kept = np.searchsorted(cumulative, top_p * cumulative[-1]) + 1
        cumulative = cumulative[:n_kept]
    drawn = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
    return int(order[min(drawn, len(cumulative) - 1)])  # the product may round up to the total
