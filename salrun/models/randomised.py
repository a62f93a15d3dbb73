"""Networks that have not learnt, or not with all their layers: recipes with a parent (Adebayo et al. 2018)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from salrun.errors import SalrunError, unknown
from salrun.models import checkpoint
from salrun.models.classifier import Classifier
from salrun.models.recipe import Obtained
from salrun.models.verification import verify_once
from salrun.rng import hash64
from salrun.store.entries import Store
from salrun.types import Dataset, Recipe

MODES = ("untrained", "all", "cascading", "independent")
CHECKED = {"images": 500.0}  # accuracy of such a model is chance: so many images tell


@dataclass
class Randomised:
    """The network of the recipe `parent` with random weights.

    untrained: as the recipe builds it, before any training (what comes pretrained stays so); all: the trained network,
    every layer drawn anew; cascading: its last layers drawn anew; independent: one layer alone. Layers are counted in
    the order of execution, from the output: `top` of them, or a `share` of all, rounded up. `draw` numbers the weights.
    """

    parent: Recipe
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

    def facts(self) -> dict[str, Any]:
        """The parent's facts, and what was drawn anew: all, the last `top` or `share` of the layers; which copy."""
        drawn = {"randomised": self.mode, "top": self.top, "share": self.share, "copy": self.draw}
        return {**self.parent.facts(), **drawn}

    def obtain(self, data: Dataset, seed: int, store: Store, device: torch.device) -> Obtained:
        drawn = hash64(seed, "randomised", self.draw)
        about: dict[str, Any] = {"mode": self.mode, "draw": self.draw}
        if self.mode == "untrained":
            model = self._untrained(drawn).to(device)
            deviations = []
        else:
            trained = self.parent.obtain(data, seed, store, device)
            about["layers"] = self._chosen(trained.classifier, torch.zeros(1, *data.shape, device=device))
            model = reinitialised(trained.classifier, about["layers"], drawn)
            deviations = trained.deviations
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

    def _chosen(self, model: Classifier, probe: Tensor) -> list[str]:
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


# -- re-initialised copies, layer by layer in the order of execution --------------------------------------------------


@torch.no_grad()
def execution_order(classifier: Classifier, probe: Tensor) -> list[str]:
    """Names of the layers that own parameters, first to last as the forward pass of `probe` (raw images) finishes them.

    A layer called several times stands at its last call: coming from the output, that is where one meets it. A layer
    never called itself, because its parent reads its weights, stands with that parent.
    """
    module = copy.deepcopy(classifier.module).eval()
    finished: list[str] = []
    for name, part in module.named_modules():
        part.register_forward_hook(lambda *_, name=name: finished.append(name))
    module(classifier.normalise(probe))
    place = {name: i for i, name in enumerate(finished)}

    def position(name: str) -> int:
        while name not in place:
            name = name.rpartition(".")[0]
        return place[name]

    owners = [name for name, part in module.named_modules() if any(True for _ in part.parameters(recurse=False))]
    return sorted(owners, key=position)


def reinitialised(classifier: Classifier, layers: Sequence[str], seed: int) -> Classifier:
    """A deep copy whose `layers` are drawn anew by their own `reset_parameters`; BatchNorm forgets its statistics too.

    Each layer's numbers depend on (seed, its name) alone, so a layer looks the same in every copy that resets it.
    """
    module = copy.deepcopy(classifier.module)
    parts = dict(module.named_modules())
    for name in layers:
        if name not in parts:
            raise unknown("layer", name, filter(None, parts), f"model '{classifier.name}'")
        _reset(parts[name], name, hash64(seed, "reinitialise", name), classifier.name)
    note = f"reinitialised({seed}: {', '.join(layers)})"
    copied = Classifier(
        module,
        layers=classifier.layers,
        name=f"{classifier.name} {note}",
        fingerprint=f"{classifier.fingerprint}|{note}",
    )
    copied.mean, copied.std, copied.training = classifier.mean, classifier.std, classifier.training
    return copied


def _reset(part: nn.Module, name: str, seed: int, model: str) -> None:
    reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
    if reset is None:
        raise SalrunError(
            f"layer '{name}' ({type(part).__name__}) of model '{model}' owns parameters but has no reset_parameters(): "
            f"give it one, or name the layers to re-initialise without it"
        )
    device = next(part.parameters(recurse=False)).device
    # On the CPU, with its generator lent and given back: the same numbers on every device, none taken from the caller.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed & ((1 << 63) - 1))
        part.cpu()
        reset()
        part.to(device)
