"""Memory that a step frees is kept for the next one."""

from __future__ import annotations

import ctypes
import functools
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_LARGEST_MMAP_THRESHOLD = 2**25  # what glibc accepts
_KEPT = 2**30
_PAD = 2**26


@functools.cache
def keep_freed_memory() -> bool:
    """Ask the allocator, once a process, not to give freed memory back to the system.

    Every step allocates and frees the same arrays.  By default glibc maps large ones anew, and the
    system clears each page when it is first touched.  It holds for the whole process, which keeps
    what it once needed; the results are the same either way.

    Returns
    -------
    bool
        Whether the allocator is one that can be asked: glibc's.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    accepted = [
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
        mallopt(_M_TRIM_THRESHOLD, _KEPT),
        mallopt(_M_TOP_PAD, _PAD),
    ]
    return all(accepted)
