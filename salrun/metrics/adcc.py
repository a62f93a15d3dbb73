"""ADCC (Poppi et al. 2021): one number of coherency, complexity and average drop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.common import as_plane, scored
from salrun.metrics.correlation import pearson
from salrun.metrics.masking import AverageDrop, Masking, not_a_mask
from salrun.types import UNDEFINED, Scene, Score

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier


@dataclass
class ADCC(Masking):
    """3 / (1 / coherency + 1 / (1 - complexity) + 1 / (1 - average drop)): a harmonic mean, 0 where one of them is 0.

    m is the map in [0, 1]. coherency: (1 + r) / 2, r Pearson's correlation of m with the map of x * m, by the same
    method and for the same class; complexity: the mean of m; average drop: max(p - o, 0) / p, p = p_c(x), o = p_c(x *
    m). All three come as scores of their own. The authors' code divides the drop by the top class's confidence.
    """

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    turned: ClassVar[frozenset[str]] = frozenset({"complexity", "average_drop"})
    needs: ClassVar[frozenset[str]] = frozenset({"model", "explain"})
    source: ClassVar[str] = "Poppi, Cornia, Baraldi, Cucchiara 2021, CVPR workshop"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        """Explanations per image, each as dear as the method; the pass of x * m is one of its own."""
        return 1.0

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        if scene.explain is None:
            raise SalrunError("adcc explains the masked image: it needs the method, not only its maps")
        wrong = not_a_mask(plane, "adcc")
        point = scene.model.enter(scene.x, self.mask_space) * plane.to(scene.x)
        masked = scene.model.denormalise(point) if self.mask_space == "norm" else point
        again = as_plane(scene.explain(masked).to(plane.device), "adcc").flatten(1)
        m = as_plane(plane, "adcc").flatten(1)
        drop = AverageDrop(mask_space=self.mask_space)(plane, scene)
        parts = {
            "coherency": (1 + pearson(m, again)) / 2,
            "complexity": m.mean(1),
        }
        good = torch.stack([parts["coherency"], 1 - parts["complexity"], 1 - drop.value.to(m.device)], 1)
        harmonic = 3 / (1 / good.clamp(min=0)).sum(1)  # 1 / 0 is infinite, the mean then 0
        named = {"": harmonic, **parts}
        scores = {k: scored(v.masked_fill(wrong, torch.nan), plane, (UNDEFINED, wrong)) for k, v in named.items()}
        return {**scores, "average_drop": drop}
