"""What tests draw: configurations, texts, segmentations, memories and cotangents.

Strategies draw shapes, options and seeds, never the numbers in an array, so that a failure shrinks
to something that a person can read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from npxl.config import ModelConfig
from npxl.invariants.findings import Case

Array = NDArray[Any]
Drawable = Any
"""A value, or a strategy for it."""

DISTANCES = ("dai", "shaw")
"""Values of attn_type with which states do not depend on their place."""
PLACES = ("vaswani", "al-rfou")
"""Those with which they do."""
ATTN_TYPES = (*DISTANCES, *PLACES)
LEARNED = ("shaw", "al-rfou")
"""Values of attn_type that need a table, and so the largest distance that it has a row for."""

_OPTIONS: Mapping[str, Drawable] = {
    "vocab_size": st.integers(2, 7),
    "n_layer": st.integers(1, 3),
    "n_head": st.integers(1, 3),
    "d_model": st.sampled_from([4, 6, 8, 2]),
    "d_head": st.sampled_from([1, 3, 5, 2, 4]),
    "d_inner": st.integers(1, 7),
    "mem_len": st.integers(0, 6),
    "attn_window": st.none() | st.integers(1, 8),
    "attn_type": st.sampled_from(ATTN_TYPES),
    "clamp_len": st.none() | st.integers(1, 8),
    "ext_len": st.integers(0, 2),
    "dropout": st.sampled_from([0.0, 0.3]),
    "dropatt": st.sampled_from([0.0, 0.3]),
    "pre_lnorm": st.booleans(),
    "untie_r": st.booleans(),
    "tie_weight": st.booleans(),
    "initial_memory": st.sampled_from(["empty", "zeros"]),
}


def seeds() -> st.SearchStrategy[int]:
    """Seeds of random numbers."""
    return st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Tokens:
    """Random tokens [B, N] below vocab_size."""

    shape: tuple[int, int]
    vocab_size: int
    seed: int

    def array(self) -> Array:
        """The tokens."""
        return np.random.default_rng(self.seed).integers(self.vocab_size, size=self.shape)


@dataclass(frozen=True)
class Normal:
    """Numbers from N(0, 1)."""

    shape: tuple[int, ...]
    seed: int
    dtype: str = "float64"

    def array(self) -> Array:
        """The numbers."""
        return np.random.default_rng(self.seed).standard_normal(self.shape).astype(self.dtype)


def cases(
    max_batch_size: int = 3, max_segments: int = 5, max_length: int = 5
) -> st.SearchStrategy[Case]:
    """Examples for checks: a few streams in a few short segments.

    Parameters
    ----------
    max_batch_size, max_segments, max_length
        At most so many streams, segments, and tokens in a segment.
    """
    lengths = st.lists(st.integers(1, max_length), min_size=1, max_size=max_segments)
    return st.builds(
        Case,
        batch_size=st.integers(1, max_batch_size),
        lengths=lengths.map(tuple),
        position=st.integers(0, max_segments * max_length - 1),
        row=st.integers(0, max_batch_size - 1),
        seed=seeds(),
    )


def segmentations(length: int) -> st.SearchStrategy[list[int]]:
    """Ways to cut `length` tokens into segments: lists of their lengths."""
    cuts = st.sets(st.integers(1, length - 1)) if length > 1 else st.just(set())
    return cuts.map(lambda at: np.diff([0, *sorted(at), length]).tolist())


def token_batches(
    vocab_size: int, batch_size: Drawable = None, length: Drawable = None
) -> st.SearchStrategy[Tokens]:
    """Batches [B, N] of random tokens; of up to 3 streams and 12 tokens if not given."""
    shape = st.tuples(
        _strategy(st.integers(1, 3) if batch_size is None else batch_size),
        _strategy(st.integers(1, 12) if length is None else length),
    )
    return st.builds(Tokens, shape=shape, vocab_size=st.just(vocab_size), seed=seeds())


def memories(
    config: ModelConfig, batch_size: int, length: Drawable = None
) -> st.SearchStrategy[Normal]:
    """States [n_layer, B, m, d_model] for `npxl.Memory`; m is at most mem_len if not given."""
    length = _strategy(st.integers(0, config.mem_len) if length is None else length)
    shape = length.map(lambda m: (config.n_layer, batch_size, m, config.d_model))
    return st.builds(Normal, shape=shape, seed=seeds())


def cotangents(shape: Sequence[int]) -> st.SearchStrategy[Normal]:
    """Weights of outputs of this shape: errors that cancel under ones do not under these."""
    return st.builds(Normal, shape=st.just(tuple(shape)), seed=seeds())


@st.composite
def configs(draw: st.DrawFn, /, **options: Drawable) -> ModelConfig:
    """Small configurations over all options but how parameters begin and `layer_norm_epsilon`.

    An option given is a value, or a strategy for it.
    """
    drawn: dict[str, Any] = {
        name: draw(_strategy(value)) for name, value in {**_OPTIONS, **options}.items()
    }
    if drawn["attn_type"] != "dai":
        drawn["untie_r"] = False
    if drawn["attn_type"] in LEARNED and drawn["clamp_len"] is None:
        drawn["clamp_len"] = draw(st.integers(1, 8))
    return ModelConfig(**{**draw(clusters(drawn["vocab_size"], drawn["d_model"])), **drawn})


@st.composite
def clusters(draw: st.DrawFn, /, vocab_size: int, d_model: int) -> dict[str, Any]:
    """The options of clusters of symbols, which depend on one another."""
    cutoffs = draw(
        st.sets(st.integers(1, vocab_size - 1), max_size=3) if vocab_size > 1 else st.just(set())
    )
    div_val = draw(st.sampled_from([1, 2, 4]))
    narrowest = div_val ** len(cutoffs)
    d_embed: int | None = draw(st.integers(narrowest, narrowest + 5))
    if d_model >= narrowest and draw(st.booleans()):
        d_embed = None
    tie_projs: Sequence[bool] = ()
    if div_val > 1 or d_embed not in (None, d_model):
        size = len(cutoffs) + 1
        tie_projs = draw(st.just([]) | st.lists(st.booleans(), min_size=size, max_size=size))
    return dict(
        cutoffs=tuple(sorted(cutoffs)), div_val=div_val, d_embed=d_embed, tie_projs=tuple(tie_projs)
    )


def _strategy(value: Drawable) -> st.SearchStrategy[Any]:
    return value if isinstance(value, st.SearchStrategy) else st.just(value)
