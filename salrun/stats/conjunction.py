"""Does a statement with n parts hold in at least m of them? One formula for "every", "most", "some" and "on average".

A part is a signed difference, > 0 where it holds, measured once in each of k replicates (models trained anew, images
drawn anew). Its one-sided p-value is Student's t over the replicates; the p-values of the parts are combined by a
partial conjunction test (Benjamini and Heller 2008, with Bonferroni's combination):

    p_i    = P(T_{k-1} >= mean_i / error_i),   error_i = max(std_i, image_error_i) / sqrt(k)
    p(m)   = (n - m + 1) p_(m),                p_(1) <= .. <= p_(n)

"At least m of n parts are > 0" is accepted where p(m) <= level. The statement is rejected where "at least n - m + 1
parts are < 0" is accepted by the same formula. Otherwise it is uncertain. Each answer is wrong with probability at most
`level`, whatever the dependence between the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from salrun.errors import SalrunError
from salrun.stats.bootstrap import Floats

Answer = Literal["yes", "no", "uncertain"]
Quantifier = Literal["every", "most", "some", "average"]
LEVEL = 0.025  # of either wrong answer
ENOUGH = 3  # replicates that a verdict takes
MOST_REPLICATES = 1000  # beyond these nobody will train


@dataclass(frozen=True)
class Parts:
    """Mean, 95% interval and one-sided p-values (that the part is > 0, and that it is < 0) of every part."""

    mean: Floats
    low: Floats
    high: Floats
    above: Floats
    below: Floats


def needed(quantifier: Quantifier, n: int) -> int:
    """How many of n parts must hold: every n, most more than half, some 1; an average is one part."""
    if n < 1:
        raise SalrunError("a statement needs at least one part")
    if quantifier == "average" and n != 1:
        raise SalrunError(f"an average is one part, got {n}")
    return {"every": n, "most": n // 2 + 1, "some": 1, "average": 1}[quantifier]


def over_replicates(differences: ArrayLike, image_error: ArrayLike = 0.0) -> Parts:
    """Parts from differences (k replicates, n parts); `image_error`: the standard error over the images of one."""
    values = np.atleast_2d(np.asarray(differences, dtype=np.float64))
    k, n = values.shape
    if k < 2:
        raise SalrunError(f"replicates have a spread from two on, got {k}")
    floor = np.broadcast_to(np.asarray(image_error, dtype=np.float64), (n,))
    mean = values.mean(axis=0)
    error = np.maximum(values.std(axis=0, ddof=1), floor) / np.sqrt(k)
    t = _ratio(mean, error)
    reach = stats.t.isf(LEVEL, k - 1) * error
    return Parts(mean, mean - reach, mean + reach, stats.t.sf(t, k - 1), stats.t.cdf(t, k - 1))


def over_images(estimate: ArrayLike, draws: ArrayLike) -> Parts:
    """Parts of one model, from bootstrap draws (draws, n) over its images: p = share of draws on the other side."""
    mean = np.atleast_1d(np.asarray(estimate, dtype=np.float64))
    sampled = np.asarray(draws, dtype=np.float64).reshape(-1, len(mean))
    low, high = np.nanquantile(sampled, [LEVEL, 1 - LEVEL], axis=0)
    count = (~np.isnan(sampled)).sum(axis=0)
    above = (1 + (sampled <= 0).sum(axis=0)) / (1 + count)  # never 0: that many draws cannot tell
    below = (1 + (sampled >= 0).sum(axis=0)) / (1 + count)
    return Parts(mean, low, high, above, below)


def partial_conjunction(p: ArrayLike, m: int) -> Floats:
    """p-value of "at least m of the n parts hold", from the parts' own p-values (.., n)."""
    ordered = np.sort(np.asarray(p, dtype=np.float64), axis=-1)
    n = ordered.shape[-1]
    if not 1 <= m <= n:
        raise SalrunError(f"at least {m} of {n} parts cannot be asked for")
    return np.minimum(1.0, (n - m + 1) * ordered[..., m - 1])


def decide(parts: Parts, m: int, level: float = LEVEL) -> Answer:
    """yes: at least m parts are > 0; no: so many are < 0 that m cannot be; else uncertain."""
    n = len(parts.mean)
    if partial_conjunction(parts.above, m) <= level:
        return "yes"
    return "no" if partial_conjunction(parts.below, n - m + 1) <= level else "uncertain"


def replicates_to_decide(differences: ArrayLike, m: int, image_error: ArrayLike = 0.0) -> int | None:
    """The number of replicates that would decide at the observed means and spreads; None where none would."""
    values = np.atleast_2d(np.asarray(differences, dtype=np.float64))
    floor = np.broadcast_to(np.asarray(image_error, dtype=np.float64), (values.shape[1],))
    mean, spread = values.mean(axis=0), np.maximum(values.std(axis=0, ddof=1), floor)
    n = len(mean)
    for k in range(len(values) + 1, MOST_REPLICATES + 1):
        t = _ratio(mean, spread / np.sqrt(k))
        yes = partial_conjunction(stats.t.sf(t, k - 1), m)
        if min(yes, partial_conjunction(stats.t.cdf(t, k - 1), n - m + 1)) <= LEVEL:
            return k
    return None


def within(parts: Parts, bound: float) -> list[Answer]:
    """Two one-sided tests of each part against +-bound: yes where its interval lies inside, no where outside."""
    inside = (parts.low > -bound) & (parts.high < bound)
    outside = (parts.low > bound) | (parts.high < -bound)
    return ["yes" if a else "no" if b else "uncertain" for a, b in zip(inside, outside, strict=True)]


def _ratio(mean: Floats, error: Floats) -> Floats:
    """mean / error; a difference without any spread is infinitely sure, and one of 0 says nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((mean == 0) & (error == 0), 0.0, mean / error)
