"""Studies on a page: every table and picture, the paper's figures beside, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from npxl.environment import environment
from npxl.files import atomic_write
from npxl.page.render import render
from npxl.studies.frame import Cell
from npxl.studies.runner import Outcome


def write_page(outcomes: Sequence[Outcome], folder: Path, command: str) -> Path:
    """Write the page into the folder, atomically; `command` makes it again.

    It is called index.html, with the suffix of studies that read a text.
    """
    suffix = max((outcome.suffix for outcome in outcomes), key=len)
    path = folder / f"index{suffix}.html"
    with atomic_write(path) as file:
        file.write(to_html(outcomes, command).encode())
    return path


def to_html(outcomes: Sequence[Outcome], command: str) -> str:
    """The page as text."""
    return render(
        "studies.html",
        outcomes=outcomes,
        quick=any(outcome.quick for outcome in outcomes),
        command=command,
        environment=environment(),
        shown=shown,
        duration=duration,
    )


def shown(cell: Cell) -> str:
    """A cell of a table as it is shown, everywhere."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:#,.4g}".rstrip(".") if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))
