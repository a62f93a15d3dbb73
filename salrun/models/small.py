"""The small networks of two papers: a bias-free CNN for CIFAR-10 and a two-convolution CNN for MNIST."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
