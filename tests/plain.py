"""Kernels as plain Python, down to the last kernel that they call, and what they read in memory."""

from types import FunctionType

import numpy as np


def plain(kernel, **instead):
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


def within_bounds(x, n):
    """Instead of `vectors._in_memory`: the n numbers from the first of x on, if x has so many."""
    extent = sum((size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True))
    room = extent // x.itemsize + 1
    if not 0 <= n <= room:
        raise IndexError(f"{n} numbers of an array that has {room}")
    return np.lib.stride_tricks.as_strided(x, (n,), (x.itemsize,))
