"""Layouts: which files of what the user names are the training, validation and test text."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npxl.data.archives import unpacked
from npxl.data.sources import Source, Span, move_back, whole_file
from npxl.data.vocabularies import Grain
from npxl.datasets import Dataset, FilePerSplit, OneFile
from npxl.errors import NpxlError

PERCENT = {"train": 90, "valid": 5, "test": 5}
"""Of a single file: the splits in the order in which they lie in it."""

_NAME_PARTS = {
    "train": {"train"},
    "valid": {"valid", "validation", "val", "dev"},
    "test": {"test"},
}


@dataclass(frozen=True)
class Found:
    """The text of each split that there is, in reading order.

    Attributes
    ----------
    sources
        By the names of the splits.
    words
        A file with the words of the vocabulary; None where there is none.
    remarks
        What the user should know about it, in sentences.
    """

    sources: dict[str, Source]
    words: Path | None = None
    remarks: tuple[str, ...] = ()


def find(dataset: Dataset, path: Path, grain: Grain) -> Found:
    """The splits of a dataset at `path`.

    Any text is a file, which is cut into `PERCENT` of its bytes, or a folder where each split is a
    file with the split's name as a part of its own.  Each cut moves back to the beginning of a
    character or of a line, as `grain` needs.

    Raises
    ------
    NpxlError
        When the dataset is not there, there is nothing to read, no training text, or two files for
        one split.
    """
    match dataset.layout:
        case None if path.is_dir():
            files = _files_of_splits(path)
            return Found({name: Source((whole_file(file),)) for name, file in files.items()})
        case None:
            whole = whole_file(path)
            return Found(_cut(whole, _by_percent(whole.stop), grain))
        case OneFile() as layout:
            return _find_one_file(dataset, layout, path, grain)
        case FilePerSplit() as layout:
            return _find_files(dataset, layout, path)


def missing(dataset: Dataset, where: str) -> NpxlError:
    """That a dataset is not there, and what to put where."""
    return NpxlError(
        f"{where}, but {dataset.title} was expected as it is downloaded: {dataset.expected}. It is "
        f"to be had at {dataset.address}; docs/benchmarks.md says more. Any other text is read "
        "with --dataset text."
    )


def _find_one_file(dataset: Dataset, layout: OneFile, path: Path, grain: Grain) -> Found:
    if path.is_dir():
        inside = [path / layout.name, path / f"{layout.name}.zip"]
        path = next((file for file in inside if file.is_file()), path)
    if path.suffix.lower() == ".zip":
        path = unpacked(path, lambda name: Path(name).name == layout.name) / layout.name
    if not path.is_file():
        raise missing(dataset, f"There is no file {path}")
    whole = whole_file(path)
    full = sum(layout.lengths.values())
    if whole.stop == full:
        return Found(_cut(whole, layout.lengths, grain))
    remark = (
        f"{path} has {whole.stop:,} bytes and not the {full:,} of {dataset.title}: it is cut into "
        f"{'/'.join(map(str, PERCENT.values()))} per cent, and scores cannot be compared with "
        "published ones."
    )
    return Found(_cut(whole, _by_percent(whole.stop), grain), remarks=(remark,))


def _find_files(dataset: Dataset, layout: FilePerSplit, path: Path) -> Found:
    below = [Path(folder) for folder in ("", *layout.folders)]
    if path.suffix.lower() == ".zip" and path.is_file():
        patterns = [
            str(folder / pattern)
            for folder in below
            for patterns in layout.patterns.values()
            for pattern in patterns
        ]
        path = unpacked(path, lambda name: any(fnmatch.fnmatch(name, p) for p in patterns))
    for folder in below:
        files = {
            split: next(filter(None, (sorted((path / folder).glob(p)) for p in patterns)), [])
            for split, patterns in layout.patterns.items()
        }
        if files["train"]:
            break
    else:
        what = "is a folder without" if path.is_dir() else "is not a folder with"
        raise missing(dataset, f"{path} {what} the files of its training split")
    sources = {
        split: Source(
            tuple(map(whole_file, found)), is_shuffled=dataset.shuffled and split == "train"
        )
        for split, found in files.items()
        if found
    }
    words = [path / folder / layout.words for folder in below if layout.words is not None]
    remarks = []
    if (n_train := len(files["train"])) != layout.n_train:
        remarks.append(
            f"{path} has {n_train} of the {layout.n_train} training files of {dataset.title}, so "
            "that scores cannot be compared with published ones."
        )
    return Found(sources, next((file for file in words if file.is_file()), None), tuple(remarks))


def _by_percent(n_bytes: int) -> dict[str, int]:
    until_valid = n_bytes * PERCENT["train"] // 100
    until_test = n_bytes * (PERCENT["train"] + PERCENT["valid"]) // 100
    lengths = (until_valid, until_test - until_valid, n_bytes - until_test)
    return dict(zip(PERCENT, lengths, strict=True))


def _cut(whole: Span, lengths: Mapping[str, int], grain: Grain) -> dict[str, Source]:
    """Splits of so many bytes; each but the last ends where something of this grain does."""
    sources = {}
    start = end = 0
    for split, length in lengths.items():
        end += length
        stop = end if end == whole.stop else move_back(whole.path, end, start, grain)
        sources[split] = Source((Span(whole.path, start, stop),))
        start = stop
    return sources


def _files_of_splits(folder: Path) -> dict[str, Path]:
    try:
        files = sorted(f for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    except OSError as error:
        raise NpxlError(
            f"The folder {folder} cannot be read ({error.strerror}): check its permissions."
        ) from error
    if not files:
        raise NpxlError(
            f"The folder {folder} holds no files: pass a folder with a file such as train.txt."
        )
    found: dict[str, Path] = {}
    for file in files:
        parts = set(re.split(r"[._-]", file.name.lower()))
        for split in PERCENT:
            if not parts & _NAME_PARTS[split]:
                continue
            if split in found:
                raise NpxlError(
                    f"Both {found[split].name} and {file.name} in {folder} could be the {split} "
                    "split: keep one of them there."
                )
            if file in found.values():
                raise NpxlError(
                    f"The name of {file.name} in {folder} stands for more than one split: rename "
                    "it."
                )
            found[split] = file
    if "train" not in found:
        listing = ", ".join(f.name for f in files[:5]) + (", …" if len(files) > 5 else "")
        raise NpxlError(
            f"The folder {folder} has no training text: a file whose name has the part train, such "
            f"as train.txt, was expected, but it holds {listing}."
        )
    return {split: found[split] for split in PERCENT if split in found}
