"""What users' code must leave to the others of its process: the console, and the end of the process."""

from __future__ import annotations

import builtins
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

NUMBERS = {"stdout": 1, "stderr": 2}
PRINT, EXIT = builtins.print, os._exit


def _spare(number: int) -> int | None:
    with suppress(OSError):  # closed by the shell
        return os.dup(number)
    return None


SPARES: dict[str, int | None] = {}


def take() -> None:
    """As the command line begins: remember where the console is, so that it can be mended.

    Where the shell closed a stream (`>&-`), what is written to it goes nowhere.
    """
    for name, number in NUMBERS.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        if (old := SPARES.get(name)) is not None:  # taken before, in the parent of a fork, say
            os.close(old)
        SPARES[name] = _spare(number)


def broken() -> list[str]:
    """What of standard output, standard error and `print` cannot be used."""
    streams = [name for name in NUMBERS if not _usable(getattr(sys, name))]
    return [f"sys.{name}" for name in streams] + ["print"] * (not callable(builtins.print))


def _usable(stream: Any) -> bool:
    if getattr(stream, "closed", False) or not callable(getattr(stream, "write", None)):
        return False
    try:
        os.fstat(stream.fileno())
    except (AttributeError, ValueError):  # a stream without a file
        return True
    except OSError as fault:
        return fault.errno is None  # as io.UnsupportedOperation, which is one too
    return True


def mend() -> None:
    """Put back what is broken."""
    for what in broken():
        name = what.removeprefix("sys.")
        if what == "print":
            builtins.print = PRINT
        elif (spare := SPARES.get(name)) is not None:
            old = getattr(sys, name)
            os.dup2(spare, NUMBERS[name])
            setattr(sys, name, os.fdopen(NUMBERS[name], "w", closefd=False))  # as long as the process
            for handler in logging.getLogger().handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                    handler.setStream(getattr(sys, name))


@contextmanager
def console_kept(spoilt: list[str]) -> Iterator[None]:
    """Around a call of users' code: what it breaks is mended, and its name added to the list."""
    if not SPARES:  # no command line: a notebook, a script
        take()
    before = broken()
    try:
        yield
    finally:
        spoilt += [what for what in broken() if what not in before]
        if spoilt:
            mend()
