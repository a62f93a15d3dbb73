"""What the class of a method or metric says of itself, looked at as one is made: a user's may say anything."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

from salrun.errors import SalrunError, unknown
from salrun.ranges import complaint

if TYPE_CHECKING:
    from salrun.types import Method, Metric

NEEDS = {
    "methods": ("attention", "background", "feature_stats", "layer", "masks", "ids"),
    "metrics": ("model", "masks", "explain", "raw", "other_map"),
}
UNDERSTOOD = ("bool", "str", "Literal")  # of what the base class says that a fact is


def check_class(part: Method | Metric, group: str, where: str) -> None:
    """Raise SalrunError at needs that nobody knows, and at facts that are not what the base class says."""
    base = next(kind for kind in type(part).__mro__ if kind.__module__ == "salrun.types")
    name = type(part).__name__
    for fact, annotation in base.__annotations__.items():
        kind = annotation.removeprefix("ClassVar[").removesuffix("]")
        wrong = complaint(getattr(part, fact), kind) if kind.startswith(UNDERSTOOD) else None
        if wrong:
            raise SalrunError(f"{where}: {fact} of {name} {wrong}")
    for need in _names(part.needs, f"{where}: needs of {name}"):
        if need not in NEEDS[group]:
            raise unknown("need", need, NEEDS[group], f"{where}: needs of {name}")
    if group == "metrics":
        _names(part.turned, f"{where}: turned of {name}")  # type: ignore[union-attr]


def _names(given: Any, what: str) -> Any:
    if not isinstance(given, Set | tuple | list) or not all(isinstance(name, str) for name in given):
        raise SalrunError(f"{what} must be a set of names, got {given!r}")
    return given
