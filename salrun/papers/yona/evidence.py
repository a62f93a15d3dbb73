"""What a run says in the terms of Yona & Greenfeld, "Revisiting Sanity Checks for Saliency Maps" (2021).

A method passes the original test (Adebayo et al. 2018) if its maps change when the trained network is exchanged for an
untrained one, M'. The paper's point: on a task t whose evidence is all that there is to see (digits), they need not
change; on a task t~ where only a part decides they must. So the same methods are tested on both.

Names: VBP and GBP are vanilla and guided backpropagation. A mean over images (and over untrained copies) is addressed
by experiment, quantity (a similarity of maps between two models, `mass` on an object, its `chance` level, `lambda`),
method, model, and what the model is held against: another model, or an object. Which experiment a run is, and what its
models are called, is decided by their facts (tables/cells.csv), not by their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from salrun.errors import SalrunError
from salrun.papers.claims import Basis, Evidence
from salrun.papers.evidence import means, of_paper, pick, tidy
from salrun.papers.verdicts import WRITTEN_ON
from salrun.results.maps import OWN, KeptMaps
from salrun.results.run import Run
from salrun.results.tables import coded
from salrun.stats.bootstrap import DRAWS
from salrun.stats.conjunction import ENOUGH

HALVES, SHAPES, PAIRS = "yona_mnist_halves", "yona_mnist_shapes", "yona_tinyimagenet_pairs"
SANITY = "yona_sanity_checks"
TRAINED = {
    HALVES: "halves",
    SHAPES: "shapes",
    PAIRS: "finetuned",
    SANITY: "trained",
}  # what a run's own model is called
DATA = {"mnist_halves": HALVES, "mnist_shapes": SHAPES}
DATA |= dict.fromkeys(("tinyimagenet_pairs", "cifar10_pairs", "imagenet_pairs"), PAIRS)
METRICS = ("map_similarity", "mass_share", "causal_quantity")
VBP, GBP = "gradient", "guided_backprop"
LABELS = {VBP: "VBP", GBP: "GBP"}
PRIMARY, SMALLER = "primary", "smaller half"  # objects: the half that decides; of a pair, the half with less mass
SIMILARITIES = ("spearman", "cosine", "ssim", "hog")
LEVELS = ["experiment", "quantity", "method", "model", "against"]
NAMED = ["cell", "metric", "mode", "score"]  # what tells the quantities of a run's table apart
FACTS = ["dataset.kind", *(f"model.{f}" for f in ("randomised", "top", "share", "copy", "starts_from", "task.kind"))]
EXPLAINED = "dataset.explained_seed"
DRAWS_OF_MANY = 200  # where the models' spread decides, and that over images is its lower bound


@dataclass(frozen=True)
class YonaEvidence:
    """By seed the table `mean` with draws; what single images and models say."""

    draws: dict[int, Evidence]
    values: pd.DataFrame  # one row per image and quantity: seed, LEVELS, copy, image_id, value
    models: pd.DataFrame  # by cell: `experiment` (the paper's), `called` (the run's), seed, role and what `named` gives
    maps: dict[str, KeptMaps] = field(default_factory=dict)  # by experiment

    def means(self, seed: int, draws: int = DRAWS) -> pd.DataFrame:
        """Every mean with its interval over images, and the lowest and highest of the untrained copies' means."""
        rows = self.values[self.values["seed"] == seed]
        by_copy = (
            rows.groupby([*LEVELS, "copy"], observed=True)["value"]
            .mean()
            .groupby(LEVELS, observed=True)
            .agg(["count", "min", "max"])
        )
        by_copy.columns = pd.Index(["copies", "lowest_copy", "highest_copy"])
        images = rows.dropna(subset="value").groupby(LEVELS, observed=True)["image_id"].nunique().rename("images")
        by_copy.index, images.index = as_text(by_copy.index), as_text(images.index)
        table = tidy(self.draws[seed]["mean"].head(1 + draws)).merge(by_copy, on=LEVELS)
        return table.merge(images, on=LEVELS, how="left").fillna({"images": 0})

    def called(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table with the names that the run has for its experiments."""
        names = dict(zip(self.models["experiment"], self.models["called"], strict=True))
        return table.assign(experiment=table["experiment"].map(names))


def read(run: Run, draws: int = DRAWS) -> YonaEvidence:
    """The evidence of a run, or of runs of several experiments that were collected."""
    models = named_models(of_paper(run, "yona"))
    values = coded(with_smaller_half(unseen(quantities(run.scores, run.metrics, models), models)))
    few = min(draws, DRAWS_OF_MANY) if values["seed"].nunique() >= ENOUGH else draws
    by_seed = {int(str(seed)): evidence_of(rows, models, few) for seed, rows in values.groupby("seed", sort=True)}
    maps: dict[str, KeptMaps] = {}
    for kept in sorted(run.maps, key=lambda kept: kept.facts["seed"]):
        if kept.cell() in models.index:
            maps.setdefault(models["experiment"][kept.cell()], kept)
    return YonaEvidence(by_seed, values, models, maps)


def evidence_of(rows: pd.DataFrame, models: pd.DataFrame, draws: int) -> Evidence:
    """The table `mean` of one seed, and what its experiments rest on."""
    models = models[models["seed"] == rows["seed"].iloc[0]]
    tables, bases = [], {}
    for experiment, part in rows.groupby("experiment", sort=True, observed=True):
        wide = part.groupby(["image_id", *LEVELS], observed=True)["value"].mean().unstack(LEVELS)
        wide.columns = as_text(wide.columns)
        tables.append(means(wide.sort_index(axis=1), draws))
        kind = models.loc[models["experiment"] == experiment, "dataset.kind"].iloc[0]
        other = experiment == PAIRS and kind != "tinyimagenet_pairs"
        bases[experiment] = Basis(len(wide), reading=f"pairs of {kind.removesuffix('_pairs')}" if other else "")
    explained = explained_seeds(models)
    own = sorted(set(explained.values()))
    images = own[0] if len(own) == 1 else tuple(own) or None
    fresh = explained.get(PAIRS, WRITTEN_ON) != WRITTEN_ON
    return Evidence({"mean": pd.concat(tables, axis=1)}, bases, images=images, fresh=fresh)


def as_text(levels: pd.Index) -> pd.MultiIndex:
    """The levels as words again, not as categories."""
    return pd.MultiIndex.from_frame(levels.to_frame(index=False).astype(str))


def explained_seeds(models: pd.DataFrame) -> dict[str, int]:
    """By experiment of one seed: the seed that chose the explained images, where the run says so."""
    known = models[["experiment", EXPLAINED]].dropna()
    return dict(zip(known["experiment"], known[EXPLAINED].astype(int), strict=True))


def unseen(values: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """Fresh replicates without the pairs that replicate 0, where it is there, explains too."""
    of_pairs = values["experiment"] == PAIRS
    seen = values.loc[of_pairs & (values["seed"] == WRITTEN_ON), "image_id"].unique()
    fresh = models.loc[(models["experiment"] == PAIRS) & (models[EXPLAINED].fillna(WRITTEN_ON) != WRITTEN_ON), "seed"]
    return values[~(of_pairs & values["seed"].isin(fresh) & values["image_id"].isin(seen))]


def with_smaller_half(values: pd.DataFrame) -> pd.DataFrame:
    """Beside the share of mass on the half of a pair that decides, that on the half with less: the halves make up 1."""
    shares = values[(values["experiment"] == PAIRS) & (values["quantity"] == "mass") & (values["against"] == PRIMARY)]
    smaller = shares["value"].where(shares["value"] < 0.5, 1 - shares["value"])
    return pd.concat([values, shares.assign(against=SMALLER, value=smaller)], ignore_index=True)


# -- models, by their facts --------------------------------------------------------------------------------------------


def named_models(cells: pd.DataFrame) -> pd.DataFrame:
    """The models by cell, as the paper calls them, and their experiments; one model and its others per experiment."""
    facts = cells.reindex(columns=["cell", "experiment", "dataset", "model", "seed", "role", EXPLAINED, *FACTS])
    facts = facts.rename(columns={"experiment": "called"}).set_index("cell")
    parts = []
    for _, part in facts.groupby(["called", "seed"]):
        experiment = experiment_of(part)
        names = [named(fact, TRAINED[experiment]) for fact in part.to_dict("records")]
        parts.append(part.assign(experiment=experiment).join(pd.DataFrame(names, index=part.index)))
    models = pd.concat(parts)
    _refuse_twins(models, ["role"], "one model and its others are expected")
    _refuse_twins(models, ["name", "copy"], "models with different facts are expected")
    return models


def _refuse_twins(models: pd.DataFrame, by: list[str], expected: str) -> None:
    for (experiment, seed, *_), part in models.groupby(["experiment", "seed", *by]):
        if len(part) > 1:
            raise SalrunError(f"{experiment} seed {seed}: {expected}, got {', '.join(part['model'])}")


def experiment_of(facts: pd.DataFrame) -> str:
    """Which of the paper's experiments the models of a run make.

    The paper's have networks that were never trained; other data, or none but a trained network with layers drawn anew,
    make a battery of sanity checks.
    """
    modes = set(facts["model.randomised"].dropna())
    return SANITY if modes and "untrained" not in modes else DATA.get(facts["dataset.kind"].iloc[0], SANITY)


def named(fact: Mapping[str, Any], trained: str) -> dict[str, Any]:
    """What the paper calls a model: `name`, of which `task` ("" its own) and `drawn` (what is random, "" nothing) are
    parts; `copy` of several alike; `step`: how much of it was drawn anew, in `unit`."""
    mode, top, share, copy, start, task = (None if pd.isna(fact[f]) else fact[f] for f in FACTS[1:])
    step, unit = (100.0, "%") if mode == "all" else (top, "layers") if share is None else (round(100 * share, 6), "%")
    drawn = {None: "", "untrained": "pretrained" if start else "random", "all": "random"}.get(mode)
    if drawn is None:
        drawn = (
            f"{mode}_{step:g}" if unit == "%" else f"top_{step:g}" if mode == "cascading" else f"{mode}_top_{step:g}"
        )
    of_task = "" if task is None else "digits"
    name = "_".join(filter(None, [of_task, drawn])) or (trained if fact["role"] == OWN else fact["role"])
    copy = "" if copy is None else f"{copy:g}"
    return {"name": name, "task": of_task, "drawn": drawn, "copy": copy, "mode": mode or "", "step": step, "unit": unit}


# -- quantities --------------------------------------------------------------------------------------------------------


def quantities(scores: pd.DataFrame, metrics: Sequence[Mapping[str, Any]], models: pd.DataFrame) -> pd.DataFrame:
    """One row per image and quantity: seed, LEVELS, copy (of untrained models), image_id, value."""
    rows = coded(scores[scores["metric"].isin(METRICS) & scores["cell"].isin(models.index)])
    if rows.empty:
        raise SalrunError(f"these scores hold none of {', '.join(TRAINED)} with map_similarity or mass_share")
    kinds = rows[NAMED].drop_duplicates(ignore_index=True)
    options: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for asked in metrics:
        options.setdefault((asked["metric"], asked["mode"]), []).append(asked["options"])
    by_cell = models.to_dict("index")
    by_role = {(model["experiment"], model["seed"], model["role"]): model for model in by_cell.values()}
    meanings = [meaning(kind, options, by_cell[kind["cell"]], by_role) for kind in kinds.to_dict("records")]
    kinds[["experiment", "quantity", "model", "against", "copy"]] = meanings
    table = rows[[*NAMED, "seed", "method", "image_id", "value"]].merge(kinds, on=NAMED)
    identity = ["seed", *LEVELS, "copy", "image_id"]
    if table.duplicated(identity).any():
        raise SalrunError("a metric has two scores for one image and method: compare one view at a time")
    return table[[*identity, "value"]]


def meaning(
    kind: Mapping[str, Any],
    options: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
    model: Mapping[Any, Any],
    others: Mapping[tuple[Any, ...], Mapping[Any, Any]],
) -> tuple[str, ...]:
    """Experiment, quantity, model, what that is held against, and which copies they are, of a kind of score (NAMED).

    `options` by metric and mode; `others` by experiment, seed and role.
    """
    metric, mode, score = kind["metric"], kind["mode"], kind["score"]
    meanings = set()
    for asked in options.get((metric, mode), ()):
        if metric == "mass_share":
            meanings.add((score or "mass", model["name"], asked["role"], model["copy"]))
            continue
        role = asked["other"] if metric == "map_similarity" else next(iter(asked["untrained"].values()))
        other = others.get((model["experiment"], model["seed"], role))
        if other is None:  # these options are of another of the runs that were collected
            continue
        if metric == "map_similarity":
            same_task = other["drawn"] and other["task"] == model["task"]
            compared = (score, model["name"], other["drawn"] if same_task else other["name"])
        else:
            change = "nothing" if model["drawn"] else "pretrained" if other["drawn"] == "pretrained" else "trained"
            compared = (f"lambda_{score}", "all tasks", change)
        meanings.add((*compared, f"{model['copy']}-{other['copy']}"))
    if len(meanings) != 1:
        fault = "differs between the runs" if meanings else "is not said"
        raise SalrunError(f"what {metric} {mode} compares {fault}: collect runs of one configuration")
    return (model["experiment"], *meanings.pop())


def mean_of(e: Evidence, experiment: str, quantity: str, method: str, model: str, against: str) -> pd.Series:
    """One mean and its draws."""
    levels = {"experiment": experiment, "quantity": quantity, "method": method, "model": model, "against": against}
    return pick(e["mean"], **levels).iloc[:, 0]


def methods_of(e: Evidence, experiment: str | None = None) -> list[str]:
    """The methods that were run, the paper's first."""
    columns = e["mean"].columns.to_frame(index=False)
    names = (columns if experiment is None else columns[columns["experiment"] == experiment])["method"].unique()
    return [m for m in LABELS if m in names] + sorted(m for m in names if m not in LABELS)
