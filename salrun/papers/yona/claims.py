"""What Yona & Greenfeld (2021) claim in pictures, as signed differences. Y1a, Y2a, Y2b, Y4a are further readings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from salrun.papers.claims import Evidence, Measure, claim, claims_of, parts
from salrun.papers.verdicts import Verdicts, judge
from salrun.papers.yona.evidence import (
    GBP,
    HALVES,
    PAIRS,
    PRIMARY,
    SHAPES,
    SIMILARITIES,
    SMALLER,
    VBP,
    YonaEvidence,
    mean_of,
)
from salrun.papers.yona.tables import CLEARLY, EFFECTS, effect

BASELINES = ("random", "pretrained")  # of the pairs: not fine-tuned
BOTH_HALVES = 0.35  # of the mass on each
NO_WORSE = 0.05
OTHERS = tuple(measure for measure in SIMILARITIES if measure != "spearman")
FIGURE_1, ON_SHAPES, ON_PAIRS = "Figure 1, text", "Figures 2, 4, 5", "Figures 3, 6, 7"


def pictured(id: str, sentence: str, **options: Any) -> Callable[[Measure], Measure]:
    """Register a claim of the paper: it shows all of them in pictures, without a number."""
    return claim(id, "yona", sentence, text=True, **options)


def _alike(e: Evidence, trained: str, untrained: str, measure: str = "spearman") -> pd.Series:
    """Similarity of guided backprop's maps of a trained and untrained networks, minus that of untrained ones."""
    return mean_of(e, HALVES, measure, GBP, trained, "random") - mean_of(e, HALVES, measure, GBP, untrained, "random")


def _mass(e: Evidence, method: str, model: str, against: str = PRIMARY) -> pd.Series:
    return mean_of(e, PAIRS, "mass", method, model, against)


def _effects(e: Evidence, claim_id: str) -> dict[str, pd.Series]:
    """The effects that a claim speaks of, for both methods."""
    names = [name for name, what in EFFECTS.items() if what.claim == claim_id]
    return {f"{method} {name}": effect(e, name, method) for method in (GBP, VBP) for name in names}


def _lead(e: Evidence, claim_id: str) -> pd.DataFrame:
    """How much larger guided than vanilla backprop's effects of a claim are, and how much worse counts as no worse."""
    names = [name for name, what in EFFECTS.items() if what.claim == claim_id]
    return parts(**{name: effect(e, name, GBP) - effect(e, name, VBP) + NO_WORSE for name in names})


@pictured(
    "Y1", "guided backpropagation is insensitive to training on the standard task t, digits",
    place="text, after Adebayo et al. 2018", quantifier="average", unit="similarity", bound=CLEARLY, reads=HALVES,
    predicate="Spearman of guided maps on digits, trained and untrained - untrained and untrained, within 0.1 of 0",
)  # fmt: skip
def _(e: Evidence) -> pd.Series:
    return _alike(e, "digits", "digits_random")


@pictured(
    "Y1a", "guided backpropagation is insensitive to training on t by other measures of similarity",
    place="text, after Adebayo et al. 2018", unit="similarity", bound=CLEARLY, reads=HALVES,
    predicate="Y1's difference by cosine, SSIM and HOG, within 0.1 of 0",
    apart="second reading: other measures of similarity",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**{measure: _alike(e, "digits", "digits_random", measure) for measure in OTHERS})


@pictured(
    "Y2", "guided backpropagation is sensitive to training on the task t~, whether half is deleted",
    place=FIGURE_1, quantifier="average", unit="similarity", reads=HALVES,
    predicate="-0.1 - (Spearman of guided maps on t~, trained and untrained - untrained and untrained)",
)  # fmt: skip
def _(e: Evidence) -> pd.Series:
    return -CLEARLY - _alike(e, "halves", "random")


@pictured(
    "Y2a", "guided backpropagation is sensitive to training on t~ by other measures of similarity",
    place=FIGURE_1, unit="similarity", reads=HALVES, apart="second reading: other measures of similarity",
    predicate="Y2's difference by cosine, SSIM and HOG",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**{measure: -CLEARLY - _alike(e, "halves", "random", measure) for measure in OTHERS})


@pictured(
    "Y2b", "training on t~ moves the maps to the half that decides, guided and vanilla", place=FIGURE_1,
    unit="mass", reads=HALVES, apart="ours: by the share of mass",
    predicate="share of mass on the half that decides, trained - untrained - 0.1, of each method",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**_effects(e, "Y2b")) - CLEARLY


@pictured(
    "Y3", "the shape model looks at the shape, the digit model at the digit, for guided and vanilla backpropagation",
    place=ON_SHAPES, unit="mass", reads=SHAPES,
    predicate="mass on the shape, shape - digit model, shape - untrained; on the digit, digit - untrained; each method",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**_effects(e, "Y3"))


@pictured(
    "Y4", 'random and pretrained networks show "positive saliency for both regions"', place=ON_PAIRS,
    unit="mass", reads=PAIRS, population="images",
    predicate="mean share of mass on a half (that decides, the other) - 0.35, of each baseline and method",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    """The two halves are the whole image."""
    decides = {f"{method} {model}": _mass(e, method, model) for method in (GBP, VBP) for model in BASELINES}
    halves = {f"{name}, half that decides": share for name, share in decides.items()}
    halves |= {f"{name}, other half": 1 - share for name, share in decides.items()}
    return parts(**halves) - BOTH_HALVES


@pictured(
    "Y4a", 'random and pretrained networks show "positive saliency for both regions" of every image', place=ON_PAIRS,
    unit="mass", reads=PAIRS, population="images", apart="second reading: the half with less mass, image by image",
    predicate="mean over images of the smaller half's share of mass - 0.35, of each baseline and method",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    smaller = {f"{method} {model}": _mass(e, method, model, SMALLER) for method in (GBP, VBP) for model in BASELINES}
    return parts(**smaller) - BOTH_HALVES


@pictured(
    "Y4b", "the fine-tuned network focuses on the relevant half", place=ON_PAIRS,
    unit="mass", reads=PAIRS, population="images",
    predicate="share of mass on the half that decides, fine-tuned - pretrained, - random, of each method",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return parts(**_effects(e, "Y4b"))


@pictured(
    "Y5.halves", "guided is no worse than vanilla backpropagation under the task-aware test: deleted halves",
    place=FIGURE_1, unit="similarity", reads=HALVES,
    predicate="similarity lost by training on t~, guided - vanilla + 0.05",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _lead(e, "Y2")


@pictured(
    "Y5.shapes", "guided is no worse than vanilla backpropagation under the task-aware test: shapes",
    place=ON_SHAPES, unit="mass", reads=SHAPES, predicate="each effect of Y3, guided - vanilla + 0.05",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _lead(e, "Y3")


@pictured(
    "Y5.pairs", "guided is no worse than vanilla backpropagation under the task-aware test: pairs", place=ON_PAIRS,
    unit="mass", reads=PAIRS, population="images", predicate="each effect of Y4b, guided - vanilla + 0.05",
)  # fmt: skip
def _(e: Evidence) -> pd.DataFrame:
    return _lead(e, "Y4b")


def claims(e: YonaEvidence) -> Verdicts:
    """The verdict on every claim; sanity checks of methods that the paper does not speak of are a table."""
    return judge(claims_of("yona"), e.draws)
