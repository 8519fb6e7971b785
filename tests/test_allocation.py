"""Freed memory is kept: the system is not asked for pages again and again."""

import subprocess
import sys

import pytest

from npxl.allocation import keep_freed_memory

ROUNDS = """
import resource
import numpy as np
from npxl.allocation import keep_freed_memory

if {keep}:
    assert keep_freed_memory()
for turn in range(30):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(2**20) for _ in range(3)]  # 8 MB each, more than glibc keeps by itself
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(keep):
    words = [sys.executable, "-c", ROUNDS.format(keep=keep)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not keep_freed_memory(), reason="needs the allocator of glibc")
def test_arrays_that_come_and_go_cause_no_page_faults():
    assert 10 * page_faults(keep=True) < page_faults(keep=False)


def test_another_allocator_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory.__wrapped__() is False
