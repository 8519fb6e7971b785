"""Studies at a size that takes a moment, on real text, and what they found."""

from dataclasses import replace

import pytest
from tiny_studies import MODEL, SMALLER, TRAIN

from npxl.data import BUNDLED
from npxl.studies import STUDIES, conduct


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """The beginning of the bundled text, as a file of its own."""
    path = tmp_path_factory.mktemp("text") / "genesis.txt"
    path.write_bytes(BUNDLED["kjv"].read_bytes()[:40_000])
    return str(path)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where all studies here work, and share their models."""
    return tmp_path_factory.mktemp("studies")


@pytest.fixture
def tiny(text, monkeypatch):
    """The studies by name, with quick settings that are quicker yet."""

    def smaller(name, study):
        setting = study.quick
        if hasattr(setting, "corpus"):
            setting = replace(setting, corpus=text)
        if hasattr(setting, "model"):
            setting = replace(setting, model=MODEL, train=TRAIN)
        return replace(study, quick=replace(setting, **SMALLER.get(name, {})))

    studies = {name: smaller(name, study) for name, study in STUDIES.items()}
    for name, study in studies.items():
        monkeypatch.setitem(STUDIES, name, study)
    return studies


@pytest.fixture
def found(tiny, folder):
    """The outcome of a study by name."""
    return lambda name: conduct(tiny[name], folder, tiny[name].quick)
