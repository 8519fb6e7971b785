"""What makes tests of the checks: their names, skips and expected failures, and what is missing."""

import importlib
import importlib.util
import sys

import numpy as np
import pytest
from toy_models import Indifferent, WindowedLinear

from npxl import NpxlError
from npxl.invariants import CHECKS, Inapplicable, InvariantBroken, Vacuous, capabilities
from npxl.invariants.findings import Case, Finding, check
from npxl.testing import BoundCheck, NothingShown, parametrize, stream_machine

PREAMBLE = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import npxl.testing
from toy_models import WindowedLinear

class OneKey(WindowedLinear):
    def log_probs(self, inputs, state):
        log_p, _ = super().log_probs(inputs, state[:, :0])
        return log_p, super().log_probs(inputs, state)[1]

class Mute(WindowedLinear):
    select = None
"""


@pytest.fixture
def run(pytester, request):
    """The outcomes of a test file, and its output."""

    def outcomes(body, *options):
        pytester.makepyfile(PREAMBLE.format(tests=str(request.path.parent)) + body)
        result = pytester.runpytest_inprocess("-p", "no:xdist", "-p", "no:sybil", "-rA", *options)
        return result.parseoutcomes(), result.stdout

    return outcomes


def test_three_lines_test_an_implementation(run):
    outcomes, lines = run("""
@npxl.testing.parametrize(
    Mute(), max_examples=5, expected_failures={"check_stop_gradient": "no parameter in memory"}
)
def test_invariants(check, case):
    check(case)
""")
    assert outcomes == {"passed": len(CHECKS) - 9, "skipped": 8, "xfailed": 1}
    lines.fnmatch_lines(["*PASSED*test_invariants?check_causality?"])
    lines.fnmatch_lines(["*SKIPPED*check_select needs the capability select*"])


def test_a_failure_says_what_is_expected_found_and_usual(run):
    outcomes, lines = run("""
@npxl.testing.parametrize({"narrow": OneKey}, checks=["check_exact_reach"], max_examples=5)
def test_invariants(check, case):
    check(case)
""")
    assert outcomes == {"failed": 1}
    lines.fnmatch_lines([
        "*InvariantBroken: check_exact_reach at token *, in segments of *",
        "*expected: token * depends on token *",
        "*found: *",
        "*usually: *",
        "*case=Case(*",
        "FAILED*test_invariants?narrow-check_exact_reach?*",
    ])  # fmt: skip


def test_expected_failures_must_fail(run):
    outcomes, lines = run("""
@npxl.testing.parametrize(
    {"narrow": OneKey(), "right": WindowedLinear()},
    checks=["check_incremental", "check_causality"],
    expected_failures={
        "narrow-check_incremental": "no memory",
        "check_causality": "it was so in 2019",
    },
    max_examples=5,
)
def test_invariants(check, case):
    check(case)
""")
    assert outcomes == {"xfailed": 1, "passed": 1, "failed": 2}
    lines.fnmatch_lines(["*XFAIL*narrow-check_incremental*no memory*"])
    lines.fnmatch_lines(["*XPASS(strict)*it was so in 2019*"])


def test_an_implementation_is_made_once_for_all_checks(run):
    outcomes, _ = run("""
made = []

@npxl.testing.parametrize(
    lambda: made.append(WindowedLinear()) or made[-1],
    checks=["check_causality", "check_determinism"],
)
def test_invariants(check, case):
    check(case)
    assert len(made) == 1

def test_it_is_that_one():
    assert len(made) == 1
""")
    assert outcomes == {"passed": 3}


def test_an_error_is_no_expected_failure(run):
    outcomes, lines = run("""
class Unfinished(WindowedLinear):
    def log_probs(self, inputs, state):
        raise ValueError("not yet")

@npxl.testing.parametrize(
    Unfinished(), checks=["check_window"], expected_failures={"check_window": "sees fewer keys"}
)
def test_invariants(check, case):
    check(case)
""")
    assert outcomes == {"failed": 1}
    lines.fnmatch_lines(["*ValueError: not yet*"])


def test_names_that_are_not_there():
    with pytest.raises(NpxlError, match="no check 'check_windows'; there are check_probabilities"):
        parametrize(WindowedLinear(), checks=["check_windows"])
    with pytest.raises(NpxlError, match="expected_failures names b-check_window, but the checks"):
        parametrize({"a": WindowedLinear()}, expected_failures={"b-check_window": "why"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "is None, but it must be an implementation, which has log_probs"),
        (({"mine": 3},), "is of type int, but it must be an implementation"),
        (({},), "implementations is empty"),
        ((WindowedLinear(), "check_window"), "checks is 'check_window', but it must be a list"),
        ((WindowedLinear(), CHECKS["check_window"]), "checks is of type function, but it must be"),
        ((WindowedLinear(), []), "checks is empty"),
        ((WindowedLinear(), [3]), "A check is of type int, but it must be a name, or a function"),
    ],
)
def test_what_cannot_be_checked_is_an_error_before_any_test_runs(arguments, message):
    with pytest.raises(NpxlError, match=message):
        parametrize(*arguments)


def test_what_makes_no_stream_is_an_error_before_any_test_runs():
    with pytest.raises(NpxlError, match="make is of type WindowedLinear, but it must be a functi"):
        stream_machine(WindowedLinear())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(lengths=()), r"lengths is \(\), but it must be a list of one or more whole numbers"),
        (dict(lengths=(3, 0)), r"lengths is \(3, 0\), but .* each of them at least 1"),
        (dict(lengths=3), "lengths is 3, but it must be a list of whole numbers"),
        (dict(batch_size=0), "batch_size is 0, but it must be a whole number of at least 1"),
        (dict(position=-1), "position is -1, but it must be a whole number of at least 0"),
        (dict(row=-1), "row is -1, but it must be a whole number of at least 0"),
        (dict(seed=-1), "seed is -1, but it must be a whole number of at least 0"),
    ],
)
def test_a_case_that_is_none_is_an_error_where_it_is_written(options, message):
    with pytest.raises(NpxlError, match=message):
        Case(**options)


def test_a_check_that_never_shows_anything_fails():
    bound = BoundCheck(CHECKS["check_causality"], Indifferent)
    for seed in range(49):
        with pytest.raises(Vacuous):
            bound(Case(seed=seed))
    with pytest.raises(NothingShown, match="none of 50 cases could have shown a violation"):
        bound(Case(seed=49))


def test_checks_of_ones_own():
    @check("memory", "losses")
    def check_mine(implementation, case):
        """Mine."""
        if case.seed:
            raise InvariantBroken("this", "that", "here", "a fault")
        return Finding(0.0, 1.0, "something", 3)

    assert check_mine.needs == ("memory", "losses")
    assert check_mine(WindowedLinear(), Case()).check == "check_mine"
    with pytest.raises(InvariantBroken) as raised:
        check_mine(WindowedLinear(), Case(seed=1))
    assert str(raised.value) == (
        "check_mine at here\n  expected: this\n  found:    that\n  usually:  a fault"
    )
    bare = WindowedLinear()
    bare.memory = None
    assert "memory" not in capabilities(bare)
    with pytest.raises(Inapplicable, match="check_mine needs the capability memory, which"):
        check_mine(bare, Case())


def test_every_check_says_what_it_proves_and_what_breaks_it():
    for name, each in CHECKS.items():
        assert name == each.__name__
        summary, _, rest = each.__doc__.partition("\n\n")
        assert summary.endswith((".", ":")), name
        assert "Broken by" in rest, name


def test_a_stateful_failure_is_a_program():
    class Mixed(WindowedLinear):
        def select(self, state, rows):
            return np.roll(state[rows], 1, axis=0)

    machine = stream_machine(Mixed, max_examples=50)
    with pytest.raises(InvariantBroken, match="alone, from its beginning") as raised:
        machine.TestCase("runTest").runTest()
    assert "state.select(rows=[" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("package", ["hypothesis", "pytest"])
def test_without_hypothesis_the_extra_is_named(monkeypatch, package):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find_spec(name)
    )
    for name in [name for name in sys.modules if name.startswith("npxl.testing")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pip install 'npxl\[test\]'") as raised:
        importlib.import_module("npxl.testing")
    assert isinstance(raised.value, NpxlError)
    assert package in str(raised.value)


def test_vacuous_cases_are_no_errors():
    assert not issubclass(Vacuous, AssertionError)
    assert not issubclass(Inapplicable, AssertionError)
