"""Networks whose weights were shaken: what a metric should not notice, or should (MetaQuantus, Hedstroem 2023)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch

from salrun.models import checkpoint
from salrun.models.recipe import Obtained
from salrun.models.verification import verify_once
from salrun.ranges import AtLeast, check_declared
from salrun.rng import generator, hash64
from salrun.store.entries import Store
from salrun.types import Dataset, Recipe

CHECKED = {"images": 500.0}


@dataclass
class Noised:
    """The trained network of `parent`, every weight times a draw of N(1, sigma^2); `draw` numbers the draws."""

    parent: Recipe
    sigma: Annotated[float, AtLeast(0)] = 0.001
    draw: int = 0

    def __post_init__(self) -> None:
        check_declared(self)

    def facts(self) -> dict[str, Any]:
        return {**self.parent.facts(), "sigma": self.sigma, "copy": self.draw}

    @torch.no_grad()
    def obtain(self, data: Dataset, seed: int, store: Store, device: torch.device) -> Obtained:
        trained = self.parent.obtain(data, seed, store, device)
        model = copy.deepcopy(trained.classifier)
        drawn = generator(hash64(seed, "noised", self.draw), "weights")
        for weight in model.module.parameters():
            shaken = 1 + self.sigma * torch.randn(weight.shape, generator=drawn)
            weight.mul_(shaken.to(weight))
        model.eval().requires_grad_(False)
        model.fingerprint = checkpoint.model_key(model)
        measured = replace(verify_once(model, data, CHECKED, device, store), gate={})  # nothing is asked of it
        return Obtained(model, measured, {"sigma": self.sigma, "draw": self.draw}, "random", trained.deviations)
