"""The checks that every method and metric must pass, ours and anybody's: `salrun check my_method.py`.

A check is a function (part, case) that raises `Nonconforming` with one sentence, or `NotApplicable`; the first line of
its docstring says what is asked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from salrun.errors import interrupts, told
from salrun.types import Method, Metric


class Nonconforming(AssertionError):
    """What a part does and must not do."""


class NotApplicable(Exception):
    """Why a check says nothing about this part."""


@dataclass(frozen=True)
class Verdict:
    """What one check found."""

    check: str
    asked: str
    result: Literal["ok", "FAIL", "-"]
    reason: str = ""

    def __str__(self) -> str:
        told = f": {self.reason}" if self.reason else ""
        return f"  {self.result:<5}{self.check:<25}{self.asked.rstrip('.')}{told}"


def require(condition: object, complaint: str) -> None:
    """Raise `Nonconforming` unless the condition holds."""
    if not condition:
        raise Nonconforming(complaint)


def checks_of(part: Method | Metric) -> list[Callable[[Any, Any], None]]:
    """The suite a part must pass."""
    from salrun.conformance import methods, metrics

    return [*methods.CHECKS] if isinstance(part, Method) else [*metrics.CHECKS]


def apply(check: Callable[[Any, Any], None], part: Method | Metric) -> None:
    """One check on a fresh case; raises what the check raises."""
    from salrun.conformance import methods, metrics

    if part.on_host and check in (methods.device_clean, methods.runs_on_meta, metrics.device_clean):
        raise NotApplicable(f"works on the CPU in part: {part.on_host}")
    check(part, methods.case_of(part) if isinstance(part, Method) else metrics.Case())


def examine(part: Method | Metric) -> Iterator[Verdict]:
    """All checks, one after the other; a part that raises has failed, and says how."""
    for check in checks_of(part):
        asked = (inspect.getdoc(check) or "").splitlines()[0]
        try:
            apply(check, part)
        except NotApplicable as reason:
            yield Verdict(check.__name__, asked, "-", str(reason))
        except Nonconforming as fault:
            yield Verdict(check.__name__, asked, "FAIL", str(fault))
        except BaseException as fault:  # SystemExit too
            if interrupts(fault):
                raise
            yield Verdict(check.__name__, asked, "FAIL", f"it raised {told(fault)}")
        else:
            yield Verdict(check.__name__, asked, "ok")
