"""What an audit found."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from npxl.audit.frame import Check, Result, Section, Subject
from npxl.config import to_dict
from npxl.environment import environment


@dataclass(frozen=True)
class CheckOutcome:
    """What one check found."""

    section: Section
    check: Check
    results: tuple[Result, ...]
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """SECTION/CHECK."""
        return f"{self.section.name}/{self.check.name}"

    @property
    def failures(self) -> tuple[Result, ...]:
        """The rows that are wrong; one that says so where there is no row at all."""
        if not self.results:
            return (Result.of("nothing", math.nan, at_most=0, detail="The check found nothing."),)
        return tuple(result for result in self.results if not result.passed)

    @property
    def passed(self) -> bool:
        """Whether every row is right."""
        return not self.failures


@dataclass(frozen=True)
class AuditReport:
    """What all checks found that were run."""

    subject: Subject
    command: tuple[str, ...]
    """What was typed, without what narrows it down: `--seed` and `--only` are added."""
    outcomes: tuple[CheckOutcome, ...]
    environment: Mapping[str, str] = field(default_factory=environment)

    @property
    def passed(self) -> bool:
        """Whether every row of every check is right."""
        return all(outcome.passed for outcome in self.outcomes)

    @property
    def failures(self) -> tuple[CheckOutcome, ...]:
        """The checks with a row that is wrong."""
        return tuple(outcome for outcome in self.outcomes if not outcome.passed)

    def __getitem__(self, name: str) -> dict[str, Result]:
        """The rows of SECTION/CHECK by name; KeyError if it was not run."""
        outcome = {outcome.name: outcome for outcome in self.outcomes}[name]
        return {result.name: result for result in outcome.results}

    def reproduce(self, name: str) -> str:
        """The line that runs one check alone, with the same figures."""
        return shlex.join([*self.command, "--seed", str(self.subject.seed), "--only", name])

    @property
    def verdict(self) -> str:
        """In a sentence."""
        if not self.passed:
            return f"FAILED: {'; '.join(map(_named, self.failures))}."
        rows = [result for outcome in self.outcomes for result in outcome.results]
        figures = sum(bool(figure.bounds) for result in rows for figure in result.figures.values())
        n_without = sum(not result.applies for result in rows)
        without = f"; nothing to check in {counted(n_without, 'row')}" if n_without else ""
        right = f"{counted(figures, 'figure')} in {counted(len(self.outcomes), 'check')}"
        return f"Passed: {right}{without}."

    @property
    def origin(self) -> str:
        """What would give the same figures again."""
        environment = ", ".join(f"{name} {value}" for name, value in self.environment.items())
        return f"seed {self.subject.seed}; {environment}"

    def as_json(self) -> dict[str, Any]:
        """Plain values: all figures, and what would give them again."""
        return {
            "passed": self.passed,
            "verdict": self.verdict,
            "seed": self.subject.seed,
            "environment": dict(self.environment),
            "architecture": self.subject.config.architecture,
            "config": to_dict(self.subject.config),
            "scaled": to_dict(self.subject.small),
            "checks": [
                _as_json(outcome, self.reproduce(outcome.name)) for outcome in self.outcomes
            ],
        }


def counted(n: int, what: str) -> str:
    """A number of things, in words: "1 row", "2 rows"."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _named(outcome: CheckOutcome) -> str:
    return f"{outcome.name} ({', '.join(result.name for result in outcome.failures)})"


def _as_json(outcome: CheckOutcome, reproduce: str) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "passed": outcome.passed,
        "seconds": outcome.seconds,
        "reproduce": reproduce,
        "rows": [
            {
                "name": result.name,
                "passed": result.passed if result.applies else None,
                "detail": result.detail,
                "figures": {
                    name: {
                        "value": _finite(figure.value),
                        "at_most": figure.at_most,
                        "at_least": figure.at_least,
                    }
                    for name, figure in result.figures.items()
                },
            }
            for result in outcome.results
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
