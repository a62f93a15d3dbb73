"""Tables of Yona & Greenfeld (2021): numbers for its pictures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from salrun.papers.claims import Evidence
from salrun.papers.evidence import NotTestable, interval, join_tables
from salrun.papers.yona.evidence import HALVES, PAIRS, SANITY, SHAPES, SIMILARITIES, YonaEvidence, mean_of, methods_of

ALIKE = 0.7  # the similarity above which maps count as the same
CLEARLY = 0.1  # a difference of similarities, or a move of mass, that the eye would see
ROUNDING = 1e-9  # a method that ignores the model has a difference of 0, give or take


class Effect(NamedTuple):
    """A difference of two means that the paper shows in a picture; > 0 where the picture is right."""

    claim: str
    experiment: str
    quantity: str
    more: tuple[str, str]  # model, against
    less: tuple[str, str]


EFFECTS = {
    "halves: similarity of maps lost by training on t~": Effect(
        "Y2", HALVES, "spearman", ("random", "random"), ("halves", "random")
    ),
    "halves: mass on the half, trained - untrained": Effect(
        "Y2b", HALVES, "mass", ("halves", "primary"), ("random", "primary")
    ),
    "shapes: mass on the shape, shape model - digit model": Effect(
        "Y3", SHAPES, "mass", ("shapes", "primary"), ("digits", "primary")
    ),
    "shapes: mass on the shape, shape model - untrained": Effect(
        "Y3", SHAPES, "mass", ("shapes", "primary"), ("random", "primary")
    ),
    "shapes: mass on the digit, digit model - untrained": Effect(
        "Y3", SHAPES, "mass", ("digits", "secondary"), ("digits_random", "secondary")
    ),
    "pairs: mass on the half that decides, fine-tuned - pretrained": Effect(
        "Y4b", PAIRS, "mass", ("finetuned", "primary"), ("pretrained", "primary")
    ),
    "pairs: mass on the half that decides, fine-tuned - random": Effect(
        "Y4b", PAIRS, "mass", ("finetuned", "primary"), ("random", "primary")
    ),
}


def tables(e: YonaEvidence) -> dict[str, pd.DataFrame]:
    """All tables, with a column for the seed."""
    means = {seed: e.called(e.means(seed)) for seed in e.draws}
    of = {seed: table["quantity"] for seed, table in means.items()}
    return {
        "similarity": join_tables({s: t[of[s].isin([*SIMILARITIES, "relative_change"])] for s, t in means.items()}),
        "mass": join_tables({s: mass_table(t) for s, t in means.items()}),
        "causal": join_tables({s: t[of[s].isin(["lambda_raw", "lambda_unit"])] for s, t in means.items()}),
        "effects": join_tables({s: effects_table(d) for s, d in e.draws.items()}),
        "argument": join_tables({s: argument_table(d) for s, d in e.draws.items()}),
        "sensitivity": join_tables({s: sensitivity_table(d, e.models) for s, d in e.draws.items()}),
    }


def effect(e: Evidence, name: str, method: str) -> pd.Series:
    """One of EFFECTS for a method."""
    what = EFFECTS[name]
    more, less = (mean_of(e, what.experiment, what.quantity, method, *which) for which in (what.more, what.less))
    return more - less


def with_interval(series: pd.Series) -> dict[str, float]:
    """Value and 95% interval over images of a mean and its draws."""
    low, high = interval(series.to_frame())
    return {"value": float(series.iloc[0]), "ci_low": float(low[0]), "ci_high": float(high[0])}


def mass_table(means: pd.DataFrame) -> pd.DataFrame:
    """Share of the map on each object beside its chance level, by experiment, method and model."""
    keys = ["experiment", "method", "model", "against"]
    mass = means[means["quantity"] == "mass"].drop(columns="quantity")
    chance = means[means["quantity"] == "chance"].set_index(keys)["value"].rename("chance")
    joined = mass.join(chance, on=keys)
    return joined.assign(times_chance=joined["value"] / joined["chance"]).rename(columns={"against": "object"})


def effects_table(e: Evidence) -> pd.DataFrame:
    """EFFECTS of every method, with 95% intervals."""
    rows = []
    for name, what in EFFECTS.items():
        for method in methods_of(e):
            try:
                size = with_interval(effect(e, name, method))
            except NotTestable:
                continue
            rows.append({"effect": name, "claim": what.claim, "method": method, **size})
    return pd.DataFrame(rows, columns=["effect", "claim", "method", "value", "ci_low", "ci_high"])


def argument_table(e: Evidence) -> pd.DataFrame:
    """The paper's argument: similarity to untrained networks on t (digits) and on t~ (halves), per method and measure.

    `between_untrained`: how alike untrained networks are among themselves. `test_t`, `test_t~`: a method fails where
    trained and untrained are alike (the whole interval above 0.7). `last_layers_k`: similarity after re-initialising
    the last k layers, Adebayo's cascade. `mass_*`: on the half that decides on t~. `moved`: what training adds to that
    mass; the test by it is passed where it moves clearly (by 0.1). Similarities weigh every pixel, and most are
    background: where the map moved is seen better by its mass.
    """
    rows = []
    for method in methods_of(e, HALVES):
        for measure in SIMILARITIES:
            try:
                t, aware = (mean_of(e, HALVES, measure, method, m, "random") for m in ("digits", "halves"))
            except NotTestable:
                continue
            row: dict[str, object] = {"method": method, "measure": measure}
            for name, model, untrained, series in (
                ("t", "digits", "digits_random", t),
                ("t~", "halves", "random", aware),
            ):
                row |= {f"{k}_{name}": v for k, v in with_interval(series).items()}
                row[f"between_untrained_{name}"] = _point(e, measure, method, untrained, "random")
                row |= {f"last_layers_{k}_{name}": _point(e, measure, method, model, f"top_{k}") for k in range(1, 5)}
                row[f"test_{name}"] = verdict(with_interval(ALIKE - series), "passes", "fails")
            row |= {f"{k}_t_minus_t~": v for k, v in with_interval(t - aware).items()}
            row |= {f"mass_{m}": _point(e, "mass", method, m, "primary") for m in ("halves", "digits", "random")}
            row |= _moved(e, method)
            row["mass_chance"] = _point(e, "chance", method, "halves", "primary")
            rows.append(row)
    return pd.DataFrame(rows)


def _moved(e: Evidence, method: str) -> dict[str, object]:
    """How far training on t and on t~ moves the map to the half that decides on t~, and the test by it."""
    row: dict[str, object] = {}
    for name, trained, untrained in (("t", "digits", "digits_random"), ("t~", "halves", "random")):
        try:
            moved = mean_of(e, HALVES, "mass", method, trained, "primary")
            moved = moved - mean_of(e, HALVES, "mass", method, untrained, "primary")
        except NotTestable:
            continue
        row |= {f"{k}_moved_{name}": v for k, v in with_interval(moved).items()}
        row[f"test_moved_{name}"] = verdict(with_interval(moved.abs() - CLEARLY), "passes", "fails")
    return row


def _point(e: Evidence, quantity: str, method: str, model: str, against: str) -> float:
    try:
        return float(mean_of(e, HALVES, quantity, method, model, against).iloc[0])
    except NotTestable:
        return float("nan")


def verdict(interval: dict[str, float], yes: str, no: str) -> str:
    """The interval decides: above 0, not above it, or around it."""
    return yes if interval["ci_low"] > ROUNDING else no if interval["ci_high"] <= ROUNDING else "uncertain"


def sensitivity_table(e: Evidence, models: pd.DataFrame, measure: str = "spearman") -> pd.DataFrame:
    """Per method and test: how alike the maps of the trained and the re-initialised model are, and what follows.

    weights: all layers drawn anew, sensitive below 0.7; cascading_p: the last p% of the layers; independent_p: the
    layer at p% of the way from the output; task: does training move the map to the object that decides?
    """
    columns = ["method", "test", "value", "ci_low", "ci_high", "margin", "margin_low", "margin_high", "verdict"]
    layers = models[models["mode"].isin(["cascading", "independent"])].sort_values(["mode", "unit", "step"])
    rows = []
    for method in methods_of(e, SANITY):
        margins = {}
        for test in dict.fromkeys(["random", *layers["drawn"]]):
            try:
                alike = mean_of(e, SANITY, measure, method, "trained", test)
            except NotTestable:
                continue
            margins["weights" if test == "random" else test] = (alike, ALIKE - alike)
        try:
            trained, random = (mean_of(e, SANITY, "mass", method, m, "primary") for m in ("trained", "random"))
            margins["task"] = (trained, trained - random)
        except NotTestable:
            pass
        for test, (value, margin) in margins.items():
            if np.isnan(margin.iloc[0]):
                continue
            gain = with_interval(margin)
            row = {"method": method, "test": test, **with_interval(value), "margin": gain["value"]}
            row |= {"margin_low": gain["ci_low"], "margin_high": gain["ci_high"]}
            rows.append(row | {"verdict": verdict(gain, "sensitive", "insensitive")})
    return pd.DataFrame(rows, columns=columns)
