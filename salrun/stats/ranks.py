"""Which method is better, and is that more than chance? Paired comparisons, mean ranks, stability over seeds."""

from __future__ import annotations

from itertools import combinations
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from salrun.errors import SalrunError, unknown
from salrun.stats.bootstrap import DRAWS, Floats, mean_interval
from salrun.stats.reliability import rankings

Test = Literal["wilcoxon", "sign_flip"]
TESTS = ("wilcoxon", "sign_flip")
EXACT = 13  # up to so many differences scipy enumerates their signs where there are ties


def holm(p: ArrayLike) -> Floats:
    """Holm's step-down correction (1979): p_(i) (m - i + 1), made monotone, at most 1. NaN is no test."""
    p = np.asarray(p, dtype=np.float64)
    out = np.full(p.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    out[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return out


def wilcoxon(differences: ArrayLike) -> Floats:
    """Two-sided Wilcoxon signed-rank p of each column of paired differences (n, pairs); equal pairs are left out."""
    columns = np.asarray(differences, dtype=np.float64).T
    return np.array([_wilcoxon(d[~np.isnan(d)]) for d in columns])


def _wilcoxon(d: Floats) -> float:
    if d.size == 0:
        return float("nan")
    if not d.any():
        return 1.0
    from scipy import stats  # here: it takes as long to import as a warm run to compute

    return _wilcoxon_exact(d[d != 0]) if d.size <= EXACT else float(stats.wilcoxon(d).pvalue)


def _wilcoxon_exact(d: Floats) -> float:
    """Over all 2^n signs, ties or not: what scipy does for so few, with ties a thousand times slower."""
    from scipy import stats

    ranks = stats.rankdata(np.abs(d))
    signs = np.arange(2**d.size)[:, None] >> np.arange(d.size) & 1
    sums, observed = signs @ ranks, ranks[d > 0].sum()
    return float(min(1.0, 2 * min((sums <= observed).mean(), (sums >= observed).mean())))


def sign_flip(differences: ArrayLike, rng: np.random.Generator, draws: int = DRAWS) -> Floats:
    """Two-sided sign-flip permutation p of the mean of each column of paired differences (n, pairs).

    p = (1 + #{|sum of randomly signed differences| >= |sum of differences|}) / (1 + draws): never 0, and valid.
    """
    differences = np.asarray(differences, dtype=np.float64)
    filled = np.nan_to_num(differences, nan=0.0)
    observed = np.abs(filled.sum(axis=0))
    slack = 1e-12 * np.abs(filled).sum(axis=0)  # sums in another order may differ in the last bits
    reached = np.zeros(filled.shape[1])
    rows = max(1, (1 << 20) // max(len(filled), 1))
    for start in range(0, draws, rows):
        signs = rng.integers(0, 2, size=(min(rows, draws - start), len(filled))) * 2.0 - 1.0
        reached += (np.abs(signs @ filled) >= observed - slack).sum(axis=0)
    return np.where(np.isnan(differences).all(axis=0), np.nan, (1 + reached) / (1 + draws))


def compare_methods(
    scores: pd.DataFrame,
    rng: np.random.Generator,
    test: Test = "wilcoxon",
    level: float = 0.95,
    draws: int = DRAWS,
    flips: int | None = None,
) -> pd.DataFrame:
    """Every two methods on the images both have a score for (images x methods, higher = better).

    One row per pair: the mean difference with its paired bootstrap interval, the share of images that prefer the first
    (ties count half), p and Holm's corrected p over all pairs. `flips`: of the sign-flip test (default: `draws`).
    """
    if test not in TESTS:
        raise unknown("test", test, TESTS, "compare_methods")
    pairs = list(combinations(scores.columns, 2))
    if not pairs:
        raise SalrunError(f"a comparison needs two methods, got {list(scores.columns)}")
    first, second = (scores[[pair[k] for pair in pairs]].to_numpy(dtype=np.float64) for k in (0, 1))
    difference = first - second
    interval = mean_interval(difference, rng, level, draws)
    p = wilcoxon(difference) if test == "wilcoxon" else sign_flip(difference, rng, flips or draws)
    wins = (difference > 0).sum(axis=0) + 0.5 * (difference == 0).sum(axis=0)
    corrected = holm(p)
    return pd.DataFrame(
        {
            "first": [a for a, _ in pairs],
            "second": [b for _, b in pairs],
            "n": interval.n,
            "difference": interval.mean,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "preferred": np.divide(wins, interval.n, out=np.full(len(pairs), np.nan), where=interval.n > 0),
            "p": p,
            "p_holm": corrected,
            "significant": corrected < 1 - level,
        }
    )


def rank_table(scores: pd.DataFrame, comparisons: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Methods by mean rank (images x methods, higher = better), each with those it cannot be told apart from.

    The table form of a critical-difference diagram (Demsar 2006), with Holm's paired tests as the criterion.
    """
    interval = mean_interval(rankings(scores), rng)
    alike: dict[str, list[str]] = {str(m): [] for m in scores.columns}
    for a, b, significant in comparisons[["first", "second", "significant"]].itertuples(index=False):
        if not significant:
            alike[a].append(b)
            alike[b].append(a)
    table = pd.DataFrame(
        {
            "method": list(scores.columns),
            "mean_rank": interval.mean,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "n": interval.n,
            "not_different_from": [" ".join(alike[str(m)]) for m in scores.columns],
        }
    )
    return table.sort_values("mean_rank", kind="stable", ignore_index=True)


def kendall_w(ranks: ArrayLike) -> float:
    """Kendall's concordance of complete rankings (raters, methods), 1 = all alike, corrected for ties.

    W = 12 S / (m^2 (k^3 - k) - m sum_r T_r), S = sum_u (R_u - mean R)^2, T_r = sum over rater r's ties of (t^3 - t).
    """
    ranks = np.asarray(ranks, dtype=np.float64)
    m, k = ranks.shape
    spread = ((ranks.sum(axis=0) - ranks.sum() / k) ** 2).sum()
    ties = sum(int((t**3 - t).sum()) for t in (np.unique(row, return_counts=True)[1] for row in ranks))
    most = m**2 * (k**3 - k) - m * ties
    return float(12 * spread / most) if most > 0 else float("nan")


def rank_stability(means: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, float]]:
    """Do seeds agree on the order of the methods? `means`: seeds x methods, higher = better, no missing value.

    Per method the mean rank, its standard deviation and range over seeds; overall Kendall's W, the mean pairwise
    Spearman between seeds and the share of seeds whose best method is the most frequent best.
    """
    if len(means) < 2:
        raise SalrunError(f"rank stability needs two seeds, got {len(means)}")
    complete = means.dropna(axis=1)
    if complete.shape[1] < 2:
        raise SalrunError(f"rank stability needs two methods that all seeds score, got {list(complete.columns)}")
    ranks = pd.DataFrame(rankings(complete), index=complete.index, columns=complete.columns)
    per_method = pd.DataFrame(
        {
            "method": ranks.columns,
            "mean_rank": ranks.mean().to_numpy(),
            "std_rank": ranks.std(ddof=1).to_numpy(),
            "best_rank": ranks.min().to_numpy(),
            "worst_rank": ranks.max().to_numpy(),
        }
    )
    between = ranks.T.corr(method="spearman").to_numpy()[np.triu_indices(len(ranks), k=1)]
    best = ranks.idxmin(axis=1).value_counts()
    overall = {
        "seeds": float(len(ranks)),
        "kendall_w": kendall_w(ranks),
        "spearman": float(np.mean(between)),
        "same_best": float(best.iloc[0] / len(ranks)),
    }
    return per_method.sort_values("mean_rank", kind="stable", ignore_index=True), overall
