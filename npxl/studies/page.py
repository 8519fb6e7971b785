"""Studies on a page: every table and picture, the paper's figures beside, in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from npxl.environment import environment
from npxl.files import atomic_write
from npxl.page.render import render
from npxl.studies.frame import Cell
from npxl.studies.runner import Outcome


def write_page(
    outcomes: Sequence[Outcome], path: Path, command: str, failed: Mapping[str, str]
) -> None:
    """Write the page, atomically.

    Parameters
    ----------
    outcomes
        What is on it.
    path
        Where it goes.
    command
        What makes it again.
    failed
        Studies that should have been on it, and why they are not.
    """
    page = render(
        "studies.html",
        outcomes=outcomes,
        failed=failed,
        quick=any(outcome.quick for outcome in outcomes),
        command=command,
        environment=environment(),
        shown=shown,
        duration=duration,
    )
    with atomic_write(path) as file:
        file.write(page.encode())


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
