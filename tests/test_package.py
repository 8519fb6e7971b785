"""The names of the package: loaded on first use, and the same for type checkers."""

import ast
from pathlib import Path

import pytest

import npxl


def test_type_checkers_see_the_names_that_there_are():
    tree = ast.parse(Path(npxl.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]  # if TYPE_CHECKING
    seen = {}
    exec(compile(ast.Module(block.body, []), "types", "exec"), seen)
    assert seen.keys() - {"__builtins__", "load_model"} == set(npxl.__all__)
    for name in npxl.__all__:
        assert getattr(npxl, name) is seen[name]
    assert set(npxl.__all__) <= set(dir(npxl))


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"npxl.*no attribute 'TransformerXXL'"):
        _ = npxl.TransformerXXL
