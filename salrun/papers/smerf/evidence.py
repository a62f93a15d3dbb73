"""What a run, or several collected ones, say about the claims of Kim, Plumb, Talwalkar (ICML 2022), seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from salrun.errors import SalrunError
from salrun.papers.claims import SEEDS_FOR_INTERVAL, Basis, Evidence
from salrun.papers.evidence import NotTestable, estimate_and_draws, means, pick, printed
from salrun.papers.smerf.terms import (
    COMPARED,
    CONDITIONS,
    METHODS,
    METRICS,
    MODES,
    PAPER,
    POOLS,
    RECOMMENDED,
    SETTINGS,
    WITH_BOTH,
    Buckets,
    has_both,
    published,
    reasonings,
    settings_of,
    validation_images,
)
from salrun.results.maps import OWN, KeptMaps
from salrun.results.run import Run
from salrun.results.tables import ALL

DRAWS = 1000
OBJECTS, IOU_BY_K = f"{PAPER}_objects", f"{PAPER}_iou_by_k"  # tables of single images, measured on kept maps
ACCURACIES = ["seed", "condition", "setting", "bucket", "accuracy", "source", "verified"]
MEANINGS = {  # fact of a model -> its values that name a condition
    "dataset.background": {"noise": "noise", "places": "places"},
    "model.name": {"smerf_alexnet": "alexnet", "smerf_vgg16": "vgg16"},
    "model.training": {"pgd": "pgd", "none": "random"},
}
READINGS = {  # and those that name a reading
    "dataset.labels": {"code": "labels=code"},
    "dataset.placement": {"strict": "placement=strict"},
    "model.loss": {"keras_clipped": "loss=keras_clipped"},
}


# -- models: what was run ----------------------------------------------------------------------------------------------


def paper_models(cells: pd.DataFrame) -> pd.DataFrame:
    """The paper's models among those of a run: cell, seed, scale, and the setting, condition and reading they mean."""
    ours = ["dataset.kind", "dataset.reasoning", "model.paper", "model.randomised"]
    facts = cells.reindex(columns=["cell", "seed", "scale", "role", *ours, *MEANINGS, *READINGS])
    facts = facts[
        (facts["role"] == OWN)
        & (facts["dataset.kind"] == "textbox")
        & facts["dataset.reasoning"].isin(SETTINGS)
        & (facts["model.paper"] == PAPER)
        & facts["model.randomised"].isna()
    ]
    records = facts.to_dict("records")
    return facts[["cell", "seed", "scale"]].assign(
        setting=facts["dataset.reasoning"],
        condition=[_condition(record) for record in records],
        reading=[_reading(record) for record in records],
    )


def _condition(facts: Mapping[Any, Any]) -> str:
    differs = {meaning.get(facts[name]) for name, meaning in MEANINGS.items()}
    return "+".join(c for c in CONDITIONS if c in differs) or "plain"


def _reading(facts: Mapping[Any, Any]) -> str:
    differs = [meaning.get(facts[name]) for name, meaning in READINGS.items()]
    return ", ".join(filter(None, differs)) or RECOMMENDED


def select(scores: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """The rows of the paper's metrics and models, with setting, condition, reading: of a condition one reading, scale.

    Where several were collected: the one with most settings, then most images, then the recommended one.
    """
    about = models.set_index("cell")[["setting", "condition", "reading"]]
    scores = scores[scores["metric"].isin(list(METRICS))].join(about, on="cell", how="inner")
    offers = scores.groupby(["condition", "reading", "scale"], as_index=False).agg(
        settings=("setting", "nunique"), images=("image_id", "nunique")
    )
    offers["recommended"] = offers["reading"] == RECOMMENDED
    offers = offers.sort_values(["settings", "images", "recommended"], ascending=False, kind="stable")
    return scores.merge(offers.drop_duplicates("condition")[["condition", "reading", "scale"]])


def models_read(models: pd.DataFrame, selected: pd.DataFrame) -> pd.DataFrame:
    """One model per seed, condition and setting: of the selected reading and scale; of any where none was selected."""
    chosen = selected[["condition", "reading", "scale"]].drop_duplicates()
    others = models[~models["condition"].isin(chosen["condition"])]
    others = others.sort_values("reading", key=lambda r: r != RECOMMENDED, kind="stable")
    both = pd.concat([models.merge(chosen, on=["condition", "reading", "scale"]), others], ignore_index=True)
    return both.drop_duplicates(["seed", "condition", "setting"])


@dataclass(frozen=True)
class ModelScores:
    """The scores of one model: per bucket a table images x (mode, metric, method)."""

    seed: int
    condition: str
    setting: str
    reading: str
    buckets: dict[str, pd.DataFrame]

    @cached_property
    def scored(self) -> dict[str, dict[str, np.ndarray]]:
        """Bucket -> metric -> which images have a score of some method."""
        having = {}
        for bucket, table in self.buckets.items():
            metric, there = table.columns.get_level_values("metric"), table.notna().to_numpy()
            having[bucket] = {m: there[:, metric == m].any(axis=1) for m in METRICS if m in metric}
        return having

    def images(self, metrics: Sequence[str] = tuple(METRICS), buckets: Iterable[str] | None = None) -> int:
        """How many images have a score of one of these metrics, in these buckets (default: in all)."""
        chosen = [self.scored[b] for b in (self.scored if buckets is None else buckets) if b in self.scored]
        return sum(int(np.any([t[m] for m in metrics if m in t], axis=0).sum()) for t in chosen)

    @cached_property
    def by_mode(self) -> dict[str, dict[str, pd.DataFrame]]:
        """Mode -> bucket -> images x (metric, method) of the metrics that have a score there."""
        modes: dict[str, dict[str, pd.DataFrame]] = {mode: {} for mode in MODES}
        for bucket, table in self.buckets.items():
            for mode in table.columns.get_level_values("mode").unique():
                scored = table[mode].notna().any().groupby(level="metric").transform("any")
                modes[mode][bucket] = table[mode].loc[:, scored.to_numpy()]
        return modes


def scores_by_seed(selected: pd.DataFrame) -> dict[int, list[ModelScores]]:
    """Seed -> its models in the paper's order; seeds that lack a model which another seed has are left out."""
    selected = selected[selected["mode"].isin(MODES)]
    keys = ["mode", "metric", "method"]
    if selected.duplicated(["seed", "condition", "setting", "image_id", *keys]).any():
        raise SalrunError(
            "a metric has two scores for one image and method: collect runs that agree on the methods' views"
        )
    by_seed: dict[int, list[ModelScores]] = {}
    for (seed, condition, setting, reading), part in selected.groupby(["seed", "condition", "setting", "reading"]):
        wide = part.pivot(index=["group", "image_id"], columns=keys, values="value").astype(np.float64)
        buckets = {str(b): t.droplevel("group") for b, t in wide.groupby(level="group")}
        ordered = {b: buckets[b] for b in sorted(buckets, key=int)}
        by_seed.setdefault(int(seed), []).append(ModelScores(int(seed), condition, setting, reading, ordered))
    most = max((len(models) for models in by_seed.values()), default=0)
    return {seed: sorted(m, key=_place) for seed, m in sorted(by_seed.items()) if len(m) == most}


def _place(model: ModelScores) -> tuple[str, int]:
    return "" if model.condition == "plain" else model.condition, SETTINGS.index(model.setting)


# -- evidence of one seed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reads:
    """What a claim rests on: metrics in pools or settings, under conditions. No metrics: the models' accuracy."""

    of: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ("plain",)
    metrics: tuple[str, ...] = ("pafl",)
    buckets: Buckets | None = None  # by setting, where not all are read
    whole: bool = False  # every setting of a pool is needed, not one of them
    empty_maps: bool = False  # Grad-CAM's empty maps matter
    maps: str = ""  # a table made of kept maps, instead of metrics

    @property
    def settings(self) -> set[str]:
        return {s for name in self.of for s in settings_of(name)}


@dataclass(frozen=True)
class Measured(Evidence):
    """Evidence of one seed in the code's reading of the metrics; `paper` holds the text's reading.

    Tables: `bucket` (setting, bucket, metric, method) of the plain models; `mean`, `min`, `std` over the buckets of a
    pool (condition, like, pool, metric, method), where `like` names a condition whose settings alone are pooled;
    `accuracy` (condition, setting, bucket); `visible` (setting, method) and `iou_spread` of kept maps.
    """

    models: tuple[ModelScores, ...] = ()
    paper: Measured | None = None
    mode: str = "code"
    printed: bool = False  # the paper's own numbers: gaps are no fault
    runs: frozenset[tuple[str, str]] = frozenset()  # (condition, setting) of every model, whatever was measured

    def settings(self, condition: str = "plain", metrics: Sequence[str] = ()) -> tuple[str, ...]:
        """The settings with scores, of each of these metrics."""
        if self.printed:
            return SETTINGS
        models = [m for m in self.models if m.condition == condition]
        return tuple(m.setting for m in models if all(m.images([metric]) for metric in metrics))

    def ran(self, condition: str) -> tuple[str, ...]:
        """The settings with a model, whatever was measured."""
        return SETTINGS if self.printed else tuple(s for s in SETTINGS if (condition, s) in self.runs)

    def pool(
        self,
        pool: str,
        metric: str,
        methods: Sequence[str],
        statistic: str = "mean",
        condition: str = "plain",
        like: str = "",
    ) -> pd.DataFrame:
        """Mean, min or std over a pool's buckets, by method."""
        wanted = {"condition": condition, "like": like, "pool": pool, "metric": metric, "method": list(methods)}
        return pick(self[statistic], **wanted)[list(methods)]

    def line(self, setting: str, buckets: Sequence[str], metric: str, methods: Sequence[str]) -> pd.DataFrame:
        """Mean over some buckets of a plain model's setting, by method."""
        chosen = pick(self["bucket"], setting=setting, metric=metric, bucket=list(buckets), method=list(methods))
        return chosen.T.groupby(level="method", sort=False).mean().T[list(methods)]

    # what a claim rests on

    def require(self, reads: Reads) -> None:
        """Refuse a claim that reads what was not run, or not measured: NotTestable says which."""
        for condition in reads.conditions:
            there = self._readable(reads, condition)
            for name in reads.of:
                absent = [s for s in settings_of(name) if s not in there]
                if absent and (reads.whole or len(absent) == len(settings_of(name))):
                    under = "" if condition == "plain" else f" under {condition}"
                    raise NotTestable(f"needs {self._lack(reads, condition, absent)}{under}")

    def basis(self, reads: Reads) -> Basis:
        """Images and models behind a claim, and what its pools and readings lack."""
        if reads.maps:
            return self.bases.get(reads.maps, Basis())
        if not reads.of:
            return Basis(sum(m.images() for m in self.models), len(self.models))
        models = self._models(reads)
        if reads.metrics:
            some = reads.buckets
            images = [m.images(reads.metrics, None if some is None else some[m.setting]) for m in models]
        else:
            count = validation_images()
            images = [count[s] for c in reads.conditions for s in self._readable(reads, c) if s in reads.settings]
        notes = [*self._partial_pools(reads), *_readings(models), *(_empty_maps(models) if reads.empty_maps else ())]
        return Basis(sum(images), len(images), "; ".join(notes))

    def _readable(self, reads: Reads, condition: str) -> tuple[str, ...]:
        return self.settings(condition, reads.metrics) if reads.metrics else self.ran(condition)

    def _lack(self, reads: Reads, condition: str, absent: Sequence[str]) -> str:
        """What to run: settings, or the metrics of those that were run without."""
        without = [s for s in absent if s not in self.ran(condition)]
        if len(without) == len(absent) or (reads.whole and without):
            which = "" if reads.whole or len(absent) == 1 else "one of "
            return f"a run of {which}{', '.join(without)}"
        lacking = [m for m in reads.metrics if not {*absent} & {*self.settings(condition, [m])}] or reads.metrics
        return f"the metric{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}"

    def _models(self, reads: Reads) -> list[ModelScores]:
        wanted = {s for s in reads.settings if reads.buckets is None or s in reads.buckets}
        if reads.conditions in COMPARED:  # over the settings that both have
            wanted &= {*self._readable(reads, reads.conditions[1])}
        there = {c: wanted & {*self._readable(reads, c)} for c in reads.conditions}
        return [m for m in self.models if m.setting in there.get(m.condition, ())]

    def _partial_pools(self, reads: Reads) -> Iterator[str]:
        for condition in reads.conditions:
            there = self._readable(reads, condition)
            for whole in map(settings_of, reads.of):
                pooled = [s for s in whole if s in there]
                if 0 < len(pooled) < len(whole):
                    where = "" if condition == "plain" else f" under {condition}"
                    yield f"pooled over {_and(pooled)} only{where}; the paper pools {_and(whole)}"


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _readings(models: Iterable[ModelScores]) -> list[str]:
    return [f"models with {reading}" for reading in sorted({m.reading for m in models} - {RECOMMENDED})]


def _empty_maps(models: Iterable[ModelScores]) -> Iterator[str]:
    """How many Grad-CAM maps are empty: the public code shows the whole mean as 0 where one is."""
    tables = [table["pafl"] for m in models for table in m.by_mode["code"].values() if ("pafl", "grad_cam") in table]
    missing = sum(int(table["grad_cam"].isna().sum()) for table in tables)
    if missing:
        total = sum(map(len, tables))
        yield f"{missing} of {total} Grad-CAM maps are empty (the public code then plots 0)"


def evidence(
    models: Sequence[ModelScores],
    accuracies: pd.DataFrame | None = None,
    draws: int = DRAWS,
    runs: Iterable[tuple[str, str]] = (),
    of_maps: Mapping[str, pd.DataFrame] | None = None,
) -> Measured:
    """All that the claims read about one seed. `runs`: (condition, setting) of models beside those with scores."""
    every = frozenset([*runs, *((m.condition, m.setting) for m in models)])
    code, paper = (
        Measured(mode_tables(models, mode, draws), models=tuple(models), mode=mode, runs=every) for mode in MODES
    )
    more = dict(of_maps or {})
    if accuracies is not None and len(accuracies):
        more["accuracy"] = accuracy_table(accuracies, draws)
    return replace(code, tables={**code.tables, **more}, paper=paper)


def mode_tables(models: Sequence[ModelScores], mode: str, draws: int) -> dict[str, pd.DataFrame]:
    """`bucket`, `mean`, `std`, `min` in one reading of the metrics."""
    conditions = dict.fromkeys(m.condition for m in models)
    buckets = {c: bucket_table([m for m in models if m.condition == c], mode, draws) for c in conditions}
    blocks: dict[str, dict[tuple[str, str, str], pd.DataFrame]] = {}
    for (condition, like), table in _with_matched(buckets).items():
        for pool, inside in pool_members(*(table.columns.get_level_values(k) for k in ("setting", "bucket"))).items():
            for statistic, values in over_buckets(table.loc[:, inside]).items():
                blocks.setdefault(statistic, {})[condition, like, pool] = values
    levels = ["condition", "like", "pool"]
    tables = {statistic: pd.concat(parts, axis=1, names=levels) for statistic, parts in blocks.items()}
    return tables | ({"bucket": buckets["plain"]} if "plain" in buckets else {})


def bucket_table(models: Iterable[ModelScores], mode: str, draws: int) -> pd.DataFrame:
    """Bucket means: columns (setting, bucket, metric, method). Each bucket's images are resampled on their own.

    All methods, modes and conditions share their resamples, so that differences are paired.
    """
    blocks = {
        (m.setting, bucket): means(values, draws, [SETTINGS.index(m.setting), int(bucket)])
        for m in models
        for bucket, values in m.by_mode[mode].items()
    }
    names = ["setting", "bucket", "metric", "method"]
    if not blocks:
        return pd.DataFrame(index=range(1 + draws), columns=pd.MultiIndex.from_tuples([], names=names), dtype=float)
    return pd.concat(blocks, axis=1, names=names)


def _with_matched(buckets: Mapping[str, pd.DataFrame]) -> dict[tuple[str, str], pd.DataFrame]:
    """(condition, "") -> its buckets; (condition, like) -> those in the settings that `like` has."""
    tables = {(condition, ""): table for condition, table in buckets.items()}
    for one, other in COMPARED:
        if one in buckets and other in buckets:
            there = buckets[other].columns.get_level_values("setting").unique()
            shared = buckets[one].columns.get_level_values("setting").isin(there)
            tables[one, other] = buckets[one].loc[:, shared]
    return tables


def pool_members(setting: Any, bucket: Any) -> dict[str, np.ndarray]:
    """Pool -> which of these buckets of settings belong to it."""
    both = np.array(has_both(setting, bucket), dtype=bool)
    inside = {pool: np.asarray(setting.isin(settings), dtype=bool) for pool, settings in POOLS.items()}
    return {pool: there & both if pool in WITH_BOTH else there for pool, there in inside.items()}


def over_buckets(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """`mean`, `std` (population) and `min` over buckets: columns (metric, method). Undefined buckets are left out."""
    codes, unique = table.columns.droplevel(["setting", "bucket"]).factorize()
    keys = pd.MultiIndex.from_tuples(unique, names=["metric", "method"])
    values = table.to_numpy()
    columns: dict[str, list[np.ndarray]] = {"mean": [], "std": [], "min": []}
    for k in range(len(keys)):
        block = values[:, codes == k]
        missing = np.isnan(block)
        n = np.where(missing.all(axis=1), np.nan, (~missing).sum(axis=1))
        mean = np.where(missing, 0.0, block).sum(axis=1) / n
        spread = np.where(missing, 0.0, (block - mean[:, None]) ** 2).sum(axis=1) / n
        columns["mean"].append(mean)
        columns["std"].append(np.sqrt(spread))
        columns["min"].append(np.where(np.isnan(n), np.nan, np.where(missing, np.inf, block).min(axis=1)))
    return {name: pd.DataFrame(np.stack(rows, axis=1), columns=keys) for name, rows in columns.items() if rows}


def accuracy_table(accuracies: pd.DataFrame, draws: int) -> pd.DataFrame:
    """Accuracies with binomial draws (the bootstrap of right and wrong images), and `(all)` of every setting."""
    of_buckets = accuracies[accuracies["bucket"] != ALL].set_index(["condition", "setting", "bucket"])["accuracy"]
    blocks = []
    for (condition, setting), part in of_buckets.groupby(level=["condition", "setting"], sort=False):
        n = reasonings()[setting]["validation_per_bucket"]
        rng = np.random.default_rng(SETTINGS.index(setting))
        sampled = rng.binomial(n, part.clip(0, 1).to_numpy(), size=(draws, len(part))) / n
        table = estimate_and_draws(part.to_list(), sampled, part.index)
        table[condition, setting, ALL] = table.mean(axis=1)
        blocks.append(table)
    return pd.concat(blocks, axis=1)


def map_tables(objects: pd.DataFrame, iou: pd.DataFrame, draws: int) -> dict[str, pd.DataFrame]:
    """`visible`: share of images with every object brighter than what is outside; `iou_spread`: of the IOU over K."""
    tables = {}
    if len(objects):
        lit = objects.assign(lit=objects["on"] > objects["outside"])
        lit = lit.groupby(["setting", "number", "image_id", "method"])["lit"].all().unstack("method")
        lit = lit[[m for m in METHODS if m in lit]].astype(np.float64)
        there = [s for s in SETTINGS if s in lit.index.get_level_values("setting")]
        blocks = {s: means(lit.loc[s], draws, SETTINGS.index(s)) for s in there}
        tables["visible"] = pd.concat(blocks, axis=1, names=["setting", "method"])
    if len(iou):
        over_k = iou.groupby(["method", "number", "image_id"])["iou"]
        tables["iou_spread"] = means((over_k.max() - over_k.min()).unstack("method"), draws)
    return tables


def images_of(measures: pd.DataFrame) -> Basis:
    """The images and models behind a table of single images."""
    return Basis(len(measures[["cell", "image_id"]].drop_duplicates()), measures["cell"].nunique())


def published_evidence() -> Measured:
    """The paper's own numbers in the form that the claims read; what it does not print is NaN."""
    tables = {}
    conditions = [("plain", ""), *((c, "") for c in CONDITIONS), *COMPARED]
    levels = [("plain", *CONDITIONS), ("simple", "complex"), ("piou", "pafl", "safl"), tuple(METHODS)]
    for statistic, part in published().groupby("statistic"):
        values = part.set_index(["condition", "pool", "metric", "method"])["value"]
        whole = values.reindex(pd.MultiIndex.from_product(levels, names=values.index.names))
        blocks = {(condition, like): whole[condition] for condition, like in conditions}
        tables[str(statistic)] = printed(pd.concat(blocks, names=["condition", "like"]))
    accuracy = published("accuracy")
    overall = accuracy[accuracy["condition"] == "plain"].groupby(["condition", "setting"], as_index=False)["accuracy"]
    accuracy = pd.concat([accuracy, overall.mean().assign(bucket=ALL)])
    tables["accuracy"] = printed(accuracy.set_index(["condition", "setting", "bucket"])["accuracy"])
    tables["line"] = printed(published("lines").set_index(["setting", "line", "metric", "method"])["value"])
    return Measured(tables, printed=True)


# -- evidence of a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelMaps:
    """The kept maps of one model, and what was measured on them."""

    setting: str
    condition: str
    kept: KeptMaps
    objects: pd.DataFrame
    iou_by_k: pd.DataFrame


@dataclass(frozen=True)
class SmerfEvidence:
    """All that tables, figures and claims are made of."""

    seeds: tuple[Measured, ...] = ()
    accuracies: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=ACCURACIES))
    maps: tuple[ModelMaps, ...] = ()  # of the first seed, in the paper's order


def read(run: Run, draws: int = DRAWS) -> SmerfEvidence:
    """The evidence of a run; with enough seeds the interval is over seeds and needs no draws."""
    models = paper_models(run.cells)
    selected = select(run.scores, models)
    about = models_read(models, selected)
    scores = scores_by_seed(selected) or {int(seed): [] for seed in sorted(about["seed"].unique())}
    draws = 0 if len(scores) >= SEEDS_FOR_INTERVAL else draws
    accuracies = read_accuracies(run.models, about)
    objects, iou = (read_measures(run.table(name), about) for name in (OBJECTS, IOU_BY_K))
    shared = _of_every_seed(about, list(scores))
    runs = list(zip(shared["condition"], shared["setting"], strict=True))
    seeds = []
    for seed, of_seed in scores.items():
        keys = shared.loc[shared["seed"] == seed, ["seed", "condition", "setting"]]
        lit, overlap = (t[(t["seed"] == seed) & (t["condition"] == "plain")] for t in (objects, iou))
        of_maps = map_tables(lit, overlap, draws)
        bases = {"visible": images_of(lit), "iou_spread": images_of(overlap)}
        seeds.append(replace(evidence(of_seed, accuracies.merge(keys), draws, runs, of_maps), bases=bases))
    first = about[about["seed"] == next(iter(scores), None)]
    return SmerfEvidence(tuple(seeds), accuracies, tuple(read_maps(run.maps, first, objects, iou)))


def _of_every_seed(about: pd.DataFrame, seeds: Sequence[int]) -> pd.DataFrame:
    """The models of conditions and settings that all of these seeds have: seeds are compared model by model."""
    about = about[about["seed"].isin(seeds)]
    return about[about.groupby(["condition", "setting"])["seed"].transform("nunique") == len(seeds)]


def read_accuracies(models: pd.DataFrame, about: pd.DataFrame) -> pd.DataFrame:
    """seed, condition, setting, bucket, accuracy, source, verified of these models (see `models_read`)."""
    table = models[models["what"] == "accuracy"].rename(columns={"group": "bucket", "value": "accuracy"})
    return in_order(table.merge(about[["cell", "condition", "setting"]], on="cell")[ACCURACIES])


def read_measures(table: pd.DataFrame | None, about: pd.DataFrame) -> pd.DataFrame:
    """A table of single images of these models, with seed, condition, setting and the number of the bucket."""
    if table is None:
        return pd.DataFrame(columns=["cell", "image_id", "seed", "condition", "setting", "number"])
    table = table.merge(about[["cell", "seed", "condition", "setting"]], on="cell")
    return table.assign(number=table["group"].astype(int))


def read_maps(
    every: Iterable[KeptMaps], about: pd.DataFrame, objects: pd.DataFrame, iou: pd.DataFrame
) -> list[ModelMaps]:
    """The kept maps of these models, in the paper's order."""
    by_cell = {kept.facts["cell"]: kept for kept in every}
    about = about[about["cell"].isin(by_cell)]
    about = about.assign(place=about["setting"].map(SETTINGS.index))
    return [
        ModelMaps(m.setting, m.condition, by_cell[m.cell], *(t[t["cell"] == m.cell] for t in (objects, iou)))
        for m in about.sort_values(["condition", "place"]).itertuples()
    ]


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Rows by seed and condition (where the table has these), setting and bucket."""
    place = table["setting"].map(SETTINGS.index)
    number = pd.to_numeric(table["bucket"], errors="coerce").fillna(0)
    others = [c for c in ("seed", "condition") if c in table]
    keyed = table.assign(_place=place, _number=number).sort_values([*others, "_place", "_number"], kind="stable")
    return keyed.drop(columns=["_place", "_number"]).reset_index(drop=True)
