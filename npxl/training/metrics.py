"""The metrics of a run: a file with one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npxl.files import atomic_write, full_disk_is_an_error_of_the_user
from npxl.training.checkpoints import Progress

_DIGITS = 6
"""Of numbers that are not whole."""


class MetricsFile:
    """metrics.jsonl, open for appending; a context manager.

    Opening it cuts off what a run that was killed wrote after its last checkpoint, because the
    steps from there on are made, and written, again.

    Parameters
    ----------
    path
        The file; it need not exist.
    progress
        Of the checkpoint that the run continues from.

    Attributes
    ----------
    elapsed
        Seconds of training up to the last line that was kept.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self.elapsed = self._cut(progress)
        self._file = open(path, "ab")  # noqa: SIM115  (closed by __exit__)

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def append(self, record: dict[str, Any]) -> None:
        """Add one line, visible to readers at once, with numbers that are short enough to read.

        Raises NpxlError when the disk is full.
        """
        record = {name: _rounded(value) for name, value in record.items()}
        with full_disk_is_an_error_of_the_user(self._path.parent):
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()

    def _cut(self, progress: Progress) -> float:
        if not self._path.exists():
            return 0.0
        contents = self._path.read_bytes()
        elapsed, kept = 0.0, 0
        for line in contents.splitlines(keepends=True):
            try:
                record = json.loads(line)
                if not line.endswith(b"\n") or _comes_after(record, progress):
                    break
                elapsed = float(record["elapsed"])
            except (ValueError, KeyError, TypeError):
                break  # torn: the machine stopped while it was written
            kept += len(line)
        if kept < len(contents):
            with atomic_write(self._path) as file:
                file.write(contents[:kept])
        return elapsed


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file, also while a run appends to it."""
    lines = Path(path).read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _comes_after(record: dict[str, Any], progress: Progress) -> bool:
    if record["split"] == "valid":
        return bool(record["step"] > progress.evaluated)
    return bool(record["step"] > progress.step)
