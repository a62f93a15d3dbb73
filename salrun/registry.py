"""Names: what experiments, datasets, models, methods and metrics there are, from the YAML files and the plug-ins."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from salrun.errors import SalrunError

GROUPS = ("experiment", "dataset", "reasoning", "model", "methods", "metrics", "hydra/launcher")


@lru_cache(maxsize=1)
def conf_dir() -> Path:
    """The configs: installed beside the package, else the checkout's, and that only beside our own pyproject.toml."""
    package = Path(__file__).resolve().parent
    installed = package / "conf"
    if (installed / "config.yaml").exists():
        return installed
    checkout = package.parent
    project = checkout / "pyproject.toml"
    if project.exists() and 'name = "salrun"' in project.read_text() and (checkout / "conf" / "config.yaml").exists():
        return checkout / "conf"
    raise SalrunError(
        f"salrun's configs are missing: looked in {installed} and {checkout / 'conf'}; install salrun again"
    )


def names(group: str, folders: tuple[Path, ...] = ()) -> dict[str, str]:
    """Name -> one-line description (the file's first comment that is no directive), our own and the user's folders'."""
    found: dict[str, str] = {}
    for root in (conf_dir(), *folders):
        for path in sorted((root / group).rglob("*.yaml")):
            name = path.relative_to(root / group).with_suffix("").as_posix()
            found.setdefault(name, _description(path))
    for name, part in PLUGINS.get(group, {}).items():
        found[name] = (inspect.getdoc(part) or "").split("\n")[0]
    return found


def _description(path: Path) -> str:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ").strip()
        if line and not line.startswith("#"):
            break
    return ""


# -- plug-ins: users' methods and metrics by name ---------------------------------------------------------------------

PLUGINS: dict[str, dict[str, type]] = {"methods": {}, "metrics": {}}


def load_plugins() -> None:
    """Import the files of SALRUN_PLUGINS (separated by the path separator) and the entry points `salrun.plugins`.

    Modules of the current folder can be imported from then on.

    Every dataclass there that derives from Method or Metric becomes a name of its own. Configs and plug-ins are code:
    load only what you trust.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for entry in filter(None, os.environ.get("SALRUN_PLUGINS", "").split(os.pathsep)):
        if not Path(entry).exists():
            raise SalrunError(f"plug-in {entry} of SALRUN_PLUGINS is not there")
        register_module(load_file(Path(entry)))
    for point in entry_points(group="salrun.plugins"):
        register_module(point.load())


def load_file(path: Path) -> Any:
    """Import one Python file as a module."""
    if not path.exists():
        raise SalrunError(f"{path} is not there")
    name = path.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path.resolve()):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise SalrunError(f"plug-in {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as fault:
        del sys.modules[name]
        raise SalrunError(f"plug-in {path} cannot be imported: {type(fault).__name__}: {fault}") from fault
    return module


def register_module(module: Any) -> None:
    for group, part in parts_of(module):
        register(group, part)


def parts_of(module: Any) -> Iterator[tuple[str, type]]:
    """The methods and metrics that a module itself defines."""
    from salrun.types import Method, Metric

    for part in vars(module).values():
        if isinstance(part, type) and part.__module__ == module.__name__ and is_dataclass(part):
            if issubclass(part, Method):
                yield "methods", part
            elif issubclass(part, Metric):
                yield "metrics", part


def register(group: str, part: type) -> str:
    """Give a user's class a name and a config, so that `'methods=[my_method]'` finds it."""
    from hydra.core.config_store import ConfigStore

    name = part_name(part)
    known = PLUGINS[group].get(name)
    if name in names(group) and (known is None or known.__module__ != part.__module__):
        raise SalrunError(f"{group} already has '{name}'; give {part.__module__}.{part.__qualname__} another name")
    PLUGINS[group][name] = part
    node: dict[str, Any] = {"_target_": f"{part.__module__}.{part.__qualname__}"}
    for f in fields(part):
        if f.default is not MISSING:
            node[f.name] = f.default
        elif f.default_factory is not MISSING:
            node[f.name] = f.default_factory()
    if group == "metrics":
        node["view"] = getattr(part, "view", "max_abs")
    ConfigStore.instance().store(group=group, name=name, node={name: node}, package=group, provider="salrun plug-in")
    return name


def part_name(part: type) -> str:
    """`name` of the class, or its class name in snake case."""
    given = part.__dict__.get("name")
    return given if isinstance(given, str) else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", part.__name__).lower()
