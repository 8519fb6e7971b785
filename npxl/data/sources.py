"""Sources: which bytes of which files are the training, validation and test text."""

from __future__ import annotations

import codecs
import hashlib
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from npxl.config import VocabularyKind
from npxl.errors import NpxlError

PERCENT = {"train": 90, "valid": 5, "test": 5}
"""Of a single file: the splits in the order in which they lie in it."""

_NAME_PARTS = {
    "train": {"train"},
    "valid": {"valid", "validation", "val", "dev"},
    "test": {"test"},
}
_BLOCK = 1 << 20
_ASCII_SPACE = b" \t\n\r\v\f"
_FIRST_WORD = re.compile(r"[^\S\n]*(\n|\S+)")


class Survey(NamedTuple):
    """What one pass over the bytes of a source finds out."""

    sha256: str
    n_bytes: int
    n_characters: int


@dataclass(frozen=True)
class Source:
    """The bytes start … stop − 1 of a file, read in blocks so that any size fits in memory."""

    path: Path
    start: int
    stop: int

    def survey(self) -> Survey:
        """Digest and lengths; bytes that are not UTF-8 count as characters of their own unless
        they look like the continuation of one."""
        digest = hashlib.sha256()
        n_characters = 0
        for block in self.blocks():
            digest.update(block)
            n_characters += count_characters(np.frombuffer(block, np.uint8))
        return Survey(digest.hexdigest(), self.stop - self.start, n_characters)

    def blocks(self) -> Iterator[bytes]:
        """The bytes, in blocks of at most 1 MiB."""
        with opened(self.path) as file:
            file.seek(self.start)
            left = self.stop - self.start
            while left:
                block = file.read(min(left, _BLOCK))
                if not block:
                    raise NpxlError(
                        f"{self.path} became shorter while it was being read: start again when no "
                        "other program is writing to it."
                    )
                left -= len(block)
                yield block

    def texts(self, kind: VocabularyKind) -> Iterator[str]:
        """The text in pieces that hold whole characters, and whole words if `kind` is "words".

        For words, the last line of a file ends with a newline even when the file does not.

        Raises
        ------
        NpxlError
            When the bytes are not UTF-8, with the place of the first that is not.
        """
        return self._whole_words() if kind == "words" else self._whole_characters()

    def first_token(self, kind: VocabularyKind) -> bytes:
        """The bytes up to the end of the first token, with white space before a first word."""
        if kind == "bytes":
            return next(self.blocks())[:1]
        texts = self.texts(kind)
        if kind == "characters":
            return next(texts)[0].encode()
        head = ""
        while not (match := _FIRST_WORD.match(head)):
            head += next(texts)
        return match[0].encode()

    def _whole_characters(self) -> Iterator[str]:
        position = self.start  # of the first byte that is not yet part of a piece
        tail = b""
        for block in self.blocks():
            data = tail + block
            text, used = self._decode(data, position, final=position + len(data) == self.stop)
            position += used
            tail = data[used:]
            if text:
                yield text

    def _decode(self, data: bytes, position: int, final: bool) -> tuple[str, int]:
        try:
            return codecs.utf_8_decode(data, "strict", final)
        except UnicodeDecodeError as error:
            raise NpxlError(
                f"{self.path} is not UTF-8 text: byte {position + error.start} "
                f"(0x{data[error.start]:02x}) begins no character; read it as bytes "
                "(--vocabulary bytes), or convert it to UTF-8."
            ) from None

    def _whole_words(self) -> Iterator[str]:
        tail = ""
        for text in self._whole_characters():
            tail += text
            end = 1 + max(tail.rfind(" "), tail.rfind("\n"))
            if end:
                yield tail[:end]
                tail = tail[end:]
        if self._ends_inside_a_line():
            tail += "\n"
        if tail:
            yield tail

    def _ends_inside_a_line(self) -> bool:
        with opened(self.path) as file:
            if self.stop == self.start or self.stop != _size(file):
                return False
            file.seek(self.stop - 1)
            return file.read(1) != b"\n"


def find_sources(path: Path, kind: VocabularyKind) -> dict[str, Source]:
    """The source of each split that there is in the file or folder `path`, in reading order.

    One file is cut into `PERCENT` of its bytes; each cut moves back to the beginning of a
    character or of a line, as `kind` needs.  In a folder each split is a file with the split's name
    as a part of its own.

    Raises
    ------
    NpxlError
        When there is nothing to read, no training text, or two files for one split.
    """
    if path.is_dir():
        return {name: whole_file(file) for name, file in _files_of_splits(path).items()}
    whole = whole_file(path)
    until_valid = PERCENT["train"]
    until_test = until_valid + PERCENT["valid"]
    middle = _move_back(path, whole.stop * until_valid // 100, 0, kind)
    end = _move_back(path, whole.stop * until_test // 100, middle, kind)
    return {
        "train": Source(path, 0, middle),
        "valid": Source(path, middle, end),
        "test": Source(path, end, whole.stop),
    }


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file opened for reading; NpxlError when the system refuses."""
    try:
        file = open(path, "rb")  # noqa: SIM115  (closed below; only opening is guarded)
    except OSError as error:
        raise NpxlError(
            f"{path} cannot be read ({error.strerror}): check the path and its permissions."
        ) from error
    with file:
        yield file


def count_characters(utf8: npt.NDArray[np.uint8]) -> int:
    """Characters in `utf8` [K]: the bytes that do not continue one, whether it is valid or not."""
    # Continuation bytes 0x80 … 0xBF are −128 … −65 when they are read as signed numbers.
    return int(np.count_nonzero(utf8.view(np.int8) >= -64))


def whole_file(path: Path) -> Source:
    """All of a file; NpxlError when it cannot be read or is empty."""
    if not path.is_file():
        raise NpxlError(f"{path} is neither a file nor a folder: pass a text file or a folder.")
    with opened(path) as file:
        size = _size(file)
    if size == 0:
        raise NpxlError(f"{path} is empty: pass a file with some text in it.")
    return Source(path, 0, size)


def _files_of_splits(folder: Path) -> dict[str, Path]:
    try:
        files = sorted(f for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    except OSError as error:
        raise NpxlError(
            f"The folder {folder} cannot be read ({error.strerror}): check its permissions."
        ) from error
    if not files:
        raise NpxlError(
            f"The folder {folder} holds no files: pass a folder with a file such as train.txt."
        )
    found: dict[str, Path] = {}
    for file in files:
        parts = set(re.split(r"[._-]", file.name.lower()))
        for split in PERCENT:
            if not parts & _NAME_PARTS[split]:
                continue
            if split in found:
                raise NpxlError(
                    f"Both {found[split].name} and {file.name} in {folder} could be the {split} "
                    "split: keep one of them there."
                )
            if file in found.values():
                raise NpxlError(
                    f"The name of {file.name} in {folder} stands for more than one split: rename "
                    "it."
                )
            found[split] = file
    if "train" not in found:
        listing = ", ".join(f.name for f in files[:5]) + (", …" if len(files) > 5 else "")
        raise NpxlError(
            f"The folder {folder} has no training text: a file whose name has the part train, such "
            f"as train.txt, was expected, but it holds {listing}."
        )
    return {split: found[split] for split in PERCENT if split in found}


def _move_back(path: Path, cut: int, start: int, kind: VocabularyKind) -> int:
    """The last place in start … cut where a text of `kind` may be cut."""
    if kind == "bytes" or cut <= start:
        return max(cut, start)
    with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if kind == "characters":
            while cut > start and data[cut] & 0xC0 == 0x80:
                cut -= 1
            return cut
        line = data.rfind(b"\n", start, cut)
        if line >= 0:
            return line + 1
        spaces = [data.rfind(space.to_bytes(1, "big"), start, cut) for space in _ASCII_SPACE]
        return max(start, max(spaces) + 1)


def _size(file: BinaryIO) -> int:
    return file.seek(0, 2)
