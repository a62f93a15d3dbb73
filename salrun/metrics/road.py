"""Remove and debias, ROAD (Rong et al. 2022): pixels go, and what their neighbours say of them stays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.imputation import imputed, steps_of
from salrun.metrics.perturbation import ask, batch_size, flagged, shared_rank
from salrun.models.classifier import Classifier
from salrun.ranges import Above, AtLeast, AtMost
from salrun.types import Metric, Scene, Score
from salrun.views import map_flags


@dataclass
class ROAD(Metric):
    """f after a fraction of the pixels was removed, most (MoRF) or least relevant (LeRF) first.

    A removed pixel is imputed from its neighbours by the linear system of Rong et al., plus N(0, `noise`^2) in the
    network's input space, so that the shape of the hole gives no class away. f is 1 where the class explained is still
    the top class (the paper's accuracy), or its probability. `morf` and `lerf` are means over the fractions, with
    their curves; the score is lerf - morf, 0 for a random order on average. The noise is the same for all methods and
    fractions. `iterations` of conjugate gradients; `None`: as many as bring the imputed image within 0.001, a tenth of
    the noise (7 for 32 x 32 pixels, 10 for 224 x 224).
    """

    fractions: list[Annotated[float, Above(0), AtMost(0.99)]] = field(
        default_factory=lambda: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    )
    output: Literal["correct", "probability"] = "correct"
    noise: Annotated[float, AtLeast(0)] = 0.01
    iterations: Annotated[int, AtLeast(1)] | None = None
    ties: Literal["random", "raster", "raster_reversed"] = "random"

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    turned: ClassVar[frozenset[str]] = frozenset({"morf"})
    needs: ClassVar[frozenset[str]] = frozenset({"model"})
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    chance: ClassVar[float | None] = 0.0
    source: ClassVar[str] = "Rong, Leemann, Borisov, Kasneci, Kasneci 2022, ICML"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fractions:
            raise SalrunError("road: fractions must name at least one, got none")

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 2 * len(self.fractions)

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        orders = [shared_rank(plane, scene, self.ties, ascending, "road") for ascending in (False, True)]
        rank, x = torch.cat(orders), scene.model.normalise(scene.x)
        pixels = rank.shape[1]
        counts = torch.tensor([round(f * pixels) for f in self.fractions], device=rank.device)
        iterations = self.iterations or steps_of(max(x.shape[2:]))
        noise = self.noise * scene.rng.normal("road", x.shape[1:]).to(x)

        def points(row: Tensor, step: Tensor) -> Tensor:
            image = row % len(x)
            hole = (rank[row] < counts[step].unsqueeze(1)).view(-1, 1, *x.shape[2:])
            return imputed(x[image], hole, iterations) + noise[image] * hole

        shape = len(rank), len(counts)
        f = ask(scene.model, points, shape, scene.target, self.output, batch_size(x, scene.chunk))
        morf, lerf = f.split(len(x))
        flags, at = map_flags(plane), torch.tensor(self.fractions, dtype=f.dtype, device=f.device)
        return {
            "": flagged((lerf - morf).mean(1), flags),
            "morf": flagged(morf.mean(1), flags, morf, at),
            "lerf": flagged(lerf.mean(1), flags, lerf, at),
        }
