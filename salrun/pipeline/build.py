"""A cell ready to be run: its parts made from the checked config, and whether they fit each other."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from salrun.config.parts import (
    MethodPart,
    MetricPart,
    dataset_part,
    method_part,
    metric_parts,
    recipe_part,
    target_part,
    view_part,
)
from salrun.config.settings import parse_shard
from salrun.errors import SalrunError, unknown
from salrun.models.recipe import OfTask
from salrun.models.target import Target
from salrun.store.entries import Store
from salrun.types import Dataset, Metric, Recipe

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc malloc.h


@dataclass
class Cell:
    """One experiment cell: dataset x model x seed, and what is done to it."""

    name: str
    paper: str | None
    scale: str
    seed: int
    dataset: Dataset
    recipe: Recipe
    others: dict[str, Recipe]
    methods: list[MethodPart]
    metrics: list[MetricPart]
    device: torch.device
    precision: str
    tile: int
    chunk: int | None
    keep_maps: str
    compile: Literal["auto", "on", "off"]
    numerics: Literal["exact", "fast", "fast_gradients"]
    shard: tuple[int, int]
    store: Store
    target: Target | None  # a function of the logits that is explained instead of a class
    config: dict[str, Any] = field(repr=False)

    def explainer(self, part: MethodPart, metric: Metric) -> MethodPart:
        """The method that explains other images for the metric: the one it scores, or the metric's fixed one."""
        fixed = getattr(metric, "fixed_explainer", None)
        return part if fixed is None else next(p for p in self.methods if p.name == fixed)


def build(config: dict[str, Any]) -> Cell:
    """Instantiate everything; ranges and capabilities are checked here, before any data or model work."""
    target = None if isinstance(config["target"], str) else target_part(config["target"])
    word = config["target"] if target is None else config["target"]["_target_"]
    methods = [method_part(spec, name=name, target=word) for name, spec in config["methods"].items()]
    metrics = [part for name, spec in (config.get("metrics") or {}).items() for part in metric_parts(spec, name=name)]
    if config["view"] != "method":
        common = view_part(config["view"], "view")
        metrics = [replace(part, view=common) if part.view == "method" else part for part in metrics]
    others = {name: recipe_part(spec, where=f"others.{name}") for name, spec in (config.get("others") or {}).items()}
    share_data(others.values())
    cell = Cell(
        name=config["name"],
        paper=config["paper"],
        scale=config["scale"],
        seed=config["seed"],
        dataset=dataset_part(config["dataset"]),
        recipe=recipe_part(config["model"]),
        others=others,
        methods=methods,
        metrics=metrics,
        target=target,
        device=device_of(config["device"]),
        precision=config["precision"],
        tile=config["tile"],
        chunk=config["chunk"],
        keep_maps=config["keep_maps"],
        compile=config["compile"],
        numerics=config["numerics"],
        shard=parse_shard(config.get("shard")),
        store=Store(Path(config["cache_dir"])),
        config=config,
    )
    _check_capabilities(cell)
    return cell


def share_data(recipes: Iterable[Recipe]) -> None:
    """Models of one further task read one data set: each of many copies would hold and hash its own."""
    distinct: list[Dataset] = []
    for recipe in (recipe for recipe in recipes if isinstance(recipe, OfTask)):
        recipe.dataset = next((data for data in distinct if data == recipe.dataset), recipe.dataset)
        distinct.append(recipe.dataset)


def _check_capabilities(cell: Cell) -> None:
    if cell.numerics != "exact" and cell.precision == "float64":
        raise SalrunError(f"numerics={cell.numerics} is for precision=float32: float64 is for what must be exact")
    masks = tuple(cell.dataset.mask_names)
    for part in cell.methods:
        if "masks" in part.method.needs and not masks:
            raise SalrunError(f"method '{part.name}' needs ground-truth masks, dataset '{cell.dataset.name}' has none")
        if "ids" in part.method.needs:
            part.method.check_images(cell.dataset.explained(), cell.dataset.shape)
            again = [m.name for m in cell.metrics if m.metric.needs & {"explain", "other_map"}]
            if again:
                raise SalrunError(
                    f"method '{part.name}' has maps of the data set's images and one model alone: leave out metrics "
                    f"that ask for others ({', '.join(again)})"
                )
        role = getattr(part.method, "layer", None) if "layer" in part.method.needs else None
        name, layers = getattr(cell.recipe, "name", ""), getattr(cell.recipe, "layers", None)
        if role in ("cam", "iba") and layers is not None and role not in layers:
            raise SalrunError(
                f"method '{part.name}' needs a convolutional layer, model '{name}' names no {role} layer; "
                f"set methods.{part.name}.layer or model.layers.{role}"
            )
    for metric in cell.metrics:
        if "masks" in metric.metric.needs and not masks:
            raise SalrunError(
                f"metric '{metric.name}' needs ground-truth masks, dataset '{cell.dataset.name}' has none"
            )
        fixed = getattr(metric.metric, "fixed_explainer", None)
        methods = [part.name for part in cell.methods]
        if fixed is not None and fixed not in methods:
            raise SalrunError(
                f"metrics.{metric.name}: the fixed explainer '{fixed}' is not one of the run's methods "
                f"({', '.join(methods)}): add it to 'methods=[...]'"
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


def device_of(name: str) -> torch.device:
    """`auto`: CUDA, else Apple's MPS, else the CPU (whose allocator is then told to keep what networks free)."""

    if name == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None
        name = accelerator or "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
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
