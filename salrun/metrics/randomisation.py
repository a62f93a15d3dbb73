"""Does the map change when the model does? Similarity of maps between models (Adebayo et al. 2018), and Yona and
Greenfeld's causal quantity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from skimage.feature import hog
from torch import Tensor
from torch.nn import functional as F

from salrun.errors import SalrunError
from salrun.metrics.common import as_plane, scored, settle, wide
from salrun.metrics.correlation import pearson, spearman
from salrun.types import Metric, Scene, Score
from salrun.views import map_flags

SSIM_WINDOW = 7
HOG_CELL, HOG_BLOCK = 8, 3


@dataclass
class MapSimilarity(Metric):
    """Similarity of a = |map| under the model `of` and b = |map| under the model `other`; a score per measure.

    spearman (average ranks), cosine, ssim (scikit-image's defaults: 7 x 7 window, sample covariance, data range 1, each
    map divided by its maximum), hog (Pearson of scikit-image's histograms of oriented gradients of the same maps),
    relative_change ||a - b|| / ||a|| (the maps as they are). A faithful method gives low similarity and high change
    when `other` is a randomised model.
    """

    other: str = "random"
    of: str = "model"  # whose maps are judged: the cell's own model, or one of its others
    measures: list[Literal["spearman", "cosine", "ssim", "hog", "relative_change"]] = field(
        default_factory=lambda: ["spearman", "cosine", "ssim", "hog", "relative_change"]
    )

    direction: ClassVar[Literal["higher", "lower", "none"]] = "none"
    needs: ClassVar[frozenset[str]] = frozenset({"other_map"})
    source: ClassVar[str] = "Adebayo et al. 2018, NeurIPS; Yona and Greenfeld 2021"
    on_host: ClassVar[str] = "histograms of oriented gradients (scikit-image)"

    def reads(self) -> tuple[str, ...]:
        return (self.other,)

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        if scene.other_map is None:
            raise SalrunError(f"map_similarity needs the maps of a second model '{self.other}', got none")
        other = scene.other_map(self.other).to(plane.device)
        a, b = (as_plane(p, "map_similarity").unsqueeze(1).abs() for p in (plane, other))
        # Either map may be at fault.
        return {name: settle(scored(MEASURES[name](a, b), plane), map_flags(other)) for name in self.measures}


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """a.b / (|a| |b|); NaN where a map is all zero."""
    a, b = a.flatten(1), b.flatten(1)
    a = a / torch.linalg.vector_norm(a, dim=1, keepdim=True)
    b = b / torch.linalg.vector_norm(b, dim=1, keepdim=True)
    return (a * b).sum(1)


def relative_change(a: Tensor, b: Tensor) -> Tensor:
    """||a - b|| / ||a||; NaN where a is all zero."""
    norm = torch.linalg.vector_norm(a.flatten(1), dim=1)
    change = torch.linalg.vector_norm((a - b).flatten(1), dim=1)
    return torch.where(norm > 0, change / norm, torch.nan)


def unit(a: Tensor) -> Tensor:
    """Divided by its maximum; NaN where that is 0."""
    return a / a.amax((1, 2, 3), keepdim=True)


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Mean structural similarity (Wang et al. 2004) over the windows that lie inside the image."""
    if min(a.shape[-2:]) < SSIM_WINDOW:
        raise SalrunError(f"ssim needs maps of at least {SSIM_WINDOW} pixels a side, got {tuple(a.shape[-2:])}")
    a, b = unit(a), unit(b)
    n = SSIM_WINDOW**2

    def mean(t: Tensor) -> Tensor:
        return F.avg_pool2d(t, SSIM_WINDOW, stride=1)

    mean_a, mean_b = mean(a), mean(b)
    var_a = (mean(a * a) - mean_a**2) * n / (n - 1)
    var_b = (mean(b * b) - mean_b**2) * n / (n - 1)
    cov = (mean(a * b) - mean_a * mean_b) * n / (n - 1)
    c1, c2 = 0.01**2, 0.03**2
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    structure = (2 * cov + c2) / (var_a + var_b + c2)
    return (luminance * structure).mean((1, 2, 3))


def hog_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson of the two maps' histograms of oriented gradients. scikit-image, image by image, on the CPU."""
    if min(a.shape[-2:]) < HOG_CELL * HOG_BLOCK:
        raise SalrunError(f"hog needs maps of at least {HOG_CELL * HOG_BLOCK} pixels a side, got {tuple(a.shape[-2:])}")
    return pearson(_hog(unit(a)), _hog(unit(b))).to(a.device)


def _hog(a: Tensor) -> Tensor:
    cell, block = (HOG_CELL, HOG_CELL), (HOG_BLOCK, HOG_BLOCK)
    planes = a.cpu().numpy()[:, 0]
    return torch.from_numpy(np.stack([hog(p, pixels_per_cell=cell, cells_per_block=block) for p in planes]))


MEASURES = {
    "spearman": lambda a, b: spearman(a.flatten(1), b.flatten(1)),
    "cosine": cosine,
    "ssim": ssim,
    "hog": hog_correlation,
    "relative_change": relative_change,
}


def causal_quantity(maps: Tensor, untrained: Tensor, probability: Tensor | None = None) -> Tensor:
    """Lambda(x) = sum_t (S(x; M_t) - S(x; M')) Pr(T = t | X = x), a map like `untrained` (Yona and Greenfeld 2021).

    `maps`: (T, B, ..) of the models trained on each task t; `untrained`: (B, ..) of the untrained model M';
    `probability`: (T,) or (T, B), uniform over the tasks if absent. A method passes where Lambda is not zero.
    """
    tasks, batch = maps.shape[:2]
    if probability is None:
        probability = torch.full((tasks,), 1.0 / tasks, dtype=torch.float64, device=maps.device)
    if probability.shape not in ((tasks,), (tasks, batch)):
        raise SalrunError(f"probability must be ({tasks},) or ({tasks}, {batch}), got {tuple(probability.shape)}")
    weight = wide(probability).reshape(tasks, -1, *[1] * (maps.ndim - 2))
    return (wide(maps - untrained) * weight).sum(0)
