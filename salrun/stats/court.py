"""Is a metric right about maps whose order is known? Arithmetic of `salrun court`, on images x maps, higher = better.

Agreement is Spearman's correlation of score and truth over the maps of an image (per image), or of their means over
images (macro). A score that does not tell the maps apart agrees by 0: it is no evidence, not missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from salrun.stats.bootstrap import Floats, mean_draws, percentile_interval
from salrun.stats.conjunction import ENOUGH, over_replicates
from salrun.stats.ranks import wilcoxon
from salrun.stats.reliability import rankings

DRAWS = 1000
GROUPS = 10  # of images, for the jackknife
FEWEST = 3  # maps that an order is made of: two are equal or opposite


@dataclass(frozen=True)
class Estimate:
    """A mean over models of what each has on average over its images, and its 95% interval."""

    mean: float
    low: float
    high: float
    images: int
    models: int


def agreement_by_image(scores: ArrayLike, truth: ArrayLike) -> Floats:
    """Spearman between each row of `scores` (n, maps) and of `truth` (n, maps) or (maps,), on the maps both have.

    0 where all scores are equal; NaN where fewer than three maps have both, or the truth says nothing.
    """
    scores = np.asarray(scores, dtype=np.float64)
    truth = np.broadcast_to(np.asarray(truth, dtype=np.float64), scores.shape)
    missing = np.isnan(scores) | np.isnan(truth)
    enough = (~missing).sum(axis=1) >= FEWEST
    centred = []
    for values in (scores, truth):
        ranks = np.where(missing, 0.0, rankings(np.where(missing, np.nan, values)))
        count = np.maximum((~missing).sum(axis=1, keepdims=True), 1)
        centred.append(np.where(missing, 0.0, np.nan_to_num(ranks) - np.nansum(ranks, 1, keepdims=True) / count))
    a, b = centred
    spread_a, spread_b = (a**2).sum(axis=1), (b**2).sum(axis=1)
    size = np.sqrt(spread_a * spread_b)
    rho = np.divide((a * b).sum(axis=1), size, out=np.zeros(len(a)), where=size > 0)
    return np.where(enough & (spread_b > 0), rho, np.nan)


def macro_agreement(scores: ArrayLike, truth: ArrayLike, rng: np.random.Generator) -> tuple[float, Floats]:
    """Spearman between the maps' mean scores and mean truth over the images that have all of them; bootstrap draws."""
    scores = np.asarray(scores, dtype=np.float64)
    truth = np.broadcast_to(np.asarray(truth, dtype=np.float64), scores.shape)
    both = np.concatenate([scores, truth], axis=1)
    both = both[~np.isnan(both).any(axis=1)]
    if not len(both):
        return float("nan"), np.full(DRAWS, np.nan)
    rows = np.concatenate([both.mean(axis=0, keepdims=True), mean_draws(both, rng, DRAWS)])
    rho = agreement_by_image(*np.split(rows, 2, axis=1))
    return float(rho[0]), rho[1:]


def prefers(first: ArrayLike, second: ArrayLike) -> Floats:
    """1 where the first scores higher, 1/2 where they are equal, 0 where lower; NaN where one is missing."""
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    return np.where(np.isnan(difference), np.nan, (difference > 0) + 0.5 * (difference == 0))


def prefers_worse(scores: ArrayLike, doses: ArrayLike, difference: float) -> Floats:
    """Per image, the share of pairs of maps whose doses differ by so much of which the worse scores higher.

    Ties count half, so chance is 1/2. NaN where no such pair has both scores.
    """
    scores, doses = np.asarray(scores, dtype=np.float64), np.asarray(doses, dtype=np.float64)
    apart = doses[None, :] - doses[:, None]
    better, worse = np.nonzero(np.isclose(apart, difference))
    wrong = prefers(scores[:, worse], scores[:, better])
    known = (~np.isnan(wrong)).sum(axis=1)
    return np.divide(np.nansum(wrong, axis=1), known, out=np.full(len(scores), np.nan), where=known > 0)


def over_models(models: Sequence[tuple[float, Floats, int]]) -> Estimate:
    """The mean over models of (estimate, its bootstrap draws over images, images); models without an estimate left out.

    From three models on the interval is Student's t over the models, the standard error not below that over images
    divided by sqrt(k); below that it is the percentile interval over images alone.
    """
    known = [(value, draws, n) for value, draws, n in models if not np.isnan(value)]
    if not known:
        return Estimate(np.nan, np.nan, np.nan, 0, 0)
    values, draws, images = zip(*known, strict=True)
    if len(known) >= ENOUGH:
        error = float(np.mean([np.nanstd(d) for d in draws]))
        part = over_replicates(np.array(values)[:, None], error)
        low, high = float(part.low[0]), float(part.high[0])
    else:
        ends = percentile_interval(np.mean(draws, axis=0)[:, None])
        low, high = (float(end[0]) for end in ends)
    return Estimate(float(np.mean(values)), low, high, sum(images), len(known))


def mean_over_models(values: Sequence[ArrayLike], rng: np.random.Generator) -> Estimate:
    """The same for a mean over images: `values` holds one number per image of each model, NaN where there is none."""
    models = []
    for of_model in values:
        known = np.asarray(of_model, dtype=np.float64)
        known = known[~np.isnan(known)]
        if len(known):
            models.append((float(known.mean()), mean_draws(known, rng, DRAWS)[:, 0], len(known)))
    return over_models(models)


def consistency(scores: ArrayLike, minor: Sequence[ArrayLike], disruptive: Sequence[ArrayLike]) -> Mapping[str, float]:
    """MetaQuantus' meta-consistency of a metric (Hedstroem et al. 2023), which knows no truth: images x methods each.

    iac: Wilcoxon's p between scores and those of the perturbed model, mean over methods and perturbations: high under
    minor ones (nr), its complement high under disruptive ones (ar). iec: the share of images and methods that keep
    their rank under minor ones (nr), and that score higher than under disruptive ones (ar). mc: the mean of the four.
    """
    own = np.asarray(scores, dtype=np.float64)
    nr, ar = ([np.asarray(q, dtype=np.float64) for q in side] for side in (minor, disruptive))
    ranks = rankings(own)

    def p(others: Sequence[Floats]) -> float:
        return _mean_known([wilcoxon(own - q) for q in others])

    def share(holds: Sequence[Floats]) -> float:
        return _mean_known(holds)

    kept = [np.where(np.isnan(ranks + rankings(q)), np.nan, ranks == rankings(q)) for q in nr]
    fell = [np.where(np.isnan(own - q), np.nan, own > q) for q in ar]
    four = {"iac_nr": p(nr), "iac_ar": 1 - p(ar), "iec_nr": share(kept), "iec_ar": share(fell)}
    return {**four, "mc": float(np.mean(list(four.values())))}


def _mean_known(values: Sequence[Floats]) -> float:
    """NaN where nothing is known."""
    known = np.stack(values)
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else float("nan")


def consistency_error(scores: ArrayLike, minor: Sequence[ArrayLike], disruptive: Sequence[ArrayLike]) -> float:
    """Standard error of mc over images: the jackknife that leaves out one of ten groups of images at a time.

    sqrt((g - 1) / g sum_k (mc_k - their mean)^2); NaN of fewer than three images.
    """
    own = np.asarray(scores, dtype=np.float64)
    groups = min(GROUPS, len(own))
    if groups < FEWEST:
        return float("nan")
    nr, ar = ([np.asarray(q, dtype=np.float64) for q in side] for side in (minor, disruptive))
    group = np.arange(len(own)) % groups
    kept = [group != k for k in range(groups)]
    left = np.array([consistency(own[k], [q[k] for q in nr], [q[k] for q in ar])["mc"] for k in kept])
    return float(np.sqrt((groups - 1) * left.var()))
