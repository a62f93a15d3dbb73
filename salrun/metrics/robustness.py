"""How far does the map move when the image moves a little?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.common import as_plane, scored, wide
from salrun.ranges import AtLeast
from salrun.types import UNDEFINED, Metric, Scene, Score

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier


@dataclass
class Sensitivity(Metric):
    """Max-sensitivity and average sensitivity: max (mean) over draws of ||S(x') - S(x)|| / ||S(x)||.

    S(x') is the same method, view and target on a neighbour x' = x + u in the network's input space, u uniform in the
    cube [-radius, radius]^n or in the L2 ball. `denominator`: `map` ||S(x)||, `image` ||x|| (Quantus before 0.4.2),
    `none` 1. Yeh et al., NeurIPS 2019; mean: Bhatt et al., IJCAI 2020. The neighbours depend on the image and the seed
    only, so all methods meet the same ones.

    `fixed_explainer` names a method of the run that makes S(x') for every method: no sensitivity at all, but what comes
    out of `quantus.explain`, whose default is the gradient, and what the numbers of Zhang et al. (ACML 2024) look like.
    """

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    needs: ClassVar[frozenset[str]] = frozenset({"model", "explain"})
    source: ClassVar[str] = "Yeh et al., NeurIPS 2019; Bhatt, Weller, Moura, IJCAI 2020"

    reduce: Literal["max", "mean"] = "max"
    n_draws: Annotated[int, AtLeast(1)] = 10
    radius: Annotated[float, AtLeast(0)] = 0.2
    neighbourhood: Literal["cube", "ball"] = "cube"
    denominator: Literal["map", "image", "none"] = "map"
    fixed_explainer: str | None = None

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        """Explanations per image, each as dear as the method."""
        return float(self.n_draws)

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        here = as_plane(plane, "Sensitivity")
        key = f"sensitivity/{self.n_draws}/{self.radius}/{self.neighbourhood}/{self.fixed_explainer}"
        moved = scene.once(key, plane, lambda: self._distances(here, scene))
        if self.denominator == "map":
            scale = here.flatten(1).norm(dim=1)
        elif self.denominator == "image":
            scale = wide(scene.model.normalise(scene.x)).flatten(1).norm(dim=1)
        else:
            scale = torch.ones_like(moved[:, 0])
        ratio = moved / scale.unsqueeze(1)
        value = ratio.amax(1) if self.reduce == "max" else ratio.mean(1)
        nothing = scale == 0
        return scored(value.masked_fill(nothing, torch.nan), plane, (UNDEFINED, nothing))

    def _distances(self, here: Tensor, scene: Scene) -> Tensor:
        """(B, n_draws): ||S(x') - S(x)||_2."""
        explain = self._explainer(scene)
        point = scene.model.normalise(scene.x)
        distances = []
        for draw in range(self.n_draws):
            neighbour = scene.model.denormalise(point + self._noise(scene, draw).to(point))
            there = as_plane(explain(neighbour), "Sensitivity")
            distances.append((there - here).flatten(1).norm(dim=1))
        return torch.stack(distances, 1)

    def _explainer(self, scene: Scene) -> Callable[[Tensor], Tensor]:
        if self.fixed_explainer is not None:
            if scene.explain_by is None:
                raise SalrunError("Sensitivity: fixed_explainer names a method of a run; here there is none")
            return partial(scene.explain_by, self.fixed_explainer)
        if scene.explain is None:
            raise SalrunError("Sensitivity explains neighbouring images: it needs the method, not only its maps")
        return scene.explain

    def _noise(self, scene: Scene, draw: int) -> Tensor:
        shape = scene.x.shape[1:]
        size = math.prod(shape)
        if self.neighbourhood == "cube":
            return self.radius * (2.0 * scene.rng.uniform("sensitivity", shape, start=draw * size) - 1.0)
        direction = scene.rng.normal("sensitivity/direction", shape, start=draw * size)
        length = self.radius * scene.rng.uniform("sensitivity/length", (1, 1, 1), start=draw) ** (1.0 / size)
        return direction * (length / direction.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
