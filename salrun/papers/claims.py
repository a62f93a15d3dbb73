"""What a claim of a paper is: its sentence, and the differences that decide it. `verdicts.py` decides.

A claim says "at least m of n parts hold": `every` part, `most`, `some`, one `average`, or a number of them. A part is a
signed difference in one unit, > 0 where it holds (a claim of equality: inside +-bound). A claim reduces tables of
evidence to its parts, a column each. The tables have one row per draw: row 0 holds the estimates, the rows below the
same quantity in bootstrap resamples of the images, so a claim written row by row gives estimate and uncertainty at
once. Published tables have draws too, within the error of print; so the same function says whether the paper's own
numbers support its sentence:

    @claim("T5", "tomsett", "alpha grows with L", place="Table 1", predicate="alpha at L minus alpha at the L before",
           unit="alpha", reads="alpha")
    def _(e: Evidence) -> pd.DataFrame:
        return pick(e["alpha"], steps=40) - pick(e["alpha"], steps=20)

`reads` says, in the paper's own terms, what a claim rests on; the evidence knows its images and models (`basis`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import pandas as pd

from salrun.errors import SalrunError
from salrun.papers.evidence import NotTestable
from salrun.stats.conjunction import Quantifier

MOST_WORDS = 25  # of a quotation


class Unit(NamedTuple):
    """Differences below `delta` are small; ours and a printed number agree within `tau` (None: it prints none)."""

    delta: float
    tau: float | None


UNITS = {
    **dict.fromkeys(("AFL", "IOU", "alpha", "correlation", "mass", "similarity"), Unit(0.02, 0.05)),
    "points": Unit(1.0, 5.0),  # of 100: AI, AD, AG, insertion, deletion, sparseness
    **dict.fromkeys(("AOPC", "faithfulness"), Unit(0.01, 0.02)),
    **dict.fromkeys(("monotonicity", "sensitivity"), Unit(0.05, 0.1)),
    "nats": Unit(0.1, 0.2),
    "percent of the pixels": Unit(1.0, 5.0),
    **dict.fromkeys(("share", "accuracy"), Unit(0.05, 0.1)),
    "ranks": Unit(0.5, 1.0),
    **dict.fromkeys(("Cohen's d", "ratio"), Unit(0.1, None)),
    "none": Unit(0.0, None),  # of what needs no run
}

APART = {  # why a claim is listed apart and not counted; what follows a colon is said with it
    "second reading": "another reading of a counted sentence",
    "duplicate": "the same as a counted claim",
    "nested": "follows from a counted claim",
    "plot": "visible in a plot, not stated",
    "ours": "our finding, which the paper does not state",
    "cannot fail": "true whatever is measured",
    "cannot hold": "false whatever is measured",
    "configuration": "checked on the configuration, not on a run",
    "toy maps": "checked on toy maps, not on a run",
    "definition": "true by definition",
}


@dataclass(frozen=True)
class Basis:
    """What a claim rests on: images that have a score, models, and what a reader must know beside the verdict."""

    images: int = 0
    models: int = 1
    note: str = ""
    reading: str = ""  # of the paper, where it is not the counted one


@dataclass(frozen=True)
class Evidence:
    """Named tables of one replicate (rows: estimate, then draws; columns: quantities) and what they rest on."""

    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    bases: Mapping[Any, Basis] = field(default_factory=dict)  # by table; None: of claims that name none
    images: Any = None  # which images it explains (`dataset.explained_seed`): replicates have their own
    fresh: bool = False  # its images were not looked at when the predicates were written
    other_network: bool = False  # it is about a pretrained network that is not the paper's

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self.tables:
            raise NotTestable(f"needs the table '{name}'")
        return self.tables[name]

    def basis(self, reads: Any) -> Basis:
        """What a claim that reads this (the name of a table, unless a paper has more to say) rests on."""
        return self.bases.get(reads, Basis())


Parts: TypeAlias = pd.DataFrame | pd.Series
Measure: TypeAlias = Callable[[Evidence], Parts]


@dataclass(frozen=True)
class Controls:
    """Maps in place of a claim's methods: perfect ones, and ones that know nothing of the model.

    A claim that methods succeed says nothing where a perfect map does not, or a blind one does; a claim that methods
    fail or drop says nothing where a perfect map does too.
    """

    meaning: Literal["success", "failure"]
    measure: Callable[[Evidence, str], Parts]
    perfect: tuple[str, ...] = ("oracle",)
    blind: tuple[str, ...] = ("all_lit", "edge", "random")


@dataclass(frozen=True)
class Numbers:
    """The printed numbers that a claim is about, in one unit: from a run and from the published tables alike."""

    unit: str
    read: Measure


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper and the function that measures its parts."""

    id: str
    paper: str
    sentence: str  # the paper's words in quotation marks; our paraphrase where there are none
    place: str
    predicate: str  # what a part is, in words
    measure: Measure
    quantifier: Quantifier | int = "every"
    unit: str = "none"
    bound: float = 0.0  # of a claim of equality
    apart: str = ""  # a key of APART, and more after a colon, where the claim is not counted
    text: bool = False  # stated in text or figures only: there is no published number to test
    reads: Any = None  # what it rests on, in the terms of the paper's evidence
    controls: Controls | None = None
    numbers: Numbers | None = None
    second_mode: Measure | None = None  # the same with the metrics' other definition
    population: Literal["models", "images"] = "models"  # images: of a pretrained network

    @property
    def needs_no_run(self) -> bool:
        return self.apart.split(":")[0] in ("configuration", "toy maps")

    @property
    def why_apart(self) -> str:
        """Why it is not counted, in words; empty where it is."""
        if not self.apart:
            return ""
        kind, _, more = self.apart.partition(":")
        return f"{APART[kind]}{':' if more else ''}{more}"

    def check(self) -> None:
        """Refuse a claim that is not well said."""
        wrong = []
        if self.unit not in UNITS:
            wrong.append(f"unit must be one of {', '.join(UNITS)}, got '{self.unit}'")
        if self.apart and self.apart.split(":")[0] not in APART:
            wrong.append(f"apart must start with one of {', '.join(APART)}, got '{self.apart}'")
        if len(self.sentence.split()) > MOST_WORDS:
            wrong.append(f"its sentence has more than {MOST_WORDS} words")
        if not (self.sentence and self.place and self.predicate):
            wrong.append("sentence, place and predicate must be said")
        if wrong:
            raise SalrunError(f"claim '{self.id}' of '{self.paper}': {'; '.join(wrong)}")


_CLAIMS: dict[str, dict[str, Claim]] = {}


def register(claim: Claim) -> Claim:
    """Add a claim to those of its paper."""
    claim.check()
    claims = _CLAIMS.setdefault(claim.paper, {})
    if claim.id in claims and claims[claim.id].measure.__module__ != claim.measure.__module__:
        where = claims[claim.id].measure.__module__
        raise SalrunError(f"claim '{claim.id}' of '{claim.paper}' is defined twice, in {where}")
    claims[claim.id] = claim
    return claim


def claim(id: str, paper: str, sentence: str, **options: Any) -> Callable[[Measure], Measure]:
    """Register a function of the evidence as a claim of `paper`; `options` are the fields of Claim."""

    def decorate(measure: Measure) -> Measure:
        register(Claim(id, paper, sentence, measure=measure, **options))
        return measure

    return decorate


def claims_of(paper: str) -> list[Claim]:
    """The claims of a paper, in the order of their definition; its `claims` module must have been imported."""
    return list(_CLAIMS.get(paper, {}).values())


def parts(**named: pd.Series | pd.DataFrame) -> pd.DataFrame:
    """Several differences side by side, each part under its name."""
    columns = []
    for name, part in named.items():
        if isinstance(part, pd.DataFrame):
            columns += [part[c].rename(f"{name} {part_name(c)}") for c in part.columns]
        else:
            columns.append(part.rename(name))
    return pd.concat(columns, axis=1)


def part_name(column: object) -> str:
    """The name of a part: the levels of its column."""
    return " ".join(str(c) for c in column if c != "") if isinstance(column, tuple) else str(column)
