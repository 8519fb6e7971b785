"""What an optimiser does with the gradient: one statement over the flat vector of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from npxl.config import TrainConfig
from npxl.errors import NpxlError
from npxl.kernels.adam import adam_update, squared_norm
from npxl.params import Params
from npxl.threads import spread

Array = NDArray[Any]

_PIECE = 2**16
"""Numbers whose squares are added up by one thread."""


class Optimizer(Protocol):
    """Moves parameters along a gradient and remembers what it needs in vectors of their shape.

    `update` reads each gradient entry times `scale`, so that clipping costs no pass of its own.
    """

    step: int

    @property
    def state(self) -> Mapping[str, Array]:
        """The vectors to save and to write into when a run is resumed, `step` apart."""

    def update(self, params: Array, gradient: Array, lr: float, scale: float = 1.0) -> None:
        """Change `params` [P] in place and count one step."""


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1), both moments corrected for their start at zero.

    With g the scaled gradient of step t:

        m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
        θ ← θ − lr · m̂ / (√v̂ + ε)    m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)

    Derived in docs/training.md.

    Parameters
    ----------
    size
        Number of parameters P.
    dtype
        Their precision, also that of the moments.
    beta1, beta2, epsilon
        As above; `TrainConfig` documents them and has their defaults.

    Attributes
    ----------
    first_moment, second_moment
        m and v, [P].
    step
        Updates made so far.
    """

    def __init__(
        self, size: int, dtype: DTypeLike, *, beta1: float, beta2: float, epsilon: float
    ) -> None:
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.first_moment = np.zeros(size, dtype)
        self.second_moment = np.zeros(size, dtype)
        self.step = 0

    @classmethod
    def of(cls, config: TrainConfig, params: Params) -> Adam:
        """As a run's configuration says, for these parameters."""
        return cls(
            params.flat.size,
            params.dtype,
            beta1=config.beta1,
            beta2=config.beta2,
            epsilon=config.adam_epsilon,
        )

    @property
    def state(self) -> dict[str, Array]:
        """Both moments by name."""
        return {"first_moment": self.first_moment, "second_moment": self.second_moment}

    def update(self, params: Array, gradient: Array, lr: float, scale: float = 1.0) -> None:
        """One step along scale · gradient: changes `params` [P] in place.

        Parameters
        ----------
        params, gradient
            [P], of the precision given at construction.
        lr
            Learning rate of this step.
        scale
            Factor of the gradient, from `clip_scale`.
        """
        for vector in (params, gradient):
            if vector.shape != self.first_moment.shape or vector.dtype != self.first_moment.dtype:
                raise NpxlError(
                    f"Adam was made for {self.first_moment.size} numbers of type "
                    f"{self.first_moment.dtype}, but was given {vector.dtype} of shape "
                    f"{vector.shape}."
                )
        self.step += 1
        scalars = (
            scale,
            self.beta1,
            1 - self.beta1,
            self.beta2,
            1 - self.beta2,
            lr / (1 - self.beta1**self.step),
            1 / math.sqrt(1 - self.beta2**self.step),
            self.epsilon,
        )
        # A float64 scalar would carry the whole loop over to float64.
        typed = [params.dtype.type(scalar) for scalar in scalars]
        vectors = params, gradient, self.first_moment, self.second_moment

        def task(part: range) -> None:
            adam_update(*(vector[part.start : part.stop] for vector in vectors), *typed)

        spread(task, params.size, cost=16 * params.size)  # as long as so many multiplications


def restore(optimizer: Optimizer, vectors: Mapping[str, Array], step: int) -> None:
    """Put an optimiser into the state that was saved after `step` updates.

    Raises
    ------
    NpxlError
        When a vector is missing or does not fit.
    """
    for name, own in optimizer.state.items():
        saved = vectors.get(name)
        if saved is None or saved.shape != own.shape or saved.dtype != own.dtype:
            found = "none" if saved is None else f"one of {saved.dtype} and shape {saved.shape}"
            raise NpxlError(
                f"The optimiser needs a {name} of {own.dtype} and shape {own.shape}, but the saved "
                f"state has {found}."
            )
        own[...] = saved
    optimizer.step = step


def gradient_norm(gradient: Array) -> float:
    """Euclidean norm of the whole gradient [P], added up in float64; not finite if g is not."""
    # In pieces of fixed length, so that the sum does not depend on the number of threads.
    starts = range(0, gradient.size, _PIECE)
    sums = np.empty(len(starts))

    def task(pieces: range) -> None:
        for n in pieces:
            sums[n] = squared_norm(gradient[starts[n] : starts[n] + _PIECE])

    spread(task, len(starts), cost=8 * gradient.size)
    return math.sqrt(sums.sum())


def clip_scale(norm: float, clip: float) -> float:
    """What to multiply a gradient of this norm by, so that it becomes no longer than `clip`."""
    return clip / norm if norm > clip else 1.0
