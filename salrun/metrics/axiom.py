"""Axioms a raw attribution may satisfy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.metrics.common import scored, wide
from salrun.metrics.masking import image_logits
from salrun.models.classifier import pick
from salrun.ranges import AtLeast
from salrun.types import Metric, Scene, Score

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier


@dataclass
class Completeness(Metric):
    """Completeness: sum of all attributions = y_c(x) - y_c(baseline), on the raw attribution and the logit.

    `residual` = |sum a - dy|, `relative` = residual / max(|dy|, 1e-6), `complete` = 1 where relative <= tolerance.
    The baseline is 0 in the network's input space (`zeros`) or the black image (`black`). Normalised maps cannot pass.
    """

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
    turned: ClassVar[frozenset[str]] = frozenset({"complete"})
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    needs: ClassVar[frozenset[str]] = frozenset({"raw", "model"})
    source: ClassVar[str] = "Sundararajan, Taly, Yan, ICML 2017"

    baseline: Literal["zeros", "black"] = "zeros"
    tolerance: Annotated[float, AtLeast(0)] = 0.05

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 1.0

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        here, there = (pick(logits, scene.target) for logits in (image_logits(scene), self._reference(scene)))
        difference = wide(here) - wide(there)
        residual = (wide(plane).flatten(1).sum(1) - difference).abs()
        relative = residual / difference.abs().clamp(min=1e-6)
        complete = (relative <= self.tolerance).double().masked_fill(relative.isnan(), torch.nan)
        named = {"residual": residual, "relative": relative, "complete": complete}
        return {name: scored(value, plane) for name, value in named.items()}

    def _reference(self, scene: Scene) -> Tensor:
        """Logits of the baseline, the same for every image."""
        with torch.no_grad():
            nothing = torch.zeros_like(scene.x[:1])
            logits = scene.model.head(nothing, "norm" if self.baseline == "zeros" else "raw")
        return logits.expand(len(scene.x), -1)
