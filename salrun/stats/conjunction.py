"""Does a statement with n parts hold in at least m of them? One formula for "every", "most", "some" and "on average".

A part is a signed difference, > 0 where it holds, measured once in each of k replicates (models trained anew, images
drawn anew). Its one-sided p-value is Student's t over the replicates; the p-values of the parts are combined by a
partial conjunction test (Benjamini and Heller 2008, with Bonferroni's combination):

    p_i    = P(T_{k-1} >= mean_i / error_i),   error_i = max(std_i, image_error_i) / sqrt(k)
    p(m)   = (n - m + 1) p_(m),                p_(1) <= .. <= p_(n)

"At least m of n parts are > 0" is accepted where p(m) <= level. The statement is rejected where "at least n - m + 1
parts are < 0" is accepted by the same formula. Otherwise it is uncertain. Each answer is wrong with probability at most
`level`, whatever the dependence between the parts.

A part of a claim of equality holds where its difference lies inside +-bound, and fails where it lies outside: two
one-sided tests (Schuirmann 1987), each at `level`, so that the 95% interval decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
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
    """Mean, 95% interval and p-values (that the part holds, and that it fails) of every part."""

    mean: Floats
    low: Floats
    high: Floats
    holding: Floats
    failing: Floats


def needed(quantifier: Quantifier | int, n: int) -> int:
    """How many of n parts must hold: every n, most more than half, some 1; an average is one part; a number itself."""
    if n < 1:
        raise SalrunError("a statement needs at least one part")
    if isinstance(quantifier, int):
        return min(quantifier, n)
    if quantifier == "average" and n != 1:
        raise SalrunError(f"an average is one part, got {n}")
    return {"every": n, "most": n // 2 + 1, "some": 1, "average": 1}[quantifier]


def over_replicates(differences: ArrayLike, image_error: ArrayLike = 0.0, bound: float = 0.0) -> Parts:
    """Parts from differences (k replicates, n parts); `image_error`: the standard error over the images of one."""
    values = np.atleast_2d(np.asarray(differences, dtype=np.float64))
    k, n = values.shape
    if k < 2:
        raise SalrunError(f"replicates have a spread from two on, got {k}")
    floor = np.broadcast_to(np.asarray(image_error, dtype=np.float64), (n,))
    mean = values.mean(axis=0)
    error = np.maximum(values.std(axis=0, ddof=1), floor) / np.sqrt(k)
    reach = stats.t.isf(LEVEL, k - 1) * error
    return Parts(mean, mean - reach, mean + reach, *_by_student(mean, error, k, bound))


def over_images(estimate: ArrayLike, draws: ArrayLike, bound: float = 0.0) -> Parts:
    """Parts of one model, from bootstrap draws (draws, n) over its images.

    p is the share of draws on the other side, and not below the normal tail at the draws' standard deviation: a finite
    number of draws cannot tell small probabilities apart.
    """
    mean = np.atleast_1d(np.asarray(estimate, dtype=np.float64))
    sampled = np.asarray(draws, dtype=np.float64).reshape(-1, len(mean))
    low, high = np.nanquantile(sampled, [LEVEL, 1 - LEVEL], axis=0)
    error = np.nanstd(sampled, axis=0, ddof=1)
    count = (~np.isnan(sampled)).sum(axis=0)

    def p_above(limit: float) -> Floats:
        share = (sampled <= limit).sum(axis=0) / count
        return np.maximum(share, stats.norm.sf(_ratio(mean - limit, error)))

    def p_below(limit: float) -> Floats:
        share = (sampled >= limit).sum(axis=0) / count
        return np.maximum(share, stats.norm.cdf(_ratio(mean - limit, error)))

    return Parts(mean, low, high, *_sides(p_above, p_below, bound))


def _by_student(mean: Floats, error: Floats, k: int, bound: float) -> tuple[Floats, Floats]:
    """p-values that parts hold and that they fail, by Student's t over k replicates."""
    return _sides(
        lambda limit: stats.t.sf(_ratio(mean - limit, error), k - 1),
        lambda limit: stats.t.cdf(_ratio(mean - limit, error), k - 1),
        bound,
    )


def _sides(
    p_above: Callable[[float], Floats], p_below: Callable[[float], Floats], bound: float
) -> tuple[Floats, Floats]:
    """p-values that parts hold and that they fail: above or below 0, or inside or outside +-bound."""
    if not bound:
        return p_above(0.0), p_below(0.0)
    return np.maximum(p_above(-bound), p_below(bound)), np.minimum(p_above(bound), p_below(-bound))


def partial_conjunction(p: ArrayLike, m: int) -> Floats:
    """p-value of "at least m of the n parts hold", from the parts' own p-values (.., n)."""
    ordered = np.sort(np.asarray(p, dtype=np.float64), axis=-1)
    n = ordered.shape[-1]
    if not 1 <= m <= n:
        raise SalrunError(f"at least {m} of {n} parts cannot be asked for")
    return np.minimum(1.0, (n - m + 1) * ordered[..., m - 1])


def decide(parts: Parts, m: int, level: float = LEVEL) -> Answer:
    """yes: at least m parts hold; no: so many fail that m cannot hold; else uncertain."""
    n = len(parts.mean)
    if partial_conjunction(parts.holding, m) <= level:
        return "yes"
    return "no" if partial_conjunction(parts.failing, n - m + 1) <= level else "uncertain"


def replicates_to_decide(
    differences: ArrayLike, m: int, image_error: ArrayLike = 0.0, bound: float = 0.0
) -> int | None:
    """The number of replicates that would decide at the observed means and spreads; None where none would."""
    values = np.atleast_2d(np.asarray(differences, dtype=np.float64))
    floor = np.broadcast_to(np.asarray(image_error, dtype=np.float64), (values.shape[1],))
    mean, spread = values.mean(axis=0), np.maximum(values.std(axis=0, ddof=1), floor)
    n = len(mean)

    def decided(k: int) -> bool:
        holds, fails = _by_student(mean, spread / np.sqrt(k), k, bound)
        return bool(min(partial_conjunction(holds, m), partial_conjunction(fails, n - m + 1)) <= LEVEL)

    if not decided(MOST_REPLICATES):
        return None
    return bisect_left(range(MOST_REPLICATES), True, lo=len(values) + 1, key=decided)  # more models are never less sure


def within(low: ArrayLike, high: ArrayLike, bound: float) -> list[Answer]:
    """Of each interval: yes where it lies inside +-bound, no where it lies outside, else uncertain."""
    low, high = np.atleast_1d(low), np.atleast_1d(high)
    inside = (low > -bound) & (high < bound)
    outside = (low > bound) | (high < -bound)
    return ["yes" if a else "no" if b else "uncertain" for a, b in zip(inside, outside, strict=True)]


def _ratio(mean: Floats, error: Floats) -> Floats:
    """mean / error; a difference without any spread is infinitely sure, and one of 0 says nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((mean == 0) & (error == 0), 0.0, mean / error)
