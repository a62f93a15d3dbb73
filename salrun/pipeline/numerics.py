"""What half precision does to a run's numbers, measured before it starts: a probe, scored exactly and fast.

The probe is one explained image in 64, at least 16. Its maps are those of the run's controls and of up to three of its
one-pass methods (of the gradient, where it has none); every metric that runs the model scores them twice. Methods that
run in half precision themselves are compared map by map. Beyond the bounds below the run is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from salrun.config.parts import MethodPart, MetricPart, method_part
from salrun.errors import SalrunError
from salrun.metrics.common import wide
from salrun.metrics.correlation import pearson, spearman
from salrun.pipeline.build import Cell
from salrun.pipeline.plan import Plan, plan
from salrun.pipeline.stages import OWN, Stages, Tile, explains_again, tiles
from salrun.progress import watched

SHIFT, RANK, CORRELATION = 0.1, 0.98, 0.999  # the bounds: at most, at least, at least
LEAST, SHARE = 16, 64  # images of the probe: so many, or one in so many
CHEAP, CHOSEN = 10, 3  # passes of a method whose maps the probe may take, and how many such methods it takes
COMPARED = {"forward_only": 2, "averages_passes": 4}  # images whose maps are made twice
CERTAIN = 4  # standard errors from which a mean difference is no noise: a hundred of them may be looked at
NOTHING = 1e-3  # of a score's spread: a difference that changes no rank

Named = tuple[str, str, str, str]  # method, metric, mode, score


@dataclass(frozen=True)
class Effect:
    """What half precision does to a score of one method's maps, or (without a metric) to the maps.

    `shift`: of the run's mean, in its standard errors, to be expected from the probe; `unseen`: how large a bias may be
    without standing out from the probe's noise, in the same unit; `rank`: Spearman over images of exact and fast score.
    """

    role: str
    method: str
    metric: str = ""
    mode: str = ""
    score: str = ""
    images: int = 0  # that have a score
    exact: float = math.nan  # mean
    fast: float = math.nan
    shift: float = math.nan
    unseen: float = math.nan
    rank: float = math.nan
    correlation: float = math.nan  # of exact and fast map, the lowest of the images

    @property
    def small(self) -> bool:
        """Whether it is within the bounds."""
        if not self.metric:
            return self.correlation >= CORRELATION
        return self.shift <= SHIFT and self.rank >= RANK

    def __str__(self) -> str:
        if not self.metric:
            return f"correlates maps of {self.method} by {self.correlation:.5f} with the exact ones (>= {CORRELATION})"
        what = "/".join(filter(None, [self.metric, self.mode, self.score]))
        return (
            f"shifts metrics.{what} of {self.method} by {self.shift:.2g} standard errors (<= {SHIFT}), ranks of images "
            f"agree by {self.rank:.3f} (>= {RANK})"
        )


@dataclass(frozen=True)
class Numerics:
    """How a run computes, and what that does to its numbers."""

    mode: str
    precision: str  # of what is exact
    dtype: str  # of what is not: bfloat16, float16, tf32
    steps: dict[str, list[str]]  # of the copies of the models, by role
    effects: list[Effect]
    exactly: tuple[str, ...] = ()  # metrics that are scored exactly nevertheless

    def of(self, role: str) -> dict[str, Any]:
        """For tables/cells.csv; `exact` where nothing that is made of this model is in half precision."""
        if not any(effect.role == role for effect in self.effects):
            return {"precision": self.precision, "numerics": "exact", "dtype": self.precision, "tf32": False}
        return {"precision": self.precision, "numerics": self.mode, "dtype": self.dtype, "tf32": self.tf32}

    @property
    def tf32(self) -> bool:
        """Whether something of the run is in TF32."""
        return any("tf32" in steps for steps in self.steps.values())

    @property
    def deviations(self) -> list[str]:
        """What a reader of the tables must know."""
        return [self.line()] if self.effects else []

    def facts(self) -> dict[str, Any]:
        """For run.json; the mode is `exact` where nothing of the run is in half precision."""
        mode = self.mode if self.effects else "exact"
        facts: dict[str, Any] = {"mode": mode, "dtype": self.dtype, "tf32": self.tf32, "steps": self.steps}
        if self.effects:
            facts["bounds"] = {"shift": SHIFT, "rank": RANK, "correlation": CORRELATION}
            facts["probe"] = [{k: v for k, v in row.items() if _readable(v)} for row in self.rows()]
        if self.exactly:
            facts["exactly"] = list(self.exactly)
        return facts

    def rows(self) -> list[dict[str, Any]]:
        """For tables/numerics.csv."""
        return [asdict(effect) for effect in self.effects]

    def line(self) -> str:
        """For plan and log; empty for an exact run."""
        if self.mode == "exact":
            return ""
        if not self.effects:
            return f"numerics={self.mode}: stays {self.dtype}, nothing of this run is faster in half precision here"
        scores = [effect for effect in self.effects if effect.metric and effect.images]
        maps = [effect for effect in self.effects if not effect.metric]
        line = f"numerics={self.mode}: {self.dtype}"
        if scores:
            line += (
                f"; on a probe of {max(e.images for e in scores)} images scores shift by at most "
                f"{max(e.shift for e in scores):.2g} standard errors ({max(e.unseen for e in scores):.2g} would not "
                f"be seen), ranks agree by at least {min(e.rank for e in scores):.3f}"
            )
        if maps:
            line += f"; maps correlate by at least {min(e.correlation for e in maps):.5f}"
        return line + f"; scored exactly: {', '.join(self.exactly)}" * bool(self.exactly)


def _readable(value: Any) -> bool:
    """JSON has neither NaN nor infinity."""
    return not isinstance(value, float) or math.isfinite(value)


def measure(cell: Cell, stages: Stages) -> Numerics:
    """Score the probe exactly and as the run would."""
    effects: list[Effect] = []
    if cell.numerics != "exact":
        exact = _exactly(cell, stages)
        images = Tile(-1, tuple(probe(cell)))
        with cell.store.lease("tiles", exact.tile_key(images), "probe of numerics"), _bar(cell, exact, stages):
            for role in stages.models:
                effects += [*_score_effects(cell, exact, stages, role), *_map_effects(cell, exact, stages, role)]
    copies = stages.copies()
    dtype = next((copy.computes_in for copy in copies.values() if copy.reduced), cell.precision)
    steps = {name: list(copy.steps) for name, copy in copies.items()}
    exactly = dict.fromkeys(metric.name for metric in cell.metrics if metric.exact and effects)
    return Numerics(cell.numerics, cell.precision, dtype, steps, effects, tuple(exactly))


def probe_seconds(cell: Cell, stages: Stages) -> float:
    """How long `measure` will take on this device, beside what the store has."""
    return sum(cost.seconds for cost in _costs(cell, _exactly(cell, stages), stages))


def _exactly(cell: Cell, stages: Stages) -> Stages:
    """The same stages without half precision."""
    exact = Stages(replace(cell, numerics="exact", compile="off"), stages.models, stages.keep_maps)
    exact.halved = stages.halved
    return exact


def _costs(cell: Cell, exact: Stages, fast: Stages) -> list[Plan]:
    """What is still to be done for the probe's scores and maps, exactly and fast."""
    work: list[tuple[list[Tile], list[MethodPart], list[MetricPart]]] = []
    if metrics := _scored_twice(cell, fast):
        work.append((tiles(probe(cell), cell.tile), _chosen(cell, fast), metrics))
    for kind, tile in _compared(cell).items():
        if parts := _made_twice(cell, fast, kind):
            work.append(([tile], parts, []))
    others = {role: recipe for role, recipe in cell.others.items() if role in fast.models}
    asked = [(replace(cell, methods=parts, metrics=metrics, others=others), some) for some, parts, metrics in work]
    return [plan(part, stages, some) for part, some in asked for stages in (exact, fast)]


@contextmanager
def _bar(cell: Cell, exact: Stages, fast: Stages) -> Iterator[None]:
    """A bar of the images that go through the models for the probe."""
    total = round(sum(cost.passes for cost in _costs(cell, exact, fast)))
    with tqdm(total=total, desc="probe of numerics", unit="pass", unit_scale=True, disable=None) as bar:
        with watched(bar.update):
            yield
        bar.update(max(0, total - bar.n))  # backward passes


def refuse_large(cell: Cell, numerics: Numerics) -> None:
    """Raise where the run's numbers would not be the same."""
    large = [effect for effect in numerics.effects if not effect.small]
    if large:
        averaging = {part.name for part in cell.methods if part.method.averages_passes}
        only_gradients = all(not effect.metric and effect.method in averaging for effect in large)
        methods = dict.fromkeys(f"methods.{e.method}" for e in large if not e.metric)
        exactly = dict.fromkeys(f"+metrics.{e.metric}.numerics=exact" for e in large if e.metric)
        remedy = f"use numerics={'fast' if only_gradients else 'exact'}, or "
        remedy += " and ".join(filter(None, [f"leave out {', '.join(methods)}" * bool(methods), " ".join(exactly)]))
        raise SalrunError(f"numerics={numerics.mode} {large[0]}: {remedy}")


def probe(cell: Cell) -> list[str]:
    """The images that are scored twice."""
    ids = cell.dataset.explained()
    return _spaced(ids, max(LEAST, len(ids) // SHARE))


def _spaced(ids: Sequence[str], n: int) -> list[str]:
    """`n` of them, evenly; all where there are no more."""
    n = min(n, len(ids))
    return [ids[k * len(ids) // n] for k in range(n)]


def _score_effects(cell: Cell, exact: Stages, fast: Stages, role: str) -> Iterator[Effect]:
    """Of every score of the metrics that run the model."""
    metrics = _scored_twice(cell, fast, role)
    if not metrics:
        return
    parts, planned = _chosen(cell, fast), len(cell.dataset.explained())
    truth, found = (_scores(stages, probe(cell), role, parts, metrics) for stages in (exact, fast))
    for (method, metric, mode, score), values in truth.items():
        figures = compare(values, found[method, metric, mode, score], planned)
        yield Effect(role, method, metric, mode, score, **figures)


def _map_effects(cell: Cell, exact: Stages, fast: Stages, role: str) -> Iterator[Effect]:
    """Of every method that would explain a copy in half precision."""
    for kind, tile in _compared(cell).items():
        for part in _made_twice(cell, fast, kind, role):
            a, b = (stages.map(stages.open(tile, role), part).flatten(1) for stages in (exact, fast))
            yield Effect(role, part.name, images=len(a), correlation=float(_agreement(a, b, pearson).min()))
    exact.close()
    fast.close()


def _compared(cell: Cell) -> dict[str, Tile]:
    """The images whose maps are made twice, by the kind of method."""
    ids = cell.dataset.explained()
    return {kind: Tile(-1, tuple(_spaced(ids, images))) for kind, images in COMPARED.items()}


def _made_twice(cell: Cell, fast: Stages, kind: str, role: str = OWN) -> list[MethodPart]:
    """The methods of a kind that would explain a copy in half precision."""
    parts = [part for part in cell.methods if getattr(part.method, kind)]
    return [part for part in parts if getattr(fast.network_of(role, part), "reduced", False)]


def _scored_twice(cell: Cell, fast: Stages, role: str = OWN) -> list[MetricPart]:
    """The metrics that would run a copy in half precision."""
    metrics = [metric for metric in cell.metrics if _runs_model(cell, fast, metric)]
    return metrics if metrics and fast.inference(role).reduced else []


def _runs_model(cell: Cell, stages: Stages, metric: MetricPart) -> bool:
    """Whether a metric's score depends on forward passes of its own; some stay exact, told so or explaining again."""
    model, shape = next(iter(stages.models.values())), cell.dataset.shape
    passes = metric.metric.passes(model, shape) + metric.metric.shared_passes(model, shape)
    return "model" in metric.metric.needs and passes > 0 and not (metric.exact or explains_again(metric))


def _chosen(cell: Cell, stages: Stages) -> list[MethodPart]:
    """The methods whose maps the probe is scored with."""
    model, shape = next(iter(stages.models.values())), cell.dataset.shape
    passes = {part.name: part.method.passes(model, shape) for part in cell.methods}
    controls = [part for part in cell.methods if passes[part.name] == 0]
    cheap = [part for part in cell.methods if 0 < passes[part.name] <= CHEAP]
    return [*controls, *(cheap[:CHOSEN] or [method_part("gradient")])]


def _scores(
    stages: Stages, ids: Sequence[str], role: str, parts: Sequence[MethodPart], metrics: Sequence[MetricPart]
) -> dict[Named, Tensor]:
    """Every score of the images, by the method and the metric."""
    values: dict[Named, list[Tensor]] = {}
    for tile in tiles(ids, stages.cell.tile):
        result = stages.open(tile, role)
        for part in parts:
            result.target.setdefault(part.name, result.prediction)  # the gradient, where it is no method of the run
            for metric in metrics:
                for name, score in stages.score(result, part, metric).items():
                    values.setdefault((part.name, metric.name, metric.mode, name), []).append(wide(score.value).cpu())
        stages.close()
    return {named: torch.cat(parts_of) for named, parts_of in values.items()}


def compare(exact: Tensor, fast: Tensor, planned: int) -> dict[str, Any]:
    """The figures of an Effect from the scores of the probe, (n,) each, for a run of so many images.

    A mean difference counts as far as the probe's own noise does not explain it; the noise itself moves the mean of the
    run by as many standard errors as it is standard deviations of the score.
    """
    defined = exact.isfinite() & fast.isfinite()
    a, b = exact[defined], fast[defined]
    figures: dict[str, Any] = {"images": len(a), "exact": float(a.mean()), "fast": float(b.mean())}
    if torch.equal(a, b) and (len(a) or torch.equal(exact.isfinite(), fast.isfinite())):
        return figures | {"shift": 0.0, "unseen": 0.0, "rank": 1.0}
    if len(a) < 2 or bool((a == a[0]).all()):  # nothing to compare a difference with: any is too large
        return figures | {"shift": math.inf, "unseen": 0.0, "rank": 0.0}
    spread, noise = float(a.std()), float((b - a).std())
    settled = torch.where((b - a).abs() <= NOTHING * spread, a, b)
    unseen = CERTAIN * noise / math.sqrt(len(a))
    bias = max(0.0, abs(figures["fast"] - figures["exact"]) - unseen)
    return figures | {
        "shift": math.hypot(bias * math.sqrt(planned), noise) / spread,
        "unseen": unseen * math.sqrt(planned) / spread,
        "rank": float(_agreement(a[None], settled[None], spearman)),
    }


def _agreement(a: Tensor, b: Tensor, correlation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The correlation of paired rows; 1 where both are constant, 0 where only one is or something is no number."""
    constant = (a.amax(1) == a.amin(1)) & (b.amax(1) == b.amin(1))
    return torch.where(constant, 1.0, correlation(a, b).to(a.device).nan_to_num(nan=0.0))
