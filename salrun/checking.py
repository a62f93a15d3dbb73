"""`salrun check`: find the methods and metrics that words stand for, and put them through the conformance suite."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from salrun.build import OF_METHOD, OF_METRIC, method_part, metric_parts
from salrun.composing import compose_config
from salrun.conformance import examine
from salrun.errors import SalrunError, unknown
from salrun.registry import load_file, load_plugins, names, part_name, parts_of
from salrun.signatures import check_parameters
from salrun.types import Method, Metric

KINDS = {"methods": "method", "metrics": "metric"}
Spec = dict[str, Any]


def check_parts(words: Sequence[str], settings: Sequence[str]) -> int:
    """Print a verdict per check of every part; 1 if any failed."""
    load_plugins()
    chosen = [part for word in words for found in find(word) for part in instances(*found, settings)]
    failed = 0
    for title, part in chosen:
        print(title)
        results = []
        for verdict in examine(part):
            print(verdict, flush=True)
            results.append(verdict.result)
        passed, wrong, excused = (results.count(r) for r in ("ok", "FAIL", "-"))
        print(f"  {passed} passed, {wrong} failed, {excused} not applicable")
        failed += wrong
    return 1 if failed else 0


def find(word: str) -> list[tuple[str, str, Spec]]:
    """(group, name, config) of what `my_part.py`, `module:Class` or a name stands for."""
    if word.endswith(".py"):
        found = list(parts_of(load_file(Path(word))))
        if not found:
            raise SalrunError(f"{word} defines no dataclass that derives from salrun.types.Method or Metric")
        return [(group, part_name(part), _spec(part)) for group, part in found]
    if ":" in word:
        group, part = _located(*word.split(":", 1))
        return [(group, part_name(part), _spec(part))]
    known = {group: names(group) for group in KINDS}
    if not any(word in known[group] for group in KINDS):
        raise unknown("method or metric", word, [n for group in KINDS for n in known[group]], "salrun check")
    return [(group, word, _shipped(group, word)) for group in KINDS if word in known[group]]


def _spec(part: type) -> Spec:
    return {"_target_": f"{part.__module__}.{part.__qualname__}"}


def _located(module: str, name: str) -> tuple[str, type]:
    try:
        defined = {part.__name__: (group, part) for group, part in parts_of(importlib.import_module(module))}
    except Exception as fault:
        raise SalrunError(f"cannot import {module}: {type(fault).__name__}: {fault}") from fault
    if name not in defined:
        raise unknown("method or metric", name, defined, f"module {module}")
    return defined[name]


def _shipped(group: str, name: str) -> Spec:
    """As a run at smoke scale would have it."""
    config: Any = OmegaConf.to_container(compose_config([f"{group}=[{name}]", "scale=smoke"]), resolve=True)
    return config[group][name.rpartition("/")[2]]


def instances(group: str, name: str, spec: Spec, settings: Sequence[str]) -> Iterator[tuple[str, Method | Metric]]:
    """(title, part) with the settings; a metric in all its variants."""
    given: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(settings)))
    check_parameters(spec["_target_"], given, f"{group}.{name}", OF_METHOD if group == "methods" else OF_METRIC)
    spec = {**spec, **given}
    if group == "methods":
        yield f"method {name}", method_part(name, spec).method
    else:
        for part in metric_parts(name, spec):
            yield " ".join(filter(None, ["metric", name, part.variant])), part.metric
