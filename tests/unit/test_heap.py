"""A run's process keeps the memory that it freed: the next tensor finds it, cleared by nobody."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from salrun.pipeline.heap import keep_freed_memory

if "kept" in sys.argv:
    keep_freed_memory()
def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(10 << 20).add_(1)  # 40 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(*(pages() for _ in range(20)))
"""


def faults(*words: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True)
    return [int(n) for n in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_a_large_tensor_is_not_mapped_each_time() -> None:
    usual, kept = faults(), faults("kept")
    assert kept[0] > 1000, "the first time its pages are new"
    assert sum(kept) < sum(usual) / 3, "small things may lie in its place once or twice"
