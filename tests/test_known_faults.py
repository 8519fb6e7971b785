"""The page of known faults and the tests that name them agree."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "known_faults.md"
NOT_APPLICABLE = "Not applicable: "


def rows_of_the_page():
    """The sources of each row, what npxl does, and the tests."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("|")][2:]
    for source, _, ours, tests in table:
        sources = [each.strip() for each in source.split(",")]
        yield sources, ours.strip(), re.findall(r"`(test_\w+\.py::test_\w+)`", tests)


def marks_of_the_tests():
    """Every test function, and the sources in its marks `fault`."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [
                    mark
                    for mark in node.decorator_list
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault"
                ]
                found[f"{path.name}::{node.name}"] = [
                    ast.literal_eval(argument) for mark in marks for argument in mark.args
                ]
    return found


def test_every_fault_has_a_test_or_a_reason_why_not():
    rows = list(rows_of_the_page())
    assert rows
    for sources, ours, tests in rows:
        assert bool(tests) != ours.startswith(NOT_APPLICABLE), sources
    everything = [source for sources, _, _ in rows for source in sources]
    assert all(everything)
    assert len(everything) == len(set(everything))


def test_the_marks_are_those_of_the_page():
    marks = marks_of_the_tests()
    named = {}
    for sources, _, tests in rows_of_the_page():
        for test in tests:
            assert test in marks
            named.setdefault(test, set()).update(sources)
    assert {test: set(sources) for test, sources in marks.items() if sources} == named
    assert all(len(sources) == len(set(sources)) for sources in marks.values())
