"""The tables of Kim, Plumb, Talwalkar (ICML 2022), from the scores of one run or of several collected ones.

The paper's unit is the *bucket*: a bucket's value is the mean over its images, a setting's or a pool's value the plain
mean over buckets (error bar: standard deviation over buckets; worst case: the lowest bucket). An image without a score
(a constant map) is left out and counted.

A *condition* says what differs from the paper's main models (`plain`: black background, the CNN, plain training):
`noise`, `places`, `alexnet`, `vgg16`, `pgd`, `random` (untrained). Metrics come in two modes: `code` (what the public
code computes) and `paper` (what the text says).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from salrun.errors import SalrunError
from salrun.papers.claims import SEEDS_FOR_INTERVAL, Evidence, estimate_and_draws, pick
from salrun.papers.style import save_table
from salrun.registry import conf_dir
from salrun.stats.bootstrap import mean_draws, percentile_interval
from salrun.tables import read_scores, split_variant

SETTINGS = ("simple_fr", "simple_nr", "complex_fr", "complex_cr1", "complex_cr2", "complex_cr3", "complex_cr4")
TITLES = dict(
    zip(SETTINGS, ("Simple-FR", "Simple-NR", "Complex-FR", *(f"Complex-CR{k}" for k in range(1, 5))), strict=True)
)
POOLS: dict[str, tuple[str, ...]] = {
    "simple": SETTINGS[:2],
    "complex": SETTINGS[2:],
    "cr2_cr3": ("complex_cr2", "complex_cr3"),  # all that the authors' plot of Figure 8b pools
    "fr_cr2_cr3": ("complex_fr", "complex_cr2", "complex_cr3"),  # and of Figure 12
}
METHODS = {  # the 17 rows, in the paper's order, under its names
    "gradient": "G",
    "smoothgrad": "SG",
    "deconvnet": "DCN",
    "guided_backprop": "GBP",
    "deep_taylor": "DT",
    "input_x_gradient": "I*G",
    "integrated_gradients": "IG",
    "lrp_z": "LRP-z",
    "lrp_epsilon": "LRP-eps",
    "lrp_a_flat": "LRP-A-flat",
    "lrp_b_flat": "LRP-B-flat",
    "deeplift_reveal_cancel": "DL-RC",
    "deeplift_rescale": "DL-R",
    "grad_cam": "G-CAM",
    "deep_shap": "D-SHAP",
    "random": "Random",
    "edge": "Edge",
}
LABELS = METHODS | {"oracle": "Oracle", "all_lit": "All lit"}
WEAK = list(METHODS)[:4]
MID = list(METHODS)[5:13]
OTHER = ["deep_taylor", "grad_cam", "deep_shap"]
BASE = ["random", "edge"]
FIFTEEN = list(METHODS)[:15]
TEN = [*WEAK, "deep_taylor", "integrated_gradients", "lrp_epsilon", "deeplift_reveal_cancel", "grad_cam", "deep_shap"]
NINE = [m for m in TEN if m != "deeplift_reveal_cancel"]  # what the authors ran on AlexNet and VGG-16
METRICS = ("pafl", "safl", "pmafl", "smafl", "piou", "siou")
MODES = ("code", "paper")
CONDITIONS = ("noise", "places", "alexnet", "vgg16", "pgd", "random")
COMPARED = (("plain", "noise"), ("plain", "places"), ("plain", "pgd"), ("noise", "places"))
BOTH_PRESENT = {  # buckets with a primary and a secondary object
    "simple_fr": ("8", "9", "10", "11", "12"),
    "simple_nr": ("5", "6", "8", "9", "11", "12"),
    "complex_fr": ("11", "12"),
    "complex_cr1": ("5", "6", "8", "9", "11", "12"),
    "complex_cr2": ("5", "6", "8", "9", "11", "12"),
    "complex_cr3": ("8", "9", "11", "12"),
    "complex_cr4": ("5", "6", "11", "12"),
}
Lines = Mapping[str, Mapping[str, tuple[str, ...]]]
WITH_AND_WITHOUT: Lines = {  # Figure 6a: an irrelevant object there or not
    "simple_fr": {"with Text": ("8", "9", "11", "12"), "without Text": ("7", "10")},
    "simple_nr": {"with Box1": ("8", "9", "11", "12"), "without Box1": ("2", "3", "5", "6")},
}
BY_OBJECTS: Lines = {  # Figure 6b
    "simple_fr": {"1 object": ("7",), "2 objects": ("8", "9", "10"), "3 objects": ("11", "12")},
    "simple_nr": {"1 object": ("2", "3"), "2 objects": ("5", "6", "8", "9"), "3 objects": ("11", "12")},
}
CR2_LINES: Lines = {  # Figure 8a
    "complex_cr2": {"Text + Box1": ("8", "9"), "Text + Box2": ("5", "6"), "all three": ("11", "12")}
}
MORE_LINES: Lines = {  # Figure 22
    "complex_cr1": {"8, 9": ("8", "9"), "5, 6": ("5", "6"), "11, 12": ("11", "12")},
    "complex_cr3": {"8": ("8",), "9": ("9",), "11": ("11",), "12": ("12",)},
    "complex_cr4": {"5": ("5",), "6": ("6",), "11": ("11",), "12": ("12",)},
    "complex_fr": {"2, 3": ("2", "3"), "8, 9": ("8", "9"), "5, 6": ("5", "6"), "11, 12": ("11", "12")},
}
DRAWS = 1000
RECOMMENDED = "recommended"


# -- cells: what was measured ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """The scores of one model: per bucket a table images x (mode, metric, method)."""

    seed: int
    condition: str
    setting: str
    reading: str
    buckets: dict[str, pd.DataFrame]

    @cached_property
    def scored(self) -> dict[str, dict[str, np.ndarray]]:
        """Bucket -> metric -> which images have a score of some method."""
        found = {}
        for bucket, table in self.buckets.items():
            metric, there = table.columns.get_level_values("metric"), table.notna().to_numpy()
            found[bucket] = {m: there[:, metric == m].any(axis=1) for m in METRICS if m in metric}
        return found

    def images(self, metrics: Sequence[str] = METRICS, buckets: Iterable[str] | None = None) -> int:
        """How many images have a score of one of these metrics, in these buckets (default: in all)."""
        chosen = [self.scored[b] for b in (self.scored if buckets is None else buckets) if b in self.scored]
        return sum(int(np.any([t[m] for m in metrics if m in t], axis=0).sum()) for t in chosen)


def names(experiment: str, dataset: str, model: str) -> tuple[str, str, str]:
    """(setting, condition, reading) of a row's names; the setting is empty where data or model are not the paper's."""
    setting = experiment.removeprefix("smerf_")
    ours = setting in SETTINGS and dataset.startswith("textbox") and model.startswith("smerf_")
    words = {*dataset.split("_"), *model.split("_")}
    condition = "+".join(c for c in CONDITIONS if c in words) or "plain"
    choices = {"code": "labels=code", "strict": "placement=strict", "clipped": "loss=keras_clipped"}
    reading = ", ".join(said for word, said in choices.items() if word in words) or RECOMMENDED
    return setting if ours else "", condition, reading


def models(scores: pd.DataFrame) -> pd.DataFrame:
    """The paper's models among the rows of any metric: experiment, dataset, model, seed, scale and what these mean."""
    about = scores[["experiment", "dataset", "model", "seed", "scale"]].drop_duplicates()
    found = [names(*map(str, row[:3])) for row in about.itertuples(index=False)]
    about[["setting", "condition", "reading"]] = pd.DataFrame(found, index=about.index)
    return about[about["setting"] != ""]


def models_read(scores: pd.DataFrame, selected: pd.DataFrame) -> pd.DataFrame:
    """One model per seed, condition and setting: of the selected reading and scale; of any where none was selected."""
    there = models(scores)
    chosen = selected[["condition", "reading", "scale"]].drop_duplicates()
    other = there[~there["condition"].isin(chosen["condition"])]
    other = other.sort_values("reading", key=lambda r: r != RECOMMENDED, kind="stable")
    both = pd.concat([there.merge(chosen, on=["condition", "reading", "scale"]), other], ignore_index=True)
    return both.drop_duplicates(["seed", "condition", "setting"])


def select(scores: pd.DataFrame) -> pd.DataFrame:
    """The paper's rows with setting, condition, reading, mode: of each condition one reading at one scale.

    Where several were collected: the one with most settings, then most images, then the recommended one.
    """
    keys = ["experiment", "dataset", "model", "seed", "scale"]
    scores = scores[scores["metric"].isin(METRICS)].merge(models(scores), on=keys)
    if scores.empty:
        return scores.assign(mode="", view="")
    offers = scores.groupby(["condition", "reading", "scale"]).agg(
        settings=("setting", "nunique"), images=("image_id", "nunique")
    )
    best: dict[str, tuple] = {}
    for (condition, reading, scale), offer in offers.iterrows():  # type: ignore[misc]
        rank = (offer["settings"], offer["images"], reading == RECOMMENDED)
        if condition not in best or rank > best[condition][0]:
            best[condition] = (rank, reading, scale)
    kept = pd.Series(False, index=scores.index)
    for condition, (_, reading, scale) in best.items():
        kept |= (scores["condition"] == condition) & (scores["reading"] == reading) & (scores["scale"] == scale)
    modes = split_variant(scores[["variant"]].drop_duplicates())
    return scores[kept].merge(modes, on="variant")


def cells(selected: pd.DataFrame) -> list[list[Cell]]:
    """One list per seed, its cells in the paper's order; seeds that lack a cell which another seed has are left out."""
    selected = selected[selected["mode"].isin(MODES)]
    keys = ["mode", "metric", "method"]
    if selected.duplicated(["seed", "condition", "setting", "image_id", *keys]).any():
        raise SalrunError(
            "a metric has two scores for one image and method: collect runs that agree on the methods' views"
        )
    by_seed: dict[int, list[Cell]] = {}
    for (seed, condition, setting, reading), part in selected.groupby(["seed", "condition", "setting", "reading"]):
        wide = part.pivot(index=["group", "image_id"], columns=keys, values="value").astype(np.float64)
        buckets = {str(b): t.droplevel("group") for b, t in wide.groupby(level="group")}
        ordered = {b: buckets[b] for b in sorted(buckets, key=lambda b: (len(b), b))}
        by_seed.setdefault(int(seed), []).append(Cell(int(seed), condition, setting, reading, ordered))
    most = max((len(c) for c in by_seed.values()), default=0)
    return [sorted(c, key=_place) for _, c in sorted(by_seed.items()) if len(c) == most]


def _place(cell: Cell) -> tuple[str, int]:
    return "" if cell.condition == "plain" else cell.condition, SETTINGS.index(cell.setting)


# -- evidence: means over buckets, with draws --------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured(Evidence):
    """Evidence of one seed in the code's reading of the metrics; `paper` holds the text's reading.

    Tables: `bucket` (setting, bucket, metric, method) of the plain models; `mean`, `min`, `std` over the buckets of a
    pool (condition, pool, metric, method); `accuracy` (condition, setting, bucket). Condition `a like b` is condition a
    pooled over the settings that b has.
    """

    cells: tuple[Cell, ...] = ()
    paper: Measured | None = None
    mode: str = "code"
    printed: bool = False  # the paper's own numbers: gaps are no fault
    runs: frozenset[tuple[str, str]] = (
        frozenset()
    )  # (condition, setting) of every model, with the paper's metrics or not

    def settings(self, condition: str, metrics: Sequence[str] = ()) -> tuple[str, ...]:
        """The settings with scores, of each of these metrics."""
        if self.printed:
            return SETTINGS
        own = [c for c in self.cells if c.condition == condition]
        return tuple(c.setting for c in own if all(c.images([m]) for m in metrics))

    def ran(self, condition: str) -> tuple[str, ...]:
        """The settings with a model, whatever was measured."""
        return SETTINGS if self.printed else tuple(s for s in SETTINGS if (condition, s) in self.runs)


def bucket_table(cells: Iterable[Cell], mode: str, draws: int) -> pd.DataFrame:
    """Bucket means: columns (setting, bucket, metric, method). Each bucket's images are resampled on their own.

    All methods, modes and conditions share their resamples, so that differences are paired.
    """
    keys: list[tuple[str, ...]] = []
    blocks = []
    for cell in cells:
        for bucket, values in cell.buckets.items():
            if mode not in values.columns.get_level_values("mode"):
                continue
            part = values[mode]
            part = part.loc[:, part.notna().any().groupby(level="metric").transform("any").to_numpy()]
            rng = np.random.default_rng([SETTINGS.index(cell.setting), int(bucket)])
            blocks.append(np.concatenate([part.mean().to_numpy()[None], mean_draws(part.to_numpy(), rng, draws)]))
            keys += [(cell.setting, bucket, *column) for column in part.columns]
    columns = pd.MultiIndex.from_tuples(keys, names=["setting", "bucket", "metric", "method"])
    return pd.DataFrame(np.concatenate(blocks, axis=1) if blocks else np.empty((1 + draws, 0)), columns=columns)


def over_buckets(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """`mean`, `std` (population) and `min` over buckets: columns (metric, method). Undefined buckets are left out."""
    codes, unique = table.columns.droplevel(["setting", "bucket"]).factorize()
    keys = pd.MultiIndex.from_tuples(unique, names=["metric", "method"])
    values = table.to_numpy()
    found: dict[str, list[np.ndarray]] = {"mean": [], "std": [], "min": []}
    for k in range(len(keys)):
        block = values[:, codes == k]
        missing = np.isnan(block)
        n = np.where(missing.all(axis=1), np.nan, (~missing).sum(axis=1))
        mean = np.where(missing, 0.0, block).sum(axis=1) / n
        spread = np.where(missing, 0.0, (block - mean[:, None]) ** 2).sum(axis=1) / n
        found["mean"].append(mean)
        found["std"].append(np.sqrt(spread))
        found["min"].append(np.where(np.isnan(n), np.nan, np.where(missing, np.inf, block).min(axis=1)))
    return {name: pd.DataFrame(np.stack(rows, axis=1), columns=keys) for name, rows in found.items() if rows}


def pool_members(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Which columns of a bucket table belong to which pool; `<pool>_both`: buckets with both kinds of object."""
    setting, bucket = table.columns.get_level_values("setting"), table.columns.get_level_values("bucket")
    both = np.array([b in BOTH_PRESENT[s] for s, b in zip(setting, bucket, strict=True)], dtype=bool)
    inside = {pool: np.asarray(setting.isin(chosen)) for pool, chosen in POOLS.items()}
    return inside | {f"{pool}_both": inside[pool] & both for pool in ("simple", "complex")}


def pool_tables(buckets: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """`mean`, `std`, `min` by (condition, pool, metric, method), from one bucket table per condition."""
    blocks: dict[str, dict[tuple[str, str], pd.DataFrame]] = {}
    for condition, table in buckets.items():
        for pool, members in pool_members(table).items():
            for name, found in over_buckets(table.loc[:, members]).items():
                blocks.setdefault(name, {})[condition, pool] = found
    levels = ["condition", "pool"]
    return {name: pd.concat(parts, axis=1, names=levels) for name, parts in blocks.items()}


def line(
    table: pd.DataFrame, setting: str, buckets: Sequence[str], metric: str, methods: Sequence[str]
) -> pd.DataFrame:
    """Mean over some buckets of a setting, by method."""
    chosen = pick(table, setting=setting, metric=metric, bucket=list(buckets), method=list(methods))
    return chosen.T.groupby(level="method", sort=False).mean().T[list(methods)]


def evidence(
    own: Sequence[Cell],
    accuracies: pd.DataFrame | None = None,
    draws: int = DRAWS,
    runs: Iterable[tuple[str, str]] = (),
) -> Measured:
    """All that the claims read about one seed. `runs`: (condition, setting) of models beside those of the cells."""
    readings = []
    for mode in MODES:
        by_condition: dict[str, list[Cell]] = {}
        for cell in own:
            by_condition.setdefault(cell.condition, []).append(cell)
        buckets = {c: bucket_table(part, mode, draws) for c, part in by_condition.items()}
        tables = pool_tables(buckets | _matched(buckets))
        if "plain" in buckets:
            tables["bucket"] = buckets["plain"]
        readings.append(tables)
    images = sum(c.images() for c in own)
    every = frozenset([*runs, *((c.condition, c.setting) for c in own)])
    code, paper = (
        Measured(t, images, cells=tuple(own), mode=m, runs=every) for t, m in zip(readings, MODES, strict=True)
    )
    known = {} if accuracies is None or accuracies.empty else {"accuracy": accuracy_table(accuracies, draws)}
    return replace(code, tables={**code.tables, **known}, paper=paper)


def _matched(buckets: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """`a like b`: the buckets of a in the settings that b has, for a fair comparison."""
    found = {}
    for one, other in COMPARED:
        if one in buckets and other in buckets:
            there = buckets[other].columns.get_level_values("setting").unique()
            found[f"{one} like {other}"] = buckets[one].loc[
                :, buckets[one].columns.get_level_values("setting").isin(there)
            ]
    return found


def all_evidence(run: Path, draws: int = DRAWS) -> list[Measured]:
    """One Measured per seed; with enough seeds the interval is over seeds and needs no draws."""
    files = [run / "tables" / name for name in ("scores.parquet", "model.csv")]
    return _evidence_of(run, draws, tuple(f.stat().st_mtime_ns for f in files if f.is_file()))


@lru_cache(maxsize=1)  # tables, figures and claims of a run all start from here
def _evidence_of(run: Path, draws: int, stamps: tuple[int, ...]) -> list[Measured]:
    scores = read_scores(run)
    selected = select(scores)
    about = models_read(scores, selected)
    by_seed = {own[0].seed: own for own in cells(selected)} or {int(s): [] for s in sorted(about["seed"].unique())}
    about = _of_every_seed(about, list(by_seed))
    known = accuracies(run, about)
    runs = list(zip(about["condition"], about["setting"], strict=True))
    draws = 0 if len(by_seed) >= SEEDS_FOR_INTERVAL else draws
    return [evidence(own, known[known["seed"] == seed], draws, runs) for seed, own in by_seed.items()]


def _of_every_seed(about: pd.DataFrame, seeds: Sequence[int]) -> pd.DataFrame:
    """The models of conditions and settings that all of these seeds have: seeds are compared cell by cell."""
    about = about[about["seed"].isin(seeds)]
    return about[about.groupby(["condition", "setting"])["seed"].transform("nunique") == len(seeds)]


# -- published ---------------------------------------------------------------------------------------------------------


def published(name: str = "") -> pd.DataFrame:
    """The paper's numbers as data: main values (digitised from the authors' plots), accuracy, table1, table2, lines."""
    file = f"published{'_' if name else ''}{name}.csv"
    with resources.files("salrun.papers.smerf").joinpath(file).open() as text:
        return pd.read_csv(text, dtype={"bucket": str})


def published_evidence() -> Measured:
    """The paper's own numbers in the form that the claims read; what it does not print is NaN."""
    known = published()
    tables = {}
    for statistic, part in known.groupby("statistic"):
        row = part.set_index(["condition", "pool", "metric", "method"])["value"]
        levels = [("plain", *CONDITIONS), ("simple", "complex"), ("piou", "pafl", "safl"), tuple(METHODS)]
        whole = row.reindex(pd.MultiIndex.from_product(levels, names=row.index.names))
        like = {f"{a} like {b}": whole[a] for a, b in COMPARED}
        every = pd.concat([whole, pd.concat(like, names=["condition"])])
        tables[str(statistic)] = every.to_frame().T.reset_index(drop=True)
    accuracy = published("accuracy").set_index(["condition", "setting", "bucket"])["accuracy"]
    overall = accuracy["plain"].groupby(level="setting").mean()
    overall.index = pd.MultiIndex.from_tuples(
        [("plain", s, "(all)") for s in overall.index], names=accuracy.index.names
    )
    tables["accuracy"] = pd.concat([accuracy, overall]).to_frame().T.reset_index(drop=True)
    lines = published("lines").set_index(["setting", "line", "metric", "method"])["value"]
    tables["line"] = lines.to_frame().T.reset_index(drop=True)
    return Measured(tables, printed=True)


# -- Tables 1 to 3 -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def reasonings() -> dict[str, dict[str, Any]]:
    """The seven reasonings, as the data are made from them."""
    folder = conf_dir() / "reasoning"
    return {s: OmegaConf.to_container(OmegaConf.load(folder / f"{s}.yaml")) for s in SETTINGS}  # type: ignore[misc]


def table_1() -> pd.DataFrame:
    """Label, focus (primary) and avoid (secondary) of every defined bucket, beside the printed ones (?: not there)."""
    rows = []
    for setting, reasoning in reasonings().items():
        for bucket, rule in reasoning["buckets"].items():
            focus, avoid = (" ".join(rule[role]) or "-" for role in ("primary", "secondary"))
            rows.append((setting, str(bucket), rule["label"], rule.get("code_label", rule["label"]), focus, avoid))
    ours = pd.DataFrame(rows, columns=["setting", "bucket", "label", "code_label", "focus", "avoid"])
    printed = published("table1")
    both = ours.merge(printed, how="outer", on=["setting", "bucket"], suffixes=("", "_printed"), sort=False)
    agrees = both["label"] == both["label_printed"]
    for what in ("focus", "avoid"):
        agrees &= (both[what] == both[f"{what}_printed"]) | (both[f"{what}_printed"] == "?")
    return _ordered(both.assign(agrees=agrees))


def table_2() -> pd.DataFrame:
    """Images of each setting and split, beside the printed totals."""
    rows = []
    for setting, reasoning in reasonings().items():
        labels = [rule["label"] for rule in reasoning["buckets"].values()]
        train = sum(reasoning["train_per_bucket"][label] for label in labels)
        rows += [(setting, "train", train), (setting, "validation", reasoning["validation_per_bucket"] * len(labels))]
    ours = pd.DataFrame(rows, columns=["setting", "split", "images"])
    return ours.merge(published("table2"), how="left", on=["setting", "split"], suffixes=("", "_printed"))


def accuracies(run: Path, about: pd.DataFrame) -> pd.DataFrame:
    """seed, condition, setting, bucket, accuracy, source, verified of these models (see `models_read`)."""
    columns = ["seed", "condition", "setting", "bucket", "accuracy", "source", "verified"]
    path = run / "tables" / "model.csv"
    if not path.is_file():
        return pd.DataFrame(columns=columns)
    table = pd.read_csv(path, dtype={"group": str})
    table = table[table["what"] == "accuracy"].rename(columns={"group": "bucket", "value": "accuracy"})
    keys = [c for c in ("experiment", "dataset", "model", "seed") if c in table]
    about = about[[*keys, "condition", "setting"]].drop_duplicates()
    # Without a dataset column, models that differ in their background alone cannot be told apart.
    about = about[~about.duplicated(keys, keep=False)]
    return _ordered(table.merge(about, on=keys)[columns])


def accuracy_table(known: pd.DataFrame, draws: int) -> pd.DataFrame:
    """Accuracies with binomial draws (the bootstrap of right and wrong images), and `(all)` of every setting."""
    known = known.set_index(["condition", "setting", "bucket"])["accuracy"]
    per_bucket = {s: r["validation_per_bucket"] for s, r in reasonings().items()}
    blocks = []
    for (condition, setting), part in known.groupby(level=["condition", "setting"], sort=False):
        part = part.drop((condition, setting, "(all)"), errors="ignore")
        rng = np.random.default_rng(SETTINGS.index(setting))
        n = per_bucket[setting]
        sampled = rng.binomial(n, part.clip(0, 1).to_numpy(), size=(draws, len(part))) / n
        table = estimate_and_draws(part.to_list(), sampled, part.index)
        table[condition, setting, "(all)"] = table.mean(axis=1)
        blocks.append(table)
    return pd.concat(blocks, axis=1)


def table_3(known: pd.DataFrame) -> pd.DataFrame:
    """Validation accuracy per bucket, beside the printed ones."""
    printed = published("accuracy").rename(columns={"accuracy": "published"})
    return known.merge(printed, how="left", on=["condition", "setting", "bucket"])


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    place = table["setting"].map(SETTINGS.index)
    number = pd.to_numeric(table["bucket"], errors="coerce").fillna(0)
    others = [c for c in ("seed", "condition") if c in table]
    keyed = table.assign(_place=place, _number=number).sort_values([*others, "_place", "_number"], kind="stable")
    return keyed.drop(columns=["_place", "_number"]).reset_index(drop=True)


# -- the numbers behind most figures -----------------------------------------------------------------------------------


def pool_summary(e: Measured) -> pd.DataFrame:
    """Mean (95% interval over images), standard deviation over buckets and worst bucket of every pool, beside 7.1's.

    `code_mean` is what the authors' plots would show: 0 as soon as one image has no score.
    """
    known = published().pivot(index=["condition", "pool", "metric", "method"], columns="statistic", values="value")
    parts = []
    for mode, own in zip(MODES, (e, e.paper or e), strict=True):
        if "mean" not in own.tables:
            continue
        mean = own["mean"]
        mean = mean.loc[:, ~mean.columns.get_level_values("condition").str.contains(" like ")]
        low, high = percentile_interval(mean.iloc[1:]) if len(mean) > 1 else (np.nan, np.nan)
        part = mean.columns.to_frame(index=False).assign(
            mode=mode, mean=mean.iloc[0].to_numpy(), ci_low=low, ci_high=high
        )
        part["std_over_buckets"] = own["std"].iloc[0][mean.columns].to_numpy()
        part["min"] = own["min"].iloc[0][mean.columns].to_numpy()
        part = part.merge(_counts(own.cells, mode), how="left", on=["condition", "pool", "metric", "method"])
        part["code_mean"] = part["mean"].where(part["images_without_score"] == 0, 0.0)
        if mode == "code":
            part = part.join(
                known.rename(columns=lambda c: f"published_{c}"), on=["condition", "pool", "metric", "method"]
            )
        parts.append(part)
    if not parts:
        return pd.DataFrame()
    joined = pd.concat(parts, ignore_index=True)
    order = {name: k for k, name in enumerate([*MODES, *METRICS, *LABELS])}
    joined = joined.sort_values(
        ["condition", "mode", "pool", "metric", "method"],
        key=lambda c: c.map(lambda v: (order.get(v, -1), v)),
        ignore_index=True,
    )
    settings = {c: e.settings(c) for c in joined["condition"].unique()}
    pooled = [
        " ".join(s for s in settings[c] if s in POOLS[p.removesuffix("_both")])
        for c, p in zip(joined["condition"], joined["pool"], strict=True)
    ]
    return joined.assign(settings=pooled)


def _counts(cells: Sequence[Cell], mode: str) -> pd.DataFrame:
    """Per condition, pool, metric, method: buckets, worst bucket, images, and images without a score."""
    parts = []
    for cell in cells:
        for bucket, values in cell.buckets.items():
            if mode not in values.columns.get_level_values("mode"):
                continue
            table = values[mode]
            scored = table.notna().any().groupby(level="metric").transform("any")
            part = table.isna().sum()[scored].rename("images_without_score").reset_index()
            part["mean"] = table.mean()[scored].to_numpy()
            parts.append(part.assign(condition=cell.condition, setting=cell.setting, bucket=bucket, images=len(table)))
    rows = pd.concat(parts, ignore_index=True)
    both = np.array([b in BOTH_PRESENT[s] for s, b in zip(rows["setting"], rows["bucket"], strict=True)])
    pooled = [rows[rows["setting"].isin(chosen)].assign(pool=pool) for pool, chosen in POOLS.items()]
    pooled += [rows[rows["setting"].isin(POOLS[p]) & both].assign(pool=f"{p}_both") for p in ("simple", "complex")]
    every = pd.concat(pooled, ignore_index=True)
    keys = ["condition", "pool", "metric", "method"]
    summary = every.groupby(keys)[["images", "images_without_score"]].sum()
    summary.insert(0, "buckets", every.groupby(keys).size())
    lowest = every.dropna(subset="mean").sort_values("mean", kind="stable").drop_duplicates(keys).set_index(keys)
    summary["worst_bucket"] = lowest["setting"] + " " + lowest["bucket"]
    return summary.reset_index()


def write_tables(run: Path, draws: int = DRAWS) -> list[Path]:
    """Tables 1 to 3 and the pooled numbers of all figures, as tables/smerf_*.csv of the run."""
    scores = read_scores(run)
    known = accuracies(run, models_read(scores, select(scores)))
    made = {"table1": table_1(), "table2": table_2(), "table3": table_3(known)}
    summaries = [pool_summary(e).assign(seed=e.cells[0].seed) for e in all_evidence(run, draws) if e.cells]
    if summaries:
        made["pools"] = pd.concat(summaries, ignore_index=True)
    return [save_table(table, run / "tables" / f"smerf_{name}") for name, table in made.items()]
