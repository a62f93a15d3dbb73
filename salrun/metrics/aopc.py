"""Area over the perturbation curve (Samek et al. 2017), as Tomsett et al. 2020 evaluate it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.perturbation import curve, flagged, pixel_rank, substrate
from salrun.models.classifier import Classifier
from salrun.ranges import AtLeast
from salrun.types import OK, Metric, Scene, Score
from salrun.views import map_flags

SUBSTRATES: dict[str, Literal["grey", "random_rgb"]] = {"mean": "grey", "random_rgb": "random_rgb"}


@dataclass
class AOPC(Metric):
    """AOPC(L) = 1/(L+1) sum_{k=0..L} [f(x^(0)) - f(x^(k))], x^(k) the image with its first k pixels replaced.

    f is the softmax probability of the class explained, fixed over k (`output: max_probability` takes the top class
    of each step instead). A replaced pixel takes the data's mean colour, or a random one that is the same for all
    methods and orders. One pass gives every L: score `<perturbation>_L<L>`, and the curve f(x^(k)), k = 0..steps,
    comes with the largest L.

    With `n_random` > 0 the baseline of Tomsett et al. comes along, computed once for all methods: as many random
    pixel orders, each the same for every image. `<perturbation>_L<L>_random` is the image's mean over the orders (the
    mean curve with the largest L); `.._orderings` is their standard deviation, with AOPC(L) of each order as its
    curve, from which the interval over orders follows.
    """

    perturbations: list[Literal["mean", "random_rgb"]] = field(default_factory=lambda: ["mean", "random_rgb"])
    levels: list[Annotated[int, AtLeast(1)]] = field(default_factory=lambda: [20, 40, 60, 80, 100])
    pixels_per_step: Annotated[int, AtLeast(1)] = 1
    divide_by: Literal["L+1", "L"] = "L+1"
    output: Literal["probability", "max_probability"] = "probability"
    ties: Literal["random", "raster", "raster_reversed"] = "random"
    n_random: Annotated[int, AtLeast(0)] = 0

    ascending: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"model"})
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    source: ClassVar[str] = "Samek et al. 2017, TNNLS 28(11); Tomsett et al. 2020, AAAI"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.levels or not self.perturbations:
            raise SalrunError("aopc: levels and perturbations must name at least one each, got none")

    @property
    def steps(self) -> int:
        return max(self.levels)

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return len(self.perturbations) * (self.steps + 1)

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return self.n_random * self.passes(model, shape)

    def shared_as(self) -> str:
        return "aopc, random orders"

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        rank = pixel_rank(plane, scene.rng, self.ties, self.ascending, "aopc")
        if self.steps * self.pixels_per_step > rank.shape[1]:
            raise SalrunError(
                f"aopc: the largest level times pixels_per_step must be at most the image's {rank.shape[1]} pixels, "
                f"got {self.steps} times {self.pixels_per_step}"
            )
        flags = map_flags(plane)
        scores: dict[str, Score] = {}
        for name in self.perturbations:
            scores |= self._scores(name, self._curve(name, rank, scene), flags)
            if self.n_random:
                scores |= self._baseline(name, scene, torch.full_like(flags, OK))
        return scores

    def aopc(self, probability: Tensor, level: int) -> Tensor:
        """AOPC(level) of curves (.., steps + 1)."""
        fall = probability[..., :1] - probability[..., : level + 1]
        return fall.sum(-1) / (level + 1 if self.divide_by == "L+1" else level)

    def _curve(self, name: str, rank: Tensor, scene: Scene) -> Tensor:
        counts = torch.arange(self.steps + 1, device=rank.device) * self.pixels_per_step
        finish = substrate(SUBSTRATES[name], scene)
        start = scene.model.normalise(scene.x)
        return curve(scene.model, start, finish, rank, counts, scene.target, output=self.output, chunk=scene.chunk)

    def _scores(self, name: str, probability: Tensor, flags: Tensor) -> dict[str, Score]:
        k = torch.arange(self.steps + 1, dtype=torch.float64, device=probability.device)
        scores = {f"{name}_L{level}": flagged(self.aopc(probability, level), flags) for level in self.levels}
        scores[f"{name}_L{self.steps}"] = flagged(self.aopc(probability, self.steps), flags, probability, k)
        return scores

    def _baseline(self, name: str, scene: Scene, flags: Tensor) -> dict[str, Score]:
        """Both orders and all methods share it: it depends on nothing but the image and the model."""
        key = f"aopc_random/{name}/{self.levels}/{self.pixels_per_step}/{self.divide_by}/{self.output}/{self.n_random}"
        shared = scene.shared(key, lambda: self._random_orders(name, scene))
        scores = {f"{key}_random": score for key, score in self._scores(name, shared["curve"], flags).items()}
        order = torch.arange(self.n_random, dtype=torch.float64, device=shared["aopc"].device)
        for level, each in zip(self.levels, shared["aopc"].unbind(2), strict=True):
            scores[f"{name}_L{level}_orderings"] = flagged(each.std(1, correction=0), flags, each, order)
        return scores

    def _random_orders(self, name: str, scene: Scene) -> dict[str, Tensor]:
        """curve (B, steps + 1), the mean over the orders; aopc (B, n_random, levels) of each order."""
        batch, pixels = scene.x.shape[0], scene.x[0, 0].numel()
        ranks = (scene.rng.permutation(pixels, f"random_order/{i}", shared=True) for i in range(self.n_random))
        curves = torch.stack([self._curve(name, rank.expand(batch, -1), scene) for rank in ranks], 1)
        each = torch.stack([self.aopc(curves, level) for level in self.levels], 2)
        return {"curve": curves.mean(1), "aopc": each}


@dataclass
class AOPCMoRF(AOPC):
    """AOPC, most relevant pixels first: a good map makes the probability fall at once."""

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"


@dataclass
class AOPCLeRF(AOPC):
    """AOPC, least relevant pixels first (for signed maps the most negative ones): a good map keeps the probability."""

    ascending: ClassVar[bool] = True
    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
