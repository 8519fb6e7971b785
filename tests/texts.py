"""Texts that tests read: real ones where they are, and files written for the occasion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[1] / ".." / "shared" / "data"
LINE = "In the beginning God created the heaven and the earth, as it is written. é\n"
DATA = Path(os.environ.get("NPXL_TEST_DATA") or BESIDE)


def real(name):
    """A benchmark's text, which this repository may not contain.

    It is looked for in the folder that the environment variable NPXL_TEST_DATA names, or else in
    ../shared/data beside the repository; where it is missing, the test is skipped.
    """
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not at {DATA}, the folder of NPXL_TEST_DATA")
    return path


def written(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    return path


def splits_of(corpus):
    """Those that there are."""
    return [split for split in (corpus.train, corpus.valid, corpus.test) if split is not None]


def entries(cache):
    """Names of all files in npxl's cache."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


only_on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")


def memory_growth(statement, small, large):
    """By how many KiB the most memory ever used grows from one `path` to another, in a process."""
    program = (
        "import re, sys\n"
        "from npxl import load_corpus\n"
        "def most():\n"
        "    return int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        "def use(path):\n"
        f"    {statement}\n"
        "    return most()\n"
        "print(-use(sys.argv[1]) + use(sys.argv[2]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(small), str(large)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    return int(done.stdout)
