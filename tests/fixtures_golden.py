"""A small network without files, and the attributions that the original libraries give for it.

iNNvestigate 1.0.8, deeplift 0.6.13 and shap 0.39 on Keras 2.2.4 / TensorFlow 1.12, float32. All numbers are sines.
"""

from __future__ import annotations

import math
from decimal import Decimal

import torch
from torch import Tensor, nn

from salrun.models.classifier import Classifier


def sine(shape: tuple[int, ...], scale: float, step: float, offset: float = 0.0) -> Tensor:
    """scale sin(step k) + offset, k = 1.., in C order."""
    k = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return (scale * torch.sin(step * k) + offset).reshape(shape)


class KerasFlatten(nn.Module):
    """Flatten in the order height, width, channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def network() -> Classifier:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3),
        nn.ReLU(),
        KerasFlatten(),
        nn.Linear(20, 6),
        nn.ReLU(),
        nn.Linear(6, 2),
    ).double()
    kernels = {0: ((3, 3, 3, 4), 0.4, 1.3, 0.0), 2: ((3, 3, 4, 5), 0.3, 0.9, 0.05)}
    matrices = {5: ((20, 6), 0.5, 1.1, 0.0), 7: ((6, 2), 0.6, 1.9, 0.5)}
    with torch.no_grad():
        for i, numbers in kernels.items():
            net[i].weight.copy_(sine(*numbers).permute(3, 2, 0, 1))
        for i, numbers in matrices.items():
            net[i].weight.copy_(sine(*numbers).T)
        for i, step in {0: 2.1, 2: 1.7, 5: 0.8, 7: 2.9}.items():
            net[i].bias.copy_(sine(tuple(net[i].bias.shape), 0.1, step))
    return Classifier(net, layers={"cam": "3"}, name="golden").double().eval()


def picture(step: float) -> Tensor:
    """(1, 3, 9, 9): |sin(step k)| in the order height, width, channel."""
    return sine((1, 9, 9, 3), 1.0, step).abs().permute(0, 3, 1, 2).contiguous()


def image() -> Tensor:
    x = picture(0.37)
    x[:, :, :3] = 0
    return x


def background() -> Tensor:
    return torch.cat([torch.zeros_like(image()), *(picture(0.2 + 0.1 * m) for m in (1, 2, 3))])


OUTPUTS = ("0.09936", "0.042835")
GAIN = "-0.0573375"  # f(x) - f(0)

# Printed digits: sum, sum of |a|, three channels at [4, 4], channel sums at [2, 4] and [7, 5].
ROWS: dict[str, str] = {
    "gradient": "-0.041636 11.194 0.17482 0.15493 -0.029644 -0.03045 0.034634",
    "deconvnet": "0.094389 2.3047 0.038687 0.0641 0.021376 -0.0013235 0.0041563",
    "guided_backprop": "0.018641 0.57047 0.0066541 0.019279 0.011411 -0.0055034 0.000417",
    "deep_taylor": "0.073241 0.073241 0.0012817 0.0025725 0.0028317 0.002203 0.00049993",
    "input_x_gradient": "-0.0046591 5.2287 0.12390 0.14190 -0.029616 0 0.058351",
    "integrated_gradients/inn108": "0.042217 16.308 -0.33863 -0.45468 0.012598 0 -0.14333",
    "lrp_z": "-0.0046591 5.2287 0.1239 0.1419 -0.029616 0 0.058351",
    "lrp_epsilon": "-3.3198e-05 0.0027896 -8.4646e-05 -2.8093e-05 9.0606e-05 0 -5.8287e-05",
    "lrp_a_flat": "0.00010941 0.0011608 1.0482e-05 1.0482e-05 1.0482e-05 -1.2516e-05 9.4645e-06",
    "lrp_b_flat": "0.00015284 0.0029371 5.2831e-05 5.2831e-05 5.2831e-05 8.9525e-06 -2.0005e-05",
    "deeplift_reveal_cancel": "-0.057338 4.6742 0.12251 0.11573 -0.071676 0 0.041251",
    "deeplift_rescale": "-0.057337 8.9556 0.11774 -0.21946 -0.39029 0 0.11163",
    "integrated_gradients": "-0.065417 13.738 0.42898 0.11635 -0.48579 0 0.19176",
    "deep_shap/0": "-0.72221 10.738 0.10866 -0.03165 -0.051768 0.072338 -0.050901",
    "deep_shap/1": "-0.86426 11.196 0.081671 -0.088344 0.057818 0.4229 -0.075074",
}
CAM_WEIGHTS = ("6.7e-5", "3.72e-4", "6.39e-4", "8.44e-4", "9.64e-4")
CAM = (("1.401e-3", "1.063e-3"), ("7.49e-4", "1.199e-3"))


def summary(raw: Tensor) -> list[float]:
    """The numbers of a row, for an attribution (1, 3, 9, 9)."""
    a = raw[0]
    return torch.stack([a.sum(), a.abs().sum(), *a[:, 4, 4], a[:, 2, 4].sum(), a[:, 7, 5].sum()]).tolist()


def tolerance(printed: str) -> float:
    """Half a unit of the last printed digit, and 1e-4 of the value."""
    number = Decimal(printed)
    return 0.5 * 10.0 ** int(number.as_tuple().exponent) + 1e-4 * abs(float(number)) if number else 1e-12
