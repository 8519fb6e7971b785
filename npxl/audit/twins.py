"""Compiled kernels against their own source as plain Python, in the calls that a model makes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import worst

Array = NDArray[Any]


def plain(kernel: Any, **instead: Any) -> FunctionType:
    """`kernel` un-jitted, and so is each kernel that it calls, at any depth.

    Globals that any of them uses, other kernels and constants, are exchanged for `instead`.
    """
    function = kernel.py_func
    names = set(function.__code__.co_names) & set(function.__globals__)
    used = {name: instead.get(name, function.__globals__[name]) for name in names}
    called = {name: x for name, x in used.items() if hasattr(x, "py_func")}
    used.update((name, plain(x, **instead)) for name, x in called.items())
    return FunctionType(
        function.__code__, {**used, "__builtins__": __builtins__}, function.__name__
    )


@dataclass
class Twins:
    """How far a kernel and its plain twin were apart in the calls so far."""

    calls: int = 0
    apart: float = 0.0
    """The largest difference of what both wrote, relative to the largest number of an array."""


@contextmanager
def beside_their_twins() -> Iterator[dict[str, Twins]]:
    """In this context npxl's kernels are called twice: as they are, and plain on equal arguments.

    Yields what is found, by kernel: all that npxl's loaded modules call, those without a call so
    far too.  Kernels that are called by kernels are part of these.  It exchanges the kernels in the
    modules that have imported them, so that nothing else may run in the process meanwhile.
    """
    found: dict[str, Twins] = {}
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    for module in [module for name, module in sys.modules.items() if _calls_kernels(name)]:
        for name, value in list(vars(module).items()):
            if _is_kernel(value):
                twins = found.setdefault(value.py_func.__name__, Twins())
                replaced.append((vars(module), name, value))
                vars(module)[name] = _both(value, twins)
    try:
        yield found
    finally:
        for names, name, value in replaced:
            names[name] = value


def _calls_kernels(module: str) -> bool:
    return module.startswith("npxl.") and not module.startswith(("npxl.kernels", "npxl.audit"))


def _is_kernel(value: Any) -> bool:
    function = getattr(value, "py_func", None)
    return getattr(function, "__module__", "").startswith("npxl.kernels.")


def _both(kernel: Any, twins: Twins) -> Callable[..., Any]:
    twin = plain(kernel)

    def call(*arguments: Any) -> Any:
        before, theirs = _copied(arguments), _copied(arguments)
        with np.errstate(all="ignore"):
            expected = twin(*theirs)
        result = kernel(*arguments)
        twins.calls += 1
        for own, plain_one, old in zip(
            _arrays((*arguments, result)),
            _arrays((*theirs, expected)),
            _arrays((*before, None if result is None else 0)),
            strict=True,
        ):
            twins.apart = worst((twins.apart, _apart(own, plain_one, old)))
        return result

    return call


def _copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arrays copied with the order of their axes in memory, one that is passed twice only once."""
    copies: dict[Any, Array] = {}
    for x in arguments:
        if isinstance(x, np.ndarray):
            copies.setdefault(_place(x), x.copy("K"))
    return tuple(copies[_place(x)] if isinstance(x, np.ndarray) else x for x in arguments)


def _place(x: Array) -> tuple[Any, ...]:
    return x.ctypes.data, x.shape, x.strides, x.dtype


def _arrays(values: tuple[Any, ...]) -> list[Array]:
    """The arrays among some arguments, and the last of the values, which is what was returned."""
    *arguments, result = values
    returned = [] if result is None else [np.atleast_1d(result)]
    return [x for x in arguments if isinstance(x, np.ndarray)] + returned


def _apart(own: Array, twin: Array, before: Array) -> float:
    """Relative to the largest number that the twin wrote: what was there before is not its own."""
    with np.errstate(all="ignore"):
        same = (own == twin) | (np.isnan(own) & np.isnan(twin))
        difference = np.where(same, 0, np.abs(own - twin.astype(own.dtype)))
        written = np.abs(twin[twin != before])
    scale = float(written[np.isfinite(written)].max(initial=0))
    largest = float(difference.max(initial=0))
    return largest / (scale or 1.0)
