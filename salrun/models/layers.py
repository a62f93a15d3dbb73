"""Which layers of a module nobody here wrote CAM and IBA read, where the user does not say."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
FOLLOWERS = (nn.BatchNorm2d, nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.LeakyReLU, nn.ELU)


def find_layers(module: nn.Module) -> dict[str, str]:
    """{"cam": .., "iba": ..}: a ResNet's layer4 and layer2, a torchvision network's own; else behind the last and the
    middle convolution.

    "Behind" means after the normalisation and activation that follow it in the same `nn.Sequential`. Empty where the
    module has no convolution.
    """
    names = dict(module.named_modules())
    if "layer4" in names and "layer2" in names:
        return {"cam": "layer4", "iba": "layer2"}
    known = _of_torchvision(module, names)
    if known:
        return known
    convolutions = [name for name, m in names.items() if isinstance(m, CONVOLUTIONS)]
    if not convolutions:
        return {}
    return {"cam": _behind(convolutions[-1], names), "iba": _behind(convolutions[len(convolutions) // 2], names)}


def _of_torchvision(module: nn.Module, names: Mapping[str, nn.Module]) -> dict[str, str]:
    """The layers of a network of torchvision's, by its family; of the family's depths, the deepest that it has."""
    home, _, family = type(module).__module__.rpartition(".")
    if home != "torchvision.models":
        return {}
    from salrun.models.torchvision import LAYERS

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
    parent, _, own = name.rpartition(".")
    container = names[parent]
    if not isinstance(container, nn.Sequential):
        return name
    children = list(container._modules)
    last = own
    for child in children[children.index(own) + 1 :]:
        if not isinstance(container._modules[child], FOLLOWERS):
            break
        last = child
    return f"{parent}.{last}" if parent else last
