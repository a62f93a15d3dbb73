"""Made-up runs of zhang's experiments: scores around the published values, in memory or as a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from salrun.papers.zhang.evidence import published_tables
from salrun.papers.zhang.names import COLUMNS, CONTROLS, MASKED, METHODS
from salrun.results.run import Run
from salrun.results.tables import CELL, CELLS, CURVES, IMAGES, KEY, SCORE, SCORES, directions_of
from tests import fake_run

FIDELITY, DEAR, ROBUSTNESS, TRANSFORMS = "zhang_fidelity", "mine", "zhang_robustness", "zhang_transforms"
PROTOCOLS = {FIDELITY: "fidelity", DEAR: "fidelity", ROBUSTNESS: "robustness", TRANSFORMS: "transforms"}
PROTOCOLS |= {f"zhang_targets_{target}": "targets" for target in ("label", "predicted", "least_probable")}
LOWER = {"average_drop", "deletion", "local_accuracy", "completeness", "max_sensitivity", "avg_sensitivity"}
LOWER |= {"complexity", "effective_complexity"}
SOURCE = ["source_id", "transform", "strength"]  # of an image, beside the columns of scores


def rows(experiment, column, method, values, ids, transform="clean", strength=""):
    """Scores of one column of the paper's tables, given in its units."""
    spec = COLUMNS[column]
    transformed = bool(strength)
    group = (f"{transform}/{strength}" if transformed else transform) if experiment == TRANSFORMS else "class"
    mode = spec.modes[0]
    view = mode if mode in CONTROLS else "raw" if spec.score else "minmax"
    return pd.DataFrame(
        {
            "experiment": experiment, "method": method, "metric": spec.metric, "mode": mode, "score": spec.score,
            "view": view, "group": group, "source_id": ids, "strength": strength,
            "transform": transform if experiment == TRANSFORMS else None,
            "image_id": [f"{i}@{group}" for i in ids] if transformed else ids,
            "value": (np.asarray(values) - spec.offset) / spec.scale,
        }
    )  # fmt: skip


def table_of(parts, seed=0):
    """The parts as one table with all columns of scores, and where each image comes from."""
    frame = pd.concat(parts, ignore_index=True).assign(dataset="imagenet", model="resnet50", seed=seed, scale="smoke")
    frame = frame.assign(label=0, prediction=0, target=0, flag="ok")
    return with_cells(frame)[[*SCORES, *SOURCE]]


def with_cells(scores):
    """Scores with a cell for each experiment, model, seed, .., for rows in which those were changed."""
    return scores.assign(cell=scores.groupby(CELL).ngroup().map("cell{}".format))


def published_as_run(images=30, seed=0, noise=1.0):
    """Scores of all experiments whose means are the published ones (corrected), with noise over images.

    Where the printed values would contradict a definition (MS and AS of Fake-CAM) they are others.
    """
    rng = np.random.default_rng(seed)
    ids = [f"n0/{i:03d}" for i in range(images)]
    printed = published_tables()

    def around(mean, scale):
        values = rng.normal(size=images)
        return mean + noise * scale * (values - values.mean())

    parts = []
    for r in printed["fidelity"].itertuples():
        scale = 0.001 if r.metric == "Mono" else 0.01
        parts.append(rows(FIDELITY, r.metric, r.method, around(r.printed, scale), ids))
        if r.metric in MASKED[:3]:
            parts += [rows(FIDELITY, f"{r.metric} {c}", r.method, around(50, 0.1), ids) for c in CONTROLS]
    for method in METHODS:
        complete = 100.0 * (np.arange(images) % 2 == 0) if method == "integrated_gradients" else np.zeros(images)
        parts.append(rows(FIDELITY, "Complete", method, complete, ids))
        residual = 0.004 if method == "integrated_gradients" else 1.0
        parts.append(rows(FIDELITY, "Residual", method, around(residual, 1e-4), ids))
    for r in printed["targets"].itertuples():
        parts.append(rows(f"zhang_targets_{r.target}", r.metric, r.method, around(r.printed, 1e-3), ids))
    for r in printed["robustness"].itertuples():
        if r.metric in ("MS", "AS"):
            own = np.zeros(images) if r.method == "fake_cam" else around(0.5 + 0.1 * (r.metric == "MS"), 1e-3)
            parts.append(rows(ROBUSTNESS, r.metric, r.method, own, ids))
        else:
            parts.append(rows(ROBUSTNESS, r.metric, r.method, around(r.printed, 1e-4), ids))
            parts.append(rows(FIDELITY, r.metric, r.method, around(r.printed, 1e-4), ids))
    for r in printed["transforms"].itertuples():
        value = r.printed if np.isnan(r.corrected) else r.corrected
        for strength, shift in {"": 0}.items() if r.transform == "clean" else {"0.1": -1, "0.2": 1}.items():
            values = around(value, 1e-3) + shift
            parts.append(rows(TRANSFORMS, r.metric, r.method, values, ids, r.transform, strength))
    return table_of(parts, seed)


def with_reflected(scores, rise=0.0):
    """Scores of Table 4 with a fifth transform, rotation_reflected: the clean ones, and so much more."""
    clean = scores[scores["transform"] == "clean"]
    group = "rotation_reflected/45"
    more = clean.assign(transform="rotation_reflected", strength="45", group=group, value=clean["value"] + rise)
    return pd.concat([scores, more.assign(image_id=clean["source_id"] + "@" + group)], ignore_index=True)


def probability_of(scores):
    """p_c of each row's image: the number in its name / 100."""
    return scores["source_id"].str.extract(r"/(\d+)")[0].astype(float) / 100


def curves_of(scores):
    """Deletion curves whose first point is p_c, and a fifth of it where transformed."""
    deletion = scores[scores["metric"] == "deletion"]
    p = np.where(deletion["strength"] == "", probability_of(deletion), probability_of(deletion) / 5)
    return deletion.assign(x=[np.array([0.0, 1.0])] * len(p), y=[np.array([v, 0.0]) for v in p])[CURVES]


def cells_of(scores, **facts):
    """The models of these scores: the protocol and target after the experiment."""
    cells = scores[KEY].drop_duplicates().assign(role="model", target="label", fingerprint="a", **facts)
    cells["protocol"] = cells["experiment"].map(PROTOCOLS)
    for target in ("predicted", "least_probable"):
        cells.loc[cells["experiment"] == f"zhang_targets_{target}", "target"] = target
    return cells[[*CELLS, *(name for name in cells if name not in CELLS)]]


def images_of(scores):
    """One row per model and image; only transformed ones have a source."""
    images = scores.drop_duplicates(["cell", "image_id"])[[*(n for n in IMAGES if n != "confidence"), *SOURCE]]
    images[SOURCE] = images[SOURCE].where(images["transform"].notna())
    return images.assign(confidence=0.9)[[*IMAGES, *SOURCE]]


def metrics_of(scores):
    """What run.json says of the metrics of these scores."""
    named = scores[["metric", "mode", "view"]].drop_duplicates().to_dict("records")
    turned = {"completeness": ["complete"]}
    return [
        {
            **m,
            "direction": "lower" if m["metric"] in LOWER else "higher",
            "turned": turned.get(m["metric"], []),
            "options": {"_target_": "x"},
        }
        for m in named
    ]


def methods_of(scores):
    """What run.json says of the methods of these scores."""
    about = {"view": "minmax", "target": "label", "signed": True}
    return {name: {"label": name, **about, "options": {"_target_": "x"}} for name in scores["method"].unique()}


def in_memory(scores, curves=False, cells=None):
    """A run whose tables are these, without a directory."""
    run = Run(Path("/nowhere"))
    summary = scores[SCORE].drop_duplicates()
    ways = directions_of(metrics_of(scores), scores)
    summary["direction"] = [ways[key] for key in summary[["metric", "mode", "score"]].itertuples(False, None)]
    run.__dict__ |= {  # each is read once: no file is asked for
        "facts": {"methods": methods_of(scores), "metrics": metrics_of(scores)},
        "scores": scores[SCORES], "curves": curves_of(scores) if curves else curves_of(scores.iloc[:0]),
        "images": images_of(scores), "cells": cells_of(scores) if cells is None else cells, "summary": summary,
    }  # fmt: skip
    return run


def save_run(folder, scores, cells=None, **facts: Any):
    """A run directory with these scores, written as a run writes it; `facts` replace those of run.json."""
    told = {
        "experiment": "zhang_fidelity",
        "paper": "zhang",
        "metrics": metrics_of(scores),
        "methods": methods_of(scores),
    }
    tables = {
        "images": images_of(scores),
        "cells": cells_of(scores) if cells is None else cells,
        "curves": curves_of(scores),
    }
    return Run(
        fake_run.save_run(folder, scores, overrides=["+experiment=zhang_fidelity"], **tables, **{**told, **facts})
    )


def save_maps(folder, methods, ids, cell=""):
    """Kept maps of these images in which plane k is full of k."""
    n = len(ids)
    about = {"image_id": ids, "group": ["class"] * n, "label": [0] * n, "prediction": [0] * n}
    plane = np.broadcast_to(np.arange(n)[:, None, None], (n, 8, 8))
    fake_run.save_maps(folder, about, methods, {"model": cell}, planes=dict.fromkeys(methods, plane), classes=["a"])
