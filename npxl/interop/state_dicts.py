"""State dicts in files: safetensors, or what torch saved, if it is nothing but tensors."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from npxl.errors import NpxlError
from npxl.tensor_files import ArraySpec, open_tensors

Array = NDArray[Any]

_SAFE_TORCH = (2, 6)
"""In older ones, weights_only=True does not keep a file from running code (CVE-2025-32434)."""


class StateDict(Protocol):
    """Named tensors in a file, each read when it is asked for."""

    path: Path
    specs: dict[str, ArraySpec]

    def __getitem__(self, name: str, /) -> Array:
        """One of them."""


@contextmanager
def open_state_dict(path: str | Path) -> Iterator[StateDict]:
    """A file of tensors: safetensors if that is how its name ends, else what torch.save wrote.

    Raises
    ------
    NpxlError
        When there is no such file, when it is damaged or holds anything but tensors, and when torch
        is needed and not there or too old.
    """
    path = Path(path)
    if not path.is_file():
        raise NpxlError(f"There is no file {path}; expected the tensors of a model.")
    if path.suffix == ".safetensors":
        with open_tensors(path) as file:
            yield file
    else:
        yield _TorchFile(path)


class _TorchFile:
    """What `torch.save(model.state_dict(), path)` wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = _loaded(path)
        self.specs = {name: self._spec(name) for name in self._tensors}

    def __getitem__(self, name: str) -> Array:
        # What is conjugate or negative is so by a mark, which NumPy does not know.
        tensor = self._tensors[name].detach().resolve_conj().resolve_neg()
        array: Array = (tensor.float() if _is_half(tensor) else tensor).numpy()
        return array

    def _spec(self, name: str) -> ArraySpec:
        tensor = self._tensors[name]
        kind = "float32" if _is_half(tensor) else str(tensor.dtype).removeprefix("torch.")
        try:
            dtype = np.dtype(kind)
        except TypeError:
            dtype = None
        is_array = str(tensor.layout) == "torch.strided" and not tensor.is_meta
        if dtype is None or not is_array:
            form = "without values" if tensor.is_meta else str(tensor.layout)
            raise NpxlError(
                f"{self.path} holds a tensor that is no array of NumPy's ({name} is "
                f"{tensor.dtype}, {form}); save it as a dense one of float32."
            )
        return ArraySpec(dtype, tuple(tensor.shape))


def _is_half(tensor: Any) -> bool:
    """Whether it is read as float32, because NumPy lacks bfloat16."""
    return bool(tensor.dtype.is_floating_point and tensor.dtype.itemsize == 2)


def _loaded(path: Path) -> dict[str, Any]:
    torch = _torch(path)
    try:
        # A file in torch's older format, which is no archive, cannot be mapped into memory.
        mapped = zipfile.is_zipfile(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise _not_tensors(path) from error
    except Exception as error:  # of many kinds, for a file that is cut short or another's
        raise NpxlError(f"{path} is damaged, cut short or nothing that torch has saved.") from error
    is_tensor = torch.is_tensor
    if not isinstance(tensors, dict) or not all(map(is_tensor, tensors.values())):
        raise _not_tensors(path)
    for name in tensors:
        if not isinstance(name, str):
            raise NpxlError(
                f"{path} is no state dict: its tensors have names such as {name!r}, which is no "
                "string."
            )
    return tensors


def _not_tensors(path: Path) -> NpxlError:
    return NpxlError(
        f"{path} holds other objects than tensors, which could run code when they are loaded, and "
        "npxl does not load them. Where it was made, save the model's state dict: "
        "torch.save(model.state_dict(), FILE)."
    )


def _torch(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise NpxlError(
            f"{path} is read by torch, which is not installed: pip install 'npxl[torch]', or "
            "convert it to safetensors where it was made."
        ) from error
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _SAFE_TORCH:
        raise NpxlError(
            f"torch {torch.__version__} is installed, but before "
            f"{'.'.join(map(str, _SAFE_TORCH))} a file of weights could run code: upgrade torch."
        )
    return torch
