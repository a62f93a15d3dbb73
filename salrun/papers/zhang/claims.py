"""What Zhang, Torres, Hermanns (ACML 2024) claim. D2a, D3a, .. and D3.every, .. are further readings of D2, D3, ..

The network is pretrained, so every claim is about its images. Words of the paper stand in quotation marks; published
numbers are taken as printed, suspected misprints included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from salrun.papers.claims import Controls, Evidence, Numbers, Parts, claim, claims_of, parts
from salrun.papers.evidence import NotTestable, pick
from salrun.papers.verdicts import Verdicts, judge
from salrun.papers.zhang.evidence import ZhangEvidence, by_family, by_method, published_evidence, second
from salrun.papers.zhang.names import (
    CLEAN,
    FAMILIES,
    FIDELITY,
    MASKED,
    METHODS,
    RANDOM_TIES,
    REAL,
    REFLECTED,
    ROBUSTNESS,
    TRANSFORMS,
)

NOTHING = 1e-6
MUCH = 10.0  # points
CONSIDERABLE = 5.0  # points: tau
NEAR_0 = 1.0  # points
MEDIUM = 0.5  # Cohen's d
HALF = 0.5
CAMS = FAMILIES["CAM"]
OTHERS = [m for m in REAL if m not in CAMS]
PAIRS = [f"{a} / {b}" for a, b in combinations(REAL, 2)]
PIXELS = 224**2
PLACES = {
    **{"fidelity": "Table 1, text", "targets": "Table 2, text", "correlation": "Figure 2, text"},
    **{"robustness effects": "Table 3, text", "transforms": "Table 4, text", "worst image": "Figure 1, text"},
}

Measure: TypeAlias = Callable[[pd.DataFrame], Parts]


def claims(e: ZhangEvidence) -> Verdicts:
    """The verdict on every claim, from the models (seeds) of a run."""
    return judge(claims_of("zhang"), {seed.seed: seed.claims for seed in e.seeds}, published_evidence())


def stated(
    id: str, reads: str, sentence: str, predicate: str, unit: str = "points", ties: bool = False, **options: Any
) -> Callable[[Measure], Measure]:
    """Register a function of one table of the evidence, the one it reads, as a claim.

    `ties`: the order of equal pixels matters; the claim's second mode has insertion and deletion take them at random.
    """
    options = {"place": PLACES.get(reads, "text"), "population": "images", **options}

    def register(measure: Measure) -> Measure:
        if ties:
            options["second_mode"] = lambda e: measure(with_random_ties(e[reads]))
        about = {"predicate": predicate, "unit": unit, "reads": reads}
        claim(id, "zhang", sentence, **about, **options)(lambda e: measure(e[reads]))
        return measure

    return register


def with_random_ties(table: pd.DataFrame) -> pd.DataFrame:
    """Insertion and deletion that take equal pixels in random order, in the place of the reproduction's."""
    kept = table.loc[:, ~table.columns.get_level_values("metric").isin(list(RANDOM_TIES))]
    return kept.rename(columns={name: metric for metric, name in RANDOM_TIES.items()}, level="metric")


def cells(
    table: str, metrics: Sequence[str], unit: str = "points", scale: float = 1.0, **levels: Sequence[str]
) -> Numbers:
    """The cells of these columns of a printed table, of all methods."""
    places = [dict(zip(levels, values, strict=True)) for values in product(*levels.values())]

    def read(e: Evidence) -> pd.DataFrame:
        named = {" ".join([*at.values(), m]): by_method(e[table], m, **at) for at in places for m in metrics}
        return scale * parts(**named)

    return Numbers(unit, read)


# -- ranks -------------------------------------------------------------------------------------------------------------


def ranks(values: pd.DataFrame) -> pd.DataFrame:
    """1 = the highest of each row; equal ones share the mean rank; none where one of them is undefined."""
    ranked = values.rank(axis=1, ascending=False)
    ranked.loc[values.isna().any(axis=1)] = np.nan
    return ranked


def mean_ranks(table: pd.DataFrame) -> pd.DataFrame:
    """Of every method among the ten, over the six fidelity metrics."""
    return mean_of([ranks(by_method(table, m)) for m in FIDELITY])


def family_ranks(table: pd.DataFrame, metric: str, families: Mapping[str, Sequence[str]] = FAMILIES) -> pd.DataFrame:
    return ranks(by_family(by_method(table, metric), families))


def mean_of(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The mean over tables of the same columns."""
    return pd.DataFrame(np.mean([t.to_numpy() for t in tables], axis=0), columns=tables[0].columns)


def ahead(ranked: pd.DataFrame, of: str) -> pd.DataFrame:
    """By how many ranks each of the others is behind one."""
    return ranked.drop(columns=of).sub(ranked[of], axis=0)


def last(ranked: pd.DataFrame, of: str) -> pd.Series:
    """By how many ranks one is behind the worst of the others."""
    return -ahead(ranked, of).max(axis=1, skipna=False)


# -- Table 1: fidelity -------------------------------------------------------------------------------------------------


def fake_against_second(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    means = {m: by_method(table, m) for m in metrics}
    return pd.DataFrame({m: values["fake_cam"] - second(values[REAL]) for m, values in means.items()})


@stated(
    "D1",
    "fidelity",
    "Fake-CAM is among the best two methods on AI and AD",
    "Fake-CAM's mean minus that of the second best real method: AI, 100 - AD",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return fake_against_second(t, ["AI", "ADb"])


@stated(
    "D1b",
    "fidelity",
    "Fake-CAM is among the best two methods on monotonicity",
    "Fake-CAM's mean monotonicity minus that of the second best real method; its definition is our guess",
    unit="monotonicity",
    numbers=cells("Table 1", ["Mono"], "monotonicity"),
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return fake_against_second(t, ["Mono"])


def gradient_last(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame({m: last(family_ranks(table, m), "gradient") for m in metrics})


LAST = "rank of the gradient family's mean among the four families minus the worst rank of the others, by metric"


@stated(
    "D2",
    "fidelity",
    'gradient methods are poor on "most" fidelity metrics: the lowest family mean',
    LAST,
    quantifier="most",
    unit="ranks",
    ties=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return gradient_last(t, FIDELITY)


@stated(
    "D2a",
    "fidelity",
    "gradient methods have the lowest family mean on AI, AD, AG, insertion and monotonicity",
    f"{LAST}, without deletion",
    unit="ranks",
    apart="second reading: every metric but deletion",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return gradient_last(t, [m for m in FIDELITY if m != "Db"])


def cams_ahead(table: pd.DataFrame, families: Mapping[str, Sequence[str]] = FAMILIES) -> pd.DataFrame:
    return ahead(mean_of([family_ranks(table, m, families) for m in FIDELITY]), "CAM")


BEST_ON_AVERAGE = '"on average, CAM-based methods can be considered to perform best"'


@stated(
    "D3",
    "fidelity",
    BEST_ON_AVERAGE,
    "mean over the six metrics of the rank of the family's mean: another family's minus the CAMs'",
    unit="ranks",
    ties=True,
    controls=Controls(
        "success", lambda e, name: cams_ahead(e["fidelity"], {**FAMILIES, "CAM": [name]}), (), ("fake_cam",)
    ),
    numbers=cells("Table 1", MASKED),
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return cams_ahead(t)


@stated(
    "D3a",
    "fidelity",
    BEST_ON_AVERAGE,
    "mean over a family's methods of their mean ranks over the six metrics: another family's minus the CAMs'",
    unit="ranks",
    apart="second reading: another average",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return ahead(by_family(mean_ranks(t)), "CAM")


@stated(
    "D3.every",
    "fidelity",
    "CAM methods have the highest family mean on every fidelity metric",
    "best rank of the other three families' means minus the rank of the CAMs', by metric",
    unit="ranks",
    apart="second reading: every metric instead of their average",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({m: ahead(family_ranks(t, m), "CAM").min(axis=1, skipna=False) for m in FIDELITY})


@stated(
    "D3b",
    "fidelity",
    'CAM-based methods perform best on average, "notably including Fake-CAM"',
    "mean rank over the six metrics: of a method that is no CAM minus Fake-CAM's",
    unit="ranks",
    ties=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return ahead(mean_ranks(t)[[*OTHERS, "fake_cam"]], "fake_cam")


def fake_rank(table: pd.DataFrame, metric: str) -> pd.Series:
    return ranks(by_method(table, metric))["fake_cam"]


@stated(
    "D4",
    "fidelity",
    "AG, insertion and deletion are not fooled by Fake-CAM",
    "Fake-CAM's rank minus half the number of methods, 5: AG, I, 100 - D",
    unit="ranks",
    ties=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({m: fake_rank(t, m) - len(METHODS) / 2 for m in ("AG", "I", "Db")})


@stated(
    "D4a",
    "fidelity",
    'deletion is not fooled by Fake-CAM to a "lesser extent" than AG and insertion',
    "Fake-CAM's rank on AG and on I minus its rank on 100 - D",
    unit="ranks",
    ties=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({m: fake_rank(t, m) - fake_rank(t, "Db") for m in ("AG", "I")})


@stated(
    "D5",
    "fidelity",
    "all methods fail completeness",
    "share of the min-max maps that sum to the logit's change: none, by construction",
    place="text",
    unit="share",
    apart="cannot fail: on normalised maps",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    raise NotTestable("is not measured: a min-max map does not sum to a logit's change")


@stated(
    "D5.raw",
    "fidelity",
    "no method's raw maps are complete on any image",
    "0 minus the share of raw maps whose sum is within 5% of the logit's change (up to 1e-6)",
    place="text",
    unit="share",
    apart="ours: completeness of raw maps",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return NOTHING - by_method(t, "Complete") / 100


@stated(
    "D5.IG",
    "fidelity",
    "raw maps of integrated gradients are complete",
    "1% minus the mean relative error of IG's sum against the logit's change",
    place="text",
    unit="share",
    apart="ours: completeness of raw maps",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return 0.01 - by_method(t, "Residual", ["integrated_gradients"])


# -- Table 2: the class explained --------------------------------------------------------------------------------------


def between_targets(table: pd.DataFrame, metrics: Sequence[str], more: str, less: str) -> pd.DataFrame:
    """By metric and method: the mean with one class explained minus that with another."""
    return parts(**{m: by_method(table, m, target=more) - by_method(table, m, target=less) for m in metrics})


def label_over_predicted(table: pd.DataFrame) -> pd.Series:
    return between_targets(table, MASKED, "label", "predicted").mean(axis=1, skipna=False)


MEAN_GAIN = "mean over methods and AI, 100 - AD, AG, I, 100 - D of: label explained minus prediction explained"


@stated(
    "D6",
    "targets",
    '"overall", explaining the label is best',
    MEAN_GAIN,
    quantifier="average",
    numbers=cells("Table 2", MASKED, target=["predicted"]),
)
def _(t: pd.DataFrame) -> pd.Series:
    return label_over_predicted(t)


@stated(
    "D6.methods",
    "targets",
    "explaining the label is better for every method and metric",
    "label explained minus prediction explained, by method and metric",
    apart="second reading: every method and metric",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return between_targets(t, MASKED, "label", "predicted")


@stated(
    "D6b",
    "targets",
    'explaining the prediction is "only slightly" worse than explaining the label',
    f"{MEAN_GAIN}; inside +-5",
    quantifier="average",
    bound=CONSIDERABLE,
)
def _(t: pd.DataFrame) -> pd.Series:
    return label_over_predicted(t)


@stated(
    "D7",
    "targets",
    "the least probable class has higher AI, 100 - AD and 100 - D, for every method",
    "least probable class explained minus label explained: AI, 100 - AD, 100 - D",
    numbers=cells("Table 2", ["AI", "ADb", "Db"], target=["least_probable"]),
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return between_targets(t, ["AI", "ADb", "Db"], "least_probable", "label")


@stated(
    "D7b",
    "targets",
    "the least probable class has very low AG and insertion",
    "1 minus AG or I with the least probable class explained, by method",
    numbers=cells("Table 2", ["AG", "I"], target=["least_probable"]),
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return parts(**{m: NEAR_0 - by_method(t, m, target="least_probable") for m in ("AG", "I")})


# -- Figure 2: the probability of the class ----------------------------------------------------------------------------


@stated(
    "D8",
    "correlation",
    'insertion and deletion "generally" rise with p_c: "D correlates positively with y_c"',
    "Spearman over images with p_c: I, D (D itself), by method",
    quantifier="most",
    unit="correlation",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return parts(**{m: by_method(t, m) for m in ("I", "D")})


@stated(
    "D8.printed",
    "correlation",
    'insertion and 100 - D "generally" rise with p_c',
    "Spearman over images with p_c: I, 100 - D, by method",
    quantifier="most",
    unit="correlation",
    apart="second reading: deletion as printed, 100 - D",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return parts(I=by_method(t, "I"), Db=-by_method(t, "D"))


@stated(
    "D8b",
    "correlation",
    "insertion rises with p_c more than deletion does",
    "Spearman with p_c of I minus that of D, by method",
    quantifier="most",
    unit="correlation",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return by_method(t, "I") - by_method(t, "D")


@stated(
    "D9",
    "correlation",
    "of CAM methods AG rises and AD falls with p_c",
    "Spearman over images with p_c: AG, minus that of AD, by CAM method",
    unit="correlation",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return parts(AG=by_method(t, "AG", CAMS), AD=-by_method(t, "AD", CAMS))


@stated(
    "D9b",
    "correlation",
    "AG and AD of other methods follow p_c less than those of CAM methods",
    "mean |Spearman with p_c| of the CAM methods minus that of the other real methods: AG, AD",
    unit="correlation",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    def size(metric: str, methods: list[str]) -> pd.Series:
        return by_method(t, metric, methods).abs().mean(axis=1, skipna=False)

    return pd.DataFrame({m: size(m, CAMS) - size(m, OTHERS) for m in ("AG", "AD")})


# -- what metrics tell apart -------------------------------------------------------------------------------------------


@stated(
    "D10",
    "fidelity effects",
    'metrics are "not discriminative enough to meaningfully tell apart performance of specific saliency methods"',
    "Cohen's d over images of two real methods, by fidelity metric: inside +-0.5",
    quantifier="most",
    bound=MEDIUM,
    unit="Cohen's d",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return effect_sizes(t, FIDELITY)


def effect_sizes(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    return pd.concat({m: pick(table, metric=m, pair=PAIRS) for m in metrics}, axis=1)


EXTREMES = (
    "robustness and complexity metrics "
    '"primarily identify extreme cases and lack differentiation in most saliency methods"'
)


@stated(
    "D11",
    "robustness effects",
    EXTREMES,
    "Cohen's d over images of two real methods, by metric of Table 3: inside +-0.5",
    quantifier="most",
    bound=MEDIUM,
    unit="Cohen's d",
    text=True,
    numbers=cells("Table 3", ["Sparseness"]),
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return effect_sizes(t, ROBUSTNESS)


for name, of_table_3 in {
    "Complexity": cells("Table 3", ["Complexity"], "nats"),
    "EC": cells("Table 3", ["EC"], "percent of the pixels", 100 / PIXELS),
}.items():
    stated(
        f"D11.{name}",
        "robustness effects",
        EXTREMES,
        f"Cohen's d over images of two real methods on {name}: inside +-0.5",
        unit="Cohen's d",
        quantifier="most",
        bound=MEDIUM,
        apart=f"second reading: {name} alone, beside its printed numbers",
        text=True,
        numbers=of_table_3,
    )(partial(effect_sizes, metrics=[name]))


# -- Table 4: transforms -----------------------------------------------------------------------------------------------


def change(table: pd.DataFrame, metric: str, transform: str, methods: Sequence[str] = METHODS) -> pd.DataFrame:
    """By how much a transform raises the means."""
    varied, clean = (by_method(table, metric, methods, transform=t) for t in (transform, CLEAN))
    return varied - clean


@stated(
    "D12",
    "transforms",
    'of Fake-CAM AI rises under rotation, and "AD drops dramatically with Resize"',
    "rise of AI under rotation (black corners), fall of 100 - AD under resizing (printed 2.0: misprint?), minus 10",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    rise, fall = change(t, "AI", "rotation", ["fake_cam"]), -change(t, "ADb", "resize", ["fake_cam"])
    return parts(**{"AI rotation": rise - MUCH, "ADb resize": fall - MUCH})


@stated(
    "D12r",
    "transforms",
    "of Fake-CAM AI rises under rotation",
    "rise of AI under rotation with corners filled by reflection, minus 10",
    apart="second reading: corners filled by reflection",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return change(t, "AI", REFLECTED, ["fake_cam"]) - MUCH


@stated(
    "D13",
    "transforms",
    'under transforms insertion "generally" falls and 100 - D rises',
    "fall of I and rise of 100 - D, by transform and method (Grad-CAM, crop printed 78.8: misprint?)",
    quantifier="most",
    numbers=cells("Table 4", ["I", "Db"], transform=TRANSFORMS),
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    falls = {f"I {name}": -change(t, "I", name) for name in TRANSFORMS}
    return parts(**falls, **{f"Db {name}": change(t, "Db", name) for name in TRANSFORMS})


def least_under_crop(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    size = {t: change(table, metric, t).abs().mean(axis=1, skipna=False) for t in TRANSFORMS}
    return pd.DataFrame({t: size[t] - size["crop"] for t in TRANSFORMS if t != "crop"})


LEAST = "mean over methods of |change of the mean| under a transform minus that under crop"


@stated("D13b", "transforms", "insertion changes least under crop", f"{LEAST}: I")
def _(t: pd.DataFrame) -> pd.DataFrame:
    return least_under_crop(t, "I")


@stated("D13c", "transforms", "deletion changes least under crop", f"{LEAST}: 100 - D")
def _(t: pd.DataFrame) -> pd.DataFrame:
    return least_under_crop(t, "Db")


def spread(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Highest minus lowest mean over the clean images and the four transforms, by method."""
    means = np.stack([by_method(table, metric, transform=t).to_numpy() for t in (CLEAN, *TRANSFORMS)])
    return pd.DataFrame(means.max(axis=0) - means.min(axis=0), columns=METHODS)


def relative_spread(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The spread over the clean value; none where that is 0."""
    clean = by_method(table, metric, transform=CLEAN)
    return spread(table, metric) / clean.where(clean != 0)


def gain_varies_least(size: Mapping[str, pd.Series]) -> pd.DataFrame:
    return pd.DataFrame({m: size[m] - size["AG"] for m in MASKED if m != "AG"})


@stated(
    "D14",
    "transforms",
    "under transforms AI and AD of gradient methods vary most, those of CAM methods least",
    "(highest - lowest mean over clean and transforms) / clean, family means: gradient minus the most of the "
    "others, the least of the others minus CAM; AI, 100 - AD",
    unit="ratio",
    numbers=cells("Table 4", ["AI", "ADb"], transform=TRANSFORMS),
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    found: dict[str, pd.Series] = {}
    for metric in ("AI", "ADb"):
        family = by_family(relative_spread(t, metric))
        found[f"{metric} gradient most"] = -ahead(family, "gradient").max(axis=1, skipna=False)
        found[f"{metric} CAM least"] = ahead(family, "CAM").min(axis=1, skipna=False)
    return pd.DataFrame(found)


@stated(
    "D15",
    "transforms",
    'under transforms "only AG remains stable"',
    "(highest - lowest mean over clean and transforms), mean over real methods: another metric's minus AG's",
    numbers=cells("Table 4", ["AG"], transform=TRANSFORMS),
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return gain_varies_least({m: spread(t, m)[REAL].mean(axis=1, skipna=False) for m in MASKED})


@stated(
    "D15a",
    "transforms",
    'under transforms "only AG remains stable"',
    "mean over CAM methods of (highest - lowest mean) / clean: another metric's minus AG's",
    unit="ratio",
    apart="second reading: relative to the clean value",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return gain_varies_least({m: relative_spread(t, m)[CAMS].mean(axis=1, skipna=False) for m in MASKED})


# -- methods -----------------------------------------------------------------------------------------------------------


@stated(
    "D18",
    "fidelity",
    'methods of one family "do not differ considerably"',
    "difference of two methods of the gradient, CAM or occlusion family on AI, 100 - AD, AG, I, 100 - D: +-5",
    bound=CONSIDERABLE,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    means = {m: by_method(t, m) for m in MASKED}
    pairs = [pair for members in FAMILIES.values() for pair in combinations(members, 2)]
    return pd.DataFrame({f"{m} {a} / {b}": means[m][a] - means[m][b] for m in MASKED for a, b in pairs})


@stated(
    "D19",
    "sparseness",
    "AI and AD favour large continuous regions",
    "minus the mean over images of Spearman(Sparseness, score) across the real methods: AI, 100 - AD",
    unit="correlation",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return -pick(t, metric=["AI", "ADb"])


@stated(
    "D20",
    "worst image",
    "the worst insertion and the worst deletion come from the same image",
    "share of the images of the lowest tenth of I that are in the lowest tenth of 100 - D, minus one half, by method",
    quantifier="most",
    unit="share",
    text=True,
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return pick(t, method=METHODS) - HALF


@stated(
    "D21",
    "transforms",
    "every method is sensitive to transforms",
    "mean |change| over the four transforms and AI, 100 - AD, AG, I, 100 - D, minus 5, by real method",
)
def _(t: pd.DataFrame) -> pd.DataFrame:
    return mean_of([change(t, m, name, REAL).abs() for m in MASKED for name in TRANSFORMS]) - CONSIDERABLE
