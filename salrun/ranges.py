"""What a parameter may be, declared in its annotation: `n_masks: Annotated[int, AtLeast(1)]`, `Literal["norm", "raw"]`.

Annotations are read as text, so that a config is checked against a class that is not imported (that takes torch and
seconds); a part that is made in Python is checked by the same rules as it is made (`check_declared`).
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from numbers import Real
from typing import Any

from salrun.errors import SalrunError


class Range:
    """Values that a parameter may have; `str` says them after "must be"."""

    def admits(self, value: Any) -> bool:
        raise NotImplementedError("abstract")


def _number(value: Any) -> bool:
    return isinstance(value, Real)  # numpy's too


@dataclass(frozen=True)
class AtLeast(Range):
    least: float

    def admits(self, value: Any) -> bool:
        return not _number(value) or value >= self.least

    def __str__(self) -> str:
        return f"at least {self.least:g}"


@dataclass(frozen=True)
class AtMost(Range):
    most: float

    def admits(self, value: Any) -> bool:
        return not _number(value) or value <= self.most

    def __str__(self) -> str:
        return f"at most {self.most:g}"


@dataclass(frozen=True)
class Above(Range):
    limit: float

    def admits(self, value: Any) -> bool:
        return not _number(value) or value > self.limit

    def __str__(self) -> str:
        return f"above {self.limit:g}"


@dataclass(frozen=True)
class Between(Range):
    """Both ends are allowed."""

    low: float
    high: float

    def admits(self, value: Any) -> bool:
        return not _number(value) or self.low <= value <= self.high

    def __str__(self) -> str:
        return f"between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class Odd(Range):
    def admits(self, value: Any) -> bool:
        return not _number(value) or value % 2 == 1

    def __str__(self) -> str:
        return "odd"


@dataclass(frozen=True)
class Complaint:
    """Why a value is not what an annotation says; `near`: its type is right, its range is not."""

    wanted: str
    value: Any
    near: bool = False

    def __str__(self) -> str:
        return f"must be {self.wanted}, got {self.value!r}"


def complaint(
    value: Any, annotation: str, types: bool = True, names: Mapping[str, Any] | None = None
) -> Complaint | None:
    """What is wrong with a value; None where nothing is. What is not understood of an annotation admits everything.

    `types` False: choices and ranges only. `names`: what names in ranges stand for, beside the ranges themselves.
    """
    return _complaint(value, _parsed(annotation), types, names or {})


def readable(annotation: str) -> str:
    """What the annotation asks for, in words."""
    return _readable(_parsed(annotation), ranges=True)


def check_declared(part: Any) -> None:
    """Raise SalrunError if a field of a dataclass is not one of its choices or not in its range."""
    names = vars(sys.modules[type(part).__module__])
    for f in fields(part) if is_dataclass(part) else ():
        wrong = complaint(getattr(part, f.name), str(f.type), types=False, names=names)  # typing's own text reads alike
        if wrong:
            raise SalrunError(f"{f.name} of {type(part).__name__} {wrong}")


@lru_cache(maxsize=4096)
def _parsed(annotation: str) -> ast.expr | None:
    try:
        return ast.parse(annotation, mode="eval").body
    except SyntaxError:
        return None


def _complaint(value: Any, node: ast.expr | None, types: bool, names: Mapping[str, Any]) -> Complaint | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        wrong = [_complaint(value, side, types, names) for side in (node.left, node.right)]
        if not all(wrong):
            return None
        return next((w for w in wrong if w and w.near), None) or Complaint(_readable(node), value)
    outer, inner = _subscript(node)
    if outer == "Optional":
        return None if value is None else _complaint(value, inner[0], types, names)
    if outer == "Annotated":
        wrong_type = _complaint(value, inner[0], types, names)
        if wrong_type:
            return wrong_type
        ranges = _ranges(inner[1:], names)
        if all(r.admits(value) for r in ranges):
            return None
        return Complaint(" and ".join(map(str, ranges)), value, near=True)
    if outer == "Literal":
        chosen = any(isinstance(o, ast.Constant) and o.value == value for o in inner)
        return None if chosen else Complaint(_readable(node), value)
    if outer in ("list", "Sequence", "tuple"):
        if not isinstance(value, list | tuple):
            return Complaint(_readable(node), value) if types else None
        wrong_entry = next(filter(None, (_complaint(v, inner[0], types, names) for v in value)), None)
        if wrong_entry and wrong_entry.near:
            return replace(wrong_entry, wanted=f"{wrong_entry.wanted} each")
        return wrong_entry
    if isinstance(node, ast.Constant) and node.value is None:
        return None if value is None else Complaint("null", value)
    if types and not _is(value, outer or getattr(node, "id", "")):
        return Complaint(_readable(node), value)
    if _number(value) and not math.isfinite(value):
        return Complaint("a finite number", value, near=True)
    return None


def _subscript(node: ast.expr | None) -> tuple[str, list[ast.expr]]:
    """(name, what is in the brackets) of `name[...]`; nothing of anything else."""
    if not isinstance(node, ast.Subscript):
        return "", []
    name = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
    return name, node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _ranges(nodes: list[ast.expr], names: Mapping[str, Any]) -> list[Range]:
    """The ranges that are understood: of ours, of constants and of the names given."""
    kinds = {kind.__name__: kind for kind in Range.__subclasses__()}
    understood = []
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
            values = [_constant(argument, names) for argument in (*node.args, *(k.value for k in node.keywords))]
            if None not in values:
                understood.append(kinds[node.func.id](*values))
    return understood


def _constant(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _is(value: Any, name: str) -> bool:
    if name in ("int", "float"):
        return isinstance(value, int if name == "int" else int | float) and not isinstance(value, bool)
    kinds = {"bool": bool, "str": str, "list": list, "tuple": list, "dict": dict, "Mapping": dict}
    return isinstance(value, kinds[name]) if name in kinds else True


def _readable(node: ast.expr | None, ranges: bool = False) -> str:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return f"{_readable(node.left, ranges)} or {_readable(node.right, ranges)}"
    outer, inner = _subscript(node)
    if outer == "Annotated":
        told = map(str, _ranges(inner[1:], {})) if ranges else ()
        return f"{_readable(inner[0], ranges)} {' and '.join(told)}".strip()
    if outer == "Literal":
        return "one of " + ", ".join(str(o.value) for o in inner if isinstance(o, ast.Constant))
    if outer in ("dict", "Mapping"):
        return "a mapping (name: settings)"
    if outer in ("list", "Sequence", "tuple") and ranges:
        return f"{outer}[{', '.join(_readable(n, ranges) for n in inner)}]"
    return ("" if node is None else ast.unparse(node)).replace("None", "null")
