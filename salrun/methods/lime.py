"""LIME for images: a local linear model of the class probability over superpixels switched on and off."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.methods.chunking import run_pairs
from salrun.methods.superpixels import superpixels, switched_off
from salrun.methods.variants import log_probability, wide
from salrun.models.classifier import check_targets
from salrun.ranges import Above, AtLeast, Between
from salrun.types import Fitted, Method

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier
    from salrun.rng import Draws


def weighted_ridge(z: Tensor, y: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """argmin_b min_a sum_i weight_i (y_i - a - z_i b)^2 + alpha |b|^2 for each of a batch, in float64.

    z (B, N, n), y and weight (B, N) -> b (B, n). Centring by the weighted means solves for the intercept a.
    """
    share = (weight / weight.sum(1, keepdim=True)).unsqueeze(1)
    weight, y = weight.unsqueeze(2), y.unsqueeze(2)
    z, y = z - share @ z, y - share @ y
    normal = z.mT @ (weight * z)
    normal.diagonal(dim1=1, dim2=2).add_(alpha)
    factor = torch.linalg.cholesky_ex(normal).L  # positive definite, as alpha > 0
    return torch.cholesky_solve(z.mT @ (weight * y), factor).squeeze(2)


@dataclass
class LIME(Method):
    """Map = coefficient of the pixel's superpixel in a weighted ridge regression of p_c.

    Ribeiro, Singh, Guestrin, "Why Should I Trust You?", KDD 2016, as its image explainer does it: N samples, of which
    the first is the image itself, switch each superpixel on with probability 1/2; one that is off shows its mean colour
    (`hide: mean`) or `hide_value` in [0, 1] (`hide: constant`). A sample with k of n on has the distance
    d = 1 - sqrt(k / n) (cosine to all-on) and the weight sqrt(exp(-d^2 / kernel_width^2)). `positive_part` keeps
    max(coefficient, 0). Superpixels are scikit-image's and are found on the CPU, once per image.
    """

    n_samples: Annotated[int, AtLeast(1)] = 1000
    segmentation: Literal["quickshift", "slic"] = "quickshift"
    kernel_size: Annotated[float, AtLeast(1)] = 4.0
    max_dist: Annotated[float, Above(0)] = 200.0
    ratio: Annotated[float, Between(0, 1)] = 0.2
    n_segments: Annotated[int, AtLeast(1)] = 50
    compactness: Annotated[float, Above(0)] = 10.0
    hide: Literal["mean", "constant"] = "mean"
    hide_value: Annotated[float, Between(0, 1)] = 0.0
    kernel_width: Annotated[float, Above(0)] = 0.25
    alpha: Annotated[float, Above(0)] = 1.0
    positive_part: bool = True

    paper_name: ClassVar[str] = "LIME"
    source: ClassVar[str] = "Ribeiro et al., KDD 2016; lime 0.2 image explainer"
    on_host: ClassVar[str] = "superpixels (scikit-image)"
    forward_only: ClassVar[bool] = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return float(self.n_samples)

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        looks = self.n_segments, self.compactness, self.ratio, self.kernel_size, self.max_dist
        segment, counts = superpixels(x, self.segmentation, *looks)
        on = self._samples(rng, torch.tensor(counts, device=x.device), max(counts))
        shown, hidden = model.normalise(x), model.normalise(switched_off(x, segment, self.hide, self.hide_value))
        network = partial(model.head, space="norm")
        features = wide(on)
        p = torch.zeros_like(features[:, :, 0])

        def step(part: slice) -> None:
            image = torch.arange(part.start, part.stop, device=x.device) // self.n_samples
            keep = on.flatten(0, 1)[part].to(x).gather(1, segment[image]).view(-1, 1, *x.shape[2:])
            variants = torch.lerp(hidden[image], shown[image], keep)  # exact at 0 and 1, and faster than a choice
            p.view(-1)[part] = log_probability(network, variants.unsqueeze(1), target[image]).exp().squeeze(1)

        run_pairs(step, p.numel(), len(x), fitted.chunk)
        visible = features.sum(2)
        distance = 1 - (visible / visible[:, :1]).sqrt()  # the first sample keeps all
        weight = torch.exp(-0.5 * (distance / self.kernel_width) ** 2)
        coefficient = weighted_ridge(features, p, weight, self.alpha).to(x)
        if self.positive_part:
            coefficient = coefficient.clamp(min=0)
        return coefficient.gather(1, segment).view(len(x), 1, *x.shape[2:])

    def _samples(self, rng: Draws, count: Tensor, width: int) -> Tensor:
        """(B, N, width) booleans: which superpixels each sample keeps; numbers from count[b] on are padding, off."""
        # Superpixels are the outer axis of the draw, so that image b's bits do not depend on the batch's width.
        on = rng.integer(2, "lime", (width, self.n_samples)).mT.bool()
        on[:, 0] = True
        return on & (torch.arange(width, device=count.device) < count.unsqueeze(1)).unsqueeze(1)
