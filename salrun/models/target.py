"""A target of one's own: any number that can be computed of a network's output, explained as its only logit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.models.classifier import Classifier

Target = Callable[[Any], Tensor]


def called(target: Target) -> str:
    """The name of a target function."""
    return str(getattr(getattr(target, "func", target), "__name__", "target"))


def only_logit(target: Target, output: Any) -> Tensor:
    """target(output), one number per image, as (B, 1)."""
    found = target(output)
    if not isinstance(found, Tensor) or found.dim() != 1:
        what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise SalrunError(f"target '{called(target)}' must give one number per image, a tensor (B,), got {what}")
    return found.unsqueeze(1)


class Targeted(nn.Module):
    """A network whose only logit is target(output)."""

    def __init__(self, module: nn.Module, target: Target) -> None:
        super().__init__()
        self.module, self.target = module, target

    def forward(self, x: Tensor) -> Tensor:
        return only_logit(self.target, self.module(x))


def targeted(model: Classifier, target: Target, fingerprint: str) -> Classifier:
    """The model with target(logits) for its only logit; layers have the names they had."""
    names = {name: f"module.{name}" for name, _ in model.module.named_modules() if name}
    layers = {role: f"module.{dotted}" for role, dotted in model.layers.items()}
    wrapped = Classifier(Targeted(model.module, target), (), (), {**names, **layers}, model.name, fingerprint)
    wrapped.mean, wrapped.std = model.mean, model.std
    return wrapped.eval()
