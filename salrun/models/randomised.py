"""Networks that have not learnt, or not with all their layers: recipes with a parent (Adebayo et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from salrun.errors import SalrunError, unknown
from salrun.models import checkpoint
from salrun.models.classifier import Classifier
from salrun.models.randomise import execution_order, reinitialised
from salrun.models.recipe import Obtained
from salrun.models.verification import verify_once
from salrun.rng import hash64
from salrun.store import Store

MODES = ("untrained", "all", "cascading", "independent")
CHECKED = {"images": 500.0}  # accuracy of such a model is chance: so many images tell


@dataclass
class Randomised:
    """The network of the recipe `parent` with random weights.

    untrained: as the recipe builds it, before any training (what comes pretrained stays so); all: the trained network,
    every layer drawn anew; cascading: its last layers drawn anew; independent: one layer alone. Layers are counted in
    the order of execution, from the output: `top` of them, or a `share` of all, rounded up. `draw` numbers the weights.
    """

    parent: Any
    mode: Literal["untrained", "all", "cascading", "independent"] = "untrained"
    top: int | None = None
    share: float | None = None
    draw: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown("mode", self.mode, MODES, "Randomised")
        by_layer = self.mode in ("cascading", "independent")
        if [self.top, self.share].count(None) != (1 if by_layer else 2):
            wanted = "either top or share" if by_layer else "neither top nor share"
            raise SalrunError(f"Randomised: mode={self.mode} takes {wanted}, got top={self.top}, share={self.share}")
        if self.top is not None and self.top < 1:
            raise SalrunError(f"Randomised: top must be at least 1, got {self.top}")
        if self.share is not None and not 0 < self.share <= 1:
            raise SalrunError(f"Randomised: share must lie in (0, 1], got {self.share}")

    def obtain(self, data: Any, seed: int, store: Store, device: torch.device) -> Obtained:
        drawn = hash64(seed, "randomised", self.draw)
        about: dict[str, Any] = {"mode": self.mode, "draw": self.draw}
        if self.mode == "untrained":
            model = self._untrained(drawn).to(device)
            deviations = []
        else:
            found = self.parent.obtain(data, seed, store, device)
            about["layers"] = self._chosen(found.classifier, torch.zeros(1, *data.shape, device=device))
            model = reinitialised(found.classifier, about["layers"], drawn)
            deviations = found.deviations
        model.eval().requires_grad_(False)
        measured = replace(verify_once(model, data, CHECKED, device, store), gate={})  # nothing is asked of it
        return Obtained(model, measured, about, "random", deviations)

    def _untrained(self, seed: int) -> Classifier:
        if not hasattr(self.parent, "build"):
            kind = type(self.parent).__name__
            raise SalrunError(f"Randomised: a {kind} has no untrained form; mode=all draws all its layers anew")
        model: Classifier = self.parent.build(seed)
        model.fingerprint = checkpoint.model_key(model)
        return model

    def _chosen(self, model: Classifier, probe: torch.Tensor) -> list[str]:
        """The layers to draw anew."""
        order = execution_order(model, probe)
        if self.mode == "all":
            return order
        top = math.ceil(self.share * len(order)) if self.share is not None else self.top
        assert top is not None
        if top > len(order):
            raise SalrunError(
                f"Randomised: model '{model.name}' has {len(order)} layers with parameters, got top={top}"
            )
        return order[-top:] if self.mode == "cascading" else [order[-top]]
