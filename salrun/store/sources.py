"""Which code a stored result depends on: hashes of modules and of what they import, read without running them."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

LEFT_OUT = (
    "salrun",
    "salrun.types",
    "salrun.errors",
    "salrun.progress",
    "salrun.store",
)  # not hashed, nor what is in the store package


LIBRARIES = (
    "torch",
    "torchvision",
    "timm",
    "transformers",
)  # known by their versions, which run.json has: too large to be read


def source_of(part: object) -> str:
    """Hash of the module that defines a part, and of what it imports: changed code, changed key.

    A part that is made of another (its `base`) depends on that one's too.
    """
    cls = part if isinstance(part, type) else type(part)
    base = None if isinstance(part, type) else getattr(part, "base", None)
    own = source_of_module(cls.__module__)
    return own if base is None else _hash((own, source_of(base)))


def source_of_module(module: str) -> str:
    """Hash of a module and of every salrun and user's module it imports, directly or not.

    Not of installed packages (versions are in run.json), of the standard library, and of what is imported by a name
    made at run time. salrun's own types, errors, progress and store hold no arithmetic and are left out.
    """
    return _hash(tuple(_source(m) for m in sorted(_reach(module, frozenset()))))


@lru_cache(maxsize=512)  # asked for by every key; the texts are the same objects each time, and found by identity
def _hash(texts: tuple[str, ...]) -> str:
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def of_user(part: object) -> bool:
    """Whether the class of a part is none of salrun's."""
    return type(part).__module__.partition(".")[0] != "salrun"


def users_code(dataset: Any, config: Any = None) -> dict[str, dict[str, str]]:
    """Hashes of the modules that define the data set, or a part of it, outside of salrun; nothing if none does.

    A fingerprint tells what is stored, not what a user's class makes of it. Our own have their versions in theirs.
    """
    classes = [type(part).__module__ for part in (dataset, getattr(dataset, "plain", dataset))]
    named = [target.rpartition(".")[0] for target in _targets(config)]
    theirs = sorted({module for module in (*classes, *named) if module.partition(".")[0] != "salrun"})
    return {"data_source": {module: source_of_module(module) for module in theirs}} if theirs else {}


def _targets(config: Any) -> Iterator[str]:
    """Every `_target_` in a config, however deep."""
    values = config.values() if isinstance(config, Mapping) else config if isinstance(config, list) else ()
    if isinstance(config, Mapping) and "_target_" in config:
        yield str(config["_target_"])
    for value in values:
        yield from _targets(value)


def _spec(module: str) -> ModuleSpec | None:
    """How Python finds a module; neither it nor the packages above it are run for that."""
    loaded = getattr(sys.modules.get(module), "__spec__", None)
    if loaded is not None:
        return loaded
    package = module.rpartition(".")[0]
    try:
        if not package:
            return importlib.util.find_spec(module)
        above = _spec(package)
        folders = above.submodule_search_locations if above is not None else None
        return PathFinder.find_spec(module, folders) if folders is not None else None
    except (ImportError, ValueError):  # ValueError: __main__ has no spec
        return None


@lru_cache(maxsize=4096)
def _file(module: str) -> Path | None:
    """The file of a module; None for what has none (built in, frozen, a bare folder, not a module)."""
    spec = _spec(module)
    origin = spec.origin if spec is not None else getattr(sys.modules.get(module), "__file__", None)
    path = Path(origin).absolute() if origin else None
    return path if path is not None and path.is_file() else None


@lru_cache(maxsize=512)
def _source(module: str) -> str:
    path = _file(module)
    if path is None:
        return module
    if path.suffix != ".py":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return path.read_text(encoding="utf-8", errors="backslashreplace")


@lru_cache(maxsize=512)
def _imports(module: str) -> frozenset[str]:
    """The modules a module imports, and the packages they are in, as far as they are hashed with it."""
    named = {name for asked in _asked(module) for name in _with_packages(asked)}
    others = (name for name in named - {module} if name not in LEFT_OUT and not name.startswith("salrun.store."))
    return frozenset(name for name in others if _followed(name, module))


def _asked(module: str) -> Iterator[str]:
    """Full names in a module's import statements; some of them name no module but something in one."""
    path = _file(module)
    if path is None or path.suffix != ".py":
        return
    try:
        tree = ast.parse(_source(module))
    except (SyntaxError, ValueError):  # never imported, then: its text is hashed all the same
        return
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            with contextlib.suppress(ImportError):  # more dots than there are packages
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node, whatever they stand in; expressions, most of a tree, hold none."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(node, block, ()):
            yield statement
            yield from _statements(statement)


def _with_packages(name: str) -> Iterator[str]:
    """`a.b.c` -> a, a.b, a.b.c."""
    parts = name.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _followed(name: str, by: str) -> bool:
    """Whether a name is a module of salrun, of the importing module's own package, or a user's."""
    top = name.partition(".")[0]
    if top in ("salrun", by.partition(".")[0]):
        return top not in LIBRARIES and _file(name) is not None
    if _installed(_file(top)):
        return False
    path = _file(name)
    return path is not None and not _installed(path)


def _installed(path: Path | None) -> bool:
    """Whether a file belongs to an installed package or to Python itself."""
    if path is None:
        return False
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return any(place.is_relative_to(root) for place in (path, path.resolve()) for root in _python_itself())


@lru_cache(maxsize=1)
def _python_itself() -> frozenset[Path]:
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    return frozenset([*folders, *(folder.resolve() for folder in folders)])


@lru_cache(maxsize=512)
def _reach(module: str, seen: frozenset[str]) -> frozenset[str]:
    reached, pending = {*seen, module}, [module]
    while pending:
        imports = _imports(pending.pop()) - reached
        reached |= imports
        pending += imports
    return frozenset(reached)


def commit() -> str | None:
    """The checkout's commit, with a + where files differ from it; of an installed package the one it was built of."""
    package = Path(__file__).resolve().parents[1]
    if not (package.parent / ".git").exists():
        built = package / "commit.txt"  # written by hatch_build.py
        return built.read_text(encoding="utf-8").strip() if built.is_file() else None
    git = ["git", "-C", str(package.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
