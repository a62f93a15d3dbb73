"""Can the models of a run be trusted? What the run found out about them, in words for whoever reads its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from salrun.results.run import MissingFile, Run

FEW = 50  # images that an accuracy is measured on: below it the interval is wider than +-.14
OWN = "model"


def doubts_about(run: Run, role: str = OWN) -> list[str]:
    """Why a model of the run cannot be trusted, one short phrase each; nothing where it was verified."""
    check = (run.facts.get("verification") or {}).get(role)
    if check is None:  # a collected run has no record of its own, its tables say what those of its members did
        cells = run.cells.loc[run.cells["role"] == role, "cell"]
        said = run.models.reindex(columns=["cell", "in_doubt"]).dropna()
        return list(dict.fromkeys(said.loc[said["cell"].isin(cells), "in_doubt"]))
    try:
        images = run.images.merge(run.cells.loc[run.cells["role"] == role, ["cell"]], on="cell")
    except MissingFile:
        images = None
    return doubts(check, images)


def doubts(check: dict[str, Any], images: pd.DataFrame | None = None) -> list[str]:
    """What speaks against a model: `check` is its record in run.json, `images` what it predicts of those explained."""
    accuracy, n, classes = float(check["accuracy"]), int(check.get("n") or 0), int(check.get("classes") or 0)
    found = []
    if classes and n and accuracy <= highest_by_chance(n, classes):
        found.append(f"accuracy {accuracy:.2f} is chance level ({classes} classes)")
    if images is not None and images["label"].nunique() > 1 and images["prediction"].nunique() == 1:
        found.append(f"it predicts one class for all {images['image_id'].nunique()} images")
    if n < FEW:
        found.append(f"its accuracy is of {n} images only")
    if not asked(check.get("gate") or {}):
        found.append("no accuracy was asked for (model.gate)")
    elif not check.get("passed"):
        found.append(str(check.get("reason") or "it fails its gate"))
    return found


def asked(gate: Mapping[str, Any]) -> bool:
    """Whether a gate asks for something; how many images are looked at is no question."""
    return any(key != "images" for key in gate)


def highest_by_chance(n: int, classes: int) -> float:
    """The accuracy that guessing reaches on n images in 39 of 40 tries: 1/c + 1.96 sqrt(1/c (1 - 1/c) / n)."""
    chance = 1 / classes
    return chance + 1.96 * math.sqrt(chance * (1 - chance) / n)
