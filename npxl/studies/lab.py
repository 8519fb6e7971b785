"""The folder that studies work in: trained models and parts of results, each kept when finished."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress

from npxl.config import LanguageModelConfig, ModelConfig, TrainConfig, to_dict
from npxl.data import BUNDLED, Corpus, Split, load_corpus
from npxl.data.encoded import digest_of
from npxl.environment import digest_of_sources, environment
from npxl.errors import NpxlError
from npxl.files import atomic_write
from npxl.models.transformer_xl import TransformerXL
from npxl.studies.settings import TextSetting
from npxl.training.loop import Trainer
from npxl.training.reporting import ConsoleReporter
from npxl.training.run import Run

T = TypeVar("T")

_DIGITS = 12


class StudyStopped(Exception):
    """Ctrl-C or SIGTERM ended a training; everything is saved."""


class Lab:
    """What a study is given besides its setting: a text, models trained on it, and a notebook.

    Parameters
    ----------
    folder
        Made when something is to be kept.  Other studies may work in it, at other times.
    study
        Name of the study.
    setting
        Its setting, a dataclass.  What was kept with another one is not found, nor is what was
        measured on another text, by other code or on another kind of machine.
    console
        Where to tell how far it is; nowhere when not given.

    Attributes
    ----------
    seconds
        That the parts took, when they were computed.
    training_seconds
        That the training of the models took, which other studies may share.
    models
        The models so far, by the names of their folders: which npxl began to train each, and a
        digest of its parameters.
    """

    def __init__(
        self, folder: Path, study: str, setting: Any, console: Console | None = None
    ) -> None:
        self.folder = folder
        self.seconds = self.training_seconds = 0.0
        self._study, self._setting, self._console = study, setting, console
        self.models: dict[str, dict[str, str]] = {}

    @cached_property
    def corpus(self) -> Corpus:
        """The text that the setting names."""
        return load_corpus(self._setting.corpus)

    def split(self, at_least: int = 2) -> Split:
        """The split of the text that the setting names, with at least so many tokens.

        NpxlError when there is none or it is too short, which is to be known before any training.
        """
        split = self.corpus.split(self._setting.split)
        if len(split) < at_least:
            raise NpxlError(
                f"The {self._setting.split} split of {self.corpus.name} has {len(split):,} tokens, "
                f"but at least {at_least:,} are needed by the study {self._study}: pass a longer "
                "text."
            )
        return split

    def part(self, name: str, compute: Callable[[], T]) -> T:
        """What `compute` returned when it was first asked for this part: plain JSON values.

        First with the models so far, that is: with others, it is asked again.  It must not train:
        that is counted by itself, and goes on where it was interrupted.  NpxlError when a value is
        not a finite number; nothing is kept then.
        """
        digest = digest_of([self._digest, self.models])[:_DIGITS]
        label = f"{self._study}-{digest}-{name}".replace(" ", "-")
        path = self.folder / "parts" / f"{label}.json"
        kept = _kept(path)
        if kept is None:
            self.say(f"{self._study}: {name}")
            started = time.perf_counter()
            computed = compute()
            kept = {"seconds": time.perf_counter() - started, "value": computed}
            try:
                write_json(path, kept | {"digest": _digest(kept)})
            except ValueError as error:
                raise NpxlError(
                    f"A value that the study {self._study} found is not a finite number, in its "
                    f"part {name!r}, as when a model has diverged: nothing of it is kept."
                ) from error
            kept = json.loads(path.read_bytes())  # the same, fresh or kept
        self.seconds += kept["seconds"]
        value: T = kept["value"]
        return value

    def transformer(self, model: ModelConfig, train: TrainConfig) -> TransformerXL:
        """The last model of that run on the setting's text."""
        trained = self.trained(model, train).model("last")
        assert isinstance(trained, TransformerXL)
        return trained

    def trained(
        self, model: LanguageModelConfig, train: TrainConfig, corpus: str | Path | None = None
    ) -> Run:
        """A finished run with these configurations on the setting's text, or on another one.

        Raises
        ------
        StudyStopped
            When it was interrupted.
        NpxlError
            When it cannot be trained, or has been for longer than `train` says.
        """
        source = self._setting.corpus if corpus is None else corpus
        fingerprint = self.corpus.fingerprint if corpus is None else _fingerprint(source)
        values = {
            "model": to_dict(model),
            "train": to_dict(train),
            "architecture": model.architecture,
            "text": fingerprint,
        }
        kind = getattr(model, "attn_type", model.architecture)
        name = f"{kind}-{digest_of(values)[:_DIGITS]}"
        folder = self.folder / "models" / name
        if folder.exists():
            run = _opened(folder, source, fingerprint, model, train)
        else:
            run = Run.create(folder, source, model, train, ["npxl", "study", self._study])
        with _advising(folder):
            trainer = Trainer(run)
        if train.minutes is None and trainer.progress.steps != train.steps:
            raise NpxlError(
                f"The run {folder} is one of {trainer.progress.steps} updates by now, but the "
                f"study needs the model of {train.steps}: move it elsewhere to train it anew."
            )
        if not trainer.finished:
            which = f"model {len(self.models) + 1} of {self._setting.n_models}"
            self.say(f"{self._study}: {which}, {_described(model, train)}")
            console = self._console
            reporter = None if console is None else ConsoleReporter(console, False)
            if not trainer.run(reporter):
                raise StudyStopped
        if name not in self.models:
            with _advising(folder):
                parameters = run.model("last").params.flat
                seconds = _seconds_of(run)
            digest = hashlib.sha256(parameters).hexdigest()[:_DIGITS]
            self.models[name] = {"npxl": run.version, "parameters": digest}
            self.training_seconds += seconds
        return run

    def say(self, line: str) -> None:
        """A line on the console."""
        if self._console is not None:
            self._console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)

    def track(self, things: Sequence[T], name: str) -> Iterator[T]:
        """The things one after another, with a bar if the console is a terminal."""
        shown = self._console is not None and self._console.is_terminal
        with Progress(console=self._console, transient=True, disable=not shown) as bar:
            yield from bar.track(things, description=name)

    @property
    def fingerprint(self) -> str | None:
        """Of the text, for a study that reads one."""
        return self.corpus.fingerprint if isinstance(self._setting, TextSetting) else None

    @cached_property
    def _digest(self) -> str:
        setting = asdict(self._setting) | {"corpus": self.fingerprint}  # whatever its name
        made_by = {"environment": environment(), "sources": digest_of_sources()}
        return digest_of(setting | made_by)[:_DIGITS]


def write_json(path: Path, values: Any) -> None:
    """Write plain JSON values, all of them or nothing; folders are made."""
    text = json.dumps(values, allow_nan=False, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())


def _kept(path: Path) -> dict[str, Any] | None:
    """What the file of a part holds; None if there is none, or it is not as it was written."""
    try:
        kept = json.loads(path.read_bytes())
        digest = kept.pop("digest")
        return kept if digest == _digest(kept) else None
    except (OSError, ValueError, AttributeError, LookupError, TypeError):  # whatever it may hold
        return None


def _digest(kept: Any) -> str:
    """Of plain values as they are read again; ValueError if a number is not finite."""
    return digest_of(json.loads(json.dumps(kept, allow_nan=False)))


def _opened(
    folder: Path,
    source: str | Path,
    fingerprint: str,
    model: LanguageModelConfig,
    train: TrainConfig,
) -> Run:
    """The run in that folder, which has to be one with these configurations on that text."""
    with _advising(folder):
        run = Run.open(folder, source)
        # The number of updates is looked at later; the others are found out when a run is made.
        found = run.train_config
        train = replace(
            train, steps=found.steps, workers=found.workers, vocabulary=found.vocabulary
        )
        asked = to_dict(model) | {"vocab_size": run.model_config.vocab_size}
        if (run.fingerprint, to_dict(run.model_config), found) != (fingerprint, asked, train):
            raise NpxlError(f"{folder} holds another model than its name says.")
    return run


@contextmanager
def _advising(folder: Path) -> Iterator[None]:
    """NpxlError for whatever cannot be read from the folder of a model, with what to do."""
    try:
        yield
    except (NpxlError, OSError) as error:
        raise NpxlError(
            f"{error} Move the folder {folder} away, and the same command trains it again."
        ) from error


def _fingerprint(source: str | Path) -> str:
    return load_corpus(str(source) if source in BUNDLED else Path(source)).fingerprint


def _described(model: LanguageModelConfig, train: TrainConfig) -> str:
    """By what models of studies differ."""
    if not isinstance(model, ModelConfig):
        return f"architecture {model.architecture}"
    memory = f"memory {model.mem_len}" if model.mem_len else "no memory"
    return f"{memory}, encoding {model.attn_type}, {train.loss} loss, seed {train.seed}"


def _seconds_of(run: Run) -> float:
    """How long a finished run was trained, all interruptions left out."""
    lines = run.metrics.read_text().splitlines()
    return float(json.loads(lines[-1])["elapsed"]) if lines else 0.0
