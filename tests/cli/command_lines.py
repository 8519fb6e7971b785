"""A small run by the command line, and commands as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import npxl
import npxl.audit

SMALL = [
    "--n-layer=2", "--n-head=2", "--d-model=16", "--d-head=8", "--d-inner=16", "--mem-len=8",
    "--batch-size=3", "--tgt-len=8", "--steps=30", "--lr=5e-3", "--warmup-steps=5",
    "--eval-interval=15", "--log-interval=10", "--workers=2",
]  # fmt: skip


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def record(run: str) -> dict:
    return json.loads(Path(run, "run.json").read_text())


def command(*words: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(npxl.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-m", "npxl", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=environment, **options,
    )  # fmt: skip
