"""What the paper shows of single maps: kept maps of runs (Figures 9, 15, 25) and toy maps (14, 16).

Kept maps are planes: the channel sum over its largest magnitude. A signed one becomes the picture that is scored by the
colour map, 7x7 blur and min-max; an unsigned one by blur and min-max alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch

from salrun.metrics.common import box_blur
from salrun.metrics.localisation import focus, histogram_cut, top_pixels
from salrun.papers.smerf.evidence import IOU_BY_K, OBJECTS, paper_models
from salrun.papers.smerf.terms import SHOWN
from salrun.results.maps import KeptMaps
from salrun.results.run import Run
from salrun.views import rescale, view

BLUR = 7
LIGHTING = ("integrated_gradients", "gradient", "lrp_z", "deeplift_reveal_cancel", "oracle", "all_lit")  # Figures 9, 25
KS = np.linspace(100, 400, 8).round().astype(int)  # Figure 15: of one method, setting and bucket
K_METHOD, K_SETTING, K_BUCKET = "integrated_gradients", "complex_cr1", "9"


def measure(run: Run) -> dict[str, pd.DataFrame]:
    """`objects` and `iou_by_k`, image by image, of the kept maps of the paper's plain models.

    A collected run has the tables of its members: its maps are measured only where these have none.
    """
    if run.members != [run] and any(run.table(name) is not None for name in (OBJECTS, IOU_BY_K)):
        return {}
    objects: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for kept in run.maps:
        for model in paper_models(kept.cells).query("condition == 'plain'").itertuples():
            objects += [{"cell": model.cell, **row} for row in brightness(kept, LIGHTING, SHOWN)]
            if model.setting == K_SETTING:
                curves += [{"cell": model.cell, **row} for row in iou_by_k(kept, K_METHOD, K_BUCKET)]
    return {"objects": pd.DataFrame(objects), "iou_by_k": pd.DataFrame(curves)}


def brightness(kept: KeptMaps, methods: Iterable[str], buckets: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The mean of a picture on each object, and of all its pixels."""
    rows = rows_of(kept, buckets)
    for method in (m for m in methods if kept.has(m) and len(rows)):
        for picture, row in zip(pictures(kept, method, rows), rows, strict=True):
            boxes = {name: np.s_[r0:r1, c0:c1] for name, (r0, c0, r1, c1) in kept.boxes(row).items()}
            of_map = {**image(kept, row), "method": method, "mean": picture.mean()}
            for name, box in boxes.items():
                roles = kept.index["roles"].get(name)
                yield {**of_map, "object": name, "role": roles[row] if roles else "", "on": picture[box].mean()}


def iou_by_k(kept: KeptMaps, method: str, bucket: str) -> Iterator[dict[str, Any]]:
    """IOU of the letter's box and a map's K largest values, chosen by the public code's histogram rule, for every K."""
    rows = rows_of(kept, [bucket])
    if not len(rows) or not kept.has(method):
        return
    blurred = box_blur(planes(kept, method, rows), BLUR)
    text = torch.zeros_like(blurred, dtype=torch.bool)
    for mask, row in zip(text, rows, strict=True):
        r0, c0, r1, c1 = kept.boxes(row)["text"]
        mask[r0:r1, c0:c1] = True
    for k in KS.tolist():
        largest = histogram_cut(blurred, torch.full((len(rows),), k))
        scores = (text & largest).sum((1, 2)) / (text | largest).sum((1, 2))
        for row, iou in zip(rows, scores.double().tolist(), strict=True):
            yield {**image(kept, row), "method": method, "k": k, "iou": iou}


def rows_of(kept: KeptMaps, buckets: Sequence[str]) -> np.ndarray:
    """Which of the kept images are in these buckets."""
    return np.flatnonzero(np.isin(np.array(kept.index["group"], dtype=str), buckets))


def image(kept: KeptMaps, row: int) -> dict[str, str]:
    return {"image_id": str(kept.index["image_id"][row]), "group": str(kept.index["group"][row])}


def planes(kept: KeptMaps, method: str, rows: np.ndarray) -> torch.Tensor:
    """(B, H, W): the pictures that are scored, before blur."""
    raw = torch.from_numpy(kept.planes(method)[rows].astype(np.float64)).unsqueeze(1)
    return (view("seismic")(raw) if kept.signed(method) else raw.abs()).squeeze(1)


def pictures(kept: KeptMaps, method: str, rows: np.ndarray) -> np.ndarray:
    """(B, H, W) in [0, 1]: after blur and min-max."""
    return rescale(box_blur(planes(kept, method, rows), BLUR)).numpy()


# -- toy maps ----------------------------------------------------------------------------------------------------------

PRIMARY, SECONDARY = np.s_[22:41, 8:21], np.s_[27:37, 42:52]  # a letter's box of 247 pixels, a Box1 of 100


def toy_map(secondary: float = 0.8, background: float = 0.001) -> np.ndarray:
    """Value 1 on the primary object, `secondary` on the other."""
    plane = np.full((64, 64), background)
    plane[PRIMARY], plane[SECONDARY] = 1.0, secondary
    return plane


@cache
def toy_scores(mode: str, secondary: float = 0.8, background: float = 0.001) -> dict[str, float]:
    """PAFL, SAFL, PIOU, SIOU and K of a toy map; no blur, as in the paper's figures."""
    plane = torch.from_numpy(toy_map(secondary, background)).unsqueeze(0)
    share = focus(plane, mode, blur=1)[0]
    k = torch.tensor([torch.zeros(64, 64)[PRIMARY].numel()])
    selected = (histogram_cut if mode == "code" else top_pixels)(plane, k)[0]
    scores = {}
    for name, box in (("P", PRIMARY), ("S", SECONDARY)):
        region = torch.zeros(64, 64, dtype=torch.bool)
        region[box] = True
        scores[f"{name}AFL"] = float(share[region].sum())
        scores[f"{name}IOU"] = float((region & selected).sum() / (region | selected).sum())
    return scores | {"K": float(k)}


def toy_sweep(mode: str, background: float) -> pd.DataFrame:
    """PAFL and SAFL while the secondary object's value grows from 0 to 3 in 11 steps (Figure 16)."""
    rows = [{"value": float(v), **toy_scores(mode, float(v), background)} for v in np.linspace(0, 3, 11)]
    return pd.DataFrame(rows)[["value", "PAFL", "SAFL"]]
