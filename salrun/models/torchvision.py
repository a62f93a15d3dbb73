"""Any torchvision classifier by name, with torchvision's weights or a file's, and the layers that CAM and IBA read."""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torchvision
from torch import Tensor, nn

from salrun.errors import SalrunError, unknown
from salrun.models.checkpoint import fill
from salrun.models.pretrained import Pretrained
from salrun.models.recipe import Obtained
from salrun.models.weights import is_file, read_weights
from salrun.rng import generator
from salrun.store import Store

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Names that start so -> (CAM layer, IBA layer); the longest start wins. CAM: the last map of features, before a pool
# that follows it; IBA: the end of the stage of stride 8 (Schulz et al. 2020: layer2 of ResNet-50, conv4_1 of VGG-16).
LAYERS = {
    "resnet": ("layer4", "layer2"),
    "resnext": ("layer4", "layer2"),
    "wide_resnet": ("layer4", "layer2"),
    "vgg11": ("features.19", "features.11"),
    "vgg11_bn": ("features.27", "features.15"),
    "vgg13": ("features.23", "features.15"),
    "vgg13_bn": ("features.33", "features.21"),
    "vgg16": ("features.29", "features.17"),
    "vgg16_bn": ("features.42", "features.24"),
    "vgg19": ("features.35", "features.19"),
    "vgg19_bn": ("features.51", "features.27"),
    "alexnet": ("features.11", "features.4"),
    "densenet": ("features.norm5", "features.denseblock2"),
    "googlenet": ("inception5b", "inception3b"),
    "inception_v3": ("Mixed_7c", "Mixed_5d"),
    "squeezenet": ("features", "features.7"),
    "shufflenet": ("conv5", "stage2"),
    "mobilenet_v2": ("features.18", "features.6"),
    "mobilenet_v3_large": ("features.16", "features.6"),
    "mobilenet_v3_small": ("features.12", "features.3"),
    "mnasnet": ("layers.16", "layers.9"),
    "efficientnet_b": ("features.8", "features.3"),
    "efficientnet_v2_s": ("features.7", "features.3"),
    "efficientnet_v2": ("features.8", "features.3"),
    "regnet": ("trunk_output.block4", "trunk_output.block2"),
    "convnext": ("features.7", "features.3"),
}
STRIDES = {"layer4": 32, "layer3": 16, "layer2": 8}  # of a ResNet's stages
# As torchvision itself builds them for its weights.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "googlenet": {"transform_input": True, "aux_logits": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "aux_logits": True, "init_weights": False},
}


def layers_of(name: str) -> dict[str, str]:
    """{"cam": .., "iba": ..} of an architecture; empty where it has no maps of features (transformers)."""
    start = max((s for s in LAYERS if name.startswith(s)), key=len, default=None)
    return dict(zip(("cam", "iba"), LAYERS[start], strict=True)) if start else {}


def resnet_cam(side: int) -> str:
    """The deepest stage of a ResNet whose maps of images of this side are at least 4 wide (7 of 224)."""
    return next((stage for stage, stride in STRIDES.items() if side // stride >= 4), "layer2")


def build(name: str, classes: int = 1000, variant: Literal["v1"] | None = None) -> nn.Module:
    """The architecture with random weights, its in-place operations made ordinary ones.

    `variant="v1"`: ResNet as first published (He et al. 2016; Keras), the stride in a bottleneck's first 1x1
    convolution where torchvision has it in the 3x3 one.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise unknown("torchvision model", name, known, "model.name")
    module = torchvision.models.get_model(name, weights=None, num_classes=classes, **ARGUMENTS.get(name, {}))
    if variant == "v1":
        if not hasattr(module, "layer2") or not hasattr(module.layer2[0], "conv3"):
            raise SalrunError(f"model.variant=v1 is for ResNets with bottlenecks (resnet50, 101, 152), not {name}")
        for stage in (module.layer2, module.layer3, module.layer4):
            first = stage[0]
            first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride
    elif variant is not None:
        raise unknown("variant", variant, ["v1"], "model.variant")
    for layer in module.modules():
        if getattr(layer, "inplace", False):
            layer.inplace = False
    return module


def published_weights(name: str, which: str) -> dict[str, Tensor]:
    """torchvision's own weights, from its cache or by download, checksummed."""
    try:
        known = torchvision.models.get_model_weights(name)
    except ValueError as fault:
        raise SalrunError(f"torchvision has no weights for {name}; give model.weights=<file> or null") from fault
    names = [w.name for w in known] + ["DEFAULT"]
    if which not in names:
        raise unknown("weights", which, names, f"torchvision's {name} (or give a file ending in .safetensors or .pth)")
    url = known[which].url
    try:
        return torch.hub.load_state_dict_from_url(url, check_hash=True, weights_only=True, map_location="cpu")
    except (urllib.error.URLError, OSError, RuntimeError) as fault:
        raise SalrunError(
            f"cannot download {url} ({fault}); fetch it elsewhere and give its path as weights, "
            f"or put it into {torch.hub.get_dir()}/checkpoints"
        ) from fault


def modernised(tensors: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Old files lack batch norm's counter, and DenseNet's say `norm.1` for `norm1`: both are torchvision's to read."""
    renamed = {re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", name): t for name, t in tensors.items()}
    counters = {name: t for name, t in module.state_dict().items() if name.endswith("num_batches_tracked")}
    return counters | renamed


def load_weights(module: nn.Module, name: str, weights: str, sha256: str | None = None) -> None:
    """Fill a torchvision network from a file or from torchvision's own weights; what does not fit is refused."""
    path = Path(weights).expanduser()
    if is_file(weights) and not path.is_file():
        raise SalrunError(
            f"model.weights: there is no file {path}; give another, or a name of torchvision's, which downloads it "
            f"(model=torchvision model.name={name})"
        )
    tensors = read_weights(path, sha256) if is_file(weights) else published_weights(name, weights)
    fill(module, modernised(tensors, module), path)


@dataclass
class TorchvisionModel(Pretrained):
    """A torchvision classifier of ImageNet, or of a user's own `classes`.

    `weights`: a name of torchvision's (IMAGENET1K_V1), a file (.safetensors, .pth), or None for random ones.
    """

    name: str = "resnet50"
    weights: str | None = "IMAGENET1K_V1"
    variant: Literal["v1"] | None = None
    classes: int = 1000
    sha256: str | None = None  # of the file, or its beginning
    layers: dict[str, str] = field(default_factory=dict)  # cam, iba: instead of the architecture's own (None)
    mean: list[float] = field(default_factory=lambda: list(MEAN))
    std: list[float] = field(default_factory=lambda: list(STD))
    gate: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {role: layer for role, layer in self.layers.items() if layer is not None}
        self.cam_given = "cam" in given
        self.layers = layers_of(self.name) | given

    @property
    def source(self) -> str:  # type: ignore[override]
        return "random" if self.weights is None else "file" if is_file(self.weights) else "library"

    def obtain(self, data: Any, seed: int, store: Store, device: torch.device) -> Obtained:
        usual = self.layers.get("cam")
        if not self.cam_given and usual == "layer4":
            self.layers["cam"] = resnet_cam(min(data.shape[1:]))
        found = super().obtain(data, seed, store, device)
        if self.layers.get("cam") != usual:
            side = "x".join(str(-(-s // STRIDES["layer4"])) for s in data.shape[1:])
            found.deviations.append(
                f"CAM reads {self.layers['cam']}: maps of layer4 are {side} here (model.layers.cam)"
            )
        return found

    def module(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(seed, "init/0").initial_seed())
            module = build(self.name, self.classes, self.variant)
        if self.weights is not None:
            load_weights(module, self.name, self.weights, self.sha256)
        return module


class FixedNorm(nn.BatchNorm2d):
    """Batch norm that stays in evaluation mode while the rest trains: pretrained statistics are kept."""

    def train(self, mode: bool = True) -> FixedNorm:
        super().train(False)
        return self


def finetuned(
    name: str = "resnet50",
    weights: str | None = "IMAGENET1K_V1",
    variant: Literal["v1"] | None = None,
    classes: int = 5,
    trainable: Sequence[str] = ("layer4", "fc"),
    sha256: str | None = None,
) -> nn.Module:
    """An ImageNet network with a new last layer for `classes`; only modules named by (or below) `trainable` learn."""
    module = build(name, 1000, variant)
    if weights is not None:
        load_weights(module, name, weights, sha256)
    last, old = [(path, part) for path, part in module.named_modules() if isinstance(part, nn.Linear)][-1]
    module.set_submodule(last, nn.Linear(old.in_features, classes))
    parts = dict(module.named_modules())
    module.requires_grad_(False)
    for path in trainable:
        if path not in parts:
            raise unknown("layer", path, filter(None, parts), f"{name} (trainable)")
        parts[path].requires_grad_(True)
    for part in parts.values():
        if isinstance(part, nn.BatchNorm2d):
            part.__class__ = FixedNorm
    return module
