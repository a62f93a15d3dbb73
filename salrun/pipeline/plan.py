"""What a run will cost, before it starts: passes, time on this device, bytes of maps, what the store already has."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch

from salrun.config.parts import MetricPart
from salrun.errors import named
from salrun.methods.chunking import halving
from salrun.models.classifier import Classifier
from salrun.pipeline.build import Cell
from salrun.pipeline.returned import check_cost
from salrun.pipeline.stages import OWN, Stages, Tile
from salrun.store.sources import of_user

PROBE_SECONDS = 0.5  # at most
PROBE_SHARE = 0.1  # of the passes to do: a run of seconds is not kept waiting
PROBE_BATCHES = 3  # at least
ENTRY_SECONDS = 0.003  # what the key, the checks and the writing of a map or score take beside its passes

Unit = tuple[int, str, str]  # a tile's index, a model's role, a method: what a run does at a time


@dataclass(frozen=True)
class Line:
    """One kind of work: passes still to be done for one method, metric or shared piece of a metric."""

    stage: str
    name: str
    passes: float  # per image, as if nothing were stored
    done: float  # images the store already has, on average over methods and models
    images: int
    rate: Callable[[], float]  # of the model that does it, forward passes per second on this device; timed when asked

    @property
    def todo(self) -> float:
        return self.passes * (self.images - self.done)

    @property
    def seconds(self) -> float:
        return self.todo / self.rate() if self.todo else 0.0


@dataclass(frozen=True)
class Plan:
    lines: list[Line]
    images: int
    tiles: int
    map_bytes: int
    due: Mapping[Unit, float]  # passes to do, by tile, role and method
    entries: int = 0  # maps and scores of a tile that are to be made
    host: float = 0.0  # seconds that metrics take beside passes
    numerics: str = ""  # what half precision does, where it is used

    @property
    def passes(self) -> float:
        return sum(line.todo for line in self.lines)

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self.lines) + self.beside

    @property
    def beside(self) -> float:
        """Seconds that are no passes."""
        return self.host + ENTRY_SECONDS * self.entries

    def short(self) -> str:
        return (
            f"{self.images} images, {self.passes:,.0f} forward passes to do, about {duration(self.seconds)} "
            f"({_rates(self.lines)} passes/s here), {size(self.map_bytes)} of maps"
        )

    def table(self) -> str:
        head = f"{'stage':<8}{'what':<34}{'passes/image':>13}{'images':>9}{'stored':>9}{'to do':>14}{'time':>9}"
        rows = [
            f"{x.stage:<8}{x.name:<34}{x.passes:>13,.1f}{x.images:>9,}{x.done:>9,.0f}{x.todo:>14,.0f}"
            f"{duration(x.seconds):>9}"
            for x in self.lines
        ]
        rows.append(f"{'beside':<8}{f'{self.entries:,} maps and scores of a tile':<79}{duration(self.beside):>9}")
        return "\n".join([head, *rows, f"in all: {self.short()}", *filter(None, [self.numerics])])


def plan(cell: Cell, stages: Stages, tiles: list[Tile]) -> Plan:
    """Count what is to be done; forward passes are timed on each model that has something to do, for a moment."""
    images, model = sum(len(t.ids) for t in tiles), stages.models[OWN]
    largest = max(len(t.ids) for t in tiles)
    lines: list[Line] = []
    probe = lambda: PROBE_SHARE * sum(line.todo for line in lines)  # noqa: E731
    by_model = cache(lambda: forward_rate(stages.folded(), cell, largest, probe()))
    by_copy = by_exact = by_model
    fast = [part.name for part in cell.methods if part.method.forward_only]
    if fast or any("model" in m.metric.needs for m in cell.metrics):
        by_copy = cache(lambda: forward_rate(stages.inference(), cell, stages.forward_batch, probe()))
        by_exact = cache(lambda: forward_rate(stages.inference(exact=True), cell, stages.forward_batch, probe()))
    due: dict[Unit, float] = defaultdict(float)
    entries, host = 0, 0.0
    for part in cell.methods:
        passes = part.method.passes(model, cell.dataset.shape)
        stored = dict.fromkeys(stages.models, 0)  # before a run: its own alone
        for role, tile in product(stages.models, tiles):
            if cell.store.has("maps", stages.map_key(tile, part, role)):
                stored[role] += len(tile.ids)
            else:
                due[tile.index, role, part.name] += passes * len(tile.ids)
                entries += 1
        rate = by_copy if part.name in fast else by_model
        lines.append(Line("maps", part.name, passes, stored.pop(OWN), images, rate))
        if cell.others:
            name = f"{part.name}, {len(cell.others)} others"
            lines.append(Line("maps", name, passes, sum(stored.values()), images * len(cell.others), rate))
    shared: dict[str, float] = {}  # passes per image of what metrics share
    without: dict[str, set[Unit]] = {}  # where a score that needs it is not stored
    for metric in cell.metrics:
        passes = metric.metric.passes(model, cell.dataset.shape)
        name = "/".join(filter(None, [metric.name, metric.mode]))
        explains = "explain" in metric.metric.needs
        once = metric.metric.shared_passes(model, cell.dataset.shape)
        roles = [role for role in stages.models if judged(metric, role)]
        known = stages.models.keys() >= {*metric.metric.reads()}  # before a run the others are not made
        missing = {
            (tile.index, role, part.name): len(tile.ids)
            for role, part, tile in product(roles, cell.methods, tiles)
            if not (known and cell.store.has("scores", stages.score_key(tile, part, metric, role)))
        }
        entries += len(missing)
        host += sum(missing.values()) * metric.metric.host_seconds(cell.dataset.shape) if missing else 0.0
        if passes:
            again = {p.name: cell.explainer(p, metric.metric).method for p in cell.methods}
            each = {n: passes * m.passes(model, cell.dataset.shape) if explains else passes for n, m in again.items()}
            left = {unit: each[unit[2]] * n for unit, n in missing.items()}
            for unit, todo in left.items():
                due[unit] += todo
            whole = sum(each.values()) * len(roles)
            exact = metric.exact and cell.numerics != "exact"
            rate = by_model if explains else by_exact if exact else by_copy
            lines.append(Line("scores", name, whole, images - sum(left.values()) / whole, images, rate))
        if once:
            name = metric.metric.shared_as() or name
            shared[name] = once
            without.setdefault(name, set()).update(missing)
    sizes = {tile.index: len(tile.ids) for tile in tiles}
    for name, passes in shared.items():
        first = {unit[:2]: unit for unit in sorted(without[name], reverse=True)}  # one method does it for all
        for unit in first.values():
            due[unit] += passes * sizes[unit[0]]
        left_out = sum(sizes[index] for index, _ in first) / len(stages.models)
        lines.append(Line("shared", name, passes * len(stages.models), images - left_out, images, by_copy))
    shape = cell.dataset.shape
    width = 4 if cell.precision == "float32" else 8
    size_of_maps = images * (1 + len(cell.others)) * len(cell.methods) * shape[0] * shape[1] * shape[2] * width
    return Plan(lines, images, len(tiles), size_of_maps, due, entries, host)


def check_costs(cell: Cell, model: Classifier) -> None:
    """Refuse users' parts whose costs cannot be added up."""
    shape = cell.dataset.shape
    given: dict[str, tuple[Any, ...]] = {"passes": (model, shape), "shared_passes": (model, shape)}
    given["host_seconds"] = (shape,)
    asked: list[tuple[str, Any, str]] = [(f"method '{p.name}'", p.method, "passes") for p in cell.methods]
    asked += [(f"metric '{m.name}'", m.metric, cost) for m in cell.metrics for cost in given]
    for who, part, cost in asked:
        if of_user(part):
            with named(who):
                check_cost(getattr(part, cost)(*given[cost]), who, cost)


def judged(metric: MetricPart, role: str) -> bool:
    """Every model is scored by every metric; one that compares models names in `of` whose maps it judges."""
    return "other_map" not in metric.metric.needs or role == getattr(metric.metric, "of", OWN)


def forward_rate(model: Classifier, cell: Cell, batch: int, enough: float) -> float:
    """Images per second of plain forward passes, `enough` of them; of fewer images where a batch does not fit."""
    return halving(lambda size: _rate(model, cell, size or batch, enough), batch, batch, f"timing {model.name}")


@torch.no_grad()
def _rate(model: Classifier, cell: Cell, batch: int, enough: float) -> float:
    x = torch.zeros(batch, *cell.dataset.shape, device=cell.device, dtype=getattr(torch, cell.precision))
    model(x)
    passes, begun = 0, time.monotonic()
    while time.monotonic() - begun < PROBE_SECONDS and passes < max(enough, PROBE_BATCHES * batch):
        model(x).sum().item()
        passes += batch
    return passes / (time.monotonic() - begun)


def _rates(lines: list[Line]) -> str:
    return " and ".join(f"{rate:,.0f}" for rate in sorted({line.rate() for line in lines}))


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360000 else f"{seconds / 86400:.0f} days"


def size(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"
