"""npxl audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts.types import NonNegativeInt

from npxl.cli.options import configured, preset_help
from npxl.cli.output import Console
from npxl.errors import NpxlError


def audit(
    run: Path | None = None,
    /,
    *,
    config: Path | None = None,
    preset: Annotated[str | None, preset_help("Preset to check")] = None,
    seed: NonNegativeInt = 0,
) -> int:
    """Check every gradient of a configuration, scaled down; exit code 1 if one is wrong.

    Each entry is held against central differences and complex steps, in a few seconds.

    Parameters
    ----------
    run
        Folder of a run whose configuration to check; the default configuration when not given.
    config
        TOML file with options, as npxl train takes it.
    seed
        Of parameters, tokens and cotangents.
    """
    from npxl.audit import audit
    from npxl.training.run import Run

    if run is None:
        model_config, _, _ = configured(preset, config, {})
    elif config is None and preset is None:
        model_config = Run.open(run).model_config
    else:
        raise NpxlError("A run has a configuration of its own: give RUN, or --config and --preset.")
    return 0 if audit(model_config, seed=seed, console=Console()).passed else 1
