"""A folder with a text and a run that was trained on it."""

from __future__ import annotations

import shutil

import pytest
from command_lines import SMALL
from small_runs import write_text

from npxl.cli import main


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with text.txt and runs/small, trained on it by the command line."""
    folder = tmp_path_factory.mktemp("trained")
    text = write_text(folder / "text.txt")
    assert main(["train", str(text), "--out", str(folder / "runs" / "small"), *SMALL]) == 0
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """A copy of that folder, as the working folder."""
    shutil.copytree(trained, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"
