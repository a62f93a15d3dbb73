"""Which layers of a module nobody here wrote CAM and IBA read, where the user does not say."""

from __future__ import annotations

from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
FOLLOWERS = (nn.BatchNorm2d, nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.LeakyReLU, nn.ELU)


def find_layers(module: nn.Module) -> dict[str, str]:
    """{"cam": .., "iba": ..}: a ResNet's layer4 and layer2; else behind the last and the middle convolution.

    "Behind" means after the normalisation and activation that follow it in the same `nn.Sequential`. Empty where the
    module has no convolution.
    """
    names = dict(module.named_modules())
    if "layer4" in names and "layer2" in names:
        return {"cam": "layer4", "iba": "layer2"}
    convolutions = [name for name, m in names.items() if isinstance(m, CONVOLUTIONS)]
    if not convolutions:
        return {}
    return {"cam": _behind(convolutions[-1], names), "iba": _behind(convolutions[len(convolutions) // 2], names)}


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
