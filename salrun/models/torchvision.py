"""Any torchvision network by name, with torchvision's weights or a file's, as it is or with a head of its own."""

from __future__ import annotations

import re
import urllib.error
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torchvision
from torch import Tensor, nn

from salrun.errors import SalrunError, unknown
from salrun.models.checkpoint import fill, is_file, read_weights

# As torchvision itself builds them for its weights.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "googlenet": {"transform_input": True, "aux_logits": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "aux_logits": True, "init_weights": False},
}


def build(name: str, classes: int = 1000, variant: Literal["v1"] | None = None) -> nn.Module:
    """The architecture with random weights, its in-place operations made ordinary ones.

    `variant="v1"`: ResNet as first published (He et al. 2016; Keras), the stride in a bottleneck's first 1x1
    convolution where torchvision has it in the 3x3 one.
    """
    available = torchvision.models.list_models(module=torchvision.models)
    if name not in available:
        raise unknown("torchvision model", name, available, "model.name")
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
        available = torchvision.models.get_model_weights(name)
    except ValueError as fault:
        raise SalrunError(f"torchvision has no weights for {name}; give model.weights=<file> or null") from fault
    names = [w.name for w in available] + ["DEFAULT"]
    if which not in names:
        raise unknown("weights", which, names, f"torchvision's {name} (or give a file ending in .safetensors or .pth)")
    url = available[which].url
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
