"""Tables of Tomsett et al., "Sanity Checks for Saliency Metrics" (AAAI 2020), from the scores of a run.

The paper's names: F is faithfulness, MoRF and LeRF the area over the perturbation curve (AOPC) with the most or least
relevant pixels perturbed first, L the number of perturbed pixels; "edge" is the Sobel filter, a control that knows
nothing of the model, so reliabilities are given with and without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from salrun.errors import SalrunError
from salrun.papers.claims import Evidence, estimate_and_draws, pick
from salrun.papers.style import save_table
from salrun.stats.bootstrap import DRAWS, mean_draws, percentile_error, percentile_interval
from salrun.stats.reliability import (
    alpha,
    alpha_draws,
    inter_method,
    mean_pairwise,
    rankings,
    spearman_draws,
)
from salrun.tables import read_scores

METRICS = {"faithfulness": "F", "aopc_morf": "MoRF", "aopc_lerf": "LeRF"}
PERTURBATIONS = ("mean", "random_rgb")
METHODS = ("sensitivity", "input_x_gradient", "deep_shap", "deep_taylor", "edge")
LABELS = {
    "sensitivity": "Sensitivity",
    "input_x_gradient": "Gradient x input",
    "deep_shap": "SHAP",
    "deep_taylor": "Deep Taylor",
    "edge": "Edge detection",
}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LOW_CONFIDENCE = 0.8
LONGEST = 100  # L of Table 2 and of every comparison of means
VARIANT = r"^(?P<perturbation>mean|random_rgb)(?:_L(?P<steps>\d+))?(?P<kind>_random|_orderings)?(?::|$)"
CORRELATION_DRAWS = 2_000


class Key(NamedTuple):
    """One metric with one perturbation: F has no L (0)."""

    metric: str
    steps: int
    perturbation: str


F = {p: Key("F", 0, p) for p in PERTURBATIONS}
MORF = {p: Key("MoRF", LONGEST, p) for p in PERTURBATIONS}
LERF = {p: Key("LeRF", LONGEST, p) for p in PERTURBATIONS}
PAIRS = {  # Table 2, and +1 where the two metrics point the same way
    "F vs MoRF": (F["mean"], MORF["mean"], 1),
    "F vs LeRF": (F["mean"], LERF["mean"], -1),
    "MoRF vs LeRF": (MORF["mean"], LERF["mean"], -1),
    "MoRF random vs MoRF mean": (MORF["random_rgb"], MORF["mean"], 1),
}


@dataclass(frozen=True)
class Cell:
    """The scores of one model: images x methods per key, and what is known of each image."""

    seed: int
    scores: dict[Key, pd.DataFrame]
    baseline: dict[Key, pd.Series] = field(default_factory=dict)  # AOPC of random pixel orders
    group: pd.Series = field(default_factory=lambda: pd.Series(dtype=object))
    confidence: pd.Series | None = None

    @property
    def images(self) -> int:
        return len(self.group)

    def cases(self) -> list[tuple[Key, str]]:
        """Every key, with and without edge detection where it has two methods to rank."""
        found = []
        for key, scores in sorted(self.scores.items()):
            plain = scores.columns.drop("edge", errors="ignore")
            found += [(key, "with")] if "edge" in scores and len(plain) else []
            found += [(key, "without")] if len(plain) > 1 else []
        return found

    def ranks(self, key: Key, edge: str) -> np.ndarray:
        """Rank of each method on each image, 1 = best."""
        scores = self.kept(key, edge)
        return rankings(-scores if key.metric == "LeRF" else scores)

    def kept(self, key: Key, edge: str) -> pd.DataFrame:
        """Images x methods, with or without edge detection."""
        scores = self.scores[key]
        return scores.drop(columns="edge", errors="ignore") if edge == "without" else scores

    def excess(self, key: Key) -> pd.DataFrame | None:
        """AOPC minus that of random orders, image by image."""
        known = self.baseline.get(key)
        return None if known is None else self.scores[key].sub(known, axis=0)

    def subsets(self) -> dict[str, pd.Series]:
        """Images by name: all, those the model is unsure of, each class."""
        everything = pd.Series(True, index=self.group.index)
        chosen = {"all": everything}
        if self.confidence is not None:
            chosen["low confidence"] = self.confidence.reindex(everything.index) <= LOW_CONFIDENCE
        return chosen | {name: self.group == name for name in sorted(self.group.unique())}


def cells(scores: pd.DataFrame) -> list[Cell]:
    """One cell per seed; where several experiments were collected, those of this paper."""
    ours = scores["experiment"].astype(str).str.startswith("tomsett")
    scores = (scores[ours] if ours.any() else scores).reset_index(drop=True)
    models = scores[["dataset", "model"]].drop_duplicates()
    if len(models) != 1:
        named = ", ".join(f"{d}/{m}" for d, m in models.itertuples(index=False))
        raise SalrunError(f"these tables are about one model on one data set, got {named or 'no scores'}")
    return [_cell(int(str(seed)), part) for seed, part in scores.groupby("seed", sort=True)]


def parse_variants(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose variant is one of the paper's, with its perturbation, steps (L) and kind as columns."""
    variants = pd.Series(rows["variant"].astype(str).unique())
    parsed = variants.str.extract(VARIANT).set_index(variants.rename("variant")).dropna(subset="perturbation")
    return rows.astype({"variant": str}).join(parsed, on="variant", how="inner").reset_index(drop=True)


def _cell(seed: int, scores: pd.DataFrame) -> Cell:
    about = scores.drop_duplicates("image_id").set_index("image_id").sort_index()
    names = {str(i): name for i, name in enumerate(CLASSES)} if about["dataset"].iloc[0] == "cifar10" else {}
    group = about["group"].astype(str).map(lambda g: names.get(g, g))
    sure = scores[scores["metric"] == "confidence"].drop_duplicates("image_id").set_index("image_id")["value"]
    rows = parse_variants(scores[scores["metric"].isin(METRICS)])
    rows = rows.assign(metric=rows["metric"].astype(str).map(METRICS), steps=rows["steps"].fillna(0).astype(int))
    plain = rows[rows["kind"].isna()]
    if plain.duplicated(["image_id", "method", *Key._fields]).any():
        raise SalrunError("a metric has two scores for one image and method: compare one view at a time")
    scored = _by_image(plain, [*Key._fields, "method"], group.index)
    random = _by_image(rows[rows["kind"] == "_random"], [*Key._fields], group.index)
    values: dict[Key, dict[str, pd.Series]] = {}
    ordered: list[Any] = sorted(scored.columns, key=lambda cell: _place(cell[-1]))
    for *key, method in ordered:
        values.setdefault(Key(*key), {})[method] = scored[(*key, method)]
    baseline = {Key(*key): random[key] for key in random.columns}
    frames = {key: pd.DataFrame(columns) for key, columns in values.items()}
    return Cell(seed, frames, baseline, group, sure if len(sure) else None)


def _by_image(rows: pd.DataFrame, columns: list[str], images: pd.Index) -> pd.DataFrame:
    """Images x columns of the rows' values; what a method shares with all others is taken once."""
    once = rows.drop_duplicates(["image_id", *columns])
    return once.pivot(index="image_id", columns=columns, values="value").astype(np.float64).reindex(images)


def _place(method: str) -> tuple[int, str]:
    """The paper's methods in its order, then others by name."""
    return (METHODS.index(method) if method in METHODS else len(METHODS), method)


def published(name: str) -> pd.DataFrame:
    """A published table as data: alpha, consistency, inter_method."""
    with resources.files("salrun.papers.tomsett").joinpath(f"published_{name}.csv").open() as file:
        return pd.read_csv(file)


def published_evidence() -> Evidence:
    """The paper's Tables 1 and 2 in the form that the claims read."""
    return Evidence({name: _as_evidence(published(name)) for name in ("alpha", "consistency")})


def _as_evidence(table: pd.DataFrame) -> pd.DataFrame:
    value = "alpha" if "alpha" in table else "spearman"
    keys = [c for c in table.columns if c not in (value, "ci_low", "ci_high")]
    return table.set_index(keys)[value].to_frame().T.reset_index(drop=True)


def evidence(cell: Cell, draws: int = DRAWS, seed: int = 0) -> Evidence:
    """All that the claims read, with bootstrap draws over the images."""
    tables = {"alpha": alpha_table(cell, draws, seed), **mean_tables(cell, draws, seed)}
    consistency = consistency_table(cell, min(draws, CORRELATION_DRAWS), seed)
    if not consistency.empty:
        tables["consistency"] = consistency
    return Evidence({name: table for name, table in tables.items() if table.shape[1]}, cell.images)


def alpha_table(cell: Cell, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """Krippendorff's alpha by metric, steps, perturbation and edge; every resample serves all of them."""
    cases = cell.cases()
    if not cases:  # one method alone has no ranks
        return pd.DataFrame()
    columns = pd.MultiIndex.from_tuples(
        [(*key, edge) for key, edge in cases], names=["metric", "steps", "perturbation", "edge"]
    )
    ranks = [cell.ranks(key, edge) for key, edge in cases]
    return estimate_and_draws([alpha(r) for r in ranks], alpha_draws(ranks, _rng(seed), draws), columns)


def consistency_table(cell: Cell, draws: int = CORRELATION_DRAWS, seed: int = 0) -> pd.DataFrame:
    """Spearman over images between two metrics (Table 2), by pair and method; raw signs, as printed."""
    keys, first, second = [], [], []
    for pair, (a, b, _) in PAIRS.items():
        if a not in cell.scores or b not in cell.scores:
            continue
        for method in cell.scores[a].columns.intersection(cell.scores[b].columns, sort=False):
            keys.append((pair, method))
            first.append(cell.scores[a][method])
            second.append(cell.scores[b][method])
    if not keys:
        return pd.DataFrame()
    columns = pd.MultiIndex.from_tuples(keys, names=["pair", "method"])
    estimate = [a.corr(b, method="spearman", min_periods=3) for a, b in zip(first, second, strict=True)]
    sampled = spearman_draws(np.stack(first, axis=1), np.stack(second, axis=1), _rng(seed), draws)
    return estimate_and_draws(estimate, sampled, columns)


def mean_tables(cell: Cell, draws: int = DRAWS, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Means over images by subset, metric, perturbation and method, at the longest L.

    `mean`: the scores; `excess`: AOPC minus the random orders'; `std`: the standard deviation over images.
    """
    keys: list[tuple[str, ...]] = []
    blocks = []
    for key, scores in cell.scores.items():
        if key.steps not in (0, LONGEST):
            continue
        excess = cell.excess(key)
        kinds = {"mean": scores, "square": scores**2} | ({} if excess is None else {"excess": excess})
        for kind, frame in kinds.items():
            for subset, chosen in cell.subsets().items():
                blocks.append(np.where(chosen.to_numpy()[:, None], frame.to_numpy(), np.nan))
                keys += [(kind, subset, key.metric, key.perturbation, str(m)) for m in frame.columns]
    if not keys:
        return {}
    columns = pd.MultiIndex.from_tuples(keys, names=["kind", "subset", "metric", "perturbation", "method"])
    masked = np.concatenate(blocks, axis=1)
    estimate = pd.DataFrame(masked).mean().to_list()
    table = estimate_and_draws(estimate, mean_draws(masked, _rng(seed), draws), columns)
    present = [k for k in ("mean", "excess") if k in table.columns.get_level_values("kind")]
    variance = pick(table, kind="square", subset="all") - pick(table, kind="mean", subset="all") ** 2
    return {k: pick(table, kind=k) for k in present} | {"std": variance.clip(lower=0.0) ** 0.5}


def table_1(cell: Cell, draws: int = DRAWS, seed: int = 0, level: float = 0.999) -> pd.DataFrame:
    """Table 1: Krippendorff's alpha with its 99.9% interval, beside the published values."""
    table = alpha_table(cell, draws, seed)
    if table.empty:
        return published("alpha").head(0)
    sampled = table.iloc[1:].to_numpy()
    low, high = percentile_interval(sampled, level)
    measured = table.columns.to_frame(index=False).assign(
        alpha=table.iloc[0].to_numpy(),
        ci_low=low,
        ci_high=high,
        monte_carlo_error=percentile_error(sampled, level),
        images=cell.images,
    )
    known = published("alpha").rename(
        columns={"alpha": "published", "ci_low": "published_low", "ci_high": "published_high"}
    )
    return measured.merge(known, how="left", on=["metric", "steps", "perturbation", "edge"])


def table_2(cell: Cell, draws: int = CORRELATION_DRAWS, seed: int = 0) -> pd.DataFrame:
    """Table 2: Spearman between metrics for each method, raw (as printed) and aligned (positive = agreement)."""
    table = consistency_table(cell, draws, seed)
    if table.empty:
        return pd.DataFrame(columns=["pair", "method", "spearman", "ci_low", "ci_high", "aligned", "published"])
    low, high = percentile_interval(table.iloc[1:])
    measured = table.columns.to_frame(index=False).assign(spearman=table.iloc[0].to_numpy(), ci_low=low, ci_high=high)
    measured["aligned"] = measured["spearman"] * measured["pair"].map({p: sign for p, (_, _, sign) in PAIRS.items()})
    known = published("consistency").rename(columns={"spearman": "published"})
    return measured.merge(known, how="left", on=["pair", "method"])


def inter_method_table(cell: Cell) -> pd.DataFrame:
    """Mean pairwise Spearman between methods' scores over images: all four cells of every metric."""
    rows = []
    for key, edge in cell.cases():
        matrix = inter_method(cell.kept(key, edge))
        pairs = matrix.to_numpy()[np.triu_indices(len(matrix), k=1)]
        rows.append((*key, edge, mean_pairwise(matrix), np.nanmin(pairs), np.nanmax(pairs)))
    columns = ["metric", "steps", "perturbation", "edge", "spearman", "lowest_pair", "highest_pair"]
    known = published("inter_method").rename(columns={"spearman": "published"})
    return pd.DataFrame(rows, columns=columns).merge(known, how="left", on=columns[:4])


def subset_table(cell: Cell, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """Means of every subset (all images, low confidence, each class) with 95% intervals, at the longest L.

    `excess` is AOPC minus that of random pixel orders.
    """
    parts = []
    for kind, table in mean_tables(cell, draws, seed).items():
        if kind == "std":
            continue
        low, high = percentile_interval(table.iloc[1:])
        part = table.columns.to_frame(index=False).assign(
            quantity=kind, value=table.iloc[0].to_numpy(), ci_low=low, ci_high=high
        )
        parts.append(part)
    if not parts:
        return pd.DataFrame()
    sizes = {name: int(chosen.sum()) for name, chosen in cell.subsets().items()}
    joined = pd.concat(parts, ignore_index=True)
    return joined.assign(images=joined["subset"].map(sizes))


def subset_alpha_table(cell: Cell) -> pd.DataFrame:
    """Krippendorff's alpha within every subset of the images."""
    rows = []
    for key, edge in cell.cases():
        ranks = cell.ranks(key, edge)
        for subset, chosen in cell.subsets().items():
            rows.append((subset, int(chosen.sum()), *key, edge, alpha(ranks[chosen.to_numpy()])))
    return pd.DataFrame(rows, columns=["subset", "images", "metric", "steps", "perturbation", "edge", "alpha"])


def write_tables(run: Path, draws: int = DRAWS) -> list[Path]:
    """All tables of the paper, as tables/tomsett_*.csv of the run, with a column for the seed."""
    known = cells(read_scores(run))
    makers = {
        "table1": lambda c: table_1(c, draws),
        "table2": lambda c: table_2(c, min(draws, CORRELATION_DRAWS)),
        "inter_method": inter_method_table,
        "subsets": lambda c: subset_table(c, draws),
        "subset_alpha": subset_alpha_table,
    }
    paths = []
    for name, make in makers.items():
        tables = [make(c).assign(seed=c.seed) for c in known]
        paths.append(save_table(pd.concat(tables, ignore_index=True), run / "tables" / f"tomsett_{name}"))
    return paths


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
