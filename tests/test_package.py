"""The names of the package: loaded on first use, and the same for type checkers."""

import ast
import importlib.metadata
from pathlib import Path

import numpy as np
import pytest

import npxl


def test_type_checkers_see_the_names_that_there_are():
    tree = ast.parse(Path(npxl.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]  # if TYPE_CHECKING
    seen = {}
    exec(compile(ast.Module(block.body, []), "types", "exec"), seen)
    assert seen.pop("__annotations__") == {"__version__": str}
    assert seen.keys() - {"__builtins__", "load_model"} == set(npxl.__all__)
    for name in npxl.__all__:
        assert getattr(npxl, name) is seen[name]
    assert dir(npxl) == sorted({*npxl.__all__, "__version__"})


def test_the_version_is_that_of_the_installed_package(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", {"npxl": "12.3"}.__getitem__)
    assert npxl.__version__ == "12.3"


def test_what_a_prompt_shows_of_results_is_short(tmp_path):
    (tmp_path / "train.txt").write_text("abba " * 100)
    (tmp_path / "test.txt").write_text("abba\n")
    corpus = npxl.load_corpus(tmp_path, vocabulary="characters")
    assert repr(corpus) == f"Corpus({tmp_path.name}: train 500, test 5 characters, vocabulary 5)"
    config = npxl.ModelConfig(
        vocab_size=5, n_layer=1, n_head=1, d_model=2, d_head=2, d_inner=2, mem_len=3
    )
    model = npxl.TransformerXL(config)
    forward = model.forward(np.zeros((2, 4), int), np.ones((2, 4), int), model.init_memory(2))
    mean = f"{forward.nll.mean():.4g}"
    assert repr(forward) == f"SegmentForward(nll [2, 4], mean {mean} nats, memory of 3)"


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"npxl.*no attribute 'TransformerXXL'"):
        _ = npxl.TransformerXXL
