"""Percentile bootstrap over images (Efron 1979), for many columns at once.

A resample of n images is a row of n counts: how often each image was drawn. Means are then one matrix product, and
columns that share a call share their resamples, so that differences between columns are paired. NaN is a missing
score: it is left out of the mean of its column, never counted as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from salrun.errors import SalrunError

Floats = NDArray[np.float64]

DRAWS = 10_000
_BLOCK = 1 << 19  # counts per block: small enough to stay in the processor's cache


@dataclass(frozen=True)
class Interval:
    """Column means with their percentile interval; `n` counts the scores that are not missing."""

    mean: Floats
    low: Floats
    high: Floats
    n: NDArray[np.int64]


def resamples(n: int, draws: int, rng: np.random.Generator) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Blocks of (which draws, counts (b, n)): each row is n images drawn with replacement."""
    rows = max(1, _BLOCK // max(n, 1))
    for start in range(0, draws, rows):
        block = slice(start, min(start + rows, draws))
        b = block.stop - block.start
        drawn = rng.integers(0, n, size=(b, n)) + n * np.arange(b)[:, None]
        yield block, np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n)


def mean_draws(values: ArrayLike, rng: np.random.Generator, draws: int = DRAWS) -> Floats:
    """Column means of `draws` resamples of the rows of `values` (n, columns): (draws, columns).

    A resample that holds no valid score of a column gives NaN there.
    """
    values = _columns(values)
    valid = ~np.isnan(values)
    filled = np.where(valid, values, 0.0)
    complete = bool(valid.all())
    out = np.full((draws, values.shape[1]), np.nan)
    if values.shape[0] == 0:
        return out
    for block, counts in resamples(values.shape[0], draws, rng):
        weight = counts.astype(np.float64)
        total = values.shape[0] if complete else weight @ valid
        with np.errstate(invalid="ignore"):
            out[block] = (weight @ filled) / total
    return out


def percentile_interval(draws: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """The central `level` of each column of `draws`, undefined draws left out."""
    if not 0 < level < 1:
        raise SalrunError(f"the level of a confidence interval must lie between 0 and 1, got {level}")
    draws = np.asarray(draws, dtype=np.float64)
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(draws, tails, axis=0) if not np.isnan(draws).any() else _nan_quantiles(draws, tails)
    return low, high


def _nan_quantiles(draws: Floats, levels: Sequence[float]) -> Floats:
    """`np.nanquantile` along the first axis, all columns at once: numpy takes them one by one."""
    ranked = np.sort(draws, axis=0)  # NaN last
    last = np.maximum((~np.isnan(draws)).sum(axis=0) - 1, 0)
    ends = []
    for level in levels:
        place = level * last
        below = np.floor(place).astype(np.intp)
        at, after = (np.take_along_axis(ranked, row[None], axis=0)[0] for row in (below, np.minimum(below + 1, last)))
        share, step = place - below, after - at
        ends.append(np.where(share < 0.5, at + step * share, after - step * (1 - share)))
    return np.array(ends)


def percentile_error(draws: ArrayLike, level: float = 0.95) -> Floats:
    """Monte Carlo standard error of the worse end of `percentile_interval`, from the order statistics around it.

    The number of draws below a p-quantile has the standard deviation sqrt(p (1 - p) draws).
    """
    draws = np.asarray(draws, dtype=np.float64)
    p = np.array([(1 - level) / 2, (1 + level) / 2])
    reach = np.sqrt(p * (1 - p) / max(len(draws), 1))
    around = np.clip(np.concatenate([p - reach, p + reach]), 0.0, 1.0)
    ends = np.nanquantile(draws, around, axis=0)
    return (np.abs(ends[2:] - ends[:2]) / 2).max(axis=0)


def mean_interval(
    values: ArrayLike,
    rng: np.random.Generator,
    level: float = 0.95,
    draws: int = DRAWS,
    nan_to_zero: bool = False,
) -> Interval:
    """Mean and percentile interval of every column of `values` (n, columns), or of one vector.

    `nan_to_zero` counts a missing score as 0, as some papers' code does. One score has no interval.
    """
    values = _columns(values)
    if nan_to_zero:
        values = np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)
    n = (~np.isnan(values)).sum(axis=0)
    total = np.nansum(values, axis=0)
    mean = np.divide(total, n, out=np.full(n.shape, np.nan), where=n > 0)
    low, high = percentile_interval(mean_draws(values, rng, draws), level)
    alone = n < 2
    return Interval(mean, np.where(alone, np.nan, low), np.where(alone, np.nan, high), n)


def _columns(values: ArrayLike) -> Floats:
    values = np.asarray(values, dtype=np.float64)
    return values[:, None] if values.ndim == 1 else values
