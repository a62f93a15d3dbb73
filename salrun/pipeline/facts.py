"""What a run says of itself: the facts of its models (tables/cells.csv), their accuracies (model.csv), run.json."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from salrun.config.settings import own_settings
from salrun.models.recipe import Obtained
from salrun.pipeline.build import Cell
from salrun.pipeline.numerics import Numerics
from salrun.results.tables import ALL, CELLS, KEY
from salrun.results.trust import asked, doubts
from salrun.store.entries import canonical
from salrun.types import Deviating

OWN = "model"
USUAL = {"precision": "float32", "numerics": "exact", "dtype": "float32", "tf32": False}


def facts_about(part: Any) -> dict[str, Any]:
    """The flat facts that a data set or recipe gives of itself; nothing where it gives none."""
    return dict(part.facts()) if hasattr(part, "facts") else {}


def cell_table(cell: Cell, obtained: Mapping[str, Obtained], numerics: Numerics) -> pd.DataFrame:
    """One row per model of the run: what a reader calls it by, its role, and every fact it was made with.

    `cell` is a hash of the row: the same facts, the same cell, in whichever run or shard it was measured. How it was
    computed counts where it is not exact, in float32: cells of runs that had no such choice keep their names.
    """
    recipes = {OWN: cell.recipe, **cell.others}
    data = {f"dataset.{k}": v for k, v in facts_about(cell.dataset).items()}
    settings = {k: cell.config.get(k) for k in ("protocol", "reading", "target")}
    rows = []
    for role, model in obtained.items():
        title = model.classifier.name if role == OWN else role
        called: dict[str, Any] = {"experiment": cell.name, "dataset": cell.dataset.name, "model": title}
        called |= {"seed": cell.seed, "scale": cell.scale, "role": role}
        recipe = {f"model.{k}": v for k, v in facts_about(recipes[role]).items()}
        if "recipe" in model.card:  # what made the weights, whatever would be trained
            recipe["model.recipe"] = model.card["recipe"]
        weights = {"source": model.source, "fingerprint": model.classifier.fingerprint}
        rows.append({**called, **settings, **data, **recipe, **weights, **numerics.of(role)})
    table = pd.DataFrame(rows)
    named = [{k: v for k, v in row.items() if (k, v) not in USUAL.items()} for row in rows]
    table["cell"] = [hashlib.sha256(canonical(row).encode()).hexdigest()[:12] for row in named]
    return table[[*CELLS, *(name for name in table if name not in CELLS)]]


def model_table(
    cells: pd.DataFrame, obtained: Mapping[str, Obtained], images: pd.DataFrame, checks: Mapping[str, dict[str, Any]]
) -> pd.DataFrame:
    """Accuracy in all and per group, paired flips, and shares of sure and unsure answers, of every model.

    `verified`: it passed a gate that was asked for, and nothing speaks against it; `in_doubt`: what does, of the run's
    own model (the others are there to be compared with, untrained ones among them).
    """
    rows = []
    for called in cells[[*KEY, "role"]].to_dict("records"):
        role = called.pop("role")
        model = obtained[role]
        check = model.verification
        against = doubts(checks[OWN], images[images["cell"] == called["cell"]]) if role == OWN else []
        verified = check.passed and not against if asked(check.gate) else None
        about = {**called, "source": model.source, "verified": verified, "in_doubt": "; ".join(against)}
        rows.append({**about, "what": "accuracy", "group": ALL, "value": check.accuracy})
        rows += [{**about, "what": "accuracy", "group": g, "value": v} for g, v in check.groups.items()]
        rows += [{**about, "what": "flips", "group": g, "value": v} for g, v in check.flips.items()]
        rows += [{**about, "what": "confidence", "group": g, "value": v} for g, v in check.confidence.items()]
        if "pgd_accuracy" in model.card:
            rows.append({**about, "what": "accuracy under attack", "group": ALL, "value": model.card["pgd_accuracy"]})
    return pd.DataFrame(rows)


def run_facts(cell: Cell, obtained: Mapping[str, Obtained], overrides: Sequence[str]) -> dict[str, Any]:
    """What run.json says about the cell."""
    data = facts_about(cell.dataset)
    deviations = [d for model in obtained.values() for d in model.deviations]
    deviations += own_settings(overrides) if cell.paper else []
    if cell.scale != "paper":
        deviations.insert(0, f"scale={cell.scale}: a reduced run, not the paper's protocol")
    deviations += cell.dataset.deviations() if isinstance(cell.dataset, Deviating) else []
    if cell.shard != (0, 1):
        deviations.append(f"shard {cell.shard[0]}/{cell.shard[1]} of the images: collect the shards before reading")
    verification = {name: model.verification.as_dict() for name, model in obtained.items()}
    verification[OWN]["classes"] = len(cell.dataset.classes)  # what chance level is
    return {
        "deviations": list(dict.fromkeys(deviations)),
        "device": cell.device.type,
        "device_name": torch.cuda.get_device_name() if cell.device.type == "cuda" else None,
        "precision": cell.precision,
        "threads": torch.get_num_threads(),
        "seeds": {"model": cell.seed, "data": data.get("seed"), "explained": data.get("explained_seed")},
        "shard": f"{cell.shard[0]}/{cell.shard[1]}",
        "fit_images": cell.config.get("fit_images"),
        "verification": verification,
        "models": {n: {"source": f.source, "fingerprint": f.classifier.fingerprint} for n, f in obtained.items()},
        "methods": {
            p.name: {
                "label": p.label,
                "view": p.view.name,
                "target": p.target,
                "signed": p.method.signed,
                "options": p.config,
            }
            for p in cell.methods
        },
        "controls": [name for name in cell.config["controls"] or () if name in cell.config["methods"]],
        "metrics": [
            {
                "metric": m.name,
                "mode": m.mode,
                "view": m.view_name,
                "direction": m.metric.direction,
                "turned": sorted(m.metric.turned),
                "options": m.config,
                "passes": m.metric.passes(obtained[OWN].classifier, cell.dataset.shape),
                "explains": bool(m.metric.needs & {"explain", "other_map"}),
            }
            for m in cell.metrics
        ],
    }
