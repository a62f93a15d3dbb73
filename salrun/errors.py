"""Errors a user can act on. Everything else is a fault of ours and gets a traceback in the run log."""

from __future__ import annotations

import difflib
import opcode
import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from salrun.console import EXIT, console_kept
from salrun.surroundings import Surroundings

OURS = str(Path(__file__).resolve().parent)
PYTHONS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
INSTALLED = ("site-packages", "dist-packages")


class SalrunError(Exception):
    """One sentence: what is wrong, where, what is allowed, what to type. The command line exits with 2."""


def told(fault: BaseException) -> str:
    """`ValueError: no such thing`, the first line of it."""
    try:
        lines = (fault.msg if isinstance(fault, SyntaxError) else str(fault)).strip().splitlines()
    except Exception:  # users' exceptions may not even know their own text
        lines = []
    return ": ".join([type(fault).__name__, *lines[:1]])


def interrupts(fault: BaseException) -> bool:
    """Whether it is Ctrl-C: a KeyboardInterrupt that no `raise` of a user made; the signal's handler may be his."""
    if not isinstance(fault, KeyboardInterrupt) or (trace := fault.__traceback__) is None:
        return isinstance(fault, KeyboardInterrupt)
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    if code is getattr(signal.getsignal(signal.SIGINT), "__code__", None):
        return True
    return not (_of_user(code.co_filename) and code.co_code[trace.tb_lasti] == opcode.opmap["RAISE_VARARGS"])


def users_place(fault: BaseException) -> str:
    """`mine.py, line 3`: the innermost line of a user's file that raised it or led to it; empty where none did.

    A queue that takes its machine back (submitit) raises wherever it finds the process, which is nobody's fault.
    """
    frames = traceback.extract_tb(fault.__traceback__)
    if interrupts(fault) or any("submitit" in Path(f.filename).parts for f in frames):
        return ""
    places = [(frame.filename, frame.lineno) for frame in frames]
    if isinstance(fault, SyntaxError) and fault.filename:
        places.append((fault.filename, fault.lineno))
    return next((f"{file}, line {line}" for file, line in reversed(places) if _of_user(file)), "")


def _of_user(file: str) -> bool:
    place = Path(file)  # of compiled code it is not absolute, of what has no file it is in angle brackets
    return place.is_absolute() and not file.startswith((OURS, *PYTHONS)) and not set(INSTALLED) & set(place.parts)


def users_fault(fault: BaseException) -> SalrunError | None:
    """The error for what came out of a user's file, SystemExit among it; None for any other fault."""
    place = users_place(fault)
    return SalrunError(f"{place} raised {told(fault)}") if place else None


@contextmanager
def named(who: str, around: Surroundings | None = None) -> Iterator[None]:
    """Around a call of a user's code: what it raises becomes an error of his, as does a console that it broke, or what
    it replaced of what was around it."""
    spoilt: list[str] = []
    replaced = ""
    try:
        with console_kept(spoilt):
            try:
                yield
            finally:
                replaced = around.mend() if around else ""
    except SalrunError as fault:
        if _raised_by_user(fault):
            raise SalrunError(f"{who} raised {told(fault)} ({users_place(fault)})") from fault
        raise
    except BaseException as fault:
        place = users_place(fault)
        if spoilt:
            raise _silenced(who, spoilt) from fault
        if interrupts(fault) or (isinstance(fault, SystemExit) and not place):
            raise
        raise SalrunError(f"{who} raised {told(fault)}{f' ({place})' if place else ''}") from fault
    if spoilt:
        raise _silenced(who, spoilt)
    if replaced:
        raise replacing(who, replaced)


def _raised_by_user(fault: BaseException) -> bool:
    frames = traceback.extract_tb(fault.__traceback__)
    return bool(frames) and _of_user(frames[-1].filename)


def replacing(who: str, what: str) -> SalrunError:
    """The error for a user's code that puts something else in the place of what others use."""
    return SalrunError(f"{who} replaces {what}, which others use after it; nothing of this was stored")


def _silenced(who: str, spoilt: Iterable[str]) -> SalrunError:
    return SalrunError(f"{who} closes or removes {', '.join(spoilt)}, which others need after it")


def catch_exits() -> None:
    """From now on `os._exit` in a user's file is a SystemExit, of which we can tell; not in children that he forks."""
    process = os.getpid()

    def leave(status: int) -> None:
        if os.getpid() == process and _of_user(sys._getframe(1).f_code.co_filename):
            raise SystemExit(status)
        EXIT(status)

    os._exit = leave  # type: ignore[assignment]


def near(name: str, options: Iterable[str], n: int = 3) -> str:
    """`; did you mean a, b?` for the options nearest to `name`, else the options themselves."""
    options = sorted(set(map(str, options)))
    close = [option for option in options if option.endswith(f"_{name}")]  # seed: explained_seed
    close += difflib.get_close_matches(str(name), options, n=n, cutoff=0.5)
    if close:
        return f"; did you mean {', '.join(list(dict.fromkeys(close))[:n])}?"
    if not options:
        return ""
    shown = ", ".join(options[:40]) + (", ..." if len(options) > 40 else "")
    return f"; known: {shown}"


def unknown(what: str, name: str, options: Iterable[str], where: str = "") -> SalrunError:
    """The error for a name that is not in `options`."""
    at = f" in {where}" if where else ""
    return SalrunError(f"unknown {what} '{name}'{at}{near(name, options)}")
