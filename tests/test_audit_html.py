"""The page of an audit: in one file, for any browser, with every number."""

import dataclasses
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from npxl import ModelConfig, NpxlError, TransformerXL
from npxl.audit import audit, html, runner, scaling
from npxl.audit.frame import Check, Figure, Result, Section
from npxl.audit.terminal import number
from npxl.page.pictures import Picture, svg
from npxl.page.prose import mathml, paragraphs, prose

VOID = {"meta", "br", "link", "img", "input", "hr", "use", "path"}


class Outline(HTMLParser):
    """Elements of a page: that each is closed, and what they say."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def report():
    """Of the quickest sections that have pictures."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in {"n_head": 1, "d_model": 4, "d_head": 2, "d_inner": 3}.items():
            patch.setitem(scaling._LARGEST, name, size)  # sooner done
        only = ["gradients/one-token", "structure/adjoint", "truncation"]
        yield audit(ModelConfig(vocab_size=4), seed=5, only=only)


@pytest.fixture(scope="module")
def page(report):
    return html.to_html(report, "the configuration <a>")


def test_every_number_is_on_the_page(report, page):
    text = "".join(Outline(page).text)
    for outcome in report.outcomes:
        assert outcome.check.name in text
        for result in outcome.results:
            assert result.name in text
            assert result.detail in text
            for name, figure in result.figures.items():
                assert name in text
                assert number(figure.value) in text
                assert f'title="{figure.value}"' in page
    for version in report.environment.values():
        assert version in text
    assert "npxl audit --seed 5" in text
    assert "the configuration <a>" in text
    for field in dataclasses.fields(report.subject.config):
        assert field.name in text


def test_nothing_is_fetched_and_nothing_is_run(page):
    outline = Outline(page)
    assert not outline.of("script")
    assert not outline.of("link")
    for tag, attributes in outline.elements:
        for name in ("src", "href", "xlink:href", "data", "action"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert "url(http" not in page
    assert "@import" not in page


def test_links_lead_somewhere_and_pictures_have_words(page):
    outline = Outline(page)
    names = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    for attributes in outline.of("a"):
        assert attributes["href"][1:] in names
    pictures = [attributes for attributes in outline.of("svg") if attributes.get("role") == "img"]
    assert len(pictures) == 3
    assert all(len(attributes["aria-label"]) > 40 for attributes in pictures)
    headings = [n for n in names if n.count("/") == 1 or n in ("gradients", "structure")]
    assert len(headings) == len(set(headings))
    assert outline.of("html") == [{"lang": "en"}]
    assert outline.of("math")


def test_pictures_take_the_colours_of_the_page():
    def draw(figure):
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="C1")
        axes.set_xlabel("a label")

    drawn = svg(Picture("", "", "a <line> & more", draw))
    assert "var(--series-1)" in drawn
    assert "currentColor" in drawn
    assert "#010101" not in drawn
    assert "#a0000" not in drawn
    assert 'aria-label="a &lt;line&gt; &amp; more"' in drawn
    assert 'id="figure_1"' not in drawn
    assert drawn == svg(Picture("", "", "a <line> & more", draw))


def test_text_with_equations_and_code():
    text = prose("If $a < b$ then `f(x)` & <so on>")
    assert text.startswith("If <math ")
    assert 'aria-label="a &lt; b"' in text
    assert "<code>f(x)</code> &amp; &lt;so on&gt;" in text
    assert 'display="block"' in mathml("x^2", display=True)
    assert paragraphs("one\n\ntwo") == "<p>one</p>\n<p>two</p>"


def failing(monkeypatch, run):
    section = Section("made-up", "Made <up>", "Is $x$.", (Check("a-check", "", "", run),))
    monkeypatch.setattr(runner, "SECTIONS", (section,))
    return audit(ModelConfig(), 3, command=["npxl", "audit", "a run"])


def test_gradients_that_are_no_numbers_have_a_page_too(monkeypatch):
    right = TransformerXL.backward

    def spoiled(self, *arguments):
        grads = right(self, *arguments)
        grads.flat[...] = math.nan
        return grads

    for name, size in {"n_layer": 1, "n_head": 1, "d_model": 4, "d_head": 2, "d_inner": 3}.items():
        monkeypatch.setitem(scaling._LARGEST, name, size)
    monkeypatch.setattr(TransformerXL, "backward", spoiled)
    only = ["gradients/one-token", "truncation/stop-gradient", "truncation/left-out"]
    text = html.to_html(audit(ModelConfig(vocab_size=3), only=only))
    assert len(Outline(text).of("svg")) >= 2
    assert "<title>FAILED" in text


def test_a_failure_is_at_the_top_with_the_line_that_shows_it(monkeypatch):
    def run(subject, progress):
        yield Result.of("<b>", math.nan, at_most=1e-13, detail="At <here>.")
        yield Result("two", {"leak": Figure.zero(1e-300), "flow": Figure(0.5)})
        yield Result.nothing("three", "There is none.")

    text = html.to_html(failing(monkeypatch, run))
    outline = Outline(text)
    words = "".join(outline.text)
    assert "FAILED: made-up/a-check (<b>, two)." in words
    again = "npxl audit 'a run' --seed 3 --only made-up/a-check"
    assert words.count(again) == 2
    assert words.index(again) < words.index("What was checked")
    assert "1.0e-300" in words
    assert "nothing to check" in words
    assert {"open": None} in outline.of("details")
    assert not outline.of("b")


def test_the_report_replaces_a_report_and_nothing_else(monkeypatch, tmp_path):
    def run(subject, progress):
        yield Result.of("one", 0.0, at_most=0)

    report = failing(monkeypatch, run)
    path = tmp_path / "audit.html"
    html.write_html(report, path)
    first = path.read_text()
    html.write_html(report, path, "again")
    assert first != path.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["audit.html"]

    path.write_text("<html>my own</html>")
    for target, message in (
        (path, "is no report"),
        (tmp_path, "is no report"),
        (tmp_path / "missing" / "audit.html", "is no folder"),
    ):
        with pytest.raises(NpxlError, match=message):
            html.write_html(report, target)
    assert path.read_text() == "<html>my own</html>"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_said_before(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(NpxlError, match="cannot be written"):
        html.check_target(tmp_path / "audit.html")


def test_the_nearest_to_its_limit(monkeypatch):
    def run(subject, progress):
        yield Result.of("one", 1e-14, at_most=1e-13)
        yield Result.of("two", 3e-9, at_most=1e-7)
        yield Result.of("three", 5e-14, at_most=1e-13)

    words = "".join(Outline(html.to_html(failing(monkeypatch, run))).text)
    assert re.search(r"3 rows, nearest to its limit: 5\.0e-14 of 1e-13", words)


def test_what_is_not_a_number_is_nearest_to_its_limit(monkeypatch):
    def run(subject, progress):
        for name, value in (("one", 5e-14), ("two", math.nan), ("three", 1e-12)):
            yield Result.of(name, value, at_most=1e-13)

    words = "".join(Outline(html.to_html(failing(monkeypatch, run))).text)
    assert "3 rows, nearest to its limit: - of 1e-13" in words


def test_rows_without_figures_are_in_the_table_of_the_others(monkeypatch):
    def run(subject, progress):
        yield Result.nothing("none", "Nothing.")
        for name in ("one", "two"):
            yield Result(name, {"a": Figure(1.0, at_most=2), "b": Figure(1.0)})
            yield Result.nothing(f"not {name}", "Nothing.")
        yield Result.of("three", 1.0, at_most=2)

    text = html.to_html(failing(monkeypatch, run))
    rows = text[text.index("Rows of made-up/a-check") :]
    assert rows.count("<table>") == 2
    assert [int(n) for n in re.findall(r'<td colspan="(\d)"', rows)] == [3, 3, 3]


def test_equations_have_space_where_latex_has():
    markup = mathml(r"a \Longrightarrow \log p : \max x_{i}")
    assert "<mo>&#x027F9;</mo>" in markup
    assert ">log</mo>" in markup
    assert "<mo>:</mo>" in markup
    assert "<mi>a</mi>" in markup


def test_templates_are_installed():
    folder = Path(html.__file__).parents[1] / "page" / "templates"
    settings = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert "page/templates/*" in settings
    assert {path.name for path in folder.iterdir()} >= {"page.html", "audit.html"}
