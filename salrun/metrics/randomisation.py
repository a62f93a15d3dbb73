"""Does the map change when the model or the class does? Similarity of maps between models (Adebayo et al. 2018) and
classes (Sixt et al. 2020), and Yona and Greenfeld's causal quantity."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from skimage.feature import hog
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.common import as_plane, scored, settle, wide
from salrun.metrics.correlation import pearson, spearman
from salrun.ranges import AtLeast
from salrun.types import Metric, Scene, Score
from salrun.views import map_flags, rescale

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier

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

    def host_seconds(self, shape: tuple[int, int, int]) -> float:
        return seconds_of(tuple(self.measures), shape[1:])

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        return similarities(plane, map_of(self.other, scene, "map_similarity").to(plane.device), self.measures)


@dataclass
class SmoothMPRT(MapSimilarity):
    """Smooth MPRT: `map_similarity` of maps that are means over `n_draws` noisy copies of the image, of both models.

    The noise is N(0, s^2) for every element, s = `noise` times the image's range max - min in the network's input
    space; both models meet the same. It takes away the part of the dissimilarity that is the gradients' shattering.
    """

    n_draws: Annotated[int, AtLeast(1)] = 50
    noise: Annotated[float, AtLeast(0)] = 0.1

    needs: ClassVar[frozenset[str]] = frozenset({"other_map", "explain"})
    source: ClassVar[str] = "Hedstroem, Weber, Lapuschkin, Hoehne 2024, arXiv:2401.06465"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        """Explanations per image, each as dear as the method."""
        return 2.0 * self.n_draws

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        as_plane(plane, "smooth_mprt")
        if scene.explain is None or scene.other_map is None:
            raise SalrunError("smooth_mprt explains noisy images by two models: it needs the method, not only its maps")
        point = scene.model.normalise(scene.x)
        spread = self.noise * (point.amax((1, 2, 3), keepdim=True) - point.amin((1, 2, 3), keepdim=True))
        own, other = torch.zeros_like(wide(plane)), torch.zeros_like(wide(plane))
        for draw in range(self.n_draws):
            drawn = scene.rng.normal("smooth_mprt", point.shape[1:], start=draw * math.prod(point.shape[1:]))
            noisy = scene.model.denormalise(point + spread * drawn.to(point))
            own += wide(scene.explain(noisy))
            other += wide(scene.other_map(self.other, noisy))
        scores = similarities(own / self.n_draws, other / self.n_draws, self.measures)
        return {name: settle(score, map_flags(plane)) for name, score in scores.items()}


@dataclass
class EfficientMPRT(Metric):
    """Efficient MPRT: (H(b) - H(a)) / H(a), the relative rise of the map's entropy when the model forgets all.

    a is the map under the model `of`, b under the randomised model `other`; H(m) = -sum_k p_k ln p_k of the shares p_k
    of the map's pixels in `bins` equal bins of [min m, max m]. Undefined where H(a) is 0. No layers, no similarity.
    """

    other: str = "random"
    of: str = "model"  # whose maps are judged: the cell's own model, or one of its others
    bins: Annotated[int, AtLeast(2)] = 100

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    range: ClassVar[tuple[float, float]] = (-1.0, float("inf"))
    chance: ClassVar[float | None] = 0.0
    needs: ClassVar[frozenset[str]] = frozenset({"other_map"})
    source: ClassVar[str] = "Hedstroem, Weber, Lapuschkin, Hoehne 2024, arXiv:2401.06465"

    def reads(self) -> tuple[str, ...]:
        return (self.other,)

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        other = map_of(self.other, scene, "efficient_mprt").to(plane.device)
        before, after = (histogram_entropy(as_plane(p, "efficient_mprt"), self.bins) for p in (plane, other))
        rise = torch.where(before > 0, (after - before) / before, torch.nan)
        return settle(scored(rise, plane), map_flags(other))


def histogram_entropy(maps: Tensor, bins: int) -> Tensor:
    """(B,) entropy in nats of the maps' values (B, H, W) in equal bins of [min, max]; 0 for a constant map."""
    values = rescale(maps).flatten(1)
    index = (values.nan_to_num() * bins).long().clamp(0, bins - 1)
    counts = torch.zeros(len(maps), bins, dtype=maps.dtype, device=maps.device)
    counts = counts.scatter_add(1, index, torch.ones_like(values))
    return torch.special.entr(counts / values.shape[1]).sum(1)


@dataclass
class RandomLogit(Metric):
    """Similarity of the map of the class explained with the map of another class, drawn at random; a score per measure.

    The measures are those of `map_similarity`, on the maps' magnitudes. A map that says why this class and not
    another has low similarity; the other class depends on the image and the seed only.
    """

    measures: list[Literal["spearman", "cosine", "ssim", "hog", "relative_change"]] = field(
        default_factory=lambda: ["ssim", "spearman"]
    )

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
    turned: ClassVar[frozenset[str]] = frozenset({"relative_change"})
    range: ClassVar[tuple[float, float]] = (-1.0, float("inf"))
    needs: ClassVar[frozenset[str]] = frozenset({"model", "explain"})
    source: ClassVar[str] = "Sixt, Granz, Landgraf 2020, ICML"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        """Explanations per image, each as dear as the method."""
        return 1.0

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        if scene.explain is None:
            raise SalrunError("random_logit explains another class: it needs the method, not only its maps")
        classes = scene.model.exact.n_logits(scene.x)
        if classes < 2:
            raise SalrunError("random_logit compares with another class, and the model has one")
        drawn = scene.rng.integer(classes - 1, "random_logit", 1).squeeze(1)
        off = drawn + (drawn >= scene.target)
        return similarities(plane, scene.explain(scene.x, off).to(plane.device), self.measures)


def map_of(name: str, scene: Scene, owner: str) -> Tensor:
    """The plane of the same method under another model."""
    if scene.other_map is None:
        raise SalrunError(f"{owner} needs the maps of a second model '{name}', got none")
    return scene.other_map(name)


def similarities(plane: Tensor, other: Tensor, measures: Iterable[str]) -> dict[str, Score]:
    """The measures of the magnitudes of two maps, by name; either may be at fault."""
    a, b = (as_plane(p, "map_similarity").unsqueeze(1).abs() for p in (plane, other))
    return {name: settle(scored(MEASURES[name](a, b), plane), map_flags(other)) for name in measures}


@cache
def seconds_of(measures: tuple[str, ...], size: tuple[int, int], images: int = 8) -> float:
    """Seconds per image of the measures here, timed on noise."""
    one, other = torch.rand(2, images, 1, *size, dtype=torch.float64)
    begun = time.monotonic()
    similarities(one, other, measures)
    return (time.monotonic() - begun) / images


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
        """Along one axis, then along the other: a fifth of the time of F.avg_pool2d."""
        for axis in (-1, -2):
            places = t.shape[axis] - SSIM_WINDOW + 1
            t = reduce(torch.add, (t.narrow(axis, k, places) for k in range(SSIM_WINDOW)))
        return t / n

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
