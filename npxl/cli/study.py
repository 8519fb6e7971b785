"""npxl study."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from npxl.cli.options import AsJson, Flag
from npxl.cli.output import INTERRUPTED, Console, print_json, remark
from npxl.errors import NpxlError

if TYPE_CHECKING:
    from npxl.studies import Outcome


def study(
    *names: str,
    every: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    quick: Flag = False,
    corpus: str | None = None,
    out: Path = Path("studies"),
    as_json: AsJson = False,
    words: Annotated[Sequence[str], Parameter(parse=False)] = (),
) -> int:
    """Measure what the paper claims about Transformer-XL, and show its figures beside.

    Ctrl-C keeps what is finished, and the same command goes on from there. A study that fails does
    not keep the others from running. --all also writes all of it on a page, index.html.

    Parameters
    ----------
    names
        Studies to run, of those below.
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
    words
        Of the whole command, for the record.
    """
    from npxl.studies import STUDIES, StudyStopped, admit, conduct
    from npxl.studies.page import write_page
    from npxl.studies.settings import TextSetting

    for name in names:
        if name not in STUDIES:
            raise NpxlError(f"There is no study {name!r}; choose from {', '.join(STUDIES)}.")
    if every and names:
        raise NpxlError(f"--all is every study: leave it out, or leave out {', '.join(names)}.")
    if not (every or names):
        raise NpxlError(f"Say which studies to run, or --all: {', '.join(STUDIES)}.")
    chosen = {name: each for name, each in STUDIES.items() if every or name in names}
    settings = {name: each.quick if quick else each.full for name, each in chosen.items()}
    if corpus is not None:
        reading = [name for name, each in settings.items() if isinstance(each, TextSetting)]
        if not reading:
            raise NpxlError(f"The study {' '.join(names)} reads no text: leave out --corpus.")
        settings |= {name: replace(settings[name], corpus=corpus) for name in reading}
    # NpxlError now, and not after hours.
    suffixes = [admit(each, out, settings[name]) for name, each in chosen.items()]
    page = out / f"index{max(suffixes, key=len)}.html"
    if every and page.is_dir():
        raise NpxlError(f"{page}, where the page goes, is a folder: choose another --out.")
    console = Console(stderr=True) if as_json else Console()
    found: dict[str, Outcome] = {}
    failed: dict[str, str] = {}
    for name, each in chosen.items():
        console.print(f"\n{each.title}", style="bold underline")
        try:
            outcome = conduct(each, out, settings[name], console)
        except (StudyStopped, KeyboardInterrupt):
            console.print("Stopped; what is finished is kept, and the same command goes on.")
            return INTERRUPTED
        except (NpxlError, MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.filename is None:
                raise  # the output, which nobody reads
            failed[name] = _said(error)
            remark(f"npxl: The study {name} failed. {failed[name]}", style="red")
            continue
        found[name] = outcome
        if not as_json:
            _show(outcome, console)
        console.print(_kept(outcome, out), markup=False, highlight=False, soft_wrap=True)
    if every:
        write_page(list(found.values()), page, shlex.join(["npxl", *words]), failed)
        console.print(f"\nPage: {page}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print_json({name: outcome.as_json() for name, outcome in found.items()})
    if failed and found:
        remark(f"npxl: Failed: {', '.join(failed)}; the others are finished.", style="red")
    return 2 if failed else 0


def names_of_studies() -> str:
    """What NAMES may be, for the help: markdown."""
    from npxl.studies import STUDIES

    return f"Studies: {', '.join(STUDIES)}."


def _said(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}: move it away, or choose another --out."
    return str(error) or "There is not enough memory."


def _kept(outcome: Outcome, folder: Path) -> str:
    """Where the outcome is, and what its figures are worth."""
    pictures = len(outcome.pictures)
    kept = f"Kept in {folder / outcome.label}.json, with {pictures} picture{'s'[: pictures != 1]}."
    is_rough = outcome.quick and outcome.training_seconds > 0
    return f"{kept} Quick models have hardly begun to learn." if is_rough else kept


def _show(outcome: Outcome, console: Console) -> None:
    from npxl.studies.page import duration, shown

    for table in outcome.tables:
        console.print(table.title, style="italic", markup=False, highlight=False, soft_wrap=True)
        shown_table = Table(box=None, pad_edge=False)
        for n, column in enumerate(table.columns):
            shown_table.add_column(column, justify="right" if n else "left")
        for row in table.rows:
            shown_table.add_row(*map(shown, row))
        Console(width=10_000).print(shown_table)  # a row is a line, whatever the width
        console.print()
    marked = Table.grid(padding=(0, 2))
    marked.add_column(no_wrap=True)
    for statement in outcome.statements:
        said = Text(f"{statement.says} {statement.evidence}.")
        marked.add_row(statement.mark, said, style="red" if statement.seen is False else "")
    console.print(marked)
    took = f"{duration(outcome.seconds)} of measuring"
    if outcome.training_seconds > 0:
        took += f", after {duration(outcome.training_seconds)} of training"
    console.print(f"{took}.", highlight=False)
