"""What an audit is made of, and its gradients at a size at which every entry is checked."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from npxl import ModelConfig, NpxlError, TransformerXL
from npxl.audit import audit, runner, scaled_down, scaling
from npxl.audit.frame import Check, Figure, Result, Section
from npxl.testing.strategies import ATTN_TYPES

SEGMENTS = ["gradients/after-memory", "gradients/one-token", "gradients/first-segment"]


@pytest.mark.parametrize(
    ("figure", "holds", "bounds"),
    [
        (Figure(1.0), True, ""),
        (Figure(math.nan), True, ""),
        (Figure(1e-14, at_most=1e-13), True, "≤ 1e-13"),
        (Figure(1e-12, at_most=1e-13), False, "≤ 1e-13"),
        (Figure(math.nan, at_most=1e-13), False, "≤ 1e-13"),
        (Figure(math.nan, at_least=0.1), False, "≥ 0.1"),
        (Figure(0.5, at_least=0.1), True, "≥ 0.1"),
        (Figure(0.05, at_least=0.1), False, "≥ 0.1"),
        (Figure(0.0, at_most=0, at_least=0), True, "= 0"),
        (Figure(2.0, at_least=1.9, at_most=2.1), True, "≥ 1.9 ≤ 2.1"),
    ],
)
def test_a_figure_and_its_bounds(figure, holds, bounds):
    assert (figure.holds, figure.bounds) == (holds, bounds)


def checked(monkeypatch, *runs, only=()):
    """The report of an audit of nothing but these checks, and what it prints in 80 columns."""
    checks = tuple(Check(f"check-{n}", "", "", run) for n, run in enumerate(runs))
    monkeypatch.setattr(runner, "SECTIONS", (Section("made-up", "Made up", "", checks),))
    console = Console(record=True, width=80, file=open("/dev/null", "w"))  # noqa: SIM115
    report = audit(ModelConfig(), 3, console, only=only, command=["npxl", "audit", "a run"])
    text = console.export_text()
    assert max(map(len, text.splitlines()[3:-1])) <= 80
    return report, text


def test_rows_are_printed_and_the_wrong_ones_said_again_with_the_line_that_finds_them(monkeypatch):
    def good(subject, progress):
        yield Result.of("one", 1e-15, at_most=1e-13)
        yield Result.nothing("two", "There is no window.")

    def bad(subject, progress):
        progress(1, 2)
        yield Result("three", {"a": Figure(1.0), "b": Figure(0.25, at_most=1e-13)}, "At (1, 2).")
        yield Result("four" * 20, {"a": Figure(1.0), "b": Figure(0.0, at_most=1e-13)})

    report, text = checked(monkeypatch, good, bad)
    assert not report.passed
    assert [outcome.name for outcome in report.failures] == ["made-up/check-1"]
    lines = [line.rstrip() for line in text.splitlines()]
    assert any(line.split() == ["one", "1.0e-15", "≤", "1e-13", "ok"] for line in lines)
    assert "    There is no window." in lines
    assert any(line.startswith("three") and line.endswith("0.25 WRONG") for line in lines)
    assert "    b 0.25, expected ≤ 1e-13" in lines
    assert "FAILED: made-up/check-1 (three)." in lines
    again = "npxl audit 'a run' --seed 3 --only made-up/check-1"
    assert again in lines
    assert lines[-1].startswith("seed 3; npxl ") or lines[-2].startswith("seed 3; npxl ")

    alone, _ = checked(monkeypatch, good, bad, only=["made-up/check-0"])
    assert alone.verdict == "Passed: 1 figure in 1 check; nothing to check in 1 row."
    values = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert values["checks"][1]["reproduce"] == again
    assert values["checks"][1]["rows"][0]["figures"]["b"] == {
        "value": 0.25, "at_most": 1e-13, "at_least": None,
    }  # fmt: skip
    assert [row["passed"] for row in values["checks"][0]["rows"]] == [True, None]


def test_a_check_that_stops_or_finds_nothing_is_wrong_and_the_others_go_on(monkeypatch):
    def stops(subject, progress):
        yield Result.of("one", 0, at_most=0)
        raise ZeroDivisionError("by nothing")

    def nothing(subject, progress):
        return ()

    def good(subject, progress):
        yield Result.of("two", 0, at_most=0)

    report, text = checked(monkeypatch, stops, nothing, good)
    assert [outcome.passed for outcome in report.outcomes] == [False, False, True]
    assert "ZeroDivisionError: by nothing" in report["made-up/check-0"]["stopped"].detail
    assert "(stopped)" in report.verdict
    assert "The check found nothing." in text


def test_on_a_terminal_there_is_a_bar_until_a_check_is_done(monkeypatch):
    def slow(subject, progress):
        for n in range(3):
            progress(n, 3)
            yield Result.of(f"row {n}", 0, at_most=0)

    section = Section("made-up", "Made up", "", (Check("slow", "", "", slow),))
    monkeypatch.setattr(runner, "SECTIONS", (section,))
    file = io.StringIO()
    report = audit(ModelConfig(), console=Console(force_terminal=True, width=80, file=file))
    assert report.passed
    shown = file.getvalue()
    assert "67%" in shown
    assert all(f"row {n}" in shown for n in range(3))


def test_a_reader_that_has_enough_is_no_failure(monkeypatch):
    def gone(subject, progress):
        raise BrokenPipeError
        yield

    with pytest.raises(BrokenPipeError):
        checked(monkeypatch, gone)


def test_a_check_that_is_not_there_is_an_error_that_names_those_that_are():
    with pytest.raises(NpxlError, match="gradients/first-segment"):
        audit(ModelConfig(), only=["gradients/nothing"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed is -1, but it must be a whole number of at least 0"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"seed": None}, "seed is None"),
        ({"config": "tiny"}, "config is of type str, but it must be a npxl.ModelConfig or"),
        ({"config": None}, "config is None"),
        ({"only": "structure"}, r"only is 'structure', but .* list of names: pass \['structure'\]"),
        ({"only": None}, "only is None, but it must be a list of names"),
        ({"only": ["made-up", 1]}, "only is 1, but an audit has no such section"),
    ],
)
def test_a_wrong_argument_is_an_error_before_the_first_check(monkeypatch, arguments, message):
    def never(subject, progress):
        raise AssertionError
        yield

    section = Section("made-up", "Made up", "", (Check("never", "", "", never),))
    monkeypatch.setattr(runner, "SECTIONS", (section,))
    with pytest.raises(NpxlError, match=message):
        audit(**{"config": ModelConfig(), **arguments})


def test_names_may_come_one_by_one_and_a_seed_from_numpy(monkeypatch):
    def good(subject, progress):
        yield Result.of("one", 0, at_most=0)

    checks = tuple(Check(name, "", "", good) for name in ("first", "second"))
    monkeypatch.setattr(runner, "SECTIONS", (Section("made-up", "Made up", "", checks),))
    report = audit(ModelConfig(), np.int64(3), only=iter(["made-up/second"]))
    assert [outcome.name for outcome in report.outcomes] == ["made-up/second"]
    assert json.loads(json.dumps(report.as_json()))["seed"] == 3


def test_a_check_draws_the_same_alone_as_among_others(monkeypatch):
    def first(subject, progress):
        yield Result.of("one", subject.draw("first").random())

    def second(subject, progress):
        yield Result.of("one", subject.draw("second").random())

    both, _ = checked(monkeypatch, first, second)
    alone, _ = checked(monkeypatch, first, second, only=["made-up/check-1"])
    assert alone["made-up/check-1"] == both["made-up/check-1"]
    assert both["made-up/check-0"] != both["made-up/check-1"]


def gradient_checks(report):
    """What was found for each tensor at each segment whose every entry was checked."""
    for name in SEGMENTS:
        for result in report[name].values():
            if result.name != "nearest kink":
                check, _ = result.data
                yield check


def test_audit_of_a_large_configuration():
    config = ModelConfig(
        vocab_size=10_000, n_layer=12, d_model=512, mem_len=2100, attn_window=2101,
        clamp_len=820, pre_lnorm=True, dropout=0.1,
    )  # fmt: skip
    console = Console(record=True, width=150, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    report = audit(config, console=console, only=SEGMENTS)
    assert report.passed
    assert "n_layer 12 to 2" in console.export_text()
    for check in gradient_checks(report):
        assert check.entries == math.prod(check.shape)
    small = report.subject.small
    assert small.attn_window == small.mem_len + 1


@pytest.mark.parametrize(
    ("options", "projections"),
    [
        (dict(cutoffs=(100, 1000), tie_weight=False), set()),
        (dict(cutoffs=(100, 1000, 5000), div_val=4, tie_projs=(False, True, True, False)), {0, 3}),
        (dict(d_embed=16, div_val=1), {0}),
    ],
)
def test_an_audit_of_clusters(monkeypatch, options, projections):
    """Every tensor of both ends has a gradient in one segment or another."""
    sizes = {"n_head": 1, "d_model": 4, "d_head": 2, "d_inner": 3}
    for name, size in sizes.items():
        monkeypatch.setitem(scaling._LARGEST, name, size)  # sooner done
    config = ModelConfig(vocab_size=10_000, n_layer=1, **options)
    report = audit(config, only=["gradients"])
    assert report.passed, report.verdict
    small = report.subject.small
    assert len(small.cutoffs) == len(config.cutoffs)
    found = {check.name for check in gradient_checks(report) if check.largest > 0}
    shapes = TransformerXL.parameter_shapes(small)
    assert {name for name in shapes if name.startswith(("embedding", "softmax"))} <= found
    assert {name for name in found if name.startswith("softmax.") and "projection" in name} == {
        f"softmax.{i}.projection" for i in projections
    }


@pytest.mark.parametrize("check", ["one-token", "larger"])
def test_gradients_that_are_all_zero_are_nothing_to_check(check):
    """A single symbol is certain."""
    report = audit(ModelConfig(vocab_size=1, n_layer=1), only=[f"gradients/{check}"])
    assert report.passed
    (row,) = report[f"gradients/{check}"].values()
    assert not row.applies


def test_gradients_that_vanish_are_right_along_a_direction():
    """Where a query sees itself alone, gradients of the scores are rounding."""
    report = audit(ModelConfig(n_layer=1, attn_window=1), only=["gradients/larger"])
    assert report.passed, report.verdict


@pytest.mark.parametrize("attn_type", ATTN_TYPES[1:])
def test_an_audit_of_every_encoding(monkeypatch, attn_type):
    sizes = {"vocab_size": 4, "n_head": 1, "d_model": 4, "d_head": 2, "d_inner": 3}
    for name, size in sizes.items():
        monkeypatch.setitem(scaling._LARGEST, name, size)  # sooner done
    config = ModelConfig(n_layer=1, attn_type=attn_type, clamp_len=100, pre_lnorm=True)
    report = audit(config, only=["gradients"])
    assert report.passed, report.verdict
    small = report.subject.small
    assert small.attn_type == attn_type
    assert small.clamp_len < small.mem_len  # distances share a row


def test_scaling_down_keeps_the_form():
    config = ModelConfig(mem_len=100, attn_window=200, untie_r=True, initial_memory="zeros")
    small = scaled_down(config)
    assert small.untie_r
    assert small.initial_memory == "zeros"
    assert small.attn_window == small.mem_len + 2
    assert scaled_down(ModelConfig(n_layer=1, mem_len=0)).mem_len == 0
