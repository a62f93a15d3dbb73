"""The class's score of many variants of each image in one forward pass: what RISE, LIME, IBA and others share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from salrun.models.classifier import check_classes


def wide(t: Tensor) -> Tensor:
    """`t` in float64, on the CPU where the device has none."""
    return (t.cpu() if t.device.type == "mps" else t).double()


def log_probability(network: Callable[[Tensor], Tensor], variants: Tensor, target: Tensor) -> Tensor:
    """log p_c, c = target[b], of `variants` (B, k, C, H, W): (B, k) float64."""
    logits = wide(network(variants.flatten(0, 1))).unflatten(0, variants.shape[:2])
    check_classes(logits)
    index = target.to(logits.device).view(-1, 1, 1).expand(-1, logits.shape[1], 1)
    return logits.log_softmax(2).gather(2, index).squeeze(2)


def class_score(
    network: Callable[[Tensor], Tensor], variants: Tensor, target: Tensor, output: Literal["logit", "probability"]
) -> Tensor:
    """y_c or p_c, c = target[i], of single variants (N, C, H, W): (N,) float64."""
    logits = wide(network(variants))
    if output == "probability":
        check_classes(logits)
    scores = logits if output == "logit" else logits.softmax(1)
    return scores.gather(1, target.to(scores.device).unsqueeze(1)).squeeze(1)
