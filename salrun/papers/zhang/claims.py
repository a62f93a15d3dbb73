"""What Zhang, Torres, Hermanns (ACML 2024) claim, as margins. D2a, D3a, .. are further readings of D2, D3, ..

Every claim reads one table of the evidence. Margins are in the tables' own units (points of AI, ADb, AG, I, Db; ranks
where the statement is about ranks). Published numbers are taken as printed, suspected misprints included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd

from salrun.papers.claims import Parts, claim, claims_of, evaluate_claims, parts
from salrun.papers.zhang.evidence import ZhangEvidence, by_family, by_method, lead, published_evidence, second
from salrun.papers.zhang.names import CLEAN, CLOSE, FAMILIES, FIDELITY, MASKED, METHODS, REAL, ROBUSTNESS, TRANSFORMS

ROUNDING = 0.05  # published percentages have one decimal: equal up to this
ROUNDING_MS = 0.005  # MS and AS have two
NOTHING = 1e-6
MUCH = 10.0  # points
FEW = 2.5  # at most two methods of ten
CAMS = FAMILIES["CAM"]

Measure: TypeAlias = Callable[[pd.DataFrame], Parts]


def claims(e: ZhangEvidence) -> pd.DataFrame:
    """The verdict on every claim, from the models (seeds) of a run."""
    return evaluate_claims(claims_of("zhang"), [seed.claims for seed in e.seeds], published_evidence())


def stated(id: str, reads: str, statement: str, text: bool = False) -> Callable[[Measure], Measure]:
    """Register a function of one table of the evidence, the one it reads, as a claim."""

    def register(measure: Measure) -> Measure:
        claim(id, "zhang", statement, reads=reads, text=text)(lambda e: measure(e[reads]))
        return measure

    return register


def ranks(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """1 = best of the ten methods; equal ones share the mean rank."""
    return by_method(table, metric).rank(axis=1, ascending=False)


def mean_ranks(table: pd.DataFrame) -> pd.DataFrame:
    each = np.stack([ranks(table, m).to_numpy() for m in FIDELITY])
    return pd.DataFrame(each.mean(axis=0), columns=METHODS)


def gradient_lowest(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame({m: lead(-by_family(by_method(table, m)), "gradient") for m in metrics})


@stated("D1", "fidelity", "Fake-CAM is among the best two methods on AI, AD and monotonicity")
def _(t: pd.DataFrame) -> pd.DataFrame:
    means = {m: by_method(t, m) for m in ("AI", "ADb", "Mono")}
    return pd.DataFrame({m: values["fake_cam"] - second(values[REAL]) for m, values in means.items()})


@stated("D2", "fidelity", "gradient methods have the lowest family mean on every fidelity metric")
def _(t: pd.DataFrame) -> pd.DataFrame:
    return gradient_lowest(t, FIDELITY)


@stated("D2a", "fidelity", "gradient methods have the lowest family mean on AI, AD, AG, insertion and monotonicity")
def _(t: pd.DataFrame) -> pd.DataFrame:
    return gradient_lowest(t, [m for m in FIDELITY if m != "Db"])


@stated("D3", "fidelity", "CAM methods have the highest family mean on every fidelity metric (Fake-CAM left out)")
def _(t: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({m: lead(by_family(by_method(t, m)), "CAM") for m in FIDELITY})


@stated("D3a", "fidelity", "the three CAM methods have the best mean ranks over the fidelity metrics")
def _(t: pd.DataFrame) -> pd.Series:
    mean = mean_ranks(t)
    return mean.drop(columns=CAMS).min(axis=1) - mean[CAMS].max(axis=1)


@stated("D3b", "fidelity", "Fake-CAM too has a better mean rank than every method that is no CAM")
def _(t: pd.DataFrame) -> pd.DataFrame:
    mean = mean_ranks(t)
    return mean[[m for m in REAL if m not in CAMS]].sub(mean["fake_cam"], axis=0)


@stated("D4", "fidelity", "AG, insertion and deletion are not fooled: Fake-CAM is in the worse half")
def _(t: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({m: ranks(t, m)["fake_cam"] - len(METHODS) / 2 for m in ("AG", "I", "Db")})


@stated("D4a", "fidelity", "deletion to a lesser extent: it ranks Fake-CAM better than AG and insertion do")
def _(t: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({m: ranks(t, m)["fake_cam"] - ranks(t, "Db")["fake_cam"] for m in ("AG", "I")})


@stated("D5", "fidelity", "no method's raw maps are complete on any image", text=True)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return NOTHING - by_method(t, "Complete")


def label_beats_predicted(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Where the means are equal up to rounding, predicted is no better."""
    label, predicted = ({m: by_method(table, m, target=t) for m in metrics} for t in ("label", "predicted"))
    return parts(**{m: label[m] - predicted[m] + ROUNDING for m in metrics})


@stated("D6", "targets", "explaining the label scores at least as high as explaining the prediction")
def _(t: pd.DataFrame) -> pd.DataFrame:
    return label_beats_predicted(t, MASKED)


@stated(
    "D6a", "targets", "explaining the label scores at least as high as explaining the prediction on AI and deletion"
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return label_beats_predicted(t, ["AI", "Db"])


@stated(
    "D7",
    "targets",
    "the least probable class raises AI, 100 - AD and 100 - D, and leaves AG and insertion near 0 (0.1)",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    least, label = ({m: by_method(t, m, target=target) for m in MASKED} for target in ("least_probable", "label"))
    higher = {f"{m} higher": least[m] - label[m] for m in ("ADb", "AI", "Db")}
    return parts(**higher, **{f"{m} near 0": 0.1 + ROUNDING - least[m] for m in ("AG", "I")})


def with_probability(table: pd.DataFrame, sign: int) -> pd.DataFrame:
    insertion, deletion = by_method(table, "I"), sign * by_method(table, "D")
    return parts(insertion=insertion, deletion=deletion, insertion_more=insertion - deletion)


@stated("D8", "correlation", "insertion and deletion (D itself) rise with p_c, insertion more", text=True)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return with_probability(t, 1)


@stated("D8a", "correlation", "insertion and deletion (as printed, 100 - D) rise with p_c, insertion more", text=True)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return with_probability(t, -1)


@stated("D9", "correlation", "of CAM methods AG rises and AD falls with p_c", text=True)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return parts(AG=by_method(t, "AG", CAMS), AD=-by_method(t, "AD", CAMS))


@stated(
    "D10",
    "fidelity",
    "metrics do not tell CAMs, RISE and IBA apart: their spread is below a method's interval",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    margins = {}
    for metric in MASKED:
        means = by_method(t, metric, CLOSE)
        width = (means.iloc[1:].quantile(0.975) - means.iloc[1:].quantile(0.025)).mean()
        margins[metric] = width - (means.max(axis=1) - means.min(axis=1))
    return pd.DataFrame(margins)


def outliers(values: pd.DataFrame) -> pd.DataFrame:
    """Which methods lie beyond 1.5 times the distance of the quartiles from them."""
    low, high = np.quantile(values, [0.25, 0.75], axis=1)
    reach = 1.5 * (high - low) + 1e-9  # published numbers are decimal: a value on the fence is inside
    return values.lt(low - reach, axis=0) | values.gt(high + reach, axis=0)


@stated(
    "D11", "robustness", "robustness and complexity metrics single out extremes only (at most two outliers of 1.5 IQR)"
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({m: FEW - outliers(by_method(t, m)).sum(axis=1) for m in ROBUSTNESS})


def change(table: pd.DataFrame, metric: str, transform: str, methods: Sequence[str] = METHODS) -> pd.DataFrame:
    """By how much a transform raises the means."""
    varied, clean = (by_method(table, metric, methods, transform=t) for t in (transform, CLEAN))
    return varied - clean


@stated(
    "D12",
    "transforms",
    "Fake-CAM: AI rises by 10 under rotation, ADb falls by 10 under resizing (printed 2.0: misprint?)",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    rise, fall = change(t, "AI", "rotation", ["fake_cam"]), -change(t, "ADb", "resize", ["fake_cam"])
    return parts(AI_rotation=rise - MUCH, ADb_resize=fall - MUCH)


def insertion_falls(table: pd.DataFrame) -> pd.DataFrame:
    falls = {t: -change(table, "I", t) for t in TRANSFORMS}
    size = {t: fall.abs().mean(axis=1) for t, fall in falls.items()}
    least = pd.DataFrame({t: size[t] - size["crop"] for t in TRANSFORMS if t != "crop"})
    return parts(**{f"I falls, {t}": fall for t, fall in falls.items()}, **{"I least in crop, against": least})


@stated(
    "D13",
    "transforms",
    "under transforms insertion falls, least under crop, and 100 - D rises (Grad-CAM, crop printed 78.8: misprint?)",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    rises = parts(**{f"Db rises, {name}": change(t, "Db", name) for name in TRANSFORMS})
    return pd.concat([insertion_falls(t), rises], axis=1)


stated("D13a", "transforms", "under every transform insertion falls, least under crop")(insertion_falls)


def spread(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Highest minus lowest mean over the clean images and the four transforms, by method."""
    means = np.stack([by_method(table, metric, transform=t).to_numpy() for t in (CLEAN, *TRANSFORMS)])
    return pd.DataFrame(means.max(axis=0) - means.min(axis=0), columns=METHODS)


def relative_spread(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The spread over the clean value; none where that is 0."""
    clean = by_method(table, metric, transform=CLEAN)
    return spread(table, metric) / clean.where(clean != 0)


def gain_varies_least(size: dict[str, pd.Series]) -> pd.DataFrame:
    return pd.DataFrame({m: size[m] - size["AG"] for m in MASKED if m != "AG"})


@stated(
    "D14",
    "transforms",
    "under transforms AI and AD of gradient methods vary most, of CAM methods least (range / clean)",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    margins: dict[str, pd.Series] = {}
    for metric in ("AI", "ADb"):
        family = by_family(relative_spread(t, metric))
        margins |= {f"{metric} gradient most": lead(family, "gradient"), f"{metric} CAM least": lead(-family, "CAM")}
    return pd.DataFrame(margins)


@stated("D15", "transforms", "under transforms AG varies least of all metrics (points, Fake-CAM left out)")
def _(t: pd.DataFrame) -> pd.DataFrame:
    return gain_varies_least({m: spread(t, m)[REAL].mean(axis=1) for m in MASKED})


@stated(
    "D15a", "transforms", "under transforms AG of CAM methods varies least of all metrics (relative to the clean value)"
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return gain_varies_least({m: relative_spread(t, m)[CAMS].mean(axis=1) for m in MASKED})


@stated("D16", "robustness", "by definition MS is at least AS, and Fake-CAM's MS is 0")
def _(t: pd.DataFrame) -> pd.DataFrame:
    most, mean = by_method(t, "MS"), by_method(t, "AS")
    return parts(MS_not_below_AS=most - mean + ROUNDING_MS, MS_is_0=NOTHING - most[["fake_cam"]])


@stated("D16a", "robustness", "by definition MS is at least AS")
def _(t: pd.DataFrame) -> pd.DataFrame:
    return by_method(t, "MS") - by_method(t, "AS") + ROUNDING_MS
