"""The heap of a run's process."""

from __future__ import annotations

import contextlib
import ctypes

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of glibc's malloc.h
NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Let freed memory stay with the process, for the next tensor.

    glibc maps what is larger than 32 MiB anew each time, and the system clears every page of it at the first touch:
    a quarter of the processor time of ResNet-50's forward passes. Nothing where the C library has no such setting.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_MAX, 0)
        libc.mallopt(TRIM_THRESHOLD, NEVER)
