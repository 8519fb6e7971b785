"""npxl train."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from npxl.cli.options import Architecture, Flag, configured, options_of, preset_help
from npxl.cli.output import INTERRUPTED, Console
from npxl.config import ModelConfig, TrainConfig
from npxl.errors import NpxlError

_TEXT_GROUP = Group("Text options", sort_key=1)
_MODEL_GROUP = Group("Model options", sort_key=2)
_TRAIN_GROUP = Group("Training options", sort_key=3)

if TYPE_CHECKING:
    from npxl.training.run import Run

    ModelOptions = dict[str, Any]
    TrainOptions = dict[str, Any]
else:
    ModelOptions = options_of(ModelConfig)
    TrainOptions = options_of(TrainConfig, groups={"text": _TEXT_GROUP})


def train(
    corpus: str | None = None,
    /,
    *,
    out: Path | None = None,
    resume: Flag = False,
    config: Path | None = None,
    preset: Annotated[str | None, preset_help("Configuration to start from")] = None,
    architecture: Annotated[Architecture, Parameter(group=_MODEL_GROUP)] = None,
    model: Annotated[ModelOptions | None, Parameter(name="*", group=_MODEL_GROUP)] = None,
    training: Annotated[TrainOptions | None, Parameter(name="*", group=_TRAIN_GROUP)] = None,
    words: Annotated[Sequence[str], Parameter(parse=False)] = (),
) -> int:
    """Train a model on a text; without arguments, on the bundled one in about five minutes.

    Every model option and training option can also be a key of the TOML file. Ctrl-C stops with
    everything saved.

    Parameters
    ----------
    corpus
        A text file, a folder with a file for each of train, valid and test, the name of a bundled
        text, or the files of --dataset as they are downloaded; kjv when not given.
    out
        Folder of the run, which must not exist yet; the next free of runs/NAME-1, runs/NAME-2, ...
        when not given.
    resume
        Continue the run in --out where it stopped. Of the other options only --steps can be given
        with it, to train for longer, and CORPUS, where the same text is now.
    config
        TOML file with options; it has precedence over the preset and yields to options given here.
    words
        Of the whole command, for the record.
    """
    from npxl.training.loop import Trainer
    from npxl.training.reporting import ConsoleReporter

    given = {**(model or {}), **(training or {})}
    if architecture is not None:
        given["architecture"] = architecture
    if resume:
        steps = given.pop("steps", None)
        others = {"--config": config, "--preset": preset}
        extra = [name for name, value in others.items() if value is not None]
        extra += ["--" + name.replace("_", "-") for name in given]
        trainer = Trainer(_existing_run(out, corpus, extra), steps)
    else:
        source = "kjv" if corpus is None else corpus
        trainer = Trainer(_new_run(source, out, config, preset, given, words))
    return 0 if trainer.run(ConsoleReporter(Console())) else INTERRUPTED


def _existing_run(folder: Path | None, corpus: str | None, extra: Sequence[str]) -> Run:
    from npxl.training.run import Run

    if folder is None:
        raise NpxlError("--resume continues an existing run: name its folder with --out.")
    if extra:
        raise NpxlError(
            f"A run is resumed as it was started, so {', '.join(extra)} cannot be given with "
            "--resume; only --steps can, to train for longer, and CORPUS, if the text has moved."
        )
    return Run.open(folder, corpus)


def _new_run(
    source: str,
    folder: Path | None,
    config: Path | None,
    preset: str | None,
    given: dict[str, Any],
    words: Sequence[str],
) -> Run:
    from npxl.training.run import Run, load_corpus_for

    model_config, train_config, chosen = configured(preset, config, given)
    if "vocab_size" in chosen:
        corpus = load_corpus_for(source, train_config)
        if model_config.vocab_size != corpus.vocab.size:
            raise NpxlError(
                f"vocab_size is {model_config.vocab_size}, but {corpus.name} has "
                f"{corpus.vocab.size} symbols in {corpus.vocab.kind}; leave vocab_size out."
            )
    if folder is None:
        folder = _free_folder(source)
    return Run.create(folder, source, model_config, train_config, ["npxl", *words])


def _free_folder(source: str) -> Path:
    """runs/NAME-n, with the smallest n that nothing is called yet."""
    name = Path(os.path.expanduser(source)).resolve().stem or "run"
    n = 1
    while (folder := Path("runs", f"{name}-{n}")).exists():
        n += 1
    return folder
