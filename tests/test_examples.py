"""The scripts in examples/ run, and do what they say."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from npxl import ModelConfig, TrainConfig
from npxl.config import from_dict

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
TESTS = sorted((EXAMPLES[0].parent / "testing").glob("test_*.py"))


@pytest.mark.fault("HF #29650")
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_example_runs(script, tmp_path):
    finished = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(script.parent.parent), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout


@pytest.mark.parametrize("script", TESTS, ids=lambda script: script.stem)
def test_example_of_tests_passes(script):
    """That of TransfoXL with its deviations as expected failures, each of which has to fail."""
    pytest.importorskip("torch", reason="needs the extra peers")
    pytest.importorskip("transformers", reason="needs the extra peers")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider",
         "--override-ini=addopts=", str(script)],
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": str(script.parent.parent.parent)},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout
    assert " passed" in finished.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES[0].parent.glob("*.toml")), ids=lambda p: p.stem)
def test_example_configuration_is_one(path):
    options = tomllib.loads(path.read_text(encoding="utf-8"))
    model_fields = {field.name for field in dataclasses.fields(ModelConfig)}
    model = {name: value for name, value in options.items() if name in model_fields}
    train = {name: value for name, value in options.items() if name not in model_fields}
    assert model
    from_dict(ModelConfig, model)
    from_dict(TrainConfig, train)  # NpxlError for a field that it does not have
