"""What Tomsett et al. (AAAI 2020) claim, as signed differences.

AOPC is always the excess over random pixel orders, as in Figure 2, at L = 100; under LeRF less is better. T2a, T3a,
T4a, T12a and T15a are further readings of T2 .. T15.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import prod
from typing import Any

import numpy as np
import pandas as pd

from salrun.papers.claims import Evidence, Numbers, claim, claims_of, parts
from salrun.papers.evidence import NotTestable, pick
from salrun.papers.tomsett.evidence import FROG, LABELS, LONGEST, PAIRS, TomsettEvidence, published_evidence
from salrun.papers.tomsett.evidence import PERTURBATIONS as BOTH
from salrun.papers.verdicts import Verdicts, judge

UNRELIABLE = 0.65  # the alpha below which the paper calls a metric unreliable
WEAK = 0.4  # what is commonly called a weak correlation; the paper prints 0 to .34
NEAR_ZERO = 0.2
VARIABLE = 0.5
CLOSE = 0.02  # tau of AOPC
MUCH = 5.0
ENOUGH = 400  # a 95% interval of a mean is 3.9 std / sqrt(images) wide
LEVELS = (20, 40, 60, 80, 100)
STEPS = {"F": 0, "MoRF": LONGEST, "LeRF": LONGEST}
ORDERS = ("MoRF", "LeRF")
METHODS = list(LABELS)
EDGE = ("with", "without")
RANDOM_MEAN = "MoRF random vs MoRF mean"
FIGURE_2A = "Figure 2a, text"
CORRELATIONS = "text, inter-method reliability"


# -- what is read ------------------------------------------------------------------------------------------------------


def _cells(table: pd.DataFrame, **levels: Any) -> pd.DataFrame:
    """The columns with all these values of their levels, as `pick`; refused where one of them was not run."""
    found = pick(table, **{level: list(v) if isinstance(v, tuple) else v for level, v in levels.items()})
    asked = {level: v for level, v in levels.items() if isinstance(v, (list, tuple))}
    if found.shape[1] != prod(map(len, asked.values())):
        raise NotTestable(f"needs every {' with every '.join(asked)}")
    return found


def _difference(table: pd.DataFrame, level: str, more: object, less: object) -> pd.DataFrame:
    """Cells with `level` = more minus the same cells with `level` = less."""
    return pick(table, **{level: more}) - pick(table, **{level: less})


def _table_1(
    e: Evidence, metrics: Sequence[str] = tuple(STEPS), steps: Sequence[int] = LEVELS, edge: Sequence[str] = EDGE
) -> pd.DataFrame:
    """Alpha of these metrics, with both perturbations."""
    of_metric = {metric: (0,) if metric == "F" else steps for metric in metrics}
    cells = [
        _cells(e["alpha"], metric=[metric], steps=levels, perturbation=BOTH, edge=edge)
        for metric, levels in of_metric.items()
    ]
    return pd.concat(cells, axis=1)


def _alphas(*chosen: Any) -> Numbers:
    """The cells of Table 1 that a claim is about."""
    return Numbers("alpha", lambda e: _table_1(e, *chosen))


def _table_2(e: Evidence, *pairs: str) -> pd.DataFrame:
    """Spearman over images between two metrics, of these pairs of metrics and every method."""
    return _cells(e["consistency"], pair=pairs, method=METHODS)


def _rhos(*pairs: str) -> Numbers:
    """The cells of Table 2 that a claim is about."""
    return Numbers("correlation", lambda e: _table_2(e, *pairs))


def _aopc(e: Evidence, metric: str, perturbation: str, subset: str = "all") -> pd.DataFrame:
    """Mean AOPC of the five methods minus that of random orders."""
    return _cells(e["excess"], subset=subset, metric=metric, perturbation=perturbation, method=METHODS)


def _faithfulness(e: Evidence, perturbation: str, subset: str = "all") -> pd.DataFrame:
    """Mean F of the five methods."""
    return _cells(e["mean"], subset=subset, metric="F", perturbation=perturbation, method=METHODS)


def _correlation(e: Evidence, metric: str, edge: str = "without") -> pd.DataFrame:
    """Mean pairwise correlation of the methods' scores over images, by perturbation."""
    return _cells(e["inter_method"], metric=metric, steps=STEPS[metric], perturbation=BOTH, edge=edge)


def _correlations(metric: str) -> Numbers:
    """The mean pairwise correlations of a metric that the text prints, all without edge detection."""
    return Numbers("correlation", lambda e: pick(e["inter_method"], metric=[metric], edge=["without"]))


def _lead(means: pd.DataFrame, method: str) -> pd.DataFrame:
    """A method's mean minus every other method's."""
    return -means.drop(columns=method).sub(means[method], axis=0)


def _same_order(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Per pair of methods: > 0 where both tables order it alike, by the smaller of the two differences."""
    agree = {}
    for a, b in combinations(METHODS, 2):
        one, two = first[a] - first[b], second[a] - second[b]
        agree[f"{a} / {b}"] = np.sign(one * two) * np.minimum(one.abs(), two.abs())
    return pd.DataFrame(agree)


def _range(e: Evidence, pair: str) -> pd.Series:
    rho = _table_2(e, pair)
    return rho.max(axis=1) - rho.min(axis=1)


# -- Table 1: do images agree on the methods? --------------------------------------------------------------------------


@claim(
    "T1", "tomsett", "every alpha indicates unreliability", place="Table 1",
    predicate="0.65 - alpha, of every cell of Table 1",
    unit="alpha", reads="alpha", numbers=_alphas(),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return UNRELIABLE - _table_1(e)


@claim(
    "T2", "tomsett", "including edge detection raises alpha", place="Table 1, text",
    predicate="alpha with edge detection - without, of every row and perturbation",
    unit="alpha", reads="alpha", numbers=_alphas(),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _difference(_table_1(e), "edge", *EDGE)


@claim(
    "T2a", "tomsett", "including edge detection raises alpha of F and MoRF", place="Table 1, text",
    predicate="alpha with edge detection - without, of every row of F and MoRF and perturbation",
    unit="alpha", apart="second reading: F and MoRF alone", reads="alpha", numbers=_alphas(("F", "MoRF")),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _difference(_table_1(e, ("F", "MoRF")), "edge", *EDGE)


@claim(
    "T3", "tomsett", "random RGB perturbation lowers alpha of F and MoRF", place="Table 1, text",
    predicate="alpha with mean - with random RGB perturbation, of every row of F and MoRF, with and without edge",
    unit="alpha", reads="alpha", numbers=_alphas(("F", "MoRF")),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _difference(_table_1(e, ("F", "MoRF")), "perturbation", *BOTH)


@claim(
    "T3a", "tomsett", "random RGB perturbation lowers alpha of F and MoRF, edge detection included",
    place="Table 1, text", predicate="alpha with mean - with random RGB perturbation, of F and MoRF with edge",
    unit="alpha", apart="second reading: edge detection included", reads="alpha",
    numbers=_alphas(("F", "MoRF"), LEVELS, ("with",)),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _difference(_table_1(e, ("F", "MoRF"), edge=("with",)), "perturbation", *BOTH)


@claim(
    "T4", "tomsett", "LeRF at L = 20 and 40 has a higher alpha with random RGB perturbation", place="Table 1, text",
    predicate="alpha with random RGB - with mean perturbation, of LeRF at L = 20 and 40, with and without edge",
    unit="alpha", reads="alpha", numbers=_alphas(("LeRF",), (20, 40)),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _difference(_table_1(e, ("LeRF",), (20, 40)), "perturbation", *BOTH[::-1])


@claim(
    "T4a", "tomsett", "LeRF at every L has a higher alpha with random RGB perturbation", place="Table 1",
    predicate="alpha with random RGB - with mean perturbation, of LeRF at every L, with and without edge",
    unit="alpha", apart="ours: at every L", reads="alpha", numbers=_alphas(("LeRF",)),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _difference(_table_1(e, ("LeRF",)), "perturbation", *BOTH[::-1])


@claim(
    "T5", "tomsett", "alpha of MoRF and LeRF grows with L", place="Table 1",
    predicate="alpha at L - alpha at the L before, of every series of MoRF and LeRF",
    unit="alpha", reads="alpha", numbers=_alphas(ORDERS),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    alpha = _table_1(e, ORDERS)
    return parts(**{f"L {a} to {b}": _difference(alpha, "steps", b, a) for a, b in pairwise(LEVELS)})


# -- Figure 2: what the metrics say of the methods ---------------------------------------------------------------------


@claim(
    "T6", "tomsett", "MoRF and LeRF rank the methods oppositely", place=FIGURE_2A,
    predicate="minus the Spearman correlation of the two orders of the methods, best first, of each perturbation",
    unit="correlation", text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    ranks = {p: (_aopc(e, "MoRF", p).rank(axis=1), -_aopc(e, "LeRF", p).rank(axis=1)) for p in BOTH}
    return pd.DataFrame({p: -morf.corrwith(lerf, axis=1) for p, (morf, lerf) in ranks.items()})


@claim(
    "T7", "tomsett", "the MoRF ranking of the methods depends on the perturbation", place=FIGURE_2A,
    predicate="of a pair of methods: the smaller |difference of AOPC| of both perturbations, > 0 where the order turns",
    quantifier="some", unit="AOPC", text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return -_same_order(*(_aopc(e, "MoRF", p) for p in BOTH))


@claim(
    "T8", "tomsett", "the LeRF ranking of the methods is the same for both perturbations", place=FIGURE_2A,
    predicate="of a pair of methods: the smaller |difference of AOPC| of both perturbations, > 0 where the order stays",
    unit="AOPC", text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _same_order(*(_aopc(e, "LeRF", p) for p in BOTH))


@claim(
    "T9", "tomsett", "the mean F of every method is near 0", place="Figure 2b, text",
    predicate="mean F of a method, with each perturbation, within 0.2 of 0",
    unit="faithfulness", bound=NEAR_ZERO, text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**{p: _faithfulness(e, p) for p in BOTH})


@claim(
    "T9b", "tomsett", "edge detection has the lowest mean F", place="Figure 2b, text",
    predicate="mean F of another method - of edge detection, with each perturbation",
    unit="faithfulness", text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**{p: -_lead(_faithfulness(e, p), "edge") for p in BOTH})


# -- Table 2: do metrics agree on the images? --------------------------------------------------------------------------


@claim(
    "T10", "tomsett", "F is weakly correlated with MoRF", place="Table 2, text",
    predicate="Spearman of F and MoRF over images, of every method, within 0.4 of 0",
    unit="correlation", bound=WEAK, numbers=_rhos("F vs MoRF"),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _table_2(e, "F vs MoRF")


@claim(
    "T10b", "tomsett", "F is slightly anti-correlated with LeRF", place="Table 2, text",
    predicate="minus Spearman of F and LeRF over images, of every method",
    unit="correlation", numbers=_rhos("F vs LeRF"),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return -_table_2(e, "F vs LeRF")


@claim(
    "T11", "tomsett", "the correlation of MoRF and LeRF is highly variable between methods", place="Table 2, text",
    predicate="range over the five methods of Spearman of MoRF and LeRF - 0.5",
    quantifier="average", unit="correlation", numbers=_rhos("MoRF vs LeRF"),
)  # fmt: skip
def _(e: Evidence) -> pd.Series:
    return _range(e, "MoRF vs LeRF") - VARIABLE


@claim(
    "T12", "tomsett", "MoRF with mean and with random perturbation is the most consistent pair of metrics",
    place="Table 2, text", predicate="range over the five methods of another pair's Spearman - of this pair's",
    unit="correlation", numbers=_rhos(*PAIRS),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    ranges = pd.DataFrame({pair: _range(e, pair) for pair in PAIRS})
    return -_lead(ranges, RANDOM_MEAN)


@claim(
    "T12a", "tomsett", "MoRF with mean and with random perturbation is the pair of metrics that agrees best",
    place="Table 2, text", predicate="mean over the five methods of this pair's Spearman - of another pair's",
    unit="correlation", apart="second reading: by the height of the correlations", numbers=_rhos(*PAIRS),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    heights = pd.DataFrame({pair: _table_2(e, pair).mean(axis=1) for pair in PAIRS})
    return _lead(heights, RANDOM_MEAN)


# -- the text on Figure 2 ----------------------------------------------------------------------------------------------


@claim(
    "T13", "tomsett",
    "gradient x input and SHAP are worse than random orders under LeRF, better on images of low confidence",
    place=FIGURE_2A, unit="AOPC", text=True, reads="low confidence",
    predicate="LeRF AOPC with mean perturbation: on all images; minus it on images of confidence up to 0.8",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    signed = ["input_x_gradient", "deep_shap"]
    return parts(
        worse=_aopc(e, "LeRF", "mean")[signed], better_if_unsure=-_aopc(e, "LeRF", "mean", "low confidence")[signed]
    )


@claim(
    "T14", "tomsett", "edge detection and Deep Taylor gain under random RGB perturbation for MoRF", place=FIGURE_2A,
    predicate="MoRF AOPC with random RGB - with mean perturbation",
    unit="AOPC", text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return (_aopc(e, "MoRF", "random_rgb") - _aopc(e, "MoRF", "mean"))[["edge", "deep_taylor"]]


@claim(
    "T15", "tomsett", "tight intervals hide a high variance", place="text",
    predicate="standard deviation of AOPC over images / width of its mean's 95% interval - 5",
    unit="ratio", apart="cannot fail: the width of an interval falls with the number of images", text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    images = e.basis(None).images
    if images < ENOUGH:
        raise NotTestable(f"needs {ENOUGH} images: with {images} no interval is that tight")
    chosen: dict[str, Any] = {"metric": ORDERS, "perturbation": BOTH, "method": METHODS}
    means = _cells(e["mean"], subset="all", **chosen).iloc[1:]
    width = means.quantile(0.975) - means.quantile(0.025)
    return _cells(e["std"], **chosen) / width - MUCH


@claim(
    "T15a", "tomsett", "AOPC varies more between images than between methods", place="text",
    predicate="smallest standard deviation of AOPC over images - range of the methods' means",
    unit="AOPC", apart="ours: not in the paper", text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    hidden = {}
    for metric in ORDERS:
        for perturbation in BOTH:
            means = _aopc(e, metric, perturbation)
            std = _cells(e["std"], metric=metric, perturbation=perturbation, method=METHODS)
            hidden[f"{metric} {perturbation}"] = std.min(axis=1) - (means.max(axis=1) - means.min(axis=1))
    return pd.DataFrame(hidden)


@claim(
    "T16", "tomsett", "AOPC depends on the class: frogs score better in MoRF, worse in LeRF", place="text",
    predicate="AOPC with mean perturbation, mean over methods: of frogs - of the other nine classes",
    unit="AOPC", text=True, reads=FROG,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    frog, others = ({m: _aopc(e, m, "mean", subset) for m in ORDERS} for subset in (FROG, f"not {FROG}"))
    return pd.DataFrame({m: (frog[m] - others[m]).mean(axis=1) for m in ORDERS})


@claim(
    "T16b", "tomsett", "F depends on the class: frogs score better", place="text",
    predicate="F with mean perturbation, mean over methods: of frogs - of the other nine classes",
    quantifier="average", unit="faithfulness", text=True, reads=FROG,
)  # fmt: skip
def _(e: Evidence) -> pd.Series:
    return (_faithfulness(e, "mean", FROG) - _faithfulness(e, "mean", f"not {FROG}")).mean(axis=1)


@claim(
    "T17", "tomsett", "gradient x input is the best method under MoRF with mean perturbation", place=FIGURE_2A,
    predicate="MoRF AOPC of gradient x input - of another method", unit="AOPC", text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _lead(_aopc(e, "MoRF", "mean"), "input_x_gradient")


@claim(
    "T18", "tomsett", "Deep Taylor is close to sensitivity under MoRF with mean perturbation", place=FIGURE_2A,
    predicate="MoRF AOPC of Deep Taylor - of sensitivity, within 0.02 of 0",
    quantifier="average", unit="AOPC", bound=CLOSE, text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.Series:
    means = _aopc(e, "MoRF", "mean")
    return means["deep_taylor"] - means["sensitivity"]


@claim(
    "T19", "tomsett", "edge detection is the best method under LeRF", place=FIGURE_2A,
    predicate="LeRF AOPC of another method - of edge detection, with each perturbation", unit="AOPC", text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**{p: -_lead(_aopc(e, "LeRF", p), "edge") for p in BOTH})


# -- do methods' scores rise and fall together? ------------------------------------------------------------------------


@claim(
    "T20", "tomsett", "inter-method correlations are highest for MoRF", place=CORRELATIONS,
    predicate="mean pairwise correlation of MoRF - of LeRF, of F, without edge detection, with each perturbation",
    unit="correlation", text=True, reads="inter_method", numbers=_correlations("MoRF"),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**{f"over {m}": _correlation(e, "MoRF") - _correlation(e, m) for m in ("LeRF", "F")})


@claim(
    "T21", "tomsett", "edge detection lowers the inter-method correlations", place=CORRELATIONS,
    predicate="mean pairwise correlation without edge detection - with it, of every metric and perturbation",
    unit="correlation", text=True, reads="inter_method",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**{m: _correlation(e, m) - _correlation(e, m, "with") for m in STEPS})


@claim(
    "T22", "tomsett", "the perturbation matters less for inter-method correlations than for alpha", place=CORRELATIONS,
    predicate="|alpha, mean - random RGB| - |correlation, mean - random RGB|, mean over metrics with and without edge",
    quantifier="average", unit="correlation", text=True, reads="inter_method",
)  # fmt: skip
def _(e: Evidence) -> pd.Series:
    """The size of an estimated difference is too large by chance, on both sides: with many images by little."""
    sizes = []
    for metric, steps in STEPS.items():
        for edge in EDGE:
            rho = _correlation(e, metric, edge)
            alpha = _cells(e["alpha"], metric=metric, steps=steps, perturbation=BOTH, edge=edge).loc[rho.index]
            sizes.append(alpha[BOTH[0]].sub(alpha[BOTH[1]]).abs() - rho[BOTH[0]].sub(rho[BOTH[1]]).abs())
    return pd.concat(sizes, axis=1).mean(axis=1, skipna=False)


@claim(
    "T23", "tomsett", "inter-method correlations are lowest for F", place=CORRELATIONS,
    predicate="mean pairwise correlation of MoRF, of LeRF - of F, without edge detection, with each perturbation",
    unit="correlation", text=True, reads="inter_method", numbers=_correlations("F"),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**{m: _correlation(e, m) - _correlation(e, "F") for m in ORDERS})


# -- single methods ----------------------------------------------------------------------------------------------------


@claim(
    "T24", "tomsett", "of the saliency methods Deep Taylor has the lowest correlation of mean and random MoRF",
    place="Table 2, text", predicate="Spearman of another method (no edge detection) - of Deep Taylor",
    unit="correlation", numbers=_rhos(RANDOM_MEAN),
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return -_lead(pick(_table_2(e, RANDOM_MEAN), pair=RANDOM_MEAN).drop(columns="edge"), "deep_taylor")


@claim(
    "T25", "tomsett", "SHAP is the best method under MoRF with random RGB perturbation", place=FIGURE_2A,
    predicate="MoRF AOPC of SHAP - of another method", unit="AOPC", text=True,
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _lead(_aopc(e, "MoRF", "random_rgb"), "deep_shap")


@claim(
    "T26", "tomsett", "under LeRF Deep Taylor comes after edge detection, SHAP third, gradient x input last",
    place=FIGURE_2A, unit="AOPC", text=True,
    predicate="LeRF AOPC of the method that comes later - of the one before, from Deep Taylor on, each perturbation",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    order = ["deep_taylor", "deep_shap", "sensitivity", "input_x_gradient"]
    steps: dict[str, pd.Series] = {}
    for perturbation in BOTH:
        means = _aopc(e, "LeRF", perturbation)
        steps |= {f"{perturbation} {b} after {a}": means[b] - means[a] for a, b in pairwise(order)}
    return pd.DataFrame(steps)


def claims(e: TomsettEvidence) -> Verdicts:
    """The verdict on every claim."""
    return judge(claims_of("tomsett"), e.draws, published_evidence())
