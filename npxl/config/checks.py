"""Checks of a configuration's values: what was passed, what was expected, what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from npxl.errors import NpxlError

LARGEST = 2**31 - 1
"""The largest number in a configuration: sums and products of two fit where arrays are indexed."""


def checked_int(
    name: str,
    value: Any,
    minimum: int,
    maximum: int | None = LARGEST,
    optional: bool = False,
) -> Any:
    """`value` as an int, NumPy's whole numbers included; None only if it is optional."""
    if optional and value is None:
        return None
    if not _is_whole(value) or value < minimum:
        unset = " or none" if optional else ""
        raise NpxlError(
            f"{name} is {value!r}, but it must be a whole number of at least {minimum}{unset}."
        )
    if maximum is not None and value > maximum:
        raise NpxlError(f"{name} is {value!r}, but it must be at most {maximum}.")
    return int(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_int(
    config: Any,
    name: str,
    minimum: int,
    maximum: int | None = LARGEST,
    optional: bool = False,
) -> None:
    """A whole number within its bounds, or none if it is optional."""
    value = checked_int(name, getattr(config, name), minimum, maximum, optional)
    object.__setattr__(config, name, value)  # a field of a frozen dataclass


def require_float(
    config: Any,
    name: str,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    optional: bool = False,
) -> None:
    """A finite number within its bounds, or none if it is optional."""
    value = getattr(config, name)
    if optional and value is None:
        return
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and minimum <= value <= maximum and above < value < below:
        object.__setattr__(config, name, float(value))
        return
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (
            ("at least", minimum),
            ("more than", above),
            ("at most", maximum),
            ("less than", below),
        )
        if math.isfinite(bound)
    ]
    unset = " or none" if optional else ""
    raise NpxlError(
        f"{name} is {value!r}, but it must be a number of {' and '.join(bounds)}{unset}."
    )


def require_tuple(config: Any, name: str, kind: type[int], minimum: int | None = None) -> None:
    """Whole numbers, or true and false: in a list, as files have them, or in a tuple.

    With a minimum there has to be one or more, and none that is smaller.
    """
    values = getattr(config, name)
    is_one, several = {
        int: (_is_whole, "whole numbers"),
        bool: (lambda value: isinstance(value, bool), "true and false"),
    }[kind]
    if not isinstance(values, list | tuple) or not all(map(is_one, values)):
        raise NpxlError(f"{name} is {values!r}, but it must be a list of {several}.")
    if minimum is not None and min(values, default=minimum - 1) < minimum:
        raise NpxlError(
            f"{name} is {values!r}, but it must be a list of one or more {several}, each of them "
            f"at least {minimum}."
        )
    object.__setattr__(config, name, tuple(map(kind, values)))


def require_bool(config: Any, name: str) -> None:
    """True or false."""
    value = getattr(config, name)
    if not isinstance(value, bool):
        raise NpxlError(f"{name} is {value!r}, but it must be true or false.")


def require_choice(
    config: Any, name: str, choices: tuple[str, ...], optional: bool = False
) -> None:
    """One of the choices, or none if it is optional."""
    value = getattr(config, name)
    if value not in choices and not (optional and value is None):
        unset = " or none" if optional else ""
        raise NpxlError(f"{name} is {value!r}, but it must be one of {', '.join(choices)}{unset}.")


ReadOnlyWith = Mapping[str, tuple[str, tuple[str, ...]]]
"""Options that mean something beside some values of another one, and nothing else: by their names,
the name of the other and those values."""


def require_that_options_have_an_effect(config: Any, read_only_with: ReadOnlyWith) -> None:
    """NpxlError when one differs from its default that nothing reads beside the others."""
    for option in fields(config):
        if option.name not in read_only_with:
            continue
        chooser, readers = read_only_with[option.name]
        value, chosen = getattr(config, option.name), getattr(config, chooser)
        if value != option.default and chosen not in readers:
            named = " or ".join(readers)
            raise NpxlError(
                f"{option.name} is {value!r}, but only the {chooser} {named} reads it, and the "
                f"{chooser} is {chosen}: leave {option.name} out, or choose {named}."
            )
