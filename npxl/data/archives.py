"""Zip archives: their files in the cache folder, so that they can be mapped like any other."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from npxl.cache import cache_folder
from npxl.data.sources import Source, whole_file
from npxl.errors import NpxlError
from npxl.files import atomic_write, full_disk_is_an_error_of_the_user


def unpacked(archive: Path, wanted: Callable[[str], bool]) -> Path:
    """The folder in the cache with those files of a zip whose path is `wanted`.

    The folder is called by the digest of the archive, and a file in it is written only when it is
    not there in its full length; nothing is written beside the archive.

    Raises
    ------
    NpxlError
        When the archive is damaged, or there is no room or no permission to unpack it.
    """
    folder = cache_folder() / "unpacked" / Source((whole_file(archive),)).survey().digest
    try:
        with zipfile.ZipFile(archive) as contents:
            for member in contents.infolist():
                path = PurePosixPath(member.filename)
                if wanted(str(path)) and not path.is_absolute() and ".." not in path.parts:
                    _unpack(contents, member, folder / path)
    except (NpxlError, MemoryError):
        raise
    except Exception as error:  # of many kinds, for an archive that is damaged
        if isinstance(error, OSError) and error.errno is not None:
            raise NpxlError(
                f"{archive} cannot be unpacked into {folder} ({error.strerror}): unpack it "
                "yourself, or let NPXL_CACHE_DIR name another folder."
            ) from error
        raise NpxlError(
            f"{archive} cannot be unpacked ({error}): it is damaged, cut short or none that "
            "Python reads; get it again, or unpack it yourself."
        ) from error
    return folder


def _unpack(contents: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    if path.is_file() and path.stat().st_size == member.file_size:
        return
    with full_disk_is_an_error_of_the_user(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with contents.open(member) as packed, atomic_write(path) as file:
        shutil.copyfileobj(packed, file)
