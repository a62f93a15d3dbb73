"""Which layers CAM and IBA read: of torchvision's networks by name, of a module nobody here wrote by its looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn


@dataclass
class Layers:
    """The roles that a recipe's `layers` may give names of layers for; None: the usual one."""

    cam: str | None = None
    iba: str | None = None


# Names that start so -> (CAM layer, IBA layer); the longest start wins. CAM: the last map of features, before a pool
# that follows it; IBA: the end of the stage of stride 8 (Schulz et al. 2020: layer2 of ResNet-50, conv4_1 of VGG-16).
# Transformers as `_of_blocks` has them; Swin's last map has its channels moved first.
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
    "swin": ("permute", "features.3"),
    "vit_b": ("encoder.layers.encoder_layer_11.ln_1", "encoder.layers.encoder_layer_5"),
    "vit_l": ("encoder.layers.encoder_layer_23.ln_1", "encoder.layers.encoder_layer_11"),
    "vit_h": ("encoder.layers.encoder_layer_31.ln_1", "encoder.layers.encoder_layer_15"),
}
STRIDES = {"layer4": 32, "layer3": 16, "layer2": 8}  # of a ResNet's stages
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = tuple(getattr(nn, name) for name in ("LayerNorm", "RMSNorm") if hasattr(nn, name))  # RMSNorm: torch 2.4
FOLLOWERS = (nn.BatchNorm2d, nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.LeakyReLU, nn.ELU)


def layers_of(name: str) -> dict[str, str]:
    """{"cam": .., "iba": ..} of an architecture; empty where we know none."""
    start = max((s for s in LAYERS if name.startswith(s)), key=len, default=None)
    return dict(zip(("cam", "iba"), LAYERS[start], strict=True)) if start else {}


def resnet_cam(side: int) -> str:
    """The deepest stage of a ResNet whose maps of images of this side are at least 4 wide (7 of 224)."""
    return next((stage for stage, stride in STRIDES.items() if side // stride >= 4), "layer2")


def find_layers(module: nn.Module) -> dict[str, str]:
    """{"cam": .., "iba": ..}: a ResNet's layer4 and layer2, a torchvision network's own, a transformer's tokens; else
    behind the last and the middle convolution.

    "Behind" means after the normalisation and activation that follow it in the same `nn.Sequential`. Empty where the
    module has no convolution, or works on tokens after its last one: that is then no map of features, but the way in.
    """
    names = dict(module.named_modules())
    if "layer4" in names and "layer2" in names:
        return {"cam": "layer4", "iba": "layer2"}
    of_family = _of_torchvision(module, names)
    if of_family:
        return of_family
    convolutions = [name for name, m in names.items() if isinstance(m, CONVOLUTIONS)]
    if not convolutions or _of_tokens(list(names.values()), names[convolutions[-1]]):
        return _of_blocks(blocks_of(module), names)
    return {"cam": _behind(convolutions[-1], names), "iba": _behind(convolutions[len(convolutions) // 2], names)}


def _of_tokens(modules: Sequence[nn.Module], last: nn.Module) -> bool:
    """Whether attention, or layer norm more than once (a head may have one), comes after the last convolution."""
    after = modules[next(k for k, m in enumerate(modules) if m is last) + 1 :]
    return any(isinstance(m, nn.MultiheadAttention) for m in after) or sum(isinstance(m, NORMS) for m in after) > 1


def blocks_of(module: nn.Module) -> list[str]:
    """The blocks of a transformer in order: the children of the last list in which every child has an attention."""
    lists = [
        [f"{name}.{child}" if name else child for child in part._modules]
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential) and part._modules and all(map(_attends, part.children()))
    ]
    return lists[-1] if lists else []


def _attends(module: nn.Module) -> bool:
    return any("attention" in type(part).__name__.lower() for part in module.modules())


def _of_blocks(blocks: Sequence[str], names: Mapping[str, nn.Module]) -> dict[str, str]:
    """CAM: the first norm of the last block, before the attention by which a class token reads the patches a last time;
    IBA: behind the middle block, while the class token still knows little.
    """
    if not blocks:
        return {}
    norms = [name for name, m in names.items() if name.startswith(f"{blocks[-1]}.") and isinstance(m, NORMS)]
    return {"cam": norms[0] if norms else blocks[-1], "iba": blocks[(len(blocks) - 1) // 2]}


def _of_torchvision(module: nn.Module, names: Mapping[str, nn.Module]) -> dict[str, str]:
    """The layers of a network of torchvision's, by its family; of the family's depths, the deepest that it has."""
    home, _, family = type(module).__module__.rpartition(".")
    if home != "torchvision.models":
        return {}
    order = list(names)
    deepest: dict[str, str] = {}
    for start, (cam, iba) in LAYERS.items():
        plain = start.replace("_", "")
        if not (plain.startswith(family) or family.startswith(plain)) or cam not in names or iba not in names:
            continue
        if not deepest or order.index(cam) > order.index(deepest["cam"]):
            deepest = {"cam": cam, "iba": iba}
    return deepest


def _behind(name: str, names: dict[str, nn.Module]) -> str:
    parent, _, child_name = name.rpartition(".")
    container = names[parent]
    if not isinstance(container, nn.Sequential):
        return name
    children = list(container._modules)
    last = child_name
    for child in children[children.index(child_name) + 1 :]:
        if not isinstance(container._modules[child], FOLLOWERS):
            break
        last = child
    return f"{parent}.{last}" if parent else last
