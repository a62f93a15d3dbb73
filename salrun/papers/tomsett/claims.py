"""What Tomsett et al. (AAAI 2020) claim, as margins. T2a, T3a, T4a, T12a and T15a are further readings of T2 .. T15."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pandas as pd

from salrun.papers.claims import Evidence, claim, claims_of, evaluate_claims, parts
from salrun.papers.evidence import NotTestable, pick
from salrun.papers.tomsett.evidence import LABELS, PAIRS, PERTURBATIONS, TomsettEvidence, published_evidence

UNRELIABLE = 0.65  # the alpha below which the paper calls a metric unreliable
WEAK = 0.34  # the highest correlation that it calls weak
NEAR_ZERO = 0.2
ROUNDING = 0.005  # published values have two decimals
MUCH = 5.0
ENOUGH = 400  # a 95% interval of a mean is 3.9 std / sqrt(images) wide
LEVELS = [20, 40, 60, 80, 100]
ORDERS = ["MoRF", "LeRF"]
METHODS = list(LABELS)


def _difference(table: pd.DataFrame, level: str, more: object, less: object) -> pd.DataFrame:
    """Cells with `level` = more minus the same cells with `level` = less."""
    return pick(table, **{level: more}) - pick(table, **{level: less})


def _order(e: Evidence, metric: str, perturbation: str) -> pd.DataFrame:
    """Mean AOPC of the five methods at L = 100, signed so that higher is better."""
    means = pick(e["mean"], subset="all", metric=metric, perturbation=perturbation, method=METHODS)[METHODS]
    return -means if metric == "LeRF" else means


def _same_order(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Per pair of methods: > 0 where both tables order it alike, by the smaller of the two differences."""
    agree = {}
    for a, b in combinations(METHODS, 2):
        one, two = first[a] - first[b], second[a] - second[b]
        agree[f"{a} / {b}"] = np.sign(one * two) * np.minimum(one.abs(), two.abs())
    return pd.DataFrame(agree)


def _range(e: Evidence, pair: str) -> pd.Series:
    rho = pick(e["consistency"], pair=pair, method=METHODS)
    return rho.max(axis=1) - rho.min(axis=1)


def _others(pair: str) -> list[str]:
    return [p for p in PAIRS if p != pair]


@claim("T1", "tomsett", "every alpha indicates unreliability (below 0.65)")
def _(e: Evidence) -> pd.DataFrame:
    return UNRELIABLE - e["alpha"]


@claim("T2", "tomsett", "including edge detection raises alpha")
def _(e: Evidence) -> pd.DataFrame:
    return _difference(e["alpha"], "edge", "with", "without")


@claim("T2a", "tomsett", "including edge detection raises alpha of F and MoRF")
def _(e: Evidence) -> pd.DataFrame:
    return _difference(pick(e["alpha"], metric=["F", "MoRF"]), "edge", "with", "without")


@claim("T3", "tomsett", "random RGB perturbation lowers alpha of F and MoRF")
def _(e: Evidence) -> pd.DataFrame:
    return _difference(pick(e["alpha"], metric=["F", "MoRF"]), "perturbation", "mean", "random_rgb")


@claim("T3a", "tomsett", "random RGB perturbation lowers alpha of F and MoRF (edge detection included)")
def _(e: Evidence) -> pd.DataFrame:
    alpha = pick(e["alpha"], metric=["F", "MoRF"], edge="with")
    return _difference(alpha, "perturbation", "mean", "random_rgb")


@claim("T4", "tomsett", "LeRF at L = 20 and 40 has a higher alpha with random RGB perturbation")
def _(e: Evidence) -> pd.DataFrame:
    return _difference(pick(e["alpha"], metric="LeRF", steps=[20, 40]), "perturbation", "random_rgb", "mean")


@claim("T4a", "tomsett", "LeRF at every L has a higher alpha with random RGB perturbation")
def _(e: Evidence) -> pd.DataFrame:
    return _difference(pick(e["alpha"], metric="LeRF", steps=LEVELS), "perturbation", "random_rgb", "mean")


@claim("T5", "tomsett", "alpha of MoRF and LeRF grows with L")
def _(e: Evidence) -> pd.DataFrame:
    alpha = pick(e["alpha"], metric=ORDERS)
    return parts(**{f"L {a} to {b}": _difference(alpha, "steps", b, a) for a, b in pairwise(LEVELS)})


@claim("T6", "tomsett", "MoRF and LeRF rank the methods oppositely", text=True)
def _(e: Evidence) -> pd.DataFrame:
    rho = {}
    for perturbation in PERTURBATIONS:
        morf, lerf = (_order(e, metric, perturbation).rank(axis=1) for metric in ORDERS)
        rho[perturbation] = -morf.corrwith(lerf, axis=1)
    return pd.DataFrame(rho)


@claim("T7", "tomsett", "the MoRF ranking of the methods depends on the perturbation", any_of=True, text=True)
def _(e: Evidence) -> pd.DataFrame:
    return -_same_order(_order(e, "MoRF", "mean"), _order(e, "MoRF", "random_rgb"))


@claim("T8", "tomsett", "the LeRF ranking of the methods is the same for both perturbations", text=True)
def _(e: Evidence) -> pd.DataFrame:
    return _same_order(_order(e, "LeRF", "mean"), _order(e, "LeRF", "random_rgb"))


@claim("T9", "tomsett", "the mean F of every method is near 0 (within 0.2), that of edge detection lowest", text=True)
def _(e: Evidence) -> pd.DataFrame:
    mean = pick(e["mean"], subset="all", metric="F", perturbation="mean", method=METHODS)
    lead = mean.drop(columns="edge").sub(mean["edge"], axis=0)
    return parts(near_0=NEAR_ZERO - mean.abs(), above_edge=lead)


@claim("T10", "tomsett", "F correlates weakly with MoRF (0 to 0.34) and slightly negatively with LeRF")
def _(e: Evidence) -> pd.DataFrame:
    morf = pick(e["consistency"], pair="F vs MoRF", method=METHODS)
    lerf = pick(e["consistency"], pair="F vs LeRF", method=METHODS)
    return parts(F_MoRF_not_negative=morf + ROUNDING, F_MoRF_weak=WEAK + ROUNDING - morf, F_LeRF_negative=-lerf)


@claim("T11", "tomsett", "the correlation of MoRF and LeRF varies highly between methods (range above 0.5)")
def _(e: Evidence) -> pd.Series:
    return _range(e, "MoRF vs LeRF") - 0.5


@claim("T12", "tomsett", "mean and random MoRF are the most consistent pair (smallest range over methods)")
def _(e: Evidence) -> pd.DataFrame:
    pair = "MoRF random vs MoRF mean"
    return pd.DataFrame({other: _range(e, other) - _range(e, pair) for other in _others(pair)})


@claim("T12a", "tomsett", "mean and random MoRF are the most consistent pair (highest mean correlation)")
def _(e: Evidence) -> pd.DataFrame:
    pair = "MoRF random vs MoRF mean"
    height = {p: pick(e["consistency"], pair=p, method=METHODS).mean(axis=1) for p in PAIRS}
    return pd.DataFrame({other: height[pair] - height[other] for other in _others(pair)})


@claim(
    "T13",
    "tomsett",
    "gradient x input and SHAP are worse than random orders under LeRF, better on images of low confidence",
    text=True,
)
def _(e: Evidence) -> pd.DataFrame:
    signed = ["input_x_gradient", "deep_shap"]
    excess = pick(e["excess"], metric="LeRF", perturbation="mean", method=signed)
    return parts(worse=pick(excess, subset="all"), better_if_unsure=-pick(excess, subset="low confidence"))


@claim("T14", "tomsett", "edge detection and Deep Taylor gain under random RGB perturbation for MoRF", text=True)
def _(e: Evidence) -> pd.DataFrame:
    means = pick(e["mean"], subset="all", metric="MoRF", method=["edge", "deep_taylor"])
    return _difference(means, "perturbation", "random_rgb", "mean")


@claim("T15", "tomsett", "tight intervals hide a high variance (std of AOPC over images above 5 CI widths)", text=True)
def _(e: Evidence) -> pd.DataFrame:
    images = e.basis(None).images
    if images < ENOUGH:
        raise NotTestable(f"needs {ENOUGH} images: with {images} no interval is that tight")
    means = pick(e["mean"], subset="all", metric=ORDERS, method=METHODS).iloc[1:]
    width = means.quantile(0.975) - means.quantile(0.025)
    return pick(e["std"], metric=ORDERS, method=METHODS) / width - MUCH


@claim("T15a", "tomsett", "the std of AOPC over images exceeds the spread of the methods' means", text=True)
def _(e: Evidence) -> pd.DataFrame:
    hidden = {}
    for metric in ORDERS:
        for perturbation in PERTURBATIONS:
            chosen = {"metric": metric, "perturbation": perturbation, "method": METHODS}
            means, std = pick(e["mean"], subset="all", **chosen), pick(e["std"], **chosen)
            hidden[f"{metric} {perturbation}"] = std.min(axis=1) - (means.max(axis=1) - means.min(axis=1))
    return pd.DataFrame(hidden)


@claim("T16", "tomsett", "scores depend on the class: frogs score better in MoRF and F, worse in LeRF", text=True)
def _(e: Evidence) -> pd.DataFrame:
    means = pick(e["mean"], perturbation="mean", method=METHODS)
    if "frog" not in means.columns.get_level_values("subset"):
        raise NotTestable("needs images of class frog")
    return _difference(means, "subset", "frog", "all").T.groupby(level="metric").mean().T


def claims(e: TomsettEvidence) -> pd.DataFrame:
    """The verdict on every claim."""
    return evaluate_claims(claims_of("tomsett"), list(e.draws.values()), published_evidence())
