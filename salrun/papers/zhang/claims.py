"""What Zhang, Torres, Hermanns (ACML 2024) claim, as margins. D2a, D3a, .. are further readings of D2, D3, ..

Margins are in the tables' own units (points of AI, ADb, AG, I, Db; ranks where the statement is about ranks). Published
numbers are taken as printed, suspected misprints included.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from salrun.papers.claims import COLUMNS, Evidence, Margin, claim, claims_of, evaluate_claims, parts, pick
from salrun.papers.style import save_table
from salrun.papers.zhang import tables
from salrun.papers.zhang.tables import (
    CLEAN,
    CLOSE,
    CONTROLS,
    FAMILIES,
    FIDELITY,
    MASKED,
    METHODS,
    ROBUSTNESS,
    TRANSFORMS,
)
from salrun.stats.bootstrap import DRAWS, percentile_interval

ROUNDING = 0.05  # published percentages have one decimal: equal up to this
ROUNDING_MS = 0.005  # MS and AS have two
NOTHING = 1e-6
MUCH = 10.0  # points
FEW = 2.5  # at most two methods of ten
REAL = [m for m in METHODS if m != "fake_cam"]
READS = {  # the table that a claim rests on, by its number
    "fidelity": [1, 2, 3, 4, 5, 10],
    "targets": [6, 7],
    "correlation": [8, 9],
    "robustness": [11, 16],
    "transforms": [12, 13, 14, 15],
}


def _of(table: pd.DataFrame, metric: str, methods: list[str] = METHODS, **levels: object) -> pd.DataFrame:
    """One metric's means, a column per method."""
    return pick(table, metric=metric, **levels, method=methods)[methods]  # methods last: a target may have fewer


def _ranks(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """1 = best of the ten methods; equal ones share the mean rank."""
    return _of(table, metric).rank(axis=1, ascending=False)


def _mean_ranks(e: Evidence) -> pd.DataFrame:
    ranks = np.stack([_ranks(e["fidelity"], m).to_numpy() for m in FIDELITY])
    return pd.DataFrame(ranks.mean(axis=0), columns=METHODS)


def _by_family(values: pd.DataFrame) -> pd.DataFrame:
    """Means over the methods of each family, as far as they are there; Fake-CAM is in none."""
    there = {family: [m for m in members if m in values] for family, members in FAMILIES.items()}
    return pd.DataFrame({family: values[members].mean(axis=1) for family, members in there.items() if members})


def _lead(values: pd.DataFrame, of: str) -> pd.Series:
    """By how much a column exceeds the best of the others."""
    return values[of] - values.drop(columns=of).max(axis=1)


def _second(values: pd.DataFrame) -> np.ndarray:
    """The second highest of each row."""
    return np.sort(values.to_numpy(), axis=1)[:, -2]


def _gradient_lowest(e: Evidence, metrics: list[str]) -> pd.DataFrame:
    return pd.DataFrame({m: _lead(-_by_family(_of(e["fidelity"], m)), "gradient") for m in metrics})


def _range(e: Evidence, metric: str) -> pd.DataFrame:
    """Highest minus lowest mean over the clean images and the four transforms, by method."""
    means = np.stack([_of(e["transforms"], metric, transform=t).to_numpy() for t in (CLEAN, *TRANSFORMS)])
    return pd.DataFrame(means.max(axis=0) - means.min(axis=0), columns=METHODS)


def _relative_range(e: Evidence, metric: str) -> pd.DataFrame:
    """The range over the clean value; none where that is 0."""
    clean = _of(e["transforms"], metric, transform=CLEAN)
    return _range(e, metric) / clean.where(clean != 0)


def _change(e: Evidence, metric: str, transform: str, methods: list[str] = METHODS) -> pd.DataFrame:
    there, clean = (_of(e["transforms"], metric, methods, transform=t) for t in (transform, CLEAN))
    return there - clean


def _label_beats_predicted(e: Evidence, metrics: list[str]) -> pd.DataFrame:
    """Where the means are equal up to rounding, predicted is no better."""
    label, predicted = ({m: _of(e["targets"], m, target=t) for m in metrics} for t in ("label", "predicted"))
    return parts(**{m: label[m] - predicted[m] + ROUNDING for m in metrics})


def _outliers(values: pd.DataFrame) -> pd.DataFrame:
    """Which methods lie beyond 1.5 times the distance of the quartiles from them."""
    low, high = np.quantile(values, [0.25, 0.75], axis=1)
    reach = 1.5 * (high - low) + 1e-9  # published numbers are decimal: a value on the fence is inside
    return values.lt(low - reach, axis=0) | values.gt(high + reach, axis=0)


@claim("D1", "zhang", "Fake-CAM is among the best two methods on AI, AD and monotonicity")
def _(e: Evidence) -> pd.DataFrame:
    means = {m: _of(e["fidelity"], m) for m in ("AI", "ADb", "Mono")}
    return pd.DataFrame({m: t["fake_cam"] - _second(t[REAL]) for m, t in means.items()})


@claim("D2", "zhang", "gradient methods have the lowest family mean on every fidelity metric")
def _(e: Evidence) -> pd.DataFrame:
    return _gradient_lowest(e, FIDELITY)


@claim("D2a", "zhang", "gradient methods have the lowest family mean on AI, AD, AG, insertion and monotonicity")
def _(e: Evidence) -> pd.DataFrame:
    return _gradient_lowest(e, [m for m in FIDELITY if m != "Db"])


@claim("D3", "zhang", "CAM methods have the highest family mean on every fidelity metric (Fake-CAM left out)")
def _(e: Evidence) -> pd.DataFrame:
    return pd.DataFrame({m: _lead(_by_family(_of(e["fidelity"], m)), "CAM") for m in FIDELITY})


@claim("D3a", "zhang", "the three CAM methods have the best mean ranks over the fidelity metrics")
def _(e: Evidence) -> pd.Series:
    ranks = _mean_ranks(e)
    cams = FAMILIES["CAM"]
    return ranks.drop(columns=cams).min(axis=1) - ranks[cams].max(axis=1)


@claim("D3b", "zhang", "Fake-CAM too has a better mean rank than every method that is no CAM")
def _(e: Evidence) -> pd.DataFrame:
    ranks = _mean_ranks(e)
    others = [m for m in REAL if m not in FAMILIES["CAM"]]
    return ranks[others].sub(ranks["fake_cam"], axis=0)


@claim("D4", "zhang", "AG, insertion and deletion are not fooled: Fake-CAM is in the worse half")
def _(e: Evidence) -> pd.DataFrame:
    return pd.DataFrame({m: _ranks(e["fidelity"], m)["fake_cam"] - len(METHODS) / 2 for m in ("AG", "I", "Db")})


@claim("D4a", "zhang", "deletion to a lesser extent: it ranks Fake-CAM better than AG and insertion do")
def _(e: Evidence) -> pd.DataFrame:
    rank = {m: _ranks(e["fidelity"], m)["fake_cam"] for m in ("AG", "I", "Db")}
    return pd.DataFrame({m: rank[m] - rank["Db"] for m in ("AG", "I")})


@claim("D5", "zhang", "no method's raw maps are complete on any image", text=True)
def _(e: Evidence) -> pd.DataFrame:
    return NOTHING - _of(e["fidelity"], "Complete")


@claim("D6", "zhang", "explaining the label scores at least as high as explaining the prediction")
def _(e: Evidence) -> pd.DataFrame:
    return _label_beats_predicted(e, MASKED)


@claim("D6a", "zhang", "explaining the label scores at least as high as explaining the prediction on AI and deletion")
def _(e: Evidence) -> pd.DataFrame:
    return _label_beats_predicted(e, ["AI", "Db"])


@claim(
    "D7", "zhang", "the least probable class raises AI, 100 - AD and 100 - D, and leaves AG and insertion near 0 (0.1)"
)
def _(e: Evidence) -> pd.DataFrame:
    least, label = ({m: _of(e["targets"], m, target=t) for m in MASKED} for t in ("least_probable", "label"))
    higher = {f"{m} higher": least[m] - label[m] for m in ("ADb", "AI", "Db")}
    return parts(**higher, **{f"{m} near 0": 0.1 + ROUNDING - least[m] for m in ("AG", "I")})


def _with_probability(e: Evidence, sign: int) -> pd.DataFrame:
    insertion, deletion = _of(e["correlation"], "I"), sign * _of(e["correlation"], "D")
    return parts(insertion=insertion, deletion=deletion, insertion_more=insertion - deletion)


@claim("D8", "zhang", "insertion and deletion (D itself) rise with p_c, insertion more", text=True)
def _(e: Evidence) -> pd.DataFrame:
    return _with_probability(e, 1)


@claim("D8a", "zhang", "insertion and deletion (as printed, 100 - D) rise with p_c, insertion more", text=True)
def _(e: Evidence) -> pd.DataFrame:
    return _with_probability(e, -1)


@claim("D9", "zhang", "of CAM methods AG rises and AD falls with p_c", text=True)
def _(e: Evidence) -> pd.DataFrame:
    cams = FAMILIES["CAM"]
    return parts(AG=_of(e["correlation"], "AG", cams), AD=-_of(e["correlation"], "AD", cams))


@claim(
    "D10", "zhang", "metrics do not tell CAMs, RISE and IBA apart: their spread is below a method's interval", text=True
)
def _(e: Evidence) -> pd.DataFrame:
    room = {}
    for metric in MASKED:
        means = _of(e["fidelity"], metric, CLOSE)
        width = (means.iloc[1:].quantile(0.975) - means.iloc[1:].quantile(0.025)).mean()
        room[metric] = width - (means.max(axis=1) - means.min(axis=1))
    return pd.DataFrame(room)


@claim("D11", "zhang", "robustness and complexity metrics single out extremes only (at most two outliers of 1.5 IQR)")
def _(e: Evidence) -> pd.DataFrame:
    return pd.DataFrame({m: FEW - _outliers(_of(e["robustness"], m)).sum(axis=1) for m in ROBUSTNESS})


@claim(
    "D12", "zhang", "Fake-CAM: AI rises by 10 under rotation, ADb falls by 10 under resizing (printed 2.0: misprint?)"
)
def _(e: Evidence) -> pd.DataFrame:
    rise, fall = _change(e, "AI", "rotation", ["fake_cam"]), -_change(e, "ADb", "resize", ["fake_cam"])
    return parts(AI_rotation=rise - MUCH, ADb_resize=fall - MUCH)


def _insertion_falls(e: Evidence) -> pd.DataFrame:
    falls = {t: -_change(e, "I", t) for t in TRANSFORMS}
    size = {t: fall.abs().mean(axis=1) for t, fall in falls.items()}
    least = pd.DataFrame({t: size[t] - size["crop"] for t in TRANSFORMS if t != "crop"})
    return parts(**{f"I falls, {t}": fall for t, fall in falls.items()}, **{"I least in crop, against": least})


@claim(
    "D13",
    "zhang",
    "under transforms insertion falls, least under crop, and 100 - D rises (Grad-CAM, crop printed 78.8: misprint?)",
)
def _(e: Evidence) -> pd.DataFrame:
    rises = parts(**{f"Db rises, {t}": _change(e, "Db", t) for t in TRANSFORMS})
    return pd.concat([_insertion_falls(e), rises], axis=1)


@claim("D13a", "zhang", "under every transform insertion falls, least under crop")
def _(e: Evidence) -> pd.DataFrame:
    return _insertion_falls(e)


@claim("D14", "zhang", "under transforms AI and AD of gradient methods vary most, of CAM methods least (range / clean)")
def _(e: Evidence) -> pd.DataFrame:
    found = {}
    for metric in ("AI", "ADb"):
        family = _by_family(_relative_range(e, metric))
        found[f"{metric} gradient most"] = _lead(family, "gradient")
        found[f"{metric} CAM least"] = _lead(-family, "CAM")
    return pd.DataFrame(found)


@claim("D15", "zhang", "under transforms AG varies least of all metrics (points, Fake-CAM left out)")
def _(e: Evidence) -> pd.DataFrame:
    size = {m: _range(e, m)[REAL].mean(axis=1) for m in MASKED}
    return pd.DataFrame({m: size[m] - size["AG"] for m in MASKED if m != "AG"})


@claim("D15a", "zhang", "under transforms AG of CAM methods varies least of all metrics (relative to the clean value)")
def _(e: Evidence) -> pd.DataFrame:
    size = {m: _relative_range(e, m)[FAMILIES["CAM"]].mean(axis=1) for m in MASKED}
    return pd.DataFrame({m: size[m] - size["AG"] for m in MASKED if m != "AG"})


@claim("D16", "zhang", "by definition MS is at least AS, and Fake-CAM's MS is 0")
def _(e: Evidence) -> pd.DataFrame:
    most, mean = _of(e["robustness"], "MS"), _of(e["robustness"], "AS")
    return parts(MS_not_below_AS=most - mean + ROUNDING_MS, MS_is_0=NOTHING - most[["fake_cam"]])


@claim("D16a", "zhang", "by definition MS is at least AS")
def _(e: Evidence) -> pd.DataFrame:
    return _of(e["robustness"], "MS") - _of(e["robustness"], "AS") + ROUNDING_MS


CONCLUSIONS = {  # about AI, ADb and AG: do they outlive maps of equal brightness?
    "gradient methods have the lowest family mean": lambda means: _lead(-_by_family(means), "gradient"),
    "CAM methods have the highest family mean": lambda means: _lead(_by_family(means), "CAM"),
    "Fake-CAM is among the best two": lambda means: means["fake_cam"] - _second(means.drop(columns="fake_cam")),
}


def brightness_table(cell: tables.Cell, draws: int = DRAWS) -> pd.DataFrame:
    """Each conclusion on maps as they are (minmax) and made equally bright: its margin and whether it holds.

    Of the methods at hand, over the images that all of them explain; families are compared as far as they are there.
    """
    frame = tables.frames(cell).get("fidelity", pd.DataFrame())
    columns = ["conclusion", "metric", "view", "methods", "margin", "ci_low", "ci_high", "holds"]
    rows: list[tuple] = []
    if not frame.shape[1]:
        return pd.DataFrame(columns=columns)
    frame = tables.common(frame)
    table = tables.mean_table(frame, draws if len(frame) >= tables.ENOUGH else 0)
    for (said, margin_of), metric, view in product(CONCLUSIONS.items(), MASKED[:3], ["minmax", *CONTROLS]):
        name = metric if view == "minmax" else f"{metric} {view}"
        present = [m for m in METHODS if (name, m) in table and table[name, m].notna().iloc[0]]
        if not {"fake_cam", "gradient", "grad_cam"} <= set(present):
            continue
        margins = margin_of(_of(table, name, present))
        low, high = percentile_interval(margins.iloc[1:]) if len(margins) > 1 else (np.nan, np.nan)
        margin = Margin(float(margins.iloc[0]), float(low), float(high))
        holds = "uncertain" if np.isnan(margin.low) else margin.holds
        rows.append((said, metric, view, len(present), margin.value, margin.low, margin.high, holds))
    return pd.DataFrame(rows, columns=columns)


def evaluate(cells: list[tables.Cell], draws: int = DRAWS) -> pd.DataFrame:
    """The verdict on every claim, from the cells (seeds) of a run."""
    evidence = [tables.evidence(cell, draws) for cell in cells]
    published = tables.published_evidence()
    rows = []
    for each in claims_of("zhang"):
        number = int(each.id.strip("Dab"))
        table = next(name for name, numbers in READS.items() if number in numbers)
        rows += evaluate_claims([each], [e.get(table, Evidence()) for e in evidence], published).to_dict("records")
    return pd.DataFrame(rows, columns=COLUMNS)


def write_claims(run: Path, draws: int = DRAWS) -> Path:
    """claims.csv of a run, and tables/zhang_brightness.csv."""
    cells = tables.read_cells(run)
    bright = pd.concat([brightness_table(cell, draws).assign(seed=cell.seed) for cell in cells], ignore_index=True)
    if len(bright):
        save_table(bright, run / "tables" / "zhang_brightness")
    return save_table(evaluate(cells, draws), run / "claims")
