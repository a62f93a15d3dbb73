"""From a name, a spec, a file or `module:Class` to a method, metric, data set or recipe: the only resolver."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from salrun.config.catalogue import load_file, load_plugins, names, part_config, part_name, parts_of, plugin_config
from salrun.config.declared import check_class
from salrun.errors import SalrunError, named, near, unknown
from salrun.surroundings import Surroundings

if TYPE_CHECKING:
    from salrun.types import Dataset, Method, Metric, Recipe
    from salrun.views import NamedView

OF_METHOD = ("view", "target", "label")  # keys of a method's config that are not its own parameters
OF_METRIC = ("view", "variants", "numerics")
OF_DATASET = ("transforms",)
REASONING = "salrun.datasets.reasoning.Reasoning"
OBJECT = "salrun.datasets.textbox.Thing"
TRANSFORMED = "salrun.datasets.transforms.Transformed"
KINDS = {"methods": "method", "metrics": "metric", "dataset": "dataset", "model": "model"}  # what a group's parts are
SET_BY_OPTIONS = {"metrics": ("view",), "dataset": OF_DATASET}  # beside the part's own parameters
CAPTUM = "captum:"

Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A part before it is made: its group, the name that tables have for it, its config."""

    group: str
    name: str
    spec: dict[str, Any]

    @property
    def where(self) -> str:
        """The place of its config in a run's."""
        return f"{self.group}.{self.name}" if self.group in ("methods", "metrics") else self.group


@dataclass(frozen=True)
class MethodPart:
    """A method as this run uses it."""

    name: str
    method: Method
    view: NamedView
    target: str
    label: str
    config: dict[str, Any]


@dataclass(frozen=True)
class MetricPart:
    """One mode of a metric, a variant of its config.

    `view` None means the raw attribution, "method" the method's own view. `exact`: scored exactly, whatever the run's
    `numerics`.
    """

    name: str
    mode: str
    metric: Metric
    view: NamedView | Literal["method"] | None
    config: dict[str, Any]
    exact: bool = False

    def view_of(self, part: MethodPart) -> NamedView | None:
        """The view this metric reads of a method's maps."""
        return part.view if self.view == "method" else self.view

    @property
    def view_name(self) -> str:
        return self.view if isinstance(self.view, str) else "raw" if self.view is None else self.view.name


# -- what a word stands for --------------------------------------------------------------------------------------------


def entries(
    word: str,
    groups: Sequence[str] = ("methods", "metrics"),
    scale: str = "paper",
    folders: tuple[Path, ...] = (),
    where: str = "",
) -> list[Entry]:
    """What a word stands for in these groups: a name, `file.py` (every part in it), `module:Class`, `captum:Class`.

    Names are those of config files, shipped or in the user's folders, and of plug-ins; Hydra takes no part in it.
    """
    if word.startswith(CAPTUM):
        (captum,) = entries("captum", ("methods",), scale, folders)
        return [replace(captum, spec=captum.spec | {"cls": word.removeprefix(CAPTUM)})]
    if word.endswith(".py") or ":" in word:
        load_plugins()
        defined = _of_file(word, groups) if word.endswith(".py") else _of_module(word, groups)
        return [Entry(group, part_name(part), plugin_config(group, part)) for group, part in defined]
    specs = {group: part_config(group, word, scale, folders) for group in groups}
    named = [Entry(group, word.rpartition("/")[2], spec) for group, spec in specs.items() if spec is not None]
    if not named:
        plain = "/" not in word
        options = [name for group in groups for name in names(group, folders) if not (plain and "/" in name)]
        raise unknown(_kinds(groups), word, options, where)
    return named


def entry(group: str, part: str | Spec, options: Spec | None = None, name: str = "", scale: str = "paper") -> Entry:
    """The one part of a group that a word or a spec stands for, with options that its class takes."""
    options = dict(options or {})
    if isinstance(part, str):
        matches = entries(part, (group,), scale)
        if len(matches) > 1:
            module = Path(part).stem
            several = ", ".join(f"{module}:{each.spec['_target_'].rpartition('.')[2]}" for each in matches)
            raise SalrunError(f"{part} defines several {group}: name one ({several})")
        chosen = matches[0]
        options = {"options": options} if part.startswith(CAPTUM) else options
    else:
        chosen = Entry(group, name or group, dict(part))
    if options:
        _check_options(chosen, options)
    return replace(chosen, name=name or chosen.name, spec={**chosen.spec, **options})


def _check_options(chosen: Entry, options: Spec) -> None:
    cls = locate(chosen.spec.get("_target_"), chosen.where)
    if not is_dataclass(cls):
        return
    accepted = [f.name for f in fields(cls) if f.init]
    for key in options:
        if key not in accepted and key not in SET_BY_OPTIONS.get(chosen.group, ()):
            raise SalrunError(f"{chosen.name} has no option '{key}'{near(key, accepted)}")


def _of_file(word: str, groups: Sequence[str]) -> list[tuple[str, type]]:
    defined = [(group, part) for group, part in parts_of(load_file(Path(word))) if group in groups]
    if not defined:
        raise SalrunError(f"{word} defines no dataclass that {_derives(groups)}")
    return defined


def _of_module(word: str, groups: Sequence[str]) -> list[tuple[str, type]]:
    module, _, name = word.partition(":")
    with named(f"cannot import {module}: it"):
        imported = importlib.import_module(module)
    defined = {part.__name__: (group, part) for group, part in parts_of(imported)}
    of_groups = {cls: pair for cls, pair in defined.items() if pair[0] in groups}
    if name not in of_groups:
        raise unknown(_kinds(groups), name, of_groups, f"module {module}")
    return [of_groups[name]]


def _kinds(groups: Sequence[str]) -> str:
    return " or ".join(KINDS[group] for group in groups)


def _derives(groups: Sequence[str]) -> str:
    bases = [base for group, base in (("methods", "Method"), ("metrics", "Metric")) if group in groups]
    return f"derives from salrun.types.{' or '.join(bases)}" if bases else f"is a {_kinds(groups)}"


def _made_already(part: object, options: Spec) -> None:
    """Raise if options are given for what they can no longer change."""
    if options:
        given = ", ".join(options)
        raise SalrunError(f"{type(part).__name__} is made already: give {given} where it is made, or name the class")


# -- parts -------------------------------------------------------------------------------------------------------------


def dataset_part(part: str | Spec | Dataset, options: Spec | None = None) -> Dataset:
    """The data set that a word, a spec or itself stands for, seen through its `transforms` where it has some."""
    if not isinstance(part, str | Mapping):
        _made_already(part, options or {})
        return part
    spec = entry("dataset", part, options).spec
    if isinstance(spec.get("plain"), str):  # a data set made of another
        spec["plain"] = dataset_part(spec["plain"], {"root": spec["root"]} if spec.get("root") else {})
    plain = instantiate({k: v for k, v in spec.items() if k not in OF_DATASET}, "dataset")
    if not spec.get("transforms"):
        return plain
    return instantiate({"_target_": TRANSFORMED, "plain": plain, **spec["transforms"]}, "dataset.transforms")


def recipe_part(part: str | Spec | Recipe, options: Spec | None = None, where: str = "model") -> Recipe:
    """The model recipe that a word, a spec or itself stands for."""
    if not isinstance(part, str | Mapping):
        _made_already(part, options or {})
        return part
    spec = entry("model", part, options).spec
    recipe = instantiate(spec, where)
    if not hasattr(recipe, "obtain"):
        target = spec.get("_target_")
        raise SalrunError(
            f"{where}._target_ '{target}' is no model recipe; "
            f"a network of your own is model=own model.arch._target_={target}"
        )
    return recipe


def method_part(
    part: str | Spec | Method,
    options: Spec | None = None,
    *,
    name: str = "",
    target: str = "predicted",
    scale: str = "paper",
) -> MethodPart:
    """The method that a word, a spec or itself stands for, with its view, target and label."""
    from salrun.types import Method

    if isinstance(part, Method):
        _made_already(part, options or {})
        check_class(part, "methods", part_name(type(part)))
        name = name or part_name(type(part))
        return MethodPart(name, part, view_part("max_abs", name), target, part.paper_name or name, {})
    chosen = entry("methods", part, options, name, scale)
    parameters = {k: v for k, v in chosen.spec.items() if k not in OF_METHOD}
    method = instantiate(parameters, chosen.where, Method)
    check_class(method, "methods", chosen.where)
    label = chosen.spec.get("label") or method.paper_name or chosen.name
    view = view_part(chosen.spec.get("view") or "max_abs", f"{chosen.where}.view")
    return MethodPart(chosen.name, method, view, chosen.spec.get("target") or target, label, parameters)


def metric_parts(
    part: str | Spec | Metric, options: Spec | None = None, *, name: str = "", scale: str = "paper"
) -> list[MetricPart]:
    """What a word, a spec or a metric itself stands for: one part per variant of the config; without variants, one.

    An option leaves out the variants that set it otherwise.
    """
    from salrun.types import Metric

    options = dict(options or {})
    if isinstance(part, Metric):
        _made_already(part, {k: v for k, v in options.items() if k != "view"})
        check_class(part, "metrics", part_name(type(part)))
        view = options.get("view") or getattr(part, "view", "max_abs")
        name = name or part_name(type(part))
        return [MetricPart(name, "", part, _metric_view(part, view, name), {})]
    chosen = entry("metrics", part, options, name, scale)
    plain = {k: v for k, v in chosen.spec.items() if k != "variants"}
    variants = {mode: dict(changes or {}) for mode, changes in (chosen.spec.get("variants") or {"": {}}).items()}
    agreeing = {
        mode: changes
        for mode, changes in variants.items()
        if all(key not in options or options[key] == value for key, value in changes.items())
    }
    parts = []
    for mode, changes in (agreeing or {"": {}}).items():
        merged = plain | changes
        parameters = {k: v for k, v in merged.items() if k not in OF_METRIC}
        metric = instantiate(parameters, chosen.where, Metric)
        check_class(metric, "metrics", chosen.where)
        view = _metric_view(metric, merged.get("view") or "max_abs", f"{chosen.where}.view")
        parts.append(MetricPart(chosen.name, mode, metric, view, parameters, _exact(merged, chosen.where)))
    return parts


def _exact(spec: Spec, where: str) -> bool:
    """Whether a metric's spec has `numerics: exact`."""
    numerics = spec.get("numerics")
    if numerics not in (None, "exact"):
        raise SalrunError(f"{where}.numerics must be exact (whatever the run's is) or null, got {numerics!r}")
    return numerics == "exact"


def _metric_view(metric: Metric, name: Any, where: str) -> NamedView | Literal["method"] | None:
    if "raw" in metric.needs:
        return None
    return "method" if name == "method" else view_part(name, where)


def view_part(name: Any, where: str) -> NamedView:
    """The view of this name."""
    from salrun.views import view

    if not isinstance(name, str):
        raise SalrunError(f"{where} must be the name of a view (salrun list views), got {name!r}")
    try:
        return view(name)
    except SalrunError as fault:
        raise SalrunError(f"{where}: {fault}") from fault


# -- objects from specs ------------------------------------------------------------------------------------------------


def instantiate(spec: Any, where: str, kind: type = object) -> Any:
    """The object a `_target_` names, nested ones first; under the key `arch` a factory, called once per model built.

    What is not of the `kind` asked for is refused before anything is called.
    """
    if isinstance(spec, list):
        return [instantiate(v, where) for v in spec]
    if not isinstance(spec, dict):
        return spec
    target = locate(spec["_target_"], where) if "_target_" in spec else None
    if kind is not object and not (isinstance(target, type) and issubclass(target, kind)):
        raise SalrunError(f"{where}: {spec.get('_target_')} is not a {kind.__module__}.{kind.__name__}")
    values = {k: instantiate(v, f"{where}.{k}") for k, v in spec.items() if k != "_target_"}
    if target is None:
        return values
    if not callable(target):
        raise SalrunError(f"{where}._target_ '{spec['_target_']}' is neither a class nor a function")
    if where.endswith(".arch"):
        return partial(target, **values)
    try:
        return target(**values)
    except SalrunError as fault:
        named = "" if str(fault).startswith(where) else f"{where}: "
        raise SalrunError(f"{named}{fault}") from fault
    except (TypeError, ValueError, LookupError, AttributeError) as fault:
        named = "" if isinstance(fault, TypeError) else f"{type(fault).__name__}: "
        raise SalrunError(f"{where}: {spec['_target_']} does not take these parameters: {named}{fault}") from fault


def target_part(spec: Spec) -> Callable[..., Any]:
    """The function of the logits that `target: {_target_: my.py:f, ...}` names, with its options."""
    word = spec.get("_target_")
    path, _, name = str(word).rpartition(":")
    if path.endswith(".py"):
        module = load_file(Path(path))
        if not hasattr(module, name):
            raise unknown(f"name in {path}", name, vars(module), "target._target_")
        function = getattr(module, name)
    else:
        function = locate(word, "target")
    if not callable(function):
        raise SalrunError(f"target._target_ '{word}' is no function")
    options = {key: value for key, value in spec.items() if key != "_target_"}
    try:
        inspect.signature(function).bind(None, **options)
    except TypeError as fault:
        raise SalrunError(
            f"target: {word} takes the logits and its options, and cannot be called so: {fault}"
        ) from fault
    return partial(function, **options)


def locate(target: str | None, where: str) -> Callable[..., Any]:
    """What a dotted name names."""
    if not target:
        raise SalrunError(f"{where}._target_ is not set: give the class or function by its dotted name")
    module, _, name = target.rpartition(".")
    if not module:
        raise SalrunError(f"{where}._target_ '{target}' has no module: give a dotted name such as mymodule.{target}")
    try:
        around = None if module in sys.modules or module.startswith("salrun.") else Surroundings()
        with named(f"{where}._target_ '{target}' cannot be imported: it", around):
            home = importlib.import_module(module)
    except SalrunError as fault:
        if isinstance(fault.__cause__, ModuleNotFoundError):
            raise SalrunError(f"{where}._target_ '{target}': cannot import {fault.__cause__.name}") from fault
        raise
    if not hasattr(home, name):
        raise unknown(f"name in module {module}", name, vars(home), f"{where}._target_")
    return getattr(home, name)
