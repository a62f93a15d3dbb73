# ruff: noqa: RUF009 (setting() makes a field)
"""Every top-level setting of a run, declared once: type, choices or range, default, what it is, and what it changes.

conf/config.yaml has the same keys and defaults (a test compares them); the check, the help and the docs come from here.
An experiment's file may add keys of its own, as long as one of its interpolations reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from salrun.errors import SalrunError
from salrun.ranges import AtLeast, Between, readable


def setting(default: Any, about: str, deviates: bool = False, added: bool = False) -> Any:
    """A field: its default, what it is, whether setting it deviates from a paper, whether only experiments add it."""
    metadata = {"about": about, "deviates": deviates, "added": added}
    given: dict[str, Any] = {"default": default}
    if isinstance(default, dict | list):
        given = {"default_factory": lambda: type(default)(default)}
    return field(**given, metadata=metadata)


@dataclass
class Settings:
    """The top-level keys."""

    name: str = setting("custom", "of the experiment: names the output folder and the `experiment` column")
    paper: str | None = setting(None, "whose tables, figures and claims are made")
    protocol: str | None = setting(
        None, "which part of the paper's measurements this is, where it has several (zhang: fidelity, ...)"
    )
    seed: Annotated[int, Between(-9223372036854775808, 9223372036854775807)] = setting(
        0,
        "of the model, its training, the choice of explained images (dataset.explained_seed) and every random draw; "
        "data that is drawn has its own (dataset.seed)",
    )
    scale: Literal["smoke", "laptop", "paper"] = setting("paper", "picks from `budget`")
    budget: dict[str, Any] | None = setting({}, "the sizes of an experiment at each scale", deviates=True)
    target: Literal["predicted", "label", "least_probable"] | dict[str, Any] = setting(
        "predicted",
        "the class explained; methods may differ. {_target_: my.py:f}: a function of the logits, one number per image",
        deviates=True,
    )
    others: dict[str, Any] | None = setting(
        {},
        "further models (recipes) whose maps are compared with the model's; `copies: n`: n of one that is drawn",
        deviates=True,
    )

    view: str = setting(
        "max_abs",
        "what a metric without a view of its own reads of all maps (salrun list views); method: each method's own",
        deviates=True,
    )
    controls: list[str] | None = setting(
        ["random"], "methods added to be compared with; []: none. Experiments of papers name theirs", deviates=True
    )

    device: str = setting("auto", "auto | cuda | mps | cpu")
    precision: Literal["float32", "float64"] = setting("float32", "of the model and its maps")
    threads: Annotated[int, Between(1, 1024)] | None = setting(None, "CPU threads of this job; null: torch's default")
    tile: Annotated[int, Between(1, 65536)] = setting(
        20, "images per tile: the unit of work, resume and sharding (part of the cache key)"
    )
    chunk: Annotated[int, Between(1, 65536)] | None = setting(
        None, "most images (or copies) in one pass; bounds memory"
    )
    compile: Literal["auto", "on", "off"] = setting("auto", "compile the model for forward-only work where that pays")
    numerics: Literal["exact", "fast", "fast_gradients"] = setting(
        "exact",
        "fast: forward-only work in half precision, if its effect on the scores, measured first, is small; "
        "fast_gradients: also methods that average many gradients",
    )
    fit_images: Annotated[int, AtLeast(1)] | None = setting(1000, "training images behind feature statistics (IBA)")
    keep_maps: Literal["auto", "all", "none"] = setting("auto", "auto: store raw maps up to 4 GiB")
    shard: Any = setting(None, "i/n: do only every n-th tile")
    plan: bool = setting(False, "print what it would cost, and stop")
    report: bool = setting(True, "write report.html")
    verbose: bool = setting(False, "say everything on the console: every deviation, how the model was made faster")

    data_root: str = setting("~/.cache/salrun/data", "where data sets are; SALRUN_DATA sets it too")
    cache_dir: str = setting("~/.cache/salrun/store", "where what was computed is kept; SALRUN_CACHE sets it too")

    # Groups: chosen by name, `salrun list GROUP`.
    dataset: dict[str, Any] | None = setting(None, "the data set", deviates=True)
    reasoning: dict[str, Any] | None = setting(None, "of a data set that needs one: which objects decide the label")
    model: dict[str, Any] | None = setting(None, "the model", deviates=True)
    methods: dict[str, Any] | None = setting({}, "the saliency methods: 'methods=[a,b]'", deviates=True)
    metrics: dict[str, Any] | None = setting({}, "the metrics: 'metrics=[a,b]'", deviates=True)

    logger: dict[str, Any] | None = setting(
        {}, "trackers that finished runs are told to: logger=mlflow, 'logger=[tensorboard,wandb]'"
    )

    # Of experiments whose paper can be read in several ways.
    reading: str | None = setting(None, "which of the `readings` is taken", deviates=True, added=True)
    choices: dict[str, Any] | None = setting(None, "what this reading means", deviates=True, added=True)


ALL: dict[str, Field] = {f.name: f for f in fields(Settings)}
SETTINGS = {name: declared for name, declared in ALL.items() if not declared.metadata["added"]}  # that every run has
GROUPS = ("dataset", "reasoning", "model", "methods", "metrics", "logger")


def default_of(name: str) -> Any:
    return getattr(Settings(), name)


def folder_of(name: str, given: Any) -> str:
    """The folder that a setting names; empty is unset."""
    return os.path.expanduser(str(given or "").strip() or default_of(name))


def own_settings(overrides: Sequence[str]) -> list[str]:
    """What a command line changes of an experiment's parts, as deviations."""
    deviating = {name for name, declared in ALL.items() if declared.metadata["deviates"]}
    words = [word.lstrip("+~") for word in overrides]
    return [f"set on the command line: {w}" for w in words if w.partition("=")[0].partition(".")[0] in deviating]


def help_lines() -> Iterator[str]:
    """One line per setting: name, what it is, what it may be, default."""
    for name, declared in SETTINGS.items():
        if name in GROUPS:
            continue
        text = str(declared.type)
        allowed = f" ({readable(text).removeprefix('one of ')})" if text.startswith("Literal") else ""
        default = default_of(name)
        told = "" if default in ({}, None) else f" [{str(default).lower() if isinstance(default, bool) else default}]"
        yield f"  {name:<12}{declared.metadata['about']}{allowed}{told}"


def papers() -> list[str]:
    """The papers that have a package in `papers/`: what `paper` may be."""
    return sorted(path.parent.name for path in (Path(__file__).parents[1] / "papers").glob("*/__init__.py"))


def parse_shard(text: Any) -> tuple[int, int]:
    """`1/4` -> (1, 4); null -> (0, 1)."""
    if text is None:
        return 0, 1
    match = re.fullmatch(r"(\d+)/(\d+)", str(text))
    if not match or not int(match[1]) < int(match[2]):
        raise SalrunError(f"shard must be i/n with 0 <= i < n, e.g. shard=0/4, got '{text}'")
    return int(match[1]), int(match[2])
