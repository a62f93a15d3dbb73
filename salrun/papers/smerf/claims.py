"""What Kim, Plumb, Talwalkar (ICML 2022) claim, figure by figure, as margins.

`fig8a.T1` is the first statement of the text about Figure 8a, `fig6a.F` something visible in its plots. A claim is
measured with the metrics as the public code computes them; `<id>.paper` is the same claim with the metrics as the text
defines them, against the same published truth. `7.3.*` are statements that the paper's own plots do not support.
Pools with absent settings are taken as far as they are there, and the reason says so.

Most claims are a bound, a drop or an order of pooled numbers; the others are functions. CLAIMS lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from salrun.papers.claims import Evidence, Margin, Parts, claim, claims_of, evaluate_claims, parts
from salrun.papers.evidence import NotTestable, pick
from salrun.papers.smerf import maps
from salrun.papers.smerf.evidence import Measured, Reads, SmerfEvidence, published_evidence
from salrun.papers.smerf.tables import table_1, table_2
from salrun.papers.smerf.terms import (
    BOTH_PRESENT,
    BY_OBJECTS,
    COMPLEX,
    CONDITIONS,
    CR2_LINES,
    FIFTEEN,
    METRICS,
    MID,
    MORE_LINES,
    NINE,
    PAPER,
    SIMPLE,
    TEN,
    WEAK,
    WITH_AND_WITHOUT,
    Lines,
    settings_of,
)
from salrun.results.tables import ALL

HALF = 0.5  # success: more than half of the focus; correct: an IOU above one half
TOLERANCE = 0.03  # between numbers read off a plot
EXACT = 1e-9  # turns > into >=
MEETING = ["deep_taylor", "integrated_gradients", "lrp_epsilon", "deeplift_reveal_cancel", "deep_shap"]
SUCCEEDING = ["input_x_gradient", "integrated_gradients", "lrp_z", "lrp_epsilon", "lrp_a_flat"]
SUCCEEDING += ["deeplift_reveal_cancel", "deeplift_rescale"]  # above one half in the plot of Figure 6a
NARROW = ["integrated_gradients", "lrp_z", "lrp_epsilon", "deeplift_reveal_cancel", "deeplift_rescale"]
SATURATING = [*MID, "deep_taylor", "deep_shap"]
NOT_WEAK = [m for m in FIFTEEN if m not in WEAK]
ALMOST_ALL = 13  # of 15 methods
BOTH_POOLS = ("simple", "complex")
DEEP = ("alexnet", "vgg16")
MEAN_FOCUS = ("pmafl", "smafl")


def claims(e: SmerfEvidence) -> pd.DataFrame:
    """The verdict on every claim."""
    return evaluate_claims(claims_of(PAPER), e.seeds or (Measured(),), published_evidence())


# -- a claim as a row --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooled:
    """Mean, min or std over a pool's buckets, by method; `like`: over the settings of that condition alone."""

    pool: str
    metric: str
    methods: Sequence[str]
    statistic: str = "mean"
    condition: str = "plain"
    like: str = ""

    def __call__(self, e: Measured) -> pd.DataFrame:
        return e.pool(self.pool, self.metric, self.methods, self.statistic, self.condition, self.like)


@dataclass(frozen=True)
class Bound:
    """A pooled number of every method lies above, below or between bounds."""

    pools: Sequence[str]
    metric: str
    methods: Sequence[str]
    statistic: str = "mean"
    condition: str = "plain"
    above: float | None = None
    below: float | None = None
    whole: bool = False

    @property
    def reads(self) -> Reads:
        return Reads(tuple(self.pools), (self.condition,), (self.metric,), whole=self.whole)

    def __call__(self, e: Measured) -> pd.DataFrame:
        return by_name(self.pools, lambda pool: self._margins(e, pool))

    def _margins(self, e: Measured, pool: str) -> pd.DataFrame:
        value = e.pool(pool, self.metric, self.methods, self.statistic, self.condition)
        over = {} if self.above is None else {"above": value - self.above}
        under = {} if self.below is None else {"below": self.below - value}
        return by_name([*over, *under], lambda side: (over | under)[side])


@dataclass(frozen=True)
class Drop:
    """A pooled number of every method is lower in complex than in simple settings (`rises`: higher)."""

    metric: str
    methods: Sequence[str]
    statistic: str = "mean"
    conditions: tuple[str, ...] = ("plain",)
    rises: bool = False
    ties: float = 0.0  # a rise that still counts as a tie

    @property
    def reads(self) -> Reads:
        return Reads(BOTH_POOLS, self.conditions, (self.metric,))

    def __call__(self, e: Measured) -> pd.DataFrame:
        return by_name(self.conditions, lambda condition: self._margins(e, condition))

    def _margins(self, e: Measured, condition: str) -> pd.DataFrame:
        drop = fall(e, self.metric, self.methods, self.statistic, condition)
        return -drop if self.rises else drop + self.ties


@dataclass(frozen=True)
class Order:
    """One pooled number of every method is higher than another."""

    higher: Pooled
    lower: Pooled

    @property
    def reads(self) -> Reads:
        both = (self.higher, self.lower)
        under = {pooled.condition for pooled in both}
        return Reads(
            tuple(dict.fromkeys(pooled.pool for pooled in both)),
            tuple(c for c in ("plain", *CONDITIONS) if c in under),
            tuple(dict.fromkeys(pooled.metric for pooled in both)),
        )

    def __call__(self, e: Measured) -> pd.DataFrame:
        return self.higher(e) - self.lower(e)


@dataclass(frozen=True)
class Accuracy:
    """Every bucket of every model, or every model `overall`, is at least so accurate."""

    pools: Sequence[str]
    at_least: float
    overall: bool = False
    condition: str = "plain"

    @property
    def reads(self) -> Reads:
        return Reads(tuple(self.pools), (self.condition,), ())

    def __call__(self, e: Measured) -> pd.DataFrame:
        there = [s for s in e.ran(self.condition) if s in self.reads.settings]
        known = pick(pick(e["accuracy"], condition=self.condition), setting=there)
        overall = known.columns.get_level_values("bucket") == ALL
        return known.loc[:, overall if self.overall else ~overall] - self.at_least + EXACT


@dataclass(frozen=True)
class Special:
    """What only a function says."""

    reads: Reads
    measure: Callable[[Measured], Parts]

    def __call__(self, e: Measured) -> Parts:
        return self.measure(e)


def special(*of: str, **reads: Any) -> Callable[[Callable[[Measured], Parts]], Special]:
    """Turn a function into margins that say what they read."""
    return partial(Special, Reads(of, **reads))


Margins: TypeAlias = Bound | Drop | Order | Accuracy | Special  # each has `reads`, and makes margins of evidence


@dataclass(frozen=True)
class Row:
    """A claim: what the paper says, and its margins, in both readings of the metrics (`modes`) or without any."""

    id: str
    statement: str
    margins: Margins
    text: bool = False
    any_of: bool = False
    modes: bool = True
    basis: str = ""

    def register(self) -> None:
        options: dict[str, Any] = {"any_of": self.any_of, "text": self.text, "basis": self.basis}
        options["reads"] = self.margins.reads
        claim(self.id, PAPER, self.statement, **options)(self.code)
        if self.modes:
            twin = f"{self.statement} [metrics as the text defines them]"
            claim(f"{self.id}.paper", PAPER, twin, **options)(self.paper)

    def code(self, e: Evidence) -> Parts:
        assert isinstance(e, Measured)
        e.require(self.margins.reads)
        margins = self.margins(e)
        return margins.dropna(axis=1) if e.printed and isinstance(margins, pd.DataFrame) else margins

    def paper(self, e: Evidence) -> Parts:
        assert isinstance(e, Measured)
        return self.code(e.paper or replace(e, mode="paper"))


# -- numbers that several claims read ----------------------------------------------------------------------------------


def by_name(names: Sequence[str], part: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
    """The parts of several names side by side; of one name under no name."""
    return part(names[0]) if len(names) == 1 else parts(**{name: part(name) for name in names})


def fall(
    e: Measured, metric: str, methods: Sequence[str], statistic: str = "mean", condition: str = "plain"
) -> pd.DataFrame:
    """From simple to complex settings."""
    simple, complex_ = (e.pool(pool, metric, methods, statistic, condition) for pool in BOTH_POOLS)
    return simple - complex_


def bigger_drop(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """How much more PAFL falls than for any of the methods that narrowly meet one half."""
    return fall(e, "pafl", methods).sub(fall(e, "pafl", NARROW).max(axis=1), axis=0)


def of_lines(e: Measured, lines: Lines, setting: str, metric: str, methods: Sequence[str]) -> dict[str, pd.DataFrame]:
    return {name: e.line(setting, buckets, metric, methods) for name, buckets in lines[setting].items()}


def spread(lines: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Largest minus smallest of several lines, by method."""
    stacked = np.stack([line.to_numpy() for line in lines])
    return pd.DataFrame(stacked.max(axis=0) - stacked.min(axis=0), columns=MID)


def per_setting(e: Measured, settings: Sequence[str], part: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
    """One block of parts for every setting that is there."""
    blocks = {s: part(s) for s in settings if s in e.settings()}
    if not any(block.shape[1] for block in blocks.values()):
        raise NotTestable("nothing to compare: no method is above the random baseline")
    return parts(**blocks)


def of_buckets(e: Measured, setting: str, metric: str, methods: Sequence[str] = FIFTEEN) -> dict[str, pd.DataFrame]:
    """Method -> means of the buckets with a primary and a secondary object."""
    means = pick(e["bucket"], setting=setting, metric=metric, bucket=list(BOTH_PRESENT[setting]))
    return {m: pick(means, method=m) for m in methods}


def extreme(e: Measured, setting: str, methods: Sequence[str], which: str) -> pd.DataFrame:
    """Lowest or highest bucket mean of PAFL among the buckets with both kinds of object, by method."""
    return pd.DataFrame({m: getattr(b, which)(axis=1) for m, b in of_buckets(e, setting, "pafl", methods).items()})


def success(e: Measured, setting: str) -> pd.DataFrame:
    """Share of buckets with PAFL > 0.5, by method (Figure 7, top)."""
    return pd.DataFrame({m: (b > HALF).mean(axis=1) for m, b in of_buckets(e, setting, "pafl").items()})


def failure(e: Measured, setting: str) -> pd.DataFrame:
    """1 where SAFL > PAFL in more than half of the buckets, by method (Figure 7, bottom)."""
    focus, avoid = (of_buckets(e, setting, metric) for metric in ("pafl", "safl"))
    return pd.DataFrame({m: ((avoid[m] > focus[m]).mean(axis=1) > HALF).astype(float) for m in FIFTEEN})


def simple_over_complex(e: Measured, share: Callable[[Measured, str], pd.DataFrame]) -> pd.Series:
    """How much larger a share is in simple settings, on average over settings and methods."""
    shares = [[share(e, s).mean(axis=1) for s in pool if s in e.settings()] for pool in (SIMPLE, COMPLEX)]
    simple, complex_ = (sum(of_pool) / len(of_pool) for of_pool in shares)
    return simple - complex_  # type: ignore[return-value]


def at_least(margins: pd.DataFrame, count: int) -> pd.Series:
    """> 0 where at least `count` of the margins are."""
    lowest_first = np.sort(margins.to_numpy(), axis=1)
    return pd.Series(lowest_first[:, margins.shape[1] - count], index=margins.index)


def most(margins: pd.DataFrame) -> pd.Series:
    """> 0 where more than half of the margins are."""
    return at_least(margins, margins.shape[1] // 2 + 1)


def lowest(e: Measured, setting: str, methods: Sequence[str]) -> pd.DataFrame:
    """Lowest PAFL of a bucket, by method."""
    means = pick(e["bucket"], setting=setting, metric="pafl")
    return pd.DataFrame({m: pick(means, method=m).min(axis=1) for m in methods})


def lowest_at(e: Measured, setting: str, buckets: Sequence[str]) -> pd.DataFrame:
    """By method: > 0 where the bucket of lowest PAFL is one of these."""
    margins = {}
    for method in FIFTEEN:
        means = pick(e["bucket"], setting=setting, metric="pafl", method=method)
        here = means.columns.isin(buckets)
        margins[method] = means.loc[:, ~here].min(axis=1) - means.loc[:, here].min(axis=1)
    return pd.DataFrame(margins)


def mean_focus_gap(e: Measured, setting: str) -> pd.DataFrame:
    """PMAFL - SMAFL by method and bucket."""
    focus, avoid = (of_buckets(e, setting, metric) for metric in MEAN_FOCUS)
    return pd.concat({m: focus[m] - avoid[m] for m in FIFTEEN}, axis=1)


def reachable(e: Measured, settings: Sequence[str]) -> pd.DataFrame:
    """Oracle PIOU of the settings' buckets."""
    means = pick(e["bucket"], metric="piou", method="oracle")
    return means.loc[:, means.columns.get_level_values("setting").isin(settings)]


def lit(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """Share of images with every object lit, by method: the mean over settings."""
    shares = pick(e["visible"], method=list(methods))
    return shares.T.groupby(level="method", sort=False).mean().T


def wrong(entries: pd.Series) -> Margin:
    """> 0 where no entry is wrong."""
    return Margin(HALF - float(entries.sum()))


# -- claims that are functions -----------------------------------------------------------------------------------------


@special("simple")
def irrelevant_object(e: Measured) -> pd.DataFrame:
    def part(setting: str) -> pd.DataFrame:
        there, absent = of_lines(e, WITH_AND_WITHOUT, setting, "pafl", [*FIFTEEN, "random"]).values()
        above = {m: max(t[m].iloc[0] - t["random"].iloc[0] for t in (there, absent)) > TOLERANCE for m in FIFTEEN}
        return (absent - there)[[m for m in FIFTEEN if above[m]]]

    return per_setting(e, SIMPLE, part)


def saturation(methods: Sequence[str]) -> Special:
    @special("simple", metrics=("pafl", "safl"))
    def measure(e: Measured) -> pd.DataFrame:
        def part(setting: str) -> pd.DataFrame:
            one, two, three = of_lines(e, BY_OBJECTS, setting, "pafl", methods).values()
            avoid_two, avoid_three = (
                e.line(setting, BY_OBJECTS[setting][n], "safl", methods) for n in ("2 objects", "3 objects")
            )
            steps = {"PAFL 1 to 2": one - two, "PAFL 2 to 3": two - three, "SAFL 2 to 3": avoid_three - avoid_two}
            return parts(**steps)

        return per_setting(e, SIMPLE, part)

    return measure


@special("simple")
def input_x_gradient_saturates(e: Measured) -> pd.DataFrame:
    def part(setting: str) -> pd.DataFrame:
        if e.printed:
            lines = {n: pick(e["line"], setting=setting, line=n, metric="pafl") for n in BY_OBJECTS[setting]}
        else:
            lines = of_lines(e, BY_OBJECTS, setting, "pafl", ["input_x_gradient"])
        one, two, three = lines.values()
        return parts(**{"1 to 2": one - two, "2 to 3": two - three})

    return per_setting(e, SIMPLE, part)


@special("simple", whole=True, buckets=BOTH_PRESENT)
def rescale_alone_succeeds(e: Measured) -> pd.DataFrame:
    of_settings = pd.concat([extreme(e, s, FIFTEEN, "min") for s in SIMPLE], axis=1)
    worst = of_settings.T.groupby(level=0, sort=False).min().T
    return (HALF - worst).assign(deeplift_rescale=worst["deeplift_rescale"] - HALF)


@special("complex_fr", "complex", buckets=BOTH_PRESENT)
def epsilon_alone_succeeds(e: Measured) -> pd.DataFrame:
    margins = per_setting(e, COMPLEX, lambda s: HALF - extreme(e, s, FIFTEEN, "min"))
    return margins.assign(**{"complex_fr lrp_epsilon": -margins["complex_fr lrp_epsilon"]})


@special("complex_cr2", buckets=BOTH_PRESENT)
def text_alone_succeeds(e: Measured) -> pd.DataFrame:
    lines = of_lines(e, CR2_LINES, "complex_cr2", "pafl", FIFTEEN)
    at_text = most(lines["Text + Box2"][[*MID, "deep_taylor"]] - HALF)
    return parts(**{"most at 5, 6": at_text, "8, 9": HALF - lines["Text + Box1"], "11, 12": HALF - lines["all three"]})


@special("simple", conditions=DEEP)
def two_exceed_half_on_deep_nets(e: Measured) -> pd.DataFrame:
    def part(net: str) -> pd.DataFrame:
        above = e.pool("simple", "pafl", NINE, condition=net) - HALF
        meeting = ["integrated_gradients", "lrp_epsilon"]
        return parts(above=above[meeting], below=-above.drop(columns=meeting))

    return by_name(DEEP, part)


@special("simple", conditions=("plain", "noise"))
def noise_lowers_minima(e: Measured) -> pd.DataFrame:
    def part(pool: str) -> pd.DataFrame:
        return e.pool(pool, "pafl", MID, "min", like="noise") - e.pool(pool, "pafl", MID, "min", "noise")

    there = [p for p in BOTH_POOLS if {*settings_of(p)} & {*e.settings("noise")}]
    return parts(**{pool: part(pool) for pool in there})


TOY = {"PAFL": 0.75, "SAFL": 0.24, "PIOU": 1.0, "SIOU": 0.0, "K": 247.0}


def one_row(margins: Mapping[str, float] | pd.Series) -> pd.DataFrame:
    return pd.Series(margins).to_frame().T


@special()
def toy_scores(e: Measured) -> pd.DataFrame:
    measured = maps.toy_scores(e.mode)
    return one_row({name: 0.01 - abs(measured[name] - value) for name, value in TOY.items()})


@special()
def toy_secondary(e: Measured) -> pd.DataFrame:
    sweep = maps.toy_sweep(e.mode, 0.001)
    falls, rises = -sweep["PAFL"].diff().dropna(), sweep["SAFL"].diff().dropna()
    total = TOLERANCE - (sweep["PAFL"] + sweep["SAFL"] - 1).abs()
    return one_row({"PAFL": falls.min(), "SAFL": rises.min(), "sum": total.min()})


@special()
def toy_background(e: Measured) -> pd.DataFrame:
    sweep = maps.toy_sweep(e.mode, 0.8)
    return one_row(0.15 - sweep.loc[sweep["value"] < 0.8, ["PAFL", "SAFL"]].max())


@special("complex_cr2")
def worst_at_nine(e: Measured) -> pd.DataFrame:
    at_nine = at_least(lowest_at(e, "complex_cr2", ["9"]), ALMOST_ALL)
    return parts(**{"worst at 9": at_nine, "minimum": HALF - lowest(e, "complex_cr2", FIFTEEN)})


LINED = ("complex_cr1", "complex_cr3", "complex_cr4")


@special("complex", buckets={s: BOTH_PRESENT[s] for s in LINED})
def lines_differ(e: Measured) -> pd.DataFrame:
    if not {*LINED} & {*e.settings()}:
        raise NotTestable(f"needs a run of one of {', '.join(LINED)}")
    return per_setting(e, LINED, lambda s: spread(of_lines(e, MORE_LINES, s, "pafl", MID).values()) - 0.3)


@special("complex_fr", buckets={"complex_fr": ("11", "12")})
def epsilon_stands_out(e: Measured) -> pd.DataFrame:
    focus = e.line("complex_fr", ["11", "12"], "pafl", FIFTEEN)
    return (0.42 + TOLERANCE - focus).assign(lrp_epsilon=focus["lrp_epsilon"] - HALF)


@special("complex_cr4", buckets={"complex_cr4": ("5", "6", "11", "12")})
def far_and_near(e: Measured) -> pd.DataFrame:
    far, near = (e.line("complex_cr4", buckets, "pafl", MID) for buckets in (["11", "12"], ["5", "6"]))
    return parts(above=far - 0.35 + TOLERANCE, below=0.82 + TOLERANCE - far, box2=0.22 + TOLERANCE - near)


@special("simple_nr", "complex", metrics=MEAN_FOCUS, buckets=BOTH_PRESENT)
def larger_gap_in_complex(e: Measured) -> pd.Series:
    complex_ = pd.concat([-mean_focus_gap(e, s) for s in COMPLEX if s in e.settings()], axis=1)
    return complex_.max(axis=1) - (-mean_focus_gap(e, "simple_nr")).max(axis=1)


@special("simple", metrics=("piou",))
def fails_where_a_perfect_map_succeeds(e: Measured) -> pd.DataFrame:
    reach = reachable(e, SIMPLE).iloc[0]
    fair = reach.index[reach > HALF]
    means = {m: pick(e["bucket"], metric="piou", method=m) for m in TEN}
    return pd.DataFrame({m: HALF - of.loc[:, of.columns.isin(fair)].min(axis=1) for m, of in means.items()})


# -- all claims --------------------------------------------------------------------------------------------------------


def adversarial(figure: str, metric: str) -> list[Row]:
    """Figures 11 and 28: what adversarial training changes."""

    def gain(methods: Sequence[str]) -> Order:
        return Order(Pooled("simple", metric, methods, condition="pgd"), Pooled("simple", metric, methods, like="pgd"))

    name = METRICS[metric]
    raises = f"adversarial training raises the mean {name} of"
    return [
        Row(f"{figure}.T1", f"{raises} G and SG in simple settings", gain(["gradient", "smoothgrad"])),
        Row(
            f"{figure}.T2",
            f"robust models: mean {name} of every method lower in complex settings",
            Drop(metric, TEN, conditions=("pgd",)),
        ),
        Row(
            f"{figure}.T3",
            f"robust models: mean {name} below 0.5 in complex settings",
            Bound(["complex"], metric, TEN, condition="pgd", below=HALF),
        ),
        Row(f"{figure}.F", f"{raises} GBP in simple settings", gain(["guided_backprop"])),
    ]


# fmt: off
CLAIMS = [
    # Tables 1 to 3
    Row("table1.T", "12, 8, 12, 10, 10, 10 and 10 buckets with these labels and objects",
        special(metrics=())(lambda e: wrong(~table_1()["agrees"])), text=True, modes=False, basis="configuration"),
    Row("table2.T", "24,000, 16,000, 36,000 and 4 x 150,000 training, 6,000 or 4,000 validation images",
        special(metrics=())(lambda e: wrong(table_2()["images"] != table_2()["images_printed"])),
        text=True, modes=False, basis="configuration"),
    Row("table3.T1", "every bucket of every model has an accuracy of at least 0.90",
        Accuracy(BOTH_POOLS, 0.90), modes=False),
    Row("table3.T2", "the buckets of the simple settings have an accuracy of 1.00 (at least 0.99)",
        Accuracy(["simple"], 0.99), modes=False),
    Row("table3.T3", "every model has an accuracy of at least 0.95",
        Accuracy(BOTH_POOLS, 0.95, overall=True), modes=False),
    # Figure 2
    Row("fig2.T1", "DT, IG, LRP, DeepLIFT and D-SHAP: mean PIOU above 0.5 in simple settings",
        Bound(["simple"], "piou", MEETING, above=HALF)),
    Row("fig2.T2", "no method reaches a mean PIOU of 0.5 in complex settings",
        Bound(["complex"], "piou", TEN, below=HALF)),
    Row("fig2.T3", "every method: mean PIOU lower in complex than in simple settings", Drop("piou", TEN)),
    Row("fig2.T4", "every method: lowest PIOU of a bucket below 0.5, simple and complex",
        Bound(BOTH_POOLS, "piou", TEN, "min", below=HALF)),
    Row("fig2.F", "G, SG, DCN, GBP and G-CAM: mean PIOU below 0.5 in simple settings",
        Bound(["simple"], "piou", [*WEAK, "grad_cam"], below=HALF)),
    # Figure 6
    Row("fig6a.T1", "G, SG, DCN and GBP: mean PAFL below 0.5 in simple settings",
        Bound(["simple"], "pafl", WEAK, below=HALF)),
    Row("fig6a.T2", "all other methods: mean PAFL above 0.5 in simple settings",
        Bound(["simple"], "pafl", NOT_WEAK, above=HALF)),
    Row("fig6a.F", "I*G, IG, LRP-z, LRP-eps, LRP-A-flat, DL-RC and DL-R: mean PAFL above 0.5 in simple settings",
        Bound(["simple"], "pafl", SUCCEEDING, above=HALF)),
    Row("fig6a.T3", "those methods: mean SAFL below mean PAFL in simple settings",
        Order(Pooled("simple", "pafl", SUCCEEDING), Pooled("simple", "safl", SUCCEEDING))),
    Row("fig6a.T4", "an irrelevant object lowers PAFL (methods above the random baseline)",
        irrelevant_object, text=True),
    Row("fig6b.T", "with every further object PAFL falls and SAFL rises", saturation(SATURATING), text=True),
    Row("fig6b.T2", "with every further object PAFL falls and SAFL rises (I*G, IG, LRP without B-flat, DeepLIFT)",
        saturation([m for m in MID if m != "lrp_b_flat"]), text=True),
    Row("fig6b.F", "I*G: PAFL falls with every further object (S-FR .74 .54 .45, S-NR .87 .68 .55)",
        input_x_gradient_saturates),
    # Figure 7
    Row("fig7.T1", "DL-R alone has PAFL above 0.5 in every bucket of both simple settings",
        rescale_alone_succeeds, text=True),
    Row("fig7.T2", "G, SG, DCN and GBP fail in every bucket of the simple settings",
        special("simple", buckets=BOTH_PRESENT)(
            lambda e: per_setting(e, SIMPLE, lambda s: HALF - extreme(e, s, WEAK, "max"))), text=True),
    Row("fig7.T3", "in complex settings only LRP-eps on Complex-FR succeeds in every bucket",
        epsilon_alone_succeeds, text=True),
    Row("fig7.T4", "methods succeed in a larger share of simple than of complex buckets",
        special("simple", "complex", buckets=BOTH_PRESENT)(lambda e: simple_over_complex(e, success)), text=True),
    Row("fig7b.T", "SAFL exceeds PAFL more often in complex than in simple settings",
        special("simple", "complex", metrics=("pafl", "safl"), buckets=BOTH_PRESENT)(
            lambda e: -simple_over_complex(e, failure)), text=True),
    # Figure 8
    Row("fig8a.T1", "every method: mean PAFL lower in complex than in simple settings", Drop("pafl", FIFTEEN)),
    Row("fig8a.T2", "IG, LRP-z, LRP-eps and DeepLIFT narrowly meet PAFL 0.5 in complex settings (0.47 to 0.57)",
        Bound(["complex"], "pafl", NARROW, above=HALF - TOLERANCE, below=0.57 + EXACT)),
    Row("fig8a.T3", "PAFL of G-CAM and D-SHAP drops by more than that of IG, LRP and DeepLIFT",
        special("simple", "complex", empty_maps=True)(lambda e: bigger_drop(e, ["grad_cam", "deep_shap"]))),
    Row("fig8a.T4", "G, SG, DCN and GBP: mean PAFL below 0.25 in complex settings",
        Bound(["complex"], "pafl", WEAK, below=0.25)),
    Row("fig8a.T5", "I*G, IG, LRP and DeepLIFT: mean SAFL higher in complex than in simple settings",
        Drop("safl", MID, rises=True)),
    Row("fig8a.T6", "CR2: most methods succeed where Text is primary (5, 6), none with Box1 (8, 9; 11, 12)",
        text_alone_succeeds, text=True),
    Row("fig8a.T7", "PAFL varies more over the buckets of complex than of simple settings",
        Drop("pafl", MID, "std", rises=True), text=True),
    Row("fig8b.T", "every method: lowest PAFL of a bucket lower in complex than in simple settings",
        Drop("pafl", FIFTEEN, "min")),
    Row("fig8b.F", "every method: lowest PAFL of a bucket at most 0.10 over the five complex settings",
        Bound(["complex"], "pafl", FIFTEEN, "min", below=0.10 + EXACT, whole=True)),
    # Figures 9, 25, 15: measured on kept maps
    Row("fig9.T", "IG lights every visible object whatever the model reasons on (80% of images)",
        special(maps="visible")(lambda e: lit(e, ["integrated_gradients"]) - 0.8), text=True, modes=False),
    Row("fig25.T", "G, LRP-z and DeepLIFT light every visible object too (80% of images)",
        special(maps="visible")(lambda e: lit(e, ["gradient", "lrp_z", "deeplift_reveal_cancel"]) - 0.8), text=True,
        modes=False),
    Row("fig15.T", "the IOU of one map changes with K (by more than 0.05 for K of 100 to 400)",
        special(maps="iou_spread")(lambda e: e["iou_spread"] - 0.05), text=True, modes=False),
    # Figures 10, 26, 27: AlexNet and VGG-16
    Row("fig10.T1", "AlexNet, VGG-16: mean PIOU higher in simple than in complex settings (ties within 0.03)",
        Drop("piou", NINE, conditions=DEEP, ties=TOLERANCE)),
    Row("fig10.T2", "AlexNet, VGG-16: lowest PIOU higher in simple than in complex settings (ties within 0.03)",
        Drop("piou", NINE, "min", DEEP, ties=TOLERANCE), text=True),
    Row("fig27.T", "AlexNet, VGG-16: mean PAFL higher in simple than in complex settings (ties within 0.03)",
        Drop("pafl", NINE, conditions=DEEP, ties=TOLERANCE)),
    Row("fig27.F", "AlexNet, VGG-16: only IG and LRP-eps exceed PAFL 0.5 in simple settings",
        two_exceed_half_on_deep_nets),
    # Figures 11, 28: adversarially trained models
    *adversarial("fig11", "piou"),
    *adversarial("fig28", "pafl"),
    # Figures 12, 32, 33: real background; 29, 30: noise
    Row("fig12.T1", "real background: lowest PAFL lower in complex than in simple settings",
        Drop("pafl", FIFTEEN, "min", ("places",))),
    Row("fig12.T2", "I*G, IG, LRP, DeepLIFT: lowest simple PAFL lower on real than on black background",
        Order(Pooled("simple", "pafl", MID, "min", like="places"), Pooled("simple", "pafl", MID, "min", "places"))),
    Row("fig12.T3", "real background: lowest simple PAFL of every method below 0.5",
        Bound(["simple"], "pafl", FIFTEEN, "min", "places", below=HALF)),
    Row("fig29.T1", "noise background: mean PAFL lower in complex than in simple settings",
        Drop("pafl", FIFTEEN, conditions=("noise",)), text=True),
    Row("fig29.T2", "noise background: mean SAFL of I*G, IG, LRP, DeepLIFT higher in complex settings",
        Drop("safl", MID, conditions=("noise",), rises=True), text=True),
    Row("fig30.T", "I*G, IG, LRP, DeepLIFT: lowest PAFL lower on noise than on black background",
        noise_lowers_minima, text=True),
    Row("fig32.T1", "real background: mean PAFL lower in complex than in simple settings",
        Drop("pafl", FIFTEEN, conditions=("places",)), text=True),
    Row("fig32.T2", "real background: every model has an accuracy of at least 0.93",
        Accuracy(BOTH_POOLS, 0.93, overall=True, condition="places"), modes=False),
    Row("fig33.T", "I*G, IG, LRP, DeepLIFT: lowest simple PAFL falls by more on real than on noise background",
        Order(Pooled("simple", "pafl", MID, "min", "noise", like="places"),
              Pooled("simple", "pafl", MID, "min", "places")), text=True),
    # Figures 14, 16: toy maps
    Row("fig14.T", "toy map: PAFL .75, SAFL .24, PIOU 1, SIOU 0, K = 247 (to 0.01)",
        toy_scores, text=True, basis="toy maps"),
    Row("fig16.T1", "toy map: a brighter secondary object lowers PAFL and raises SAFL, their sum about 1",
        toy_secondary, text=True, basis="toy maps"),
    Row("fig16.T2", "toy map: both near 0 (below 0.15) while the background exceeds the secondary object",
        toy_background, text=True, basis="toy maps"),
    # Figures 17 to 24
    Row("fig17.T1", "most methods: mean PIOU above 0.5 in simple settings",
        special("simple", metrics=("piou",))(lambda e: most(e.pool("simple", "piou", FIFTEEN) - HALF)), text=True),
    Row("fig17.T2", "every method: mean SIOU below 0.2 in simple settings",
        Bound(["simple"], "siou", FIFTEEN, below=0.2), text=True),
    Row("fig17b.T", "I*G, IG, LRP, DeepLIFT: PIOU changes by less than 0.15 between 1, 2 and 3 objects",
        special("simple", metrics=("piou",))(lambda e: per_setting(
            e, SIMPLE, lambda s: 0.15 - spread(of_lines(e, BY_OBJECTS, s, "piou", MID).values()))), text=True),
    Row("fig18.T1", "every method: mean PIOU below 0.5 in complex settings",
        Bound(["complex"], "piou", FIFTEEN, below=HALF)),
    Row("fig18.T2", "every method: lowest PIOU lower in complex than in simple settings",
        Drop("piou", FIFTEEN, "min"), text=True),
    Row("fig18.T3", "every method: mean SIOU below 0.25 in complex settings",
        Bound(["complex"], "siou", FIFTEEN, below=0.25), text=True),
    Row("fig19.T1", "Simple-FR: the worst bucket of almost all methods (13 of 15) has all three objects",
        special("simple_fr")(lambda e: at_least(lowest_at(e, "simple_fr", ["11", "12"]), ALMOST_ALL)), text=True),
    Row("fig19.T2", "LRP-eps: PAFL above 0.5 in the worst bucket of Simple-FR",
        special("simple_fr")(lambda e: lowest(e, "simple_fr", ["lrp_epsilon"])["lrp_epsilon"] - HALF), text=True),
    Row("fig21.T3", "CR2: 13 of 15 methods have their worst bucket at Box1 + B (9); all minima below 0.5",
        worst_at_nine, text=True),
    Row("fig22.T", "I*G, IG, LRP, DeepLIFT: PAFL differs by more than 0.3 between the lines of CR1, CR3, CR4",
        lines_differ, text=True),
    Row("fig22.F1", "CR1: PAFL at most 0.16 for every method where Box2 is primary (5, 6)",
        special("complex_cr1", buckets={"complex_cr1": ("5", "6")})(
            lambda e: 0.16 + EXACT - e.line("complex_cr1", ["5", "6"], "pafl", FIFTEEN)), text=True),
    Row("fig22.F2", "Complex-FR (11, 12): LRP-eps (.64) above 0.5, all others at most 0.42 (+ 0.03)",
        epsilon_stands_out, text=True),
    Row("fig22.F3", "CR4: PAFL of I*G, IG, LRP, DeepLIFT .35 to .82 at 11, 12, at most .22 at 5, 6 (to 0.03)",
        far_and_near, text=True),
    Row("fig23.T1", "Simple-FR: PMAFL at least SMAFL for every method and bucket",
        special("simple_fr", metrics=MEAN_FOCUS, buckets=BOTH_PRESENT)(lambda e: mean_focus_gap(e, "simple_fr")),
        text=True),
    Row("fig23.T2", "Simple-NR: SMAFL exceeds PMAFL for some method and bucket",
        special("simple_nr", metrics=MEAN_FOCUS, buckets=BOTH_PRESENT)(lambda e: -mean_focus_gap(e, "simple_nr")),
        text=True, any_of=True),
    Row("fig24.T1", "complex settings: SMAFL exceeds PMAFL for some method and bucket",
        special("complex", metrics=MEAN_FOCUS, buckets=BOTH_PRESENT)(
            lambda e: per_setting(e, COMPLEX, lambda s: -mean_focus_gap(e, s))), text=True, any_of=True),
    Row("fig24.T2", "the largest such gap is larger than in Simple-NR", larger_gap_in_complex, text=True),
    # What the paper's own plots do not support
    Row("7.3.1", "a PIOU above 0.5 is within reach: a perfect map has it in every complex bucket",
        special("complex", metrics=("piou",))(lambda e: reachable(e, COMPLEX) - HALF), text=True),
    Row("7.3.2", "most methods except G, SG, DCN, GBP exceed PAFL 0.5 in simple settings (all of them)",
        Bound(["simple"], "pafl", NOT_WEAK, above=HALF)),
    Row("7.3.3", "PAFL drops for all methods in complex settings", Drop("pafl", FIFTEEN)),
    Row("7.3.4", "every method fails (PIOU below 0.5) in some simple bucket where a perfect map would not",
        fails_where_a_perfect_map_succeeds, text=True),
    Row("7.3.5", "G-CAM suffers a bigger drop of PAFL than IG, LRP and DeepLIFT (empty maps left out)",
        special("simple", "complex", empty_maps=True)(lambda e: bigger_drop(e, ["grad_cam"]))),
    Row("7.3.6", "lowest PAFL lower in complex settings also over CR2 and CR3 alone, as plotted",
        Order(Pooled("simple", "pafl", FIFTEEN, "min"), Pooled("cr2_cr3", "pafl", FIFTEEN, "min")), text=True),
]
# fmt: on

for row in CLAIMS:
    row.register()
