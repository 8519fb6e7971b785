"""What an optimiser does with the gradient: one statement over the flat vector of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from npxl.config import TrainConfig
from npxl.errors import NpxlError, described
from npxl.kernels.adagrad import adagrad_update
from npxl.kernels.adam import adam_update, squared_norm
from npxl.kernels.sgd import momentum_update, sgd_update
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
    def state(self) -> dict[str, Array]:
        """The vectors to save and to write into when a run is resumed, `step` apart."""

    def update(self, params: Array, gradient: Array, lr: float, scale: float = 1.0) -> None:
        """One step along scale · gradient: changes `params` [P] in place and counts one step.

        Parameters
        ----------
        params, gradient
            [P], of the precision given at construction.
        lr
            Learning rate of this step.
        scale
            Factor of the gradient, from `clip_scale`.

        Raises
        ------
        NpxlError
            When a vector is of another shape or precision.
        """


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

    @property
    def state(self) -> dict[str, Array]:
        """Both moments by name."""
        return {"first_moment": self.first_moment, "second_moment": self.second_moment}

    def update(self, params: Array, gradient: Array, lr: float, scale: float = 1.0) -> None:
        """As `Optimizer.update` says."""
        step = self.step + 1
        scalars = (
            scale,
            self.beta1,
            1 - self.beta1,
            self.beta2,
            1 - self.beta2,
            lr / (1 - self.beta1**step),
            1 / math.sqrt(1 - self.beta2**step),
            self.epsilon,
        )
        vectors = params, gradient, self.first_moment, self.second_moment
        _in_parts(adam_update, vectors, scalars, cost=16)
        self.step = step


class SGD:
    """Gradient descent, with momentum if that is not 0 (Polyak 1964; torch's form).

    With g the scaled gradient:

        v ← μ v + g        θ ← θ − lr · v

    Parameters
    ----------
    size
        Number of parameters P.
    dtype
        Their precision, also that of the velocity.
    momentum
        μ; with 0 there is no velocity to keep, and θ ← θ − lr · g.

    Attributes
    ----------
    velocity
        v, [P]; None without momentum.
    step
        Updates made so far.
    """

    def __init__(self, size: int, dtype: DTypeLike, *, momentum: float = 0.0) -> None:
        self.momentum = momentum
        self.velocity = np.zeros(size, dtype) if momentum else None
        self.step = 0

    @property
    def state(self) -> dict[str, Array]:
        """The velocity, if there is one."""
        return {} if self.velocity is None else {"velocity": self.velocity}

    def update(self, params: Array, gradient: Array, lr: float, scale: float = 1.0) -> None:
        """As `Optimizer.update` says."""
        if self.velocity is None:
            _in_parts(sgd_update, (params, gradient), (scale, lr), cost=8)
        else:
            vectors = params, gradient, self.velocity
            _in_parts(momentum_update, vectors, (scale, self.momentum, lr), cost=8)
        self.step += 1


class Adagrad:
    """Adagrad (Duchi et al. 2011, diagonal): steps shorten with all gradients that have been.

    With g the scaled gradient:

        s ← s + g²        θ ← θ − lr · g / (√s + ε)

    Parameters
    ----------
    size
        Number of parameters P.
    dtype
        Their precision, also that of the sum.
    epsilon
        ε.

    Attributes
    ----------
    squares
        s, [P].
    step
        Updates made so far.
    """

    def __init__(self, size: int, dtype: DTypeLike, *, epsilon: float = 1e-10) -> None:
        self.epsilon = epsilon
        self.squares = np.zeros(size, dtype)
        self.step = 0

    @property
    def state(self) -> dict[str, Array]:
        """The sum of squares."""
        return {"squares": self.squares}

    def update(self, params: Array, gradient: Array, lr: float, scale: float = 1.0) -> None:
        """As `Optimizer.update` says."""
        vectors = params, gradient, self.squares
        _in_parts(adagrad_update, vectors, (scale, lr, self.epsilon), cost=16)
        self.step += 1


def optimizer_for(params: Params, config: TrainConfig) -> Optimizer:
    """The optimiser that a run's configuration asks for, at its start."""
    size, dtype = params.flat.size, params.dtype
    if config.optimizer == "sgd":
        return SGD(size, dtype, momentum=config.momentum)
    if config.optimizer == "adagrad":
        return Adagrad(size, dtype)
    beta1, beta2, epsilon = config.beta1, config.beta2, config.adam_epsilon
    return Adam(size, dtype, beta1=beta1, beta2=beta2, epsilon=epsilon)


def _in_parts(
    kernel: Callable[..., None], vectors: Sequence[Array], scalars: Sequence[float], cost: int
) -> None:
    """Run a kernel over vectors [P], in parts side by side.

    An entry takes as long as `cost` multiplications.  NpxlError when not all vectors are alike.
    """
    if len({(vector.shape, vector.dtype) for vector in vectors}) > 1:
        raise NpxlError(
            "Parameters, their gradient and what an optimiser remembers must be of one shape and "
            f"one type, but are {', '.join(map(described, vectors))}."
        )
    # A float64 scalar would carry the whole loop over to float64.
    typed = [vectors[0].dtype.type(scalar) for scalar in scalars]

    def task(part: range) -> None:
        kernel(*(vector[part.start : part.stop] for vector in vectors), *typed)

    spread(task, vectors[0].size, cost=cost * vectors[0].size)


def restore(optimizer: Optimizer, vectors: Mapping[str, Array], step: int) -> None:
    """Put an optimiser into the state that was saved after `step` updates.

    Raises
    ------
    NpxlError
        When the vectors are those of another optimiser, or one does not fit.
    """
    own = optimizer.state
    if vectors.keys() != own.keys():
        raise NpxlError(
            f"Its optimiser remembers {_listed(own)}, but the saved state has {_listed(vectors)}: "
            "go on with the optimiser that the state is of."
        )
    for name, vector in own.items():
        saved = vectors[name]
        if saved.shape != vector.shape or saved.dtype != vector.dtype:
            raise NpxlError(
                f"The saved {name} is {described(saved)}, but the optimiser needs "
                f"{described(vector)}."
            )
        vector[...] = saved
    optimizer.step = step


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names)) or "nothing"


def gradient_norm(gradient: Array, runs: Sequence[slice] | None = None) -> float:
    """Euclidean norm of the whole gradient [P], added up in float64; not finite if g is not.

    `runs` are the parts of it that may be other than zero; all of it when not given.
    """
    runs = [slice(0, gradient.size)] if runs is None else runs
    # In pieces of fixed length, so that the sum does not depend on the number of threads.
    pieces = [
        gradient[start : min(start + _PIECE, run.stop)]
        for run in runs
        for start in range(run.start, run.stop, _PIECE)
    ]
    sums = np.empty(len(pieces))

    def task(part: range) -> None:
        for n in part:
            sums[n] = squared_norm(pieces[n])

    spread(task, len(pieces), cost=8 * sum(piece.size for piece in pieces))
    return math.sqrt(sums.sum())


def clip_scale(norm: float, clip: float | None) -> float:
    """What to multiply a gradient of this norm by, so that it becomes no longer than `clip`."""
    return 1.0 if clip is None or norm <= clip else clip / norm
