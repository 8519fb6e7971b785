"""From a study to files: its result as JSON and its pictures, in the folder it works in."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich.console import Console

from npxl.data.encoded import digest_of
from npxl.environment import environment
from npxl.errors import NpxlError
from npxl.files import atomic_write
from npxl.page.pictures import Picture
from npxl.studies.frame import Result, Statement, Study, Table
from npxl.studies.lab import Lab, write_json
from npxl.studies.settings import TextSetting

_DIGITS = 6
"""Of digests in the names of files."""


@dataclass(frozen=True)
class Outcome:
    """What a study found.

    Attributes
    ----------
    study, setting, result
        The study, in which setting it was run, and what it returned.
    quick
        Whether the setting is the study's quick one, maybe of another text.
    suffix
        What its files are called after the name of the study: by which setting, and which text.
    fingerprint
        Of the text; None if the study reads none.
    models
        `Lab.models`.
    seconds, training_seconds
        That measuring took, and training the models, which other studies may share.
    """

    study: Study
    setting: Any
    result: Result
    quick: bool
    suffix: str
    fingerprint: str | None
    models: Mapping[str, Mapping[str, str]]
    seconds: float
    training_seconds: float

    @property
    def label(self) -> str:
        """What its files are called."""
        return f"{self.study.name}{self.suffix}"

    @property
    def tables(self) -> tuple[Table, ...]:
        """What is shown as text."""
        return tuple(self.study.tables(self.result))

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """What is drawn."""
        return tuple(self.study.pictures(self.result))

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What was seen of what is said."""
        return tuple(self.study.statements(self.result))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "study": self.study.name,
            "quick": self.quick,
            "setting": asdict(self.setting),
            "fingerprint": self.fingerprint,
            "models": self.models,
            "seconds": self.seconds,
            "training_seconds": self.training_seconds,
            "environment": environment(),
            "statements": [asdict(statement) for statement in self.statements],
            "result": self.result,
        }


def conduct(study: Study, folder: Path, setting: Any, console: Console | None = None) -> Outcome:
    """Run a study, or what is left of it, and write what it found.

    Parameters
    ----------
    study
        One of `npxl.studies.STUDIES`.
    folder
        In which models, parts and results are kept.
    setting
        `study.full`, `study.quick`, or one of these with other values (`dataclasses.replace`),
        whose results have names of their own.
    console
        Where to tell how far it is.

    Raises
    ------
    StudyStopped
        When training was interrupted; a second call goes on from there.
    NpxlError
        When the text or what the folder holds cannot be used, the folder not be written, a model
        not be trained, or the setting not be measured.
    """
    lab = _lab(study, folder, setting, console)
    suffix = _suffix(study, setting, lab)
    result = json.loads(json.dumps(study.run(setting, lab)))  # the same as it is read again
    outcome = Outcome(
        study,
        setting,
        result,
        quick=_same_but_for_the_text(setting, study.quick),
        suffix=suffix,
        fingerprint=lab.fingerprint,
        models=lab.models,
        seconds=lab.seconds,
        training_seconds=lab.training_seconds,
    )
    write_json(folder / f"{outcome.label}.json", outcome.as_json())
    for n, picture in enumerate(outcome.pictures, start=1):
        svg = drawn(picture)  # which takes a while, in which no file is half written
        with atomic_write(folder / f"{outcome.label}-{n}.svg") as file:
            file.write(svg)
    return outcome


def admit(study: Study, folder: Path, setting: Any) -> str:
    """`Outcome.suffix`; NpxlError when `conduct` would refuse these before it trains anything."""
    lab = _lab(study, folder, setting, None)
    if study.text is not None:
        study.text(setting, lab)
    return _suffix(study, setting, lab)


def _lab(study: Study, folder: Path, setting: Any, console: Console | None) -> Lab:
    lab = Lab(folder, study.name, setting, console)
    _ = lab.fingerprint  # NpxlError, if there is no such text, before a folder is made
    for each in (folder, folder / "parts"):
        _make(each)
    return lab


def _suffix(study: Study, setting: Any, lab: Lab) -> str:
    """Nothing for the full setting; else what tells it apart, and a text that is not its own."""
    if _same_but_for_the_text(setting, study.full):
        suffix = ""
    elif _same_but_for_the_text(setting, study.quick):
        suffix = "-quick"
    else:
        suffix = f"-{digest_of(asdict(setting) | {'corpus': None})[:_DIGITS]}"
    own = study.full, study.quick
    if isinstance(setting, TextSetting) and setting.corpus not in [each.corpus for each in own]:
        suffix += f"-{Path(lab.corpus.name).stem}-{lab.corpus.fingerprint[:_DIGITS]}"
    return suffix


def _same_but_for_the_text(setting: Any, other: Any) -> bool:
    if isinstance(setting, TextSetting):
        setting = replace(setting, corpus=other.corpus)
    return bool(setting == other)


def _make(folder: Path) -> None:
    """Make the folder; NpxlError when nothing can be kept in it, before anything is computed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise NpxlError(
            f"Nothing can be kept in {folder} ({error.strerror}): choose another folder with --out."
        ) from error


def drawn(picture: Picture) -> bytes:
    """The picture as SVG, with the same bytes for the same numbers."""
    import matplotlib
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": picture.title}):
        figure = Figure(figsize=picture.size, layout="constrained")
        picture.draw(figure)
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
