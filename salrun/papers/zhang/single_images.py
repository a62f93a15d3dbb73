"""What Zhang's claims read of the scores of single images, beside their means: effect sizes, correlations, extremes.

All take images x (metric, method) and give tables of evidence: row 0 the estimates, below it draws over the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from salrun.papers.evidence import estimate_and_draws, means
from salrun.papers.zhang.names import CORRELATED, METHODS, REAL
from salrun.stats.bootstrap import Floats, resamples
from salrun.stats.reliability import spearman_draws

WORST = 0.1  # of the images: those that score lowest


def effects(frame: pd.DataFrame, averages: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Cohen's d of every two real methods: the difference of their means over their pooled standard deviation.

    d = (mean a - mean b) / sqrt((var a + var b) / 2), draw by draw; NaN where neither varies. `averages` are the means
    of the frame; the moments share their resamples, and are about the median: what never varies has a variance of 0.
    """
    blocks, columns = [np.empty((len(averages), 0))], []
    for metric in metrics:
        methods = [m for m in REAL if (metric, m) in frame]
        cells = [(metric, m) for m in methods]
        scores = frame[cells]
        first, second = (means((scores - scores.median()) ** power, len(averages) - 1) for power in (1, 2))
        n = scores.notna().sum()
        variance = ((second - first**2).clip(lower=0) * n / (n - 1)).to_numpy()
        mean = averages[cells].to_numpy()
        a, b = np.triu_indices(len(methods), k=1)
        pooled = np.sqrt((variance[:, a] + variance[:, b]) / 2)
        blocks.append((mean[:, a] - mean[:, b]) / np.where(pooled > 0, pooled, np.nan))
        columns += [(metric, f"{one} / {other}") for one, other in combinations(methods, 2)]
    named = pd.MultiIndex.from_arrays(list(zip(*columns, strict=True)) or [(), ()], names=["metric", "pair"])
    return pd.DataFrame(np.concatenate(blocks, axis=1), columns=named)


def correlations(scores: pd.DataFrame, p: pd.Series, draws: int) -> pd.DataFrame:
    """Spearman over images between p_c and AG, AD, I, D (the metrics themselves, not 100 minus them), by method."""
    named = [CORRELATED[metric] for metric in scores.columns.get_level_values("metric")]
    columns = pd.MultiIndex.from_arrays(
        [[name for name, *_ in named], scores.columns.get_level_values("method")], names=["metric", "method"]
    )
    first = scores.to_numpy() * [sign for _, sign, _ in named]
    second = np.repeat(p.reindex(scores.index).to_numpy()[:, None], len(named), axis=1)
    estimate = [_spearman(a, b) for a, b in zip(first.T, second.T, strict=True)]
    return estimate_and_draws(estimate, spearman_draws(first, second, np.random.default_rng(0), draws), columns)


def _spearman(a: Floats, b: Floats) -> float:
    """NaN where one of the two does not vary."""
    ranks = pd.DataFrame({"a": a, "b": b}).dropna().rank()
    return ranks["a"].corr(ranks["b"], min_periods=3) if ranks.nunique().min() > 1 else np.nan


def with_sparseness(frame: pd.DataFrame, metrics: Sequence[str], draws: int) -> pd.DataFrame:
    """Spearman over the real methods of an image between Sparseness and a metric, averaged over the images.

    An image whose methods all score alike has none and is left out.
    """
    centred = {}
    for metric in ("Sparseness", *metrics):
        ranks = frame[metric][REAL].rank(axis=1).to_numpy()
        centred[metric] = ranks - ranks.mean(axis=1, keepdims=True)
    own = centred.pop("Sparseness")
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = {
            m: (r * own).sum(axis=1) / np.sqrt((r**2).sum(axis=1) * (own**2).sum(axis=1)) for m, r in centred.items()
        }
    return means(pd.DataFrame(rho, index=frame.index).rename_axis(columns="metric"), draws)


def shared_worst(frame: pd.DataFrame, draws: int) -> pd.DataFrame:
    """By method: the share of the images of the lowest tenth of insertion that are in the lowest tenth of Db too."""
    insertion, deletion = (frame[metric][METHODS].to_numpy() for metric in ("I", "Db"))
    n = len(frame)

    def lowest(counts: np.ndarray, values: Floats) -> Floats:
        """How many of each image's copies are in the lowest tenth."""
        order = np.argsort(values, kind="stable")
        sorted_counts = counts[:, order]
        before = sorted_counts.cumsum(axis=1) - sorted_counts
        taken = np.empty(counts.shape)
        taken[:, order] = np.clip(WORST * n - before, 0.0, sorted_counts)
        return taken

    def shares(counts: np.ndarray) -> Floats:
        both = [np.minimum(lowest(counts, i), lowest(counts, d)) for i, d in zip(insertion.T, deletion.T, strict=True)]
        return np.stack([of.sum(axis=1) for of in both], axis=1) / (WORST * n)

    blocks = [shares(counts) for _, counts in resamples(n, draws, np.random.default_rng(0))]
    drawn = np.concatenate(blocks) if blocks else None
    return estimate_and_draws(shares(np.ones((1, n)))[0], drawn, pd.Index(METHODS, name="method"))
