"""What a run says in the terms of Tomsett et al., "Sanity Checks for Saliency Metrics" (AAAI 2020).

The paper's names: F is faithfulness, MoRF and LeRF the area over the perturbation curve (AOPC) with the most or least
relevant pixels perturbed first, L the number of perturbed pixels; "edge" is the Sobel filter, a control that knows
nothing of the model, so reliabilities are given with and without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from salrun.papers.claims import Basis, Evidence
from salrun.papers.evidence import (
    HALF_A_HUNDREDTH,
    by_image,
    estimate_and_draws,
    means,
    of_paper,
    one_model,
    pick,
    printed,
    published,
)
from salrun.results.maps import KeptMaps
from salrun.results.run import Run
from salrun.stats.bootstrap import DRAWS
from salrun.stats.conjunction import ENOUGH
from salrun.stats.reliability import alpha, alpha_draws, inter_method, mean_pairwise, rankings, spearman_draws

METRICS = {"faithfulness": "F", "aopc_morf": "MoRF", "aopc_lerf": "LeRF"}
PERTURBATIONS = ("mean", "random_rgb")
LABELS = {
    "sensitivity": "Sensitivity",
    "input_x_gradient": "Gradient x input",
    "deep_shap": "SHAP",
    "deep_taylor": "Deep Taylor",
    "edge": "Edge detection",
}
METHODS = tuple(LABELS)
ENDINGS = {"map": "", "random": "_random", "orderings": "_orderings"}  # what an AOPC is of, and how its name ends
LOW_CONFIDENCE = 0.8
LONGEST = 100  # L of Table 2 and of every comparison of means
CORRELATION_DRAWS = 2_000
PAIRWISE_DRAWS = 1_000  # of the means over all pairs of methods
DRAWS_OF_MANY = 200  # where the models' spread decides, and that over images is its lower bound
FROG = "frog"  # the class that the paper holds against the others
NAMED = ["metric", "mode", "score"]  # what a row of a run's table is called by
KEY = ["measure", "steps", "perturbation"]  # the columns of a Key


class Key(NamedTuple):
    """One metric with one perturbation: F has no L (0)."""

    metric: str
    steps: int
    perturbation: str


F, MORF, LERF = (
    {p: Key(metric, steps, p) for p in PERTURBATIONS}
    for metric, steps in (("F", 0), ("MoRF", LONGEST), ("LeRF", LONGEST))
)
PAIRS = {  # Table 2, and +1 where the two metrics point the same way
    "F vs MoRF": (F["mean"], MORF["mean"], 1),
    "F vs LeRF": (F["mean"], LERF["mean"], -1),
    "MoRF vs LeRF": (MORF["mean"], LERF["mean"], -1),
    "MoRF random vs MoRF mean": (MORF["random_rgb"], MORF["mean"], 1),
}


@dataclass(frozen=True)
class ImageScores:
    """The scores of one model: images x methods per key, and what is known of each image."""

    scores: dict[Key, pd.DataFrame]
    baseline: dict[Key, pd.Series]  # AOPC of random pixel orders
    group: pd.Series
    confidence: pd.Series

    @property
    def images(self) -> int:
        return len(self.group)

    def cases(self) -> list[tuple[Key, str]]:
        """Every key, with and without edge detection where it has two methods to rank."""
        cases = []
        for key, scores in sorted(self.scores.items()):
            plain = scores.columns.drop("edge", errors="ignore")
            cases += [(key, "with")] if "edge" in scores and len(plain) else []
            cases += [(key, "without")] if len(plain) > 1 else []
        return cases

    def of_case(self, key: Key, edge: str) -> pd.DataFrame:
        """Images x methods, with or without edge detection."""
        scores = self.scores[key]
        return scores.drop(columns="edge", errors="ignore") if edge == "without" else scores

    def ranks(self, key: Key, edge: str) -> np.ndarray:
        """Rank of each method on each image, 1 = best."""
        scores = self.of_case(key, edge)
        return rankings(-scores if key.metric == "LeRF" else scores)

    def subsets(self) -> dict[str, pd.Series]:
        """Images by name: all, those the model is unsure of, each class, all but the frogs."""
        chosen = {"all": pd.Series(True, index=self.group.index), "low confidence": self.confidence <= LOW_CONFIDENCE}
        chosen |= {name: self.group == name for name in sorted(self.group.unique())}
        return chosen | ({f"not {FROG}": ~chosen[FROG]} if FROG in chosen else {})

    @property
    def reading(self) -> str:
        """The methods that reliabilities are over, where they are not the paper's five."""
        found = {method for frame in self.scores.values() for method in frame}
        return "" if found == set(METHODS) else f"over the methods {', '.join(sorted(found, key=_place))}"


@dataclass(frozen=True)
class TomsettEvidence:
    """By seed: scores of single images, and tables with draws (see `statistics`)."""

    scores: dict[int, ImageScores]
    draws: dict[int, Evidence]
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)  # of the first seed, with KEY and kind
    maps: KeptMaps | None = None  # of the first seed


def read(run: Run, draws: int = DRAWS) -> TomsettEvidence:
    """The evidence of a run about one model, of one or more seeds."""
    cells = of_paper(run, "tomsett")
    cells = cells[cells["cell"].isin(run.scores["cell"].unique())]
    one_model(cells)
    names = score_names(run.metrics)
    rows = run.scores.join(names, on=NAMED, how="inner")
    by_seed = {
        int(seed): image_scores(rows[rows["cell"].isin(of_seed)], run.images[run.images["cell"].isin(of_seed)])
        for seed, of_seed in cells.groupby("seed")["cell"]
    }
    first = cells.loc[cells["seed"] == min(by_seed), "cell"]
    curves = run.curves[run.curves["cell"].isin(first)].join(names, on=NAMED, how="inner")
    maps = next((maps for maps in run.maps if maps.cell() in set(first)), None)
    images = explained_seeds(cells)
    drawn = {seed: statistics(s, draws, len(by_seed), images.get(seed)) for seed, s in by_seed.items()}
    return TomsettEvidence(by_seed, drawn, curves, maps)


def explained_seeds(cells: pd.DataFrame) -> dict[int, int]:
    """By seed: the one that chose the explained images, where the run says so."""
    known = cells.reindex(columns=["seed", "dataset.explained_seed"]).dropna().astype(int)
    return dict(known.itertuples(index=False, name=None))


def score_names(metrics: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """What every name of a score stands for, from the options of a run's metrics: by NAMED, KEY and kind."""
    rows: list[tuple] = []
    for entry in metrics:
        metric, mode, options = entry["metric"], entry["mode"], entry["options"]
        if metric not in METRICS or mode:
            continue
        for perturbation in options["perturbations"]:
            if METRICS[metric] == "F":
                rows.append((metric, mode, perturbation, *F[perturbation], "map"))
                continue
            for steps, (kind, ending) in product(options["levels"], ENDINGS.items()):
                score = f"{perturbation}_L{steps}{ending}"
                rows.append((metric, mode, score, METRICS[metric], steps, perturbation, kind))
    return pd.DataFrame(rows, columns=[*NAMED, *KEY, "kind"]).drop_duplicates().set_index(NAMED)


def image_scores(rows: pd.DataFrame, images: pd.DataFrame) -> ImageScores:
    """The scores of one model, from its rows with the columns of `score_names`."""
    about = images.drop_duplicates("image_id").set_index("image_id").sort_index()
    maps, random = (rows[rows["kind"] == kind] for kind in ("map", "random"))
    scored = by_image(maps, [*KEY, "method"]).reindex(about.index)
    # All methods share the random orders.
    shared = by_image(random.drop_duplicates(["image_id", *KEY]), KEY).reindex(about.index)
    columns: dict[Key, dict[str, pd.Series]] = {}
    for *key, method in sorted(scored.columns, key=lambda column: _place(column[-1])):
        columns.setdefault(Key(*key), {})[method] = scored[(*key, method)]
    frames = {key: pd.DataFrame(of_methods) for key, of_methods in columns.items()}
    return ImageScores(
        frames, {Key(*key): shared[key] for key in shared.columns}, about["group"].astype(str), about["confidence"]
    )


def _place(method: str) -> tuple[int, str]:
    """The paper's methods in its order, then others by name."""
    return (METHODS.index(method) if method in METHODS else len(METHODS), method)


# -- statistics with draws ---------------------------------------------------------------------------------------------


def statistics(s: ImageScores, draws: int = DRAWS, seeds: int = 1, explained: int | None = None) -> Evidence:
    """All that tables and claims read of one of `seeds` models, with bootstrap draws over the images.

    `alpha` (Table 1) keeps all draws: its intervals are of 99.9%. `consistency` (Table 2) and `inter_method` are
    correlations over images; `mean`, `excess`, `std`: see `mean_tables`.
    """
    tables = {"alpha": alpha_table(s, draws)}
    draws = min(draws, DRAWS_OF_MANY) if seeds >= ENOUGH else draws
    tables |= mean_tables(s, draws)
    tables["consistency"] = consistency_table(s, min(draws, CORRELATION_DRAWS))
    tables["inter_method"] = pairwise_table(s, min(draws, PAIRWISE_DRAWS))
    bases: dict[Any, Basis] = {None: Basis(s.images)}
    bases |= {name: Basis(int(chosen.sum())) for name, chosen in s.subsets().items()}
    bases |= dict.fromkeys(("alpha", "inter_method"), Basis(s.images, reading=s.reading))
    return Evidence({name: t for name, t in tables.items() if t.shape[1]}, bases, images=explained)


def alpha_table(s: ImageScores, draws: int = DRAWS) -> pd.DataFrame:
    """Krippendorff's alpha by metric, steps, perturbation and edge; every resample serves all of them."""
    cases = s.cases()
    if not cases:  # one method alone has no ranks
        return pd.DataFrame()
    columns = pd.MultiIndex.from_tuples([(*key, edge) for key, edge in cases], names=[*Key._fields, "edge"])
    ranks = [s.ranks(key, edge) for key, edge in cases]
    return estimate_and_draws([alpha(r) for r in ranks], alpha_draws(ranks, np.random.default_rng(0), draws), columns)


def consistency_table(s: ImageScores, draws: int = CORRELATION_DRAWS) -> pd.DataFrame:
    """Spearman over images between two metrics (Table 2), by pair and method; raw signs, as printed."""
    both = {
        (pair, method): (s.scores[a][method], s.scores[b][method])
        for pair, (a, b, _) in PAIRS.items()
        if a in s.scores and b in s.scores
        for method in s.scores[a].columns.intersection(s.scores[b].columns, sort=False)
    }
    if not both:
        return pd.DataFrame()
    estimate = [a.corr(b, method="spearman", min_periods=3) for a, b in both.values()]
    first, second = (np.stack(series, axis=1) for series in zip(*both.values(), strict=True))
    sampled = spearman_draws(first, second, np.random.default_rng(0), draws)
    return estimate_and_draws(estimate, sampled, pd.MultiIndex.from_tuples(both, names=["pair", "method"]))


def pairwise_table(s: ImageScores, draws: int = PAIRWISE_DRAWS) -> pd.DataFrame:
    """Mean over pairs of methods of Spearman over images between their scores, at the longest L; as `alpha_table`.

    Every resample serves all cells, and is the one that alpha has: all differences are paired.
    """
    cases = [(key, edge) for key, edge in s.cases() if key.steps in (0, LONGEST)]
    if not cases:
        return pd.DataFrame()
    drawn: dict[tuple[Key, str], pd.Series] = {}
    for key in dict.fromkeys(key for key, _ in cases):
        pairs = list(combinations(s.scores[key], 2))
        first, second = (s.scores[key][list(side)] for side in zip(*pairs, strict=True))
        rho = pd.DataFrame(spearman_draws(first, second, np.random.default_rng(0), draws))
        plain = [k for k, pair in enumerate(pairs) if "edge" not in pair]
        drawn |= {(key, "with"): rho.mean(axis=1), (key, "without"): rho[plain].mean(axis=1)}
    estimate = [mean_pairwise(inter_method(s.of_case(*case))) for case in cases]
    columns = pd.MultiIndex.from_tuples([(*key, edge) for key, edge in cases], names=[*Key._fields, "edge"])
    return estimate_and_draws(estimate, np.stack([drawn[case] for case in cases], axis=1), columns)


def mean_tables(s: ImageScores, draws: int = DRAWS) -> dict[str, pd.DataFrame]:
    """Means over images by subset, metric, perturbation and method, at the longest L.

    `mean`: the scores; `excess`: AOPC minus the random orders'; `std`: the standard deviation over images.
    """
    blocks = {}
    for key, scores in s.scores.items():
        if key.steps not in (0, LONGEST):
            continue
        kinds = {"mean": scores, "square": scores**2}
        if key in s.baseline:
            kinds["excess"] = scores.sub(s.baseline[key], axis=0)
        for kind, frame in kinds.items():
            for subset, chosen in s.subsets().items():
                blocks[kind, subset, key.metric, key.perturbation] = frame.where(chosen, axis=0)
    if not blocks:
        return {}
    table = means(pd.concat(blocks, axis=1, names=["kind", "subset", "metric", "perturbation", "method"]), draws)
    there = [k for k in ("mean", "excess") if k in table.columns.get_level_values("kind")]
    variance = pick(table, kind="square", subset="all") - pick(table, kind="mean", subset="all") ** 2
    return {k: pick(table, kind=k) for k in there} | {"std": variance.clip(lower=0.0) ** 0.5}


def published_evidence() -> Evidence:
    """The paper's Tables 1 and 2, and the correlations between methods in its text, in the form that the claims read.

    Of the latter the text has the lowest (F, random), the highest (MoRF, mean) and the range of F without edge
    detection, .13 to .18: F has two cells there, so the mean perturbation's is .18.
    """
    case = [*Key._fields, "edge"]
    numbers = {
        "alpha": published("tomsett", "alpha").set_index(case)["alpha"],
        "consistency": published("tomsett", "consistency").set_index(["pair", "method"])["spearman"],
        "inter_method": published("tomsett", "inter_method").set_index(case)["spearman"],
    }
    return Evidence({name: printed(values, HALF_A_HUNDREDTH) for name, values in numbers.items()})
