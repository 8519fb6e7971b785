"""Sources: the bytes of a split, in one file or several, read in pieces of any grain."""

from __future__ import annotations

import codecs
import hashlib
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from npxl.data.vocabularies import Grain, Vocabulary
from npxl.errors import NpxlError

_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 20
"""Characters of a line that are read at once; a longer one is read in parts."""

_ASCII_SPACE = b" \t\n\r\v\f"


class Survey(NamedTuple):
    """What one pass over the bytes of a source finds out."""

    digest: str
    """Of the bytes and of what else tokens depend on: where files end, and within a line or not."""
    n_bytes: int
    n_characters: int
    n_newlines: int


class Span(NamedTuple):
    """The bytes start … stop − 1 of a file, read in blocks so that any size fits in memory."""

    path: Path
    start: int
    stop: int

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

    def pieces(self, grain: Grain) -> Iterator[str]:
        """The text in pieces, each of which ends where something of this grain ends.

        For words and lines, the last line of a file ends with a newline even when the file does
        not.  Bytes that are not UTF-8 are escaped as surrogates when the grain is that of bytes.

        Raises
        ------
        NpxlError
            When characters are to be whole but the bytes are not UTF-8, with the place of the first
            that is not.
        """
        match grain:
            case "bytes":
                return (block.decode("utf-8", "surrogateescape") for block in self.blocks())
            case "characters":
                return self._whole_characters()
            case "words":
                return self._whole_words()
            case "lines":
                return self._whole_lines()

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
        for text in self._with_last_newline():
            tail += text
            end = 1 + max(tail.rfind(" "), tail.rfind("\n"))
            if end:
                yield tail[:end]
                tail = tail[end:]
        if tail:
            yield tail

    def _whole_lines(self) -> Iterator[str]:
        """Whole lines, and the parts of one that is longer than `_LONGEST_LINE`."""
        tail = ""
        for text in self._with_last_newline():
            *lines, tail = (tail + text).split("\n")
            for line in lines:
                while len(line) >= _LONGEST_LINE:
                    part, line = _cut(line)
                    yield part
                yield line + "\n"
            while len(tail) > _LONGEST_LINE:
                part, tail = _cut(tail)
                yield part
        if tail:
            yield tail

    def _with_last_newline(self) -> Iterator[str]:
        yield from self._whole_characters()
        if self.ends_inside_a_line():
            yield "\n"

    def ends_inside_a_line(self) -> bool:
        """Whether it is the end of a file that does not end with a newline."""
        with opened(self.path) as file:
            if self.stop == self.start or self.stop != _size(file):
                return False
            file.seek(self.stop - 1)
            return file.read(1) != b"\n"


@dataclass(frozen=True)
class Source:
    """The text of a split: one span of bytes after the other.

    Attributes
    ----------
    spans
        In reading order, at least one.
    is_shuffled
        Whether its lines are sentences without order.
    """

    spans: tuple[Span, ...]
    is_shuffled: bool = False

    @property
    def name(self) -> str:
        """Of its files, for people."""
        first, *others = (str(span.path) for span in self.spans)
        return first if not others else f"{first} and {len(others)} more files"

    @property
    def is_part_of_a_file(self) -> bool:
        """Whether a longer file would make it longer."""
        return any(span.stop - span.start < span.path.stat().st_size for span in self.spans)

    def survey(self) -> Survey:
        """Digest and lengths; bytes that are not UTF-8 count as characters of their own unless
        they look like the continuation of one."""
        digest = hashlib.sha256()
        n_bytes = n_characters = n_newlines = 0
        for span in self.spans:
            for block in span.blocks():
                digest.update(block)
                n_bytes += len(block)
                n_characters += count_characters(np.frombuffer(block, np.uint8))
                n_newlines += block.count(b"\n")
            digest.update((span.stop - span.start).to_bytes(8, "little"))
            digest.update(bytes([span.ends_inside_a_line()]))
        return Survey(digest.hexdigest(), n_bytes, n_characters, n_newlines)

    def pieces(self, grain: Grain) -> Iterator[str]:
        """The text in pieces, as `Span.pieces` gives them."""
        for span in self.spans:
            yield from span.pieces(grain)

    def first_token(self, vocab: Vocabulary) -> bytes:
        """The bytes up to the end of the first token, with white space before a first word."""
        head = ""
        for piece in self.pieces(vocab.grain):
            head += piece
            if (found := vocab.first_token(head)) is not None:
                return found
        return b""


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


def whole_file(path: Path) -> Span:
    """All of a file; NpxlError when it cannot be read or is empty."""
    if not path.is_file():
        raise NpxlError(f"{path} is neither a file nor a folder: pass a text file or a folder.")
    with opened(path) as file:
        size = _size(file)
    if size == 0:
        raise NpxlError(f"{path} is empty: pass a file with some text in it.")
    return Span(path, 0, size)


def move_back(path: Path, cut: int, start: int, grain: Grain) -> int:
    """The last place in start … cut where a text of this grain may be cut.

    For words and lines that is the beginning of a line, or of a word where there is none.
    """
    if grain == "bytes" or cut <= start:
        return max(cut, start)
    with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if grain == "characters":
            while cut > start and data[cut] & 0xC0 == 0x80:
                cut -= 1
            return cut
        line = data.rfind(b"\n", start, cut)
        if line >= 0:
            return line + 1
        spaces = [data.rfind(space.to_bytes(1, "big"), start, cut) for space in _ASCII_SPACE]
        return max(start, max(spaces) + 1)


def _cut(line: str) -> tuple[str, str]:
    """A line that is too long: its first part, up to a space where there is one, and the rest."""
    end = 1 + line.rfind(" ", 0, _LONGEST_LINE) or _LONGEST_LINE
    return line[:end], line[end:]


def _size(file: BinaryIO) -> int:
    return file.seek(0, 2)
