"""Check a composed config, every name, key and type of it, before anything is computed. Needs no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from salrun.config.catalogue import names, part_config
from salrun.config.copies import KEY as COPIES
from salrun.config.copies import with_copies
from salrun.config.parts import OBJECT, OF_DATASET, OF_METHOD, OF_METRIC, REASONING, TRANSFORMED
from salrun.config.settings import GROUPS, SETTINGS, folder_of, papers, parse_shard
from salrun.config.signatures import UnknownKey, check_parameters, parameters
from salrun.errors import SalrunError, unknown
from salrun.ranges import complaint

TRACKERS = "salrun.tracking."  # each module of it is called as the package it writes for
OF_EACH = {"target": "Literal['predicted', 'label', 'least_probable'] | None", "label": "str | None"}  # of a method
NAME = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]{1,120}")


def check(cfg: DictConfig) -> dict[str, Any]:
    """The config as plain values, every name, key and type of it checked. Raises SalrunError in one sentence."""
    _check_switches(cfg)
    for folder in ("data_root", "cache_dir"):
        given = OmegaConf.select(cfg, folder, throw_on_resolution_failure=False)
        if given is None or isinstance(given, str):
            OmegaConf.update(cfg, folder, folder_of(folder, given), force_add=True)
    try:
        config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    except OmegaConfBaseException as fault:
        raise SalrunError(f"the config does not resolve at '{fault.full_key}': {str(fault).splitlines()[0]}") from fault
    _check_finite(config)
    for key, declared in SETTINGS.items():
        wrong = complaint(config.get(key), str(declared.type))
        if wrong:
            raise SalrunError(f"{key} {wrong}")
        if key not in GROUPS:
            config.setdefault(key, None)
    for where, name in _names(config):
        if not NAME.fullmatch(name):
            raise SalrunError(f"{where} must be what a file may be called (no / or \\ in it), got {name!r}")
    if config["paper"] is not None and config["paper"] not in papers():
        raise unknown("paper", config["paper"], [*papers(), "null"])
    parse_shard(config["shard"])
    for group in ("dataset", "model"):
        if not config.get(group):
            raise SalrunError(f"no {group} chosen: add +experiment=<name> or {group}=<name> (salrun list {group})")
        _check_part(config[group], group, OF_DATASET if group == "dataset" else ())
    _check_reasoning(config["dataset"])
    transforms = _mapping(config["dataset"].get("transforms"), "dataset.transforms")
    check_parameters(TRANSFORMED, transforms, "dataset.transforms")
    for name, recipe in _mapping(config.get("others"), "others").items():
        _check_part(recipe, f"others.{name}", (COPIES,))
    if not _mapping(config.get("methods"), "methods"):
        raise SalrunError("no methods chosen: add 'methods=[gradient,...]' (salrun list methods)")
    for name, spec in config["methods"].items():
        _check_part(spec, f"methods.{name}", OF_METHOD, selected=config["methods"])
        for key, kind in OF_EACH.items():
            wrong = complaint(spec.get(key), kind)
            if wrong:
                raise SalrunError(f"methods.{name}.{key} {wrong}")
        if spec.get("target") and isinstance(config["target"], dict):
            raise SalrunError(f"methods.{name}.target: a run that explains a function of the logits explains no class")
    for name, spec in _mapping(config.get("metrics"), "metrics").items():
        _check_part(spec, f"metrics.{name}", OF_METRIC, selected=config["metrics"])
        for variant, changes in _mapping(spec.get("variants"), f"metrics.{name}.variants").items():
            where = f"metrics.{name}.variants.{variant}"
            if not isinstance(variant, str) or not variant:
                raise SalrunError(f"{where}: the name of a variant must be text, got {variant!r}: quote it")
            merged = {k: v for k, v in spec.items() if k != "variants"} | _mapping(changes, where)
            check_parameters(spec["_target_"], merged, where, OF_METRIC)
    for name, spec in _mapping(config.get("logger"), "logger").items():
        _check_part(spec, f"logger.{name}", selected=config["logger"])
        _check_tracker(spec["_target_"], f"logger.{name}")
    return with_copies(_with_controls(config))


def _check_tracker(target: str, where: str) -> None:
    """What a tracker hands runs to must be installed; a folder of that name in the current one is no package."""
    home = target.rpartition(".")[0]
    package = home.removeprefix(TRACKERS)
    found = find_spec(package) if package != home else None
    if package != home and (found is None or found.origin is None):
        raise SalrunError(f"{where} needs {package}: pip install 'salrun[{package}]'")


def _with_controls(config: dict[str, Any]) -> dict[str, Any]:
    """The config with its controls among the methods; where no metric is chosen there is nothing to compare."""
    controls = config["controls"] or () if config.get("metrics") else ()
    methods = dict(config["methods"])
    for name in controls:
        if name in methods:
            continue
        spec = part_config("methods", name, config["scale"])
        if spec is None:
            raise unknown("control", name, names("methods"), f"controls=[{','.join(config['controls'])}]")
        methods[name] = spec
    return config | {"methods": methods}


def _names(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(place, name) of what gives files and folders their names."""
    yield "name", str(config["name"])
    for group in ("methods", "metrics", "others", "logger"):
        yield from ((f"a name in {group}", str(name)) for name in _mapping(config.get(group), group))


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value or {}, dict):
        raise SalrunError(f"{where} must be a mapping (name: settings), got {value!r}")
    return value or {}


def _check_finite(value: Any, where: str = "") -> None:
    """No setting means NaN or infinity: what is computed with them is nothing, or never ends; no file has a NUL."""
    if isinstance(value, str) and "\0" in value:
        raise SalrunError(f"{where} has the letter NUL in it: {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise SalrunError(f"{where} must be a finite number, got {value}")
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, content in inside:
        _check_finite(content, f"{where}.{key}" if where else str(key))


def _check_switches(cfg: DictConfig) -> None:
    """What other settings are looked up by: the scale, and the reading where the experiment has several."""
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=False)  # type: ignore[assignment]
    wrong = complaint(plain.get("scale"), str(SETTINGS["scale"].type))
    if wrong:
        raise SalrunError(f"scale {wrong}")
    readings = plain.get("readings")
    if isinstance(readings, dict) and plain.get("reading") not in list(readings):  # a list has no hash
        raise SalrunError(f"reading must be one of {', '.join(readings)}, got {plain.get('reading')!r}")


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
    if asked and dataset.get("reasoning"):
        check_parameters(REASONING, dataset["reasoning"], "dataset.reasoning")
        rules = dataset["reasoning"].get("buckets") or {}
        labels = {str(rule.get(key)) for rule in rules.values() for key in ("label", "code_label")}
        numbers = dataset["reasoning"].get("train_per_bucket")
        if not isinstance(numbers, int):  # one for all
            _check_names(numbers, labels, "dataset.reasoning.train_per_bucket")
        objects = _mapping(dataset.get("objects"), "dataset.objects")
        for name, spec in objects.items():
            where = f"dataset.objects.{name}"
            check_parameters(OBJECT, _mapping(spec, where), where)
            for key in ("apart", "apart_always"):
                _check_names(spec.get(key), objects, f"{where}.{key}")


def _check_names(given: Any, known: Iterable[str], where: str) -> None:
    """The keys of a mapping are names of something."""
    for key in _mapping(given, where):
        if str(key) not in known:
            raise UnknownKey(f"{where}.{key}", known)
