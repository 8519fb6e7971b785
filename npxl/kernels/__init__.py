"""Numba loops.  Each is a plain Python function; `kernel.py_func` is its own un-jitted twin."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from npxl.cache import cache_folder

# Full fastmath would let the compiler assume that no −inf or NaN occurs; these four do not.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}

_ROOM_FOR_KERNELS = 2**24
"""Bytes that have to be free: several times what all kernels take."""


def _cache_folder() -> Path | None:
    """Where compiled kernels are kept; None, with a warning, when nothing can be written there.

    The folder's name holds a digest of all kernels, because numba does not notice when a function
    that another one calls has changed.
    """
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    folder = cache_folder() / "kernels" / hashlib.sha256(sources).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _ROOM_FOR_KERNELS:
            return folder
    except OSError:
        pass
    warnings.warn(
        f"npxl cannot write to {folder}, or there is no room, so its kernels are compiled anew "
        "every time it starts; set NPXL_CACHE_DIR to a folder that it can write to.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


_CACHE_FOLDER = None if numba.config.DISABLE_JIT or numba.config.CACHE_DIR else _cache_folder()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` on its first call, without the interpreter lock, and cache the result.

    The cache lies in the user's folder, so that an installation nobody can write to starts as fast
    and leaves nothing behind.  The folder is chosen for npxl's kernels alone: numba's own setting
    is left as it was, and is respected when it names a folder.
    """
    if numba.config.DISABLE_JIT:
        function.py_func = function  # type: ignore[attr-defined]
        return function
    if numba.config.CACHE_DIR:
        return _compile(function, cache=True)
    if _CACHE_FOLDER is None:
        return _compile(function, cache=False)
    numba.config.CACHE_DIR = str(_CACHE_FOLDER)
    try:
        return _compile(function, cache=True)
    finally:
        numba.config.CACHE_DIR = ""


def _compile(function: Callable[..., Any], cache: bool) -> Any:
    return numba.njit(nogil=True, fastmath=_FASTMATH, cache=cache, error_model="numpy")(function)
