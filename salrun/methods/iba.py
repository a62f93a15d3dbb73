"""IBA: how many bits of a layer's features the network needs for the class, by adding as much noise as it can bear."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from salrun.errors import SalrunError
from salrun.methods.chunking import run_grid
from salrun.methods.layers import layer_output
from salrun.methods.variants import log_probability, wide
from salrun.models.classifier import check_targets
from salrun.ranges import Above, AtLeast
from salrun.types import FeatureStats, Fitted, Method

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier
    from salrun.rng import Draws

log = logging.getLogger(__name__)


def go_on(model: Classifier, layer: str, point: Tensor, output: Tensor) -> Tensor:
    """Logits of normalised images `point` where `layer` gives `output` instead of its own."""
    calls: list[nn.Module] = []

    def replace(module: nn.Module, inputs: object, own: object) -> Tensor:
        calls.append(module)
        return output

    handle = model.layer(layer).register_forward_hook(replace)
    try:
        logits = model.module(point)
    finally:
        handle.remove()
    if len(calls) > 1:
        raise SalrunError(
            f"layer '{layer}' of model '{model.name}' runs {len(calls)} times a pass; IBA needs one place"
        )
    return logits


def takes_channels_last(model: Classifier, layer: str, point: Tensor, output: Tensor) -> bool:
    """Does the network behind `layer` run on features whose channels are last in memory? (`view` may refuse them.)"""
    try:
        go_on(model, layer, point[:1], output[:1].clone(memory_format=torch.channels_last))
    except RuntimeError:
        return False
    return True


def is_cut(model: Classifier, layer: str, point: Tensor, output: Tensor) -> bool:
    """Do the logits depend on the input through `layer` alone? Then any one image serves for what comes before it.

    Read off the graph: with the layer's output replaced, no gradient reaches the input; and the output may have another
    number of images than the input.
    """
    with torch.enable_grad():
        one = point[:1].detach().requires_grad_(True)
        try:
            logits = go_on(model, layer, one, output[:1].detach().repeat(2, 1, 1, 1))
        except RuntimeError:  # the network counts its images at the input
            return False
        if len(logits) != 2:
            return False
        return not logits.requires_grad or torch.autograd.grad(logits.sum(), one, allow_unused=True)[0] is None


@torch.no_grad()
def fit_feature_stats(
    model: Classifier, layer: str, batches: Iterable[Tensor], threshold: float = 0.01
) -> FeatureStats:
    """Mean, standard deviation (n - 1) and activity of each neuron of `layer` over raw images, in one pass.

    A neuron is active if it is not zero for more than `threshold` of the images. Batches are joined by Chan's form of
    Welford's update, in float64.
    """
    n = 0
    mean = square = nonzero = wide(torch.zeros((), device=model.mean.device))
    for x in batches:
        r = wide(layer_output(model, x, layer))
        shift = r.mean(0) - mean
        square = square + (r - r.mean(0)).square().sum(0) + shift.square() * (n * len(r) / (n + len(r)))
        mean = mean + shift * (len(r) / (n + len(r)))
        nonzero = nonzero + (r != 0).sum(0)
        n += len(r)
    if n < 2:
        raise SalrunError(f"feature statistics of layer '{layer}' need at least 2 images, got {n}")
    if n < 1000:
        log.warning("feature statistics of layer '%s' rest on %d images: 1000 or more are advised", layer, n)
    std = (square / (n - 1)).sqrt()
    return FeatureStats(mean.float(), std.float(), nonzero > threshold * n, n)


def blur_matrix(size: int, sigma: float, like: Tensor) -> Tensor:
    """(size, size): convolution with a normalised Gaussian of 2 round(2 sigma) + 1 points, borders reflected."""
    radius = round(2 * sigma)
    if radius >= size:
        raise SalrunError(f"sigma of IBA must leave a blur narrower than the {size}-pixel feature map, got {sigma}")
    offset = torch.arange(-radius, radius + 1, dtype=like.dtype, device=like.device)
    kernel = torch.exp(-0.5 * (offset / sigma) ** 2)
    unit = torch.eye(size, dtype=like.dtype, device=like.device).unsqueeze(1)
    padded = functional.pad(unit, (radius, radius), mode="reflect")
    return functional.conv1d(padded, (kernel / kernel.sum()).view(1, 1, -1)).squeeze(1).T


def information(r: Tensor, keep: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """KL(N(keep u, (1 - keep)^2) || N(0, 1)), u = (r - mean) / std, in nats: what the noise lets through."""
    variance = ((1 - keep) ** 2).clamp(min=1e-12)
    return -0.5 * (1 + variance.log() - (keep * (r - mean) / std) ** 2 - variance)


def adam(moments: tuple[Tensor, Tensor], gradient: Tensor, step: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Adam (Kingma and Ba 2015, default constants), element by element: new moments and the direction to subtract."""
    first = 0.9 * moments[0] + 0.1 * gradient
    second = 0.999 * moments[1] + 0.001 * gradient**2
    corrected = (second / (1 - 0.999**step)).sqrt() + 1e-8
    return (first, second), first / (1 - 0.9**step) / corrected


@dataclass
class IBA(Method):
    """Map = bits that pass a noisy gate behind `layer`: sum over channels of KL / ln 2, as a density over pixels.

    Schulz, Sixt, Tombari, Landgraf, "Restricting the Flow: Information Bottlenecks for Attribution", ICLR 2020, the
    Per-Sample Bottleneck. Features r become z = k r + (1 - k) e, e ~ N(mean, std^2) over the training images,
    k = blur(sigmoid(alpha)) with a Gaussian of width `sigma`; alpha, one number per neuron of each image, goes down
    -log p_c averaged over `copies` draws of e plus `beta` times the mean KL, by `steps` of Adam. The map is that of the
    last forward pass, so the last update is never made. `relu` clamps z at 0 (layers behind a ReLU). `noise` is drawn
    for each image, or once for all images (`shared`), which is faster where the network behind the layer is small.
    """

    layer: str = "iba"
    beta: Annotated[float, AtLeast(0)] = 10.0
    steps: Annotated[int, AtLeast(1)] = 10
    lr: Annotated[float, Above(0)] = 1.0
    copies: Annotated[int, AtLeast(1)] = 10
    sigma: Annotated[float, Above(0)] = 1.0
    initial_alpha: float = 5.0
    min_std: Annotated[float, Above(0)] = 0.01
    relu: bool = False
    noise: Literal["image", "shared"] = "image"

    needs: ClassVar[frozenset[str]] = frozenset({"feature_stats", "layer"})
    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "IBA"
    source: ClassVar[str] = "Schulz et al., ICLR 2020"
    foldable = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 1.0 + 3.0 * (self.steps - 1) * self.copies

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        layer, stats = fitted.layer or self.layer, fitted.feature_stats
        if stats is None:
            raise SalrunError(f"IBA needs the feature statistics of layer '{layer}' over training images (background=)")
        output = layer_output(model, x, layer, fitted.chunk)
        if stats.mean.shape != output.shape[1:]:
            raise SalrunError(
                f"feature statistics of shape {tuple(stats.mean.shape)} do not fit layer '{layer}' of model "
                f"'{model.name}', which gives {tuple(output.shape[1:])}"
            )
        point = model.normalise(x)
        cut = is_cut(model, layer, point, output)
        relay = x.device.type != "cpu" or not takes_channels_last(model, layer, point, output)
        # From here on channels are last, (B, h, w, C): the layout in which a processor's convolutions are fastest.
        r = output.movedim(1, -1).contiguous()
        mean, std, active = (t.movedim(0, -1).to(r).contiguous() for t in (stats.mean, stats.std, stats.active))
        std = std.clamp(min=self.min_std)
        rows, columns = (blur_matrix(size, self.sigma, r) for size in r.shape[1:3])

        def keep_and_nats(alpha: Tensor) -> tuple[Tensor, Tensor]:
            keep = columns @ (rows @ alpha.sigmoid().flatten(2)).view_as(alpha)
            return keep, information(r, keep, mean, std) * active

        def loss_gradient(keep: Tensor, step: int) -> Tensor:
            """d/d keep of -log p_c, averaged over the copies, by way of z = m + s n, n ~ N(0, 1)."""
            m, s = torch.lerp(mean, r, keep) * active, (1 - keep) * std * active  # inactive neurons: 0
            total_m, total_s = torch.zeros_like(keep), torch.zeros_like(keep)

            def add(images: slice, part: slice) -> None:
                k = part.stop - part.start
                start = (step * self.copies + part.start) * r[0].numel()
                normal = rng[images].normal("iba", (k, *r.shape[1:]), start, shared=self.noise == "shared").to(r)
                before = point[:1] if cut else point[images].repeat_interleave(k, 0)
                with torch.enable_grad():
                    middle, spread = (t[images, None].detach().requires_grad_(True) for t in (m, s))
                    z = torch.addcmul(middle, spread, normal).movedim(-1, 2)
                    z = z.contiguous() if relay else z
                    z = z.clamp(min=0) if self.relu else z
                    p = log_probability(lambda output: go_on(model, layer, before, output), z, target[images])
                    by_m, by_s = torch.autograd.grad(-p.sum() / self.copies, (middle, spread))
                total_m[images].add_(by_m.squeeze(1))
                total_s[images].add_(by_s.squeeze(1))

            run_grid(add, len(x), self.copies, fitted.chunk)
            return (total_m * (r - mean) - total_s * std) * active

        alpha = torch.full_like(r, self.initial_alpha)
        moments = torch.zeros_like(r), torch.zeros_like(r)
        for step in range(1, self.steps):
            with torch.enable_grad():
                leaf = alpha.requires_grad_(True)
                keep, nats = keep_and_nats(leaf)
                pull = loss_gradient(keep.detach(), step)
                loss = (pull * keep).sum() + self.beta * nats.flatten(1).mean(1).sum()
                gradient = torch.autograd.grad(loss, leaf)[0]
            moments, direction = adam(moments, gradient, step)
            alpha = alpha.detach() - self.lr * direction
        bits = keep_and_nats(alpha)[1].sum(-1).unsqueeze(1) / math.log(2)
        density = bits * (bits.shape[2] * bits.shape[3] / (x.shape[2] * x.shape[3]))
        return functional.interpolate(density, size=x.shape[2:], mode="bilinear", align_corners=False)
