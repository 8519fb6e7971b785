"""docs/audits/transfoxl.md says what npxl's checks find in Hugging Face's TransfoXL.

What was measured is measured again where the extra `peers` is installed; the rest of the page is
that of the list of deviations everywhere.
"""

import ast
import re
from pathlib import Path

import pytest

from npxl.invariants import CHECKS, Case, InvariantBroken

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "audits" / "transfoxl.md"
EXAMPLE = ROOT / "examples" / "testing" / "test_transfoxl.py"


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent)


@pytest.fixture
def peers():
    pytest.importorskip("torch", reason="needs the extra peers")
    pytest.importorskip("transformers", reason="needs the extra peers")


def parts(text):
    """What stands between numbers, and the numbers; how small rounding was, the machine decides."""
    text = re.sub(r"\| (?:0|\d\S*) (?=\|)", "| holds ", text.strip())
    text = re.sub(r"on torch \d[\d.]*", "on torch", text)
    number = r"\d+\.\d+"
    words = [" ".join(part.split()) for part in re.split(number, text)]
    return words, [float(found) for found in re.findall(number, text)]


def test_the_page_says_what_is_measured(peers):
    from transfoxl_audit import page

    words, numbers = parts(PAGE.read_text("utf-8"))
    words_now, numbers_now = parts("\n".join(page()))
    assert words_now == words
    assert numbers_now == pytest.approx(numbers, rel=0.05)


def test_the_page_has_all_deviations_and_no_others():
    from transfoxl_audit import section
    from transfoxl_deviations import BY_CHECKS
    from transfoxl_measurements import MEASURED

    text = PAGE.read_text("utf-8")
    headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert headings == [each.name for each in (*BY_CHECKS, *MEASURED)]
    for deviation in (*BY_CHECKS, *MEASURED):
        for line in section(deviation, lambda _: ("", "")).splitlines():
            assert line in ("- smallest input:", "- measured:") or line in text


def test_every_check_is_on_the_page():
    rows = re.findall(r"^\| `(check_\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert rows == list(CHECKS)


@pytest.mark.parametrize(
    ("check", "options"),
    [
        ("check_window", dict(same_length=True)),
        ("check_reading_order", dict(cutoffs=[3])),
        ("check_empty_start", dict()),
        ("check_causality", dict(same_length=True, mem_len=0)),
    ],
)
def test_what_was_measured_before_is_found_by_itself(peers, check, options):
    from transfoxl_deviations import expected_failures, small_model

    from npxl.invariants.transfoxl import transfoxl

    assert check in expected_failures(**options)
    with pytest.raises(InvariantBroken):
        CHECKS[check](transfoxl(small_model(**options)), Case(lengths=(3, 3), position=4))


def test_the_example_has_at_most_ten_lines():
    tree = ast.parse(EXAMPLE.read_text("utf-8"))
    lines = {node.lineno for node in ast.walk(tree) if hasattr(node, "lineno")}
    assert len(lines) <= 10
    assert "expected_failures" in EXAMPLE.read_text("utf-8")


def test_a_model_of_another_kind_is_a_sentence():
    from npxl import NpxlError
    from npxl.invariants.transfoxl import transfoxl

    with pytest.raises(NpxlError, match=r"of type list.*TransfoXLLMHeadModel.*npxl\[peers\]"):
        transfoxl([])
