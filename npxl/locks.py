"""A lock on a file that ends, at the latest, with the process that holds it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

if sys.platform == "win32":
    import msvcrt

    _BEYOND_THE_END = 1 << 30  # where nobody reads: a locked byte could not be read

    def _acquire(file: BinaryIO) -> None:
        file.seek(_BEYOND_THE_END)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from error

else:
    import fcntl

    def _acquire(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the existing file `path`, against whoever else asks for it in this way.

    The system forgets a lock when its holder ends, however that comes about, and nothing is written
    for it, so that none can be left behind.  Reading the file is not hindered.  On a file system
    that knows no locks there is no protection.

    Raises
    ------
    BlockingIOError
        When somebody else holds it, in this process or another.
    OSError
        When it cannot be opened for writing.
    """
    with open(path, "r+b") as file:
        try:
            _acquire(file)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks
        yield
