"""FullGrad: what the input and every bias of a network contribute to a logit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from salrun.methods.bilinear import resize
from salrun.methods.chunking import gather_chunked
from salrun.models.classifier import Classifier, check_targets, not_a_number, pick
from salrun.rng import Draws
from salrun.types import Fitted, Method


def bias_of(layer: nn.Module) -> Tensor | None:
    """What a layer with feature maps adds to each channel: its bias; of a batch norm beta - gamma mean / std."""
    if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
        return layer.bias
    if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None and layer.running_var is not None:
        gain = torch.rsqrt(layer.running_var + layer.eps)
        gain = gain if layer.weight is None else gain * layer.weight
        return -layer.running_mean * gain if layer.bias is None else layer.bias - layer.running_mean * gain
    return None


@dataclass
class FullGrad(Method):
    """psi(x g) + sum over layers l of psi(b_l dy_c/dz_l), g = dy_c/dx, z_l = W_l u + b_l, summed over channels.

    Srinivas, Fleuret 2019. In a ReLU network sum(x g) + sum_l sum(b_l dy_c/dz_l) = y_c. psi: absolute value, then the
    image's values over all channels scaled to [0, 1], then bilinear to the image. Biases of layers without feature
    maps (linear ones) have no place in the image and are left out, as in the authors' code; their bilinear rule is
    `align_corners: true`.
    """

    align_corners: bool = True
    space: Literal["norm", "raw"] = "norm"

    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "FullGrad"
    source: ClassVar[str] = "Srinivas, Fleuret 2019, arXiv:1905.00780"
    layout_free = True

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        return gather_chunked(lambda part: self.map(model, x[part], target[part]), len(x), fitted.chunk)

    def map(self, model: Classifier, x: Tensor, target: Tensor) -> Tensor:
        planes: dict[torch.Size, Tensor] = {}  # those of a size are resized at once
        for contribution in self.contributions(model, x, target):
            plane = unit_sum(contribution)
            planes[plane.shape] = planes.get(plane.shape, 0) + plane
        return torch.stack([resize(plane, x, self.align_corners) for plane in planes.values()]).sum(0)

    def contributions(self, model: Classifier, x: Tensor, target: Tensor) -> list[Tensor]:
        """x g, then b_l dy_c/dz_l of every layer with feature maps in the order of the forward pass."""
        outputs: list[GradientEdge] = []  # not the tensors: what follows may change them in place
        biases: list[Tensor] = []

        def keep(layer: nn.Module, inputs: object, output: Tensor) -> None:
            bias = bias_of(layer)
            if bias is not None and output.dim() == 4 and output.requires_grad:
                outputs.append(get_gradient_edge(output))
                biases.append(bias.detach().view(-1, 1, 1))

        handles = [module.register_forward_hook(keep) for module in model.module.modules()]
        try:
            with torch.enable_grad():
                point = model.enter(x, self.space).detach().requires_grad_(True)
                score = pick(model.head(point, self.space), target)
                places: list[Any] = [point, *outputs]
                gradients = torch.autograd.grad(score.sum(), places, allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        found = [point.detach() * not_a_number(gradients[0], score)]
        return found + [b * g for b, g in zip(biases, gradients[1:], strict=True) if g is not None]


def unit_sum(t: Tensor) -> Tensor:
    """The sum over channels of |t|, each image scaled to [0, 1] over all its channels; zeros where it is constant.

    Overwrites t.
    """
    t = t.abs_()
    low, high = t.amin((1, 2, 3), keepdim=True), t.amax((1, 2, 3), keepdim=True)
    return (t.sum(1, keepdim=True) - t.shape[1] * low) * torch.where(high == low, 0, 1 / (high - low))
