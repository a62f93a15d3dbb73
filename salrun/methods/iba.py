"""IBA: how many bits of a layer's features the network needs for the class, by adding as much noise as it can bear."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from salrun.errors import SalrunError
from salrun.methods.bilinear import resize
from salrun.methods.chunking import run_grid
from salrun.methods.layers import as_output, layer_output
from salrun.methods.variants import log_probability, wide
from salrun.models.classifier import check_targets
from salrun.ranges import Above, AtLeast
from salrun.types import FeatureStats, Fitted, Method

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier
    from salrun.rng import Draws

log = logging.getLogger(__name__)
LEAST = 1e-12  # of a variance


def go_on(model: Classifier, layer: str, point: Tensor, output: Tensor) -> Tensor:
    """Logits of normalised images `point` where `layer` gives the maps `output` instead of its own."""
    calls: list[nn.Module] = []

    def replace(module: nn.Module, inputs: object, own: object) -> Any:
        calls.append(module)
        return as_output(output, own, module)

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


def entry(model: Classifier, layer: str, point: Tensor, output: Tensor) -> Callable[[Tensor], Tensor]:
    """How features whose channels are last in memory enter the network behind `layer`, on the way that costs least.

    As they are; copied, where the network changes them in place; or with channels first (`view` may refuse them last).
    """
    if output.device.type == "cpu":
        with torch.enable_grad():
            leaf = output[:1].clone(memory_format=torch.channels_last).requires_grad_(True)
            for way in (lambda z: z, torch.clone):
                try:
                    go_on(model, layer, point[:1], way(leaf))
                except RuntimeError:
                    continue
                return way
    return lambda z: z.clone(memory_format=torch.contiguous_format)


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


def blurred(t: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`rows` over the first, `columns` over the second axis of (B, h, w, C)."""
    return columns @ (rows @ t.flatten(2)).view_as(t)


def information(keep: Tensor, u: Tensor) -> Tensor:
    """KL(N(keep u, (1 - keep)^2) || N(0, 1)), in nats: what the noise lets through of a feature of u deviations."""
    variance = ((1 - keep) ** 2).clamp(min=LEAST)
    return -0.5 * (1 + variance.log() - (keep * u) ** 2 - variance)


def information_slope(keep: Tensor, u: Tensor) -> Tensor:
    """d/d keep of `information`: keep u^2 + 1 / (1 - keep) - (1 - keep), the first alone where no noise is left."""
    rest = 1 - keep
    noisy = rest.square().ge(LEAST)
    return torch.where(noisy, 1 / rest - rest, 0).addcmul_(keep, u.square())


class Adam:
    """Adam (Kingma and Ba 2015, default constants), element by element."""

    def __init__(self, like: Tensor) -> None:
        self.first, self.second, self.step = torch.zeros_like(like), torch.zeros_like(like), 0

    def direction(self, gradient: Tensor) -> Tensor:
        """What to subtract, times the rate."""
        self.step += 1
        self.first.lerp_(gradient, 0.1)
        self.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        corrected = (self.second / (1 - 0.999**self.step)).sqrt_().add_(1e-8)
        return torch.div(self.first, corrected, out=corrected).div_(1 - 0.9**self.step)


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
        enter = entry(model, layer, point, output)
        # From here on channels are last, (B, h, w, C): the layout in which a processor's convolutions are fastest.
        r = output.movedim(1, -1).contiguous()
        mean, std, active = (t.movedim(0, -1).to(r).contiguous() for t in (stats.mean, stats.std, stats.active))
        std = std.clamp(min=self.min_std)
        u = (r - mean) / std
        rows, columns = (blur_matrix(size, self.sigma, r) for size in r.shape[1:3])

        def loss_gradient(keep: Tensor, step: int) -> Tensor:
            """d/d keep of -log p_c, averaged over the copies, by way of z = m + s n, n ~ N(0, 1)."""
            m, s = torch.lerp(mean, r, keep) * active, (1 - keep) * std * active  # inactive neurons: 0
            by_m, by_s = torch.zeros_like(keep), torch.zeros_like(keep)

            def add(images: slice, part: slice) -> None:
                k = part.stop - part.start
                start = (step * self.copies + part.start) * r[0].numel()
                normal = rng[images].normal("iba", (k, *r.shape[1:]), start, shared=self.noise == "shared").to(r)
                before = point[:1] if cut else point[images].repeat_interleave(k, 0)
                z = torch.addcmul(m[images, None], s[images, None], normal)
                with torch.enable_grad():
                    leaf = z.movedim(-1, 2).requires_grad_(True)
                    features = enter(leaf.clamp(min=0) if self.relu else leaf)
                    p = log_probability(lambda output: go_on(model, layer, before, output), features, target[images])
                    by_z = torch.autograd.grad(-p.sum() / self.copies, leaf)[0].movedim(2, -1)
                by_m[images].add_(by_z.sum(1))
                by_s[images].add_(torch.mul(by_z, normal, out=z).sum(1))

            run_grid(add, len(x), self.copies, fitted.chunk)
            return by_m.mul_(u).sub_(by_s).mul_(std)

        alpha, adam = torch.full_like(r, self.initial_alpha), Adam(r)
        for step in range(1, self.steps):
            gate = alpha.sigmoid()
            keep = blurred(gate, rows, columns)
            by_keep = loss_gradient(keep, step).add_(information_slope(keep, u), alpha=self.beta / r[0].numel())
            gradient = blurred(by_keep.mul_(active), rows.T, columns.T).mul_(gate).mul_(1 - gate)
            alpha.sub_(adam.direction(gradient), alpha=self.lr)
        nats = information(blurred(alpha.sigmoid(), rows, columns), u) * active
        bits = nats.sum(-1).unsqueeze(1) / math.log(2)
        density = bits * (bits.shape[2] * bits.shape[3] / (x.shape[2] * x.shape[3]))
        return resize(density, x)
