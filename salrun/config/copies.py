"""Copies of a model that differ in what was drawn: `others.random.copies: 20` stands for random_0 .. random_19.

A variant of a metric that compares models stands for one variant per copy of the models that it names: <variant>_0, ..;
there `random_next` is the copy after `random`, in a ring. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from salrun.config.signatures import parameters
from salrun.errors import SalrunError
from salrun.ranges import complaint

KEY = "copies"
NEXT = "_next"


def with_copies(config: dict[str, Any]) -> dict[str, Any]:
    """The config with every copy as a model of its own, and every variant that names copies as one variant for each."""
    others = config.get("others") or {}
    counts = {name: _count(name, spec) for name, spec in others.items() if KEY in spec}
    if not counts:
        return config
    metrics = {name: _metric(name, spec, counts) for name, spec in (config.get("metrics") or {}).items()}
    return config | {"others": _models(others, counts), "metrics": metrics}


def _count(name: str, spec: Mapping[str, Any]) -> int:
    wrong = complaint(spec[KEY], "Annotated[int, Between(1, 10000)]")
    if wrong:
        raise SalrunError(f"others.{name}.{KEY} {wrong}")
    return int(spec[KEY])


# -- models ------------------------------------------------------------------------------------------------------------


def _models(others: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """Every model by name, copies in the place of what they are copies of."""
    models: dict[str, Any] = {}
    for name, spec in others.items():
        plain = {k: v for k, v in spec.items() if k != KEY}
        copies = (
            {f"{name}_{i}": _drawn(plain, i, name) for i in range(counts[name])} if name in counts else {name: spec}
        )
        for twin in copies.keys() & (others.keys() | models.keys()) - {name}:
            raise SalrunError(f"others.{name}.{KEY}: '{twin}' is another model's name")
        models |= copies
    return models


def _drawn(spec: Mapping[str, Any], number: int, name: str) -> dict[str, Any]:
    """The spec of one copy: `draw` is its number, here or in the recipe of another task."""
    if "recipe" in spec:
        return {**spec, "recipe": _drawn(spec["recipe"], number, name)}
    if "draw" not in (parameters(spec["_target_"]) or {}):
        raise SalrunError(f"others.{name}.{KEY}: copies of {spec['_target_']} would be equal, it takes no 'draw'")
    if "draw" in spec:
        raise SalrunError(f"others.{name}: {KEY} numbers the draws; take 'draw' out")
    return {**spec, "draw": number}


# -- metrics -----------------------------------------------------------------------------------------------------------


def _metric(name: str, spec: dict[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """A metric's config, variants that name copies repeated; only a metric with `of` compares models."""
    if "of" not in (parameters(spec["_target_"]) or {}):
        return spec
    plain = {k: v for k, v in spec.items() if k != "variants"}
    variants: dict[str, Any] = {}
    for mode, changes in (spec.get("variants") or {"": {}}).items():
        variants |= _repeated(mode, plain, changes or {}, counts, f"metrics.{name}")
    return plain if variants == {"": {}} else {**plain, "variants": variants}


def _repeated(
    mode: str, plain: Mapping[str, Any], changes: Mapping[str, Any], counts: Mapping[str, int], where: str
) -> dict[str, Any]:
    """The variants that one stands for: itself, or one for each copy; a lone copy has none next to it."""
    merged = {**plain, **changes}
    words = set(_words(merged))
    ring = [name for name in counts if name + NEXT in words]
    named = [name for name in counts if name in words or name in ring]
    if not named:
        return {mode: changes}
    if len({counts[name] for name in named}) > 1:
        told = ", ".join(f"{name} {counts[name]}" for name in named)
        raise SalrunError(f"{where}.variants.{mode}: its models have different numbers of copies ({told})")
    count = counts[named[0]]
    variants = {}
    for i in range(0 if ring and count == 1 else count):
        names = {name: f"{name}_{i}" for name in named} | {name + NEXT: f"{name}_{(i + 1) % count}" for name in ring}
        renamed = {k: _renamed(v, names) for k, v in merged.items()}
        changed = {k: v for k, v in renamed.items() if k in changes or v != plain[k]}
        variants[f"{mode}_{i}" if mode else str(i)] = changed
    return variants


def _words(value: Any) -> Iterator[str]:
    """Every text in a config, keys and values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (word for pair in value.items() for part in pair for word in _words(part))
    elif isinstance(value, list):
        yield from (word for part in value for word in _words(part))


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A config with some names exchanged, in keys and values."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, Mapping):
        return {_renamed(k, names): _renamed(v, names) for k, v in value.items()}
    return [_renamed(v, names) for v in value] if isinstance(value, list) else value
