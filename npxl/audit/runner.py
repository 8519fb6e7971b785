"""`npxl audit`: all checks of one configuration."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console

from npxl.audit.frame import Check, Progress, Result, Section, Subject, Trained
from npxl.audit.outcome import AuditReport, CheckOutcome
from npxl.audit.sections import SECTIONS
from npxl.audit.terminal import Terminal
from npxl.config import ARCHITECTURES, LanguageModelConfig, checked_int
from npxl.errors import NpxlError, described


class AuditStopped(KeyboardInterrupt):
    """`stop` returned true, or Ctrl-C was pressed: in which check, and after how many."""


def audit(
    config: LanguageModelConfig,
    seed: int = 0,
    console: Console | None = None,
    *,
    only: Iterable[str] = (),
    command: Sequence[str] = ("npxl", "audit"),
    trained: Callable[[], Trained] | None = None,
    stop: Callable[[], bool] | None = None,
) -> AuditReport:
    """Prove or refute the mathematics of a configuration.

    Parameters
    ----------
    config
        Scaled down where a check says so.  What this kind of model has not, its rows say.
    seed
        Of parameters, tokens and cotangents.
    console
        Where to print each row as soon as it is found, and a bar if this is a terminal; nowhere
        when not given.
    only
        Names of sections, or SECTION/CHECK; everything when there are none.
    command
        What has this configuration audited on the command line, to say how to see a failure again.
    trained
        Loads what was trained in this configuration, for what is measured at its own size.
    stop
        Asked after every row, and every now and then before the next one, whether to give up.

    Returns
    -------
    AuditReport
        `.passed`, `.failures`, and all rows.

    Raises
    ------
    NpxlError
        When `config`, `seed` or `only` is not as described, or names no section or check.
    AuditStopped
        When `stop` returned true, and in place of KeyboardInterrupt.
    """
    if not isinstance(config, tuple(ARCHITECTURES.values())):
        kinds = " or ".join(f"npxl.{kind.__name__}" for kind in ARCHITECTURES.values())
        raise NpxlError(f"config is {described(config)}, but it must be a {kinds}.")
    seed = checked_int("seed", seed, minimum=0, maximum=None)
    chosen = _chosen(only)
    subject = Subject(config, seed, trained)
    outcomes: list[CheckOutcome] = []
    report = AuditReport(subject, tuple(command), ())

    def go_on() -> None:
        if stop is not None and stop():
            raise KeyboardInterrupt

    def progress(done: int, total: int) -> None:
        go_on()
        terminal.progress(done, total)

    with Terminal(console) as terminal:
        terminal.subject(subject)
        for section, checks in chosen:
            terminal.section(1 + SECTIONS.index(section), section)
            for check in checks:
                terminal.check(section, check)
                start, results = time.perf_counter(), []
                try:
                    for result in _results(check, subject, progress):
                        terminal.row(result)
                        results.append(result)
                        go_on()
                except KeyboardInterrupt:
                    n_checks = sum(len(each) for _, each in chosen)
                    raise AuditStopped(
                        f"Stopped in {section.name}/{check.name}, after {len(outcomes)} of "
                        f"{n_checks} checks."
                    ) from None
                seconds = time.perf_counter() - start
                outcome = CheckOutcome(section, check, tuple(results), seconds)
                if not outcome.passed:
                    terminal.wrong(outcome, report.reproduce(outcome.name))
                outcomes.append(outcome)
    report = AuditReport(subject, tuple(command), tuple(outcomes))
    terminal.verdict(report)
    return report


def _chosen(only: Iterable[str]) -> list[tuple[Section, list[Check]]]:
    """The sections, each with those of its checks that are to be run."""
    if isinstance(only, str):
        raise NpxlError(f"only is {only!r}, but it must be a list of names: pass [{only!r}].")
    if not isinstance(only, Iterable):
        raise NpxlError(
            f"only is {described(only)}, but it must be a list of names; an empty one for all."
        )
    only = list(only)
    names = {section.name: [check.name for check in section.checks] for section in SECTIONS}
    known = [*names, *(f"{section}/{check}" for section in names for check in names[section])]
    for name in only:
        if name not in known:
            raise NpxlError(
                f"only is {name!r}, but an audit has no such section or check; it has "
                f"{', '.join(known)}."
            )
    chosen = []
    for section in SECTIONS:
        checks = [
            check
            for check in section.checks
            if not only or section.name in only or f"{section.name}/{check.name}" in only
        ]
        if checks:
            chosen.append((section, checks))
    return chosen


def _results(check: Check, subject: Subject, progress: Progress) -> Iterator[Result]:
    """The check's rows, and one that is wrong when it could not go on."""
    try:
        yield from check.run(subject, progress)
    except OSError:
        raise  # nobody reads on, or the disk is full: no fault of the model
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        yield Result.of(
            "stopped", math.nan, at_most=0,
            detail=f"{type(error).__name__}: {error} ({where.name}, line {where.lineno} of "
            f"{where.filename}).",
        )  # fmt: skip
