"""Faithfulness (Alvarez-Melis and Jaakkola 2018), as Tomsett et al. 2020 evaluate it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.aopc import SUBSTRATES
from salrun.metrics.common import as_plane
from salrun.metrics.correlation import pearson
from salrun.metrics.perturbation import answer, curve, flagged, substrate
from salrun.models.classifier import Classifier
from salrun.ranges import AtLeast
from salrun.types import Metric, Scene, Score
from salrun.views import map_flags


@dataclass
class Faithfulness(Metric):
    """F = Pearson(R_i, f(x) - f(x_i)) over a fixed set of pixels i, x_i the image with only pixel i replaced.

    R is the map as given, signed where it is signed. The pixels are drawn once and are the same for every image and
    method, so the model's answers are computed once for all methods. One score per perturbation: the data's mean
    colour, a random colour per image and pixel, black, or the blurred image. Without variance in R or in the answers F
    is undefined.
    """

    perturbations: list[Literal["mean", "random_rgb", "black", "blur"]] = field(
        default_factory=lambda: ["mean", "random_rgb"]
    )
    n_pixels: Annotated[int, AtLeast(2)] = 100
    output: Literal["probability", "max_probability", "logit"] = "probability"

    needs: ClassVar[frozenset[str]] = frozenset({"model"})
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    chance: ClassVar[float | None] = 0.0
    source: ClassVar[str] = "Alvarez-Melis and Jaakkola 2018, NeurIPS; Tomsett et al. 2020, AAAI"

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return len(self.perturbations) * self.n_pixels + 1

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        relevance = as_plane(plane, "faithfulness").flatten(1)
        pixels = relevance.shape[1]
        if self.n_pixels > pixels:
            raise SalrunError(f"faithfulness: n_pixels must be at most the image's {pixels}, got {self.n_pixels}")
        chosen = scene.rng.permutation(pixels, "faithfulness_pixels", shared=True)[: self.n_pixels]
        flags = map_flags(plane)
        fall = scene.shared(
            f"faithfulness/{self.perturbations}/{self.n_pixels}/{self.output}", lambda: self._fall(chosen, scene)
        )
        return {name: flagged(pearson(relevance[:, chosen], fall[name]), flags) for name in self.perturbations}

    def _fall(self, chosen: Tensor, scene: Scene) -> dict[str, Tensor]:
        """(B, n_pixels) f(x) - f(x_i), by perturbation."""
        batch, pixels = scene.x.shape[0], scene.x[0, 0].numel()
        place = torch.arange(self.n_pixels, device=chosen.device)
        rank = torch.full((pixels,), self.n_pixels, device=chosen.device)
        rank[chosen] = place
        rank, x = rank.expand(batch, -1), scene.model.normalise(scene.x)
        whole = answer("image", x, scene, self.output).unsqueeze(1)

        def answers(name: str) -> Tensor:
            finish = substrate(SUBSTRATES[name], scene)
            return curve(
                scene.model, x, finish, rank, place + 1, scene.target, place, output=self.output, chunk=scene.chunk
            )

        return {name: whole - answers(name) for name in self.perturbations}
