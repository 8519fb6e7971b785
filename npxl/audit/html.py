"""The report of an audit as a page: everything in one file, for any browser, without a network."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

from npxl.audit.frame import Figure, Result
from npxl.audit.outcome import AuditReport, CheckOutcome, counted
from npxl.audit.sections import SECTIONS
from npxl.audit.terminal import number
from npxl.config import to_dict
from npxl.errors import NpxlError
from npxl.files import atomic_write
from npxl.page.pictures import Picture
from npxl.page.render import render

GENERATOR = "npxl audit"


def check_target(path: Path) -> None:
    """NpxlError when a report cannot be written there, or would replace something else.

    Said before the audit, not after.
    """
    how = "Give another --html PATH, or --html none."
    folder = path.absolute().parent
    if not folder.is_dir():
        raise NpxlError(f"The report would be {path}, but {folder} is no folder. {how}")
    if not os.access(folder, os.W_OK):
        raise NpxlError(f"The report would be {path}, but {folder} cannot be written to. {how}")
    if path.exists() and not _is_report(path):
        raise NpxlError(f"{path} exists and is no report of an audit, so it is not replaced. {how}")


def _is_report(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return f'content="{GENERATOR}"'.encode() in file.read(1000)


def write_html(report: AuditReport, path: Path, what: str = "a Transformer-XL") -> None:
    """Write the page, atomically.

    Parameters
    ----------
    report
        What was found.
    path
        The file, which is replaced if it is a report of an audit.
    what
        The configuration's name, for the title.

    Raises
    ------
    NpxlError
        As `check_target` does.
    """
    check_target(path)
    page = to_html(report, what)
    with atomic_write(path) as file:
        file.write(page.encode())


def to_html(report: AuditReport, what: str = "a Transformer-XL") -> str:
    """The page as text."""
    small = to_dict(report.subject.small)
    options = [
        (name, _shown(given), _shown(small[name]))
        for name, given in to_dict(report.subject.config).items()
    ]
    return render(
        "audit.html",
        generator=GENERATOR,
        report=report,
        what=what,
        command=shlex.join([*report.command, "--seed", str(report.subject.seed)]),
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        seconds=sum(outcome.seconds for outcome in report.outcomes),
        scaled=[option for option in options if option[1] != option[2]],
        kept=[option for option in options if option[1] == option[2]],
        sections=list(_sections(report)),
        number=number,
        counted=counted,
    )


@dataclass(frozen=True)
class _Table:
    """Rows that have the same figures."""

    columns: list[tuple[str, str]]
    """Names, and the bounds that all rows share."""
    rows: list[Result]

    @property
    def own_bounds(self) -> bool:
        """Whether rows have bounds of their own, beside the figure."""
        return all(not bounds for _, bounds in self.columns)


@dataclass(frozen=True)
class _Check:
    """What the page shows of a check."""

    outcome: CheckOutcome
    tables: list[_Table] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", list(_tables(self.outcome.results)))

    @property
    def judged(self) -> int:
        """Figures with bounds."""
        return len(_judged(self.outcome.results))

    @property
    def nearest(self) -> str:
        """The figure that takes the largest part of what it may be."""
        parts = [
            (figure.value / figure.at_most, f"{number(figure.value)} of {figure.at_most:g}")
            for figure in _judged(self.outcome.results)
            if figure.at_most and figure.at_least is None
        ]
        return max(parts, key=lambda part: (math.isnan(part[0]), part))[1] if parts else ""


@dataclass(frozen=True)
class _Section:
    """What the page shows of a section."""

    number: int
    name: str
    title: str
    proves: str
    pictures: list[Picture]
    checks: list[_Check]


def _sections(report: AuditReport) -> Iterator[_Section]:
    by_section = groupby(report.outcomes, key=lambda outcome: outcome.section)
    for section, group in by_section:
        outcomes = list(group)
        rows = {outcome.check.name: outcome.results for outcome in outcomes}
        place = 1 + SECTIONS.index(section) if section in SECTIONS else 1
        yield _Section(
            place, section.name, section.title, section.proves, list(section.pictures(rows)),
            list(map(_Check, outcomes)),
        )  # fmt: skip


def _judged(results: Sequence[Result]) -> list[Figure]:
    return [f for result in results for f in result.figures.values() if f.bounds]


def _tables(results: Sequence[Result]) -> Iterator[_Table]:
    def columns(result: Result) -> list[tuple[str, str]]:
        if len(result.figures) <= 1:  # each row has its bounds beside it
            return [(name, "") for name in result.figures]
        return [(name, figure.bounds) for name, figure in result.figures.items()]

    head: list[tuple[str, str]] = []
    rows: list[Result] = []
    for result in results:
        own = columns(result) if result.applies else head
        if head and own != head:
            yield _Table(head, rows)
            rows = []
        head = own
        rows.append(result)
    if rows:
        yield _Table(head, rows)


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
