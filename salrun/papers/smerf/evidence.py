"""What a run, or several collected ones, say about the claims of Kim, Plumb, Talwalkar (ICML 2022), seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from salrun.errors import SalrunError
from salrun.papers.claims import Basis, Evidence
from salrun.papers.evidence import DIGITISED, HALF_A_HUNDREDTH, NotTestable, estimate_and_draws, means, printed
from salrun.papers.smerf.terms import (
    CONDITIONS,
    FIFTEEN,
    LABELS,
    METHODS,
    METRICS,
    MODES,
    PAPER,
    POOLS,
    PRINTED,
    RECOMMENDED,
    SETTINGS,
    SHOWN_LINES,
    WITH_BOTH,
    Buckets,
    buckets_of,
    has_both,
    published,
    reasonings,
    settings_of,
    validation_images,
)
from salrun.results.maps import OWN, KeptMaps
from salrun.results.run import Run
from salrun.results.tables import ALL
from salrun.stats.bootstrap import Floats
from salrun.stats.conjunction import ENOUGH

DRAWS = 2000
FEW_DRAWS = 200  # where models decide, and the images only bound their spread
ENOUGH_SCORES = 0.5  # of a bucket's images must have a score
OBJECTS, IOU_BY_K = f"{PAPER}_objects", f"{PAPER}_iou_by_k"  # tables of single images, measured on kept maps
ACCURACIES = ["seed", "condition", "setting", "bucket", "accuracy", "source", "verified"]
MEANINGS = {  # fact of a model -> its values that name a condition
    "dataset.background": {"noise": "noise", "places": "places"},
    "model.name": {"smerf_alexnet": "alexnet", "smerf_vgg16": "vgg16", "smerf_vit": "vit"},
    "model.training": {"pgd": "pgd", "none": "random"},
}
READINGS = {  # and those that name a reading
    "dataset.labels": {"code": "labels=code"},
    "dataset.placement": {"strict": "placement=strict"},
    "model.loss": {"keras_clipped": "loss=keras_clipped"},
}


# -- models: what was run ----------------------------------------------------------------------------------------------


def paper_models(cells: pd.DataFrame) -> pd.DataFrame:
    """The paper's models among those of a run: cell, seed, scale, the choice of their images, and what they mean."""
    ours = ["dataset.kind", "dataset.reasoning", "dataset.explained_seed", "model.paper", "model.randomised"]
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
        images=facts["dataset.explained_seed"],
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

    Where several were collected: the recommended one, then the one with most settings, then with most images.
    """
    about = models.set_index("cell")[["setting", "condition", "reading"]]
    scores = scores[scores["metric"].isin(list(METRICS))].join(about, on="cell", how="inner")
    offers = scores.groupby(["condition", "reading", "scale"], as_index=False).agg(
        settings=("setting", "nunique"), images=("image_id", "nunique")
    )
    offers["recommended"] = offers["reading"] == RECOMMENDED
    offers = offers.sort_values(["recommended", "settings", "images"], ascending=False, kind="stable")
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
    def scored(self) -> dict[str, dict[tuple[str, str], np.ndarray]]:
        """Bucket -> (metric, method) -> which images have a score, as the public code scores."""
        tables = self.by_mode["code"]
        return {b: dict(zip(t.columns, t.notna().to_numpy().T, strict=True)) for b, t in tables.items()}

    @cached_property
    def metrics(self) -> set[str]:
        """The metrics that have a score somewhere."""
        return {metric for having in self.scored.values() for metric, _ in having}

    @cached_property
    def sparse(self) -> list[tuple[str, str, str]]:
        """(bucket, metric, method) with a score for fewer than half of the images."""
        every = [(b, *name, there.mean()) for b, having in self.scored.items() for name, there in having.items()]
        return [(bucket, metric, method) for bucket, metric, method, share in every if share < ENOUGH_SCORES]

    def images(self, metrics: Sequence[str], methods: Sequence[str], buckets: Iterable[str]) -> int:
        """How many images have a score of one of these metrics and methods, in these buckets."""
        names = [(metric, method) for metric in metrics for method in methods]
        of_buckets = [[self.scored[b][n] for n in names if n in self.scored[b]] for b in buckets if b in self.scored]
        return sum(int(np.any(having, axis=0).sum()) for having in of_buckets)

    @cached_property
    def by_mode(self) -> dict[str, dict[str, pd.DataFrame]]:
        """Mode -> bucket -> images x (metric, method) of the metrics that have a score there."""
        modes: dict[str, dict[str, pd.DataFrame]] = {mode: {} for mode in MODES}
        for bucket, table in self.buckets.items():
            for mode in table.columns.get_level_values("mode").unique():
                scores = table[mode]
                metric = scores.columns.get_level_values("metric")
                modes[mode][bucket] = scores.loc[:, metric.isin(metric[scores.notna().to_numpy().any(axis=0)])]
        return modes


def scores_by_seed(selected: pd.DataFrame) -> dict[int, list[ModelScores]]:
    """Seed -> its models in the paper's order."""
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
    return {seed: sorted(models, key=_place) for seed, models in sorted(by_seed.items())}


def _place(model: ModelScores) -> tuple[str, int]:
    return "" if model.condition == "plain" else model.condition, SETTINGS.index(model.setting)


# -- evidence of one seed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reads:
    """What a claim rests on: metrics in pools or settings, under conditions. No metrics: the models' accuracy."""

    of: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ("plain",)
    metrics: tuple[str, ...] = ("pafl",)
    methods: tuple[str, ...] = tuple(FIFTEEN)
    buckets: Buckets | None = None  # by setting, where not all are read
    empty_maps: bool = False  # Grad-CAM's empty maps matter
    maps: str = ""  # a table made of kept maps, instead of metrics

    @property
    def settings(self) -> list[str]:
        named = {s for name in self.of for s in settings_of(name)}
        return [s for s in SETTINGS if s in named]

    def buckets_in(self, setting: str) -> tuple[str, ...]:
        """The buckets that are read."""
        if self.buckets is not None:
            return self.buckets[setting]
        return tuple(dict.fromkeys(b for metric in self.metrics for b in buckets_of(setting, metric)))


@dataclass(frozen=True)
class Measured(Evidence):
    """Evidence of one seed in the code's reading of the metrics; `paper` holds the text's reading.

    Tables: `bucket` (setting, bucket, metric, method) of the plain models; `mean`, `min`, `std` over the buckets of a
    pool (condition, pool, metric, method); `accuracy` (condition, setting, bucket); `weight` (method, setting, line,
    object) and `iou_spread` of kept maps.
    """

    models: tuple[ModelScores, ...] = ()
    paper: Measured | None = None
    mode: str = "code"
    printed: bool = False  # the paper's own numbers: gaps are no fault
    runs: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (condition, setting) of a model -> its reading

    @cached_property
    def scores(self) -> dict[tuple[str, str], ModelScores]:
        """(condition, setting) -> the model with scores."""
        return {(m.condition, m.setting): m for m in self.models}

    def settings(self, condition: str = "plain") -> tuple[str, ...]:
        """The settings with scores."""
        return tuple(s for s in SETTINGS if (condition, s) in self.scores)

    @cached_property
    def places(self) -> dict[str, dict[tuple[str, ...], int]]:
        """Table -> column -> its place."""
        return {name: {column: k for k, column in enumerate(table.columns)} for name, table in self.tables.items()}

    def columns(self, name: str, wanted: Sequence[tuple[str, ...]]) -> Floats:
        """(draws, columns) of a table whose last level is the method."""
        table, places = self[name], self.places[name]
        absent = dict.fromkeys(column[-1] for column in wanted if column not in places)
        if absent:
            raise NotTestable(f"needs method {', '.join(absent)}")
        return table.to_numpy()[:, [places[column] for column in wanted]]

    def pool(
        self, pool: str, metric: str, methods: Sequence[str], statistic: str = "mean", condition: str = "plain"
    ) -> pd.DataFrame:
        """Mean, min or std over a pool's buckets, by method."""
        values = self.columns(statistic, [(condition, pool, metric, m) for m in methods])
        return pd.DataFrame(values, columns=pd.Index(methods, name="method"))

    def buckets(self, setting: str, metric: str, methods: Sequence[str], of: Sequence[str] | None = None) -> Floats:
        """(draws, methods, buckets): means of a plain model's buckets, by default of all that have the metric."""
        chosen = buckets_of(setting, metric) if of is None else of
        values = self.columns("bucket", [(setting, b, metric, m) for m in methods for b in chosen])
        return values.reshape(len(values), len(methods), len(chosen))

    def line(self, setting: str, buckets: Sequence[str], metric: str, methods: Sequence[str]) -> pd.DataFrame:
        """Mean over some buckets of a plain model's setting, by method."""
        values = mean(self.buckets(setting, metric, methods, buckets))
        return pd.DataFrame(values, columns=pd.Index(methods, name="method"))

    # what a claim rests on

    def require(self, reads: Reads) -> None:
        """Refuse a claim that reads what was not run, or not measured: NotTestable says which."""
        for condition in () if self.printed else reads.conditions:
            under = "" if condition == "plain" else f" under {condition}"
            absent = [s for s in reads.settings if (condition, s) not in self.runs]
            if absent:
                raise NotTestable(f"needs a run of {', '.join(absent)}{under}")
            models = {s: self.scores.get((condition, s)) for s in reads.settings}
            metrics = [m for m in reads.metrics if not all(model and m in model.metrics for model in models.values())]
            if metrics:
                raise NotTestable(f"needs the metric{'s' if len(metrics) > 1 else ''} {', '.join(metrics)}{under}")
            for setting, model in models.items():
                buckets = [b for b in reads.buckets_in(setting) if model and b not in model.buckets]
                if buckets:
                    raise NotTestable(f"needs the buckets {', '.join(buckets)} of {setting}{under}")

    def basis(self, reads: Reads) -> Basis:
        """Images and models behind a claim, its models' reading, and the buckets that its pools leave out."""
        if reads.maps:
            return self.bases.get(reads.maps, Basis())
        names = [(c, s) for c in reads.conditions for s in reads.settings if (c, s) in self.runs]
        reading = _other_readings(self.runs[name] for name in names)
        if not reads.metrics:
            count = validation_images()
            return Basis(sum(count[s] for _, s in names), len(names), reading=reading)
        models = [self.scores[name] for name in names if name in self.scores]
        images = [m.images(reads.metrics, reads.methods, reads.buckets_in(m.setting)) for m in models]
        notes = [*_left_out(models, reads), *(_empty_maps(models) if reads.empty_maps else ())]
        return Basis(sum(images), len(images), "; ".join(notes), reading)


def _other_readings(readings: Iterable[str]) -> str:
    return "; ".join(sorted({*readings} - {RECOMMENDED}))


def _left_out(models: Iterable[ModelScores], reads: Reads) -> Iterator[str]:
    """Which buckets are left out of a method's pools."""
    where: dict[str, dict[str, list[str]]] = {}  # method -> model -> buckets
    for model in models:
        name = model.setting if model.condition == "plain" else f"{model.setting} ({model.condition})"
        for bucket, metric, method in model.sparse:
            if metric in reads.metrics and method in reads.methods and bucket in reads.buckets_in(model.setting):
                where.setdefault(LABELS[method], {}).setdefault(name, []).append(bucket)
    said = []
    for method, of_models in where.items():
        places = [" ".join([name, *dict.fromkeys(buckets)]) for name, buckets in of_models.items()]
        said.append(f"{method} in {', '.join(places)}")
    if said:
        yield f"left out, fewer than half of the images have a score: {'; '.join(said)}"


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
    runs: Mapping[tuple[str, str], str] | None = None,
    of_maps: Mapping[str, pd.DataFrame] | None = None,
) -> Measured:
    """All that the claims read about one seed. `runs`: readings of models beside those with scores."""
    every = {(m.condition, m.setting): m.reading for m in models} | dict(runs or {})
    code, paper = (
        Measured(mode_tables(models, mode, draws), models=tuple(models), mode=mode, runs=every) for mode in MODES
    )
    more = dict(of_maps or {})
    if accuracies is not None and len(accuracies):
        more["accuracy"] = accuracy_table(accuracies, draws)
    return replace(code, tables={**code.tables, **more}, paper=paper)


def mode_tables(models: Sequence[ModelScores], mode: str, draws: int) -> dict[str, pd.DataFrame]:
    """`bucket`, `mean`, `std`, `min` in one reading of the metrics."""
    tables: dict[str, pd.DataFrame] = {}
    blocks: dict[str, dict[tuple[str, str], pd.DataFrame]] = {}
    for condition in dict.fromkeys(m.condition for m in models):
        table = bucket_table([m for m in models if m.condition == condition], mode, draws)
        if condition == "plain":
            tables["bucket"] = table
        for pool, inside in pool_members(*(table.columns.get_level_values(k) for k in ("setting", "bucket"))).items():
            for statistic, values in over_buckets(table.loc[:, inside]).items():
                blocks.setdefault(statistic, {})[condition, pool] = values
    return tables | {name: side_by_side(parts, ["condition", "pool"]) for name, parts in blocks.items()}


def bucket_table(models: Iterable[ModelScores], mode: str, draws: int) -> pd.DataFrame:
    """Bucket means: columns (setting, bucket, metric, method). Each bucket's images are resampled on their own.

    All methods, modes and conditions share their resamples, so that differences are paired.
    """
    blocks = {
        (m.setting, bucket): means(with_enough_scores(values), draws, [SETTINGS.index(m.setting), int(bucket)])
        for m in models
        for bucket, values in m.by_mode[mode].items()
    }
    if not blocks:
        names = ["setting", "bucket", "metric", "method"]
        return pd.DataFrame(index=range(1 + draws), columns=pd.MultiIndex.from_tuples([], names=names), dtype=float)
    return side_by_side(blocks, ["setting", "bucket"])


def with_enough_scores(values: pd.DataFrame) -> pd.DataFrame:
    """The scores of a bucket, without those of methods that have one for fewer than half of its images."""
    return values * np.where(values.notna().to_numpy().mean(axis=0) < ENOUGH_SCORES, np.nan, 1.0)


def side_by_side(blocks: Mapping[tuple[str, str], pd.DataFrame], levels: Sequence[str]) -> pd.DataFrame:
    """Tables of (metric, method) as one in one piece of memory, with further levels of columns in front."""
    columns = [(*key, *column) for key, block in blocks.items() for column in block.columns]
    values = np.concatenate([block.to_numpy() for block in blocks.values()], axis=1)
    return pd.DataFrame(values, columns=pd.MultiIndex.from_tuples(columns, names=[*levels, "metric", "method"]))


def mean(values: Floats) -> Floats:
    """Over the last axis, NaN left out; NaN where all are."""
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(there, values, 0.0).sum(axis=-1) / there.sum(axis=-1)


def share(cells: Floats, above: float) -> Floats:
    """Share of the defined cells, over the last axis, that lie above a number."""
    return mean(np.where(np.isnan(cells), np.nan, cells > above))


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
    columns: dict[str, list[Floats]] = {"mean": [], "std": [], "min": []}
    for k in range(len(keys)):
        block = values[:, codes == k]
        centre = mean(block)
        columns["mean"].append(centre)
        columns["std"].append(np.sqrt(mean((block - centre[:, None]) ** 2)))
        columns["min"].append(np.fmin.reduce(block, axis=1))
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
    """`weight`: of secondary objects, beyond half of the primary ones'; `iou_spread`: of the IOU over K."""
    tables = {}
    if len(objects):
        tables["weight"] = secondary_weight(objects, draws)
    if len(iou):
        over_k = iou.groupby(["method", "number", "image_id"])["iou"]
        tables["iou_spread"] = means((over_k.max() - over_k.min()).unstack("method"), draws)
    return tables


def secondary_weight(objects: pd.DataFrame, draws: int) -> pd.DataFrame:
    """(setting, line, object, method): a picture's mean on a secondary object minus half of that on primary ones.

    Of images that have both; several primary objects count by their mean. A line is a pair of buckets.
    """
    line_of = {int(bucket): line for line, buckets in SHOWN_LINES.items() for bucket in buckets}
    objects = objects.assign(line=objects["number"].map(line_of))
    image = ["setting", "line", "image_id", "method"]
    on = objects.set_index([*image, "object"])["on"]
    role = objects.set_index(on.index.names)["role"]
    primary = on[role == "primary"].groupby(level=image).mean()
    weight = (on[role == "secondary"] - 0.5 * primary).dropna().reorder_levels([*image, "object"])
    blocks = {}
    for (setting, line), part in weight.groupby(level=["setting", "line"]):
        wide = part.droplevel(["setting", "line"]).unstack(["object", "method"]).sort_index(axis=1)
        blocks[setting, line] = means(wide, draws, [SETTINGS.index(setting), list(SHOWN_LINES).index(line)])
    return pd.concat(blocks, axis=1, names=["setting", "line", "object", "method"])


def images_of(measures: pd.DataFrame) -> Basis:
    """The images and models behind a table of single images, and the models' reading."""
    images = len(measures[["cell", "image_id"]].drop_duplicates())
    return Basis(images, measures["cell"].nunique(), reading=_other_readings(measures["reading"]))


def published_evidence() -> Measured:
    """The paper's own numbers in the form that the claims read; what it does not print is NaN.

    A mean that is plotted as 0 because it is NaN is no number. "At most x" lies between 0 and x. Accuracies of 400 or
    500 images in three or four digits are exact; those in two digits are not.
    """
    tables = {}
    levels = [("plain", *PRINTED), ("simple", "complex"), ("piou", "pafl", "safl"), tuple(METHODS)]
    for statistic, part in published().groupby("statistic"):
        known = part.set_index(["condition", "pool", "metric", "method"])
        at_most = known["remark"] == "at most"
        value = known["value"].mask(known["remark"] == "NaN shown as 0").where(~at_most, known["value"] / 2)
        error = known["value"].div(2).where(at_most, DIGITISED)
        every = pd.MultiIndex.from_product(levels, names=known.index.names)
        tables[str(statistic)] = printed(value.reindex(every), error.reindex(every))
    accuracy = published("accuracy")
    overall = accuracy[accuracy["condition"] == "plain"].groupby(["condition", "setting"], as_index=False)["accuracy"]
    accuracy = pd.concat([accuracy, overall.mean().assign(bucket=ALL)]).set_index(["condition", "setting", "bucket"])
    exact = accuracy.index.get_level_values("condition") == "plain"
    tables["accuracy"] = printed(accuracy["accuracy"], pd.Series(np.where(exact, 0.0, HALF_A_HUNDREDTH)))
    lines = published("lines").set_index(["setting", "line", "metric", "method"])["value"]
    tables["line"] = printed(lines, DIGITISED)
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

    seeds: Mapping[int, Measured] = field(default_factory=dict)
    accuracies: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=ACCURACIES))
    maps: tuple[ModelMaps, ...] = ()  # of the first seed, in the paper's order


def read(run: Run, draws: int = DRAWS) -> SmerfEvidence:
    """The evidence of a run, seed by seed."""
    models = paper_models(run.cells)
    selected = select(run.scores, models)
    about = models_read(models, selected)
    scores = scores_by_seed(selected)
    accuracies = read_accuracies(run.models, about)
    objects, iou = (read_measures(run.table(name), about) for name in (OBJECTS, IOU_BY_K))
    draws = FEW_DRAWS if about["seed"].nunique() >= ENOUGH else draws
    seeds = {}
    for seed, of_seed in about.groupby("seed"):
        runs = {(m.condition, m.setting): m.reading for m in of_seed.itertuples()}
        known = accuracies.merge(of_seed[["seed", "condition", "setting"]])
        on, overlap = (t[(t["seed"] == seed) & (t["condition"] == "plain")] for t in (objects, iou))
        measured = evidence(scores.get(seed, []), known, draws, runs, map_tables(on, overlap, draws))
        bases = {"weight": images_of(on), "iou_spread": images_of(overlap)}
        seeds[int(seed)] = replace(measured, bases=bases, images=chosen_images(of_seed["images"]))
    first = about[about["seed"] == next(iter(seeds), None)]
    return SmerfEvidence(seeds, accuracies, tuple(read_maps(run.maps, first, objects, iou)))


def chosen_images(seeds: pd.Series) -> Any:
    """The seed that chose the images of some models; all of them where they differ, None where it is not known."""
    known = sorted({int(seed) for seed in seeds.dropna()})
    return known[0] if len(known) == 1 else tuple(known) or None


def read_accuracies(models: pd.DataFrame, about: pd.DataFrame) -> pd.DataFrame:
    """seed, condition, setting, bucket, accuracy, source, verified of these models (see `models_read`)."""
    table = models[models["what"] == "accuracy"].rename(columns={"group": "bucket", "value": "accuracy"})
    return in_order(table.merge(about[["cell", "condition", "setting"]], on="cell")[ACCURACIES])


def read_measures(table: pd.DataFrame | None, about: pd.DataFrame) -> pd.DataFrame:
    """A table of single images of these models, with seed, condition, setting and the number of the bucket."""
    if table is None:
        return pd.DataFrame(columns=["cell", "image_id", "seed", "condition", "setting", "reading", "number"])
    table = table.merge(about[["cell", "seed", "condition", "setting", "reading"]], on="cell")
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
