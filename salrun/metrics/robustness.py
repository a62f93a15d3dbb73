"""How far does the map move when the image moves a little?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.common import as_plane, scored, wide
from salrun.ranges import Above, AtLeast
from salrun.types import UNDEFINED, Metric, Scene, Score

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier


@dataclass
class Neighbourhood(Metric):
    """Random neighbours x' = x + u of the image in the network's input space, explained by the same method and target.

    u is uniform in the cube [-radius, radius]^n or in the L2 ball, or N(0, radius^2) for every element (`gaussian`).
    The neighbours depend on the image and the seed only, so all methods meet the same ones.
    """

    n_draws: Annotated[int, AtLeast(1)] = 10
    radius: Annotated[float, AtLeast(0)] = 0.2
    neighbourhood: Literal["cube", "ball", "gaussian"] = "cube"

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    needs: ClassVar[frozenset[str]] = frozenset({"model", "explain"})

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        """Explanations per image, each as dear as the method."""
        return float(self.n_draws)

    def drawn(self) -> str:
        """A name for the neighbours."""
        return f"{self.n_draws}/{self.radius}/{self.neighbourhood}"

    def maps(self, scene: Scene, by: str | None = None) -> Iterator[Tensor]:
        """S(x') of each neighbour, (B, H, W) float64; `by` another method of the run."""
        name = type(self).__name__
        explain = scene.explain
        if by is not None:
            if scene.explain_by is None:
                raise SalrunError(f"{name}: fixed_explainer names a method of a run; here there is none")
            explain = partial(scene.explain_by, by)
        if explain is None:
            raise SalrunError(f"{name} explains neighbouring images: it needs the method, not only its maps")
        point = scene.model.normalise(scene.x)
        for draw in range(self.n_draws):
            yield as_plane(explain(scene.model.denormalise(point + self.noise(scene, draw).to(point))), name)

    def distances(self, plane: Tensor, scene: Scene, by: str | None = None) -> Tensor:
        """(B, n_draws): ||S(x') - S(x)||_2, once for all that ask for the same neighbours of the same plane."""
        here = as_plane(plane, type(self).__name__)

        def compute() -> Tensor:
            return torch.stack([(there - here).flatten(1).norm(dim=1) for there in self.maps(scene, by)], 1)

        return scene.once(f"sensitivity/{self.drawn()}/{by}", plane, compute)

    def noise(self, scene: Scene, draw: int) -> Tensor:
        """u, (B, C, H, W)."""
        shape = scene.x.shape[1:]
        size = math.prod(shape)
        if self.neighbourhood == "cube":
            return self.radius * (2.0 * scene.rng.uniform("sensitivity", shape, start=draw * size) - 1.0)
        direction = scene.rng.normal("sensitivity/direction", shape, start=draw * size)
        if self.neighbourhood == "gaussian":
            return self.radius * direction
        length = self.radius * scene.rng.uniform("sensitivity/length", (1, 1, 1), start=draw) ** (1.0 / size)
        return direction * (length / direction.flatten(1).norm(dim=1).view(-1, 1, 1, 1))


@dataclass
class Sensitivity(Neighbourhood):
    """Max-sensitivity and average sensitivity: max (mean) over draws of ||S(x') - S(x)|| / ||S(x)||.

    `denominator`: `map` ||S(x)||, `image` ||x|| (Quantus before 0.4.2), `none` 1. Yeh et al., NeurIPS 2019; mean: Bhatt
    et al., IJCAI 2020.

    `fixed_explainer` names a method of the run that makes S(x') for every method: no sensitivity at all, but what comes
    out of `quantus.explain`, whose default is the gradient, and what the numbers of Zhang et al. (ACML 2024) look like.
    """

    source: ClassVar[str] = "Yeh et al., NeurIPS 2019; Bhatt, Weller, Moura, IJCAI 2020"

    reduce: Literal["max", "mean"] = "max"
    denominator: Literal["map", "image", "none"] = "map"
    fixed_explainer: str | None = None

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        moved = self.distances(plane, scene, self.fixed_explainer)
        if self.denominator == "map":
            scale = as_plane(plane, "Sensitivity").flatten(1).norm(dim=1)
        elif self.denominator == "image":
            scale = wide(scene.model.normalise(scene.x)).flatten(1).norm(dim=1)
        else:
            scale = torch.ones_like(moved[:, 0])
        ratio = moved / scale.unsqueeze(1)
        value = ratio.amax(1) if self.reduce == "max" else ratio.mean(1)
        nothing = scale == 0
        return scored(value.masked_fill(nothing, torch.nan), plane, (UNDEFINED, nothing))


@dataclass
class LocalLipschitz(Neighbourhood):
    """Local Lipschitz estimate: max over draws of ||S(x') - S(x)||_2 / ||x' - x||_2, in the network's input space."""

    radius: Annotated[float, Above(0)] = 0.2

    source: ClassVar[str] = "Alvarez-Melis and Jaakkola 2018, ICML workshop, arXiv:1806.08049"

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        moved = self.distances(plane, scene)
        steps = [wide(self.noise(scene, draw)).flatten(1).norm(dim=1) for draw in range(self.n_draws)]
        return scored((moved / torch.stack(steps, 1)).amax(1), plane)
