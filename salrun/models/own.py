"""A user's own network, with its weights, as a model to be explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from salrun.models.checkpoint import fill
from salrun.models.layers import find_layers
from salrun.models.pretrained import Pretrained
from salrun.models.recipe import made
from salrun.models.weights import read_weights
from salrun.rng import generator


@dataclass
class OwnModel(Pretrained):
    """`arch()` makes the network, which takes normalised images and gives logits; `weights` is a file, or None to keep
    what `arch` has set. `layers`: what CAM and IBA read; None: behind the last and the middle convolution.
    """

    name: str
    arch: Callable[[], nn.Module]
    weights: str | None = None
    sha256: str | None = None  # of the file, or its beginning
    layers: dict[str, str] = field(default_factory=dict)
    mean: list[float] = field(default_factory=lambda: [0.0])
    std: list[float] = field(default_factory=lambda: [1.0])
    gate: dict[str, float] = field(default_factory=dict)

    @property
    def source(self) -> str:  # type: ignore[override]
        return "own" if self.weights is None else "file"

    def module(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(seed, "init/0").initial_seed())
            module = made(self.arch)
        if self.weights is not None:
            path = Path(self.weights).expanduser()
            fill(module, read_weights(path, self.sha256), path)
        given = {role: layer for role, layer in self.layers.items() if layer is not None}
        self.layers = find_layers(module) | given
        return module
