"""What a check is given, what it returns, and what it raises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from npxl.config.checks import require_int, require_tuple
from npxl.invariants.protocol import Implementation, capabilities, require_implementation

Array = NDArray[Any]
I = TypeVar("I", bound=Implementation, contravariant=True)


@dataclass(frozen=True)
class Case:
    """One example for a check: shapes, places and a seed, from which all numbers are drawn.

    Attributes
    ----------
    batch_size
        Streams B.
    lengths
        Tokens of each segment, one after another.
    position
        A token of the text that a check changes, or where it begins; counted from the start, and
        around again where the text is shorter.
    row
        The stream in which it does so; around again, too.
    seed
        Of everything else: tokens, cotangents, permutations.

    Raises
    ------
    NpxlError
        When there is no stream or no segment, a segment is empty, or another number is negative.
    """

    batch_size: int = 2
    lengths: tuple[int, ...] = (3, 1, 4)
    position: int = 1
    row: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        require_int(self, "batch_size", minimum=1)
        require_tuple(self, "lengths", int, minimum=1)
        for name in ("position", "row"):
            require_int(self, name, minimum=0)
        require_int(self, "seed", minimum=0, maximum=None)

    @property
    def length(self) -> int:
        """Tokens N of the text that is read."""
        return sum(self.lengths)

    @property
    def at(self) -> tuple[int, int]:
        """Row and position, within the text."""
        return self.row % self.batch_size, self.position % self.length

    def rng(self, *purpose: int) -> np.random.Generator:
        """A generator of this case's seed; another one for each purpose."""
        return np.random.default_rng([self.seed, *purpose])

    def text(self, implementation: Implementation, batch_size: int | None = None) -> Array:
        """Random tokens [B, N + 1]: what is read, and one target more."""
        shape = (batch_size or self.batch_size, self.length + 1)
        return self.rng(0).integers(implementation.vocab_size, size=shape)


@dataclass(frozen=True)
class Finding:
    """What a check measured where the invariant held.

    Attributes
    ----------
    figure
        The largest deviation, or how many of what is compared bit by bit were wrong.
    tolerance
        What it may be at most.
    measured
        What the figure is, in words.
    compared
        How many numbers were compared.
    check
        Name of the check, which puts it here.
    unknown
        Tensors of which it says nothing, since their derivative was not known well enough.
    """

    figure: float
    tolerance: float
    measured: str
    compared: int
    check: str = ""
    unknown: tuple[str, ...] = ()


class InvariantBroken(AssertionError):
    """An implementation does not do what it declares.

    Attributes
    ----------
    check
        Name of the check.
    expected, found, where, usually
        What was expected, what was found, at which token or tensor, and what usually causes it.
    """

    def __init__(
        self, expected: str, found: str, where: str, usually: str, check: str = ""
    ) -> None:
        self.expected, self.found, self.where, self.usually = expected, found, where, usually
        self.check = check
        super().__init__(expected, found, where, usually, check)

    def __str__(self) -> str:
        return (
            f"{self.check or 'a check'} at {self.where}\n"
            f"  expected: {self.expected}\n"
            f"  found:    {self.found}\n"
            f"  usually:  {self.usually}"
        )


class Inapplicable(Exception):
    """An implementation lacks what a check needs, or does not claim what it checks."""


class Vacuous(Exception):
    """A case in which nothing could have shown that the invariant is broken."""


class Check(Protocol[I]):
    """A named check of one invariant."""

    __name__: str
    __doc__: str | None
    needs: tuple[str, ...]
    """Capabilities without which it is not applicable."""

    def __call__(self, implementation: I, case: Case) -> Finding:
        """Check one case.

        Raises
        ------
        InvariantBroken
            When the invariant does not hold.
        Inapplicable
            When the implementation cannot or does not claim to have it.
        Vacuous
            When this case could not have shown a violation.
        """


def check(*needs: str) -> Callable[[Callable[[I, Case], Finding]], Check[I]]:
    """A decorator for a check that needs some capabilities.

    It then raises `Inapplicable` where one is missing, and puts its name on what it finds.
    """

    def decorated(function: Callable[[I, Case], Finding]) -> Check[I]:
        name = function.__name__

        @functools.wraps(function)
        def checked(implementation: I, case: Case) -> Finding:
            require_implementation(implementation)
            missing = [need for need in needs if need not in capabilities(implementation)]
            if missing:
                raise Inapplicable(
                    f"{name} needs the capability {' and '.join(missing)}, which this "
                    "implementation does not have (npxl.invariants.protocol.CAPABILITIES)."
                )
            try:
                return replace(function(implementation, case), check=name)
            except InvariantBroken as broken:
                broken.check = name
                raise

        checked.needs = needs  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorated
