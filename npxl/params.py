"""All parameters of a model in one flat vector, with a named view for each tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from npxl.errors import NpxlError, described

Array = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]

_AT_ONCE = 2**20
"""Numbers drawn at once: those of a table of all words would take as much room again in float64."""


class Params(Mapping[str, Array]):
    """A mapping from names to views of one contiguous vector.

    Parameters, their gradient and the optimiser's moments all have this form, so that an update, a
    norm or a sum over workers is one statement over `flat`.

    Parameters
    ----------
    shapes
        Name and shape of each tensor; they lie in `flat` in this order.
    flat
        The vector to take views of; a new one of zeros when not given.
    dtype
        Precision of a new vector.
    """

    def __init__(
        self, shapes: Shapes, flat: Array | None = None, dtype: DTypeLike = np.float32
    ) -> None:
        size = n_parameters(shapes)
        if flat is None:
            try:
                flat = np.zeros(size, dtype)
            except ValueError as error:  # NumPy's word for more than can be addressed
                raise MemoryError(f"for {size:,} parameters") from error
        is_array = isinstance(flat, np.ndarray)
        if not is_array or flat.shape != (size,) or not flat.flags.c_contiguous:
            raise NpxlError(
                f"flat is {described(flat)}, but these tensors are views of a contiguous NumPy "
                f"array of shape ({size},)."
            )
        self.shapes = dict(shapes)
        self.flat = flat
        self._views: dict[str, Array] = {}
        start = 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            self._views[name] = flat[start:stop].reshape(shape)
            start = stop

    def __getitem__(self, name: str) -> Array:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        return f"Params({len(self)} tensors, {self.flat.size:,} numbers, {self.dtype})"

    def __reduce__(self) -> tuple[type[Params], tuple[Shapes, Array]]:
        # A copy of the vector and copies of its views would not share storage any more.
        return Params, (self.shapes, self.flat)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of every tensor."""
        return self.flat.dtype

    def zeros_like(self) -> Params:
        """Zeros of the same shapes and precision: where a gradient is added up."""
        return Params(self.shapes, dtype=self.dtype)

    def astype(self, dtype: DTypeLike) -> Params:
        """A copy in another precision."""
        return Params(self.shapes, self.flat.astype(dtype))

    def assign(self, tensors: Mapping[str, Array]) -> None:
        """Copy `tensors` into the views; NpxlError names what is missing, unknown or misshapen."""
        check_shapes({name: np.shape(tensor) for name, tensor in tensors.items()}, self.shapes)
        for name, view in self.items():
            view[...] = tensors[name]


def check_shapes(shapes: Shapes, expected: Shapes) -> None:
    """NpxlError names the tensors that are missing, unknown or of another shape than expected."""
    missing = [name for name in expected if name not in shapes]
    unknown = [name for name in shapes if name not in expected]
    if missing or unknown:
        parts = []
        if missing:
            parts.append(f"lack {', '.join(missing)}")
        if unknown:
            parts.append(f"have the unknown {', '.join(unknown)}")
        problem = " and ".join(parts)
        raise NpxlError(f"The tensors do not fit the configuration: they {problem}.")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise NpxlError(
                f"Tensor {name} has shape {shapes[name]}, but the configuration needs {shape}."
            )


def n_parameters(shapes: Shapes) -> int:
    """Number of parameters of tensors of these shapes."""
    return sum(math.prod(shape) for shape in shapes.values())


def initialize(params: Params, std: float, proj_std: float, seed: int) -> None:
    """Draw weights, u and v from N(0, std²), the projections of embeddings from N(0, proj_std²),
    and gains from N(1, std²); set biases to zero.

    In float64, so that both precisions start from the same numbers.
    """
    rng = np.random.default_rng(seed)
    for name, view in params.items():
        kind = name.rpartition(".")[2]
        if kind in ("bias", "relative_bias", "cluster_bias", "b_1", "b_2"):
            view[...] = 0
            continue
        flat = view.reshape(-1)
        for start in range(0, flat.size, _AT_ONCE):  # the same numbers as all at once
            part = flat[start : start + _AT_ONCE]
            part[:] = rng.normal(
                1.0 if kind == "gain" else 0.0,
                proj_std if kind == "projection" else std,
                part.shape,
            )
