"""What parameters a `_target_` takes, read from its source without importing it (importing torch takes seconds)."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from salrun.errors import SalrunError, near
from salrun.ranges import complaint


class Parameter(NamedTuple):
    """What the source says of one parameter."""

    annotation: str
    required: bool
    module: str = ""  # in which the annotation stands


class UnknownKey(SalrunError):
    """A key that the part at this place of the config does not take."""

    def __init__(self, key: str, known: Iterable[str]) -> None:
        super().__init__(f"unknown key '{key}'{near(key.rpartition('.')[2], known)}")
        self.key = key


@lru_cache(maxsize=512)
def parameters(target: str) -> dict[str, Parameter] | None:
    """The parameters of a dataclass or function by name; None where the source does not tell."""
    module, _, name = target.rpartition(".")
    tree = _tree(module)
    if tree is None:
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _fields(node, module, tree)
        if isinstance(node, ast.FunctionDef) and node.name == name:
            if node.args.kwarg:
                return None
            return _arguments(node.args, module)
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) in (name, "*") for a in node.names):
            return None
    known = [n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    raise SalrunError(f"_target_ '{target}': module {module} has no '{name}'{near(name, known)}")


def _tree(module: str) -> ast.Module | None:
    try:
        spec = importlib.util.find_spec(module) if module else None
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise SalrunError(
            f"_target_ module '{module}' not found; is its folder the current one, or given by --config-dir?"
        )
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        return _syntax(spec.origin, Path(spec.origin).stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError) as fault:
        raise SalrunError(f"_target_ module '{module}': {spec.origin} cannot be read as Python: {fault}") from fault


@lru_cache(maxsize=128)
def _syntax(path: str, changed: int) -> ast.Module:
    """The syntax tree of a file; parsed once while it is not `changed`."""
    return ast.parse(Path(path).read_text(encoding="utf-8"))


def _arguments(given: ast.arguments, module: str) -> dict[str, Parameter]:
    defaults = [*[None] * len(given.args), *given.defaults][len(given.defaults) :]  # those of the last arguments
    pairs = zip([*given.args, *given.kwonlyargs], [*defaults, *given.kw_defaults], strict=True)
    return {
        a.arg: Parameter(ast.unparse(a.annotation) if a.annotation else "Any", default is None, module)
        for a, default in pairs
    }


def _fields(node: ast.ClassDef, module: str, tree: ast.Module) -> dict[str, Parameter] | None:
    """Dataclass fields, base classes first; a hand-written __init__ is left to Python."""
    if any(isinstance(n, ast.FunctionDef) and n.name == "__init__" for n in node.body):
        return None
    found: dict[str, Parameter] = {}
    for base in node.bases:
        name = ast.unparse(base)
        if name in ("Method", "Metric", "Protocol"):
            continue
        inherited = None if "." in name else parameters(f"{_home(name, module, tree)}.{name}")
        if inherited is None:
            return None
        found |= inherited
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotation = ast.unparse(item.annotation)
            if not annotation.startswith("ClassVar"):
                found[item.target.id] = Parameter(annotation, item.value is None, module)
    return found


def _home(name: str, module: str, tree: ast.Module) -> str:
    """The module that defines a base class."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and any((a.asname or a.name) == name for a in node.names):
            return node.module
    return module


def fits(value: Any, annotation: str) -> bool:
    """Whether a YAML value is what an annotation says; annotations we do not understand admit everything."""
    return complaint(value, annotation) is None


def check_parameters(target: str, given: dict[str, Any], where: str, reserved: tuple[str, ...] = ()) -> None:
    """Unknown parameters and wrong types of a `_target_`, and of what stands in its mappings, each one sentence."""
    known = parameters(target)
    if known is None:
        return
    for key, value in given.items():
        if key == "_target_" or key in reserved:
            continue
        if key not in known:
            raise UnknownKey(f"{where}.{key}", [*known, *reserved])
        _check_value(value, known[key].annotation, known[key].module, f"{where}.{key}")


def _check_value(value: Any, annotation: str, module: str, where: str) -> None:
    """A value and what is in it: a part by its `_target_`, `dict[str, T]`, `Annotated[dict, C]` (keys: C's fields)."""
    wrong = complaint(value, annotation)
    if wrong:
        raise SalrunError(f"{where} {wrong}")
    if not isinstance(value, dict):
        return
    if value.get("_target_") is not None:
        if not isinstance(value["_target_"], str):
            raise SalrunError(f"{where}._target_ must be a dotted name, got {value['_target_']!r}")
        return check_parameters(value["_target_"], value, where)
    outer, *inner = _parsed(annotation)
    if outer == "Annotated" and inner[-1].isidentifier() and (tree := _tree(module)) is not None:
        check_parameters(f"{_home(inner[-1], module, tree)}.{inner[-1]}", value, where)
    elif outer in ("dict", "Mapping"):
        for name, content in value.items():
            _check_value(content, inner[1], module, f"{where}.{name}")
    elif "_target_" not in value and not re.search(r"\b(dict|Mapping|Any|object)\b", annotation):
        raise SalrunError(f"{where} names no _target_: it must be a {annotation}")


@lru_cache(maxsize=512)
def _parsed(annotation: str) -> tuple[str, ...]:
    """`name[a, b]` as (name, a, b), of several kinds the first that is one; nothing of others."""
    node = ast.parse(annotation, mode="eval").body
    while isinstance(node, ast.BinOp):
        node = node.left
    if not isinstance(node, ast.Subscript):
        return ("",)
    inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return (ast.unparse(node.value), *map(ast.unparse, inside))
