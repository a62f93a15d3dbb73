"""Monotonicity: three different things that share the name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.common import wide
from salrun.metrics.correlation import pearson, spearman
from salrun.metrics.perturbation import answer, curve, flagged, shared_rank, substrate
from salrun.models.classifier import Classifier
from salrun.ranges import AtLeast
from salrun.types import Metric, Scene, Score
from salrun.views import map_flags


@dataclass
class Monotonicity(Metric):
    """Pixels in order of increasing saliency, in `groups` groups of (nearly) equal size.

    d: Pearson over i = 1..K of s_i and f(x * M_i), M_i the map m restricted to its first i groups and s_i its sum (or,
    with `scalar: group_mean`, the mean of group i); the formula printed by Zhang et al. 2024. Masked in `mask_space`.
    arya: the original pixels are put on a baseline, groups cumulating; score `all` is 1 where f never falls from
    one group to the next, `fraction` the share of steps where it does not fall. The baseline's own f is no part of it.
    nguyen: each group alone is replaced by random values; Spearman over groups of sum |m| and E (f(x') - f(x))^2. The
    factor 1 / f(x)^2 of the original is the same for all groups of an image and cannot change ranks. Order by |m|.

    `baseline` none: black for arya, random raw colours for nguyen (`uniform`: U(0, 1) in norm space).
    """

    definition: Literal["d", "arya", "nguyen"] = "d"
    groups: Annotated[int, AtLeast(2)] = 28
    scalar: Literal["cumulative_sum", "group_mean"] = "cumulative_sum"
    mask_space: Literal["raw", "norm"] = "raw"
    baseline: Literal["blur", "grey", "black", "random_rgb", "uniform"] | None = None
    n_samples: Annotated[int, AtLeast(1)] = 100
    output: Literal["probability", "max_probability", "logit"] = "probability"
    ties: Literal["random", "raster", "raster_reversed"] = "random"

    needs: ClassVar[frozenset[str]] = frozenset({"model"})
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    source: ClassVar[str] = "Zhang et al. 2024, ACML; Arya et al. 2019, arXiv:1909.03012; Nguyen and Martinez 2020"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return {"d": self.groups, "arya": self.groups - 1, "nguyen": self.groups * self._samples}[self.definition]

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 0 if self.definition == "d" else 1

    def __call__(self, plane: Tensor, scene: Scene) -> Score | dict[str, Score]:
        plane = plane.abs() if self.definition == "nguyen" else plane
        rank = shared_rank(plane, scene, self.ties, True, "monotonicity")
        pixels = rank.shape[1]
        if self.groups > pixels:
            raise SalrunError(f"monotonicity: groups must be at most the image's {pixels} pixels, got {self.groups}")
        edge = torch.arange(self.groups + 1, device="cpu") * pixels // self.groups
        flags = map_flags(plane)
        if self.definition == "d":
            return self._correlation_with_mass(plane, rank, edge, flags, scene)
        if self.definition == "arya":
            return self._never_falling(rank, edge, flags, scene)
        return self._correlation_with_variance(plane, rank, edge, flags, scene)

    @property
    def _samples(self) -> int:
        return self.n_samples if self.baseline in (None, "random_rgb", "uniform") else 1

    def _correlation_with_mass(self, plane: Tensor, rank: Tensor, edge: Tensor, flags: Tensor, scene: Scene) -> Score:
        model = scene.model
        image = model.enter(scene.x, self.mask_space)
        # x * M_i is x * m where the pixel is in the first i groups and 0 elsewhere.
        hidden, seen = torch.zeros_like(image), image * plane.to(image.dtype)
        if self.mask_space == "raw":
            hidden, seen = model.normalise(hidden), model.normalise(seen)
        f = self._curve(hidden, seen, rank, edge[1:], None, scene)
        mass = group_sums(plane, rank, edge)
        scalar = mass.cumsum(1) if self.scalar == "cumulative_sum" else mass / edge.diff().to(mass.device)
        return flagged(pearson(scalar, f), flags, f, fraction(edge))

    def _never_falling(self, rank: Tensor, edge: Tensor, flags: Tensor, scene: Scene) -> dict[str, Score]:
        start, x = substrate(self.baseline or "black", scene), scene.model.normalise(scene.x)
        f = self._curve(start, x, rank, edge[1:-1], None, scene)
        f = torch.cat([f, answer("image", x, scene, self.output).unsqueeze(1)], 1)
        change = f.diff(dim=1)
        risen = torch.where(change.isnan(), torch.nan, wide(change >= 0))
        return {
            "all": flagged(risen.amin(1), flags, f, fraction(edge)),
            "fraction": flagged(risen.mean(1), flags),
        }

    def _correlation_with_variance(
        self, plane: Tensor, rank: Tensor, edge: Tensor, flags: Tensor, scene: Scene
    ) -> Score:
        x = scene.model.normalise(scene.x)
        f = answer("image", x, scene, self.output).unsqueeze(1)
        change = torch.zeros((), dtype=f.dtype, device=f.device)
        for draw in range(self._samples):
            other = substrate(self.baseline or "random_rgb", scene, draw=draw)
            change = change + (self._curve(x, other, rank, edge[1:], edge[:-1], scene) - f) ** 2
        variance = change / self._samples
        return flagged(spearman(group_sums(plane, rank, edge), variance), flags, variance, fraction(edge))

    def _curve(
        self, start: Tensor, finish: Tensor, rank: Tensor, until: Tensor, since: Tensor | None, scene: Scene
    ) -> Tensor:
        until, since = until.to(rank.device), None if since is None else since.to(rank.device)
        return curve(scene.model, start, finish, rank, until, scene.target, since, self.output, scene.chunk)


def group_sums(plane: Tensor, rank: Tensor, edge: Tensor) -> Tensor:
    """(B, K) float64: the map's sum over the pixels ranked edge[k] <= rank < edge[k + 1]."""
    pixels = wide(plane.flatten(1))
    ordered = torch.empty_like(pixels).scatter_(1, rank.long().to(pixels.device), pixels)
    return torch.stack([group.sum(1) for group in ordered.tensor_split(edge[1:-1], dim=1)], 1)


def fraction(edge: Tensor) -> Tensor:
    """(K,) the share of pixels in the first 1..K groups."""
    return wide(edge[1:]) / edge[-1]
