"""What users' code shares with all code of its process: functions and classes that must stay what they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

MODULES = ("builtins", "json", "os", "math", "numpy", "torch", "torch.autograd", "torch.nn.functional", "torch.nn.init")
# torch.compile replaces the first two, of torch.nn.Module; the command line os._exit; Storage goes by the default type,
# and of a silenced print more is told elsewhere.
PASSING = {"__init__", "__setstate__", "_exit", "Storage", "print"}
setter, limit = setattr, sys.setrecursionlimit  # as they are, whatever becomes of the others


class Surroundings:
    """Functions and classes as they are now, each with its place; a new name must hide none of a base class."""

    def __init__(self) -> None:
        self._depth = sys.getrecursionlimit()
        self._modules = list(sys.modules.items())
        places = list(_places())
        self._classes = [(place, kind, {*names}) for place, kind, names in places if isinstance(kind, type)]
        self._known = [
            (where, holder, names, name, value)
            for where, holder, names in places
            for name, value in list(names.items())
            if (callable(value) or isinstance(value, property | classmethod)) and name not in PASSING
        ]

    def mend(self) -> str:
        """Put back what was replaced; the name of the first, empty where nothing was."""
        first = ""
        if sys.getrecursionlimit() != self._depth:
            limit(self._depth)
            first = "the recursion limit"
        for name, module in self._modules:
            if name not in sys.modules:
                sys.modules[name] = module
                first = first or (_of(name, "salrun", "torch", "sys") and f"sys.modules['{name}']") or ""
        for where, holder, names, name, value in self._known:
            if names.get(name) is not value and not _of_torch(names.get(name), value):
                if holder is names:
                    holder[name] = value
                else:
                    setter(holder, name, value)
                first = first or f"{where}.{name}"
        for where, kind, known in self._classes:
            for name in vars(kind).keys() - known if len(vars(kind)) != len(known) else ():
                if callable(vars(kind)[name]) and any(name in vars(base) for base in kind.__mro__[1:]):
                    delattr(kind, name)
                    first = first or f"{where}.{name}"
        return first


def _of_torch(new: Any, value: Any) -> bool:
    """Whether torch itself wrapped a function of its own, as it does once it is to compile or transform anything."""
    file = getattr(getattr(new, "__code__", None), "co_filename", "")
    return getattr(new, "__wrapped__", None) is value and "torch" in file.replace("\\", "/").split("/")


def _of(name: str, *packages: str) -> bool:
    return name.partition(".")[0] in packages


def _places() -> Iterator[tuple[str, Any, MutableMapping[str, Any]]]:
    """(its name, what holds functions and classes, these by their names)"""
    for where, module in list(sys.modules.items()):
        ours = _of(where, "salrun")
        if module is not None and (ours or where in MODULES):
            yield where, module, vars(module)
        for name, value in list(vars(module).items()) if ours else ():
            if isinstance(value, type) and value.__module__ == where:
                yield f"{where}.{name}", value, vars(value)  # type: ignore[misc]
            elif isinstance(value, dict) and not name.startswith("__"):
                yield f"{where}.{name}", value, value
    if torch := sys.modules.get("torch"):
        for kind in (torch.Tensor, *{torch.nn.Module, *_below(torch.nn.Module)}):
            yield f"{kind.__module__}.{kind.__name__}", kind, vars(kind)


def _below(kind: type) -> Iterator[type]:
    child: type
    for child in type.__subclasses__(kind):
        yield child
        yield from _below(child)
