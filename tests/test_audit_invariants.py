"""Rows of an audit from named checks: what one is when a check breaks, or shows nothing."""

import math

import pytest

from npxl.audit.invariants import row
from npxl.invariants import Case, Finding, Inapplicable, InvariantBroken, Vacuous

CASES = [Case(batch_size=1, lengths=(2,), position=0, row=0, seed=seed) for seed in range(3)]


class Implementation:
    tolerance = 1e-12


def found(*outcomes):
    """The row of a check that finds these, or raises them, in one example after another."""
    rest = iter(outcomes)

    def check_made_up(implementation, case):
        outcome = next(rest)
        if isinstance(outcome, Exception):
            raise outcome
        return Finding(outcome, 1e-6, "largest difference", 10)

    return row("made up", check_made_up, Implementation(), CASES)


BROKEN = InvariantBroken("the same", "another", "token 1", "a slip")


def test_the_worst_of_the_examples_that_could_show_something():
    result = found(1e-8, Vacuous("one symbol"), 1e-7)
    assert result.passed
    assert (result.figures["figure"].value, result.figures["figure"].at_most) == (1e-7, 1e-6)
    assert result.detail == "largest difference, of 20 in 2 texts"


def test_an_example_that_breaks_it_says_how_and_claims_no_tolerance():
    result = found(1e-8, BROKEN)
    assert not result.passed
    assert result.figures["figure"].bounds == "= 0"
    assert "a slip" in result.detail
    assert str(CASES[1]) in result.detail


@pytest.mark.parametrize("figure", [1e-5, math.nan])
def test_a_finding_beyond_its_tolerance_is_wrong_wherever_it_is(figure):
    assert not found(1e-8, figure, 1e-7).passed
    assert not found(figure, 1e-8, 1e-7).passed


def test_where_no_example_shows_anything_nothing_is_right():
    result = found(*[Vacuous("one symbol")] * 3)
    assert result.applies
    assert not result.passed
    assert "check_made_up" in result.detail


def test_what_does_not_apply_is_neither_right_nor_wrong():
    result = found(Inapplicable("There is no memory."))
    assert not result.applies
    assert result.detail == "There is no memory."
