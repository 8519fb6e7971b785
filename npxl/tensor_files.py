"""Named arrays and JSON metadata in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from npxl.errors import NpxlError
from npxl.files import atomic_write

_METADATA_KEY = "npxl"


def write_tensors(
    path: str | Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]
) -> None:
    """Write `tensors`, with `metadata` as JSON, to `path`: all of it or nothing.

    While writing, one more copy of the tensors is held in memory.
    """
    encoded = json.dumps(metadata, sort_keys=True)
    contents = safetensors.numpy.save(dict(tensors), metadata={_METADATA_KEY: encoded})
    with atomic_write(path) as file:
        file.write(contents)


def read_tensors(path: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The tensors and the metadata that `write_tensors` wrote; copies, not views of the file.

    Raises NpxlError when there is no such file, or when it is damaged or not one of npxl's.
    """
    path = Path(path)
    if not path.is_file():
        raise NpxlError(f"There is no file {path}; expected a model that npxl has saved.")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).copy() for name in file.keys()}  # noqa: SIM118
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
    try:
        return tensors, json.loads(metadata[_METADATA_KEY])
    except (KeyError, json.JSONDecodeError):
        raise NpxlError(
            f"{path} is a safetensors file, but npxl did not write it: its metadata has no "
            f"{_METADATA_KEY!r} entry with a configuration."
        ) from None
