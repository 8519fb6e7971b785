"""A run's folder: what was trained, how, on which text, and how far it is."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from npxl.config import LanguageModelConfig, TrainConfig, config_of, from_dict, to_dict
from npxl.data import BUNDLED, Corpus, Vocabulary, load_corpus, vocabulary_from_dict
from npxl.datasets import Unit, unit_of
from npxl.environment import installed_version
from npxl.errors import NpxlError
from npxl.files import atomic_write, new_folder
from npxl.locks import lock
from npxl.models.architectures import model_class
from npxl.models.files import load_model
from npxl.params import n_parameters
from npxl.tensor_files import read_metadata
from npxl.threads import available_cores
from npxl.training.checkpoints import (
    Checkpoint,
    Progress,
    load_checkpoint,
    load_progress,
    save_checkpoint,
)
from npxl.training.optimizers import optimizer_for

_FORMAT = 2

_FIRST = "transformer_xl"
"""The architecture of runs from before there was another."""


@dataclass(eq=False)
class Run:
    """A folder made by `Run.create`, or opened again by `Run.open`.

    run.json and vocabulary.json say what was started and are never written again; metrics.jsonl
    grows; last.safetensors is the checkpoint to continue from, best.safetensors the model with the
    best score on the validation split.  See docs/training.md.

    Attributes
    ----------
    folder
        Where it lies.
    model_config, train_config
        As the run was started; `vocab_size` is the corpus's, `workers` a number, `vocabulary` what
        the tokens are.
    corpus_source
        The name of a bundled text, or the absolute path of a file or folder.
    fingerprint
        Of the corpus.
    command
        The words of the command that started it.
    started
        When, in ISO 8601.
    version
        Of the npxl that started it.
    """

    folder: Path
    model_config: LanguageModelConfig
    train_config: TrainConfig
    corpus_source: str
    fingerprint: str
    command: tuple[str, ...]
    started: str
    version: str
    _corpus: Corpus | None = field(default=None, repr=False)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        corpus_source: str | Path,
        model_config: LanguageModelConfig,
        train_config: TrainConfig,
        command: Sequence[str] = (),
    ) -> Run:
        """Make the folder of a new run, with a checkpoint at step 0 in it.

        The folder appears complete or not at all.

        Parameters
        ----------
        folder
            Must not exist yet.
        corpus_source
            What `load_corpus` takes.
        model_config
            `vocab_size` is replaced by the size of the corpus's vocabulary.
        train_config
            `workers`, when it is None, is replaced by the number of cores, and `vocabulary` by
            that of the dataset.
        command
            The words of the command, for the record.

        Raises
        ------
        NpxlError
            When there is something at `folder`, it cannot be made, the corpus cannot be used, or
            the disk is full.
        """
        folder = Path(folder)
        if folder.exists():
            raise NpxlError(
                f"{folder} exists, and a run is never overwritten: continue it with --resume, or "
                "choose another folder with --out."
            )
        corpus = load_corpus_for(corpus_source, train_config)
        _require_two_symbols(corpus)
        _require_evaluations(corpus, train_config)
        run = cls(
            folder=folder,
            model_config=_for_corpus(model_config, corpus),
            train_config=replace(
                train_config,
                workers=train_config.workers or available_cores(),
                vocabulary=corpus.vocab.kind,
            ),
            corpus_source=_lasting(corpus_source),
            fingerprint=corpus.fingerprint,
            command=tuple(command),
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            version=installed_version("npxl"),
            _corpus=corpus,
        )
        with _errors_of_the_user(folder.absolute().parent), new_folder(folder) as draft:
            run._write(draft, corpus.vocab)
        return run

    @classmethod
    def open(cls, folder: str | Path, corpus_source: str | Path | None = None) -> Run:
        """The run in a folder, and where its text is now if it has moved.

        Raises NpxlError when there is no run or its description is damaged.
        """
        folder = Path(folder)
        path = folder / "run.json"
        if not path.is_file():
            raise NpxlError(
                f"There is no run in {folder}: a folder with a run.json, which npxl train makes, "
                "was expected."
            )
        record = _read_json(path)
        if record.get("format") != _FORMAT:
            raise NpxlError(
                f"{path} is in format {record.get('format')}, but this npxl reads format "
                f"{_FORMAT}; use the version that wrote it, {record.get('npxl')}."
            )
        try:
            run = cls(
                folder=folder,
                model_config=config_of(record.get("architecture", _FIRST), record["model"]),
                train_config=from_dict(TrainConfig, record["train"]),
                corpus_source=record["corpus"]["source"],
                fingerprint=record["corpus"]["fingerprint"],
                command=tuple(record["command"]),
                started=record["started"],
                version=record["npxl"],
            )
        except KeyError as error:
            raise NpxlError(f"{path} does not describe a run: it lacks {error}.") from error
        except (TypeError, NpxlError) as error:
            raise NpxlError(f"{path} does not describe a run. {error}") from error
        words = (run.corpus_source, run.fingerprint, run.started, run.version, *run.command)
        if not all(isinstance(word, str) for word in words):
            raise NpxlError(
                f"{path} does not describe a run: its text, time, version and command must be "
                "strings."
            )
        if corpus_source is not None:
            run.corpus_source = _lasting(corpus_source)
        return run

    @property
    def last(self) -> Path:
        """The file of the checkpoint to continue from."""
        return self.folder / "last.safetensors"

    @property
    def best(self) -> Path:
        """The file of the model with the best validation score; there after an evaluation."""
        return self.folder / "best.safetensors"

    @property
    def metrics(self) -> Path:
        """The file of the metrics."""
        return self.folder / "metrics.jsonl"

    @property
    def n_parameters(self) -> int:
        """Number of parameters of the model."""
        return n_parameters(model_class(self.model_config).parameter_shapes(self.model_config))

    @property
    def unit(self) -> Unit:
        """What the run's scores are compared in."""
        return unit_of(self.train_config.dataset, self.train_config.vocabulary)

    @property
    def vocabulary(self) -> Vocabulary:
        """What the model's tokens mean; NpxlError when the file is damaged or of another run."""
        path = self.folder / "vocabulary.json"
        try:
            vocabulary = vocabulary_from_dict(_read_json(path))
        except NpxlError as error:
            raise NpxlError(f"{path} is no vocabulary. {error}") from error
        found = vocabulary.kind, vocabulary.size
        expected = self.train_config.vocabulary, self.model_config.vocab_size
        if found != expected:
            raise NpxlError(
                f"{path} does not belong to this run: it has {found[1]} symbols in {found[0]}, but "
                f"run.json says {expected[1]} in {expected[0]}."
            )
        return vocabulary

    @property
    def corpus(self) -> Corpus:
        """The text that the run was started on.

        Raises
        ------
        NpxlError
            When it is not there any more, or has changed.
        """
        if self._corpus is None:
            source, folder = self.corpus_source, self.folder
            if source not in BUNDLED and not os.path.exists(source):
                raise NpxlError(
                    f"The run {folder} wants the text that it was started on, which is not at "
                    f"{source} any more: put it back, or say where it is, as in npxl eval "
                    f"{_quoted(folder)} TEXT or npxl train TEXT --out {_quoted(folder)} --resume."
                )
            dataset = self.train_config.dataset
            corpus = load_corpus(source, vocab=self.vocabulary, dataset=dataset)
            if corpus.fingerprint != self.fingerprint:
                raise NpxlError(
                    f"The text {source} is not, or no longer, the one that the run {folder} was "
                    "started on: put that back, or start a new run. To score the text as it is "
                    f"now: npxl eval {_quoted(folder)} {_quoted(source)}."
                )
            self._corpus = corpus
        return self._corpus

    def model(self, which: Literal["best", "last"] = "best") -> Any:
        """The model with the best validation score, or the last one, of the run's architecture.

        Until something has been evaluated, the best is the last.

        Raises
        ------
        NpxlError
            When the file is damaged or of another run.
        """
        path = self.best if which == "best" and self.best.exists() else self.last
        model = load_model(path)
        self._require_own(path, model.config == self.model_config)
        self._require_own(path, model.dtype == self.train_config.dtype)
        return model

    def checkpoint(self) -> Checkpoint:
        """The checkpoint to continue from."""
        return load_checkpoint(self.last)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep everybody else from training the run, in this process or another.

        Raises
        ------
        NpxlError
            When it is being trained already.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(lock(self.folder / "run.json"))
            except BlockingIOError as error:
                raise NpxlError(
                    f"The run {self.folder} is being trained already: wait until that has ended, "
                    "or stop it first."
                ) from error
            yield

    def remove_leftovers(self) -> None:
        """Delete the temporary files of saves in the middle of which a process was killed."""
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    def describe(self) -> dict[str, Any]:
        """Everything known about the run, as plain JSON values: what `npxl info` shows."""
        progress = load_progress(self.last)
        config = read_metadata(self.last).get("config")
        self._require_own(self.last, config == to_dict(self.model_config))
        return {
            "run": str(self.folder),
            "parameters": self.n_parameters,
            "step": progress.step,
            "steps": progress.steps,
            "best": None if progress.best is None else asdict(progress.best),
            **self._record(),
        }

    def _require_own(self, path: Path, is_own: bool) -> None:
        if not is_own:
            raise NpxlError(
                f"{path} does not belong to this run. Its model is not the one that run.json "
                "describes."
            )

    def _record(self) -> dict[str, Any]:
        """What run.json holds, `format` apart."""
        return {
            "npxl": self.version,
            "started": self.started,
            "command": list(self.command),
            "corpus": {"source": self.corpus_source, "fingerprint": self.fingerprint},
            "architecture": self.model_config.architecture,
            "model": to_dict(self.model_config),
            "train": to_dict(self.train_config),
        }

    def _write(self, folder: Path, vocabulary: Vocabulary) -> None:
        config = self.train_config
        _write_json(folder / "run.json", {"format": _FORMAT, **self._record()})
        _write_json(folder / "vocabulary.json", vocabulary.to_dict())
        kind = model_class(self.model_config)
        model = kind(self.model_config, seed=config.seed, dtype=config.dtype)
        start = Checkpoint(
            model=model,
            optimizer=optimizer_for(model.params, config).state,
            memory=model.init_memory(config.batch_size),
            progress=Progress(steps=config.steps if config.minutes is None else None),
        )
        save_checkpoint(folder / self.last.name, start)


def load_corpus_for(source: str | Path, config: TrainConfig) -> Corpus:
    """The text at `source`, read as a new run with this configuration reads it."""
    return load_corpus(
        source,
        config.vocabulary,
        config.min_count,
        dataset=config.dataset,
        tokenizer=config.tokenizer,
    )


@contextmanager
def _errors_of_the_user(folder: Path) -> Iterator[None]:
    """Turn the system's refusal to write below `folder` into an NpxlError."""
    try:
        yield
    except OSError as error:
        raise NpxlError(
            f"No run can be made in {folder} ({error.strerror}): choose another folder with --out."
        ) from error


def _for_corpus(config: LanguageModelConfig, corpus: Corpus) -> LanguageModelConfig:
    """With a vocabulary of the size of the corpus's, in which the cutoffs must lie."""
    size = corpus.vocab.size
    if config.cutoffs and config.cutoffs[-1] >= size:
        raise NpxlError(
            f"cutoffs are {', '.join(map(str, config.cutoffs))}, but {corpus.name} has only {size} "
            f"symbols in {corpus.vocab.kind}: choose lower cutoffs, or none."
        )
    return config_of(config.architecture, {**to_dict(config), "vocab_size": size})


def _require_two_symbols(corpus: Corpus) -> None:
    """NpxlError when the training text is one symbol again and again."""
    tokens = corpus.split("train").tokens
    pieces = (tokens[start : start + 2**20] for start in range(0, len(tokens), 2**20))
    if all((piece == tokens[0]).all() for piece in pieces):
        symbol = corpus.vocab.decode(tokens[:1])
        raise NpxlError(
            f"The training text of {corpus.name} is {symbol!r} {len(tokens):,} times, from which "
            "there is nothing to learn: pass a text with at least two different tokens."
        )


def _require_evaluations(corpus: Corpus, config: TrainConfig) -> None:
    """NpxlError when the schedule follows a loss that nothing measures."""
    if config.schedule == "plateau" and corpus.valid is None:
        raise NpxlError(
            f"The schedule plateau follows the loss on the validation split, but {corpus.name} has "
            "none: add one, such as a valid.txt in its folder, or choose another schedule."
        )


def _lasting(corpus_source: str | Path) -> str:
    """The source by a name that holds from any working folder."""
    if isinstance(corpus_source, str) and corpus_source in BUNDLED:
        return corpus_source
    return str(Path(os.path.expanduser(corpus_source)).absolute())


def _quoted(path: str | Path) -> str:
    return shlex.quote(str(path))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise NpxlError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(values, dict):
        raise NpxlError(f"{path} holds a {type(values).__name__}, but an object was expected.")
    return values


def _write_json(path: Path, values: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        # A path that is not UTF-8 reaches Python with its bytes escaped as surrogates.
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        file.write(text.encode("utf-8", "surrogatepass"))
