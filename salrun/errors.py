"""Errors a user can act on. Everything else is a fault of ours and gets a traceback in the run log."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SalrunError(Exception):
    """One sentence: what is wrong, where, what is allowed, what to type. The command line exits with 2."""


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
