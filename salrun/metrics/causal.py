"""Yona and Greenfeld's causal quantity, as a number per image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.common import as_plane, scored, settle
from salrun.metrics.randomisation import causal_quantity
from salrun.types import Metric, Scene, Score
from salrun.views import map_flags


@dataclass
class CausalQuantity(Metric):
    """||Lambda|| / sum_t Pr(t) ||S_t||, Lambda = sum_t (S(x; M_t) - S(x; M'_t)) Pr(T = t | X = x).

    `tasks`: the model of each task t and its probability; `untrained`: the untrained network M'_t, with that task's
    outputs. `raw`: signed maps as they are; `unit`: each map divided by its norm, so that only its pattern counts.
    A method passes where Lambda is not zero; two untrained networks differ too, so compare with the value that
    untrained networks have in place of the M_t.
    """

    tasks: dict[str, float] = field(default_factory=lambda: {"model": 1.0})
    untrained: dict[str, str] = field(default_factory=lambda: {"model": "random"})
    of: str = "model"  # whose scores it is listed with

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    needs: ClassVar[frozenset[str]] = frozenset({"other_map"})
    source: ClassVar[str] = "Yona and Greenfeld 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        if set(self.tasks) != set(self.untrained):
            raise SalrunError(
                f"CausalQuantity: untrained must name a model for each of the tasks {', '.join(self.tasks)}, "
                f"got {', '.join(self.untrained)}"
            )
        if min(self.tasks.values(), default=0.0) < 0 or abs(sum(self.tasks.values()) - 1) > 1e-9:
            raise SalrunError(f"CausalQuantity: the probabilities of the tasks must add up to 1, got {self.tasks}")

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for n in (*self.tasks, *self.untrained.values()) if n != self.of))

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        if scene.other_map is None:
            raise SalrunError("causal_quantity needs the maps of other models, got none")
        given = {self.of: plane} | {name: scene.other_map(name).to(plane.device) for name in self.reads()}
        maps = {name: as_plane(p, "causal_quantity") for name, p in given.items()}
        trained = torch.stack([maps[name] for name in self.tasks])
        untrained = torch.stack([maps[self.untrained[name]] for name in self.tasks])
        probability = torch.tensor(list(self.tasks.values()), dtype=trained.dtype, device=trained.device)
        scores = {}
        for name, s, s0 in (("raw", trained, untrained), ("unit", unit(trained), unit(untrained))):
            change = causal_quantity(s - s0, torch.zeros_like(s[0]), probability)
            size = (norm(s).flatten(1) * probability.unsqueeze(1)).sum(0)
            score = scored(norm(change).flatten() / size, plane)
            for other in given.values():
                score = settle(score, map_flags(other))
            scores[name] = score
        return scores


def norm(maps: Tensor) -> Tensor:
    """(.., 1, 1): length of each map (.., H, W)."""
    return torch.linalg.vector_norm(maps, dim=(-2, -1), keepdim=True)


def unit(maps: Tensor) -> Tensor:
    """Each map (.., H, W) divided by its length; NaN where that is 0."""
    return maps / norm(maps)
