"""The deep networks of the SMERF paper: an AlexNet for 64x64 images and a VGG-16 with a head of its own."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from torch import nn

from salrun.models.torchvision import build, load_weights


def _norm(channels: int, kind: type[nn.BatchNorm1d] | type[nn.BatchNorm2d]) -> nn.Module:
    """Batch norm with Keras' defaults."""
    return kind(channels, eps=1e-3, momentum=0.01)


def smerf_alexnet(classes: int = 2, dropout: float = 0.4) -> nn.Module:
    """AlexNet for 64x64 input, all padding "same" (Keras pads the stride-4 convolution 3 before, 4 behind).

    Batch norm after every layer, the last one included: the outputs are a batch norm's.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(pad=nn.ZeroPad2d((3, 4, 3, 4)))
    inputs = 3
    for k, (width, kernel, pool) in enumerate(
        ((96, 11, True), (256, 5, True), (384, 3, False), (384, 3, False), (256, 3, True)), start=1
    ):
        first = k == 1
        layers[f"conv{k}"] = nn.Conv2d(inputs, width, kernel, 4 if first else 1, 0 if first else kernel // 2)
        layers[f"norm{k}"] = _norm(width, nn.BatchNorm2d)
        layers[f"relu{k}"] = nn.ReLU()
        if pool:
            layers[f"pool{k}"] = nn.MaxPool2d(2)
        inputs = width
    layers["flatten"] = nn.Flatten()
    inputs *= 2 * 2
    for k, width in enumerate((4096, 4096, 1000), start=6):
        layers[f"dense{k}"] = nn.Linear(inputs, width)
        layers[f"norm{k}"] = _norm(width, nn.BatchNorm1d)
        layers[f"relu{k}"] = nn.ReLU()
        layers[f"drop{k}"] = nn.Dropout(dropout)
        inputs = width
    layers["output"] = nn.Linear(inputs, classes)
    layers["norm_output"] = _norm(classes, nn.BatchNorm1d)
    return nn.Sequential(layers)


class Base(nn.Sequential):
    """Convolutions that bring their weights; `about` says which, and whether they learn: it tells models apart."""

    def __init__(self, layers: nn.Module, about: str) -> None:
        super().__init__(*layers.children())
        self.about = about

    def extra_repr(self) -> str:
        return self.about


def smerf_vgg16(classes: int = 2, weights: str | None = "IMAGENET1K_V1", frozen: bool = True) -> nn.Module:
    """VGG-16's convolutions with their ImageNet weights, `frozen`, then dense 1024-512-256 on their global average.

    The paper feeds images in [0, 1] without VGG's preprocessing to Keras' weights; torchvision's are others.
    """
    vgg = build("vgg16")
    if weights is not None:
        load_weights(vgg, "vgg16", weights)
    about = f"{Path(weights).name if weights else 'random'} weights, {'frozen' if frozen else 'fine-tuned'}"
    features = Base(vgg.get_submodule("features"), about).requires_grad_(not frozen)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        features=features, average=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten()
    )
    inputs = 512
    for k, width in enumerate((1024, 512, 256), start=1):
        layers[f"dense{k}"] = nn.Linear(inputs, width)
        layers[f"relu{k}"] = nn.ReLU()
        inputs = width
    layers["output"] = nn.Linear(inputs, classes)
    return nn.Sequential(layers)
