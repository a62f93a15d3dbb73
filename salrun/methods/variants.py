"""The class probability of many variants of each image in one forward pass: what RISE, LIME and IBA share."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def wide(t: Tensor) -> Tensor:
    """`t` in float64, on the CPU where the device has none."""
    return (t.cpu() if t.device.type == "mps" else t).double()


def log_probability(network: Callable[[Tensor], Tensor], variants: Tensor, target: Tensor) -> Tensor:
    """log p_c, c = target[b], of `variants` (B, k, C, H, W): (B, k) float64."""
    logits = wide(network(variants.flatten(0, 1))).unflatten(0, variants.shape[:2])
    index = target.to(logits.device).view(-1, 1, 1).expand(-1, logits.shape[1], 1)
    return logits.log_softmax(2).gather(2, index).squeeze(2)
