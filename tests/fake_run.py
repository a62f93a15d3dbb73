"""A run directory as a run leaves it, made of nothing: rectangles, noise and a seed."""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from salrun.results import claims as verdicts
from salrun.results.maps import MapWriter
from salrun.results.record import RunRecord, read_facts
from salrun.results.tables import ALL, CELL, CURVES, KEY, directions_of, write_csv, write_tables

METHODS = [
    *("gradient", "sensitivity", "input_x_gradient", "smoothgrad", "integrated_gradients", "deconvnet"),
    *("guided_backprop", "deep_taylor", "lrp_z", "lrp_epsilon", "lrp_a_flat", "deeplift_rescale", "deep_shap"),
    *("grad_cam", "rise", "lime", "iba", "edge", "random"),
]
UNSIGNED = {"sensitivity", "deep_taylor", "grad_cam", "rise", "iba", "edge"}
METRICS = {
    "pafl": "higher",
    "safl": "lower",
    "piou": "higher",
    "insertion": "higher",
    "deletion": "lower",
    "sparseness": "none",
}
MODED = ("pafl", "safl")  # metrics with a mode
SIDE = 64
COMMAND = ["+experiment=smerf_complex_cr2", "scale=laptop", "seed=0"]
ABOUT = {
    "cell": "0123456789ab",
    "experiment": "smerf_complex_cr2",
    "dataset": "textbox",
    "model": "smerf_cnn",
    "seed": 0,
    "scale": "laptop",
}
CLAIMS = """\
id|sentence|measured|ci_low|ci_high|holds|published|published_holds|agrees|counted|reason
S1|Most methods attend to the primary object alone|0.21|0.17|0.25|yes (one model)|0.24|yes|3 of 4|yes|closest: DT
S2|No method has PAFL above 0.5 in every bucket|0.11|0.06|0.15|yes (one model)|0.08|yes||yes|closest: IG
S3|Grad-CAM spares the secondary object|-0.08|-0.12|-0.04|no (one model)|0.05|yes||yes|the 3 x 3 CAM spills over
S4|SmoothGrad is better than the gradient|0.01|-0.03|0.05|uncertain (one model)|0.02|yes||yes|close
S5|The order of methods is stable over architectures||||not tested||||yes|needs AlexNet and VGG16
S6|Methods fall from simple to complex settings|0.1|0.08|0.12|yes (one model)|||||the oracle falls too
"""


def make_run(
    folder: Path,
    n_images: int = 240,
    methods: list[str] = METHODS,
    side: int = SIDE,
    labels: dict[str, str] | None = None,
    groups: int = 12,
    seed: int = 0,
    **info: Any,
) -> Path:
    """Write the run with the writers of a real one; `labels` renames methods on the page, `info` adds to run.json."""
    rng = np.random.default_rng(seed)
    labels = labels or {}
    images, boxes, ids, group, label, prediction = _pictures(rng, n_images, side, groups)
    about = {"image_id": ids, "group": group, "label": label, "prediction": prediction}
    listed = [{"name": m, "label": labels.get(m, m), "signed": m not in UNSIGNED, "view": "max_abs"} for m in methods]
    masks = {name: _masks(of, side) for name, of in boxes.items()}
    roles = {name: ["primary" if k == 0 else "secondary"] * n_images for k, name in enumerate(boxes)}
    planes = {method: _map(rng, method, images, boxes) for method in methods}
    shown = {"planes": planes, "images": images, "masks": masks, "roles": roles, "classes": ["no", "yes"]}
    save_maps(folder, about, listed, {"model": ABOUT["cell"]}, **shown)
    metrics = [
        {
            "metric": m,
            "mode": "code" if m in MODED else "",
            "view": "max_abs",
            "direction": d,
            "turned": [],
            "options": {},
        }
        for m, d in METRICS.items()
    ]
    facts = {
        "experiment": "smerf_complex_cr2", "paper": "smerf", "scale": "laptop", "device": "cpu", "precision": "float32",
        "seeds": {"model": seed, "data": seed},
        "deviations": ["The network was trained on 20,000 images instead of 100,000.", "RISE uses 1,000 masks."],
        "versions": {"salrun": "0.1.0", "torch": "2.9.1", "python": "3.12.4"}, "metrics": metrics,
        "timings": {"data": 2.1, "model": 41.0, "maps": 512.5, "scores": 168.4},
        "methods": {m["name"]: {**m, "target": "predicted", "options": {}} for m in listed},
        "controls": [m for m in methods if m in ("edge", "random")],
        "verification": {"model": {"split": "validation", "n": 6000, "classes": 2, "accuracy": 0.9931,
                                   "groups": {"1": 0.99},
                                   "gate": {"accuracy": 0.98, "group": 0.9}, "passed": True, "reason": ""}},
    }  # fmt: skip
    frame = pd.DataFrame({"cell": ABOUT["cell"], **about, "confidence": rng.uniform(0.6, 1, n_images)})
    scores = _scores(rng, frame.drop(columns=["cell", "confidence"]), methods)
    named = {"experiment": info.get("experiment") or ABOUT["experiment"]}
    cells = pd.DataFrame([{**ABOUT, **named, "role": "model", "source": "shipped"}])
    groups_of_models = [ALL, *sorted(set(group), key=int)]
    accuracies = pd.concat(
        [cells.assign(verified=True, what="accuracy", group=g, value=0.9931) for g in groups_of_models]
    )
    tables = {"images": frame, "cells": cells, "accuracies": accuracies}
    save_run(folder, scores, overrides=COMMAND, **tables, **facts)
    claims = pd.read_csv(io.StringIO(CLAIMS), sep="|", dtype=str, keep_default_na=False)
    claims["answer"] = [said.split(" (")[0] for said in claims["holds"]]
    claims["about"] = ["one model" if "(" in said else "" for said in claims["holds"]]
    claims["counted"] = claims["counted"].replace("", "not informative: a perfect map (oracle) does too")
    told = {"place": "Figure 2", "predicate": "PAFL - 0.5", "quantifier": "every", "unit": "AFL", "k": "1"}
    claims = claims.assign(paper="smerf", population="models", **told).reindex(columns=verdicts.CLAIMS, fill_value="")
    write_csv(folder / "claims.csv", claims)
    (folder / "config.yaml").write_text("seed: 0\nscale: laptop\nmethods:\n  rise:\n    n_masks: 1000\n")
    (folder / "figures").mkdir(exist_ok=True)
    _figure(folder / "figures", "smerf_fig3")
    (folder / "run.json").write_text(json.dumps(read_facts(folder) | info, default=str))
    return folder


def save_run(
    folder: Path,
    scores: pd.DataFrame,
    directions: dict[str, str] | None = None,
    images: pd.DataFrame | None = None,
    cells: pd.DataFrame | None = None,
    curves: pd.DataFrame | None = None,
    accuracies: pd.DataFrame | None = None,
    overrides: Sequence[str] = (),
    **facts: Any,
) -> Path:
    """A finished run with these scores, missing columns filled in; `directions` by metric (default: higher).

    `images`: the whole table, or image_id and confidence (1 unless given); `cells`: the models and their facts (those
    of the scores unless given); `accuracies`: the table of models (all 1 unless given); `facts` replace those of
    run.json.
    """
    given = {"scale": "smoke", "label": 0, "prediction": 0, "target": 0, "mode": "", "score": "", "view": "max_abs"}
    scores = scores.assign(**{k: v for k, v in {**given, "flag": "ok"}.items() if k not in scores})
    if "cell" not in scores:
        scores = scores.assign(cell=["-".join(map(str, row)) for row in scores[CELL].itertuples(index=False)])
    if cells is None:
        cells = scores[KEY].drop_duplicates().assign(role="model", source="shipped")
    if images is None or "cell" not in images:
        about = scores[["cell", "image_id", "group", "label", "prediction"]].drop_duplicates(["cell", "image_id"])
        images = about.assign(confidence=1.0) if images is None else about.merge(images, on="image_id")
    if accuracies is None:
        accuracies = cells.assign(source="shipped", verified=True, what="accuracy", group=ALL, value=1.0)
    modes = scores[["metric", "mode"]].drop_duplicates().itertuples(index=False, name=None)
    ways, about_method = directions or {}, {"view": "max_abs", "target": "predicted", "options": {}}
    first = {
        "metrics": [
            {"metric": m, "mode": mode, "direction": ways.get(m, "higher"), "turned": [], "options": {}}
            for m, mode in modes
        ],
        "methods": {m: {"label": m, **about_method} for m in scores["method"].unique()},
        **cells[["experiment", "seed", "scale"]].to_dict("records")[0],
    }
    with RunRecord(folder, overrides, **{**first, **facts}) as record:
        curves = pd.DataFrame(columns=CURVES) if curves is None else curves
        named = directions_of(record.facts["metrics"], scores)
        write_tables(folder / "tables", scores, curves, images, cells, accuracies, named)
    return folder


def save_maps(
    folder: Path,
    about: dict[str, list],
    methods: Sequence[str | dict[str, Any]],
    models: dict[str, str],
    size: tuple[int, int] = (8, 8),
    planes: Mapping[str, np.ndarray] | None = None,
    images: np.ndarray | None = None,
    masks: dict[str, np.ndarray] | None = None,
    roles: dict[str, list[str]] | None = None,
    classes: Sequence[str] = (),
) -> None:
    """Kept maps below a run directory; `about` the images, `methods` by name or all that is said of them, `models`
    role -> cell, `planes` by method. Images and planes are noise unless given, then of scale 1, 2, .."""
    rng = np.random.default_rng(0)
    n = len(about["image_id"])
    listed = [{"name": m, "label": m, "signed": True, "view": "sum"} if isinstance(m, str) else m for m in methods]
    writer = MapWriter(listed, classes, models)
    images = rng.integers(0, 256, (n, *size, 3), dtype=np.uint8) if images is None else images
    writer.add_images(images, about, masks or {}, roles or {})
    for role in models:
        for method in (m["name"] for m in listed):
            plane = rng.uniform(-1, 1, (n, *size)) if planes is None else planes[method]
            scale = np.arange(1, n + 1) if planes is None else np.ones(n)
            writer.add_planes(role, method, {"plane": plane.astype(np.float16), "scale": scale.astype(np.float32)})
    writer.write(folder / "maps")


def _masks(boxes: list[list[int] | None], side: int) -> np.ndarray:
    masks = np.zeros((len(boxes), side, side), dtype=bool)
    for mask, box in zip(masks, boxes, strict=True):
        if box is not None:
            mask[box[0] : box[2], box[1] : box[3]] = True
    return masks


def _pictures(rng: np.random.Generator, n: int, side: int, groups: int) -> tuple[Any, ...]:
    images = np.zeros((n, side, side, 3), np.uint8)
    boxes: dict[str, list[list[int] | None]] = {"text": [], "box1": [], "box2": []}
    for i in range(n):
        for (name, size), shade in zip(
            {"text": side // 4, "box1": side // 6, "box2": side // 16}.items(), (255, 230, 255), strict=True
        ):
            row, col = (int(v) for v in rng.integers(0, side - size, 2))
            if name == "box1" and i % 3 == 0:
                boxes[name].append(None)
                continue
            boxes[name].append([row, col, row + size, col + size])
            images[i, row : row + size, col : col + size] = shade
            if name == "text":
                images[i, row + size // 3 : row + size // 2, col + size // 4 : col + size - size // 4] = 0
    group = [str(i * groups // n + 1) for i in range(n)]
    label = [int(g) % 2 for g in group]
    prediction = [1 - y if i % 17 == 5 else y for i, y in enumerate(label)]
    return images, boxes, [f"test-{i:05d}" for i in range(n)], group, label, prediction


def _map(rng: np.random.Generator, method: str, images: np.ndarray, boxes: dict[str, Any]) -> np.ndarray:
    """Noise where there are objects, some more at the edges, a blob for the coarse methods."""
    n, side = len(images), images.shape[1]
    ink = images[..., 0].astype(np.float32) / 255
    noise = rng.standard_normal((n, side, side)).astype(np.float32)
    near = sum(np.roll(ink, shift, (1, 2)) for shift in ((0, 1), (1, 0), (0, -1), (-1, 0), (2, 2), (-2, -2))) / 6
    strength = zlib.crc32(method.encode()) % 5 / 5
    if method in {"grad_cam", "rise", "iba"}:
        grid = np.linspace(0, 1, side)
        plane = np.zeros_like(noise)
        for i in range(n):
            row0, col0, row1, col1 = boxes["text"][i]
            d = (grid[:, None] - (row0 + row1) / 2 / side) ** 2 + (grid[None] - (col0 + col1) / 2 / side) ** 2
            plane[i] = np.exp(-d * (20 + 40 * strength))
        return plane
    plane = noise * (near + 0.05 * strength) + strength * ink
    if method == "random":
        plane = noise
    return np.abs(plane) if method in UNSIGNED else plane


def _scores(rng: np.random.Generator, images: pd.DataFrame, methods: list[str]) -> pd.DataFrame:
    frames = []
    n = len(images)
    for method in methods:
        for metric in METRICS:
            value = np.clip(rng.normal(0.2 + zlib.crc32((method + metric).encode()) % 50 / 100, 0.12, n), 0, 1)
            flag = np.full(n, "ok", dtype=object)
            if method == "grad_cam":
                value[3::40], flag[3::40] = np.nan, "degenerate_map"
            mode, view = ("code", "seismic") if metric in MODED else ("", "max_abs")
            named = {"method": method, "metric": metric, "mode": mode, "score": "", "view": view}
            frames.append(images.assign(target=images["prediction"], **named, value=value, flag=flag))
    return pd.concat(frames, ignore_index=True).assign(**ABOUT)


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def _figure(folder: Path, stem: str) -> None:
    bars = "".join(
        f'<rect x="{40 + 60 * i}" y="{200 - h}" width="40" height="{h}" fill="#1f5f8b"/>'
        for i, h in enumerate((120, 90, 150, 60))
    )
    axes = '<path d="M30 20V200H290" fill="none" stroke="#333"/>'
    (folder / f"{stem}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="620" height="420" viewBox="0 0 310 210">{axes}{bars}</svg>'
    )
    (folder / f"{stem}.png").write_bytes(PNG + bytes(4000))
    (folder / f"{stem}.csv").write_text(
        "method,pafl\n" + "".join(f"m{i},{h / 200}\n" for i, h in enumerate((120, 90, 150, 60)))
    )
