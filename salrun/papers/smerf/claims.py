"""What Kim, Plumb, Talwalkar (ICML 2022) claim, figure by figure.

`fig8a.T1` is the first statement of the text about Figure 8a, `fig6a.F` something visible in its plots. Claims are
counted with the metrics as the public code computes them; the metrics as the text defines them are their second mode.
`<id>.oracle` is a drop from simple to complex settings beyond that of a perfect map, which drops too: the 4x4 box is
primary there. `7.3.*` are statements about what the paper's own plots do not support.

Most claims are a bound or an order of pooled numbers; the others are functions. CLAIMS lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from salrun.papers.claims import Controls, Evidence, Numbers, Parts, claim, claims_of
from salrun.papers.evidence import NotTestable, pick
from salrun.papers.smerf import maps
from salrun.papers.smerf.evidence import Measured, Reads, SmerfEvidence, published_evidence, share
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
    SETTINGS,
    SHOWN_LINES,
    SIMPLE,
    TEN,
    WEAK,
    WITH_AND_WITHOUT,
    Buckets,
    Lines,
    buckets_of,
    objects_of,
)
from salrun.papers.verdicts import Verdicts, judge
from salrun.results.tables import ALL
from salrun.stats.bootstrap import Floats
from salrun.stats.conjunction import Quantifier

HALF = 0.5  # success: more than half of the focus; correct: an IOU above one half
INCLUSIVE = 1e-9  # turns > into >=
TOLERANCE = 0.03  # between numbers read off a plot
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
GAP = 0.1  # between PMAFL and SMAFL, of the larger of them
WORDS = {
    **{"simple": "simple settings", "complex": "complex settings", "cr2_cr3": "CR2 and CR3"},
    **{"mean": "mean", "min": "lowest", "std": "standard deviation of the"},
    **{"plain": "", "noise": ", noise background", "places": ", real background", "pgd": ", robust models"},
    **{"alexnet": ", AlexNet", "vgg16": ", VGG-16"},
}


def claims(e: SmerfEvidence) -> Verdicts:
    """The verdict on every claim."""
    return judge(claims_of(PAPER), e.seeds or {0: Measured()}, published_evidence())


# -- how claims are measured -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooled:
    """Mean, min or std over a pool's buckets, by method."""

    pool: str
    metric: str
    statistic: str = "mean"
    condition: str = "plain"

    def __call__(self, e: Measured, methods: Sequence[str]) -> Floats:
        return e.pool(self.pool, self.metric, methods, self.statistic, self.condition).to_numpy()

    @property
    def words(self) -> str:
        where = f"{WORDS[self.pool]}{WORDS[self.condition]}"
        return f"{WORDS[self.statistic]} bucket {METRICS[self.metric]} ({where})"


class OfPools:
    """A claim about pooled numbers of every method: what it reads, in which unit, and which numbers it is about."""

    methods: Sequence[str]
    modes = True

    @property
    def pooled(self) -> list[Pooled]:
        raise NotImplementedError("abstract")

    @property
    def reads(self) -> Reads:
        under = {p.condition for p in self.pooled}
        return Reads(
            tuple(dict.fromkeys(p.pool for p in self.pooled)),
            tuple(c for c in ("plain", *CONDITIONS) if c in under),
            tuple(dict.fromkeys(p.metric for p in self.pooled)),
            tuple(self.methods),
        )

    @property
    def unit(self) -> str:
        return "IOU" if self.pooled[0].metric in ("piou", "siou") else "AFL"

    def numbers(self, e: Measured) -> pd.DataFrame:
        """The pooled numbers themselves."""
        named = {f"{p.condition} {p.pool} {METRICS[p.metric]} {p.statistic}": p(e, self.methods) for p in self.pooled}
        return by_name(named, self.methods)


@dataclass(frozen=True)
class Bound(OfPools):
    """A pooled number of every method lies above, below or between bounds."""

    pools: Sequence[str]
    metric: str
    methods: Sequence[str]
    statistic: str = "mean"
    condition: str = "plain"
    above: float | None = None
    below: float | None = None

    @property
    def pooled(self) -> list[Pooled]:
        return [Pooled(pool, self.metric, self.statistic, self.condition) for pool in self.pools]

    @property
    def predicate(self) -> str:
        over = [] if self.above is None else [f"{p.words} minus {self.above:g}" for p in self.pooled]
        under = [] if self.below is None else [f"{self.below:g} minus {p.words}" for p in self.pooled]
        return f"By method: {'; '.join(over + under)}"

    def __call__(self, e: Measured, control: str = "") -> pd.DataFrame:
        """A part per pool, method and side; a control need not stay below what methods reach narrowly."""
        methods = [control] if control else self.methods
        sides = {}
        for pooled in self.pooled:
            name, value = pooled.pool if len(self.pools) > 1 else "", pooled(e, methods)
            if self.above is not None:
                sides[f"{name} above" if self.below is not None else name] = value - self.above
            if self.below is not None and not (control and self.above is not None):
                sides[f"{name} below" if self.above is not None else name] = self.below - value
        return by_name(sides, methods)


@dataclass(frozen=True)
class Order(OfPools):
    """One pooled number of every method is higher than another; `beyond`: by more than the like of a control."""

    methods: Sequence[str]
    pairs: Mapping[str, tuple[Pooled, Pooled]]  # name of some parts -> what is higher, what is lower
    beyond: str = ""

    @property
    def pooled(self) -> list[Pooled]:
        return list(dict.fromkeys(p for pair in self.pairs.values() for p in pair))

    @property
    def is_drop(self) -> bool:
        """From simple to complex settings, or a rise."""
        return all({higher.pool, lower.pool} == {*BOTH_POOLS} for higher, lower in self.pairs.values())

    @property
    def predicate(self) -> str:
        said = "; ".join(f"{higher.words} minus {lower.words}" for higher, lower in self.pairs.values())
        return f"By method: {said}{f'; minus the same of the {self.beyond}' if self.beyond else ''}"

    def __call__(self, e: Measured, control: str = "") -> pd.DataFrame:
        methods = [control] if control else self.methods
        return by_name({name: self._difference(e, pair, methods) for name, pair in self.pairs.items()}, methods)

    def _difference(self, e: Measured, pair: tuple[Pooled, Pooled], methods: Sequence[str]) -> Floats:
        higher, lower = pair
        difference = higher(e, methods) - lower(e, methods)
        return difference - (higher(e, [self.beyond]) - lower(e, [self.beyond])) if self.beyond else difference


def drop(metric: str, methods: Sequence[str], statistic: str = "mean", conditions: Sequence[str] = ("plain",)) -> Order:
    """A pooled number of every method is lower in complex than in simple settings."""
    pairs = {c: tuple(Pooled(pool, metric, statistic, c) for pool in BOTH_POOLS) for c in conditions}
    return Order(methods, unnamed(pairs))


def rise(metric: str, methods: Sequence[str], statistic: str = "mean", condition: str = "plain") -> Order:
    """A pooled number of every method is higher in complex than in simple settings."""
    simple, complex_ = (Pooled(pool, metric, statistic, condition) for pool in BOTH_POOLS)
    return Order(methods, {"": (complex_, simple)})


@dataclass(frozen=True)
class Accuracy:
    """Every bucket of every model, or every model `overall`, is at least so accurate."""

    pools: Sequence[str]
    at_least: float
    overall: bool = False
    condition: str = "plain"
    unit = "accuracy"
    modes = False

    @property
    def reads(self) -> Reads:
        return Reads(tuple(self.pools), (self.condition,), (), ())

    @property
    def predicate(self) -> str:
        what = "model" if self.overall else "bucket"
        return f"By {what}: validation accuracy{WORDS[self.condition]}, minus {self.at_least:g} (0 holds)"

    def __call__(self, e: Measured, control: str = "") -> pd.DataFrame:
        return self.numbers(e) - self.at_least + INCLUSIVE

    def numbers(self, e: Measured) -> pd.DataFrame:
        known = pick(pick(e["accuracy"], condition=self.condition), setting=self.reads.settings)
        overall = known.columns.get_level_values("bucket") == ALL
        return known.loc[:, overall if self.overall else ~overall]


@dataclass(frozen=True)
class Special:
    """What only a function of the evidence and the methods says; its docstring is the predicate."""

    measure: Callable[[Measured, Sequence[str]], Parts]
    reads: Reads
    unit: str
    modes: bool = True
    numbers = None

    @property
    def predicate(self) -> str:
        return " ".join(str(self.measure.__doc__).split()).rstrip(".")

    def __call__(self, e: Measured, control: str = "") -> Parts:
        return self.measure(e, [control] if control else self.reads.methods)


def special(
    *of: str, methods: Sequence[str] = FIFTEEN, unit: str = "AFL", modes: bool = True, **reads: Any
) -> Callable[[Callable[[Measured, Sequence[str]], Parts]], Special]:
    """Turn a function into a measure that says what it reads."""
    return lambda measure: Special(measure, Reads(of, methods=tuple(methods), **reads), unit, modes)


Rule: TypeAlias = Bound | Order | Accuracy | Special


@dataclass(frozen=True)
class Row:
    """A claim: what the paper says and where, how it is measured, and whether methods succeed or fail by it."""

    id: str
    sentence: str
    place: str
    rule: Rule
    quantifier: Quantifier | int = "every"
    meaning: Literal["success", "failure", ""] = ""
    apart: str = ""
    text: bool = False
    bound: float = 0.0

    def register(self) -> None:
        rule, numbers = self.rule, self.rule.numbers
        options: dict[str, Any] = {"place": self.place, "predicate": rule.predicate, "quantifier": self.quantifier}
        options |= {"unit": rule.unit, "bound": self.bound, "apart": self.apart, "text": self.text, "reads": rule.reads}
        if self.meaning:
            options["controls"] = Controls(self.meaning, self.measure)
        if numbers and not self.text:
            options["numbers"] = Numbers(rule.unit, lambda e: numbers(of_smerf(e)))
        if rule.modes:
            options["second_mode"] = self.second_mode
        claim(self.id, PAPER, self.sentence, **options)(self.measure)

    def measure(self, e: Evidence, control: str = "") -> Parts:
        measured = of_smerf(e)
        measured.require(self.rule.reads)
        return self.rule(measured, control)

    def second_mode(self, e: Evidence) -> Parts:
        measured = of_smerf(e)
        return self.measure(measured.paper or replace(measured, mode="paper"))

    def beyond_the_oracle(self) -> Iterator[Row]:
        """The same of a drop from simple to complex settings, beyond that of a perfect map."""
        if isinstance(self.rule, Order) and self.rule.is_drop and not self.apart:
            rule, ours = replace(self.rule, beyond="oracle"), "ours: the change beyond the oracle's own"
            said = f"{self.id}, beyond what happens to a perfect map"
            yield Row(f"{self.id}.oracle", said, self.place, rule, self.quantifier, apart=ours, text=True)


def of_smerf(e: Evidence) -> Measured:
    assert isinstance(e, Measured)
    return e


# -- numbers that several claims read ----------------------------------------------------------------------------------


def unnamed(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks by name; a single one needs none."""
    return {"": next(iter(blocks.values()))} if len(blocks) == 1 else dict(blocks)


def by_name(blocks: Mapping[str, Floats], columns: Sequence[str]) -> pd.DataFrame:
    """Parts of several blocks (draws, columns) side by side, under the name of the block and the column."""
    names = [f"{name} {column}".strip() for name in blocks for column in columns]
    return pd.DataFrame(np.concatenate(list(blocks.values()), axis=1), columns=names)


def by_setting(settings: Sequence[str], methods: Sequence[str], part: Callable[[str], Floats]) -> pd.DataFrame:
    return by_name({s: part(s) for s in settings}, methods)


def of_line(e: Measured, setting: str, buckets: Sequence[str], metric: str, methods: Sequence[str]) -> Floats:
    return e.line(setting, buckets, metric, methods).to_numpy()


def of_lines(e: Measured, lines: Lines, setting: str, metric: str, methods: Sequence[str]) -> dict[str, Floats]:
    return {name: of_line(e, setting, buckets, metric, methods) for name, buckets in lines[setting].items()}


def with_both(e: Measured, setting: str, metric: str, methods: Sequence[str]) -> Floats:
    """(draws, methods, buckets): means of the buckets with a primary and a secondary object."""
    return e.buckets(setting, metric, methods, BOTH_PRESENT[setting])


def worst(e: Measured, setting: str, methods: Sequence[str]) -> Floats:
    """Lowest PAFL of the buckets with both kinds of object, by method."""
    return np.fmin.reduce(with_both(e, setting, "pafl", methods), axis=2)


def most_of_the_buckets(e: Measured, setting: str, methods: Sequence[str]) -> Floats:
    """By how much SAFL exceeds PAFL in more than half of the buckets with both kinds of object, by method."""
    excess = with_both(e, setting, "safl", methods) - with_both(e, setting, "pafl", methods)
    defined = (~np.isnan(excess)).sum(axis=2, keepdims=True)
    largest_first = -np.sort(-excess, axis=2)
    return np.take_along_axis(largest_first, np.minimum(defined // 2, excess.shape[2] - 1), axis=2)[:, :, 0]


def lowest_at(e: Measured, setting: str, at: Sequence[str], methods: Sequence[str]) -> pd.DataFrame:
    """By method: > 0 where the bucket of lowest PAFL is one of these."""
    others = [b for b in buckets_of(setting, "pafl") if b not in at]
    here, elsewhere = (np.fmin.reduce(e.buckets(setting, "pafl", methods, of), axis=2) for of in (at, others))
    return by_name({"": elsewhere - here}, methods)


def mean_focus_gap(e: Measured, setting: str, methods: Sequence[str]) -> Floats:
    """(draws, methods, buckets): SMAFL - PMAFL of the larger; they are comparable only relatively."""
    focus, avoid = (with_both(e, setting, metric, methods) for metric in MEAN_FOCUS)
    with np.errstate(invalid="ignore"):
        return (avoid - focus) / np.maximum(avoid, focus)


def gaps_by_bucket(e: Measured, settings: Sequence[str], methods: Sequence[str]) -> pd.DataFrame:
    """SMAFL - PMAFL of the larger, by setting, bucket and method."""
    gaps = {s: mean_focus_gap(e, s, methods) for s in settings}
    return by_name({f"{s} {b}": g[:, :, k] for s, g in gaps.items() for k, b in enumerate(BOTH_PRESENT[s])}, methods)


def wrong(entries: pd.Series) -> pd.DataFrame:
    """> 0 where no entry is wrong."""
    return pd.DataFrame({"wrong entries": [HALF - float(entries.sum())]})


def one_row(parts: Mapping[str, float] | pd.Series) -> pd.DataFrame:
    return pd.Series(parts).to_frame().T


# -- claims that are functions; their docstrings are the predicates ----------------------------------------------------


@special(metrics=(), unit="none", modes=False)
def table_1_as_printed(e: Measured, methods: Sequence[str]) -> Parts:
    """No bucket's label, focus or avoid differs from the printed ones."""
    return wrong(~table_1()["agrees"])


@special(metrics=(), unit="none", modes=False)
def table_2_as_printed(e: Measured, methods: Sequence[str]) -> Parts:
    """No number of images differs from the printed ones."""
    return wrong(table_2()["images"] != table_2()["images_printed"])


def irrelevant_object(methods: Sequence[str]) -> Special:
    @special("simple", methods=methods)
    def measure(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
        """By setting and method: mean PAFL of buckets without the irrelevant object (Simple-FR: Text, Simple-NR: Box1)
        minus that of buckets with it."""

        def part(setting: str) -> Floats:
            there, absent = of_lines(e, WITH_AND_WITHOUT, setting, "pafl", methods).values()
            return absent - there

        return by_setting(SIMPLE, methods, part)

    return measure


def saturation(methods: Sequence[str]) -> Special:
    @special("simple", methods=methods, metrics=("pafl", "safl"))
    def measure(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
        """By setting and method: PAFL with 1 object minus with 2, PAFL with 2 minus 3, SAFL with 3 minus 2."""
        steps: dict[str, Floats] = {}
        for setting in SIMPLE:
            one, two, three = of_lines(e, BY_OBJECTS, setting, "pafl", methods).values()
            few, many = (
                of_line(e, setting, BY_OBJECTS[setting][n], "safl", methods) for n in ("2 objects", "3 objects")
            )
            steps |= {f"{setting} PAFL 1 to 2": one - two, f"{setting} PAFL 2 to 3": two - three}
            steps[f"{setting} SAFL 2 to 3"] = many - few
        return by_name(steps, methods)

    return measure


@special("simple", methods=["input_x_gradient"])
def input_x_gradient_saturates(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By setting: PAFL of I*G with 1 object minus with 2, with 2 minus with 3."""
    steps: dict[str, Floats] = {}
    for setting in SIMPLE:
        if e.printed:
            lines = [pick(e["line"], setting=setting, line=n, metric="pafl").to_numpy() for n in BY_OBJECTS[setting]]
        else:
            lines = [*of_lines(e, BY_OBJECTS, setting, "pafl", methods).values()]
        steps |= {f"{setting} 1 to 2": lines[0] - lines[1], f"{setting} 2 to 3": lines[1] - lines[2]}
    return by_name(steps, methods)


@special("simple", buckets=BOTH_PRESENT)
def rescale_alone_succeeds(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By method: 0.5 minus the lowest PAFL of simple buckets with both kinds of object; of DL-R the opposite."""
    lowest = np.fmin.reduce([worst(e, s, methods) for s in SIMPLE])
    signs = [-1 if m in FIFTEEN and m != "deeplift_rescale" else 1 for m in methods]
    return by_name({"": (lowest - HALF) * signs}, methods)


@special("simple", methods=WEAK, buckets=BOTH_PRESENT)
def weak_fail_everywhere(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By setting and method: 0.5 minus the highest PAFL of the buckets with both kinds of object."""
    return by_setting(SIMPLE, methods, lambda s: HALF - np.fmax.reduce(with_both(e, s, "pafl", methods), axis=2))


@special("complex", buckets=BOTH_PRESENT)
def epsilon_alone_succeeds(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By setting and method: 0.5 minus the lowest PAFL of the buckets with both kinds of object; of LRP-eps in
    Complex-FR the opposite."""
    parts = by_setting(COMPLEX, methods, lambda s: HALF - worst(e, s, methods))
    alone = "complex_fr lrp_epsilon"
    return parts.assign(**{alone: -parts[alone]}) if alone in parts else parts


@special("simple", "complex", unit="share", buckets=BOTH_PRESENT)
def fewer_successes(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """Share of buckets (with both kinds of object) with PAFL above 0.5, mean over settings and methods, simple minus
    complex settings."""
    shares = {s: share(with_both(e, s, "pafl", methods), HALF).mean(axis=1) for s in SETTINGS}
    simple, complex_ = (np.mean([shares[s] for s in pool], axis=0) for pool in (SIMPLE, COMPLEX))
    return pd.DataFrame({"simple minus complex": simple - complex_})


@special("complex", metrics=("pafl", "safl"), buckets=BOTH_PRESENT)
def cells_fail(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By setting and method: what SAFL - PAFL reaches in more than half of the buckets with both kinds of object."""
    return by_setting(COMPLEX, methods, lambda s: most_of_the_buckets(e, s, methods))


@special("simple", "complex", metrics=("pafl", "safl"), unit="share", buckets=BOTH_PRESENT)
def more_cells_fail(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """Share of cells (setting, method) with SAFL above PAFL in more than half of the buckets with both kinds of object,
    complex minus simple settings."""
    cells = [np.concatenate([most_of_the_buckets(e, s, methods) for s in pool], axis=1) for pool in (COMPLEX, SIMPLE)]
    return pd.DataFrame({"complex minus simple": share(cells[0], 0.0) - share(cells[1], 0.0)})


def bigger_drop(methods: Sequence[str]) -> Special:
    @special("simple", "complex", methods=methods, empty_maps=True)
    def measure(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
        """By method: drop of mean PAFL from simple to complex settings, minus the largest drop of IG, LRP-z, LRP-eps
        and DeepLIFT."""
        own, others = (Pooled("simple", "pafl")(e, m) - Pooled("complex", "pafl")(e, m) for m in (methods, NARROW))
        return by_name({"": own - others.max(axis=1, keepdims=True)}, methods)

    return measure


CR2_TEXT = {"complex_cr2": CR2_LINES["complex_cr2"]["Text + Box2"]}
CR2_BOX1: Buckets = {"complex_cr2": ("8", "9", "11", "12")}


@special("complex_cr2", buckets=CR2_TEXT)
def succeed_at_text(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By method: mean PAFL of CR2's buckets 5 and 6, minus 0.5."""
    return by_name({"": of_line(e, "complex_cr2", CR2_TEXT["complex_cr2"], "pafl", methods) - HALF}, methods)


@special("complex_cr2", buckets=CR2_BOX1)
def fail_at_box1(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By method: 0.5 minus the mean PAFL of CR2's buckets 8 and 9, and of 11 and 12."""
    return by_name({n: HALF - of_line(e, "complex_cr2", b, "pafl", methods) for n, b in SHOWN_LINES.items()}, methods)


def lights_secondary_objects(methods: Sequence[str]) -> Special:
    @special(methods=methods, maps="weight", unit="mass", modes=False)
    def measure(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
        """By setting, buckets (8, 9 or 11, 12), secondary object and method: mean over images of a map's weight per
        pixel on the object, minus half of that on the primary ones (where there are both)."""
        objects = [
            (setting, line, thing)
            for setting in SETTINGS
            for line, (bucket, _) in SHOWN_LINES.items()
            if objects_of(setting, bucket, "primary")
            for thing in objects_of(setting, bucket, "secondary")
        ]
        wanted = [(*where, method) for where in objects for method in methods]
        absent = dict.fromkeys(setting for setting, *_ in wanted if setting not in e["weight"].columns.levels[0])
        if absent:
            raise NotTestable(f"needs kept maps of {', '.join(absent)}")
        return pd.DataFrame(e.columns("weight", wanted), columns=[" ".join(column) for column in wanted])

    return measure


@special(methods=[maps.K_METHOD], maps="iou_spread", unit="IOU", modes=False)
def iou_depends_on_k(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """Largest minus smallest IOU of an image's map over K of 100 to 400, mean over images, minus 0.05."""
    return pick(e["iou_spread"], method=list(methods)) - 0.05


@special("simple", methods=NINE, conditions=DEEP)
def two_exceed_half_on_deep_nets(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By net and method: 0.5 minus the mean PAFL of simple buckets; of IG and LRP-eps the opposite."""
    signs = [1 if m in ("integrated_gradients", "lrp_epsilon") else -1 for m in methods]
    return by_name({net: (Pooled("simple", "pafl", "mean", net)(e, methods) - HALF) * signs for net in DEEP}, methods)


TOY = {"PAFL": 0.75, "SAFL": 0.24, "PIOU": 1.0, "SIOU": 0.0, "K": 247.0}


@special(unit="none")
def toy_scores(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """0.01 minus the distance to PAFL .75, SAFL .24, PIOU 1, SIOU 0, K 247."""
    measured = maps.toy_scores(e.mode)
    return one_row({name: 0.01 - abs(measured[name] - value) for name, value in TOY.items()})


@special(unit="none")
def toy_secondary(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """Smallest fall of PAFL and rise of SAFL between steps; 0.03 minus the largest distance of their sum to 1."""
    sweep = maps.toy_sweep(e.mode, 0.001)
    falls, rises = -sweep["PAFL"].diff().dropna(), sweep["SAFL"].diff().dropna()
    total = TOLERANCE - (sweep["PAFL"] + sweep["SAFL"] - 1).abs()
    return one_row({"PAFL": falls.min(), "SAFL": rises.min(), "sum": total.min()})


@special(unit="none")
def toy_background(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """0.15 minus the largest PAFL and SAFL while the background exceeds the secondary object."""
    sweep = maps.toy_sweep(e.mode, 0.8)
    return one_row(0.15 - sweep.loc[sweep["value"] < 0.8, ["PAFL", "SAFL"]].max())


@special("simple", methods=MID, metrics=("piou",), unit="IOU")
def overlap_by_objects(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By setting and method: PIOU with 1 object minus with 2, with 2 minus with 3, with 1 minus with 3; equal within
    0.15."""
    steps: dict[str, Floats] = {}
    for setting in SIMPLE:
        one, two, three = of_lines(e, BY_OBJECTS, setting, "piou", methods).values()
        steps |= {f"{setting} 1 to 2": one - two, f"{setting} 2 to 3": two - three, f"{setting} 1 to 3": one - three}
    return by_name(steps, methods)


@special("simple_fr")
def worst_with_all_objects(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By method: lowest PAFL of Simple-FR's other buckets minus that of 11 and 12."""
    return lowest_at(e, "simple_fr", ["11", "12"], methods)


@special("simple_fr", methods=["lrp_epsilon"])
def epsilon_succeeds_at_its_worst(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """Lowest PAFL of Simple-FR's buckets, minus 0.5."""
    return by_name({"": np.fmin.reduce(e.buckets("simple_fr", "pafl", methods), axis=2) - HALF}, methods)


@special("complex_cr2")
def worst_at_nine(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By method: lowest PAFL of CR2's other buckets minus that of bucket 9."""
    return lowest_at(e, "complex_cr2", ["9"], methods)


@special("complex_cr2")
def minima_below_half(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By method: 0.5 minus the lowest PAFL of CR2's buckets."""
    return by_name({"": HALF - np.fmin.reduce(e.buckets("complex_cr2", "pafl", methods), axis=2)}, methods)


LINED = ("complex_cr1", "complex_cr3", "complex_cr4")


@special(*LINED, methods=MID, buckets=BOTH_PRESENT)
def lines_differ(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By setting (CR1, CR3, CR4) and method: largest minus smallest PAFL of the figure's lines, minus 0.3."""

    def part(setting: str) -> Floats:
        lines = np.stack([*of_lines(e, MORE_LINES, setting, "pafl", methods).values()])
        return np.fmax.reduce(lines) - np.fmin.reduce(lines) - 0.3

    return by_setting(LINED, methods, part)


@special("complex_cr1", buckets={"complex_cr1": ("5", "6")})
def box2_is_missed(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By method: 0.16 minus the mean PAFL of CR1's buckets 5 and 6."""
    return by_name({"": 0.16 - of_line(e, "complex_cr1", ["5", "6"], "pafl", methods)}, methods)


@special("complex_fr", buckets={"complex_fr": ("11", "12")})
def epsilon_stands_out(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By method: 0.45 minus the mean PAFL of Complex-FR's buckets 11 and 12; of LRP-eps the mean minus 0.5."""
    focus = e.line("complex_fr", ["11", "12"], "pafl", methods)
    return (0.42 + TOLERANCE - focus).assign(lrp_epsilon=focus["lrp_epsilon"] - HALF)


@special("complex_cr4", methods=MID, buckets={"complex_cr4": ("5", "6", "11", "12")})
def far_and_near(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By method: mean PAFL of CR4's buckets 11 and 12 minus 0.32; 0.85 minus it; 0.25 minus that of 5 and 6."""
    far, near = (of_line(e, "complex_cr4", buckets, "pafl", methods) for buckets in (["11", "12"], ["5", "6"]))
    sides = {"above": far - 0.35, "below": 0.82 - far, "box2": 0.22 - near}
    return by_name({side: part + TOLERANCE for side, part in sides.items()}, methods)


@special("simple_fr", metrics=MEAN_FOCUS, unit="ratio", buckets=BOTH_PRESENT)
def primary_focus_in_simple_fr(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By bucket of Simple-FR with both kinds of object and method: PMAFL - SMAFL, divided by the larger."""
    return -gaps_by_bucket(e, ["simple_fr"], methods)


@special("simple_nr", metrics=MEAN_FOCUS, unit="ratio", buckets=BOTH_PRESENT)
def secondary_focus_in_simple_nr(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By bucket of Simple-NR with both kinds of object and method: SMAFL - PMAFL, divided by the larger."""
    return gaps_by_bucket(e, ["simple_nr"], methods)


@special("complex", metrics=MEAN_FOCUS, unit="ratio", buckets=BOTH_PRESENT)
def secondary_focus_in_complex(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By bucket of the complex settings with both kinds of object and method: SMAFL - PMAFL, divided by the larger."""
    return gaps_by_bucket(e, COMPLEX, methods)


@special("simple", "complex", metrics=MEAN_FOCUS, unit="share", buckets=BOTH_PRESENT)
def bigger_gaps(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """Share of cells (bucket with both kinds of object, method) with SMAFL - PMAFL above 0.1 of the larger (they are
    comparable only relatively), complex minus simple settings."""
    shares = [share(gaps_by_bucket(e, pool, methods).to_numpy(), GAP) for pool in (COMPLEX, SIMPLE)]
    return pd.DataFrame({"complex minus simple": shares[0] - shares[1]})


@special("complex", methods=["oracle"], metrics=("piou",), unit="IOU")
def perfect_map_is_correct(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By bucket of the complex settings: PIOU of the oracle minus 0.5."""
    of = {s: e.buckets(s, "piou", methods)[:, 0] - HALF for s in COMPLEX}
    return pd.concat([by_name({s: values}, buckets_of(s, "piou")) for s, values in of.items()], axis=1)


NO_LETTER_A = {s: tuple(b for b in buckets_of(s, "piou") if s == "simple_fr" or int(b) % 3 == 0) for s in SIMPLE}


@special("simple", methods=TEN, metrics=("piou",), unit="IOU", buckets=NO_LETTER_A)
def fails_where_a_perfect_map_succeeds(e: Measured, methods: Sequence[str]) -> pd.DataFrame:
    """By method: 0.5 minus the lowest PIOU of the simple buckets whose primary object is not the letter A."""
    lowest = [np.fmin.reduce(e.buckets(s, "piou", methods, buckets), axis=2) for s, buckets in NO_LETTER_A.items()]
    return by_name({"": HALF - np.fmin.reduce(lowest)}, methods)


# -- all claims --------------------------------------------------------------------------------------------------------


def adversarial(figure: str, metric: str) -> list[Row]:
    """Figures 11 and 28: what adversarial training changes."""

    def gain(methods: Sequence[str]) -> Order:
        return Order(methods, {"": (Pooled("simple", metric, condition="pgd"), Pooled("simple", metric))})

    name, place = METRICS[metric], f"Figure {figure.removeprefix('fig')}"
    return [
        Row(f"{figure}.T1", f"adversarial training raises the mean {name} of G and SG in simple settings",
            f"{place}, text", gain(["gradient", "smoothgrad"])),
        Row(f"{figure}.T2", f"of robust models too, the mean {name} of every method is lower in complex settings",
            f"{place}, text", drop(metric, TEN, conditions=("pgd",)), meaning="failure"),
        Row(f"{figure}.T3", f"of robust models too, no method reaches a mean {name} of 0.5 in complex settings",
            f"{place}, text", Bound(["complex"], metric, TEN, condition="pgd", below=HALF), meaning="failure"),
        Row(f"{figure}.F", f"adversarial training raises the mean {name} of GBP in simple settings",
            place, gain(["guided_backprop"]), apart="plot"),
    ]  # fmt: skip


BLACK, NOISE, REAL = ({p: Pooled(p, "pafl", "min", c) for p in BOTH_POOLS} for c in ("plain", "noise", "places"))

# fmt: off
CLAIMS = [
    # Tables 1 to 3
    Row("table1.T", "12, 8, 12, 10, 10, 10 and 10 buckets with these labels and objects", "Table 1",
        table_1_as_printed, apart="configuration", text=True),
    Row("table2.T", "24,000, 16,000, 36,000 and 4 x 150,000 training, 6,000 or 4,000 validation images", "Table 2",
        table_2_as_printed, apart="configuration", text=True),
    Row("table3.T1", "every bucket of every model has an accuracy of at least 0.90", "Table 3",
        Accuracy(BOTH_POOLS, 0.90)),
    Row("table3.T2", "the buckets of the simple settings have an accuracy of 1.00", "Table 3",
        Accuracy(["simple"], 0.99)),
    Row("table3.T3", "the models are \"near-perfect\": each has an accuracy of at least 0.95", "Table 3, text",
        Accuracy(BOTH_POOLS, 0.95, overall=True)),
    # Figure 2
    Row("fig2.T1", "DT, IG, LRP, DeepLIFT and D-SHAP have a mean PIOU above 0.5 in simple settings", "Figure 2, text",
        Bound(["simple"], "piou", MEETING, above=HALF), meaning="success"),
    Row("fig2.T2", "none of the ten methods reaches a mean PIOU of 0.5 in complex settings", "Figure 2, text",
        Bound(["complex"], "piou", TEN, below=HALF), meaning="failure", apart="nested: fig18.T1"),
    Row("fig2.T3", "every method has a lower mean PIOU in complex than in simple settings", "Figure 2, text",
        drop("piou", TEN), meaning="failure"),
    Row("fig2.T4", "every method shows failure cases: buckets with a PIOU below 0.5, simple and complex",
        "Figure 2, text", Bound(BOTH_POOLS, "piou", TEN, "min", below=HALF),
        apart="cannot fail: a perfect map's lowest bucket is 0.07"),
    Row("fig2.F", "G, SG, DCN, GBP and G-CAM have a mean PIOU below 0.5 in simple settings", "Figure 2",
        Bound(["simple"], "piou", [*WEAK, "grad_cam"], below=HALF), apart="plot"),
    # Figure 6
    Row("fig6a.T1", "G, SG, DCN and GBP have a mean PAFL below 0.5 in simple settings", "Figure 6a, text",
        Bound(["simple"], "pafl", WEAK, below=HALF), meaning="failure"),
    Row("fig6a.T2", "\"most of the methods, except\" G, SG, DCN and GBP, have a mean PAFL above 0.5 in simple settings",
        "Figure 6a, text", Bound(["simple"], "pafl", NOT_WEAK, above=HALF), "most", "success"),
    Row("fig6a.T2.every", "the methods other than G, SG, DCN and GBP have a mean PAFL above 0.5 in simple settings",
        "Figure 6a, text", Bound(["simple"], "pafl", NOT_WEAK, above=HALF), meaning="success",
        apart="second reading: every one of them"),
    Row("fig6a.F", "I*G, IG, LRP-z, LRP-eps, LRP-A-flat, DL-RC and DL-R have a mean PAFL above 0.5 in simple settings",
        "Figure 6a", Bound(["simple"], "pafl", SUCCEEDING, above=HALF), apart="plot"),
    Row("fig6a.T3", "methods with a mean PAFL above 0.5 have a lower mean SAFL in simple settings", "Figure 6a, text",
        Order(SUCCEEDING, {"": (Pooled("simple", "pafl"), Pooled("simple", "safl"))}), meaning="success"),
    Row("fig6a.T4", "an irrelevant object lowers PAFL", "Figure 6a, text",
        irrelevant_object(NOT_WEAK), meaning="failure", text=True),
    Row("fig6a.T4.every", "an irrelevant object lowers PAFL", "Figure 6a, text",
        irrelevant_object(FIFTEEN), meaning="failure", text=True,
        apart="second reading: with the methods at the random baseline"),
    Row("fig6b.T", "with every further object PAFL falls and SAFL rises", "Figure 6b, text",
        saturation(SATURATING), meaning="failure", text=True),
    Row("fig6b.T2", "with every further object PAFL falls and SAFL rises, for I*G, IG, LRP without B-flat and DeepLIFT",
        "Figure 6b, text", saturation([m for m in MID if m != "lrp_b_flat"]), text=True, apart="nested: fig6b.T"),
    Row("fig6b.F", "PAFL of I*G falls with every further object (S-FR .74 .54 .45, S-NR .87 .68 .55)", "Figure 6b",
        input_x_gradient_saturates, apart="plot"),
    # Figure 7
    Row("fig7.T1", "DL-R alone succeeds in every bucket of both simple settings", "Figure 7, top, text",
        rescale_alone_succeeds, meaning="success", text=True),
    Row("fig7.T2", "G, SG, DCN and GBP \"fail for all buckets\" of the simple settings", "Figure 7, top, text",
        weak_fail_everywhere, meaning="failure", text=True),
    Row("fig7.T3", "in complex settings only LRP-eps on Complex-FR succeeds in every bucket", "Figure 7, top, text",
        epsilon_alone_succeeds, meaning="failure", text=True),
    Row("fig7.T4", "methods succeed in a larger share of simple than of complex buckets", "Figure 7, top, text",
        fewer_successes, "average", "failure", text=True),
    Row("fig7b.T1", "the majority of complex cells (a method in a setting) fail: SAFL exceeds PAFL in most buckets",
        "Figure 7, bottom, text", cells_fail, "most", "failure", text=True),
    Row("fig7b.T2", "more complex than simple cells (a method in a setting) fail: SAFL exceeds PAFL in most buckets",
        "Figure 7, bottom, text", more_cells_fail, "average", "failure", text=True),
    # Figure 8
    Row("fig8a.T1", "every method has a lower mean PAFL in complex than in simple settings", "Figure 8a, text",
        drop("pafl", FIFTEEN), meaning="failure"),
    Row("fig8a.T2", "IG, LRP-z, LRP-eps and DeepLIFT \"narrowly meet\" a PAFL of 0.5 in complex settings",
        "Figure 8a, text", Bound(["complex"], "pafl", NARROW, above=0.47, below=0.57), meaning="success"),
    Row("fig8a.T3", "the PAFL of G-CAM and D-SHAP drops by more than that of IG, LRP and DeepLIFT", "Figure 8a, text",
        bigger_drop(["grad_cam", "deep_shap"]), meaning="failure"),
    Row("fig8a.T4", "G, SG, DCN and GBP stay low: mean PAFL below 0.25 in complex settings", "Figure 8a, text",
        Bound(["complex"], "pafl", WEAK, below=0.25), meaning="failure"),
    Row("fig8a.T5", "I*G, IG, LRP and DeepLIFT have a higher mean SAFL in complex than in simple settings",
        "Figure 8a, text", rise("safl", MID), meaning="failure"),
    Row("fig8a.T6", "CR2: \"most\" methods succeed where the letter is primary beside Box2 (buckets 5, 6)",
        "Figure 8a, text", succeed_at_text, "most", "success", text=True),
    Row("fig8a.T6b", "CR2: no method succeeds with Box1 (buckets 8, 9 and 11, 12)", "Figure 8a, text",
        fail_at_box1, meaning="failure", text=True),
    Row("fig8a.T7", "PAFL of I*G, IG, LRP and DeepLIFT varies more over the buckets of complex than of simple settings",
        "Figure 8a, text", rise("pafl", MID, "std"), meaning="failure", text=True),
    Row("fig8b.T", "every method has a lower lowest PAFL in complex than in simple settings", "Figure 8b, text",
        drop("pafl", FIFTEEN, "min"), meaning="failure"),
    Row("fig8b.F", "every method has a lowest PAFL of at most 0.10 over the five complex settings", "Figure 8b",
        Bound(["complex"], "pafl", FIFTEEN, "min", below=0.10), apart="plot"),
    # Figures 9, 25, 15: measured on kept maps
    Row("fig9.T", "IG lights every visible object, whatever the model reasons on", "Figure 9, text",
        lights_secondary_objects(["integrated_gradients"]), meaning="failure", text=True),
    Row("fig25.T", "G, LRP-z and DeepLIFT light every visible object, whatever the model reasons on",
        "Figure 25, text", lights_secondary_objects(["gradient", "lrp_z", "deeplift_reveal_cancel"]),
        meaning="failure", text=True),
    Row("fig15.T", "the IOU of one map changes with K", "Figure 15, text", iou_depends_on_k, "average", text=True,
        apart="cannot fail: four times as many pixels overlap differently, whatever the map"),
    # Figures 10, 26, 27: AlexNet and VGG-16
    Row("fig10.T1", "AlexNet, VGG-16: every method has a higher mean PIOU in simple than in complex settings",
        "Figure 10, text", drop("piou", NINE, conditions=DEEP), meaning="failure"),
    Row("fig10.T2", "AlexNet, VGG-16: every method has a higher lowest PIOU in simple than in complex settings",
        "Figure 10, text", drop("piou", NINE, "min", DEEP), meaning="failure", text=True),
    Row("fig27.T", "AlexNet, VGG-16: every method has a higher mean PAFL in simple than in complex settings",
        "Figure 27, text", drop("pafl", NINE, conditions=DEEP), meaning="failure"),
    Row("fig27.F", "AlexNet, VGG-16: only IG and LRP-eps exceed a mean PAFL of 0.5 in simple settings", "Figure 27",
        two_exceed_half_on_deep_nets, apart="plot"),
    # Figures 11, 28: adversarially trained models
    *adversarial("fig11", "piou"),
    *adversarial("fig28", "pafl"),
    # Figures 12, 32, 33: real background; 29, 30: noise
    Row("fig12.T1", "real background: every method has a lower lowest PAFL in complex than in simple settings",
        "Figure 12, text", drop("pafl", FIFTEEN, "min", ("places",)), meaning="failure"),
    Row("fig12.T2", "in \"general\" the lowest PAFL of simple settings is lower on real than on black background",
        "Figure 12, text", Order(MID, {"": (BLACK["simple"], REAL["simple"])}), "most", "failure"),
    Row("fig12.T3", "real background: the lowest PAFL of every method is below 0.5 in simple settings already",
        "Figure 12, text", Bound(["simple"], "pafl", FIFTEEN, "min", "places", below=HALF), meaning="failure"),
    Row("fig29.T1", "noise background: every method has a lower mean PAFL in complex than in simple settings",
        "Figure 29, text", drop("pafl", FIFTEEN, conditions=("noise",)), meaning="failure", text=True),
    Row("fig29.T2", "noise background: I*G, IG, LRP and DeepLIFT have a higher mean SAFL in complex settings",
        "Figure 29, text", rise("safl", MID, condition="noise"), meaning="failure", text=True),
    Row("fig30.T", "the lowest PAFL of I*G, IG, LRP and DeepLIFT is lower on noise than on black background",
        "Figure 30, text", Order(MID, {p: (BLACK[p], NOISE[p]) for p in BOTH_POOLS}), meaning="failure", text=True),
    Row("fig32.T1", "real background: every method has a lower mean PAFL in complex than in simple settings",
        "Figure 32, text", drop("pafl", FIFTEEN, conditions=("places",)), meaning="failure", text=True),
    Row("fig32.T2", "real background: every model has an accuracy of at least 0.93", "Figure 32, text",
        Accuracy(BOTH_POOLS, 0.93, overall=True, condition="places")),
    Row("fig33.T", "the lowest PAFL of simple settings falls by more on real than on noise background",
        "Figure 33, text", Order(MID, {"": (NOISE["simple"], REAL["simple"])}), meaning="failure", text=True),
    # Figures 14, 16: toy maps
    Row("fig14.T", "toy map: PAFL .75, SAFL .24, PIOU 1, SIOU 0, K = 247", "Figure 14",
        toy_scores, apart="toy maps", text=True),
    Row("fig16.T1", "toy map: a brighter secondary object lowers PAFL and raises SAFL, their sum about 1",
        "Figure 16, top", toy_secondary, apart="toy maps", text=True),
    Row("fig16.T2", "toy map: both are near 0 while the background exceeds the secondary object", "Figure 16, bottom",
        toy_background, apart="toy maps", text=True),
    # Figures 17 to 24
    Row("fig17.T1", "most methods have a mean PIOU above 0.5 in simple settings", "Figure 17a, text",
        Bound(["simple"], "piou", FIFTEEN, above=HALF), "most", "success", text=True),
    Row("fig17.T2", "the SIOU of every method is low in simple settings", "Figure 17a, text",
        Bound(["simple"], "siou", FIFTEEN, below=0.2), meaning="success", text=True),
    Row("fig17b.T", "PIOU of I*G, IG, LRP and DeepLIFT changes little between 1, 2 and 3 objects", "Figure 17b, text",
        overlap_by_objects, text=True, bound=0.15),
    Row("fig18.T1", "no method reaches a mean PIOU of 0.5 in complex settings", "Figure 18a, text",
        Bound(["complex"], "piou", FIFTEEN, below=HALF), meaning="failure"),
    Row("fig18.T2", "every method has a lower lowest PIOU in complex than in simple settings", "Figure 18b, text",
        drop("piou", FIFTEEN, "min"),
        apart="cannot hold: the histogram cut gives a perfect map 0.07 on the letter A in simple settings already"),
    Row("fig18.T3", "the SIOU of every method stays low in complex settings", "Figure 18a, text",
        Bound(["complex"], "siou", FIFTEEN, below=0.25), meaning="success", text=True),
    Row("fig19.T1", "Simple-FR: the worst bucket of almost all methods has all three objects", "Figure 19, text",
        worst_with_all_objects, ALMOST_ALL, "failure", text=True),
    Row("fig19.T2", "LRP-eps succeeds even in its worst bucket of Simple-FR", "Figure 19, text",
        epsilon_succeeds_at_its_worst, "average", "success", text=True),
    Row("fig21.T3", "CR2: 13 of 15 methods have their worst bucket where Box1 and B are (9)", "Figure 21, text",
        worst_at_nine, ALMOST_ALL, "failure", text=True),
    Row("fig21.T3b", "CR2: every method has a bucket with a PAFL below 0.5", "Figure 21, text",
        minima_below_half, meaning="failure", text=True, apart="nested: fig8a.T6b"),
    Row("fig22.T", "PAFL of I*G, IG, LRP and DeepLIFT varies widely between the buckets of CR1, CR3 and CR4",
        "Figure 22, text", lines_differ, meaning="failure", text=True),
    Row("fig22.F1", "CR1: PAFL is at most 0.16 for every method where Box2 is primary (5, 6)", "Figure 22",
        box2_is_missed, apart="plot", text=True),
    Row("fig22.F2", "Complex-FR (11, 12): LRP-eps (.64) lies above 0.5, all others at 0.42 or below", "Figure 22",
        epsilon_stands_out, apart="plot", text=True),
    Row("fig22.F3", "CR4: PAFL of I*G, IG, LRP, DeepLIFT is .35 to .82 at 11, 12, at most .22 at 5, 6", "Figure 22",
        far_and_near, apart="plot", text=True),
    Row("fig23.T1", "Simple-FR: PMAFL is at least SMAFL for every method and bucket", "Figure 23, text",
        primary_focus_in_simple_fr, meaning="success", text=True),
    Row("fig23.T2", "Simple-NR: SMAFL exceeds PMAFL for some method and bucket", "Figure 23, text",
        secondary_focus_in_simple_nr, "some", "failure", text=True),
    Row("fig24.T1", "complex settings: SMAFL exceeds PMAFL for some method and bucket", "Figure 24, text",
        secondary_focus_in_complex, "some", "failure", text=True),
    Row("fig24.T2", "the gap is \"bigger for some buckets\" of complex than of simple settings", "Figure 24, text",
        bigger_gaps, "average", "failure", text=True),
    # What the paper's own plots do not support
    Row("7.3.1", "a PIOU above 0.5 is within reach: a perfect map has it in every complex bucket", "Figure 2",
        perfect_map_is_correct, apart="ours", text=True),
    Row("7.3.2", "all methods but G, SG, DCN and GBP exceed a PAFL of 0.5 in simple settings", "Figure 6a, text",
        Bound(["simple"], "pafl", NOT_WEAK, above=HALF), apart="second reading: the same as fig6a.T2.every"),
    Row("7.3.3", "PAFL drops for all methods in complex settings", "Figure 8a, text",
        drop("pafl", FIFTEEN), apart="duplicate: fig8a.T1"),
    Row("7.3.4", "every method fails in some simple bucket in which a perfect map is correct", "Figure 2",
        fails_where_a_perfect_map_succeeds, apart="ours", text=True),
    Row("7.3.5", "G-CAM suffers a bigger drop of PAFL than IG, LRP and DeepLIFT", "Figure 8a, text",
        bigger_drop(["grad_cam"]), apart="nested: fig8a.T3", text=True),
    Row("7.3.6", "every method has a lower lowest PAFL over CR2 and CR3 alone, as plotted, than in simple settings",
        "Figure 8b", Order(FIFTEEN, {"": (BLACK["simple"], Pooled("cr2_cr3", "pafl", "min"))}), text=True,
        apart="ours"),
]
# fmt: on

for row in CLAIMS:
    for each in (row, *row.beyond_the_oracle()):
        each.register()
