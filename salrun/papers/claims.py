"""A paper's claims as short functions, and what a run says about them.

A claim reduces tables of evidence to margins: a statement holds where its margin is > 0. The tables have one column
per cell and one row per draw: row 0 holds the estimates, the rows below the same quantity in bootstrap resamples of the
images. A claim written row by row therefore gives the margin and its uncertainty at once, and the same function applied
to the published tables (row 0 only) says whether the paper's own numbers support the statement:

    @claim("T5", "tomsett", "alpha grows with L", reads="alpha")
    def _(e: Evidence) -> pd.DataFrame:
        return pick(e["alpha"], steps=40) - pick(e["alpha"], steps=20)

A claim says what it reads (`reads`, in the paper's own terms), and the evidence says what that rests on (`basis`).

A claim with several parts (columns) holds where all parts do (`any_of=True`: where one does); its margin is that of
the worst (best) part. `reason` names the parts that fail; where all hold, the closest one.

`holds`: yes where the whole confidence interval is > 0, no where it is < 0, else uncertain. It is an interval over
images; with at least three seeds it is Student's t over the seeds' margins. Where one failing (holding) part of several
would decide, that side of the interval is widened by Bonferroni's correction.
`verdict`: reproduced where `holds` equals `published_holds` (for what is stated in the text only: where it holds), so a
statement that is false both here and on the paper's own tables is reproduced as such, and `reason` says so.
A claim with a `basis` rests on no run: its value alone decides, it has no interval, and `reason` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from scipy import stats

from salrun.errors import SalrunError
from salrun.papers.evidence import NotTestable

COLUMNS = [
    *("id", "paper", "statement", "measured", "ci_low", "ci_high", "holds"),
    *("published", "published_holds", "verdict", "reason"),
]
SEEDS_FOR_INTERVAL = 3
NO_RUN = {  # what a claim may rest on instead of a run
    "configuration": "checked on the configuration, not on a run",
    "toy maps": "checked on toy maps, not on a run",
}


@dataclass(frozen=True)
class Margin:
    """One number, > 0 where the statement holds, with its confidence interval, and the parts that decide it."""

    value: float
    low: float = math.nan
    high: float = math.nan
    failing: tuple[str, ...] = ()
    closest: str = ""  # of several parts, the one whose margin this is

    @property
    def holds(self) -> str:
        """Decided by the interval; by the value itself where there is none (published numbers)."""
        if math.isnan(self.low):
            return "yes" if self.value > 0 else "no"
        return "yes" if self.low > 0 else "no" if self.high < 0 else "uncertain"


@dataclass(frozen=True)
class Basis:
    """What a claim rests on: images that have a score, models, and what a reader must know beside the verdict."""

    images: int = 0
    models: int = 1
    note: str = ""


@dataclass(frozen=True)
class Evidence:
    """Named tables of one seed (rows: estimate, then draws; columns: quantities) and what they rest on."""

    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    bases: Mapping[Any, Basis] = field(default_factory=dict)  # by table; None: of claims that name none

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self.tables:
            raise NotTestable(f"needs the table '{name}'")
        return self.tables[name]

    def basis(self, reads: Any) -> Basis:
        """What a claim that reads this (the name of a table, unless a paper has more to say) rests on."""
        return self.bases.get(reads, Basis())


Parts: TypeAlias = pd.DataFrame | pd.Series | Margin


@dataclass(frozen=True)
class Claim:
    """A statement of a paper and the function that measures its margin."""

    id: str
    paper: str
    statement: str
    measure: Callable[[Evidence], Parts]
    any_of: bool = False
    text: bool = False  # stated in text or figures only: there is no published number to test
    reads: Any = None  # what it rests on, in the terms of the paper's evidence
    basis: str = ""  # a key of NO_RUN where the claim rests on no run


_CLAIMS: dict[str, dict[str, Claim]] = {}


def claim(
    id: str,
    paper: str,
    statement: str,
    *,
    reads: Any = None,
    any_of: bool = False,
    text: bool = False,
    basis: str = "",
) -> Callable[[Callable[[Evidence], Parts]], Callable[[Evidence], Parts]]:
    """Register a function of the evidence as a claim of `paper`."""
    if basis and basis not in NO_RUN:
        raise SalrunError(f"claim '{id}' of '{paper}': basis must be one of {', '.join(NO_RUN)}, got '{basis}'")

    def register(measure: Callable[[Evidence], Parts]) -> Callable[[Evidence], Parts]:
        claims = _CLAIMS.setdefault(paper, {})
        if id in claims and claims[id].measure.__module__ != measure.__module__:
            raise SalrunError(f"claim '{id}' of '{paper}' is defined twice, in {claims[id].measure.__module__}")
        claims[id] = Claim(id, paper, statement, measure, any_of, text, reads, basis)
        return measure

    return register


def claims_of(paper: str) -> list[Claim]:
    """The claims of a paper, in the order of their definition; its `claims` module must have been imported."""
    return list(_CLAIMS.get(paper, {}).values())


def parts(**named: pd.Series | pd.DataFrame) -> pd.DataFrame:
    """Several margins side by side, each part under its name."""
    columns = []
    for name, part in named.items():
        if isinstance(part, pd.DataFrame):
            columns += [part[c].rename(f"{name} {_cell_name(c)}") for c in part.columns]
        else:
            columns.append(part.rename(name))
    return pd.concat(columns, axis=1)


def evaluate_claims(
    claims: Iterable[Claim], evidence: Evidence | Sequence[Evidence], published: Evidence | None = None
) -> pd.DataFrame:
    """One row per claim (columns: COLUMNS). `evidence`: of one model, or of one model per seed."""
    seeds = [evidence] if isinstance(evidence, Evidence) else list(evidence)
    if not seeds:
        raise SalrunError("claims need the evidence of at least one model, got none")
    rows = [_row(c, seeds, published or Evidence()) for c in claims]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(claim: Claim, seeds: Sequence[Evidence], published: Evidence) -> dict[str, object]:
    printed = _published(claim, published)
    row: dict[str, object] = {"id": claim.id, "paper": claim.paper, "statement": claim.statement}
    row["published"] = "text" if printed is None else round(printed.value, 10)
    row["published_holds"] = "yes" if printed is None else printed.holds
    try:
        margin = measure(claim, seeds[:1] if claim.basis else seeds)
    except NotTestable as problem:
        return row | {"holds": "", "verdict": "not testable here", "reason": str(problem)}
    holds = "uncertain" if math.isnan(margin.low) and not claim.basis else margin.holds
    agrees = holds == row["published_holds"]
    note = seeds[0].basis(claim.reads).note
    verdict = "uncertain" if holds == "uncertain" else "reproduced" if agrees else "not reproduced"
    return row | {
        "measured": margin.value,
        "ci_low": margin.low,
        "ci_high": margin.high,
        "holds": holds,
        "verdict": verdict,
        "reason": "; ".join(filter(None, [_why(margin, printed), _basis(claim, seeds), note])),
    }


def measure(claim: Claim, seeds: Sequence[Evidence]) -> Margin:
    """The margin of a claim with its interval over images, or over seeds where there are enough."""
    results = [claim.measure(e) for e in seeds]
    if all(isinstance(r, Margin) for r in results):
        return _of_margins([r for r in results if isinstance(r, Margin)])
    tables = [_as_parts(r) for r in results]
    points = pd.DataFrame([t.iloc[0] for t in tables])
    undefined = points.columns[points.isna().any()]
    if len(undefined):
        raise NotTestable(f"undefined for {', '.join(map(_cell_name, undefined))}")
    # "Some part is > 0" is the opposite of "all parts are < 0".
    turn = -1.0 if claim.any_of else 1.0
    lows, highs = _intervals([turn * t for t in tables])
    margins = turn * points.mean()
    ends = sorted([turn * lows.min(), turn * highs.min()])
    several = len(margins) > 1
    failing = _failing(margins) if several and not claim.any_of else ()
    closest = _cell_name(margins.idxmin()) if several else ""
    return Margin(float(turn * margins.min()), float(ends[0]), float(ends[1]), failing, closest)


def _failing(margins: pd.Series) -> tuple[str, ...]:
    """The parts that do not hold, worst first."""
    bad = margins[margins <= 0].sort_values(kind="stable")
    return tuple(f"{_cell_name(cell)} ({value:+.3g})" for cell, value in bad.items())


def _intervals(tables: Sequence[pd.DataFrame], level: float = 0.95) -> tuple[pd.Series, pd.Series]:
    """Low and high end of each part for "all parts hold"; the high end corrected for the number of parts."""
    tail = (1 - level) / 2
    corrected = tail / tables[0].shape[1]
    if len(tables) >= SEEDS_FOR_INTERVAL:
        points = pd.DataFrame([t.iloc[0] for t in tables])
        error = points.std(ddof=1) / math.sqrt(len(points))
        reach = stats.t(len(points) - 1).isf
        return points.mean() - reach(tail) * error, points.mean() + reach(corrected) * error
    draws = sum((t.iloc[1:] for t in tables[1:]), tables[0].iloc[1:]) / len(tables)
    if draws.empty:
        missing = pd.Series(np.nan, index=tables[0].columns)
        return missing, missing
    return draws.quantile(tail), draws.quantile(1 - corrected)


def _of_margins(margins: Sequence[Margin]) -> Margin:
    if len(margins) == 1:
        return margins[0]
    values = pd.DataFrame({"margin": [m.value for m in margins]})
    if len(margins) < SEEDS_FOR_INTERVAL:
        return Margin(values["margin"].mean(), min(m.low for m in margins), max(m.high for m in margins))
    low, high = _intervals([values.iloc[[k]] for k in range(len(values))])
    return Margin(values["margin"].mean(), float(low.iloc[0]), float(high.iloc[0]))


def _published(claim: Claim, published: Evidence) -> Margin | None:
    """The margin on the paper's own numbers; None where it has none."""
    if claim.text:
        return None
    try:
        return measure(claim, [published])
    except NotTestable as problem:
        raise SalrunError(
            f"claim '{claim.id}' of '{claim.paper}' is not marked as text but the published tables cannot test it: "
            f"{problem}"
        ) from problem


def _as_parts(result: Parts) -> pd.DataFrame:
    if isinstance(result, Margin):
        raise SalrunError("a claim gave a margin for one seed and draws for another")
    return result.to_frame("margin") if isinstance(result, pd.Series) else result


def _cell_name(cell: object) -> str:
    return " ".join(str(c) for c in cell if c != "") if isinstance(cell, tuple) else str(cell)


def _listing(failing: Sequence[str], most: int = 4) -> str:
    more = f" and {len(failing) - most} more" if len(failing) > most else ""
    return ", ".join(failing[:most]) + more


def _why(margin: Margin, printed: Margin | None) -> str:
    text = []
    if margin.failing:
        text.append(f"fails here for {_listing(margin.failing)}")
    elif margin.closest:
        text.append(f"closest: {margin.closest}")
    if printed is None:
        text.append("the paper states it in text or figures only")
    elif printed.holds == "no":
        where = f" for {_listing(printed.failing)}" if printed.failing else ""
        text.append(f"the paper's own tables contradict it{where}")
    return "; ".join(text)


def _basis(claim: Claim, seeds: Sequence[Evidence]) -> str:
    if claim.basis:
        return NO_RUN[claim.basis]
    if len(seeds) >= SEEDS_FOR_INTERVAL:
        return f"CI over {len(seeds)} seeds"
    bases = [e.basis(claim.reads) for e in seeds]
    count = sum(basis.models for basis in bases)
    models = "one model" if count == 1 else f"{count} models"
    return f"CI over {min(basis.images for basis in bases)} images of {models}"
