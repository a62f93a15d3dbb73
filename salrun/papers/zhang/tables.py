"""Tables of Zhang, Torres, Hermanns, "Saliency Maps Give a False Sense of Explanability to Image Classifiers" (ACML
2024), from the scores of one run or of several collected ones.

The paper's names and units: AI, AG, I (insertion) in percent, ADb = 100 - AD and Db = 100 - D, so that more is better;
Mono is monotonicity, MS and AS are max- and average sensitivity, Sparseness is the Gini index times 100, EC counts
pixels. Further columns are ours: `AG clipped` leaves out images with p > 0.999, `LA` is local accuracy, `Complete` the
share of raw maps that sum to the logit's change, `MS fixed` has the gradient explain the neighbours for every method,
and `ranks` and `matched_mean` are AI, ADb and AG of maps made equally bright.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from salrun.errors import SalrunError
from salrun.files import write_atomic
from salrun.papers.claims import Evidence, estimate_and_draws, pick
from salrun.papers.style import save_table
from salrun.stats.bootstrap import DRAWS, mean_draws, percentile_interval
from salrun.stats.reliability import direction_of, spearman_draws
from salrun.tables import members, read_scores, split_variant

LABELS = {
    "fake_cam": "Fake-CAM",
    "gradient": "Gradient",
    "integrated_gradients": "IG",
    "guided_backprop": "GuidedBP",
    "grad_cam": "Grad-CAM",
    "grad_cam_pp": "Grad-CAM++",
    "score_cam": "Score-CAM",
    "rise": "RISE",
    "lime": "LIME",
    "iba": "IBA",
}
METHODS = list(LABELS)
FAMILIES = {
    "gradient": ["gradient", "integrated_gradients", "guided_backprop"],
    "CAM": ["grad_cam", "grad_cam_pp", "score_cam"],
    "occlusion": ["rise", "lime"],
    "learning": ["iba"],
}
CLOSE = [*FAMILIES["CAM"], "rise", "iba"]  # the methods that the paper's fidelity metrics hardly tell apart
FIDELITY = ["AI", "ADb", "AG", "I", "Db", "Mono"]
MASKED = FIDELITY[:5]  # Tables 2 and 4
ROBUSTNESS = ["MS", "AS", "Sparseness", "Complexity", "EC"]
CONTROLS = ["ranks", "matched_mean"]
TARGETS = ["label", "predicted", "least_probable"]
CLEAN = "clean"
TRANSFORMS = ["mixup", "resize", "rotation", "crop"]
FURTHER = ["AG clipped", "LA", "Complete"]
BUDGETS = {  # what a method's cost and noise depend on
    "integrated_gradients": ["steps"],
    "score_cam": ["layer"],
    "rise": ["n_masks"],
    "lime": ["n_samples"],
    "iba": ["steps", "copies", "fit_images"],
}
CORRELATION_DRAWS = 2_000
ENOUGH = 10  # images: a bootstrap of fewer knows too few other samples


@dataclass(frozen=True)
class Column:
    """A column of the paper's tables: value x scale + offset of a metric's variants of these names."""

    metric: str
    modes: tuple[str, ...] = ("", "all")
    scale: float = 1.0
    offset: float = 0.0


COLUMNS = {
    "AI": Column("average_increase", scale=100),
    "ADb": Column("average_drop", scale=-100, offset=100),
    "AG": Column("average_gain", scale=100),
    "I": Column("insertion", scale=100),
    "Db": Column("deletion", scale=-100, offset=100),
    "Mono": Column("monotonicity"),
    "AG clipped": Column("average_gain", ("clipped",), 100),
    "LA": Column("local_accuracy"),
    "Complete": Column("completeness", ("complete",), 100),
    "MS": Column("max_sensitivity", ("", "own")),
    "AS": Column("avg_sensitivity", ("", "own")),
    "MS fixed": Column("max_sensitivity", ("fixed",)),
    "AS fixed": Column("avg_sensitivity", ("fixed",)),
    "Sparseness": Column("sparseness", scale=100),
    "Complexity": Column("complexity"),
    "EC": Column("effective_complexity"),
    **{f"AI {mode}": Column("average_increase", (mode,), 100) for mode in CONTROLS},
    **{f"ADb {mode}": Column("average_drop", (mode,), -100, 100) for mode in CONTROLS},
    **{f"AG {mode}": Column("average_gain", (mode,), 100) for mode in CONTROLS},
}


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """The scores of one model by setting, images x (column, method) in the paper's units, and p_c of each image.

    Settings: `fidelity`, `robustness`, a target of Table 2, `clean` and `<transform>/<variation>` of Table 4.
    """

    seed: int
    about: str
    scores: dict[str, pd.DataFrame]
    probability: dict[str, pd.Series] = field(default_factory=dict)
    label_explained: bool = False  # by the fidelity runs, which then serve as Table 2's too
    constant: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)  # (setting, method) -> images

    def variations(self) -> dict[str, list[str]]:
        """transform -> its settings."""
        found = {t: [s for s in self.scores if s.startswith(f"{t}/")] for t in TRANSFORMS}
        return {t: settings for t, settings in found.items() if settings}


def setting_of(experiment: str) -> str:
    """What a run measured, by its experiment's name, whatever is appended to that: fidelity where it does not say."""
    match = re.match(rf"zhang_(?:(robustness|transforms)|targets_({'|'.join(TARGETS)}))", experiment)
    return (match[1] or match[2]) if match else "fidelity"


def cells(scores: pd.DataFrame, curves: pd.DataFrame | None = None) -> list[Cell]:
    """One cell per seed, of one model and data set."""
    ours = scores["experiment"].astype(str).str.startswith("zhang")
    scores = scores[ours] if ours.any() else scores
    models = scores[["dataset", "model"]].drop_duplicates()
    if len(models) != 1:
        named = ", ".join(f"{d}/{m}" for d, m in models.itertuples(index=False))
        raise SalrunError(f"these tables are about one model on one data set, got {named or 'no scores'}")
    curves = pd.DataFrame(columns=["seed", "experiment"]) if curves is None else curves
    return [_cell(int(str(s)), part, curves[curves["seed"] == s]) for s, part in scores.groupby("seed", sort=True)]


def _cell(seed: int, scores: pd.DataFrame, curves: pd.DataFrame) -> Cell:
    first = scores.iloc[0]
    scales = ", ".join(sorted(scores["scale"].astype(str).unique()))
    about = f"{first['model']} on {first['dataset']}, seed {seed}, scale {scales}"
    rows = _in_units(_placed(scores[scores["method"] != "-"]))
    if rows.duplicated(["setting", "image_id", "column", "method"]).any():
        raise SalrunError(
            "a metric has two scores for one image and method: collect runs of one view and one scale at a time"
        )
    frames = {
        str(setting): part.pivot(index="image_id", columns=["column", "method"], values="value").sort_index(axis=1)
        for setting, part in rows.groupby("setting", sort=False)
    }
    probability: dict[str, pd.Series] = {}
    if len(curves):
        starts = _placed(curves[curves["metric"] == "deletion"]).drop_duplicates(["setting", "image_id"])
        starts = starts.assign(p=[y[0] for y in starts["y"]])  # nothing deleted yet
        probability = {str(s): part.set_index("image_id")["p"] for s, part in starts.groupby("setting")}
    table1 = rows[rows["setting"] == "fidelity"]
    explained = len(table1) > 0 and bool((table1["target"] == table1["label"]).all())
    flat = rows[rows["flag"] == "degenerate_map"].groupby(["setting", "method"])["image_id"].agg(frozenset).to_dict()
    return Cell(seed, about, frames, probability, explained, flat)


def _placed(rows: pd.DataFrame) -> pd.DataFrame:
    """With the setting of each row; transformed images by their own id, in the setting of their variation."""
    setting = rows["experiment"].astype(str).map({e: setting_of(e) for e in rows["experiment"].astype(str).unique()})
    transformed = setting == "transforms"
    own = rows["image_id"].astype(str)
    plain = own.str.replace(r"@[a-z]+/[0-9.]+$", "", regex=True)  # n01440764/x@crop/0.9
    return rows.assign(
        setting=setting.where(~transformed, rows["group"].astype(str)), image_id=own.where(~transformed, plain)
    )


def _in_units(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are in a column of the paper's tables, in its units."""
    known = split_variant(rows[["metric", "variant"]].drop_duplicates().astype(str))
    parts = []
    for name, column in COLUMNS.items():
        match = known[(known["metric"] == column.metric) & known["mode"].isin(column.modes)]
        part = rows.merge(match[["metric", "variant"]], on=["metric", "variant"])
        parts.append(part.assign(column=name, value=part["value"] * column.scale + column.offset))
    return pd.concat(parts, ignore_index=True)


def read_cells(run: Path) -> list[Cell]:
    """The cells of a run or of collected runs, which must be of one model: the same weights, seed by seed."""
    weights: dict[Any, dict[str, Path]] = {}
    for member, facts in members(run):
        print_of = facts.get("models", {}).get("model", {}).get("fingerprint")
        if print_of is not None:
            weights.setdefault(facts.get("seed"), {}).setdefault(print_of, member)
    for strangers in (list(same.values()) for same in weights.values() if len(same) > 1):
        raise SalrunError(
            f"these tables are about one model: {strangers[0]} and {strangers[1]} differ in weights; collect each alone"
        )
    path = run / "tables" / "curves.parquet"
    return cells(read_scores(run), pd.read_parquet(path) if path.is_file() else None)


# -- published --------------------------------------------------------------------------------------------------------


def published(name: str) -> pd.DataFrame:
    """A published table as data: fidelity, targets, robustness, transforms.

    `printed` is what the paper has, `corrected` (transforms) what it seems to mean where values look mistyped.
    """
    with resources.files("salrun.papers.zhang").joinpath(f"published_{name}.csv").open() as file:
        return pd.read_csv(file)


def published_evidence(corrected: bool = False) -> Evidence:
    """Tables 1 to 4 in the form that the claims read, as printed or with suspected misprints corrected."""
    tables = {name: published(name) for name in ("fidelity", "targets", "robustness", "transforms")}
    clean = tables["fidelity"][tables["fidelity"]["metric"].isin(MASKED)].assign(transform=CLEAN)
    tables["transforms"] = pd.concat([clean, tables["transforms"]], ignore_index=True)
    return Evidence({name: _as_evidence(table, corrected) for name, table in tables.items()})


def _as_evidence(table: pd.DataFrame, corrected: bool) -> pd.DataFrame:
    keys = [k for k in ("target", "transform") if k in table] + ["metric", "method"]
    value = table["printed"]
    if corrected and "corrected" in table:
        value = table["corrected"].fillna(value)
    return table.assign(value=value).set_index(keys)["value"].to_frame().T.reset_index(drop=True)


# -- evidence ---------------------------------------------------------------------------------------------------------


def evidence(cell: Cell, draws: int = DRAWS, seed: int = 0) -> dict[str, Evidence]:
    """What the claims read, by table, with bootstrap draws over the images that all of its methods explain.

    Fewer than ENOUGH images give no draws, so no verdict.
    """
    found = {}
    for name, frame in frames(cell).items():
        same = common(frame)
        fewer = len(same) < len(frame)
        note = f"only the images that all methods explain, of {len(frame)}" if fewer else ""
        table = mean_table(same, draws if len(same) >= ENOUGH else 0, seed)
        found[name] = Evidence({name: table}, len(same), note=note)
    if "fidelity" in found:
        images = found["fidelity"].images
        correlation = correlation_table(cell, min(draws, CORRELATION_DRAWS) if images >= ENOUGH else 0, seed)
        if not correlation.empty:
            found["correlation"] = Evidence({"correlation": correlation}, images)
    return found


def common(frame: pd.DataFrame) -> pd.DataFrame:
    """The images that every method explains: means are compared over the same images."""
    return frame[frame.notna().T.groupby("method").any().T.all(axis=1)]


def frames(cell: Cell) -> dict[str, pd.DataFrame]:
    """Images x cells of each table; settings that are compared stand side by side and have the same images."""
    found: dict[str, pd.DataFrame] = {n: cell.scores[n] for n in ("fidelity", "robustness") if n in cell.scores}
    targets = {t: cell.scores[t] for t in TARGETS if t in cell.scores}
    if targets and cell.label_explained:
        targets.setdefault("label", cell.scores["fidelity"])
    if targets:
        found["targets"] = _beside(targets, "target")
    variations = cell.variations()
    if variations:
        clean = cell.scores.get(CLEAN, found.get("fidelity"))
        first = {} if clean is None else {CLEAN: clean}
        found["transforms"] = _beside(
            first | {t: _mean([cell.scores[s] for s in v]) for t, v in variations.items()}, "transform"
        )
    return {name: frame.rename_axis(columns={"column": "metric"}) for name, frame in found.items()}


def _beside(parts: Mapping[str, pd.DataFrame], level: str) -> pd.DataFrame:
    """Of the images that all settings have: runs of one setting may have more."""
    masked = {
        name: frame.loc[:, frame.columns.get_level_values("column").isin(MASKED)] for name, frame in parts.items()
    }
    return pd.concat(masked, axis=1, names=[level], join="inner")


def _mean(variations: list[pd.DataFrame]) -> pd.DataFrame:
    """The mean over a transform's variations, image by image."""
    return pd.concat(variations).groupby(level=0).mean()


def mean_table(frame: pd.DataFrame, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """Means over images and their bootstrap draws; a score that is missing is left out."""
    sampled = mean_draws(frame.to_numpy(), np.random.default_rng(seed), draws)
    return estimate_and_draws(frame.mean().to_list(), sampled, frame.columns)


def correlation_table(cell: Cell, draws: int = CORRELATION_DRAWS, seed: int = 0) -> pd.DataFrame:
    """Spearman over images between p_c and AG, AD, I, D (the metrics themselves, not 100 minus them), by method."""
    scores, p = cell.scores.get("fidelity"), cell.probability.get("fidelity")
    if scores is None or p is None:
        return pd.DataFrame()
    signs = {"AG": ("AG", 1), "ADb": ("AD", -1), "I": ("I", 1), "Db": ("D", -1)}
    keys: list[Any] = [key for key in scores.columns if key[0] in signs]
    if not keys:
        return pd.DataFrame()
    first = np.stack([signs[c][1] * scores[c, m].to_numpy() for c, m in keys], axis=1)
    second = np.repeat(p.reindex(scores.index).to_numpy()[:, None], len(keys), axis=1)
    estimate = [_spearman(a, b) for a, b in zip(first.T, second.T, strict=True)]
    columns = pd.MultiIndex.from_tuples([(signs[c][0], m) for c, m in keys], names=["metric", "method"])
    return estimate_and_draws(estimate, spearman_draws(first, second, np.random.default_rng(seed), draws), columns)


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    """NaN where one of the two does not vary."""
    ranks = pd.DataFrame({"a": a, "b": b}).dropna().rank()
    return ranks["a"].corr(ranks["b"], min_periods=3) if ranks.nunique().min() > 1 else np.nan


# -- tables -----------------------------------------------------------------------------------------------------------


def long_table(table: pd.DataFrame, frame: pd.DataFrame, known: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per cell: value with its 95% interval, n images, rank among the methods (1 = best), published.

    Ranks compare means over the images that every method explains.
    """
    low, high = percentile_interval(table.iloc[1:])
    keys = [str(k) for k in table.columns.names]
    rows = table.columns.to_frame(index=False).assign(value=table.iloc[0].to_numpy(), ci_low=low, ci_high=high)
    rows = rows.assign(n=frame.notna().sum().reindex(table.columns).to_numpy())
    compared = rows.assign(value=common(frame).mean().reindex(table.columns).to_numpy())
    rows["rank"] = _ranks(compared, "value", keys[:-1])
    if known is not None:
        known = known.rename(columns={"printed": "published"})
        known["published_rank"] = _ranks(known, "published", keys[:-1])
        rows = rows.merge(known, how="left", on=keys)
    place = {name: k for k, name in enumerate([*TARGETS, CLEAN, *TRANSFORMS, *COLUMNS, *METHODS])}
    return rows.sort_values(keys, key=lambda s: s.map(place).fillna(len(place)), kind="stable", ignore_index=True)


def _ranks(rows: pd.DataFrame, value: str, within: list[str]) -> pd.Series:
    """1 = best by the metric's direction; equal ones share the mean rank."""
    lower = [n for n, c in COLUMNS.items() if c.scale > 0 and direction_of(c.metric, c.modes[0]) == "lower"]
    better = rows[value].mask(rows["metric"].isin(lower), -rows[value])
    return better.groupby([rows[key] for key in within]).rank(ascending=False)


def numbered_tables(cell: Cell, draws: int = DRAWS) -> dict[str, pd.DataFrame]:
    """Tables 1 to 4, as far as the settings allow."""
    wide, found = frames(cell), {}
    for number, (name, wanted) in enumerate(
        {"fidelity": FIDELITY, "targets": MASKED, "robustness": ROBUSTNESS, "transforms": MASKED}.items(), start=1
    ):
        if name not in wide:
            continue
        known = published(name)
        if name == "robustness":
            fixed = known[known["metric"].isin(["MS", "AS"])]
            known = pd.concat([known, fixed.assign(metric=fixed["metric"] + " fixed")], ignore_index=True)
            wanted = ["MS", "AS", "MS fixed", "AS fixed", *wanted[2:]]
        if name == "transforms":
            known = pd.concat([published("fidelity").assign(transform=CLEAN), known], ignore_index=True)
        frame = wide[name].loc[:, wide[name].columns.get_level_values("metric").isin(wanted)]
        if frame.shape[1]:
            found[f"table{number}"] = long_table(mean_table(frame, draws), frame, known)
    return found


def controls_table(cell: Cell, draws: int = DRAWS) -> pd.DataFrame:
    """AI, ADb and AG as in Table 1 and with all maps equally bright: by pixel ranks, and stretched to mean 0.5.

    After min-max a gradient's map is nearly black and Fake-CAM's nearly white: a conclusion that does not outlive the
    controls is about brightness.
    """
    frame = frames(cell).get("fidelity", pd.DataFrame())
    rows = [(m, "minmax", m) for m in MASKED[:3]] + [(m, c, f"{m} {c}") for m in MASKED[:3] for c in CONTROLS]
    chosen = {name: (metric, view) for metric, view, name in rows}
    if not frame.shape[1] or not any(c in frame.columns.get_level_values("metric") for c in list(chosen)[3:]):
        return pd.DataFrame()
    frame = frame.loc[:, frame.columns.get_level_values("metric").isin(chosen)]
    table = long_table(mean_table(frame, draws), frame, published("fidelity"))
    metric, view = (table["metric"].map({name: pair[k] for name, pair in chosen.items()}) for k in (0, 1))
    family = {m: name for name, members in FAMILIES.items() for m in members}
    return table.assign(metric=metric, view=view, family=table["method"].map(family).fillna("control"))


def further_table(cell: Cell, draws: int = DRAWS) -> pd.DataFrame:
    """What the paper defines or mentions without a table: AG without saturated images, local accuracy, completeness."""
    frame = frames(cell).get("fidelity", pd.DataFrame())
    if not frame.shape[1]:
        return frame
    frame = frame.loc[:, frame.columns.get_level_values("metric").isin(FURTHER)]
    return long_table(mean_table(frame, draws), frame) if frame.shape[1] else frame


def discrimination_table(cell: Cell, draws: int = DRAWS) -> pd.DataFrame:
    """Do the metrics tell CAMs, RISE and IBA apart? Their spread, a method's interval, pairs that differ surely.

    Over the images that all of them explain; none where those are too few.
    """
    frame = frames(cell).get("fidelity", pd.DataFrame())
    if not frame.shape[1]:
        return frame
    frame = common(frame.loc[:, frame.columns.get_level_values("method").isin(CLOSE)])
    if len(frame) < ENOUGH:
        return pd.DataFrame()
    table, rows = mean_table(frame, draws), []
    for metric in FIDELITY:
        present = [m for m in CLOSE if (metric, m) in table]
        if len(present) < 2:
            continue
        means = pick(table, metric=metric, method=present)
        low, high = percentile_interval(means.iloc[1:])
        known = pick(_as_evidence(published("fidelity"), False), metric=metric, method=CLOSE).iloc[0]
        apart = 0
        for a, b in combinations(present, 2):
            ends = percentile_interval((means[a] - means[b]).iloc[1:])
            apart += int(ends[0] > 0 or ends[1] < 0)
        spread = means.iloc[0].max() - means.iloc[0].min()
        pairs = len(present) * (len(present) - 1) // 2
        rows.append((metric, spread, (high - low).mean(), apart, pairs, known.max() - known.min()))
    names = ["metric", "spread", "interval_width", "pairs_apart", "pairs", "published_spread"]
    return pd.DataFrame(rows, columns=names)


def calibration_table(cell: Cell) -> pd.DataFrame:
    """mean p_c under each variation and transform, and its ratio to the clean images' (the same images where both are).

    `published` is the ratio of Fake-CAM's insertion score to its clean one, which hardly depends on the map.
    """
    clean = cell.probability.get(CLEAN, cell.probability.get("fidelity"))
    if clean is None:
        return pd.DataFrame()
    insertion = pick(published_evidence()["transforms"], metric="I", method="fake_cam").iloc[0]
    rows = []
    for transform, settings in cell.variations().items():
        each = {s: cell.probability[s].reindex(clean.index).dropna() for s in settings if s in cell.probability}
        for name, p in (each | ({transform: pd.concat(each)} if each else {})).items():
            images = p.index.get_level_values(-1)
            mean, reference = p.mean(), clean[images].mean()
            known = insertion[transform] / insertion[CLEAN] if name == transform else np.nan
            rows.append((transform, name.partition("/")[2] or "all", len(p), mean, mean / reference, known))
    return pd.DataFrame(rows, columns=["transform", "variation", "n", "mean_p", "ratio", "published"])


def variations_table(cell: Cell) -> pd.DataFrame:
    """Table 4 taken apart: the means of every single variation."""
    parts = []
    for transform, settings in cell.variations().items():
        for setting in settings:
            means = cell.scores[setting].mean().rename("value").rename_axis(["metric", "method"]).reset_index()
            means = means[means["metric"].isin(MASKED)]
            parts.append(means.assign(transform=transform, variation=setting.partition("/")[2]))
    columns = ["transform", "variation", "metric", "method", "value"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


# -- protocol ---------------------------------------------------------------------------------------------------------


def protocol(run: Path, settings: Iterable[str]) -> dict[str, dict[str, str]]:
    """What was run in these settings, as text: "methods" by name, their "budgets", "metrics" by column."""
    sources = [_with_fit(*m) for m in members(run) if setting_of(str(m[1].get("experiment"))) in settings]
    methods = _listed((name, spec) for s in sources for name, spec in s.get("methods", {}).items())
    metrics = _listed(
        (c, spec) for s in sources for key, spec in s.get("metrics", {}).items() for c in _columns_of(key)
    )
    budgets = _listed(
        (name, {k: spec[k] for k in BUDGETS[name] if k in spec})
        for s in sources
        for name, spec in s.get("methods", {}).items()
        if name in BUDGETS
    )
    return {"methods": methods, "budgets": budgets, "metrics": metrics}


def settings_of(table: str, cell: Cell) -> list[str]:
    """The settings whose runs a table rests on."""
    if table == "table2":
        return [*TARGETS, *([] if "label" in cell.scores else ["fidelity"])]
    return {"table3": ["robustness"], "table4": ["transforms"]}.get(table, ["fidelity"])


def _with_fit(run: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """run.json, with the number of images behind IBA's statistics, which only the run's config has."""
    config = run / "config.yaml"
    if config.is_file() and "iba" in facts.get("methods", {}):
        facts["methods"]["iba"]["fit_images"] = OmegaConf.select(OmegaConf.load(config), "fit_images")
    return facts


def _columns_of(key: str) -> list[str]:
    """`average_gain/clipped` -> [`AG clipped`]: the columns made of a metric's variant."""
    metric, _, mode = key.partition("/")
    return [n for n, c in COLUMNS.items() if c.metric == metric and (mode in c.modes or metric == "completeness")]


def _listed(specs: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """name -> `parameter=value, ..`; where runs differ, all of them; the targets of equal ones in one place."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for name, spec in specs:
        said = {**spec, "step": "pixels / 28"} if "step" in spec and spec["step"] is None else spec
        text = ", ".join(f"{k}={v}" for k, v in said.items() if k not in ("_target_", "direction", "target"))
        found.setdefault(name, {}).setdefault(text, {})[str(spec.get("target", ""))] = None
    listed = {}
    for name, texts in found.items():
        explained = {text: "/".join(filter(None, targets)) for text, targets in texts.items()}
        listed[name] = " | ".join(
            ", ".join(filter(None, [text, targets and f"target={targets}"])) for text, targets in explained.items()
        )
    return listed


TITLES = {
    "table1": "Table 1: fidelity",
    "table2": "Table 2: fidelity by target class",
    "table3": "Table 3: robustness and complexity (fixed: the gradient explains all neighbours)",
    "table4": "Table 4: fidelity under transforms, mean over their variations",
    "controls": "Controls: AI, ADb, AG with all maps equally bright",
}


FRAMES = {"table2": "targets", "table3": "robustness", "table4": "transforms"}  # others rest on fidelity


def constant_maps(name: str, cell: Cell) -> list[str]:
    """`LIME 3 of 20`, ..: how many of the maps behind a table are constant."""
    images = frames(cell)[FRAMES.get(name, "fidelity")].index
    settings = settings_of(name, cell)
    if name == "table4":
        settings = [CLEAN, *(s for own in cell.variations().values() for s in own)]
    flat: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for setting in filter(cell.scores.__contains__, settings):
        scored = cell.scores[setting].notna().T.groupby(level="method").any().T
        for method, own in scored[scored.index.isin(images)].items():
            there = own.index[own]
            every[str(method)] += len(there)
            flat[str(method)] += len(cell.constant.get((setting, str(method)), frozenset()).intersection(there))
    return [f"{LABELS.get(m, m)} {n} of {every[m]}" for m, n in flat.items() if n]


def page(name: str, table: pd.DataFrame, cell: Cell, how: Mapping[str, Mapping[str, str]]) -> str:
    """The table for readers: methods down, cells across, `measured (printed)`, under what was run. `?`: misprint?"""
    groups = [k for k in ("target", "transform", "view") if k in table]
    columns = list(dict.fromkeys(table[[*groups, "metric"]].itertuples(index=False, name=None)))
    rows = table.set_index([*groups, "metric", "method"])
    metrics = dict.fromkeys(column_names(table))
    lines = [f"**{TITLES[name]}.** {cell.about}. Measured (printed); n: images of each method.", ""]
    lines += [f"- {metric}: {how['metrics'][metric]}" for metric in metrics if metric in how["metrics"]]
    lines += [
        f"- {LABELS.get(m, m)}: {how['methods'][m]}" for m in dict.fromkeys(table["method"]) if m in how["methods"]
    ]
    flat = constant_maps(name, cell)
    lines += [f"- Constant maps, all 0 after min-max; flagged, scores kept: {', '.join(flat)}"] if flat else []
    lines += [
        "",
        "| method | n | budget | " + " | ".join(" ".join(c) for c in columns) + " |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for method, own in table.groupby("method", sort=False):
        values = [_printed(rows.loc[(*c, method)]) if (*c, method) in rows.index else "" for c in columns]
        budget = how["budgets"].get(str(method), "").replace("|", "or")
        lines.append(f"| {LABELS.get(str(method), method)} | {own['n'].max()} | {budget} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def column_names(table: pd.DataFrame) -> pd.Series:
    """The names in COLUMNS of a table's rows: its metrics, with the view where that is one of the controls."""
    control = table["view"].isin(CONTROLS) if "view" in table else pd.Series(False, index=table.index)
    return table["metric"].mask(control, table["metric"] + " " + table["view"]) if control.any() else table["metric"]


def _printed(row: pd.Series) -> str:
    digits = 2 if str(row.name[-2]) in ("Mono", "MS", "AS", "MS fixed", "AS fixed") else 1  # type: ignore[index]
    text = "-" if np.isnan(row["value"]) else f"{row['value']:.{digits}f}"
    known = row.get("published", np.nan)
    doubt = "" if pd.isna(row.get("corrected", np.nan)) else f"; {row['corrected']:g}?"
    return text if pd.isna(known) else f"{text} ({known:g}{doubt})"


def write_tables(run: Path, draws: int = DRAWS) -> list[Path]:
    """All tables as tables/zhang_*.csv of the run, with a column for the seed; for readers some as .md too."""
    known = read_cells(run)
    made: dict[str, list[pd.DataFrame]] = {}
    pages: dict[str, list[str]] = {}
    for cell in known:
        tables = numbered_tables(cell, draws) | {
            "controls": controls_table(cell, draws),
            "further": further_table(cell, draws),
            "discrimination": discrimination_table(cell, draws),
            "calibration": calibration_table(cell),
            "variations": variations_table(cell),
        }
        for name, table in tables.items():
            if table.empty:
                continue
            how = protocol(run, settings_of(name, cell))
            if name in TITLES:
                pages.setdefault(name, []).append(page(name, table, cell, how))
            if "n" in table and "method" in table:
                table = table.assign(
                    budget=table["method"].map(how["budgets"]),
                    definition=column_names(table).map(how["metrics"]),
                    method_definition=table["method"].map(how["methods"]),
                )
            made.setdefault(name, []).append(table.assign(seed=cell.seed))
    folder = run / "tables"
    for name, texts in pages.items():
        write_atomic(folder / f"zhang_{name}.md", "\n".join(texts).encode())
    return [save_table(pd.concat(parts, ignore_index=True), folder / f"zhang_{name}") for name, parts in made.items()]
