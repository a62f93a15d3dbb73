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
from salrun.metrics.perturbation import curve, flagged, substrate
from salrun.models.classifier import Classifier
from salrun.ranges import AtLeast
from salrun.types import Metric, Scene, Score
from salrun.views import map_flags


@dataclass
class Faithfulness(Metric):
    """F = Pearson(R_i, f(x) - f(x_i)) over a fixed set of pixels i, x_i the image with only pixel i replaced.

    R is the map as given, signed where it is signed. The pixels are drawn once and are the same for every image and
    method, so the model's answers are computed once for all methods. One score per perturbation: the data's mean
    colour, or a random colour per image and pixel. Without variance in R or in the answers F is undefined.
    """

    perturbations: list[Literal["mean", "random_rgb"]] = field(default_factory=lambda: ["mean", "random_rgb"])
    n_pixels: Annotated[int, AtLeast(2)] = 100
    output: Literal["probability", "max_probability", "logit"] = "probability"

    needs: ClassVar[frozenset[str]] = frozenset({"model"})
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    chance: ClassVar[float | None] = 0.0
    source: ClassVar[str] = "Alvarez-Melis and Jaakkola 2018, NeurIPS; Tomsett et al. 2020, AAAI"

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return len(self.perturbations) * (self.n_pixels + 1)

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        relevance = as_plane(plane, "faithfulness").flatten(1)
        pixels = relevance.shape[1]
        if self.n_pixels > pixels:
            raise SalrunError(f"faithfulness: n_pixels must be at most the image's {pixels}, got {self.n_pixels}")
        chosen = scene.rng.permutation(pixels, "faithfulness_pixels", shared=True)[: self.n_pixels]
        flags = map_flags(plane)
        fall = scene.shared(
            f"faithfulness/{self.perturbations}/{self.n_pixels}/{self.output}",
            lambda: {name: self._fall(name, chosen, scene) for name in self.perturbations},
        )
        return {name: flagged(pearson(relevance[:, chosen], fall[name]), flags) for name in self.perturbations}

    def _fall(self, name: str, chosen: Tensor, scene: Scene) -> Tensor:
        """(B, n_pixels) f(x) - f(x_i)."""
        batch, pixels = scene.x.shape[0], scene.x[0, 0].numel()
        rank = torch.full((pixels,), self.n_pixels, device=chosen.device)
        rank[chosen] = torch.arange(self.n_pixels, device=chosen.device)
        # Step 0 replaces nothing, step i + 1 the pixel of rank i.
        until = torch.arange(self.n_pixels + 1, device=chosen.device)
        answers = curve(
            scene.model,
            scene.model.normalise(scene.x),
            substrate(SUBSTRATES[name], scene),
            rank.expand(batch, -1),
            until,
            scene.target,
            since=until - 1,
            output=self.output,
            chunk=scene.chunk,
        )
        return answers[:, :1] - answers[:, 1:]
