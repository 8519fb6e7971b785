"""A stateful test: streams that are read, reordered, begun anew, and remembered for longer or less.

After every segment, what was read piece by piece is held against full recomputation, and against
the same segment without what was remembered: if nothing depends on that, nothing is shown.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from numpy.typing import NDArray

from npxl.errors import NpxlError, described
from npxl.invariants.comparing import differences, equal_scores
from npxl.invariants.findings import InvariantBroken
from npxl.invariants.protocol import Implementation, capabilities, declared, offering
from npxl.invariants.reading import read, scores_of
from npxl.testing.battery import NothingShown

Array = NDArray[Any]

LONGEST = 30
"""Tokens of a stream at most; after half of them it may be begun anew."""


class _TestCase:
    """The attribute TestCase of a machine, which has one of its own."""

    def __get__(self, _: Any, machine: type[StreamMachine]) -> Any:
        return _test_case(machine)


@functools.cache
def _test_case(machine: type[StreamMachine]) -> Any:
    """The TestCase of Hypothesis, which fails where no program could have shown a violation."""
    of_hypothesis: Any = super(StreamMachine, machine).TestCase

    class StreamTestCase(of_hypothesis):  # type: ignore[misc]
        @functools.wraps(of_hypothesis.runTest)
        def runTest(self) -> None:
            machine.effect = None
            super().runTest()
            tolerance = machine.make().tolerance
            if machine.effect is not None and machine.effect <= tolerance:
                raise NothingShown(
                    f"{machine.__name__}: in no program did memory change a score by more than "
                    f"{machine.effect:.3g} nats, and {tolerance:g} is rounding: memory that is "
                    "lost or mixed up would not be seen. Draw parameters with a standard deviation "
                    "of about 0.4, and in float64 if possible; or declare mem_len = 0, if nothing "
                    "is to be remembered."
                )

    return StreamTestCase


class StreamMachine(RuleBasedStateMachine):
    """Reads segments of random streams, and expects what full recomputation gives.

    Every segment is held against its streams alone, from their beginnings, with the same segments
    and memory lengths; and, where the segmentation makes no difference (the window is at most every
    memory length so far + 1, or nothing was forgotten), against one pass over the whole text.
    """

    TestCase = _TestCase()
    """What pytest runs; fails with `NothingShown` where memory changes no score of any program."""

    make: Callable[[], Implementation]
    """Makes what is tested."""

    effect: ClassVar[float | None] = None
    """The most that memory has changed a score by, in nats; None while there was none to read."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.current = type(self).make()
        self.segments: list[tuple[Implementation, int]] = []  # what read it, and its length
        self.text = np.empty((1, 0), np.int64)  # [B, N]
        self.state: Any = None

    @initialize(batch_size=st.integers(1, 3))
    def begin(self, batch_size: int) -> None:
        """Start with some streams."""
        self.first, self.segments = self.current, []
        self.text = np.empty((batch_size, 0), np.int64)
        self.state = self.current.start(batch_size)

    @precondition(lambda self: self.text.shape[1] > LONGEST // 2)
    @rule(batch_size=st.integers(1, 3))
    def begin_anew(self, batch_size: int) -> None:
        """Forget everything, and start with other streams."""
        self.begin(batch_size)

    @precondition(lambda self: self.text.shape[1] < LONGEST)
    @rule(length=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
    def read(self, length: int, seed: int) -> None:
        """Read a segment; recompute it in other ways."""
        rng = np.random.default_rng(seed)
        new = rng.integers(self.current.vocab_size, size=(len(self.text), length))
        self.text = np.concatenate([self.text, new], axis=1)
        self.segments.append((self.current, length))
        before = self.state
        found, self.state = self._read(self.current, before, self.text, length)
        again, _ = self._read(self.current, before, self.text, length)
        self._equal(again, found, "the same segment from the same state once more")
        for row in range(len(self.text)):
            alone, state = self._replay(self.text[[row]])
            self._equal(found[[row]], alone, f"stream {row} alone, from its beginning")
            self._equal_memory(row, state)
        if self._no_matter_how_it_is_cut():
            whole, _ = read(self.first, self.text, [self.text.shape[1]])
            self._equal(found, whole[:, -length:], "one pass over the whole text")
        if self._may_remember():
            start = self.current.start(len(self.text))
            anew, _ = self._read(self.current, start, self.text, length)
            of_memory = float(differences(found, anew).max(initial=0))
            type(self).effect = max(type(self).effect or 0.0, of_memory)

    @precondition(lambda self: self.segments and "select" in capabilities(self.current))
    @rule(rows=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def select(self, rows: list[int]) -> None:
        """Reorder streams, drop some, and double others."""
        rows = [row % len(self.text) for row in rows]
        self.state = self.current.select(self.state, rows)  # type: ignore[attr-defined]
        self.text = self.text[rows]

    @precondition(lambda self: self.segments and "mem_len" in capabilities(self.current))
    @rule(mem_len=st.integers(0, 8))
    def resize(self, mem_len: int) -> None:
        """Remember more, or less, from now on."""
        self.current = self.current.with_mem_len(mem_len)  # type: ignore[attr-defined]

    @staticmethod
    def _read(
        implementation: Implementation, state: Any, text: Array, length: int
    ) -> tuple[Array, Any]:
        """The last `length` tokens of what was read up to here, after those to read again."""
        again = min(text.shape[1] - length, declared(implementation, "ext_len"))
        inputs = text[:, text.shape[1] - length - again :].copy()
        scores, state = scores_of(implementation, inputs, state)
        return scores[:, again:], state

    def _replay(self, text: Array) -> tuple[Array, Any]:
        """The last segment of some streams that are read from their beginnings."""
        state, stop, scores = self.first.start(len(text)), 0, np.empty(0)
        for implementation, length in self.segments:
            stop += length
            scores, state = self._read(implementation, state, text[:, :stop], length)
        return scores, state

    def _may_remember(self) -> bool:
        """Whether, as declared, the last segment's scores may depend on what memory holds.

        They need not where the segment reads all of its window again, and in a text of one symbol,
        where every average is the same.
        """
        *before, (current, _) = self.segments
        if not before or before[-1][0].mem_len == 0:
            return False
        reach = math.inf if current.window is None else current.n_layer * (current.window - 1)
        varied = bool((self.text != self.text[:, :1]).any())
        return varied and reach > declared(current, "ext_len")

    def _no_matter_how_it_is_cut(self) -> bool:
        """Whether every token saw all that its window shows it, in every segment."""
        if not declared(self.first, "encodes_distances"):
            return False
        limits = [each.mem_len for each, _ in self.segments if each.mem_len is not None]
        shortest = min(limits, default=math.inf)
        windows = {implementation.window for implementation, _ in self.segments}
        if windows != {self.first.window}:
            return False
        window = self.first.window
        if window is not None and window <= shortest + 1:
            return True
        is_empty = declared(self.first, "initial_memory") == "empty"
        last = self.segments[-1][1]
        return is_empty and self.text.shape[1] - last <= shortest

    def _equal(self, found: Array, expected: Array, what: str) -> None:
        equal_scores(
            self.current,
            found,
            expected,
            expected=f"log-probabilities as in {what}",
            usually="memory that does not go with its stream, is cut wrongly when its length "
            "changes, or is written to by a later segment.",
        )

    def _equal_memory(self, row: int, state: Any) -> None:
        shows = offering(self.current, "memory")
        if shows is None:
            return
        found, expected = shows.memory(self.state)[:, [row]], shows.memory(state)
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        is_equal = found.shape == expected.shape and np.allclose(
            found, expected, rtol=0, atol=scale * self.current.tolerance
        )
        if not is_equal:
            raise InvariantBroken(
                expected=f"the memory of stream {row} read alone, {list(expected.shape)}",
                found=f"another one, {list(found.shape)}",
                where=f"stream {row}, after {self.text.shape[1]} tokens",
                usually="memory that does not go with its stream.",
                check="StreamMachine",
            )


def stream_machine(
    make: Callable[[], Implementation], max_examples: int | None = None
) -> type[StreamMachine]:
    """A state machine for an implementation; its `TestCase` is what pytest runs.

    It fails, with `NothingShown`, where memory changes no score of any program.

    >>> TestStreams = stream_machine(Mine).TestCase

    Parameters
    ----------
    make
        Makes the implementation.
    max_examples
        Programs to try; None: as many as the profile says.

    Raises
    ------
    NpxlError
        When `make` cannot be called.
    """
    if not callable(make):
        raise NpxlError(
            f"make is {described(make)}, but it must be a function that makes an implementation."
        )
    limit = {} if max_examples is None else {"max_examples": max_examples}
    machine: type[StreamMachine] = type("Streams", (StreamMachine,), {"make": staticmethod(make)})
    machine.TestCase.settings = settings(
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        **limit,  # type: ignore[arg-type]
    )
    return machine
