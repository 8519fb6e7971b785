"""Dropout whose masks are a function of seed, step, place and stream (Srivastava et al. 2014)."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.errors import NpxlError
from npxl.kernels.random_mask import drop

Array = NDArray[Any]


class MaskKey(NamedTuple):
    """Which masks a forward pass draws: pass it as `rng`.

    Masks depend on nothing else, so that the same key draws the same masks: in a gradient check, in
    a run that was interrupted, and however the streams are shared among workers.
    """

    seed: int = 0
    step: int = 0
    first_stream: int = 0
    """Number of the batch's first row among all streams of a run."""

    def site(self, name: str) -> Site:
        """The masks of one place in the model."""
        entropy = np.random.SeedSequence((self.seed, self.step, zlib.crc32(name.encode())))
        low, high = (int(word) for word in entropy.generate_state(2))
        return Site(low, high, self.first_stream)


class Site(NamedTuple):
    """The masks of one place in the model at one step."""

    low: int
    high: int
    first_stream: int

    def shared(self) -> Site:
        """One mask for all streams, whichever of them are in the batch."""
        return self._replace(first_stream=_SHARED)


def site_of(key: MaskKey | None, name: str) -> Site | None:
    """The masks of one place, or None where there is no dropout."""
    return None if key is None else key.site(name)


_SHARED = 0xFFFFFFFF  # a stream number that no batch reaches


class DropoutRule(NamedTuple):
    """A mask as kernels take it."""

    key_low: int
    key_high: int
    first_stream: int
    threshold: int
    """An entry is kept when its 32 random bits reach this: 0 keeps all."""
    factor: Any
    """1 / (1 − rate), in the precision of what is dropped."""


class DropoutCache(NamedTuple):
    """The mask that a forward pass applied; what the backward pass needs."""

    rate: float
    site: Site


def dropout_forward(x: Array, rate: float, site: Site | None) -> tuple[Array, DropoutCache | None]:
    """y = x · keep / (1 − rate), with keep = 0 at the fraction `rate` of entries, else 1.

    x [B, ...], row b of which is stream site.first_stream + b.
    """
    cache = dropout_cache(rate, site)
    return _apply(x, cache), cache


def dropout_backward(dy: Array, cache: DropoutCache | None) -> Array:
    """dx = dy · keep / (1 − rate): the same linear map, which is its own adjoint."""
    return _apply(dy, cache)


def dropout_cache(rate: float, site: Site | None) -> DropoutCache | None:
    """What `dropout_forward` applies: None, the identity, without a site or at rate 0."""
    return None if site is None or rate == 0.0 else DropoutCache(rate, site)


def _apply(x: Array, cache: DropoutCache | None) -> Array:
    if cache is None:
        return x
    y = np.empty(x.shape, x.dtype)
    drop(x.reshape(len(x), -1), y.reshape(len(x), -1), dropout_rule(cache, x.dtype))
    return y


def dropout_rule(cache: DropoutCache | None, dtype: np.dtype[Any]) -> DropoutRule:
    """The rule of a mask, and for None one that keeps everything."""
    if cache is None:
        return DropoutRule(0, 0, 0, 0, dtype.type(1))
    rate, site = cache
    return DropoutRule(*site, round(rate * 2**32), dtype.type(1 / (1 - rate)))


def mask_key(rng: MaskKey | np.random.Generator | None) -> MaskKey | None:
    """What a caller passed as `rng` as a key; a generator is asked for a seed once."""
    if rng is None or isinstance(rng, MaskKey):
        return rng
    if isinstance(rng, np.random.Generator):
        return MaskKey(seed=int(rng.integers(2**63)))
    raise NpxlError(
        f"rng is {rng!r}, but masks are drawn from counters: pass npxl.MaskKey(seed, step) or a "
        "numpy.random.Generator, or None to evaluate without dropout."
    )
