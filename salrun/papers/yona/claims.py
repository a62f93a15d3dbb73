"""What Yona & Greenfeld (2021) claim in pictures, as margins. Y1a, Y2a and Y2b are further readings of Y1 and Y2."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from salrun.papers.claims import COLUMNS, Evidence, NotTestable, claim, claims_of, evaluate_claims, parts
from salrun.papers.style import save_table
from salrun.papers.yona.tables import (
    ALIKE,
    CLEARLY,
    EFFECTS,
    GBP,
    HALVES,
    OWN,
    PAIRS,
    SANITY,
    SIMILARITIES,
    VBP,
    effect,
    evidence,
    mean_of,
    sensitivity_table,
)
from salrun.stats.bootstrap import DRAWS
from salrun.tables import read_scores

HALF = 0.5
ABOUT = 0.05  # reach of "about one half", and of "no worse"


def _alike(e: Evidence, model: str, measure: str = "spearman") -> pd.Series:
    """How alike guided backpropagation's maps of a model and of untrained networks are."""
    return mean_of(e, HALVES, measure, GBP, model, "random")


def _effects(e: Evidence, claim_id: str) -> dict[str, pd.Series]:
    """The effects that a claim speaks of, for both methods."""
    names = [name for name, what in EFFECTS.items() if what.claim == claim_id]
    return {f"{method} {name}": effect(e, name, method) for method in (GBP, VBP) for name in names}


@claim("Y1", "yona", "guided backprop on digits does not tell trained from untrained (Spearman above 0.7)", text=True)
def _(e: Evidence) -> pd.Series:
    return _alike(e, "digits") - ALIKE


@claim(
    "Y1a",
    "yona",
    "on digits, guided backprop's maps are as like untrained networks' as these are like each other (within 0.1)",
    text=True,
)
def _(e: Evidence) -> pd.Series:
    return _alike(e, "digits") - _alike(e, "digits_random") + CLEARLY


@claim(
    "Y2", "yona", "guided backprop is sensitive on t~: less like untrained than on digits (Spearman, by 0.1)", text=True
)
def _(e: Evidence) -> pd.Series:
    return _alike(e, "digits") - _alike(e, "halves") - CLEARLY


@claim("Y2a", "yona", "Y2 whatever the measure of similarity (Spearman, cosine, SSIM, HOG)", text=True)
def _(e: Evidence) -> pd.DataFrame:
    return parts(**{m: _alike(e, "digits", m) - _alike(e, "halves", m) - CLEARLY for m in SIMILARITIES})


@claim(
    "Y2b",
    "yona",
    "training on t~ moves the maps to the half that decides (share of mass, by 0.1), guided and vanilla",
    text=True,
)
def _(e: Evidence) -> pd.DataFrame:
    return parts(**_effects(e, "Y2b")) - CLEARLY


@claim(
    "Y3",
    "yona",
    "the shape model looks at the shape, the digit model at the digit, for guided and vanilla backprop",
    text=True,
)
def _(e: Evidence) -> pd.DataFrame:
    return parts(**_effects(e, "Y3"))


@claim(
    "Y4",
    "yona",
    "the fine-tuned network looks more at the half that decides than the pretrained; a random one at both (0.5 +- .05)",
    text=True,
)
def _(e: Evidence) -> pd.DataFrame:
    random = {m: (mean_of(e, PAIRS, "mass", m, "random", "primary") - HALF).abs() for m in (GBP, VBP)}
    return parts(**_effects(e, "Y4"), **{f"{m} random about one half": ABOUT - far for m, far in random.items()})


@claim(
    "Y5",
    "yona",
    "guided backprop is no worse than vanilla in the effects of Y2, Y3 and Y4 (by at most 0.05)",
    text=True,
)
def _(e: Evidence) -> pd.DataFrame:
    lead = {}
    for name, what in EFFECTS.items():
        if what.claim:
            try:
                lead[name] = effect(e, name, GBP) - effect(e, name, VBP) + ABOUT
            except NotTestable:
                continue
    if not lead:
        raise NotTestable("needs an experiment of Y2, Y3 or Y4 with both methods")
    return parts(**lead)


def sensitivity_rows(e: Evidence) -> pd.DataFrame:
    """The verdict on every method of a run of sanity checks, in the form of claims; no paper speaks of them."""
    rows = []
    table = sensitivity_table(e)
    for row in table[table["test"].isin(["weights", "task"])].to_dict("records"):
        span = f"{row['value']:.2f} [{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
        gain = f"{row['margin']:+.2f} [{row['margin_low']:+.2f}, {row['margin_high']:+.2f}]"
        said = {
            "weights": f"{row['method']}: Spearman of the maps with those of re-initialised networks {span}",
            "task": f"{row['method']}: mass on the object that decides {span}, of which by training {gain}",
        }
        rows.append(
            {
                "id": f"{row['method']}/{row['test']}",
                "paper": "yona",
                "statement": said[row["test"]],
                "measured": row["margin"],
                "ci_low": row["margin_low"],
                "ci_high": row["margin_high"],
                "holds": {"sensitive": "yes", "insensitive": "no"}.get(row["verdict"], "uncertain"),
                "verdict": row["verdict"],
                "reason": f"CI over {e.images} images of one model",
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def evaluate(scores: pd.DataFrame, draws: int = DRAWS) -> pd.DataFrame:
    """The verdict on every claim, and on every method that went through the sanity checks (of the first seed)."""
    found = evidence(scores, draws)
    ran = set(scores["experiment"]) & set(OWN)
    verdicts = []
    if ran - {SANITY}:
        verdicts.append(evaluate_claims(claims_of("yona"), list(found.values())))
    if SANITY in ran:
        verdicts.append(sensitivity_rows(next(iter(found.values()))))
    return pd.concat(verdicts, ignore_index=True)


def write_claims(run: Path, draws: int = DRAWS) -> Path:
    """claims.csv of a run."""
    return save_table(evaluate(read_scores(run), draws), run / "claims")
