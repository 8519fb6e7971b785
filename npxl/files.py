"""Writing files so that a reader finds the old contents or the new, never a mixture."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from npxl.errors import NpxlError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that becomes `path` as a whole, or not at all.

    What the body writes goes to a hidden temporary file in the same folder.  When the body ends,
    that file is flushed to the disk and takes the name `path`; when the body raises, it is removed,
    and whatever was at `path` before is untouched.  The same holds when the machine stops at any
    moment, except that the temporary file (`.<name>.<random>.tmp`) may then remain.

    Parameters
    ----------
    path
        The file to create or to replace, in an existing folder.  A symbolic link stays one: the
        file that it points to is replaced.

    Yields
    ------
    BinaryIO
        The temporary file, open for reading and writing.

    Raises
    ------
    NpxlError
        When the disk or the user's share of it is full.
    OSError
        When the folder does not exist or cannot be written, and whatever else the system reports.

    Examples
    --------
    >>> with atomic_write("notes.txt") as file:  # doctest: +SKIP
    ...     file.write(b"all of it")
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    with full_disk_is_an_error_of_the_user(target.parent):
        with _errors_name(path, instead_of=temporary):
            file = open(temporary, "x+b")  # noqa: SIM115  (closed below, before it is renamed)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            with _errors_name(path, instead_of=temporary):
                os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder that appears complete or not at all.

    Parameters
    ----------
    path
        The folder, which must not exist; those above it are made when they do not.

    Yields
    ------
    Path
        A hidden folder beside it, which is renamed when the body ends, and removed when it raises.

    Raises
    ------
    NpxlError
        When there is something at `path` and when the disk is full.
    OSError
        When the folder cannot be made there.
    """
    path = Path(path)
    if path.exists():
        raise NpxlError(f"{path} exists, and nothing is overwritten: choose another folder.")
    parent = path.absolute().parent
    draft = parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    with full_disk_is_an_error_of_the_user(parent):
        draft.mkdir(parents=True)
        try:
            yield draft
            os.rename(draft, path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


@contextmanager
def full_disk_is_an_error_of_the_user(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the system's "no space left" while writing into `folder` into an NpxlError."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise NpxlError(
            f"There is no room left to write in {os.fspath(folder)} ({error.strerror}): free some "
            "space there or choose another folder."
        ) from error


@contextmanager
def _errors_name(path: str | os.PathLike[str], instead_of: Path) -> Iterator[None]:
    """Let the system's errors name the file that the user knows."""
    try:
        yield
    except OSError as error:
        if str(error.filename) != str(instead_of):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _sync_folder(folder: Path) -> None:
    """Make a new name in `folder` survive a power cut."""
    if os.name != "posix":
        return  # elsewhere a folder cannot be opened, and the rename is on the disk already
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what network file systems without folder syncs answer
            raise
    finally:
        os.close(descriptor)
