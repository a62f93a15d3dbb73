"""Tables of Yona & Greenfeld, "Revisiting Sanity Checks for Saliency Maps" (2021): numbers for its pictures.

A method passes the original test (Adebayo et al. 2018) if its maps change when the trained network is exchanged for an
untrained one, M'. The paper's point: on a task t whose evidence is all that there is to see (digits), they need not
change; on a task t~ where only a part decides they must. So the same methods are tested on both.

Names: VBP and GBP are vanilla and guided backpropagation. A mean over images is addressed by experiment, quantity
(a similarity of maps between two models, `mass` on an object, its `chance` level, `lambda`), method, model, and what
the model is held against: another model, or an object.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from salrun.errors import SalrunError
from salrun.papers.claims import Evidence, NotTestable, estimate_and_draws, pick
from salrun.papers.style import save_table
from salrun.stats.bootstrap import DRAWS, mean_draws, percentile_interval
from salrun.tables import read_scores

HALVES, SHAPES, PAIRS = "yona_mnist_halves", "yona_mnist_shapes", "yona_tinyimagenet_pairs"
SANITY = "yona_sanity_checks"
OWN = {HALVES: "halves", SHAPES: "shapes", PAIRS: "finetuned", SANITY: "trained"}  # what a run's own model is called
VBP, GBP = "gradient", "guided_backprop"
LABELS = {VBP: "VBP", GBP: "GBP"}
SIMILARITIES = ("spearman", "cosine", "ssim", "hog")
ALIKE = 0.7  # the similarity above which maps count as the same
CLEARLY = 0.1  # a difference of similarities, or a move of mass, that the eye would see
ROUNDING = 1e-9  # a method that ignores the model has a difference of 0, give or take
LEVELS = ["experiment", "quantity", "method", "model", "against"]
COPY = re.compile(r"^(?P<name>.*random|trained|nothing|pretrained)_(?P<copy>\d+)$")
OTHER = re.compile(r"digits|pretrained|(digits_)?(random|top)_\d+|(cascading|independent)_\d+")


class Effect(NamedTuple):
    """A difference of two means that the paper shows in a picture; > 0 where the picture is right."""

    claim: str
    experiment: str
    quantity: str
    more: tuple[str, str]  # model, against
    less: tuple[str, str]


EFFECTS = {
    "halves: maps change more on t~ than on t": Effect(
        "Y2", HALVES, "spearman", ("digits", "random"), ("halves", "random")
    ),
    "halves: mass on the half, trained - untrained": Effect(
        "Y2b", HALVES, "mass", ("halves", "primary"), ("random", "primary")
    ),
    "shapes: mass on the shape, shape model - digit model": Effect(
        "Y3", SHAPES, "mass", ("shapes", "primary"), ("digits", "primary")
    ),
    "shapes: mass on the shape, shape model - untrained": Effect(
        "Y3", SHAPES, "mass", ("shapes", "primary"), ("random", "primary")
    ),
    "shapes: mass on the digit, digit model - untrained": Effect(
        "Y3", SHAPES, "mass", ("digits", "secondary"), ("digits_random", "secondary")
    ),
    "pairs: mass on the half that decides, fine-tuned - pretrained": Effect(
        "Y4", PAIRS, "mass", ("finetuned", "primary"), ("pretrained", "primary")
    ),
    "pairs: mass on the half that decides, fine-tuned - random": Effect(
        "", PAIRS, "mass", ("finetuned", "primary"), ("random", "primary")
    ),
}


# -- reading ----------------------------------------------------------------------------------------------------------


def quantities(scores: pd.DataFrame) -> pd.DataFrame:
    """One row per image and quantity: seed, LEVELS, copy (of untrained models), image_id, value."""
    rows = scores[scores["metric"].isin(["map_similarity", "mass_share", "causal_quantity"])]
    rows = rows[rows["experiment"].isin(OWN)].reset_index(drop=True)
    if rows.empty:
        raise SalrunError(f"these scores hold none of {', '.join(OWN)} with map_similarity or mass_share")
    keys = ["experiment", "seed", "model", "metric", "variant"]
    kinds = rows[keys].drop_duplicates()
    _one_own_model(kinds)
    named = [_named(*kind) for kind in kinds.drop(columns="seed").itertuples(index=False)]
    parsed = pd.DataFrame(named, columns=["quantity", "name", "against", "copy"], index=kinds.index)
    table = rows.merge(pd.concat([kinds, parsed], axis=1), on=keys).drop(columns="model")
    table = table.rename(columns={"name": "model"})
    identity = ["seed", *LEVELS, "copy", "image_id"]
    if table.duplicated(identity).any():
        raise SalrunError("a metric has two scores for one image and method: compare one view at a time")
    return table[[*identity, "value"]]


def _one_own_model(kinds: pd.DataFrame) -> None:
    own = kinds[~kinds["model"].map(lambda m: bool(OTHER.fullmatch(m)))]
    for (experiment, seed), part in own.groupby(["experiment", "seed"]):
        if part["model"].nunique() > 1:
            names = ", ".join(part["model"].unique())
            raise SalrunError(f"{experiment} seed {seed}: one model and its others are expected, got {names}")


def _named(experiment: str, model: str, metric: str, variant: str) -> tuple[str, str, str, str]:
    """(quantity, model, against, copy) of a score."""
    label = variant.rpartition(":")[0]
    name, copy = _copied(model) if OTHER.fullmatch(model) else (OWN[experiment], "")
    if metric == "mass_share":
        region, _, kind = label.rpartition("/") if label.endswith("chance") else (label, "", "mass")
        return kind, name, region or "primary", copy
    against, _, quantity = label.rpartition("/")
    against, other = _copied(against.removeprefix("digits_").removeprefix("between_"))
    if metric == "causal_quantity":
        quantity, name = f"lambda_{quantity}", "all tasks"
    return quantity, name, against, f"{copy}-{other}"


def _copied(name: str) -> tuple[str, str]:
    """`random_2` -> random, 2."""
    match = COPY.match(name)
    return (match["name"], match["copy"]) if match else (name, "")


def evidence(scores: pd.DataFrame, draws: int = DRAWS) -> dict[int, Evidence]:
    """Per seed the table `mean` of all quantities, averaged over copies; the draws resample an experiment's images."""
    table = quantities(scores)
    found = {}
    for seed, rows in table.groupby("seed", sort=True):
        parts, images = [], []
        for _, part in rows.groupby("experiment", sort=True):
            wide = part.groupby(["image_id", *LEVELS])["value"].mean().unstack(LEVELS).sort_index(axis=1)
            sampled = mean_draws(wide.to_numpy(), np.random.default_rng(0), draws)
            parts.append(estimate_and_draws(wide.mean().to_list(), sampled, wide.columns))
            images.append(len(wide))
        found[int(str(seed))] = Evidence({"mean": pd.concat(parts, axis=1)}, min(images))
    return found


def mean_of(e: Evidence, experiment: str, quantity: str, method: str, model: str, against: str) -> pd.Series:
    """One mean and its draws."""
    levels = {"experiment": experiment, "quantity": quantity, "method": method, "model": model, "against": against}
    return pick(e["mean"], **levels).iloc[:, 0]


def effect(e: Evidence, name: str, method: str) -> pd.Series:
    """One of EFFECTS for a method."""
    what = EFFECTS[name]
    more, less = (mean_of(e, what.experiment, what.quantity, method, *which) for which in (what.more, what.less))
    return more - less


def methods_of(e: Evidence, experiment: str | None = None) -> list[str]:
    """The methods that were run, the paper's first."""
    columns = e["mean"].columns.to_frame(index=False)
    ran = columns if experiment is None else columns[columns["experiment"] == experiment]
    names = ran["method"].unique()
    return [m for m in LABELS if m in names] + sorted(m for m in names if m not in LABELS)


def with_interval(series: pd.Series) -> dict[str, float]:
    """Value and 95% interval over images of a mean and its draws."""
    low, high = percentile_interval(series.iloc[1:].to_numpy()[:, None])
    return {"value": float(series.iloc[0]), "ci_low": float(low[0]), "ci_high": float(high[0])}


# -- tables -----------------------------------------------------------------------------------------------------------


def means_table(scores: pd.DataFrame, e: Evidence, seed: int) -> pd.DataFrame:
    """Every mean with its interval over images, and the lowest and highest of the untrained copies' means."""
    table = e["mean"]
    low, high = percentile_interval(table.iloc[1:])
    result = table.columns.to_frame(index=False).assign(value=table.iloc[0].to_numpy(), ci_low=low, ci_high=high)
    rows = quantities(scores)
    rows = rows[rows["seed"] == seed]
    by_copy = rows.groupby([*LEVELS, "copy"])["value"].mean().groupby(LEVELS).agg(["count", "min", "max"])
    by_copy.columns = pd.Index(["copies", "lowest_copy", "highest_copy"])
    images = rows.dropna(subset="value").groupby(LEVELS)["image_id"].nunique().rename("images")
    return result.merge(by_copy, on=LEVELS).merge(images, on=LEVELS, how="left").fillna({"images": 0})


def mass_table(means: pd.DataFrame) -> pd.DataFrame:
    """Share of the map on each object beside its chance level, by experiment, method and model."""
    keys = ["experiment", "method", "model", "against"]
    mass = means[means["quantity"] == "mass"].drop(columns="quantity")
    chance = means[means["quantity"] == "chance"].set_index(keys)["value"].rename("chance")
    joined = mass.join(chance, on=keys)
    return joined.assign(times_chance=joined["value"] / joined["chance"]).rename(columns={"against": "object"})


def effects_table(e: Evidence) -> pd.DataFrame:
    """EFFECTS of every method, with 95% intervals."""
    rows = []
    for name, what in EFFECTS.items():
        for method in methods_of(e):
            try:
                found = with_interval(effect(e, name, method))
            except NotTestable:
                continue
            rows.append({"effect": name, "claim": what.claim, "method": method, **found})
    return pd.DataFrame(rows, columns=["effect", "claim", "method", "value", "ci_low", "ci_high"])


def argument_table(e: Evidence) -> pd.DataFrame:
    """The paper's argument: similarity to untrained networks on t (digits) and on t~ (halves), per method and measure.

    `between_untrained`: how alike untrained networks are among themselves. `test_t`, `test_t~`: a method fails where
    trained and untrained are alike (the whole interval above 0.7). `last_layers_k`: similarity after re-initialising
    the last k layers, Adebayo's cascade. `mass_*`: on the half that decides on t~. `moved`: what training adds to that
    mass; the test by it is passed where it moves clearly (by 0.1). Similarities weigh every pixel, and most are
    background: where the map moved is seen better by its mass.
    """
    rows = []
    for method in methods_of(e, HALVES):
        for measure in SIMILARITIES:
            try:
                t, aware = (mean_of(e, HALVES, measure, method, m, "random") for m in ("digits", "halves"))
            except NotTestable:
                continue
            row: dict[str, object] = {"method": method, "measure": measure}
            for name, model, untrained, series in (
                ("t", "digits", "digits_random", t),
                ("t~", "halves", "random", aware),
            ):
                row |= {f"{k}_{name}": v for k, v in with_interval(series).items()}
                row[f"between_untrained_{name}"] = _point(e, measure, method, untrained, "random")
                row |= {f"last_layers_{k}_{name}": _point(e, measure, method, model, f"top_{k}") for k in range(1, 5)}
                row[f"test_{name}"] = verdict(with_interval(ALIKE - series), "passes", "fails")
            row |= {f"{k}_t_minus_t~": v for k, v in with_interval(t - aware).items()}
            row |= {f"mass_{m}": _point(e, "mass", method, m, "primary") for m in ("halves", "digits", "random")}
            row |= _moved(e, method)
            row["mass_chance"] = _point(e, "chance", method, "halves", "primary")
            rows.append(row)
    return pd.DataFrame(rows)


def _moved(e: Evidence, method: str) -> dict[str, object]:
    """How far training on t and on t~ moves the map to the half that decides on t~, and the test by it."""
    found: dict[str, object] = {}
    for name, trained, untrained in (("t", "digits", "digits_random"), ("t~", "halves", "random")):
        try:
            moved = mean_of(e, HALVES, "mass", method, trained, "primary")
            moved = moved - mean_of(e, HALVES, "mass", method, untrained, "primary")
        except NotTestable:
            continue
        found |= {f"{k}_moved_{name}": v for k, v in with_interval(moved).items()}
        found[f"test_moved_{name}"] = verdict(with_interval(moved.abs() - CLEARLY), "passes", "fails")
    return found


def _point(e: Evidence, quantity: str, method: str, model: str, against: str) -> float:
    try:
        return float(mean_of(e, HALVES, quantity, method, model, against).iloc[0])
    except NotTestable:
        return float("nan")


def verdict(interval: dict[str, float], yes: str, no: str) -> str:
    """The interval decides: above 0, not above it, or around it."""
    return yes if interval["ci_low"] > ROUNDING else no if interval["ci_high"] <= ROUNDING else "uncertain"


def sensitivity_table(e: Evidence, measure: str = "spearman") -> pd.DataFrame:
    """Per method and test: how alike the maps of the trained and the re-initialised model are, and what follows.

    weights: all layers drawn anew, sensitive below 0.7; cascading_p: the last p% of the layers; independent_p: the
    layer at p% of the way from the output; task: does training move the map to the object that decides?
    """
    columns = ["method", "test", "value", "ci_low", "ci_high", "margin", "margin_low", "margin_high", "verdict"]
    rows = []
    for method in methods_of(e, SANITY):
        margins = {}
        for test in ("random", *(f"{kind}_{p}" for kind in ("cascading", "independent") for p in (25, 50, 75, 100))):
            try:
                alike = mean_of(e, SANITY, measure, method, "trained", test)
            except NotTestable:
                continue
            margins["weights" if test == "random" else test] = (alike, ALIKE - alike)
        try:
            trained, random = (mean_of(e, SANITY, "mass", method, m, "primary") for m in ("trained", "random"))
            margins["task"] = (trained, trained - random)
        except NotTestable:
            pass
        for test, (value, margin) in margins.items():
            if np.isnan(margin.iloc[0]):
                continue
            found = with_interval(margin)
            row = {"method": method, "test": test, **with_interval(value), "margin": found["value"]}
            row |= {"margin_low": found["ci_low"], "margin_high": found["ci_high"]}
            rows.append(row | {"verdict": verdict(found, "sensitive", "insensitive")})
    return pd.DataFrame(rows, columns=columns)


def write_tables(run: Path, draws: int = DRAWS) -> list[Path]:
    """All tables, as tables/yona_*.csv of the run, with a column for the seed."""
    scores = read_scores(run)
    made: dict[str, list[pd.DataFrame]] = {}
    for seed, e in evidence(scores, draws).items():
        means = means_table(scores, e, seed)
        tables = {
            "similarity": means[means["quantity"].isin([*SIMILARITIES, "relative_change"])],
            "mass": mass_table(means),
            "causal": means[means["quantity"].str.startswith("lambda")],
            "effects": effects_table(e),
            "argument": argument_table(e),
            "sensitivity": sensitivity_table(e),
        }
        for name, table in tables.items():
            if len(table):
                made.setdefault(name, []).append(table.assign(seed=seed))
    return [
        save_table(pd.concat(parts, ignore_index=True), run / "tables" / f"yona_{name}") for name, parts in made.items()
    ]
