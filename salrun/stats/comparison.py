"""Methods compared under one metric: who is best, who cannot be told apart, who is better than a random map.

Images are the unit. Two methods differ by the mean of their difference over the images both have a score for, with a
percentile bootstrap interval; the test is the sign-flip permutation of that same mean. Holm's correction is over all
pairs of methods for the groups, and over the methods for the comparison with the random map; controls have their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import pandas as pd

from salrun.stats.bootstrap import mean_interval
from salrun.stats.ranks import compare_methods, holm, sign_flip
from salrun.stats.reliability import Direction, agreement, aligned, rankings

LEVEL = 0.95
DRAWS = 2000  # of an interval, as in a run's summary table
FLIPS = 10_000  # of a test, at least
PER_PAIR = 100  # sign flips per test: Holm's smallest p must stay well below 1 - LEVEL

Verdict = Literal["better", "worse", "alike", ""]  # than the random map; empty: there is none to compare with


@dataclass(frozen=True)
class Gain:
    """A method minus the random map over their common images: positive where it is better, whichever way that is."""

    mean: float
    low: float
    high: float
    p_holm: float
    verdict: Verdict


NO_GAIN = Gain(np.nan, np.nan, np.nan, np.nan, "")


@dataclass(frozen=True)
class Standing:
    """One method under one metric: its mean and interval in the metric's own unit, its rank, its gain over random.

    The rank is among the methods, 1 = best mean, equal means share; a control has none (NaN).
    """

    method: str
    n: int
    mean: float
    low: float
    high: float
    rank: float
    gain: Gain


@dataclass(frozen=True)
class Ranking:
    """The methods of one metric, best first; the controls apart; every pair of methods; those not told apart.

    A group is a run of neighbours in the order of which no two differ significantly; the first begins with the best.
    """

    methods: tuple[Standing, ...]
    controls: tuple[Standing, ...]
    pairs: pd.DataFrame
    groups: tuple[tuple[str, ...], ...]

    def __getitem__(self, method: str) -> Standing:
        return next(s for s in (*self.methods, *self.controls) if s.method == method)

    @property
    def best(self) -> tuple[str, ...]:
        """The first group: the best method, and its neighbours that cannot be told apart."""
        return self.groups[0] if self.groups else ()


def rank_methods(
    scores: pd.DataFrame, direction: Direction, controls: Collection[str] = (), random: str = "random"
) -> Ranking:
    """The ranking of `scores` (images x methods, NaN where there is none); methods without any score are left out."""
    scores = scores.loc[:, scores.notna().any()]
    better = aligned(scores, direction)
    ordered = sorted(scores, key=lambda m: (-better[m].mean(), m))
    own, apart = [m for m in ordered if m not in controls], [m for m in ordered if m in controls]
    interval = mean_interval(scores.to_numpy(), np.random.default_rng(0), LEVEL, DRAWS)
    ranks = rankings(better[own].mean().to_numpy()[None])[0] if len(own) > 1 else np.ones(1)
    place = dict(zip(own, ranks, strict=True)) if own else {}
    gains = {**_gains(better, own, random), **_gains(better, [m for m in apart if m != random], random)}

    def standing(method: str) -> Standing:
        at = scores.columns.get_loc(method)
        mean, low, high = (float(of[at]) for of in (interval.mean, interval.low, interval.high))
        rank = float(place.get(method, np.nan))
        return Standing(method, int(interval.n[at]), mean, low, high, rank, gains.get(method, NO_GAIN))

    pairs = _pairs(better[own])
    different = {frozenset(p) for p in pairs.loc[pairs["significant"], ["first", "second"]].itertuples(index=False)}
    return Ranking(tuple(map(standing, own)), tuple(map(standing, apart)), pairs, groups_of(own, different))


def groups_of(order: Sequence[str], different: Collection[frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """The longest runs of neighbours in `order` no two of which are in `different`; a method alone is a group too."""
    groups: list[tuple[str, ...]] = []
    end = 0
    for start in range(len(order)):
        stop = start + 1
        while stop < len(order) and all(frozenset((order[stop], m)) not in different for m in order[start:stop]):
            stop += 1
        if stop > end:
            groups.append(tuple(order[start:stop]))
            end = stop
    return tuple(groups)


def fewest_images(tests: int) -> int:
    """Images without which no test of so many can be significant: the least p of n sign flips is 2^(1 - n)."""
    return int(np.ceil(1 + np.log2(max(tests, 1) / (1 - LEVEL))))


def metric_agreement(scores: Mapping[str, tuple[pd.DataFrame, Direction]]) -> pd.DataFrame:
    """Do two metrics rank the methods alike? (name -> images x methods, direction)

    `within_images`: the mean over images of Spearman between the two rankings; `on_average`: Spearman between the two
    orders by mean rank. Missing below three methods in common: two orders of two are equal or opposite.
    """
    ranks = {}
    for name, (matrix, direction) in scores.items():
        ranks[name] = pd.DataFrame(rankings(aligned(matrix, direction)), matrix.index, matrix.columns)
    rows = []
    for first, second in combinations(ranks, 2):
        enough = len(ranks[first].columns.intersection(ranks[second].columns)) > 2
        both = agreement(ranks[first], ranks[second]) if enough else (float("nan"), float("nan"))
        rows.append((first, second, *both))
    return pd.DataFrame(rows, columns=["first", "second", "within_images", "on_average"])


def _pairs(better: pd.DataFrame) -> pd.DataFrame:
    """Every two methods; none where there is one."""
    tests = better.shape[1] * (better.shape[1] - 1) // 2
    if not tests:
        return pd.DataFrame({"first": [], "second": [], "significant": np.zeros(0, dtype=bool)})
    flips = max(FLIPS, PER_PAIR * tests)
    return compare_methods(better, np.random.default_rng(0), "sign_flip", LEVEL, DRAWS, flips)


def _gains(better: pd.DataFrame, names: Sequence[str], random: str) -> dict[str, Gain]:
    """Method -> its gain over the random map; Holm's p is over `names`."""
    if random not in better or not names:
        return {}
    difference = better[list(names)].sub(better[random], axis=0).to_numpy()
    interval = mean_interval(difference, np.random.default_rng(0), LEVEL, DRAWS)
    p = holm(sign_flip(difference, np.random.default_rng(0), max(FLIPS, PER_PAIR * len(names))))
    columns = (interval.mean, interval.low, interval.high, p)
    told = zip(names, *(column.tolist() for column in columns), strict=True)
    return {method: Gain(d, low, high, q, _verdict(d, q)) for method, d, low, high, q in told}


def _verdict(difference: float, p: float) -> Verdict:
    if np.isnan(p):
        return ""
    return "alike" if p >= 1 - LEVEL else "better" if difference > 0 else "worse"
