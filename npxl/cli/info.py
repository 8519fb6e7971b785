"""npxl info."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

from npxl.cli.options import AsJson, preset_help
from npxl.cli.output import print_json, print_table
from npxl.config import LanguageModelConfig, TrainConfig, to_dict
from npxl.errors import NpxlError
from npxl.presets import PRESETS
from npxl.presets import preset as find_preset


def info(
    run: Path | None = None,
    /,
    *,
    preset: Annotated[str | None, preset_help("Preset to show")] = None,
    as_json: AsJson = False,
) -> None:
    """Show configuration, size and score of a run, or a preset; without either, list the presets.

    Parameters
    ----------
    run
        Folder of a run.
    as_json
        Print one JSON object instead of a table.
    """
    from npxl.training.run import Run

    if run is not None and preset is not None:
        raise NpxlError("Give RUN or --preset, but not both.")
    if run is None and preset is None:
        presets = {name: _of_preset(name) for name in PRESETS}
        if as_json:
            print_json(presets)
        else:
            print_table({n: f"{p['parameters']:>11,}   {p['summary']}" for n, p in presets.items()})
        return
    if run is None:
        assert preset is not None
        values = _of_preset(preset)
    else:
        opened = Run.open(run)
        values = {**opened.describe(), **_size(opened.model_config, opened.train_config)}
    if as_json:
        print_json(values)
    else:
        print_table(_rows(values), model=values["model"], training=values["train"])


def _of_preset(name: str) -> dict[str, Any]:
    preset = find_preset(name)
    return {
        "preset": name,
        "summary": preset.summary,
        **_size(preset.model, preset.train),
        "architecture": preset.model.architecture,
        "model": to_dict(preset.model),
        "train": to_dict(preset.train),
    }


def _size(model: LanguageModelConfig, train: TrainConfig) -> dict[str, Any]:
    from npxl.models.architectures import model_class
    from npxl.models.ends import tables
    from npxl.params import n_parameters

    shapes = model_class(model).parameter_shapes(model)
    others = {name: shape for name, shape in shapes.items() if name not in tables(model)}
    return {
        "parameters": n_parameters(shapes),
        "parameters_without_embeddings": n_parameters(others),
        "reach": model.longest_reach(train.tgt_len),
        "reach_is_exact": model.reach_is_exact,
    }


def _rows(values: dict[str, Any]) -> dict[str, Any]:
    """What is above the configuration, for people."""
    head = _run_rows(values) if "run" in values else {n: values[n] for n in ("preset", "summary")}
    reach = "all tokens before"
    if values["reach"] is not None:
        reach = f"{'' if values['reach_is_exact'] else 'at most '}{values['reach']:,} tokens"
    size = {
        "architecture": values["architecture"],
        "parameters": values["parameters"],
        "without embeddings": values["parameters_without_embeddings"],
        "reach": reach,
    }
    return {**head, **size}


def _run_rows(values: dict[str, Any]) -> dict[str, Any]:
    steps, best = values["steps"], values["best"]
    score = "none yet"
    if best is not None:
        score = (
            f"{best['bpc']:.4f} bits per character, {best['bpb']:.4f} bits per byte, perplexity "
            f"{best['ppl']:,.4g} (validation, step {best['step']:,})"
        )
    return {
        "run": values["run"],
        "corpus": values["corpus"]["source"],
        "command": shlex.join(values["command"]),
        "started": f"{values['started']}, npxl {values['npxl']}",
        "step": f"{values['step']:,}" + ("" if steps is None else f" of {steps:,}"),
        "best score": score,
    }
