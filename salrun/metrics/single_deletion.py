"""Every part of the image removed alone: does the map know which loss matters most? SaCo, the single deletion score."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.methods.superpixels import grid
from salrun.metrics.common import as_plane
from salrun.metrics.correlation import spearman
from salrun.metrics.monotonicity import group_sums
from salrun.metrics.perturbation import answer, curve, flagged, shared_rank, substrate
from salrun.models.classifier import Classifier
from salrun.ranges import AtLeast
from salrun.types import Metric, Scene, Score
from salrun.views import map_flags


@dataclass
class Removal(Metric):
    """Whether the map foretells what the loss of pixels does to the model's answer f."""

    substrate: Literal["blur", "grey", "black", "random_rgb", "image_mean"] = "grey"
    output: Literal["probability", "logit"] = "logit"

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    needs: ClassVar[frozenset[str]] = frozenset({"model"})
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    chance: ClassVar[float | None] = 0.0

    def falls(self, scene: Scene, ranks: Iterable[Tensor], until: Tensor, since: Tensor | None = None) -> Tensor:
        """(B, K, N) float64: f(x) - f(x without the pixels with since[k] <= rank < until[k]), for each of N ranks."""
        x, finish = scene.model.normalise(scene.x), substrate(self.substrate, scene)
        whole = answer("image", x, scene, self.output).unsqueeze(1)
        settings = scene.target, since, self.output, scene.chunk
        return torch.stack([whole - curve(scene.model, x, finish, rank, until, *settings) for rank in ranks], 2)

    def shared_falls(
        self, name: str, scene: Scene, ranks: Iterable[Tensor], until: Tensor, since: Tensor | None = None
    ) -> Tensor:
        """`falls` where no map has a part in the ranks (`name` says which): once for all methods."""
        settings = f"{self.substrate}/{self.output}"
        return scene.shared(f"{name}/{settings}", lambda: {"fall": self.falls(scene, ranks, until, since)})["fall"]


@dataclass
class SaCo(Removal):
    """Salience-guided faithfulness coefficient: sum over pairs i < j of +-(s_i - s_j) / sum of |s_i - s_j|.

    The pixels in order of falling saliency make K groups of equal size; s_i is the sum of the map over group i, d_i =
    f(x) - f(x without group i). A pair counts + where d_i >= d_j. A removed pixel takes the image's own mean colour.
    1: every group matters more than all that the map puts below it; -1: the reverse.
    """

    groups: Annotated[int, AtLeast(2)] = 10
    substrate: Literal["blur", "grey", "black", "random_rgb", "image_mean"] = "image_mean"
    output: Literal["probability", "logit"] = "probability"
    ties: Literal["random", "raster", "raster_reversed"] = "random"

    source: ClassVar[str] = "Wu, Kang, Tang, Hong, Yan 2024, CVPR"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return self.groups

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 1

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        rank = shared_rank(plane, scene, self.ties, False, "saco")
        pixels = rank.shape[1]
        if self.groups > pixels:
            raise SalrunError(f"saco: groups must be at most the image's {pixels} pixels, got {self.groups}")
        edge = torch.arange(self.groups + 1, device="cpu") * pixels // self.groups
        cut = edge.to(rank.device)
        d = self.falls(scene, [rank], cut[1:], cut[:-1]).squeeze(2)
        s = group_sums(plane, rank, edge).to(d.device)
        first, second = torch.triu_indices(self.groups, self.groups, 1, device=d.device)
        weight = s[:, first] - s[:, second]
        agreed = torch.where(d[:, first] >= d[:, second], weight, -weight).sum(1) / weight.abs().sum(1)
        return flagged(torch.where(d.isnan().any(1), torch.nan, agreed), map_flags(plane))


@dataclass
class IDSDS(Removal):
    """Single deletion score: Spearman over the cells of a grid of the map's sum and f(x) - f(x without the cell).

    f is the class's logit, the removed cell the data's mean colour. The answers serve all methods. In-domain (IDSDS) it
    is for a model that was trained with single cells removed, as the paper's are; of any other it is the score of a
    deletion that the model has never seen. Where the grid does not divide the image, cells differ by a pixel.
    """

    grid: Annotated[int, AtLeast(2)] = 4

    source: ClassVar[str] = "Hesse, Schaub-Meyer, Roth 2024, NeurIPS Datasets and Benchmarks"

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return self.grid**2 + 1

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        relevance = as_plane(plane, "idsds").flatten(1)
        height, width = plane.shape[2:]
        if self.grid > min(height, width):
            raise SalrunError(f"idsds: grid must be at most the image's {min(height, width)} pixels, got {self.grid}")
        cell = grid(plane, self.grid)
        number = torch.arange(self.grid**2, device=plane.device)
        d = self.shared_falls(f"idsds/{self.grid}", scene, [cell], number + 1, number).squeeze(2)
        total = torch.zeros_like(d).scatter_add(1, cell.to(d.device), relevance.to(d.device))
        return flagged(spearman(total, d), map_flags(plane))
