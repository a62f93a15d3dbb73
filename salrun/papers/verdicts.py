"""What a run says about the claims of its paper: claims.csv (a row per claim) and claim_parts.csv (a row per part).

A replicate is everything a claim reads, made with one seed: its models, its images, its random draws. From three
replicates on a verdict is about the paper's sentence: Student's t over the replicates, combined over the parts
(salrun/stats/conjunction.py). With fewer the interval is over the images and the answer is about one model.
Replicate 0, on which the predicates were written, is shown, and enters no verdict once there are three others. Of a
pretrained network there is one: the population is images, and those decide that were not looked at when the predicates
were written. The columns of both tables: salrun/results/claims.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from salrun.errors import SalrunError
from salrun.papers.claims import UNITS, Claim, Controls, Evidence, Measure, Numbers, part_name
from salrun.papers.evidence import NotTestable
from salrun.results.claims import CLAIMS, NOT_TESTED, PARTS
from salrun.stats import conjunction
from salrun.stats.conjunction import ENOUGH, LEVEL, Answer, needed

WRITTEN_ON = 0  # the replicate that the predicates were written on
LEFT_OUT = 0.2  # of the parts may be undefined
SHOWN = 4  # parts that a reason names


@dataclass(frozen=True)
class Verdicts:
    """A row per claim, and a row per part, control and printed number of each."""

    claims: pd.DataFrame
    parts: pd.DataFrame


def judge(claims: Iterable[Claim], replicates: Mapping[int, Evidence], published: Evidence | None = None) -> Verdicts:
    """The verdict on every claim, from the evidence of each seed."""
    if not replicates:
        raise SalrunError("claims need the evidence of at least one model, got none")
    judged = [_Case(claim, replicates, published or Evidence()) for claim in claims]
    rows = [case.row() for case in judged]
    parts = [part for case in judged for part in case.part_rows]
    return Verdicts(pd.DataFrame(rows, columns=CLAIMS), pd.DataFrame(parts, columns=PARTS))


def voting(replicates: Mapping[int, Evidence], population: str = "models") -> dict[int, Evidence]:
    """The replicates that enter a verdict: without the one it was written on where there are three others.

    Of a pretrained network: those with fresh images, where there are any.
    """
    if population == "images":
        return {seed: e for seed, e in replicates.items() if e.fresh} or dict(replicates)
    others = {seed: e for seed, e in replicates.items() if seed != WRITTEN_ON}
    return others if len(others) >= ENOUGH else dict(replicates)


@dataclass(frozen=True)
class Measured:
    """Parts of a claim over the replicates that vote: their names, statistics and answer."""

    names: list[str]
    parts: conjunction.Parts
    m: int
    answer: Answer
    undefined: list[str]
    bound: float = 0.0
    spread: tuple[np.ndarray, np.ndarray] | None = None  # replicates x parts, and their errors over images

    def to_decide(self) -> int | None:
        """How many models would decide, where it is uncertain and their spread is known."""
        if self.answer != "uncertain" or self.spread is None:
            return None
        points, errors = self.spread
        return conjunction.replicates_to_decide(points, self.m, errors, self.bound)

    @property
    def deciding(self) -> int:
        """The part that decides: the m-th surest that holds; where the claim fails, the like of those that fail.

        Of parts that are equally sure the larger difference comes first.
        """
        if self.answer == "no":
            return int(np.lexsort((-np.abs(self.parts.mean), self.parts.failing))[len(self.names) - self.m])
        size = np.abs(self.parts.mean) if self.bound else -self.parts.mean
        return int(np.lexsort((size, self.parts.holding))[self.m - 1])

    def answers(self) -> list[Answer]:
        """Of every part alone."""
        pairs = zip(self.parts.holding, self.parts.failing, strict=True)
        return ["yes" if holds <= LEVEL else "no" if fails <= LEVEL else "uncertain" for holds, fails in pairs]


def measure(claim: Claim, replicates: Sequence[Evidence], function: Measure | None = None) -> Measured:
    """A claim's parts over these replicates, by its own measure or another that speaks of the same."""
    tables = [_as_table((function or claim.measure)(e)) for e in replicates]
    points = pd.DataFrame([t.iloc[0] for t in tables]).astype(float)
    defined = points.columns[points.notna().all()]
    undefined = [part_name(c) for c in points.columns if c not in set(defined)]
    if not len(defined):
        raise NotTestable(f"undefined for {_listing(undefined)}")
    tables, points = [t[defined] for t in tables], points[defined]
    spread = None
    if claim.needs_no_run:
        stats = _exact(points.iloc[0].to_numpy(), claim.bound)
    elif _by_models(claim, replicates):
        errors = np.sqrt(np.mean([t.iloc[1:].var(ddof=1).fillna(0.0).to_numpy() for t in tables], axis=0))
        spread = points.to_numpy(), errors
        stats = conjunction.over_replicates(*spread, claim.bound)
    else:
        stats = _over_images(points.mean().to_numpy(), tables, claim.bound)
    m = needed(claim.quantifier, len(defined))
    answer = conjunction.decide(stats, m)
    too_many = len(undefined) > LEFT_OUT * (len(undefined) + len(defined))
    if too_many and not (claim.quantifier == "some" and answer == "yes"):
        answer, spread = "uncertain", None
    return Measured([part_name(c) for c in defined], stats, m, answer, undefined, claim.bound, spread)


def _by_models(claim: Claim, replicates: Sequence[Evidence]) -> bool:
    """Whether the interval is over models: there are enough of them, each with its own images."""
    own = {e.images for e in replicates if e.images is not None}
    apart = len(own) == len(replicates) or not own
    return claim.population == "models" and len(replicates) >= ENOUGH and apart


def _over_images(mean: np.ndarray, tables: Sequence[pd.DataFrame], bound: float) -> conjunction.Parts:
    """Over the images of one model, or of two on average; without draws nothing is known."""
    count = min(len(t) for t in tables) - 1
    if count < 2:
        unknown, half = np.full(mean.shape, np.nan), np.full(mean.shape, 0.5)
        return conjunction.Parts(mean, unknown, unknown, half, half)
    draws = np.mean([t.iloc[1 : count + 1].to_numpy() for t in tables], axis=0)
    return conjunction.over_images(mean, draws, bound)


def _exact(value: np.ndarray, bound: float) -> conjunction.Parts:
    """What needs no run has no error: its value alone decides."""
    unknown = np.full(value.shape, np.nan)
    holds = np.abs(value) < bound if bound else value > 0
    return conjunction.Parts(value, unknown, unknown, np.where(holds, 0.0, 1.0), np.where(holds, 1.0, 0.0))


# -- one claim ---------------------------------------------------------------------------------------------------------


class _Case:
    """A claim before its evidence: the row of claims.csv, and those of claim_parts.csv on the way."""

    def __init__(self, claim: Claim, replicates: Mapping[int, Evidence], published: Evidence) -> None:
        self.claim = claim
        self.lack = ""  # what the first replicate that cannot test it lacks
        self.parts_of: dict[int, pd.DataFrame] = {}  # of the replicates that have all that the claim reads
        for seed, evidence in replicates.items():
            try:
                self.parts_of[seed] = _as_table(claim.measure(evidence))
            except NotTestable as problem:
                self.lack = self.lack or str(problem)
        self.voters = voting({seed: replicates[seed] for seed in self.parts_of}, claim.population)
        self.evidence = list(self.voters.values())[: 1 if claim.needs_no_run else None]
        self.published = published
        self.printed = _published(claim, published)
        self.part_rows: list[dict[str, Any]] = []

    def row(self) -> dict[str, Any]:
        claim, printed = self.claim, self.printed
        row: dict[str, Any] = {name: getattr(claim, name) for name in ("id", "paper", "sentence", "place", "predicate")}
        row |= {"quantifier": quantifier_of(claim), "unit": claim.unit, "population": claim.population}
        row |= {"published_holds": "" if printed is None else printed.answer, "counted": claim.why_apart or "yes"}
        row["published"] = math.nan if printed is None else printed.values[printed.deciding]
        try:
            measured = self._measured()
        except NotTestable as problem:
            return row | {"holds": NOT_TESTED, "answer": NOT_TESTED, "about": "", "k": 0, "reason": str(problem)}
        self._list_parts(measured)
        informative, controls = self._controls()
        reading = "; ".join(dict.fromkeys(filter(None, (e.basis(claim.reads).reading for e in self.evidence))))
        if row["counted"] == "yes" and (informative or reading):
            row["counted"] = informative or f"another reading of the paper: {reading}"
        at, parts = measured.deciding, measured.parts
        row |= {"parts": len(measured.names), "needed": measured.m, "k": self._models()}
        row |= {"measured": parts.mean[at], "ci_low": parts.low[at], "ci_high": parts.high[at]}
        row["size"] = _size(claim, parts.mean[at])
        row |= {"holds": self._said(measured.answer), "answer": measured.answer, "about": self._about()}
        row |= {"second_mode": self._second_mode(), "agrees": self._agreement(), "control": controls}
        return row | {"reason": self._reason(measured)}

    def _measured(self) -> Measured:
        if not self.evidence:
            raise NotTestable(self.lack)
        tables = {id(e): self.parts_of[seed] for seed, e in self.voters.items()}
        return measure(self.claim, self.evidence, lambda e: tables[id(e)])

    def _models(self) -> int:
        if self.claim.needs_no_run:
            return 0
        return 1 if self.claim.population == "images" else len(self.evidence)

    def _about(self) -> str:
        """What an answer speaks of, where that is not the paper's sentence."""
        if self.claim.needs_no_run or _by_models(self.claim, self.evidence):
            return ""
        if self.claim.population == "images":
            other = ["another network"] if any(e.other_network for e in self.evidence) else []
            return ", ".join([*other, *([] if all(e.fresh for e in self.evidence) else ["images seen before"])])
        if len(self.evidence) == 1:
            return "one model"
        shared = len(self.evidence) >= ENOUGH
        return f"{len(self.evidence)} models{', the same images' if shared else ''}"

    def _said(self, answer: Answer) -> str:
        return f"{answer} ({self._about()})" if self._about() else answer

    # the rows of claim_parts.csv

    def _list_parts(self, measured: Measured, mode: str = "", kind: str = "part", name: str = "") -> None:
        parts, first = measured.parts, self._first() if kind == "part" and not mode else {}
        for at, (part, holds) in enumerate(zip(measured.names, measured.answers(), strict=True)):
            row: dict[str, Any] = {"id": self.claim.id, "mode": mode, "kind": kind}
            row["part"] = f"{name} {part}".strip() if len(measured.names) > 1 or not name else name
            row |= {"measured": parts.mean[at], "ci_low": parts.low[at], "ci_high": parts.high[at]}
            row |= {"holds": holds, "size": _size(self.claim, parts.mean[at]), "replicate_0": first.get(part, math.nan)}
            if kind == "part" and not mode and self.printed is not None and part in self.printed.names:
                place = self.printed.names.index(part)
                row |= {"published": self.printed.values[place], "published_holds": self.printed.answers[place]}
            self.part_rows.append(row)
        if kind == "part":
            about = {"id": self.claim.id, "mode": mode, "kind": kind, "holds": "undefined"}
            self.part_rows += [{**about, "part": part} for part in measured.undefined]

    def _first(self) -> dict[str, float]:
        """The parts of the replicate that the predicates were written on."""
        if WRITTEN_ON not in self.parts_of:
            return {}
        return {part_name(c): float(v) for c, v in self.parts_of[WRITTEN_ON].iloc[0].items()}

    def _controls(self) -> tuple[str, str]:
        """Why the claim is not informative ("" where it is), and the controls' values in words."""
        controls = self.claim.controls
        if controls is None:
            return "", ""
        said, why = [], ""
        for name in (*controls.perfect, *controls.blind):
            try:
                measured = measure(self.claim, self.evidence, lambda e, name=name: controls.measure(e, name))  # type: ignore[misc]
            except NotTestable:
                continue
            self._list_parts(measured, kind="control", name=name)
            at = measured.deciding
            said.append(f"{name} {measured.parts.mean[at]:+.3g} ({measured.answer})")
            why = why or _uninformative(controls, name, measured.answer)
        return why, "; ".join(said)

    def _second_mode(self) -> str:
        if self.claim.second_mode is None:
            return ""
        try:
            measured = measure(self.claim, self.evidence, self.claim.second_mode)
        except NotTestable:
            return NOT_TESTED
        self._list_parts(measured, mode="second")
        return self._said(measured.answer)

    def _agreement(self) -> str:
        """How many printed numbers ours equal, and the median of ours minus printed."""
        if self.claim.numbers is None:
            return ""
        try:
            table = _compared(self.claim, self.claim.numbers, self.evidence, self.published)
        except NotTestable:
            return ""
        for row in table.to_dict("records"):
            self.part_rows.append({"id": self.claim.id, "mode": "", "kind": "number", **row})
        if table.empty:
            return ""
        equal = int((table["agrees"] == "yes").sum())
        return f"{equal} of {len(table)} (median {table['difference'].median():+.3g})"

    # the reason

    def _reason(self, measured: Measured) -> str:
        said = [self._deciding_words(measured)]
        if measured.undefined:
            said.append(f"undefined for {_listing(measured.undefined)}")
        if models := measured.to_decide():
            said.append(f"{models} models would decide at this spread")
        if self.printed is not None and self.printed.answer == "no":
            said.append(f"the paper's own numbers contradict it{self.printed.failing()}")
        said += [self._rests_on(), self.evidence[0].basis(self.claim.reads).note]
        return "; ".join(filter(None, said))

    def _deciding_words(self, measured: Measured) -> str:
        names, mean = measured.names, measured.parts.mean
        if len(names) == 1:
            return ""
        holding = np.abs(mean) < self.claim.bound if self.claim.bound else mean > 0
        worst = np.argsort(-np.abs(mean) if self.claim.bound else mean, kind="stable")
        failing = [f"{names[k]} ({mean[k]:+.3g})" for k in worst if not holding[k]]
        said = f"{int(holding.sum())} of {len(names)} parts hold here, {measured.m} needed"
        return f"{said}; not: {_listing(failing)}" if failing else f"{said}; closest: {names[measured.deciding]}"

    def _rests_on(self) -> str:
        if self.claim.needs_no_run:
            return ""
        if _by_models(self.claim, self.evidence):
            return f"interval over {len(self.evidence)} models"
        bases = [e.basis(self.claim.reads) for e in self.evidence]
        count = sum(basis.models for basis in bases)
        models = "one model" if count == 1 else f"{count} models"
        return f"interval over {min(basis.images for basis in bases)} images of {models}"


def _uninformative(controls: Controls, name: str, answer: Answer) -> str:
    """Why a claim says nothing about methods, given what a control does in their place."""
    if name in controls.perfect:
        if controls.meaning == "success" and answer == "no":
            return f"not informative: a perfect map ({name}) does not succeed either"
        if controls.meaning == "failure" and answer == "yes":
            return f"not informative: a perfect map ({name}) does too"
    elif controls.meaning == "success" and answer == "yes":
        return f"not informative: {name}, which knows nothing of the model, succeeds too"
    return ""


# -- the paper's own numbers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """The parts of a claim on the published tables, and what follows up to the error of print."""

    names: list[str]
    values: np.ndarray
    answers: list[Answer]
    answer: Answer
    m: int
    bound: float

    @property
    def deciding(self) -> int:
        """The part that decides: the m-th largest; of equalities the m-th smallest."""
        return int(np.argsort(np.abs(self.values) if self.bound else -self.values, kind="stable")[self.m - 1])

    def failing(self) -> str:
        """The parts that contradict, in words."""
        worst = np.argsort(self.values, kind="stable")
        named = [f"{self.names[k]} ({self.values[k]:+.3g})" for k in worst if self.answers[k] == "no"]
        return f": {_listing(named)}" if len(self.names) > 1 else ""


def on_print(claims: Iterable[Claim], published: Evidence) -> dict[str, str]:
    """Id -> whether the paper's own numbers support it; empty where it prints none."""
    printed = {claim.id: _published(claim, published) for claim in claims}
    return {name: "" if parts is None else parts.answer for name, parts in printed.items()}


def _published(claim: Claim, published: Evidence) -> Printed | None:
    """The claim on the paper's own numbers; None where it has none."""
    if claim.text or claim.needs_no_run:
        return None
    try:
        table = _as_table(claim.measure(published)).dropna(axis=1, how="any")
    except NotTestable as problem:
        said = "is not marked as text but the published tables cannot test it"
        raise SalrunError(f"claim '{claim.id}' of '{claim.paper}' {said}: {problem}") from problem
    if table.empty:
        raise SalrunError(f"claim '{claim.id}' of '{claim.paper}' is not marked as text but has no published number")
    low, high = table.min().to_numpy(), table.max().to_numpy()
    if claim.bound:
        answers = conjunction.within(low, high, claim.bound)
    else:
        answers = ["yes" if a > 0 else "no" if b < 0 else "uncertain" for a, b in zip(low, high, strict=True)]
    n = len(answers)
    m = needed(claim.quantifier, n)
    answer: Answer = "yes" if answers.count("yes") >= m else "no" if answers.count("no") >= n - m + 1 else "uncertain"
    return Printed([part_name(c) for c in table], table.iloc[0].to_numpy(), answers, answer, m, claim.bound)


def _compared(claim: Claim, numbers: Numbers, evidence: Sequence[Evidence], published: Evidence) -> pd.DataFrame:
    """Ours minus printed, number by number: the interval, widened by the error of print, against tau of the unit."""
    tau = UNITS[numbers.unit].tau
    printed = _as_table(numbers.read(published)).dropna(axis=1)
    tables = [_as_table(numbers.read(e)) for e in evidence]
    there = [c for c in printed if all(c in t and not math.isnan(t[c].iloc[0]) for t in tables)]
    if not there or tau is None:
        return pd.DataFrame(columns=["part", "measured", "published", "difference", "agrees"])
    error = (printed[there] - printed[there].iloc[0]).abs().max().to_numpy()
    as_claim = Claim(claim.id, claim.paper, "", "", "", numbers.read, "some", numbers.unit, population=claim.population)
    ours = measure(as_claim, evidence, lambda e: _as_table(numbers.read(e))[there]).parts
    target = printed[there].iloc[0].to_numpy()
    difference = ours.mean - target
    agrees = conjunction.within(ours.low - target - error, ours.high - target + error, tau)
    return pd.DataFrame(
        {
            "part": [part_name(c) for c in there],
            **{"measured": ours.mean, "ci_low": ours.low, "ci_high": ours.high},
            **{"published": target, "difference": difference, "agrees": agrees},
        }
    )


# -- in words ----------------------------------------------------------------------------------------------------------


def quantifier_of(claim: Claim) -> str:
    """How many parts must hold, and whether they are equalities, in words."""
    said = f"at least {claim.quantifier}" if isinstance(claim.quantifier, int) else claim.quantifier
    return f"{said}, equal within {claim.bound:g}" if claim.bound else said


def _size(claim: Claim, value: float) -> str:
    """ "small" where a difference is below its unit's delta; what is equal is meant to be."""
    return "small" if not claim.bound and abs(value) < UNITS[claim.unit].delta else ""


def _as_table(result: pd.DataFrame | pd.Series) -> pd.DataFrame:
    return result.to_frame("difference") if isinstance(result, pd.Series) else result


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
