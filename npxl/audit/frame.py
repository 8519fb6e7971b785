"""What an audit is made of: sections of checks, whose results are rows of figures.

A check is a function of a `Subject` that yields a `Result` as soon as it has one.  Its random
numbers are its own, so that it finds the same figures alone as among all others.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from npxl.audit.scaling import scaled_down
from npxl.config import LanguageModelConfig, to_dict, with_options
from npxl.models.architectures import model_class
from npxl.models.segment_model import SegmentModel
from npxl.page.pictures import Picture

Array = NDArray[Any]
Progress = Callable[[int, int], None]
"""Called with how much of a check is done, and how much it is."""


def worst(values: Iterable[float]) -> float:
    """The largest; NaN if one is, which no comparison would notice."""
    return float(np.max(list(values)))


@dataclass(frozen=True)
class Figure:
    """A number that was measured, and between what it has to lie.

    Without bounds it is told and not judged.  What is not a number is within no bounds.
    """

    value: float
    at_most: float | None = None
    at_least: float | None = None

    @classmethod
    def zero(cls, value: float) -> Figure:
        """What has to be 0 to the last bit."""
        return cls(float(value), at_most=0.0, at_least=0.0)

    @property
    def holds(self) -> bool:
        """Whether the value is within the bounds."""
        if self.at_most is None and self.at_least is None:
            return True
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return low <= self.value <= high

    @property
    def bounds(self) -> str:
        """The bounds in words: "≤ 1e-13", "≥ 0.5", "= 0", or nothing."""
        if self.at_most is not None and self.at_most == self.at_least:
            return f"= {self.at_most:g}"
        parts = (("≥", self.at_least), ("≤", self.at_most))
        return " ".join(f"{sign} {bound:g}" for sign, bound in parts if bound is not None)


@dataclass(frozen=True)
class Result:
    """A row: what one statement of a check was measured to be.

    Parameters
    ----------
    name
        Of what it is about, such as a tensor; different from those of the check's other rows.
    figures
        By name: columns of the check's table.  Without any, the row says why there is nothing to
        check, and is neither right nor wrong.
    detail
        Where the figures are from, in words: what a reader needs to look for a fault.
    data
        Numbers behind the figures, for pictures.
    """

    name: str
    figures: Mapping[str, Figure]
    detail: str = ""
    data: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        figure: float,
        at_most: float | None = None,
        detail: str = "",
        *,
        at_least: float | None = None,
        data: Any = None,
    ) -> Result:
        """A row of one figure."""
        return cls(name, {"figure": Figure(float(figure), at_most, at_least)}, detail, data)

    @classmethod
    def nothing(cls, name: str, why: str) -> Result:
        """A row that says why there is nothing to check in this configuration."""
        return cls(name, {}, why)

    @property
    def applies(self) -> bool:
        """Whether there was something to check."""
        return bool(self.figures)

    @property
    def passed(self) -> bool:
        """Whether all figures are within their bounds."""
        return all(figure.holds for figure in self.figures.values())


@dataclass(frozen=True)
class Check:
    """Statements that are checked together.

    Parameters
    ----------
    name
        In lower case and without spaces; SECTION/NAME runs it alone.
    proves
        In a sentence or two; mathematics in LaTeX between dollar signs.
    equation
        What the figures measure, in LaTeX.
    run
        Yields the rows.  Calls its second argument now and then if it takes more than a second.
    """

    name: str
    proves: str
    equation: str
    run: Callable[[Subject, Progress], Iterable[Result]]


Rows = Mapping[str, tuple[Result, ...]]
"""By name of a check that was run, its rows."""


def no_pictures(rows: Rows) -> Iterable[Picture]:
    """Of a section that has none."""
    return ()


@dataclass(frozen=True)
class Section:
    """Checks of one kind.

    Parameters
    ----------
    name
        In lower case and without spaces; runs it alone.
    title
        For people.
    proves
        A paragraph or several, between empty lines; mathematics in LaTeX between dollar signs.
    checks
        In the order in which they are run.
    pictures
        Of the rows of those checks that were run, which may be some of them.
    """

    name: str
    title: str
    proves: str
    checks: tuple[Check, ...]
    pictures: Callable[[Rows], Iterable[Picture]] = no_pictures


@dataclass(frozen=True)
class Trained:
    """A model as it was trained, and text to read."""

    model: SegmentModel
    tokens: Array  # [n] int, that it was not trained on
    tgt_len: int


@dataclass(frozen=True)
class Subject:
    """What is audited: a configuration, scaled down, and a seed."""

    config: LanguageModelConfig
    """As it was given."""
    seed: int = 0
    trained: Callable[[], Trained] | None = field(default=None, compare=False, repr=False)
    """Loads what was trained in this configuration, if anything was; NpxlError if it cannot."""

    @property
    def small(self) -> LanguageModelConfig:
        """The same form with every size cut to what can be checked entry by entry."""
        return scaled_down(self.config)

    def model(
        self, dtype: DTypeLike = np.float64, larger: bool = False, **changes: Any
    ) -> SegmentModel:
        """A model of the small configuration, or a larger one; some options may be replaced.

        Those that this kind of model has not are left out.  Biases are drawn as well: where one is
        0, what does not use it looks right.
        """
        config = with_options(scaled_down(self.config, larger), **changes)
        model: SegmentModel = model_class(config)(config, seed=self.seed, dtype=np.float64)
        draw = self.draw("biases")
        for tensor in model.params.values():
            zero = tensor == 0
            tensor[zero] = draw.normal(0.0, config.init_std, int(zero.sum()))
        return model.astype(dtype)

    def draw(self, name: str) -> np.random.Generator:
        """The random numbers of one check, whatever others are run."""
        return np.random.default_rng((self.seed, zlib.crc32(name.encode())))

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Fields that were scaled: the values given and used."""
        small = self.small
        return {
            name: (getattr(self.config, name), getattr(small, name))
            for name in to_dict(self.config)
            if getattr(self.config, name) != getattr(small, name)
        }
