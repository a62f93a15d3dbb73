"""A run directory as a run leaves it, made of nothing: rectangles, noise and a seed."""

from __future__ import annotations

import base64
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import save_file

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
SIDE = 64
CLAIMS = """\
id|statement|measured|ci_low|ci_high|holds|published|published_holds|verdict|reason
S1|Most methods attend to the primary object alone|0.21|0.17|0.25|yes|0.24|yes|reproduced|95% CI over images, one model
S2|No method has PAFL above 0.5 in every bucket|0.11|0.06|0.15|yes|0.08|yes|reproduced|95% CI over images, one model
S3|Grad-CAM spares the secondary object|-0.08|-0.12|-0.04|no|0.05|yes|not reproduced|the 3 x 3 CAM spills over
S4|SmoothGrad is better than the gradient|0.01|-0.03|0.05|uncertain|0.02|yes|uncertain|the interval contains zero
S5|The order of methods is stable over architectures|||||text||not testable here|needs AlexNet and VGG16
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
    """Write the run; `labels` renames methods on the page, `info` adds to or replaces run.json's entries."""
    rng = np.random.default_rng(seed)
    labels = labels or {}
    for name in ("tables", "maps", "figures"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    images, boxes, ids, group, label, prediction = _pictures(rng, n_images, side, groups)
    save_file({"x": images}, folder / "maps" / "images.safetensors")
    for method in methods:
        plane = _map(rng, method, images, boxes)
        save_file({"plane": plane.astype(np.float16)}, folder / "maps" / f"{method}.safetensors")
    index = {
        "image_id": ids, "group": group, "label": label, "prediction": prediction, "masks": boxes,
        "roles": {name: ["primary" if k == 0 else "secondary"] * n_images for k, name in enumerate(boxes)},
        "methods": [{"name": m, "label": labels.get(m, m), "signed": m not in UNSIGNED} for m in methods],
    }  # fmt: skip
    (folder / "maps" / "index.json").write_text(json.dumps(index))
    scores = _scores(rng, ids, group, label, prediction, methods)
    scores.to_parquet(folder / "tables" / "scores.parquet", index=False)
    summary = summarise(scores)
    summary.to_parquet(folder / "tables" / "summary.parquet", index=False)
    summary.to_csv(folder / "tables" / "summary.csv", index=False)
    accuracy = pd.DataFrame({"split": "test", "bucket": sorted(set(group), key=int), "n": 250, "accuracy": 0.9931})
    accuracy.to_csv(folder / "tables" / "model.csv", index=False)
    claims = pd.read_csv(io.StringIO(CLAIMS), sep="|", dtype=str, keep_default_na=False)
    claims.assign(paper="smerf").to_csv(folder / "claims.csv", index=False)
    (folder / "config.yaml").write_text("seed: 0\nscale: laptop\nmethods:\n  rise:\n    n_masks: 1000\n")
    run = {
        "command": "salrun +experiment=smerf_complex_cr2 scale=laptop seed=0", "experiment": "smerf_complex_cr2",
        "paper": "smerf", "scale": "laptop", "device": "cpu", "precision": "float32",
        "seeds": {"model": seed, "data": seed},
        "deviations": ["The network was trained on 20,000 images instead of 100,000.", "RISE uses 1,000 masks."],
        "versions": {"salrun": "0.1.0", "torch": "2.9.1", "python": "3.12.4"},
        "metrics": {f"{m}/max_abs": {"direction": d} for m, d in METRICS.items()},
        "timings": {"data": 2.1, "model": 41.0, "maps": 512.5, "scores": 168.4}, "status": "done",
        "verification": {"model": {"split": "validation", "n": 6000, "accuracy": 0.9931, "groups": {"1": 0.99},
                                   "gate": {"accuracy": 0.98, "group": 0.9}, "passed": True, "reason": ""}},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run | info))
    _figure(folder / "figures", "smerf_fig3")
    return folder


def summarise(scores: pd.DataFrame) -> pd.DataFrame:
    """Per group and over all of them, with a normal interval: what the numbers are does not matter here."""
    keys = ["experiment", "dataset", "model", "seed", "scale", "group", "method", "metric", "variant"]
    whole = scores.assign(group="(all)")
    rows = pd.concat([whole, scores]).assign(flagged=lambda t: t["flag"] != "ok").groupby(keys, sort=False)
    table = rows["value"].agg(["mean", "std"])
    table["n"] = rows.size()
    table["n_flagged"] = rows["flagged"].sum()
    half = 1.96 * table["std"] / np.sqrt(table["n"])
    return table.assign(ci_low=table["mean"] - half, ci_high=table["mean"] + half).reset_index()


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
    label = [str(int(g) % 2) for g in group]
    prediction = [str(1 - int(y)) if i % 17 == 5 else y for i, y in enumerate(label)]
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


def _scores(
    rng: np.random.Generator, ids: list[str], group: Any, label: Any, prediction: Any, methods: list[str]
) -> pd.DataFrame:
    images = pd.DataFrame(
        {"image_id": ids, "group": group, "label": label, "prediction": prediction, "target": prediction}
    )
    frames = []
    for method in methods:
        for metric in METRICS:
            value = np.clip(rng.normal(0.2 + zlib.crc32((method + metric).encode()) % 50 / 100, 0.12, len(ids)), 0, 1)
            flag = np.full(len(ids), "ok", dtype=object)
            if method == "grad_cam":
                value[3::40], flag[3::40] = np.nan, "degenerate_map"
            frames.append(
                images.assign(
                    method=method,
                    metric=metric,
                    value=value,
                    flag=flag,
                    variant="code:seismic" if metric in {"pafl", "safl"} else "max_abs",
                )
            )
    frames.insert(
        0, images.assign(method="-", metric="confidence", variant="", value=rng.uniform(0.6, 1, len(ids)), flag="ok")
    )
    facts = {
        "experiment": "smerf_complex_cr2",
        "dataset": "textbox",
        "model": "smerf_cnn",
        "seed": 0,
        "scale": "laptop",
    }
    return pd.concat(frames, ignore_index=True).assign(**facts)


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
