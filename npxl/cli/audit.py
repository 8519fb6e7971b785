"""npxl audit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt

from npxl.cli.options import AsJson, configured, preset_help
from npxl.cli.output import INTERRUPTED, Console, print_json, remark
from npxl.errors import NpxlError

if TYPE_CHECKING:
    from npxl.audit.frame import Trained
    from npxl.training.run import Run


def audit(
    run: Path | None = None,
    /,
    *,
    config: Path | None = None,
    preset: Annotated[str | None, preset_help("Preset to check")] = None,
    seed: NonNegativeInt = 0,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    html: Annotated[Path | None, Parameter(show_default=False)] = None,
    as_json: AsJson = False,
) -> int:
    """Prove or refute the mathematics of a configuration; exit code 1 if anything is wrong.

    Gradients are held against differences and complex steps, and whatever else the equations say
    against what is computed, each with its figure and the largest that is allowed.

    Parameters
    ----------
    run
        Folder of a run whose configuration to check; the default configuration when not given.
    config
        TOML file with options, as npxl train takes it.
    seed
        Of parameters, tokens and cotangents.
    only
        Sections to check, or single checks, SECTION/CHECK, of those below; everything when not
        given.
    html
        Where to write the report; none: nowhere. When not given, audit.html in the folder of the
        run or in the current one, or nowhere with --only. A report that is there is replaced.
    as_json
        Print one JSON object at the end instead of tables.
    """
    from npxl.audit import AuditStopped, audit
    from npxl.audit.html import check_target, write_html
    from npxl.signals import StopRequest
    from npxl.training.run import Run

    if only == []:
        raise NpxlError("--only needs the name of a section, or SECTION/CHECK.")
    words: list[str] = []
    trained = None
    if run is None:
        model_config, _, _ = configured(preset, config, {})
        words += [] if preset is None else ["--preset", preset]
        words += [] if config is None else ["--config", str(config)]
    elif config is None and preset is None:
        opened = Run.open(run)
        model_config, trained = opened.model_config, partial(_trained, opened)
        words += [str(run)]
    else:
        raise NpxlError("A run has a configuration of its own: give RUN, or --config and --preset.")
    target = html
    if html is None and not only:
        target = (run or Path()) / "audit.html"
    if target == Path("none"):
        target = None
    if target is not None:
        check_target(target)
    console = None if as_json else Console()
    try:
        with StopRequest() as stop:
            report = audit(
                model_config, seed, console,
                only=only or (), command=["npxl", "audit", *words], trained=trained,
                stop=lambda: stop.requested,
            )  # fmt: skip
    except AuditStopped as stopped:
        remark(f"{stopped} No report was written.", style="yellow")
        return INTERRUPTED
    rows = [row for outcome in report.outcomes for row in outcome.results]
    if report.passed and not any(row.applies for row in rows):
        raise NpxlError("Nothing was checked: the configuration has nothing that --only names.")
    if target is not None:
        write_html(report, target, " ".join(words) or "the default configuration")
    if as_json:
        print_json({**report.as_json(), "html": None if target is None else str(target)})
    elif target is not None:
        print(f"Report: {target}")
    return 0 if report.passed else 1


def names_of_sections() -> str:
    """What --only may name, for the help: markdown."""
    from npxl.audit.sections import SECTIONS

    lines = [
        f"- {section.name}: {', '.join(check.name for check in section.checks)}"
        for section in SECTIONS
    ]
    return "Sections and their checks:\n\n" + "\n".join(lines)


def _trained(run: Run) -> Trained:
    """The run's best model, and the validation split of its text."""
    from npxl.audit.frame import Trained

    split = run.corpus.valid or run.corpus.train
    return Trained(run.model(), split.tokens, run.train_config.tgt_len)
