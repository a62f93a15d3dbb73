"""The heap of a run's process."""

from __future__ import annotations

import contextlib
import ctypes

import pyarrow as pa

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of glibc's malloc.h
NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Let freed memory stay with the process, for the next tensor or table.

    glibc maps what is larger than 32 MiB anew each time, and the system clears every page of it at the first touch:
    a quarter of the processor time of ResNet-50's forward passes. Nothing where the C library has no such setting.
    Arrow's own pools give memory back too, so that its tables come from the same heap.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_MAX, 0)
        libc.mallopt(TRIM_THRESHOLD, NEVER)
