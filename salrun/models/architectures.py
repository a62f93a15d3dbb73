"""The networks of the papers: SMERF's, Tomsett's, the one for MNIST, and EfficientNet-lite. No weights, no files.

The key of a trained model holds this module's source, that of a map where its network has classes of this module.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from salrun.errors import unknown

# -- SMERF: 64x64 images ----------------------------------------------------------------------------------------------

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


# -- Tomsett et al. and MNIST -----------------------------------------------------------------------------------------


class ScaleNorm(nn.BatchNorm2d):
    """Batch normalisation with a scale but no shift."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        nn.init.ones_(self.weight)


class RmsNorm(ScaleNorm):
    """The same without centring, x w / sqrt(E[x^2]), so that it is linear and has no bias even when folded.

    `running_var` holds the running mean of squares, `running_mean` stays zero: in evaluation it is a plain batch_norm.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, None, False, 0.0, self.eps)
        square = x.square().mean(dim=(0, 2, 3))
        if self.running_var is not None and self.momentum is not None:
            with torch.no_grad():
                self.running_var.lerp_(square, self.momentum)
        return x * (self.weight * torch.rsqrt(square + self.eps)).view(1, -1, 1, 1)


class TomsettCNN(nn.Sequential):
    """Three blocks of two 3x3 convolutions with normalisation and ReLU, then pooling and dropout; one dense layer.

    No biases anywhere (Tomsett et al., AAAI 2020). Folded into its convolution, a centring norm is a bias again; with
    `bn="rms"` it is not, and gradient x input sums to the logit exactly.
    """

    def __init__(
        self,
        classes: int = 10,
        widths: tuple[int, ...] = (32, 64, 128),
        dropout: tuple[float, ...] = (0.2, 0.3, 0.4),
        bn: Literal["scale", "rms"] = "scale",
        size: int = 32,
    ) -> None:
        norm = {"scale": ScaleNorm, "rms": RmsNorm}[bn]
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        inputs = 3
        for i, (width, rate) in enumerate(zip(widths, dropout, strict=True), start=1):
            layers[f"block{i}"] = nn.Sequential(
                OrderedDict(
                    conv1=nn.Conv2d(inputs, width, 3, padding=1, bias=False),
                    norm1=norm(width),
                    relu1=nn.ReLU(),
                    conv2=nn.Conv2d(width, width, 3, padding=1, bias=False),
                    norm2=norm(width),
                    relu2=nn.ReLU(),
                    pool=nn.MaxPool2d(2),
                    drop=nn.Dropout(rate),
                )
            )
            inputs = width
        layers["flatten"] = nn.Flatten()
        layers["dense"] = nn.Linear(inputs * (size >> len(widths)) ** 2, classes, bias=False)
        super().__init__(layers)


class MnistCNN(nn.Sequential):
    """conv 32 - conv 64 - pool - dense 128 - dense, 3x3 kernels, for 28x28 images of one channel."""

    def __init__(self, classes: int = 10, dropout: tuple[float, float] = (0.25, 0.5)) -> None:
        super().__init__(
            OrderedDict(
                conv1=nn.Conv2d(1, 32, 3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(32, 64, 3),
                relu2=nn.ReLU(),
                pool=nn.MaxPool2d(2),
                drop1=nn.Dropout(dropout[0]),
                flatten=nn.Flatten(),
                dense1=nn.Linear(64 * 12 * 12, 128),
                relu3=nn.ReLU(),
                drop2=nn.Dropout(dropout[1]),
                dense2=nn.Linear(128, classes),
            )
        )


# -- EfficientNet-lite (Tan & Le 2019; lite: no squeeze-and-excitation, ReLU6) -----------------------------------------

# repeats, kernel, stride of the first, expansion, channels
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
SCALES = ((1.0, 1.0), (1.0, 1.1), (1.1, 1.2))  # of channels and of repeats: lite0, lite1, lite2


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True) -> nn.Sequential:
    """Convolution, batch norm and, where asked, ReLU6. Padding is TensorFlow's "same": at stride 2 lopsided."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if stride == 2:
        start, end = (kernel - 2) // 2, (kernel - 1) // 2
        layers["pad"] = nn.ZeroPad2d((start, end, start, end))
    padding = 0 if stride == 2 else kernel // 2
    layers["conv"] = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    layers["norm"] = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
    if relu:
        layers["relu"] = nn.ReLU6()
    return nn.Sequential(layers)


class Block(nn.Module):
    """Inverted residual: expand 1x1, depthwise, project 1x1, plus the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand = unit(inputs, hidden, 1) if expansion > 1 else nn.Identity()
        self.depthwise = unit(hidden, hidden, kernel, stride, groups=hidden)
        self.project = unit(hidden, outputs, 1, relu=False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.depthwise(self.expand(x)))
        return x + out if self.residual else out


def efficientnet_lite(number: int = 0, classes: int = 1000) -> nn.Module:
    """The architecture of lite0, lite1 or lite2 with random weights.

    Channels are scaled and rounded to multiples of 8; repeats too, rounded up, but for the first and last stage's;
    stem and head stay as they are.
    """
    width, depth = SCALES[number]
    blocks: list[nn.Module] = []
    inputs = 32
    for stage, (repeats, kernel, stride, expansion, channels) in enumerate(STAGES):
        outputs = int(channels * width + 4) // 8 * 8
        inner = 0 < stage < len(STAGES) - 1
        for k in range(math.ceil(repeats * depth) if inner else repeats):
            blocks.append(Block(inputs, outputs, kernel, stride if k == 0 else 1, expansion))
            inputs = outputs
    return nn.Sequential(
        OrderedDict(
            stem=unit(3, 32, 3, stride=2),
            blocks=nn.Sequential(*blocks),
            head=unit(inputs, 1280, 1),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            dropout=nn.Dropout(0.2),
            dense=nn.Linear(1280, classes),
        )
    )
