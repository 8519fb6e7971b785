"""Named arrays and JSON metadata in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from npxl.errors import NpxlError
from npxl.files import atomic_write

EXTRA_PREFIX = "training."
"""Tensors whose names start so accompany a model in its file and are not part of it."""

_METADATA_KEY = "npxl"


def write_tensors(
    path: str | Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]
) -> None:
    """Write `tensors`, with `metadata` as JSON, to `path`: all of it or nothing.

    While writing, one more copy of the tensors is held in memory.

    Raises NpxlError when the disk is full, or there can be no file at `path`.
    """
    encoded = json.dumps(metadata, sort_keys=True)
    contents = safetensors.numpy.save(dict(tensors), metadata={_METADATA_KEY: encoded})
    try:
        with atomic_write(path) as file:
            file.write(contents)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise NpxlError(
            f"{path} cannot be written ({error.strerror}): name a file in an existing folder that "
            "you may write to."
        ) from error


def read_tensors(path: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The tensors and the metadata that `write_tensors` wrote; copies, not views of the file.

    Raises NpxlError when there is no such file, or when it is damaged or not one of npxl's.
    """
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name).copy() for name in file.keys()}  # noqa: SIM118
        return tensors, _metadata(path, file)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The metadata alone, without reading the tensors; errors are those of `read_tensors`."""
    with _opened(path) as file:
        return _metadata(path, file)


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    if not Path(path).is_file():
        raise NpxlError(f"There is no file {path}; expected a model that npxl has saved.")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except safetensors.SafetensorError as error:
        raise NpxlError(
            f"{path} is damaged, cut short or not a safetensors file ({error}); "
            "use another checkpoint."
        ) from error
    except TypeError as error:
        raise NpxlError(
            f"{path} holds tensors of a type that NumPy lacks ({error}); "
            "expected a model that npxl has saved."
        ) from error


def _metadata(path: str | Path, file: Any) -> dict[str, Any]:
    try:
        metadata = json.loads((file.metadata() or {})[_METADATA_KEY])
    except (KeyError, json.JSONDecodeError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        raise NpxlError(
            f"{path} is a safetensors file, but npxl did not write it: its metadata has no "
            f"{_METADATA_KEY!r} entry with a configuration."
        )
    return metadata
