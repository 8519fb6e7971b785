"""npxl study."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from npxl.cli.options import AsJson, Flag
from npxl.cli.output import Console, print_json
from npxl.errors import NpxlError

if TYPE_CHECKING:
    from npxl.studies import Outcome
    from npxl.studies.frame import Cell

_INTERRUPTED = 130


def study(
    *names: str,
    every: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    quick: Flag = False,
    corpus: str | None = None,
    out: Path = Path("studies"),
    as_json: AsJson = False,
) -> int:
    """Measure what the paper claims about Transformer-XL, and show its figures beside.

    Ctrl-C keeps what is finished, and the same command goes on from there.

    Parameters
    ----------
    names
        Studies to run.
    every
        Run all of them.
    quick
        See it work, in about a minute each; the figures are not worth much.
    corpus
        Another text than the bundled one, for the studies that read one.
    out
        Folder for models, results and pictures, kept and used again.
    as_json
        Print one JSON object at the end instead of tables.
    """
    from npxl.studies import STUDIES, StudyStopped, conduct

    for name in names:
        if name not in STUDIES:
            raise NpxlError(f"There is no study {name!r}; choose from {', '.join(STUDIES)}.")
    if every == bool(names):
        raise NpxlError(f"Say which studies to run, or --all: {', '.join(STUDIES)}.")
    chosen = [each for name, each in STUDIES.items() if every or name in names]
    console = Console(stderr=True) if as_json else Console()
    found = {}
    for each in chosen:
        console.print(f"\n{each.title}", style="bold underline")
        text = corpus if hasattr(each.full, "corpus") else None
        try:
            outcome = conduct(each, out, quick, text, console)
        except StudyStopped:
            console.print("Stopped; everything is saved, and the same command goes on.")
            return _INTERRUPTED
        found[each.name] = outcome
        if not as_json:
            _show(outcome, console)
    if as_json:
        print_json({name: outcome.as_json() for name, outcome in found.items()})
    return 0


def _show(outcome: Outcome, console: Console) -> None:
    for table in outcome.tables:
        shown = Table(title=table.title, title_justify="left", box=None, pad_edge=False)
        for n, column in enumerate(table.columns):
            shown.add_column(column, justify="right" if n else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*map(_formatted, row))
        console.print(shown)
        console.print()
    for statement in outcome.statements:
        mark = "seen    " if statement.seen else "not seen"
        console.print(
            f"{mark}  {statement.says} {statement.evidence}.", markup=False, highlight=False,
            style="" if statement.seen else "red",
        )  # fmt: skip
    measured, trained = (
        timedelta(seconds=round(seconds)) for seconds in (outcome.seconds, outcome.training_seconds)
    )
    console.print(f"{measured} of measuring, after {trained} of training.", highlight=False)


def _formatted(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:,.4g}" if isinstance(cell, float) else str(cell)
