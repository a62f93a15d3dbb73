"""What the paper shows of single maps: kept maps of runs (Figures 9, 13, 15, 19-21, 25, 31) and toy maps (14, 16).

Kept maps are planes: the channel sum over its largest magnitude. A signed one becomes the picture that is scored by the
colour map, 7x7 blur and min-max; an unsigned one by blur and min-max alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from omegaconf import OmegaConf
from safetensors.numpy import load_file

from salrun.metrics.common import box_blur
from salrun.metrics.localisation import focus, histogram_cut, top_pixels
from salrun.papers.claims import estimate_and_draws
from salrun.papers.smerf.tables import DRAWS, SETTINGS, names
from salrun.stats.bootstrap import mean_draws
from salrun.tables import members
from salrun.views import rescale, view

BLUR = 7
SHOWN = ("12", "11", "8", "9")  # the buckets of Figures 9 and 25, in their order
IDENTIFIABLE = ("integrated_gradients", "gradient", "lrp_z", "deeplift_reveal_cancel")
KS = np.linspace(100, 400, 8).round().astype(int)  # Figure 15


@dataclass(frozen=True)
class Kept:
    """The kept maps of one run."""

    setting: str
    condition: str
    folder: Path

    @cached_property
    def index(self) -> dict[str, Any]:
        return json.loads((self.folder / "index.json").read_text())

    @cached_property
    def images(self) -> np.ndarray:
        return load_file(self.folder / "images.safetensors")["x"]

    def has(self, method: str) -> bool:
        return (self.folder / f"{method}.safetensors").is_file()

    def rows(self, buckets: tuple[str, ...]) -> np.ndarray:
        return np.flatnonzero(np.isin(np.array(self.index["group"], dtype=str), buckets))

    def planes(self, method: str, rows: np.ndarray) -> torch.Tensor:
        """(B, H, W): the picture that is scored, before blur."""
        raw = load_file(self.folder / f"{method}.safetensors")["plane"][rows].astype(np.float64)
        signed = {m["name"]: m["signed"] for m in self.index["methods"]}[method]
        planes = torch.from_numpy(raw).unsqueeze(1)
        return (view("seismic")(planes) if signed else planes.abs()).squeeze(1)

    def pictures(self, method: str, rows: np.ndarray) -> np.ndarray:
        """(B, H, W) in [0, 1]: after blur and min-max."""
        return rescale(box_blur(self.planes(method, rows), BLUR)).numpy()

    def boxes(self, row: int) -> dict[str, list[int]]:
        """[row0, col0, row1, col1) of every object in an image."""
        return {name: boxes[row] for name, boxes in self.index["masks"].items() if boxes[row] is not None}


def kept_maps(run: Path) -> list[Kept]:
    """The kept maps of a run, or of the runs it was collected from, in the paper's order."""
    found = {}
    for source, _ in members(run):
        if (source / "maps" / "index.json").is_file() and (source / "config.yaml").is_file():
            config = OmegaConf.load(source / "config.yaml")
            training = {"none": "random"}.get(config.model.training, config.model.training)
            model = f"{config.model.name}_{training}"
            setting, condition, _ = names(
                config.name, f"textbox_{OmegaConf.select(config, 'dataset.background')}", model
            )
            if setting:
                found[condition, setting] = Kept(setting, condition, source / "maps")
    return sorted(found.values(), key=lambda k: (k.condition, SETTINGS.index(k.setting)))


def plain_maps(run: Path) -> list[Kept]:
    return [k for k in kept_maps(run) if k.condition == "plain"]


# -- evidence for claims -----------------------------------------------------------------------------------------------


def evidence(run: Path, draws: int = DRAWS) -> dict[str, pd.DataFrame]:
    """`visible` (setting, method): share of images with every object lit; `iou_spread`: of IOU over K, CR1 bucket 9."""
    found = {}
    visible = [table for k in plain_maps(run) if (table := visible_table(k, draws)) is not None]
    if visible:
        found["visible"] = pd.concat(visible, axis=1)
    cr1 = [k for k in plain_maps(run) if k.setting == "complex_cr1" and k.has("integrated_gradients")]
    if cr1 and len(rows := cr1[0].rows(("9",))):
        curves = iou_by_k(cr1[0], rows)
        spread = (curves.max(axis=1) - curves.min(axis=1))[:, None]
        sampled = mean_draws(spread, np.random.default_rng(0), draws)
        found["iou_spread"] = estimate_and_draws([float(spread.mean())], sampled, pd.Index(["integrated_gradients"]))
    return found


def visible_table(kept: Kept, draws: int) -> pd.DataFrame | None:
    """Share of images (buckets 8, 9, 11, 12) in which the picture's mean on every object exceeds its background's."""
    rows = kept.rows(SHOWN)
    methods = [m for m in IDENTIFIABLE if kept.has(m)]
    if not len(rows) or not methods:
        return None
    lit = np.stack([_every_object_lit(kept, m, rows) for m in methods], axis=1).astype(np.float64)
    sampled = mean_draws(lit, np.random.default_rng(SETTINGS.index(kept.setting)), draws)
    columns = pd.MultiIndex.from_product([[kept.setting], methods], names=["setting", "method"])
    return estimate_and_draws(lit.mean(axis=0).tolist(), sampled, columns)


def _every_object_lit(kept: Kept, method: str, rows: np.ndarray) -> np.ndarray:
    lit = []
    for picture, row in zip(kept.pictures(method, rows), rows, strict=True):
        boxes = [np.s_[r0:r1, c0:c1] for r0, c0, r1, c1 in kept.boxes(row).values()]
        outside = np.ones(picture.shape, dtype=bool)
        for box in boxes:
            outside[box] = False
        lit.append(all(picture[box].mean() > picture[outside].mean() for box in boxes))
    return np.array(lit)


def iou_by_k(kept: Kept, rows: np.ndarray, method: str = "integrated_gradients") -> np.ndarray:
    """(images, K): IOU of the letter's box and the map's largest values, chosen by the public code's histogram rule."""
    blurred = box_blur(kept.planes(method, rows), BLUR)
    text = torch.zeros_like(blurred, dtype=torch.bool)
    for mask, row in zip(text, rows, strict=True):
        r0, c0, r1, c1 = kept.boxes(row)["text"]
        mask[r0:r1, c0:c1] = True
    selected = [histogram_cut(blurred, torch.full((len(rows),), int(k))) for k in KS]
    scores = [(text & m).sum((1, 2)) / (text | m).sum((1, 2)) for m in selected]
    return torch.stack(scores, dim=1).double().numpy()


# -- toy maps ----------------------------------------------------------------------------------------------------------

PRIMARY, SECONDARY = np.s_[22:41, 8:21], np.s_[27:37, 42:52]  # a letter's box of 247 pixels, a Box1 of 100


def toy_map(secondary: float = 0.8, background: float = 0.001) -> np.ndarray:
    """Value 1 on the primary object, `secondary` on the other."""
    plane = np.full((64, 64), background)
    plane[PRIMARY], plane[SECONDARY] = 1.0, secondary
    return plane


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
