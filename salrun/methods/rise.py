"""RISE: how likely the class is, averaged over the random masks that show a pixel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.methods.bilinear import enlarge
from salrun.methods.chunking import run_pairs
from salrun.methods.variants import log_probability
from salrun.models.classifier import check_targets
from salrun.ranges import Above, AtLeast, AtMost
from salrun.types import Fitted, Method

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier
    from salrun.rng import Draws


def draw_masks(rng: Draws, part: slice, cells: int, p1: float, like: Tensor) -> Tensor:
    """Masks `part` of the seed's endless list, (k, H, W) for images `like` (B, C, H, W).

    A grid of cells x cells Bernoulli(p1) values is enlarged to (cells + 1) * cell pixels a side, cell = ceil(H / cells)
    (W likewise), and cropped to the image after a random shift of 0..cell-1 pixels. Enlarging is linear along each
    axis, so it is a matrix product from either side, and cropping chooses the rows of those matrices.
    """
    k = part.stop - part.start
    grid = rng.uniform("rise/grid", (k, cells, cells), start=part.start * cells**2, shared=True) < p1
    sides = []
    for axis, size in zip("yx", like.shape[-2:], strict=True):
        cell = ceil(size / cells)
        shift = rng.integer(cell, f"rise/shift_{axis}", k, start=part.start, shared=True)
        rows = shift.unsqueeze(1) + torch.arange(size, device=like.device)
        sides.append(enlarge(cells, (cells + 1) * cell, like)[rows])  # (k, size, cells)
    return sides[0] @ grid.to(like.dtype) @ sides[1].mT


@dataclass
class RISE(Method):
    """Map = 1 / (N E[M]) sum_i p_c(x * M_i) M_i, over N random masks M_i shared by all images.

    Petsiuk, Das, Saenko, "RISE: Randomized Input Sampling for Explanation of Black-box Models", BMVC 2018. p_c is the
    softmax probability. `normalise` says what E[M] is: `p1`, its expectation, or `empirical`, the mean of the masks
    drawn, pixel by pixel (the map is then a weighted mean of probabilities, the weight being how much a mask shows).
    """

    n_masks: Annotated[int, AtLeast(1)] = 4000
    cells: Annotated[int, AtLeast(1)] = 7
    p1: Annotated[float, Above(0), AtMost(1)] = 0.5
    normalise: Literal["p1", "empirical"] = "p1"
    mask_space: Literal["norm", "raw"] = "norm"

    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "RISE"
    source: ClassVar[str] = "Petsiuk et al., BMVC 2018"
    forward_only: ClassVar[bool] = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return float(self.n_masks)

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        point = model.enter(x, self.mask_space)
        network = partial(model.head, space=self.mask_space)
        # Row 0 sums p_c(x * M) M, row 1 the masks themselves.
        total = torch.zeros(len(x), 2, x.shape[2] * x.shape[3], dtype=x.dtype, device=x.device)

        def step(part: slice) -> None:
            # Mask by mask, each for all images: of n images, pair n m + b shows image b through mask m.
            first, last = part.start // len(x), -(-part.stop // len(x))
            masks = draw_masks(rng, slice(first, last), self.cells, self.p1, x)
            pair = torch.arange(part.start, part.stop, device=x.device)
            image, mask = pair % len(x), pair // len(x) - first
            masked = point[image] * masks[mask].unsqueeze(1)
            weight = torch.zeros(len(x), 2, len(masks), dtype=x.dtype, device=x.device)
            weight[image, 0, mask] = log_probability(network, masked.unsqueeze(1), target[image]).exp().squeeze(1).to(x)
            weight[image, 1, mask] = 1
            total.add_(weight @ masks.flatten(1))

        run_pairs(step, len(x) * self.n_masks, len(x), fitted.chunk)
        shown = total[:, 1] if self.normalise == "empirical" else self.n_masks * self.p1
        return (total[:, 0] / shown).view(len(x), 1, *x.shape[2:])
