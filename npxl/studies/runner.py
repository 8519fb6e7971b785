"""From a study to files: its result as JSON and its pictures, in the folder it works in."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich.console import Console

from npxl.errors import NpxlError
from npxl.files import atomic_write
from npxl.page.pictures import Picture
from npxl.studies.frame import Result, Statement, Study, Table
from npxl.studies.lab import Lab, write_json
from npxl.versions import versions


@dataclass(frozen=True)
class Outcome:
    """What a study found.

    Attributes
    ----------
    study, setting, result
        The study, in which setting it was run, and what it returned.
    quick
        Whether the setting is the quick one.
    suffix
        What its files are called after the name of the study: by which setting, and which text.
    seconds, training_seconds
        That measuring took, and training the models, which other studies may share.
    """

    study: Study
    setting: Any
    result: Result
    quick: bool
    suffix: str
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
        """What was seen of what the paper says."""
        return tuple(self.study.statements(self.result))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "study": self.study.name,
            "quick": self.quick,
            "setting": asdict(self.setting),
            "seconds": self.seconds,
            "training_seconds": self.training_seconds,
            "versions": versions(),
            "statements": [asdict(statement) for statement in self.statements],
            "result": self.result,
        }


def conduct(
    study: Study,
    folder: Path,
    quick: bool = False,
    corpus: str | None = None,
    console: Console | None = None,
) -> Outcome:
    """Run a study, or what is left of it, and write what it found.

    Parameters
    ----------
    study
        One of `npxl.studies.STUDIES`.
    folder
        In which models, parts and results are kept.
    quick
        Take the setting that shows it work.
    corpus
        What `load_corpus` takes, for a study that reads a text; None: the setting's.
    console
        Where to tell how far it is.

    Raises
    ------
    StudyStopped
        When training was interrupted; a second call goes on from there.
    NpxlError
        When the text or what the folder holds cannot be used, the folder not be written, or the
        setting not be measured.
    """
    setting, lab = _begin(study, folder, quick, corpus, console)
    suffix = "-quick" if quick else ""
    if setting != (study.quick if quick else study.full):
        suffix += f"-{Path(lab.corpus.name).stem}"
    result = json.loads(json.dumps(study.run(setting, lab)))  # the same as it is read again
    outcome = Outcome(study, setting, result, quick, suffix, lab.seconds, lab.training_seconds)
    write_json(folder / f"{outcome.label}.json", outcome.as_json())
    for n, picture in enumerate(outcome.pictures, start=1):
        svg = drawn(picture)  # which takes a while, in which no file is half written
        with atomic_write(folder / f"{outcome.label}-{n}.svg") as file:
            file.write(svg)
    return outcome


def admit(study: Study, folder: Path, quick: bool = False, corpus: str | None = None) -> None:
    """NpxlError when `conduct` would refuse these before it trains anything."""
    setting, lab = _begin(study, folder, quick, corpus, None)
    if study.text is not None:
        study.text(setting, lab)


def _begin(
    study: Study, folder: Path, quick: bool, corpus: str | None, console: Console | None
) -> tuple[Any, Lab]:
    setting = study.quick if quick else study.full
    if corpus is not None and not hasattr(setting, "corpus"):
        raise NpxlError(f"The study {study.name} reads no text: leave out the corpus.")
    if corpus is not None and corpus != setting.corpus:
        setting = replace(setting, corpus=corpus)
    lab = Lab(folder, study.name, setting, console)
    if study.text is not None:
        _ = lab.corpus  # NpxlError before a folder is made
    for each in (folder, folder / "parts"):
        _make(each)
    return setting, lab


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
