"""`salrun reliability RUN...`: which metrics of a run can be trusted to rank methods? For any experiment and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from salrun.errors import SalrunError
from salrun.results.scored import Scored, Series, read_runs
from salrun.results.tables import write_csv
from salrun.stats.bootstrap import DRAWS, percentile_interval
from salrun.stats.ranks import Test, compare_methods, rank_stability, rank_table
from salrun.stats.reliability import (
    CELL,
    RULE,
    SERIES,
    Direction,
    agreement,
    aligned,
    alpha,
    alpha_draws,
    alpha_verdict,
    inter_method,
    internal_consistency,
    mean_pairwise,
    rankings,
    same_for_all,
)
from salrun.store.files import write_atomic

TRUTH = ("pafl", "piou", "pmafl", "pointing_game")  # metrics that know where the evidence is
LOW_CONFIDENCE = 0.8
LEVEL = 0.999


def reliability(
    scored: Scored,
    draws: int = DRAWS,
    seed: int = 0,
    test: Test = "wilcoxon",
    nan_to_zero: bool = False,
) -> dict[str, pd.DataFrame]:
    """Every statistic of a score table, by name of the table; controls are left out of all but alpha_with_controls:

    reliability   per metric, mode and score: Krippendorff's alpha with its 99.9% interval, mean pairwise Spearman, best
    groups        alpha and images within each group, and where the model is unsure (confidence <= 0.8)
    inter_method  Spearman over images between every two methods
    consistency   Spearman over images between every two metrics, raw and aligned, for each method
    comparisons   every two methods: paired difference, p, Holm's p
    ranks         methods by mean rank, with those they cannot be told apart from
    seeds         do seeds agree on the order? (two seeds or more)
    agreement     do the metrics rank as one that knows the ground truth does? (where the run has one)
    """
    images = {cell: part.set_index("image_id") for cell, part in scored.images.groupby(CELL, observed=True)}
    rows: dict[str, list[pd.DataFrame]] = {name: [] for name in _TABLES}
    cells: dict[tuple[object, ...], dict[Series, tuple[pd.DataFrame, Direction]]] = {}
    for keys, series, every, direction in scored.series(nan_to_zero):
        matrix = scored.own(every)
        if matrix.shape[1] < 2 or same_for_all(matrix):
            continue
        cell = tuple(keys[k] for k in CELL)
        cells.setdefault(cell, {})[series] = (matrix, direction)
        better = aligned(matrix, direction)
        rng = np.random.default_rng(seed)
        pairs = compare_methods(better, rng, test, draws=draws)
        order = rank_table(better, pairs, rng)
        subsets = _subsets(matrix.index, images.get(cell))
        made = _reliability(better, direction, order, rng, draws)
        made["alpha_with_controls"] = alpha(rankings(aligned(every, direction)))
        rows["reliability"].append(_tag(keys, made))
        rows["groups"].append(_tag(keys, _per_subset(better, subsets)))
        rows["inter_method"].append(_tag(keys, _pairs(inter_method(matrix))))
        rows["comparisons"].append(_tag(keys, pairs))
        rows["ranks"].append(_tag(keys, order))
    for cell, of_cell in cells.items():
        tag = dict(zip(CELL, cell, strict=True))
        rows["consistency"].append(_tag(tag, internal_consistency({k.title: v for k, v in of_cell.items()})))
        rows["agreement"].append(_tag(tag, _with_truth(of_cell)))
    rows["seeds"].append(_over_seeds(cells))
    filled = {name: [t for t in tables if len(t)] for name, tables in rows.items()}
    return {name: pd.concat(tables, ignore_index=True) for name, tables in filled.items() if tables}


_TABLES = ("reliability", "groups", "inter_method", "consistency", "comparisons", "ranks", "seeds", "agreement")


def reliability_report(
    run_dirs: Sequence[Path],
    out_dir: Path,
    draws: int = DRAWS,
    test: Test = "wilcoxon",
    nan_to_zero: bool = False,
) -> str:
    """Write every table of `reliability` as CSV into `out_dir` and say in words what they show."""
    scored = read_runs(run_dirs)
    tables = reliability(scored, draws, test=test, nan_to_zero=nan_to_zero)
    if "reliability" not in tables:
        raise SalrunError("no metric of these runs scores two methods or more, controls aside: nothing to compare")
    for name, table in tables.items():
        write_csv(Path(out_dir) / f"{name}.csv", table)
    text = summary(tables, scored.controls)
    write_atomic(Path(out_dir) / "reliability.txt", text.encode())
    return text


def summary(tables: Mapping[str, pd.DataFrame], controls: Sequence[str] = ()) -> str:
    """The reliability table in plain words, with the rule of its verdicts."""
    table = tables["reliability"]
    cells = table[CELL].drop_duplicates()
    lines = [
        "Do the images agree on the ranking of the methods? Krippendorff's alpha: 1 = all alike, 0 = chance.",
        f"Verdict, by where its {LEVEL:.1%} interval over images lies: "
        + "; ".join(f"{verdict} = {where}" for verdict, where in RULE.items())
        + ".",
    ]
    if controls:
        lines.append(f"Controls have no part in it ({', '.join(controls)}); reliability.csv has alpha with them.")
    for cell in cells.itertuples(index=False):
        part = table[(table[CELL] == list(cell)).all(axis=1)].sort_values("alpha", ascending=False)
        lines += ["", f"{cell.experiment}: {cell.model} on {cell.dataset}, seed {cell.seed}"]
        shown = pd.DataFrame(
            {
                "metric": [Series(*series).title for series in part[SERIES].itertuples(index=False, name=None)],
                "alpha": part["alpha"].map("{:.2f}".format),
                "99.9% CI": [f"{a:.2f} .. {b:.2f}" for a, b in zip(part["ci_low"], part["ci_high"], strict=True)],
                "verdict": part["verdict"],
                "best": part["best"],
                "told apart": [f"{a}/{b}" for a, b in zip(part["pairs_different"], part["pairs"], strict=True)],
                "n": part["n"].astype(str),
                "missing": part["n_missing"].astype(str),
            }
        )
        lines.append(shown.to_string(index=False))
    if "agreement" in tables:
        lines += ["", "Agreement with the ground truth (Spearman between rankings of the methods):"]
        agreed = tables["agreement"].sort_values("within_images", ascending=False)
        several = [key for key in CELL if agreed[key].nunique() > 1]
        columns = [*several, "metric", "truth", "alpha", "within_images", "on_average"]
        lines.append(agreed[columns].to_string(index=False, float_format="{:.2f}".format))
        if len(agreed) >= 3:
            rho = agreed["alpha"].corr(agreed["within_images"], method="spearman")
            lines.append(f"Are the reliable metrics the right ones? Spearman of alpha and agreement: {rho:.2f}")
    return "\n".join(lines) + "\n"


def _reliability(
    better: pd.DataFrame, direction: Direction, order: pd.DataFrame, rng: np.random.Generator, draws: int
) -> pd.DataFrame:
    ranks = rankings(better)
    (low,), (high,) = percentile_interval(alpha_draws([ranks], rng, draws), LEVEL)
    value = alpha(ranks)
    best = str(order["method"].iloc[0])
    ties = len(order["not_different_from"].iloc[0].split())
    count = better.shape[1]
    pairs = count * (count - 1) // 2
    alike = sum(len(str(others).split()) for others in order["not_different_from"]) // 2
    place = ranks[:, better.columns.get_loc(best)]
    return pd.DataFrame(
        {
            "direction": [direction],
            "n": [int((~np.isnan(ranks)).any(axis=1).sum())],
            "n_missing": [int(better.isna().to_numpy().sum())],
            "methods": [count],
            "alpha": [value],
            "ci_low": [low],
            "ci_high": [high],
            "verdict": [alpha_verdict(value, low, high)],
            "mean_spearman": [mean_pairwise(inter_method(better))],
            "best": [best],
            "best_ties": [ties],
            "best_is_first": [float((place[~np.isnan(place)] == 1.0).mean())],
            "pairs": [pairs],
            "pairs_different": [int(pairs - alike)],
        }
    )


def _per_subset(better: pd.DataFrame, subsets: Mapping[str, np.ndarray]) -> pd.DataFrame:
    ranks = rankings(better)
    rows = [
        {"subset": name, "images": int(chosen.sum()), "alpha": alpha(ranks[chosen]), **better[chosen].mean().to_dict()}
        for name, chosen in subsets.items()
    ]
    wide_ = pd.DataFrame(rows)
    return wide_.melt(["subset", "images", "alpha"], var_name="method", value_name="aligned_mean")


def _subsets(images: pd.Index, about: pd.DataFrame | None) -> dict[str, np.ndarray]:
    """Images by name: all, those the model is unsure of, each group. `about`: their group and confidence."""
    chosen = {"all": np.ones(len(images), dtype=bool)}
    if about is not None:
        there = about.reindex(images)
        chosen["low confidence"] = (there["confidence"] <= LOW_CONFIDENCE).to_numpy()
        chosen |= {f"group {g}": (there["group"] == g).to_numpy() for g in sorted(there["group"].dropna().unique())}
    return {name: mask for name, mask in chosen.items() if mask.any()}


def _pairs(matrix: pd.DataFrame) -> pd.DataFrame:
    i, j = np.triu_indices(len(matrix), k=1)
    names = matrix.columns.to_numpy()
    return pd.DataFrame({"first": names[i], "second": names[j], "spearman": matrix.to_numpy()[i, j]})


def _with_truth(series: Mapping[Series, tuple[pd.DataFrame, Direction]]) -> pd.DataFrame:
    """Each metric against the first metric with ground truth that the run has."""
    judges = [key for metric in TRUTH for key in series if key.metric == metric]
    if not judges:
        return pd.DataFrame()
    ranks = {key: _frame(aligned(m, way)) for key, (m, way) in series.items()}
    rows = []
    for key, ranking in ranks.items():
        if key.metric in TRUTH:
            continue
        within, average = agreement(ranking, ranks[judges[0]])
        rows.append(
            {
                "metric": key.title,
                "truth": judges[0].title,
                "alpha": alpha(ranking),
                "within_images": within,
                "on_average": average,
            }
        )
    return pd.DataFrame(rows)


def _frame(better: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(rankings(better), index=better.index, columns=better.columns)


def _over_seeds(cells: Mapping[tuple[object, ...], Mapping[Series, tuple[pd.DataFrame, Direction]]]) -> pd.DataFrame:
    """Rank stability of every series that two seeds or more have."""
    means: dict[tuple[object, ...], dict[object, pd.Series]] = {}
    for (*place, seed), series in cells.items():
        for key, (matrix, direction) in series.items():
            means.setdefault((*place, key.title), {})[seed] = aligned(matrix, direction).mean()
    tables = []
    for named, by_seed in means.items():
        by_method = pd.DataFrame(by_seed).T.dropna(axis=1)
        if len(by_seed) < 2 or by_method.shape[1] < 2:
            continue
        per_method, overall = rank_stability(by_method)
        tag = dict(zip([*CELL[:3], "series"], named, strict=True))
        tables.append(_tag(tag, per_method.assign(**overall)))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _tag(keys: Mapping[str, object], table: pd.DataFrame) -> pd.DataFrame:
    """The table with its keys as first columns."""
    return pd.concat([pd.DataFrame(dict(keys), index=table.index), table], axis=1)
