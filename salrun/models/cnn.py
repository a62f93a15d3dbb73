"""The small convolutional networks of the SMERF paper: 64x64 input, stride-2 convolutions."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
from torch import nn

from salrun.errors import unknown

WIDTHS = {"simple": ((32, 64, 64), (200,)), "complex": ((64, 128, 256, 64), (200, 200))}


def smerf_cnn(kind: Literal["simple", "complex"] = "simple", size: int = 64, classes: int = 2) -> nn.Module:
    """3x3 stride-2 valid convolutions, dense layers, ReLU after all but the last, linear outputs.

    simple: conv 32-64-64, dense 200; complex: conv 64-128-256-64, dense 200-200.
    """
    if kind not in WIDTHS:
        raise unknown("architecture", kind, WIDTHS, "model.arch.kind")
    convolutions, dense = WIDTHS[kind]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, side = 3, size
    for k, width in enumerate(convolutions, 1):
        layers[f"conv{k}"] = nn.Conv2d(channels, width, 3, stride=2)
        layers[f"relu{k}"] = nn.ReLU()
        channels, side = width, (side - 3) // 2 + 1
    layers["flatten"] = nn.Flatten()
    features = channels * side * side
    for k, width in enumerate(dense, 1):
        layers[f"dense{k}"] = nn.Linear(features, width)
        layers[f"dense_relu{k}"] = nn.ReLU()
        features = width
    layers["output"] = nn.Linear(features, classes)
    return nn.Sequential(layers)


def glorot(module: nn.Module, generator: torch.Generator) -> None:
    """Keras' default initialisation: Glorot-uniform kernels, zero biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
