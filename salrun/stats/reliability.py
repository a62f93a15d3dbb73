"""Is a saliency metric reliable? Psychometric statistics of any run's scores (Tomsett et al., AAAI 2020).

Inter-rater reliability: images are raters that rank the methods; Krippendorff's alpha says how far they agree.
Inter-method reliability: do two methods' scores rise and fall together over the images?
Internal consistency: do two metrics, given the same method, score the images alike?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

import krippendorff
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from salrun.stats.bootstrap import DRAWS, Floats, resamples

Direction = Literal["higher", "lower", "none"]

CELL = ["experiment", "dataset", "model", "seed"]
SERIES = ["metric", "mode", "score", "view"]  # what tells the series of a cell apart

TENTATIVE, RELIABLE = 0.667, 0.8  # Krippendorff (2004): below the one no conclusion, from the other on a safe one
RULE = {  # verdict -> where the interval of alpha lies
    "reliable": f"all at {RELIABLE} or above",
    "tentative": f"all at {TENTATIVE} or above",
    "unreliable": f"all below {TENTATIVE}",
    "undecided": "on both sides",
}


def aligned(scores: pd.DataFrame, direction: Direction) -> pd.DataFrame:
    """Scores signed so that higher is better."""
    return -scores if direction == "lower" else scores


def rankings(scores: ArrayLike) -> Floats:
    """Rank of each method (column) on each image (row): 1 = highest, ties share the mean rank, NaN stays missing.

    An image that fewer than two methods have a score for ranks nothing and is missing altogether.
    """
    scores = np.asarray(scores, dtype=np.float64)
    ranks = np.ones_like(scores)
    for rival in scores.T:
        ranks += (rival[:, None] > scores) + 0.5 * (rival[:, None] == scores)
    ranks -= 0.5  # every method ties with itself
    missing = np.isnan(scores)
    missing |= (~missing).sum(axis=1, keepdims=True) < 2
    return np.where(missing, np.nan, ranks)


def alpha(ranks: ArrayLike) -> float:
    """Krippendorff's ordinal alpha of rankings (images, methods): the images are the raters, the methods the units.

    NaN where it is undefined: every rating equal, or no method ranked by two images.
    """
    ranks = np.asarray(ranks, dtype=np.float64)
    rated = ~np.isnan(ranks)
    units = rated.sum(axis=0) >= 2
    if np.unique(ranks[:, units][rated[:, units]]).size < 2:
        return float("nan")
    return float(krippendorff.alpha(reliability_data=ranks, level_of_measurement="ordinal"))


def alpha_of_counts(counts: ArrayLike, own_pairs: ArrayLike | None = None) -> Floats:
    """Krippendorff's ordinal alpha from counts (..., units, values): how many raters gave the unit that value.

    The ordinal distance of two values is the squared difference of their mid-cumulative counts c, so both
    disagreements are variances and no value-by-value matrix is needed. With n_uv ratings v of unit u, units rated once
    left out, n_v = sum_u n_uv, n = sum_v n_v and c_v = n_1 + .. + n_v - n_v / 2:

        observed = sum_u [n_u sum_v n_uv c_v^2 - (sum_v n_uv c_v)^2] n_u / (n_u^2 - s_u)
        expected =       [n   sum_v n_v  c_v^2 - (sum_v n_v  c_v)^2] n / (n^2 - sum_u s_u)
        alpha = 1 - observed / expected

    s_u counts the pairs (of n_u^2) that are a rater with himself: n_u, unless `own_pairs` (..., units) says otherwise.
    """
    counts = np.asarray(counts, dtype=np.float64)
    per_unit = counts.sum(axis=-1)
    own = per_unit if own_pairs is None else np.asarray(own_pairs, dtype=np.float64)
    paired = per_unit**2 > own
    counts = np.where(paired[..., None], counts, 0.0)
    per_value = counts.sum(axis=-2)
    n = per_value.sum(axis=-1, keepdims=True)
    centred = np.cumsum(per_value, axis=-1) - per_value / 2 - n / 2  # mean 0 under per_value
    first = np.einsum("...uv,...v->...u", counts, centred)
    second = np.einsum("...uv,...v->...u", counts, centred**2)
    share = per_unit / np.where(paired, per_unit**2 - own, 1.0)
    observed = ((per_unit * second - first**2) * share).sum(axis=-1)
    total = n[..., 0]
    expected = total**2 * (per_value * centred**2).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(expected > 0, 1 - observed * (total**2 - np.where(paired, own, 0.0).sum(-1)) / expected, np.nan)


def alpha_draws(ranks: Sequence[ArrayLike], rng: np.random.Generator, draws: int = DRAWS) -> Floats:
    """Alpha of `draws` resamples of the images, for several rankings of the same images: (draws, rankings).

    Every resample serves all rankings, so differences between their alphas are paired. An image that was drawn twice
    agrees with itself, which is no evidence: such pairs are left out, or every draw would lie too high, by about
    (1 - alpha) / n, and where images are split evenly above alpha itself.
    """
    rankings_ = [np.asarray(r, dtype=np.float64) for r in ranks]
    indicators = [_indicator(r) for r in rankings_]
    edges = np.cumsum([0] + [i.shape[1] for i in indicators])
    stacked = np.concatenate(indicators, axis=1)
    rated = [(~np.isnan(r)).astype(np.float32) for r in rankings_]
    out = np.full((draws, len(rankings_)), np.nan)
    if stacked.shape[0] == 0:
        return out
    for block, counts in resamples(stacked.shape[0], draws, rng):
        drawn = counts.astype(np.float32)
        sums = drawn @ stacked  # counts stay below 2^24: exact in float32
        for k, ranking in enumerate(rankings_):
            part = sums[:, edges[k] : edges[k + 1]]
            out[block, k] = alpha_of_counts(part.reshape(len(part), ranking.shape[1], -1), drawn**2 @ rated[k])
    return out


def _indicator(ranks: Floats) -> NDArray[np.float32]:
    """(images, methods * values): 1 where the image gave the method that rank."""
    values = np.unique(ranks[~np.isnan(ranks)])
    return (ranks[:, :, None] == values).reshape(len(ranks), -1).astype(np.float32)


def alpha_verdict(value: float, low: float, high: float) -> str:
    """What RULE says of an alpha and its interval."""
    if np.isnan(value):
        return "undefined"
    if low >= TENTATIVE:
        return "reliable" if low >= RELIABLE else "tentative"
    return "unreliable" if high < TENTATIVE else "undecided"


def inter_method(scores: pd.DataFrame) -> pd.DataFrame:
    """Spearman over images between every two methods' scores (columns), each pair on the images both have."""
    return scores.corr(method="spearman", min_periods=3)


def mean_pairwise(matrix: pd.DataFrame) -> float:
    """Mean over the M (M - 1) / 2 pairs of methods; undefined pairs are left out."""
    pairs = matrix.to_numpy()[np.triu_indices(len(matrix), k=1)]
    return float(np.nanmean(pairs)) if np.isfinite(pairs).any() else float("nan")


def spearman_draws(first: ArrayLike, second: ArrayLike, rng: np.random.Generator, draws: int = DRAWS) -> Floats:
    """Spearman's correlation of paired columns (n, pairs) in `draws` resamples of the rows: (draws, pairs).

    The ranks are those of each resample, ties included, so a draw equals Spearman of the resampled data.
    """
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    out = np.full((draws, first.shape[1]), np.nan)
    valid = ~(np.isnan(first) | np.isnan(second))
    sorters = [(_Sorter(x[v]), _Sorter(y[v])) for x, y, v in zip(first.T, second.T, valid.T, strict=True)]
    for block, all_counts in resamples(len(first), draws, rng):
        for k, (x, y) in enumerate(sorters):
            counts = all_counts[:, valid[:, k]].astype(np.float64)
            centre = (counts.sum(axis=1, keepdims=True) + 1) / 2
            rank_x, rank_y = x.ranks(counts) - centre, y.ranks(counts) - centre
            weighted = counts * rank_x
            variances = np.einsum("bn,bn->b", weighted, rank_x) * np.einsum("bn,bn,bn->b", counts, rank_y, rank_y)
            with np.errstate(invalid="ignore", divide="ignore"):
                rho = np.einsum("bn,bn->b", weighted, rank_y) / np.sqrt(variances)
            out[block, k] = np.where(variances > 0, rho, np.nan)
    return out


class _Sorter:
    """The order and the ties of a vector, to rank any resample of it without sorting again."""

    def __init__(self, x: Floats) -> None:
        self.order = np.argsort(x, kind="stable")
        ordered = x[self.order]
        self.starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(x)])
        self.tie = np.empty(len(x), dtype=np.int64)
        self.tie[self.order] = np.repeat(np.arange(len(self.starts)), np.diff(np.r_[self.starts, len(x)]))

    def ranks(self, counts: Floats) -> Floats:
        """Mean rank of each element in resamples given by counts (b, n)."""
        if not len(self.order):
            return counts
        per_tie = np.add.reduceat(counts[:, self.order], self.starts, axis=1)
        return (np.cumsum(per_tie, axis=1) - (per_tie - 1) / 2)[:, self.tie]


def wide(scores: pd.DataFrame, nan_to_zero: bool = False) -> Iterator[tuple[dict[str, object], pd.DataFrame]]:
    """Each series of a score table as (its keys: CELL and SERIES, images x methods).

    Methods may reach the same score through different views, so the view of a series is empty unless a method then had
    two scores for one image.
    """
    one = [*CELL, "metric", "mode", "score"]
    clash = scores.duplicated([*one, "image_id", "method"], keep=False)
    clash = clash.groupby([scores[name] for name in ("metric", "mode", "score")]).transform("any")
    table = scores.assign(view=scores["view"].where(clash, ""))
    for keys, part in table.groupby([*CELL, *SERIES], sort=True, dropna=False, observed=True):
        matrix = part.pivot(index="image_id", columns="method", values="value").astype(np.float64)
        matrix.columns.name = matrix.index.name = None
        yield dict(zip([*CELL, *SERIES], keys, strict=True)), matrix.fillna(0.0) if nan_to_zero else matrix


def same_for_all(matrix: pd.DataFrame) -> bool:
    """Whether a series (images x methods) does not depend on the method: a baseline is no judge of methods."""
    return bool((matrix.max(axis=1) == matrix.min(axis=1)).where(matrix.notna().any(axis=1), True).all())


def internal_consistency(series: Mapping[str, tuple[pd.DataFrame, Direction]]) -> pd.DataFrame:
    """Spearman over images between every two metrics, for each method.

    `series`: name -> (images x methods, direction). `raw` correlates the scores as they are, `aligned` after turning
    lower-is-better metrics round: a positive aligned value is agreement.
    """
    sign = {name: -1.0 if direction == "lower" else 1.0 for name, (_, direction) in series.items()}
    rows = []
    for method in dict.fromkeys(m for matrix, _ in series.values() for m in matrix.columns):
        scores = pd.DataFrame({name: matrix[method] for name, (matrix, _) in series.items() if method in matrix})
        rho = scores.corr(method="spearman", min_periods=3).to_numpy()
        for (i, first), (j, second) in combinations(enumerate(scores.columns), 2):
            rows.append((first, second, method, rho[i, j], sign[first] * sign[second] * rho[i, j]))
    return pd.DataFrame(rows, columns=["first", "second", "method", "raw", "aligned"])


def agreement(ranks: pd.DataFrame, truth: pd.DataFrame) -> tuple[float, float]:
    """How far one metric's rankings agree with another's (both images x methods).

    Within images: mean over images of Spearman between the two rankings of the methods.
    On average: Spearman between the two orders of the methods by mean rank.
    """
    images = ranks.index.intersection(truth.index)
    methods = ranks.columns.intersection(truth.columns)
    a, b = ranks.loc[images, methods], truth.loc[images, methods]
    both = a.notna() & b.notna()
    a = a.where(both).rank(axis=1)
    b = b.where(both).rank(axis=1)
    within = a.corrwith(b, axis=1)
    orders = pd.DataFrame({"a": a.mean(), "b": b.mean()}).corr(method="spearman")  # unlike a Series', without warnings
    return float(within.mean()), float(orders.loc["a", "b"])
