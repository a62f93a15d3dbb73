"""Kernel SHAP: the Shapley value of every part of an image, by a weighted regression over coalitions of parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.methods.chunking import places, run_pairs
from salrun.methods.superpixels import grid, superpixels, switched_off
from salrun.methods.variants import class_score, wide
from salrun.models.classifier import check_targets
from salrun.ranges import Above, AtLeast, Between
from salrun.types import Fitted, Method

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier
    from salrun.rng import Draws


@dataclass
class KernelSHAP(Method):
    """Map = Shapley value of the pixel's part: phi, sum_i phi_i = v(all) - v(none), v(S) the score with parts S shown.

    Lundberg, Lee 2017: phi minimises sum_S k(S) (v(none) + sum_{i in S} phi_i - v(S))^2 under that constraint, with
    k(S) = (n - 1) / (C(n, s) s (n - s)) for s of n parts. Where an image has no more than `n_samples` coalitions
    besides none and all, all of them are taken and phi is exact; else `n_samples` are drawn with the probabilities
    k(S), each second one being the complement of the one before. `players`: the parts, a grid of cells x cells or
    superpixels. A part that is off shows its mean colour (`hide: mean`) or `hide_value` (`hide: constant`).
    """

    n_samples: Annotated[int, AtLeast(2)] = 1000
    players: Literal["grid", "slic", "quickshift"] = "grid"
    cells: Annotated[int, AtLeast(1)] = 7
    n_segments: Annotated[int, AtLeast(1)] = 50
    compactness: Annotated[float, Above(0)] = 10.0
    kernel_size: Annotated[float, AtLeast(1)] = 4.0
    max_dist: Annotated[float, Above(0)] = 200.0
    ratio: Annotated[float, Between(0, 1)] = 0.2
    hide: Literal["mean", "constant"] = "mean"
    hide_value: Annotated[float, Between(0, 1)] = 0.0
    output: Literal["logit", "probability"] = "probability"

    paper_name: ClassVar[str] = "Kernel SHAP"
    source: ClassVar[str] = "Lundberg, Lee 2017, arXiv:1705.07874"
    on_host: ClassVar[str] = "superpixels (scikit-image), where players are superpixels"
    forward_only: ClassVar[bool] = True
    subtracts_scores: ClassVar[bool] = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        n = min(self.cells, shape[1]) * min(self.cells, shape[2]) if self.players == "grid" else self.n_segments
        return 2.0 + (min(2**n - 2, self.n_samples) if n < 63 else self.n_samples)

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        if self.players == "grid":
            segment = grid(x, self.cells)
            counts = [min(self.cells, x.shape[2]) * min(self.cells, x.shape[3])] * len(x)
        else:
            looks = self.n_segments, self.compactness, self.ratio, self.kernel_size, self.max_dist
            segment, counts = superpixels(x, self.players, *looks)
        if any(2 * n > self.n_samples and 2**n - 2 > self.n_samples for n in counts):
            parts = f"the {max(counts)} parts of an image"
            raise SalrunError(f"n_samples of kernel_shap must be at least twice {parts}, got {self.n_samples}")
        n = torch.tensor(counts, device=x.device)
        coalitions, weight = self.coalitions(rng, n, max(counts))
        weight = torch.cat([torch.ones_like(weight[:, :2]), weight], 1)
        real = torch.arange(max(counts), device=x.device) < n.unsqueeze(1)
        ends = torch.stack([torch.zeros_like(real), real], 1)
        on = torch.cat([ends, coalitions], 1)
        shown, hidden = model.normalise(x), model.normalise(switched_off(x, segment, self.hide, self.hide_value))
        network = partial(model.head, space="norm")
        asked = places(weight > 0)
        v = wide(torch.zeros_like(weight))

        def step(part: slice) -> None:
            image = asked[part] // on.shape[1]
            keep = on.flatten(0, 1)[asked[part]].to(x).gather(1, segment[image]).view(-1, 1, *x.shape[2:])
            variants = torch.lerp(hidden[image], shown[image], keep)
            v.view(-1)[asked[part].to(v.device)] = class_score(network, variants, target[image], self.output)

        run_pairs(step, len(asked), len(x), fitted.chunk)
        phi = constrained(wide(coalitions), v[:, 2:], wide(weight[:, 2:]), v[:, 0], v[:, 1], real.to(v.device))
        return phi.to(x).gather(1, segment).view(len(x), 1, *x.shape[2:])

    def coalitions(self, rng: Draws, n: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """(B, N, width) booleans and weights (B, N): all coalitions, or drawn ones; rows that are none weigh 0."""
        part, row = torch.arange(width, device=n.device), torch.arange(self.n_samples, device=n.device)
        n = n.view(-1, 1, 1)
        few = 2.0 ** n.double().cpu() - 2 <= self.n_samples  # exact in float64, also for a thousand parts
        few = few.to(n.device)
        numbers = row.view(1, -1, 1) + 1
        all_on = (numbers >> part.clamp(max=62)) & 1 == 1
        all_on = all_on & (part < n)
        size = all_on.sum(2)
        binomial = torch.exp(_log_choose(n.squeeze(2), size))
        kernel = (n.squeeze(2) - 1) / (binomial * size * (n.squeeze(2) - size)).clamp(min=1e-300)
        kernel = torch.where((row + 1 < 2.0 ** n.squeeze(2).clamp(max=62)) & (size < n.squeeze(2)), kernel, 0)
        pairs = -(-self.n_samples // 2)
        # Parts are the outer axis of the draw, so that image b's numbers do not depend on the batch's widest image.
        order = rng.uniform("kernel_shap/order", (width, pairs)).mT.masked_fill(part >= n, 2)
        chosen = _sizes(rng.uniform("kernel_shap/size", pairs), n.squeeze(2), width)
        first = order.argsort(dim=2, stable=True).argsort(dim=2, stable=True) < chosen.unsqueeze(2)
        drawn = torch.stack([first, ~first & (part < n)], 2).flatten(1, 2)[:, : self.n_samples]
        alone = n.squeeze(2) < 2
        weight = torch.where(few.squeeze(2), kernel, torch.ones_like(kernel)).masked_fill(alone, 0)
        return torch.where(few, all_on, drawn), weight


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    n, k = wide(n), wide(k)
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


def _sizes(u: Tensor, n: Tensor, width: int) -> Tensor:
    """Sizes 1..n-1 of coalitions, drawn with probabilities ~ 1 / (s (n - s)) by the uniform numbers `u` (B, N)."""
    size = torch.arange(1, max(width, 2), device=u.device)
    mass = torch.where(size < n, 1 / (size * (n - size)).clamp(min=1).double(), 0)
    below = mass.cumsum(1) / mass.sum(1, keepdim=True).clamp(min=1e-300)
    return 1 + (u.double().unsqueeze(2) >= below[:, None, :-1]).sum(2)


def constrained(z: Tensor, v: Tensor, weight: Tensor, none: Tensor, every: Tensor, real: Tensor) -> Tensor:
    """argmin_phi sum_i weight_i (none + z_i phi - v_i)^2 with sum phi = every - none, in float64: (B, n).

    z (B, N, n), v and weight (B, N); the first part is put as the rest of the sum. Parts that are not `real` get 0.
    """
    gain = every - none
    others = real[:, 1:]
    z, first = (z[:, :, 1:] - z[:, :, :1]) * others.unsqueeze(1), z[:, :, 0]
    rest = v - none.unsqueeze(1) - first * gain.unsqueeze(1)
    normal = z.mT @ (weight.unsqueeze(2) * z) + torch.diag_embed((~others).to(z))
    side = z.mT @ (weight * rest).unsqueeze(2)
    phi = (torch.linalg.pinv(normal, hermitian=True) @ side).squeeze(2)
    return torch.cat([gain.unsqueeze(1) - phi.sum(1, keepdim=True), phi], 1)
