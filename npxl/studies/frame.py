"""What a study is made of: a setting, a result of plain numbers, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npxl.page.pictures import Picture
from npxl.studies.lab import Lab

Cell = str | int | float | None
Result = Mapping[str, Any]
"""Plain JSON values, from which tables, pictures and statements are made without the models."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings; None is a cell that there is no value for.

    The paper's own figures, where it has any, are columns whose headings say so.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Statement:
    """What the paper says or implies, whether it was seen here, and in which numbers.

    `says` stands for itself.  `seen` is None where the numbers show it neither way; by what they
    are judged is part of the `evidence`.
    """

    says: str
    seen: bool | None
    evidence: str

    @property
    def mark(self) -> str:
        """`seen` in words."""
        return {True: "seen", False: "not seen", None: "not judged"}[self.seen]


def all_of(judgements: Iterable[bool | None]) -> bool | None:
    """False if one of them is, None if one is not judged, else True."""
    found = set(judgements)
    return False if False in found else None if None in found else True


@dataclass(frozen=True)
class Study:
    """A claim of the paper, as something that is measured.

    Parameters
    ----------
    name
        What `npxl study` calls it.
    title
        For people.
    claim
        What the paper says and what is measured, in paragraphs between empty lines; mathematics in
        LaTeX between dollar signs.
    quick, full
        Settings, frozen dataclasses of one class: to see it work in about a minute, and in earnest.
        Of a study that reads a text they are `TextSetting`s.
    run
        From a setting to a result.
    tables, pictures, statements
        From a result to what is shown of it.
    text
        What `run` reads of the text, with which it begins: NpxlError when the text will not do, so
        that all texts can be refused before anything is trained.  None for a study that reads none.
    """

    name: str
    title: str
    claim: str
    quick: Any
    full: Any
    run: Callable[[Any, Lab], Result]
    tables: Callable[[Result], Iterable[Table]]
    pictures: Callable[[Result], Iterable[Picture]]
    statements: Callable[[Result], Iterable[Statement]]
    text: Callable[[Any, Lab], Any] | None = None


def octaves(n: int) -> list[range]:
    """The numbers 0 … n − 1 in ranges whose lengths double: 0, 1, 2–3, 4–7, and so on."""
    starts = [0, *(2**k for k in range(n.bit_length()) if 2**k < n)]
    return [range(*pair) for pair in zip(starts, [*starts[1:], n], strict=True)]


def spelled(numbers: range) -> str:
    """A range as a table says it: "8–15", or "1"."""
    first, last = numbers[0], numbers[-1]
    return f"{first}" if first == last else f"{first}–{last}"
