"""All checks as one parametrised test."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npxl.errors import NpxlError, described
from npxl.invariants import (
    CHECKS,
    Case,
    Check,
    Finding,
    Implementation,
    Inapplicable,
    InvariantBroken,
    Vacuous,
)
from npxl.testing.strategies import cases as all_cases

Made = Implementation | Callable[[], Implementation]
"""An implementation, or what makes it when the first test needs it."""

_ENOUGH = 50
"""Cases of which one at least must be able to show a violation, and of each tensor."""


class NothingShown(AssertionError):
    """No case could have shown that the invariant is broken: the check says nothing."""


class BoundCheck:
    """A check of one implementation, as a test calls it.

    Parameters
    ----------
    check
        One of `CHECKS`, or another.
    made
        What is checked, or what makes it at the first call.
    """

    def __init__(self, check: Check[Any], made: Made) -> None:
        self.check = check
        self._make = _maker(made)
        self._n_shown = self._n_vacuous = 0
        self._never_known: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"<{self.check.__name__}>"

    @property
    def implementation(self) -> Implementation:
        """What is checked."""
        return self._make()

    def __call__(self, case: Case) -> Finding:
        """Check one case; skip the test where the check is not applicable.

        Raises
        ------
        InvariantBroken
            When the invariant does not hold.
        Vacuous
            When this case could not have shown that, and Hypothesis draws none in its place.
        NothingShown
            When none of many cases could have shown that, or not of all tensors.
        """
        try:
            finding = self.check(self.implementation, case)
        except Inapplicable as reason:
            pytest.skip(str(reason))
        except Vacuous as reason:
            self._n_vacuous += 1
            if self._n_shown == 0 and self._n_vacuous >= _ENOUGH:
                raise NothingShown(
                    f"{self.check.__name__}: none of {_ENOUGH} cases could have shown a "
                    f"violation. {reason}"
                ) from reason
            if hypothesis.currently_in_test_context():
                hypothesis.reject()  # so that another case is drawn
            raise
        self._n_shown += 1
        unknown = frozenset(finding.unknown)
        self._never_known = unknown & (unknown if self._never_known is None else self._never_known)
        if self._never_known and self._n_shown >= _ENOUGH:
            raise NothingShown(
                f"{self.check.__name__}: in none of {_ENOUGH} cases was the derivative of "
                f"{', '.join(sorted(self._never_known))} known well enough to say whether the "
                "gradient is right: draw parameters with a standard deviation of about 0.4, and in "
                "float64 if possible."
            )
        return finding


def parametrize(
    implementations: Made | Mapping[str, Made],
    checks: Iterable[str | Check[Any]] | None = None,
    expected_failures: Mapping[str, str] | None = None,
    max_examples: int | None = None,
    cases: st.SearchStrategy[Case] | None = None,
) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that makes a test of every check, for a function of `check` and `case`.

    >>> @parametrize(Mine(), expected_failures={"check_window": "hides one key, as the original"})
    ... def test_invariants(check, case):
    ...     check(case)

    Tests have the names of the checks, are skipped with the reason where an implementation lacks a
    capability or does not claim the invariant, and draw their cases with Hypothesis, under the
    profile that is loaded.

    Parameters
    ----------
    implementations
        What to check; or several, by the names that their tests have.  What only makes one when it
        is called is called when its first test runs.
    checks
        Names, or checks of your own; None: all.
    expected_failures
        By name of a check, or of a test where there are several implementations, why the invariant
        is broken, or cannot be shown.  The test then fails if it holds, and if anything else than
        `InvariantBroken` or `NothingShown` is raised.
    max_examples
        Cases of each check; None: as many as the profile says.
    cases
        Where to draw them from, such as `cases(max_length=2)` for what is slow.

    Raises
    ------
    NpxlError
        When there is nothing to check or no check, something is neither an implementation nor makes
        one, or a check has no such name.
    """
    several = implementations if isinstance(implementations, Mapping) else {"": implementations}
    if not several:
        raise NpxlError("implementations is empty: name at least one.")
    chosen = _checks(CHECKS if checks is None else checks)
    failures = dict(expected_failures or {})
    parameters = []
    for name, made in several.items():
        make = _maker(made)  # one for all checks
        for check in chosen:
            test = f"{name}-{check.__name__}" if name else check.__name__
            reason = failures.get(test, failures.get(check.__name__))
            marks = () if reason is None else _expected_to_be_broken(reason)
            parameters.append(pytest.param(BoundCheck(check, make), id=test, marks=marks))
    known = {str(each.id) for each in parameters} | {each.__name__ for each in chosen}
    unknown = [name for name in failures if name not in known]
    if unknown:
        raise NpxlError(
            f"expected_failures names {', '.join(unknown)}, but the checks are "
            f"{', '.join(sorted(known))}."
        )

    def decorate(test: Callable[..., Any]) -> Any:
        limit = {} if max_examples is None else {"max_examples": max_examples}
        quiet = settings(
            deadline=None,  # an implementation may compile at its first call
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            report_multiple_bugs=False,
            **limit,  # type: ignore[arg-type]
        )
        drawn = given(case=all_cases() if cases is None else cases)(test)
        return pytest.mark.parametrize("check", parameters)(quiet(drawn))

    return decorate


def _maker(made: Made) -> Callable[[], Implementation]:
    """What gives the implementation: made at the first call, and the same from then on."""
    is_one = hasattr(made, "log_probs") and not isinstance(made, type)
    if hasattr(made, "forward") and not is_one and not isinstance(made, type):
        raise NpxlError(
            f"What is to be checked is {described(made)}, but a module has to be adapted: "
            "npxl.testing.TorchModule and a few lines of yours do that."
        )
    if not (is_one or callable(made)):
        raise NpxlError(
            f"What is to be checked is {described(made)}, but it must be an implementation, which "
            "has log_probs and what else npxl.invariants.protocol asks for, or a function that "
            "makes one."
        )

    @functools.cache
    def make() -> Any:
        return made if is_one else made()  # type: ignore[operator]

    return make


def _expected_to_be_broken(reason: str) -> pytest.MarkDecorator:
    raises = (InvariantBroken, NothingShown)
    return pytest.mark.xfail(reason=reason, strict=True, raises=raises)


def _checks(named: Iterable[str | Check[Any]]) -> list[Check[Any]]:
    if isinstance(named, str) or not isinstance(named, Iterable):
        what = repr(named) if isinstance(named, str) else described(named)
        raise NpxlError(f"checks is {what}, but it must be a list: put a single check into one.")
    chosen = [_check(each) for each in named]
    if not chosen:
        raise NpxlError("checks is empty: name at least one, or leave it out for all.")
    return chosen


def _check(named: str | Check[Any]) -> Check[Any]:
    if isinstance(named, str):
        if named not in CHECKS:
            raise NpxlError(f"There is no check {named!r}; there are {', '.join(CHECKS)}.")
        return CHECKS[named]
    if not (callable(named) and hasattr(named, "__name__")):
        raise NpxlError(
            f"A check is {described(named)}, but it must be a name, or a function of an "
            "implementation and a case."
        )
    return named
