"""What figures depend on: named, and told apart."""

import shutil
from pathlib import Path

import npxl.environment
from npxl.environment import digest_of_sources, environment


def test_an_environment_names_what_computes():
    found = environment()
    assert list(found) == ["npxl", "numpy", "numba", "python", "platform", "processor"]
    assert all(found.values())
    assert found["processor"].endswith(("256 bits", "512 bits"))


def test_other_sources_have_another_digest(tmp_path, monkeypatch):
    package = tmp_path / "npxl"
    shutil.copytree(Path(npxl.environment.__file__).parent, package)

    def digest():
        monkeypatch.setattr(npxl.environment, "__file__", str(package / "environment.py"))
        return digest_of_sources.__wrapped__()

    before = digest()
    assert before == digest_of_sources()
    shutil.rmtree(package / "kernels" / "__pycache__", ignore_errors=True)
    assert digest() == before
    memory = package / "memory.py"
    text = memory.read_text()
    memory.write_text(text.replace("0", "1", 1))
    changed = digest()
    memory.write_text(text)
    memory.rename(package / "memories.py")
    assert len({before, changed, digest()}) == 3
