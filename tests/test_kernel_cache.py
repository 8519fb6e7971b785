"""Where compiled kernels are kept, seen from fresh processes with an environment of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import npxl

PACKAGE = Path(npxl.__file__).parent

CALL = """
import numba
import numpy as np
from npxl.kernels.scatter import scatter_add

table = np.zeros((2, 1))
scatter_add(table, np.array([1, 1]), np.ones((2, 1)), 0.5)
assert table.tolist() == [[0.0], [1.0]]
assert numba.config.CACHE_DIR == EXPECTED_SETTING
print(sum(scatter_add.stats.cache_hits.values()))
"""


def run(setting="", notice=False, **environment):
    """How often a kernel was found in the cache by a process that calls it once.

    With a notice or without one that nothing can be kept.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NUMBA_", "NPXL_", "XDG_"))
    }
    finished = subprocess.run(
        [sys.executable, "-c", CALL.replace("EXPECTED_SETTING", repr(setting))],
        cwd=PACKAGE.parent,
        env={**kept, **environment},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert ("set NPXL_CACHE_DIR to a folder" in finished.stderr) == notice
    return int(finished.stdout)


def cache_files(folder):
    return [path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc")]


@pytest.mark.fault("numba #9350", "numba #9312")
def test_the_cache_lies_in_its_folder_and_nowhere_else(tmp_path):
    environment = {"NPXL_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path / "home")}
    assert run(**environment) == 0
    assert cache_files(tmp_path / "cache")
    assert not cache_files(PACKAGE)
    assert not (tmp_path / "home").exists()
    assert run(**environment) == 1


@pytest.mark.fault("numba #4908", "numba #5566", "numba #4032", "outlines #983", "pylops #777")
@pytest.mark.parametrize("variable", ["NPXL_CACHE_DIR", "HOME"])
def test_without_a_folder_to_write_to_kernels_work_all_the_same(tmp_path, variable):
    file = tmp_path / "file"
    file.write_text("a file where a folder would have to be")
    environment = {"HOME": "/nonexistent", variable: str(file / "folder")}
    assert run(notice=True, **environment) == 0
    assert not cache_files(tmp_path)
    assert not Path("/nonexistent").exists()


def test_a_setting_of_numbas_own_is_respected(tmp_path):
    folder = str(tmp_path / "numba")
    assert run(folder, NUMBA_CACHE_DIR=folder, NPXL_CACHE_DIR=str(tmp_path / "npxl")) == 0
    assert cache_files(tmp_path / "numba")
    assert not cache_files(tmp_path / "npxl")


ATTEND = """
import sys
import numpy as np
from npxl.layers.attention import attend_forward

draw = np.random.default_rng(0)
query, key, value = (draw.standard_normal((1, n, 1, 3)) for n in (9, 60, 60))
relative, u, v = (draw.standard_normal(shape) for shape in ((60, 1, 3), (1, 3), (1, 3)))
attended, cache = attend_forward(query, key, value, relative, u, v, 60)
sys.stdout.write(attended.tobytes().hex() + cache.normalizer.tobytes().hex())
"""


def test_what_is_compiled_and_what_was_kept_give_the_same_bytes(tmp_path):
    """A kernel that others call is linked into each, and may be optimised otherwise there."""
    environment = {**os.environ, "NPXL_CACHE_DIR": str(tmp_path)}
    compiled, kept = (
        subprocess.run(
            [sys.executable, "-c", ATTEND],
            cwd=PACKAGE.parent, env=environment, capture_output=True, check=True,
        ).stdout
        for _ in range(2)
    )  # fmt: skip
    assert compiled == kept
    assert len(kept) == 16 * (27 + 9)
