"""npxl audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt

from npxl.cli.options import AsJson, configured, preset_help
from npxl.cli.output import Console, print_json
from npxl.errors import NpxlError


def audit(
    run: Path | None = None,
    /,
    *,
    config: Path | None = None,
    preset: Annotated[str | None, preset_help("Preset to check")] = None,
    seed: NonNegativeInt = 0,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
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
        Sections to check, or single checks, SECTION/CHECK; everything when not given.
    as_json
        Print one JSON object at the end instead of tables.
    """
    from npxl.audit import audit
    from npxl.training.run import Run

    command = ["npxl", "audit"]
    if run is None:
        model_config, _, _ = configured(preset, config, {})
        command += [] if preset is None else ["--preset", preset]
        command += [] if config is None else ["--config", str(config)]
    elif config is None and preset is None:
        model_config = Run.open(run).model_config
        command += [str(run)]
    else:
        raise NpxlError("A run has a configuration of its own: give RUN, or --config and --preset.")
    console = None if as_json else Console()
    report = audit(model_config, seed, console, only=only or (), command=command)
    if as_json:
        print_json(report.as_json())
    return 0 if report.passed else 1
