"""What a run, or several collected ones, say in the terms of Zhang, Torres, Hermanns (ACML 2024): see names.py.

A setting is what a run measured, after its facts: `fidelity`, `robustness`, `transforms`, or a target of Table 2.

The network is pretrained, so claims are about its images: they read those that were not explained when the predicates
were written (all but seen.csv's) where there are enough of them. Tables and figures show all images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from salrun.errors import SalrunError
from salrun.papers.claims import Basis, Evidence
from salrun.papers.evidence import means, one_model, pick, printed, published
from salrun.papers.zhang.names import (
    CLEAN,
    COLUMNS,
    CORRELATED,
    FAMILIES,
    FIDELITY,
    MASKED,
    METHODS,
    REAL,
    REFLECTED,
    ROBUSTNESS,
    TARGETS,
    TRANSFORMS,
)
from salrun.papers.zhang.single_images import correlations, effects, shared_worst, with_sparseness
from salrun.results.maps import OWN, KeptMaps
from salrun.results.run import Run
from salrun.results.tables import directions_of
from salrun.stats.bootstrap import DRAWS

CORRELATION_DRAWS = 2_000
ENOUGH = 10  # images: a bootstrap of fewer knows too few other samples
PAPERS_OWN = ("imagenet", "resnet50")  # what the paper is about
PRINTED = {"fidelity": "Table 1", "targets": "Table 2", "robustness": "Table 3", "transforms": "Table 4"}
EFFECTS = {"fidelity": FIDELITY, "robustness": ROBUSTNESS}  # whose differences between methods are sized


@dataclass(frozen=True)
class SeedEvidence:
    """One model's scores in the paper's units, what they rest on, and their means with bootstrap draws."""

    seed: int
    about: str
    frames: Mapping[str, pd.DataFrame]  # table -> images x (target or transform, metric, method)
    means: Mapping[str, pd.DataFrame]  # table -> estimates and draws of the frame's columns
    claims: Evidence  # what the claims read, over images that all methods of a table explain
    settings: Mapping[str, Sequence[str]]  # table -> the settings it rests on
    variations: Mapping[tuple[str, str], pd.DataFrame]  # (transform, strength) -> images x (metric, method)
    probability: pd.Series  # of the class explained, by setting, transform, strength and image
    maps: pd.DataFrame  # setting, method, image_id; whether the map has a score, whether it is constant


@dataclass(frozen=True)
class ZhangEvidence:
    """What the paper's tables, figures and claims are made from."""

    seeds: Sequence[SeedEvidence]
    falling: frozenset[str] = frozenset()  # columns in which less is better
    members: Sequence[tuple[str, Run]] = ()  # the runs behind it, each with its setting
    maps: Sequence[KeptMaps] = field(default_factory=list)  # of the fidelity runs of the first seed


# -- reading ----------------------------------------------------------------------------------------------------------


def read(run: Run, draws: int = DRAWS) -> ZhangEvidence:
    """The evidence of a run or of collected runs, which must be of one model: the same weights, seed by seed."""
    members = [(member, member.cells[member.cells["role"] == OWN].iloc[0]) for member in run.members]
    _refuse_other_weights(members)
    cells = run.cells.assign(setting=[setting_of(facts) for facts in run.cells.to_dict("records")])
    stated = cells["protocol"].notna() if "protocol" in cells else pd.Series(False, index=cells.index)
    cells = cells[stated] if stated.any() else cells
    one_model(cells)
    scores, curves = _in_units(_named(_placed(run.scores, run, cells))), _placed(run.curves, run, cells)
    seeds = [
        _of_seed(int(str(seed)), part, scores[scores["seed"] == seed], curves[curves["seed"] == seed], draws)
        for seed, part in cells.groupby("seed", sort=True)
    ]
    directions = directions_of(run.metrics, run.scores)
    named = pd.DataFrame(list(directions), columns=["metric", "mode", "score"]).assign(direction=directions.values())
    ways = _named(named)[["metric", "direction"]].itertuples(index=False, name=None)
    falling = {name for name, way in ways if way == ("lower" if COLUMNS[name].scale > 0 else "higher")}
    maps = [m for m in run.maps if m.facts["seed"] == seeds[0].seed and setting_of(m.facts) == "fidelity"]
    return ZhangEvidence(seeds, frozenset(falling), [(setting_of(facts), member) for member, facts in members], maps)


def setting_of(facts: Mapping[Any, Any] | pd.Series) -> str:
    """What a model was run for: fidelity where its facts do not say."""
    protocol = facts.get("protocol")
    if pd.isna(protocol):
        return "fidelity"
    return str(facts["target"] if protocol == "targets" else protocol)


def _refuse_other_weights(members: Sequence[tuple[Run, pd.Series]]) -> None:
    weights: dict[Any, dict[str, Run]] = {}
    for member, facts in members:
        if not pd.isna(facts.get("fingerprint")):
            weights.setdefault(facts["seed"], {}).setdefault(facts["fingerprint"], member)
    for first, second, *_ in (list(same.values()) for same in weights.values() if len(same) > 1):
        raise SalrunError(
            f"these tables are about one model: {first.path} and {second.path} differ in weights; collect each alone"
        )


def _placed(rows: pd.DataFrame, run: Run, cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of these models with their setting; a transformed image by its source's id, transform and strength."""
    about = run.images.reindex(columns=["cell", "image_id", "source_id", "transform", "strength"])
    rows = rows.merge(cells[["cell", "setting"]], on="cell").merge(about, on=["cell", "image_id"], how="left")
    transformed = (rows["setting"] == "transforms") & rows["transform"].notna()
    return rows.assign(
        image_id=rows["source_id"].where(transformed, rows["image_id"]),
        **{name: rows[name].where(transformed, "") for name in ("transform", "strength")},
    )


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are in a column of the paper's tables, with its name as their metric."""
    parts = []
    for name, column in COLUMNS.items():
        of_metric = (rows["metric"] == column.metric) & (rows["score"] == column.score)
        parts.append(rows[of_metric & rows["mode"].isin(column.modes)].assign(metric=name))
    return pd.concat(parts, ignore_index=True)


def _in_units(rows: pd.DataFrame) -> pd.DataFrame:
    columns = [COLUMNS[name] for name in rows["metric"]]
    scale, offset = (np.array([getattr(c, key) for c in columns], dtype=np.float64) for key in ("scale", "offset"))
    return rows.assign(value=rows["value"] * scale + offset)


def _of_seed(seed: int, cells: pd.DataFrame, rows: pd.DataFrame, curves: pd.DataFrame, draws: int) -> SeedEvidence:
    first, scales = cells.iloc[0], ", ".join(sorted(cells["scale"].astype(str).unique()))
    about = f"{first['model']} on {first['dataset']}, seed {seed}, scale {scales}"
    place = ["setting", "transform", "strength"]
    if rows.duplicated([*place, "image_id", "metric", "method"]).any():
        raise SalrunError(
            "a metric has two scores for one image and method: collect runs of one view and one scale at a time"
        )
    scores = {
        key: part.pivot(index="image_id", columns=["metric", "method"], values="value").sort_index(axis=1)
        for key, part in rows.groupby(place, sort=True)
    }
    plain = {str(setting): frame for (setting, transform, _), frame in scores.items() if not transform}
    varied = {(t, strength): frame for (_, t, strength), frame in scores.items() if t}
    starts = curves[curves["metric"] == "deletion"].drop_duplicates([*place, "image_id"])
    probability = starts.assign(p=[float(y[0]) for y in starts["y"]]).set_index([*place, "image_id"])["p"]
    table1 = rows[rows["setting"] == "fidelity"]
    label_explained = len(table1) > 0 and bool((table1["target"] == table1["label"]).all())
    frames = _frames(plain, varied, label_explained)
    whole = {name: means(frame, draws) for name, frame in frames.items()}
    flags = rows.assign(scored=rows["value"].notna(), constant=rows["flag"] == "degenerate_map")
    maps = flags.groupby([*place, "method", "image_id"])[["scored", "constant"]].any().reset_index()
    settings = {name: [name] for name in ("fidelity", "robustness", "transforms")}
    settings["targets"] = [*TARGETS, *([] if "label" in plain else ["fidelity"])]
    claims = _for_claims(frames, whole, probability, draws, seen_images(str(first["dataset"])))
    claims = replace(claims, images=_explained_seed(cells))
    own = (first["dataset"], first["model"]) == PAPERS_OWN
    claims = with_printed(claims) if own else replace(claims, other_network=True)
    return SeedEvidence(seed, about, frames, whole, claims, settings, varied, probability, maps)


def _frames(
    plain: Mapping[str, pd.DataFrame], varied: Mapping[tuple[str, str], pd.DataFrame], label_explained: bool
) -> dict[str, pd.DataFrame]:
    """Images x columns of each table; settings that are compared stand side by side and have the same images.

    Fidelity runs that explain the label serve as Table 2's too, and as Table 4's clean images where it has none.
    """
    frames = {name: plain[name] for name in ("fidelity", "robustness") if name in plain}
    targets = {target: plain[target] for target in TARGETS if target in plain}
    if targets:
        if label_explained:
            targets.setdefault("label", plain["fidelity"])
        frames["targets"] = _beside(targets, "target")
    transforms = {t: [frame for (other, _), frame in varied.items() if other == t] for t in (*TRANSFORMS, REFLECTED)}
    averaged = {t: pd.concat(each).groupby(level=0).mean() for t, each in transforms.items() if each}
    if averaged:
        clean = varied.get((CLEAN, ""), plain.get("fidelity"))
        frames["transforms"] = _beside(({} if clean is None else {CLEAN: clean}) | averaged, "transform")
    return frames


def _beside(parts: Mapping[str, pd.DataFrame], level: str) -> pd.DataFrame:
    """Of the images that all settings have: runs of one setting may have more."""
    masked = {name: with_metrics(frame, MASKED) for name, frame in parts.items()}
    return pd.concat(masked, axis=1, names=[level], join="inner")


def with_metrics(frame: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    return frame.loc[:, frame.columns.get_level_values("metric").isin(metrics)]


def common(frame: pd.DataFrame) -> pd.DataFrame:
    """The images that every method explains: means are compared over the same images."""
    return frame[frame.notna().T.groupby("method").any().T.all(axis=1)]


def shared_means(e: SeedEvidence, of: str, methods: Sequence[str] = METHODS) -> pd.DataFrame:
    """Means over the images that all of these methods explain, as far as they are there; empty without the table."""
    if of not in e.frames:
        return pd.DataFrame()
    frame = e.frames[of]
    shared = common(frame.loc[:, frame.columns.get_level_values("method").isin(methods)])
    return _means(shared, frame, e.means[of])


def _means(some: pd.DataFrame, frame: pd.DataFrame, whole: pd.DataFrame) -> pd.DataFrame:
    """Means over some images and columns of a frame, given those over all of it; fewer than ENOUGH have no draws."""
    if len(some) < ENOUGH:
        return means(some, 0)
    return whole[some.columns] if len(some) == len(frame) else means(some, len(whole) - 1)


def seen_images(dataset: str) -> list[str]:
    """The images of a data set that had been explained when the predicates were written: papers/zhang/seen.csv."""
    with resources.files("salrun.papers.zhang").joinpath("seen.csv").open() as text:
        table = pd.read_csv(text)
    return table.loc[table["dataset"] == dataset, "image_id"].to_list()


def _explained_seed(cells: pd.DataFrame) -> int | None:
    """The seed that chose the explained images; None where it is not said or they differ."""
    seeds = cells["dataset.explained_seed"].unique() if "dataset.explained_seed" in cells else []
    return int(seeds[0]) if len(seeds) == 1 and not pd.isna(seeds[0]) else None


def with_printed(e: Evidence) -> Evidence:
    """Evidence about the paper's network has its tables also by the names that they have in the paper."""
    named = {title: e.tables[name] for name, title in PRINTED.items() if name in e.tables}
    return replace(e, tables={**e.tables, **named})


def _for_claims(
    frames: Mapping[str, pd.DataFrame],
    whole: Mapping[str, pd.DataFrame],
    probability: pd.Series,
    draws: int,
    seen: Sequence[str],
) -> Evidence:
    """What the claims read, over the images that all methods of a table explain; fewer than ENOUGH have no draws.

    Only images not seen before where every table that has ENOUGH images (else every table) has ENOUGH of them or no
    other; otherwise all.
    """
    used = {name: common(frame) for name, frame in frames.items()}
    unseen = {name: frame[~frame.index.isin(seen)] for name, frame in used.items()}
    large = [name for name, frame in used.items() if len(frame) >= ENOUGH] or list(used)
    fresh = all(len(unseen[name]) >= min(ENOUGH, len(used[name])) for name in large)
    tables: dict[str, pd.DataFrame] = {}
    bases: dict[str, Basis] = {}
    for name, frame in (unseen if fresh else used).items():
        tables[name] = _means(frame, frames[name], whole[name])
        kept, n = "new images" if len(frame) < len(used[name]) else "images", len(frames[name])
        note = "" if len(frame) == n else f"only the {kept} that all methods explain, of {n}"
        more = {}
        if name in EFFECTS:
            more[f"{name} effects"] = effects(frame, tables[name], EFFECTS[name])
        if name == "fidelity":
            more |= _of_single_images(frame, probability, draws)
        tables |= more
        bases |= dict.fromkeys((name, *more), Basis(len(frame), note=note))
    return Evidence(tables, bases, fresh=fresh)


def _of_single_images(frame: pd.DataFrame, probability: pd.Series, draws: int) -> dict[str, pd.DataFrame]:
    """Fidelity image by image: its relation to p_c and to sparseness, and the worst images; as far as it is there."""
    draws = draws if len(frame) >= ENOUGH else 0
    tables = {}
    scores = with_metrics(frame, list(CORRELATED))
    if scores.shape[1] and "fidelity" in probability.index.get_level_values("setting"):
        p = probability.loc["fidelity"].droplevel(["transform", "strength"])
        tables["correlation"] = correlations(scores, p, min(draws, CORRELATION_DRAWS))
    if set(product(("AI", "ADb", "Sparseness"), REAL)) <= set(frame):
        tables["sparseness"] = with_sparseness(frame, ("AI", "ADb"), draws)
    complete = with_metrics(frame, ["I", "Db"]).dropna()
    if set(product(("I", "Db"), METHODS)) <= set(frame) and len(complete):
        tables["worst image"] = shared_worst(complete, draws)
    return tables


# -- published --------------------------------------------------------------------------------------------------------


def published_tables() -> dict[str, pd.DataFrame]:
    """Tables 1 to 4: `printed` is what the paper has, `corrected` what it seems to mean where values look mistyped.

    Table 4 has Table 1's values as those of clean images, and MS and AS stand for `MS fixed` and `AS fixed` too.
    """
    tables = {name: published("zhang", name) for name in ("fidelity", "targets", "robustness", "transforms")}
    clean = tables["fidelity"][tables["fidelity"]["metric"].isin(MASKED)].assign(transform=CLEAN)
    tables["transforms"] = pd.concat([clean, tables["transforms"]], ignore_index=True)
    fixed = tables["robustness"][tables["robustness"]["metric"].isin(["MS", "AS"])]
    fixed = fixed.assign(metric=fixed["metric"] + " fixed")
    tables["robustness"] = pd.concat([tables["robustness"], fixed], ignore_index=True)
    return tables


def published_evidence(corrected: bool = False) -> Evidence:
    """Tables 1 to 4 in the form that the claims read, as printed or with suspected misprints corrected."""
    tables = {}
    for name, table in published_tables().items():
        keys = [key for key in ("target", "transform", "metric", "method") if key in table]
        if corrected and "corrected" in table:
            table = table.assign(printed=table["corrected"].fillna(table["printed"]))
        error = table["metric"].map({metric: 0.5 * 10.0**-column.digits for metric, column in COLUMNS.items()})
        tables[name] = printed(table.set_index(keys)["printed"], error)
    return with_printed(Evidence(tables))


# -- quantities that claims and tables share --------------------------------------------------------------------------


def by_method(table: pd.DataFrame, metric: str, methods: Sequence[str] = METHODS, **levels: object) -> pd.DataFrame:
    """One metric's means, a column per method."""
    methods = list(methods)
    return pick(table, metric=metric, **levels, method=methods)[methods]  # methods last: a target may have fewer


def by_family(values: pd.DataFrame, families: Mapping[str, Sequence[str]] = FAMILIES) -> pd.DataFrame:
    """Means over the methods of each family, as far as they are there; Fake-CAM is in none of the paper's."""
    there = {family: [m for m in members if m in values] for family, members in families.items()}
    return pd.DataFrame(
        {family: values[members].mean(axis=1, skipna=False) for family, members in there.items() if members}
    )


def lead(values: pd.DataFrame, of: str) -> pd.Series:
    """By how much a column exceeds the best of the others."""
    return values[of] - values.drop(columns=of).max(axis=1)


def second(values: pd.DataFrame) -> np.ndarray:
    """The second highest of each row."""
    return np.sort(values.to_numpy(), axis=1)[:, -2]
