"""What kernels read in memory, checked where they run as plain Python."""

import numpy as np


def within_bounds(x, n):
    """Instead of `vectors._in_memory`: the n numbers from the first of x on, if x has so many."""
    extent = sum((size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True))
    room = extent // x.itemsize + 1
    if not 0 <= n <= room:
        raise IndexError(f"{n} numbers of an array that has {room}")
    return np.lib.stride_tricks.as_strided(x, (n,), (x.itemsize,))
