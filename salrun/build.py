"""From a composed config to parts: the only place that instantiates. `check` needs no torch, `build` does."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from salrun.errors import SalrunError, unknown
from salrun.signatures import check_parameters, parameters

if TYPE_CHECKING:
    import torch

    from salrun.store import Store
    from salrun.types import Method, Metric
    from salrun.views import NamedView

SCALES = ("smoke", "laptop", "paper")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc malloc.h
TARGETS = ("predicted", "label", "least_probable")
OF_METHOD = ("view", "target", "label")  # keys of a method's config that are not its own parameters
OF_METRIC = ("view", "variants")
OF_DATASET = ("transforms",)
TRANSFORMED = "salrun.datasets.transforms.Transformed"
KEYS: dict[str, tuple[Any, tuple[str, ...] | None]] = {  # top-level settings: type and allowed values
    "name": (str, None),
    "paper": ((str, type(None)), None),
    "seed": (int, None),
    "scale": (str, SCALES),
    "target": (str, TARGETS),
    "device": (str, None),
    "precision": (str, ("float32", "float64")),
    "tile": (int, None),
    "chunk": ((int, type(None)), None),
    "threads": ((int, type(None)), None),
    "keep_maps": (str, ("auto", "all", "none")),
    "compile": (str, ("auto", "on", "off")),
    "plan": (bool, None),
    "report": (bool, None),
    "data_root": (str, None),
    "cache_dir": (str, None),
}
# Further top-level keys, checked where they are read.
OTHER_KEYS = ("dataset", "model", "methods", "metrics", "reasoning", "budget", "fit_images", "others", "shard")


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
    """One variant of a metric; `view` None means the raw attribution, "method" the method's own view."""

    name: str
    variant: str
    metric: Metric
    view: NamedView | Literal["method"] | None
    config: dict[str, Any]

    def view_of(self, part: MethodPart) -> NamedView | None:
        """The view this metric reads of a method's maps."""
        return part.view if self.view == "method" else self.view

    @property
    def view_name(self) -> str:
        return self.view if isinstance(self.view, str) else "raw" if self.view is None else self.view.name


@dataclass
class Cell:
    """One experiment cell: dataset x model x seed, and what is done to it."""

    name: str
    paper: str | None
    scale: str
    seed: int
    dataset: Any
    recipe: Any
    others: dict[str, Any]
    methods: list[MethodPart]
    metrics: list[MetricPart]
    device: torch.device
    precision: str
    tile: int
    chunk: int | None
    keep_maps: str
    compile: Literal["auto", "on", "off"]
    shard: tuple[int, int]
    store: Store
    config: dict[str, Any] = field(repr=False)

    def explainer(self, part: MethodPart, metric: Metric) -> MethodPart:
        """The method that explains other images for the metric: the one it scores, or the metric's fixed one."""
        fixed = getattr(metric, "fixed_explainer", None)
        return part if fixed is None else next(p for p in self.methods if p.name == fixed)


# -- without torch ----------------------------------------------------------------------------------------------------


def check(cfg: DictConfig) -> dict[str, Any]:
    """The config as plain values, every name, key and type of it checked. Raises SalrunError in one sentence."""
    _check_switches(cfg)
    _check_spelling(cfg)
    OmegaConf.update(cfg, "data_root", os.path.expanduser(str(cfg.data_root)), force_add=True)
    OmegaConf.update(cfg, "cache_dir", os.path.expanduser(str(cfg.cache_dir)), force_add=True)
    try:
        config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    except OmegaConfBaseException as fault:
        raise SalrunError(f"the config does not resolve at '{fault.full_key}': {str(fault).splitlines()[0]}") from fault
    for key, (kind, allowed) in KEYS.items():
        value = config.get(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            wanted = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
            raise SalrunError(f"{key} must be {wanted.replace('NoneType', 'null')}, got {value!r}")
        if allowed and value not in allowed:
            raise SalrunError(f"{key} must be one of {', '.join(allowed)}, got '{value}'")
    if config["paper"] is not None and config["paper"] not in paper_rooms():
        raise unknown("paper", config["paper"], [*paper_rooms(), "null"])
    for key in ("tile", "chunk", "threads"):
        if config[key] is not None and config[key] < 1:
            raise SalrunError(f"{key} must be at least 1, got {config[key]}")
    parse_shard(config.get("shard"))
    for group in ("dataset", "model"):
        if not config.get(group):
            raise SalrunError(f"no {group} chosen: add +experiment=<name> or {group}=<name> (salrun list {group})")
        _check_part(config[group], group, OF_DATASET if group == "dataset" else ())
    _check_reasoning(config["dataset"])
    transforms = _mapping(config["dataset"].get("transforms"), "dataset.transforms")
    check_parameters(TRANSFORMED, transforms, "dataset.transforms")
    for name, recipe in _mapping(config.get("others"), "others").items():
        _check_part(recipe, f"others.{name}")
    if not _mapping(config.get("methods"), "methods"):
        raise SalrunError("no methods chosen: add 'methods=[gradient,...]' (salrun list methods)")
    for name, spec in config["methods"].items():
        _check_part(spec, f"methods.{name}", OF_METHOD, selected=config["methods"])
        if spec.get("target") is not None and spec["target"] not in TARGETS:
            raise unknown("target", spec["target"], TARGETS, f"methods.{name}.target")
    for name, spec in _mapping(config.get("metrics"), "metrics").items():
        _check_part(spec, f"metrics.{name}", OF_METRIC, selected=config["metrics"])
        for variant, changes in _mapping(spec.get("variants"), f"metrics.{name}.variants").items():
            where = f"metrics.{name}.variants.{variant}"
            if not isinstance(variant, str) or not variant:
                raise SalrunError(f"{where}: the name of a variant must be text, got {variant!r}: quote it")
            merged = {k: v for k, v in spec.items() if k != "variants"} | _mapping(changes, where)
            check_parameters(spec["_target_"], merged, where, OF_METRIC)
    return config


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value or {}, dict):
        raise SalrunError(f"{where} must be a mapping (name: settings), got {value!r}")
    return value or {}


def _check_spelling(cfg: DictConfig) -> None:
    """Refuse a top-level key, as a config file may have it, that nothing reads and that is nearly one of KEYS."""
    used = set(re.findall(r"\$\{(?:oc\.select:)?(\w+)", OmegaConf.to_yaml(cfg)))
    for key in {str(k) for k in cfg} - used - {*KEYS, *OTHER_KEYS}:
        meant = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.75)
        if meant:
            raise SalrunError(f"nothing reads the key '{key}'; did you mean {meant[0]}?")


def _check_switches(cfg: DictConfig) -> None:
    """What other settings are looked up by: the scale, and the reading where the experiment has several."""
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=False)  # type: ignore[assignment]
    for key, known in (("scale", SCALES), ("reading", plain.get("readings"))):
        value = plain.get(key)
        if isinstance(known, tuple | dict) and value not in tuple(known):
            raise SalrunError(f"{key} must be one of {', '.join(known)}, got {value!r}")


def _check_part(spec: Any, where: str, reserved: tuple[str, ...] = (), selected: Mapping[str, Any] = {}) -> None:
    if not isinstance(spec, dict) or "_target_" not in spec:
        group, _, name = where.partition(".")
        if selected:
            raise SalrunError(
                f"{where} is set but '{name}' is not selected: add it to '{group}=[...]' "
                f"(selected: {', '.join(k for k, v in selected.items() if isinstance(v, dict) and '_target_' in v)})"
            )
        raise SalrunError(f"{where} names no _target_: choose one by {group}=<name> (salrun list {group})")
    if not isinstance(spec["_target_"], str):
        raise SalrunError(f"{where}._target_ must be a dotted name, got {spec['_target_']!r}")
    check_parameters(spec["_target_"], spec, where, reserved)


def _check_reasoning(dataset: dict[str, Any]) -> None:
    """The one parameter of a data set that is chosen by a group of its own."""
    asked = (parameters(dataset["_target_"]) or {}).get("reasoning")
    if asked and asked.required and not dataset.get("reasoning"):
        raise SalrunError("this data set needs a reasoning: add reasoning=<name> (salrun list reasoning)")


def paper_rooms() -> list[str]:
    """The papers that have a room in `papers/`: what `paper` may be."""
    return sorted(path.parent.name for path in (Path(__file__).parent / "papers").glob("*/__init__.py"))


def parse_shard(text: str | None) -> tuple[int, int]:
    """`1/4` -> (1, 4); null -> (0, 1)."""
    if text is None:
        return 0, 1
    match = re.fullmatch(r"(\d+)/(\d+)", str(text))
    if not match or not int(match[1]) < int(match[2]):
        raise SalrunError(f"shard must be i/n with 0 <= i < n, e.g. shard=0/4, got '{text}'")
    return int(match[1]), int(match[2])


# -- with torch -------------------------------------------------------------------------------------------------------


def build(config: dict[str, Any]) -> Cell:
    """Instantiate everything; ranges and capabilities are checked here, before any data or model work."""
    from salrun.store import Store

    methods = [method_part(name, spec, config["target"]) for name, spec in config["methods"].items()]
    metrics = [part for name, spec in (config.get("metrics") or {}).items() for part in metric_parts(name, spec)]
    cell = Cell(
        name=config["name"],
        paper=config["paper"],
        scale=config["scale"],
        seed=config["seed"],
        dataset=dataset_part(config["dataset"]),
        recipe=instantiate(config["model"], "model"),
        others={name: instantiate(spec, f"others.{name}") for name, spec in (config.get("others") or {}).items()},
        methods=methods,
        metrics=metrics,
        device=device_of(config["device"]),
        precision=config["precision"],
        tile=config["tile"],
        chunk=config["chunk"],
        keep_maps=config["keep_maps"],
        compile=config["compile"],
        shard=parse_shard(config.get("shard")),
        store=Store(Path(config["cache_dir"])),
        config=config,
    )
    if not hasattr(cell.recipe, "obtain"):
        target = config["model"]["_target_"]
        raise SalrunError(
            f"model._target_ '{target}' is no model recipe; "
            f"a network of your own is model=own model.arch._target_={target}"
        )
    _check_capabilities(cell)
    return cell


def _check_capabilities(cell: Cell) -> None:
    masks = tuple(cell.dataset.mask_names)
    for part in cell.methods:
        if "masks" in part.method.needs and not masks:
            raise SalrunError(f"method '{part.name}' needs ground-truth masks, dataset '{cell.dataset.name}' has none")
        role = getattr(part.method, "layer", None) if "layer" in part.method.needs else None
        layers = getattr(cell.recipe, "layers", None)
        if role in ("cam", "iba") and layers is not None and role not in layers:
            raise SalrunError(
                f"method '{part.name}' needs a convolutional layer, model '{cell.recipe.name}' names no {role} layer; "
                f"set methods.{part.name}.layer or model.layers.{role}"
            )
    for metric in cell.metrics:
        if "masks" in metric.metric.needs and not masks:
            raise SalrunError(
                f"metric '{metric.name}' needs ground-truth masks, dataset '{cell.dataset.name}' has none"
            )
        fixed = getattr(metric.metric, "fixed_explainer", None)
        known = [part.name for part in cell.methods]
        if fixed is not None and fixed not in known:
            raise SalrunError(
                f"metrics.{metric.name}: the fixed explainer '{fixed}' is not one of the run's methods "
                f"({', '.join(known)}): add it to 'methods=[...]'"
            )
        views = {part.view.name for part in cell.methods}
        if fixed is not None and metric.view == "method" and len(views) > 1:
            raise SalrunError(
                f"metrics.{metric.name}: maps of the fixed explainer '{fixed}' can be compared in one view only, and "
                f"the methods have several ({', '.join(sorted(views))}): set metrics.{metric.name}.view=minmax"
            )
        others = {*cell.others, "model"}
        named = [getattr(metric.metric, "of", "model"), *metric.metric.reads()]
        for wanted in named if "other_map" in metric.metric.needs else ():
            if wanted not in others:
                raise unknown("model", wanted, others, f"metrics.{metric.name} (the models of `others`)")


def dataset_part(spec: Mapping[str, Any]) -> Any:
    """The data set, seen through its `transforms` where it has some."""
    plain = instantiate({k: v for k, v in spec.items() if k not in OF_DATASET}, "dataset")
    if not spec.get("transforms"):
        return plain
    return instantiate({"_target_": TRANSFORMED, "plain": plain, **spec["transforms"]}, "dataset.transforms")


def method_part(name: str, spec: Mapping[str, Any], target: str = "predicted") -> MethodPart:
    from salrun.types import Method

    own = {k: v for k, v in spec.items() if k not in OF_METHOD}
    method = instantiate(own, f"methods.{name}", Method)
    label = spec.get("label") or method.paper_name or name
    chosen = view_part(spec.get("view") or "max_abs", f"methods.{name}.view")
    return MethodPart(name, method, chosen, spec.get("target") or target, label, own)


def view_part(name: Any, where: str) -> NamedView:
    from salrun.views import view

    if not isinstance(name, str):
        raise SalrunError(f"{where} must be the name of a view (salrun list views), got {name!r}")
    try:
        return view(name)
    except SalrunError as fault:
        raise SalrunError(f"{where}: {fault}") from fault


def metric_parts(name: str, spec: Mapping[str, Any]) -> list[MetricPart]:
    """One part per variant; without variants, one."""
    from salrun.types import Metric

    parts = []
    for variant, changes in (spec.get("variants") or {"": {}}).items():
        merged = {k: v for k, v in spec.items() if k != "variants"} | dict(changes or {})
        own = {k: v for k, v in merged.items() if k not in OF_METRIC}
        metric = instantiate(own, f"metrics.{name}", Metric)
        chosen: Any = merged.get("view") or "max_abs"
        if "raw" in metric.needs:
            chosen = None
        elif chosen != "method":
            chosen = view_part(chosen, f"metrics.{name}.view")
        parts.append(MetricPart(name, variant, metric, chosen, own))
    return parts


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


def locate(target: str | None, where: str) -> Callable[..., Any]:
    if not target:
        raise SalrunError(f"{where}._target_ is not set: give the class or function by its dotted name")
    module, _, name = target.rpartition(".")
    if not module:
        raise SalrunError(f"{where}._target_ '{target}' has no module: give a dotted name such as mymodule.{target}")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as fault:
        raise SalrunError(f"{where}._target_ '{target}': cannot import {fault.name}") from fault
    if not hasattr(found, name):
        raise unknown(f"name in module {module}", name, vars(found), f"{where}._target_")
    return getattr(found, name)


def device_of(name: str) -> torch.device:
    """`auto`: CUDA, else Apple's MPS, else the CPU (whose allocator is then told to keep what networks free)."""
    import torch

    if name == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None
        name = accelerator or "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as fault:
        raise SalrunError(
            f"device '{name}' is not available here: {str(fault).splitlines()[0]}; try device=auto"
        ) from fault
    if device.type == "cpu":
        keep_freed_memory()
    return device


def keep_freed_memory() -> None:
    """Ask glibc not to hand the memory of every freed tensor back to the kernel; does nothing elsewhere.

    Otherwise each layer's output is mapped, faulted in and unmapped again: a sixth of a ResNet-50 forward pass.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
