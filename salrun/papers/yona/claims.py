"""What Yona & Greenfeld (2021) claim in pictures, as margins. Y1a, Y2a and Y2b are further readings of Y1 and Y2."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from salrun.papers.claims import COLUMNS, Evidence, Parts, claim, claims_of, evaluate_claims, parts
from salrun.papers.evidence import NotTestable
from salrun.papers.yona.evidence import GBP, HALVES, PAIRS, SANITY, SIMILARITIES, VBP, YonaEvidence, mean_of
from salrun.papers.yona.tables import ALIKE, CLEARLY, EFFECTS, effect, sensitivity_table

Measure = Callable[[Evidence], Parts]
HALF = 0.5
ABOUT = 0.05  # reach of "about one half", and of "no worse"


def pictured(id: str, statement: str) -> Callable[[Measure], Measure]:
    """Register a claim of the paper: it shows all of them in pictures, without a number."""
    return claim(id, "yona", statement, text=True)


def _alike(e: Evidence, model: str, measure: str = "spearman") -> pd.Series:
    """How alike guided backpropagation's maps of a model and of untrained networks are."""
    return mean_of(e, HALVES, measure, GBP, model, "random")


def _effects(e: Evidence, claim_id: str) -> dict[str, pd.Series]:
    """The effects that a claim speaks of, for both methods."""
    names = [name for name, what in EFFECTS.items() if what.claim == claim_id]
    return {f"{method} {name}": effect(e, name, method) for method in (GBP, VBP) for name in names}


@pictured("Y1", "guided backprop on digits does not tell trained from untrained (Spearman above 0.7)")
def _(e: Evidence) -> pd.Series:
    return _alike(e, "digits") - ALIKE


@pictured(
    "Y1a", "on digits, guided backprop's maps are as like untrained networks' as these are like each other (within 0.1)"
)
def _(e: Evidence) -> pd.Series:
    return _alike(e, "digits") - _alike(e, "digits_random") + CLEARLY


@pictured("Y2", "guided backprop is sensitive on t~: less like untrained than on digits (Spearman, by 0.1)")
def _(e: Evidence) -> pd.Series:
    return _alike(e, "digits") - _alike(e, "halves") - CLEARLY


@pictured("Y2a", "Y2 whatever the measure of similarity (Spearman, cosine, SSIM, HOG)")
def _(e: Evidence) -> pd.DataFrame:
    return parts(**{m: _alike(e, "digits", m) - _alike(e, "halves", m) - CLEARLY for m in SIMILARITIES})


@pictured("Y2b", "training on t~ moves the maps to the half that decides (share of mass, by 0.1), guided and vanilla")
def _(e: Evidence) -> pd.DataFrame:
    return parts(**_effects(e, "Y2b")) - CLEARLY


@pictured("Y3", "the shape model looks at the shape, the digit model at the digit, for guided and vanilla backprop")
def _(e: Evidence) -> pd.DataFrame:
    return parts(**_effects(e, "Y3"))


@pictured(
    "Y4",
    "the fine-tuned network looks more at the half that decides than the pretrained; a random one at both (0.5 +- .05)",
)
def _(e: Evidence) -> pd.DataFrame:
    random = {m: (mean_of(e, PAIRS, "mass", m, "random", "primary") - HALF).abs() for m in (GBP, VBP)}
    return parts(**_effects(e, "Y4"), **{f"{m} random about one half": ABOUT - far for m, far in random.items()})


@pictured("Y5", "guided backprop is no worse than vanilla in the effects of Y2, Y3 and Y4 (by at most 0.05)")
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


def sensitivity_rows(e: Evidence, models: pd.DataFrame) -> pd.DataFrame:
    """The verdict on every method of a run of sanity checks, in the form of claims; no paper speaks of them."""
    rows = []
    table = sensitivity_table(e, models)
    for row in table[table["test"].isin(["weights", "task"])].to_dict("records"):
        span = f"{row['value']:.2f} [{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
        gain = f"{row['margin']:+.2f} [{row['margin_low']:+.2f}, {row['margin_high']:+.2f}]"
        said = {
            "weights": f"{row['method']}: Spearman of the maps with those of re-initialised networks {span}",
            "task": f"{row['method']}: mass on the object that decides {span}, of which by training {gain}",
        }
        claimed = {"id": f"{row['method']}/{row['test']}", "paper": "yona", "statement": said[row["test"]]}
        claimed |= {"measured": row["margin"], "ci_low": row["margin_low"], "ci_high": row["margin_high"]}
        claimed["holds"] = {"sensitive": "yes", "insensitive": "no"}.get(row["verdict"], "uncertain")
        reason = f"CI over {e.basis(None).images} images of one model"
        rows.append({**claimed, "verdict": row["verdict"], "reason": reason})
    return pd.DataFrame(rows, columns=COLUMNS)


def claims(e: YonaEvidence) -> pd.DataFrame:
    """The verdict on every claim, and on every method that went through the sanity checks (of the first seed)."""
    experiments = set(e.values["experiment"])
    verdicts = []
    if experiments - {SANITY}:
        verdicts.append(evaluate_claims(claims_of("yona"), list(e.draws.values())))
    if SANITY in experiments:
        verdicts.append(sensitivity_rows(next(iter(e.draws.values())), e.models))
    return pd.concat(verdicts, ignore_index=True)
