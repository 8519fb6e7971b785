"""An audit as it goes: a line for each row, in 80 columns or whatever there are."""

from __future__ import annotations

import math
from types import TracebackType

from rich.console import Console
from rich.padding import Padding
from rich.progress import Progress as Bar
from rich.text import Text

from npxl.audit.frame import Check, Figure, Result, Section, Subject
from npxl.audit.outcome import AuditReport, CheckOutcome

_MARK = 5  # columns of the last word of a row
_GAP = 1


class Terminal:
    """Prints what it is told of; nothing without a console.

    Also a context manager: there is a bar for as long as it is open, if this is a terminal.
    """

    def __init__(self, console: Console | None) -> None:
        self.console = console
        shown = console is not None and console.is_terminal
        self._bar = Bar(console=console, transient=True, disable=not shown)
        self._task = self._bar.add_task("", total=None)
        self._heading: list[tuple[str, str]] = []

    def __enter__(self) -> Terminal:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def subject(self, subject: Subject) -> None:
        """Says what was scaled, and how."""
        changes = [f"{name} {old} to {new}" for name, (old, new) in subject.changes.items()]
        self._print(f"Checked in float64, scaled: {', '.join(changes) or 'nothing'}.")

    def section(self, number: int, section: Section) -> None:
        """A heading."""
        self._print(f"\n{number}  {section.title}", style="bold underline")

    def check(self, section: Section, check: Check) -> None:
        """What is coming."""
        name = f"{section.name}/{check.name}"
        self._print(f"\n{name}", style="bold")
        self._bar.reset(self._task, description=name, total=None)
        self._heading = []

    def progress(self, done: int, total: int) -> None:
        """How far the check is."""
        self._bar.update(self._task, completed=done, total=total)

    def row(self, result: Result) -> None:
        """A line with the figures, and one with the details."""
        if len(result.figures) > 1:
            self._head(result)
        style = "" if result.passed else "red"
        mark = ("ok" if result.passed else "WRONG") if result.applies else "-"
        cells = [number(figure.value) for figure in result.figures.values()]
        widths = _widths(result)
        if len(cells) == 1:
            cells.append(next(iter(result.figures.values())).bounds)
            widths = [*widths, max(9, len(cells[1]))]
        self._line(result.name, cells, widths, mark, style)
        notes = [result.detail] if result.detail else []
        if len(result.figures) > 1:
            notes += [
                f"{name} {number(figure.value)}, expected {figure.bounds}"
                for name, figure in result.figures.items()
                if not figure.holds
            ]
        for note in notes:
            self._note(note, style or "dim")

    def wrong(self, outcome: CheckOutcome, reproduce: str) -> None:
        """How to see it again."""
        if not outcome.results:
            self._note("The check found nothing.", "red")
        self._note(f"again: {reproduce}", "red")

    def verdict(self, report: AuditReport) -> None:
        """The end."""
        style = "bold green" if report.passed else "bold red"
        self._print(f"\n{report.verdict}", style=style)
        for outcome in report.failures:
            self._print(report.reproduce(outcome.name), soft_wrap=True)
        self._print(report.origin)

    def _head(self, result: Result) -> None:
        """The names of the columns and what they are held against, unless that is said already."""
        heading = [(name, figure.bounds) for name, figure in result.figures.items()]
        if heading == self._heading:
            return
        self._heading = heading
        names, bounds = map(list, zip(*heading, strict=True))
        self._line("", names, _widths(result), "", "dim")
        if any(bounds):
            self._line("", bounds, _widths(result), "", "dim")

    def _line(self, name: str, cells: list[str], widths: list[int], mark: str, style: str) -> None:
        """A name at the left and figures at the right; on two lines where one is too short."""
        if self.console is None:
            return
        right = "".join(
            " " * _GAP + cell.rjust(width) for cell, width in zip(cells, widths, strict=True)
        )
        right += mark.rjust(_MARK + _GAP)
        room = self.console.width - len(right)
        if len(name) > room:
            self._print(name, style=style, soft_wrap=True)
            name = ""
        self._print(name.ljust(room) + right, style=style, soft_wrap=True)

    def _note(self, text: str, style: str) -> None:
        if self.console is not None:
            self.console.print(Padding(Text(text, style=style), (0, 0, 0, 4)))

    def _print(self, text: str, style: str = "", soft_wrap: bool = False) -> None:
        if self.console is not None:
            self.console.print(
                Text(text.rstrip(), style=style), highlight=False, soft_wrap=soft_wrap
            )


def number(value: float) -> str:
    """A figure as it is shown."""
    if math.isnan(value):
        return "-"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    return f"{value:.3g}" if 1e-2 <= abs(value) < 1e4 else f"{value:.1e}"


def _widths(result: Result) -> list[int]:
    return [_width(name, figure) for name, figure in result.figures.items()]


def _width(name: str, figure: Figure) -> int:
    return max(len(name), len(figure.bounds), 7)
