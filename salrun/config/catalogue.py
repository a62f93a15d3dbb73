"""Names: what experiments, datasets, models, methods and metrics there are, from the YAML files and the plug-ins."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from salrun.config.settings import folder_of
from salrun.errors import SalrunError, named
from salrun.surroundings import Surroundings

GROUPS = ("experiment", "dataset", "reasoning", "model", "methods", "metrics", "logger", "hydra/launcher")


@lru_cache(maxsize=1)
def conf_dir() -> Path:
    """The configs: installed beside the package, else the checkout's, and that only beside our own pyproject.toml."""
    package = Path(__file__).resolve().parents[1]
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
    descriptions: dict[str, str] = {}
    for root in (conf_dir(), *folders):
        for path in sorted((root / group).rglob("*.yaml")):
            name = path.relative_to(root / group).with_suffix("").as_posix()
            descriptions.setdefault(name, _description(path))
    for name, part in PLUGINS.get(group, {}).items():
        descriptions[name] = (inspect.getdoc(part) or "").split("\n")[0]
    return descriptions


def _description(path: Path) -> str:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ").strip()
        if line and not line.startswith("#"):
            break
    return ""


# -- a part's config, without Hydra -----------------------------------------------------------------------------------


def part_config(group: str, name: str, scale: str = "paper", folders: tuple[Path, ...] = ()) -> dict[str, Any] | None:
    """The config of a part by name, as a run without an experiment would have it; None where no part has the name.

    Of Hydra's defaults lists it knows plain entries (`/methods/rise@_here_`, `model: mnist_cnn`, `_self_`). Nothing of
    Hydra is used, so that it may be called inside anybody's own Hydra app.
    """
    if _config_file(f"{group}/{name}", folders) is None:
        load_plugins()
        part = PLUGINS.get(group, {}).get(name)
        return None if part is None else plugin_config(group, part)
    package, tree = _tree(f"{group}/{name}", folders)
    config: Any = OmegaConf.merge(_settings(), {"scale": scale}, tree)
    for folder in ("data_root", "cache_dir"):
        config[folder] = folder_of(folder, config[folder])
    many = group in PLUGINS  # of these a run has several, by name
    place = ".".join(filter(None, [package, name.rpartition("/")[2] if many else ""]))
    try:
        node = OmegaConf.select(config, place)
        plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else None
    except OmegaConfBaseException as fault:
        raise SalrunError(
            f"{group}={name} does not resolve at '{fault.full_key}': {str(fault).splitlines()[0]}"
        ) from fault
    if not isinstance(plain, dict):
        raise SalrunError(f"{_config_file(f'{group}/{name}', folders)} has nothing at '{place}'")
    return {str(key): value for key, value in plain.items()}


@lru_cache(maxsize=1)
def _settings() -> DictConfig:
    """The top-level keys of every config."""
    config: Any = OmegaConf.load(conf_dir() / "config.yaml")
    return OmegaConf.create({key: config._get_node(key) for key in config if key not in ("defaults", "hydra")})


def _config_file(path: str, folders: tuple[Path, ...]) -> Path | None:
    if ".." in path.split("/") or path.endswith("/"):
        return None
    places = (root / f"{path}.yaml" for root in (conf_dir(), *folders))
    return next((place for place in places if place.is_file()), None)


@lru_cache(maxsize=512)
def _tree(
    path: str, folders: tuple[Path, ...], package: str | None = None, above: tuple[str, ...] = ()
) -> tuple[str, DictConfig]:
    """The package of a config file, and its content with that of its defaults list, from the root of the config."""
    file = _config_file(path, folders)
    by = f"the defaults list of {above[-1]}" if above else "a config"
    if file is None:
        raise SalrunError(f"{by} names {path}, which is not there")
    if path in above:
        raise SalrunError(f"{by} leads back to {path}")
    try:
        content = OmegaConf.load(file)
    except Exception as fault:  # the YAML reader's errors
        raise SalrunError(f"{file} is no YAML: {' '.join(str(fault).split())}") from fault
    if not isinstance(content, DictConfig):
        raise SalrunError(f"{file} must be a mapping (key: value)")
    group = path.rpartition("/")[0]
    header = re.search(r"\A(?:#.*\n)*?#\s*@package\s+(\S+)", file.read_text(encoding="utf-8"))
    package = package if package is not None else _package(header[1] if header else "_group_", group, "")
    listed = content.pop("defaults", None) or []
    if isinstance(listed, str | int | float | DictConfig):
        raise SalrunError(f"{file}: its defaults must be a list, got {listed}")
    trees = []
    for item in listed if "_self_" in listed else ["_self_", *listed]:
        if item == "_self_":
            trees.append(_placed(content, package))
        else:
            inside = _listed(item, group, package, path)
            trees += [_tree(inner, folders, place, (*above, path))[1] for inner, place in inside]
    return package, OmegaConf.merge(*trees)  # type: ignore[return-value]


def _placed(content: DictConfig, package: str) -> DictConfig:
    for key in reversed(package.split(".") if package else []):
        content = OmegaConf.create({key: content})
    return content


def _listed(item: Any, group: str, package: str, path: str) -> Iterator[tuple[str, str | None]]:
    """(config file, package) of one entry of a defaults list; the package None where the file says its own."""
    if isinstance(item, str):
        choices = [item]
    elif isinstance(item, Mapping | DictConfig) and len(item) == 1:
        ((key, value),) = item.items()
        folder, _, place = str(key).partition("@")
        options = [] if value is None else [value] if isinstance(value, str) else list(value)
        choices = [f"{folder}/{option}" + (f"@{place}" if place else "") for option in options]
    else:
        choices = [""]
    for choice in choices:
        name, _, place = choice.partition("@")
        if not name or " " in name:  # override, optional
            raise SalrunError(f"the defaults list of {path}: only a run can compose '{item}'")
        inner = name[1:] if name.startswith("/") else f"{group}/{name}"
        yield inner, _package(place, inner.rpartition("/")[0], package) if place else None


def _package(name: str, group: str, package: str) -> str:
    """A package's full name: `_global_`, `_group_` and `_here_` resolved, others below the package given."""
    special = {"_global_": "", "_group_": group.replace("/", "."), "_here_": package}
    return special[name] if name in special else ".".join(filter(None, [package, name]))


# -- plug-ins: users' methods and metrics by name ---------------------------------------------------------------------

PLUGINS: dict[str, dict[str, type]] = {"methods": {}, "metrics": {}}


def load_plugins() -> None:
    """Import the files of SALRUN_PLUGINS (separated by the path separator) and the entry points `salrun.plugins`.

    Modules of the current folder can be imported from then on.

    Every dataclass there that derives from Method or Metric becomes a name of its own. Configs and plug-ins are code:
    load only what you trust.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for entry in filter(None, os.environ.get("SALRUN_PLUGINS", "").split(os.pathsep)):
        if not Path(entry).exists():
            raise SalrunError(f"plug-in {entry} of SALRUN_PLUGINS is not there")
        module = load_file(Path(entry))
        if not any(parts_of(module)):
            raise SalrunError(f"plug-in {entry} of SALRUN_PLUGINS defines no method, metric, data set or recipe")
        register_module(module)
    for point in entry_points(group="salrun.plugins"):
        with named(f"plug-in {point.value} cannot be imported: it"):
            module = point.load()
        register_module(module)


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
    sys.path.append(str(path.resolve().parent))
    try:
        import salrun.types  # noqa: F401 (here: torch; what the file replaces of it is seen)

        with named(f"plug-in {path} cannot be imported: it", Surroundings()):
            spec.loader.exec_module(module)
    except SalrunError:
        del sys.modules[name]
        raise
    return module


def register_module(module: Any) -> None:
    for group, part in parts_of(module):
        if group in PLUGINS:
            register(group, part)


def parts_of(module: Any) -> Iterator[tuple[str, type]]:
    """(group, class) of the methods, metrics, data sets and recipes that a module itself defines."""
    from salrun.types import Method, Metric

    for part in vars(module).values():
        if isinstance(part, type) and part.__module__ == module.__name__:
            if issubclass(part, Method | Metric):
                _check_dataclass(part, Method if issubclass(part, Method) else Metric)
            if not is_dataclass(part):
                continue
            if issubclass(part, Method):
                yield "methods", part
            elif issubclass(part, Metric):
                yield "metrics", part
            elif hasattr(part, "explained"):
                yield "dataset", part
            elif hasattr(part, "obtain"):
                yield "model", part


def _check_dataclass(part: type, base: type) -> None:
    """Raise where a part was to be a dataclass: it can be called and is nobody's base, or it has parameters."""
    parameters = [name for name, kind in inspect.get_annotations(part).items() if "ClassVar" not in str(kind)]
    whole = part.__call__ is not base.__call__ and not part.__subclasses__()  # type: ignore[operator]
    if "__dataclass_fields__" not in part.__dict__ and (parameters or (whole and not is_dataclass(part))):
        raise SalrunError(
            f"class {target_of(part)} derives from {base.__name__} and is no dataclass: put @dataclass above it"
        )


def register(group: str, part: type) -> str:
    """Give a user's class a name and a config, so that `'methods=[my_method]'` finds it."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    name = part_name(part)
    namesake = PLUGINS[group].get(name)
    if name in names(group) and (namesake is None or namesake.__module__ != part.__module__):
        raise SalrunError(f"{group} already has '{name}'; give {target_of(part)} another name")
    node = {name: plugin_config(group, part)}
    for parameter, default in node[name].items():
        try:
            OmegaConf.create({parameter: default})
        except OmegaConfBaseException as fault:
            kind = type(default).__name__
            told = f"the default of {parameter} is a {kind}: a config holds numbers, text, lists and mappings"
            raise SalrunError(f"{target_of(part)}: {told}") from fault
    PLUGINS[group][name] = part
    ConfigStore.instance().store(group=group, name=name, node=node, package=group, provider="salrun plug-in")
    return name


def plugin_config(group: str, part: type) -> dict[str, Any]:
    """The config of a user's class: its target, its parameters with their defaults, a metric's view."""
    node: dict[str, Any] = {"_target_": target_of(part)}
    for f in fields(part):
        if f.default is not MISSING:
            node[f.name] = f.default
        elif f.default_factory is not MISSING:
            node[f.name] = f.default_factory()
    if group == "metrics":
        node["view"] = getattr(part, "view", "max_abs")
    return node


def target_of(part: type) -> str:
    """What `_target_` says of a class."""
    return f"{part.__module__}.{part.__qualname__}"


def part_name(part: type) -> str:
    """`name` of the class, or its class name in snake case."""
    given = part.__dict__.get("name")
    return given if isinstance(given, str) else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", part.__name__).lower()
