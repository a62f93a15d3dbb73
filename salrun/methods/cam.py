"""Class activation maps: a weighted sum over the channels of a layer, resized to the image (bilinear).

The layer is a convolution's, or one of a transformer: its channels are then the features of the tokens, its places the
grid of the patches; the class token and other tokens that are no patch are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.methods.bilinear import resize
from salrun.methods.chunking import places, run_pairs, shared_pass
from salrun.methods.layers import feature_maps, layer_output
from salrun.methods.variants import wide
from salrun.models.classifier import Classifier, check_classes, check_targets, pick
from salrun.ranges import Above, AtLeast
from salrun.rng import Draws
from salrun.types import Fitted, Method


def weighted(activation: Tensor, weight: Tensor) -> Tensor:
    """sum_k w_k A_k: (B, K, h, w) and (B, K) -> (B, 1, h, w)."""
    return torch.einsum("bkhw,bk->bhw", activation, weight).unsqueeze(1)


def layer_and_gradient(
    model: Classifier, x: Tensor, target: Tensor, fitted: Fitted, layer: str
) -> tuple[Tensor, Tensor]:
    """A and dy_c/dA of the layer, each (B, K, h, w)."""
    done = shared_pass(model, x, target, fitted, layer)
    outputs = done.activation, done.activation_gradient
    activation, gradient = (feature_maps(t, layer, model, x.shape[2:]) for t in outputs)
    if outputs[1] is not None and outputs[1].dim() == 3:
        check_reached(gradient, outputs[1], model, layer)
    return activation, gradient


def check_reached(gradient: Tensor, of_tokens: Tensor, model: Classifier, layer: str) -> None:
    """Raise where the head reads the class token alone, and the layer's patches no longer reach it: no map of zeros."""
    if len(places(of_tokens != 0)) and not len(places(gradient != 0)):
        raise SalrunError(
            f"the patches of layer '{model.layers.get(layer, layer)}' do not reach the logits of model '{model.name}', "
            f"only its class token does: give layer=<one before the last attention>"
        )


@dataclass
class GradCAM(Method):
    """ReLU(sum_k w_k A_k), w_k = mean_ij dy_c/dA_kij, bilinear to the image.

    Selvaraju et al. 2017. `order: resize_then_relu` is SMERF's; `relu: false` is the sum as it is. A map that is
    nowhere positive comes out as zeros.
    """

    relu: bool = True
    order: Literal["relu_then_resize", "resize_then_relu"] = "relu_then_resize"
    layer: str = "cam"

    needs: ClassVar[frozenset[str]] = frozenset({"layer"})
    paper_name: ClassVar[str] = "Grad-CAM"
    source: ClassVar[str] = "Selvaraju et al. 2017, arXiv:1610.02391"
    foldable = True

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        activation, gradient = layer_and_gradient(model, x, target, fitted, fitted.layer or self.layer)
        cam = weighted(activation, gradient.mean((2, 3)))
        if not self.relu:
            return resize(cam, x)
        return resize(cam, x).relu() if self.order == "resize_then_relu" else resize(cam.relu(), x)


@dataclass
class GradCAMPlusPlus(Method):
    """ReLU(sum_k w_k A_k), w_k = sum_ij alpha_kij ReLU(g_kij), alpha = g^2 / (2 g^2 + S_k g^3), g = dy_c/dA,
    S_k = sum_ij A_kij.

    Chattopadhay et al. 2018, for a score exp(y_c). Where g > 0 alpha is 1 / (2 + S_k g), computed as such; elsewhere it
    does not matter. `eps: 1e-6` puts eps into the first denominator, as pytorch-grad-cam does: alpha then depends on
    the scale of g, which is often below 1e-3.
    """

    eps: Annotated[float, Above(0)] | None = None
    layer: str = "cam"

    needs: ClassVar[frozenset[str]] = frozenset({"layer"})
    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "Grad-CAM++"
    source: ClassVar[str] = "Chattopadhay et al. 2018, arXiv:1710.11063"
    foldable = True

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        activation, gradient = layer_and_gradient(model, x, target, fitted, fitted.layer or self.layer)
        positive, total = gradient.relu(), activation.sum((2, 3), keepdim=True)
        if self.eps is None:
            each = positive.div_((total * positive).add_(2))
        else:
            each = positive**3 / (2 * positive**2 + total * positive**3 + self.eps)
        return resize(weighted(activation, each.sum((2, 3))).relu(), x)


@dataclass
class LayerCAM(Method):
    """sum_k ReLU(g_kij) ReLU(A_kij), g = dy_c/dA: each place has weights of its own.

    Jiang et al. 2021. Meant for shallow layers too (`layer`); behind a ReLU the second one changes nothing.
    """

    layer: str = "cam"

    needs: ClassVar[frozenset[str]] = frozenset({"layer"})
    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "Layer-CAM"
    source: ClassVar[str] = "Jiang et al. 2021, doi:10.1109/TIP.2021.3089943"
    foldable = True

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        activation, gradient = layer_and_gradient(model, x, target, fitted, fitted.layer or self.layer)
        return resize((gradient.relu() * activation).sum(1, keepdim=True).relu(), x)


@dataclass
class XGradCAM(Method):
    """ReLU(sum_k w_k A_k), w_k = sum_ij A_kij g_kij / sum_ij A_kij, g = dy_c/dA: 0 for a channel that sums to 0.

    Fu et al. 2020. Equal to Grad-CAM where the layer's gradient is the same at every place.
    """

    layer: str = "cam"

    needs: ClassVar[frozenset[str]] = frozenset({"layer"})
    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "XGrad-CAM"
    source: ClassVar[str] = "Fu et al. 2020, arXiv:2008.02312"
    foldable = True

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        activation, gradient = layer_and_gradient(model, x, target, fitted, fitted.layer or self.layer)
        total = activation.sum((2, 3))
        weight = (activation * gradient).sum((2, 3)) / torch.where(total == 0, 1, total)
        return resize(weighted(activation, torch.where(total == 0, 0 * total, weight)).relu(), x)


@dataclass
class EigenCAM(Method):
    """A v, v the first right singular vector of the layer's output A as a matrix (places, channels): no class is asked.

    Muhammad, Yeasin 2020. The sign of v is free: the map sums to a number >= 0, and behind a ReLU has no negative
    value. `centred` takes each channel's mean off A first, as pytorch-grad-cam does; the larger end is then positive.
    """

    centred: bool = False
    layer: str = "cam"

    needs: ClassVar[frozenset[str]] = frozenset({"layer"})
    sees_class: ClassVar[bool] = False
    paper_name: ClassVar[str] = "Eigen-CAM"
    source: ClassVar[str] = "Muhammad, Yeasin 2020, arXiv:2008.00299"
    foldable = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 1.0

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        activation = layer_output(model, x, fitted.layer or self.layer, fitted.chunk, stop=False)
        matrix = wide(activation).flatten(2).mT
        matrix = matrix - matrix.mean(1, keepdim=True) if self.centred else matrix
        finite = matrix.isfinite().all(2).all(1)[:, None, None]
        plane = first_component(torch.where(finite, matrix, 0)).where(finite, torch.nan)
        end = plane.amax(1, keepdim=True) + plane.amin(1, keepdim=True) if self.centred else plane.sum(1, keepdim=True)
        plane = plane * torch.where(end < 0, -1, 1)
        return resize(plane.to(activation).view(len(x), 1, *activation.shape[2:]), x)


def first_component(matrix: Tensor) -> Tensor:
    """A v of matrices A (B, n, m), (B, n, 1): from A^T A, or from A A^T, whose vector is A v / |A v|, if smaller."""
    if matrix.shape[1] <= matrix.shape[2]:
        value, vector = torch.linalg.eigh(matrix @ matrix.mT)
        return vector[:, :, -1:] * value[:, None, -1:].clamp(min=0).sqrt()
    return matrix @ torch.linalg.eigh(matrix.mT @ matrix).eigenvectors[:, :, -1:]


@dataclass
class ScoreCAM(Method):
    """ReLU(sum_k w_k A_k), w_k from the score of x * M_k, M_k = A_k resized to the image and scaled to [0, 1].

    Wang et al. 2020. `variant`: `gradcam_lib` w = softmax_k(logit) (as in pytorch-grad-cam and the paper's text; the
    baseline term cancels in the softmax), `official` w = probability (the authors' code), `probability_softmax`
    w = softmax_k(probability). `channels`: only so many of an image, those of the largest mean activation, as if the
    layer had no others; `None`: all, as published.

    A channel that is the same everywhere has no mask, (A_k - min) / (max - min) being 0 / 0: it gets weight 0, also in
    the softmax, and is not shown to the model. Nearly always it is zero everywhere, dead behind a ReLU, and adds
    nothing to the sum whatever its weight. If an empty mask stood for 0 / 0, each would have the score of the empty
    image: `official` maps would be the same, those of a softmax smaller by one factor per image, since the weights of
    the other channels keep their ratios.
    """

    variant: Literal["gradcam_lib", "official", "probability_softmax"] = "gradcam_lib"
    mask_space: Literal["norm", "raw"] = "norm"
    align_corners: bool = False
    layer: str = "cam"
    channels: Annotated[int, AtLeast(1)] | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"layer"})
    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "Score-CAM"
    source: ClassVar[str] = "Wang et al. 2020, arXiv:1910.01279"
    forward_only: ClassVar[bool] = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        probe = torch.zeros(1, *shape, dtype=model.mean.dtype, device=model.mean.device)
        return 1.0 + most_active(layer_output(model, probe, self.layer), self.channels).shape[1]

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        activation = layer_output(model, x, fitted.layer or self.layer, fitted.chunk, stop=False)
        activation = most_active(activation, self.channels)
        point = model.enter(x, self.mask_space)
        constant = activation.amax((2, 3)) == activation.amin((2, 3))
        pairs, planes = places(~constant), activation.flatten(0, 1).unsqueeze(1)
        scores = torch.zeros(len(planes), dtype=x.dtype, device=x.device)

        def step(part: slice) -> None:
            image = pairs[part] // activation.shape[1]
            mask = unit_range(resize(planes[pairs[part]], x, self.align_corners))
            output = model.head(point[image] * mask, self.mask_space)
            if self.variant != "gradcam_lib":
                check_classes(output)
                output = softmax(output)
            scores[pairs[part]] = pick(output, target[image])

        run_pairs(step, len(pairs), len(x), fitted.chunk)
        scores = scores.view_as(constant)
        weight = scores if self.variant == "official" else softmax(scores.masked_fill(constant, -torch.inf))
        return resize(weighted(activation, weight.masked_fill(constant, 0)).relu(), x)


def most_active(activation: Tensor, channels: int | None) -> Tensor:
    """The `channels` of each image with the largest mean, in the layer's order; all where it has no more, or None."""
    if channels is None or channels >= activation.shape[1]:
        return activation
    chosen = activation.mean((2, 3)).argsort(dim=1, descending=True, stable=True)[:, :channels].sort(dim=1).values
    return activation.gather(1, chosen[:, :, None, None].expand(-1, -1, *activation.shape[2:]))


def unit_range(planes: Tensor) -> Tensor:
    """Each plane scaled to [0, 1]; a constant plane gives zeros."""
    low, high = planes.amin((-2, -1), keepdim=True), planes.amax((-2, -1), keepdim=True)
    return (planes - low) / torch.where(high == low, 1, high - low)


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis, finished in float64."""
    return wide(scores).softmax(-1).to(scores)


@dataclass
class FakeCAM(Method):
    """1 everywhere but 0 at the top left pixel, whatever the image and the model.

    Poppi et al. 2021: the control that fools average drop and average increase.
    """

    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "Fake-CAM"
    source: ClassVar[str] = "Poppi et al. 2021, arXiv:2104.10252"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 0.0

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        plane = torch.ones_like(x[:, :1])
        plane[:, :, 0, 0] = 0
        return plane
