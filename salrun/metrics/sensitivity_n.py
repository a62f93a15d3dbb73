"""Sensitivity-n (Ancona et al. 2018): does the map's sum over a set of pixels foretell the loss of them?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.common import as_plane
from salrun.metrics.correlation import pearson
from salrun.metrics.perturbation import flagged
from salrun.metrics.single_deletion import Removal
from salrun.models.classifier import Classifier
from salrun.ranges import Above, AtLeast, AtMost
from salrun.types import Scene, Score
from salrun.views import map_flags


@dataclass
class SensitivityN(Removal):
    """Pearson over random sets S of n pixels of sum_{i in S} R_i and f(x) - f(x without S); the mean over n.

    R is the map, signed; f the class's logit; n a fraction of the pixels, and the curve has the correlation for each.
    The sets are drawn once and are the same for all images and methods, those of one draw nested in each other, so the
    model's answers are computed once for all methods. A set of removed pixels takes the data's mean colour.
    """

    fractions: list[Annotated[float, Above(0), AtMost(1)]] = field(
        default_factory=lambda: [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8]
    )
    n_draws: Annotated[int, AtLeast(2)] = 100

    source: ClassVar[str] = "Ancona, Ceolini, Oeztireli, Gross 2018, ICLR"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fractions:
            raise SalrunError("sensitivity_n: fractions must name at least one, got none")

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return self.n_draws * len(self.fractions) + 1

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        relevance = as_plane(plane, "sensitivity_n").flatten(1)
        pixels = relevance.shape[1]
        counts = torch.tensor([max(1, round(f * pixels)) for f in self.fractions], device=plane.device)
        orders = [scene.rng.permutation(pixels, f"sensitivity_n/{i}", shared=True) for i in range(self.n_draws)]
        place = torch.arange(pixels, device=plane.device)
        ranks = (torch.empty_like(place).scatter_(0, order, place).expand(len(plane), -1) for order in orders)
        fall = self.shared_falls(f"sensitivity_n/{self.fractions}/{self.n_draws}", scene, ranks, counts)
        last = counts.to(relevance.device) - 1
        sums = [relevance[:, order.to(relevance.device)].cumsum(1)[:, last] for order in orders]
        total = torch.stack(sums, 2).to(fall.device)
        correlation = pearson(total.flatten(0, 1), fall.flatten(0, 1)).view(total.shape[:2])
        at = torch.tensor(self.fractions, dtype=correlation.dtype, device=correlation.device)
        return flagged(correlation.mean(1), map_flags(plane), correlation, at)
