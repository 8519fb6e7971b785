"""Named arrays and JSON metadata in one safetensors file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
from numpy.typing import NDArray

from npxl.errors import NpxlError, described
from npxl.files import atomic_write

Array = NDArray[Any]

EXTRA_PREFIX = "training."
"""Tensors whose names start so accompany a model in its file and are not part of it."""

_METADATA_KEY = "npxl"

_DTYPES = {
    f"{kind}{bits}": np.dtype(f"{word}{bits}")
    for kind, word, widths in (
        ("F", "float", (16, 32, 64)), ("I", "int", (8, 16, 32, 64)), ("U", "uint", (8, 16, 32, 64)),
    )
    for bits in widths
} | {"BOOL": np.dtype(bool)}  # fmt: skip
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


class ArraySpec(NamedTuple):
    """What is known of an array before there is one."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.dtype.itemsize * math.prod(self.shape)


def write_tensors(
    path: str | Path, tensors: Mapping[str, Array], metadata: Mapping[str, Any]
) -> None:
    """Write `tensors`, with `metadata` as JSON, to `path`: all of it or nothing.

    Contiguous arrays are written from where they are, without a copy in memory.

    Raises NpxlError when the disk is full, or there can be no file at `path`.
    """
    specs = {name: ArraySpec(tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    encoded = json.dumps(metadata, sort_keys=True)
    write_arrays(path, specs, tensors.__getitem__, {_METADATA_KEY: encoded})


def write_arrays(
    path: str | Path,
    specs: Mapping[str, ArraySpec],
    array_of: Callable[[str], Array],
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file whose arrays are asked for one after the other.

    The library serialises all of a file in memory first, which takes a copy of it.  Errors are
    those of `write_tensors`.
    """
    # In this order all are aligned, and the bytes do not depend on the order of the mapping.
    names = sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        spec = specs[name]
        stop = start + spec.nbytes
        header[name] = {
            "dtype": _CODES[spec.dtype],
            "shape": spec.shape,
            "data_offsets": (start, stop),
        }
        start = stop
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    try:
        with atomic_write(path) as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            for name in names:
                array = array_of(name)
                if ArraySpec(array.dtype, array.shape) != specs[name]:
                    raise ValueError(f"{name} is {described(array)}, not {specs[name]}")
                little_endian = array.dtype.newbyteorder("<")
                file.write(np.ascontiguousarray(array, little_endian).reshape(-1).data)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise NpxlError(
            f"{path} cannot be written ({error.strerror}): name a file in an existing folder that "
            "you may write to."
        ) from error


class TensorFile(Mapping[str, Array]):
    """The arrays of an open safetensors file, each read when it is asked for, as a copy.

    Attributes
    ----------
    path
        The file.
    specs
        Type and shape of each array.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self.path = path
        self._file = file
        self.specs = {name: self._spec(name) for name in file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Array:
        if name not in self.specs:
            raise KeyError(name)
        array: Array = self._file.get_tensor(name).copy()
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    @property
    def metadata(self) -> dict[str, Any]:
        """What `write_tensors` wrote; NpxlError when the file is not of npxl."""
        try:
            metadata = json.loads((self._file.metadata() or {})[_METADATA_KEY])
        except (KeyError, json.JSONDecodeError, RecursionError):
            metadata = None
        if not isinstance(metadata, dict):
            raise NpxlError(
                f"{self.path} is a safetensors file, but npxl did not write it: its metadata has "
                f"no {_METADATA_KEY!r} entry with a configuration."
            )
        return metadata

    def _spec(self, name: str) -> ArraySpec:
        part = self._file.get_slice(name)
        code = part.get_dtype()
        if code not in _DTYPES:
            raise NpxlError(
                f"{self.path} holds tensors of a type that NumPy lacks ({name} is {code}); save "
                "them as float32."
            )
        return ArraySpec(_DTYPES[code], tuple(part.get_shape()))


@contextmanager
def open_tensors(path: str | Path) -> Iterator[TensorFile]:
    """A safetensors file, of npxl or not.

    Raises NpxlError when there is no such file, when it is damaged, and when it holds what NumPy
    has no type for.
    """
    if not Path(path).is_file():
        raise NpxlError(f"There is no file {path}; expected a model that npxl has saved.")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield TensorFile(Path(path), file)
    except safetensors.SafetensorError as error:
        raise NpxlError(
            f"{path} is damaged, cut short or not a safetensors file ({error}); "
            "use another checkpoint."
        ) from error


def read_metadata(path: str | Path) -> dict[str, Any]:
    """What `write_tensors` was given as metadata, without reading the tensors.

    Raises NpxlError for what `open_tensors` refuses, and when the file is not of npxl.
    """
    with open_tensors(path) as file:
        return file.metadata
