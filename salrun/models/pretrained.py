"""A network that comes with its weights: nothing to train, so its recipe only builds, loads and measures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from salrun.models import checkpoint
from salrun.models.classifier import Classifier
from salrun.models.recipe import Obtained
from salrun.models.verification import check_fit, verify_once
from salrun.store import Store


class Pretrained:
    """A dataclass with the fields below that gives `module()`; `source` says where its weights come from."""

    if TYPE_CHECKING:
        name: str
        weights: str | None
        mean: list[float]
        std: list[float]
        layers: dict[str, str]
        gate: dict[str, float]

    source = "library"

    def module(self, seed: int) -> nn.Module:
        """The network with its weights; random ones, where it has none, are drawn by `seed`."""
        raise NotImplementedError("abstract")

    def load(self, seed: int = 0) -> Classifier:
        """The network as a classifier, ready to be explained."""
        module = self.module(seed)
        result = Classifier(module, self.mean, self.std, self.layers, self.name)
        for role in self.layers:
            result.layer(role)  # a wrong name is an error now, not after an hour
        result.eval().requires_grad_(False)
        result.fingerprint = checkpoint.model_key(result)
        return result

    def obtain(self, data: Any, seed: int, store: Store, device: torch.device) -> Obtained:
        model = self.load(seed).to(device)
        check_fit(model, data, self.name, device)
        card = {"weights": self.weights, "sha256": checkpoint.fingerprint(model.module)}
        check = verify_once(model, data, self.gate, device, store)
        short = [] if check.passed else [f"model {self.name} falls short of its gate on these images: {check.reason}"]
        return Obtained(model, check, card, self.source, short)
