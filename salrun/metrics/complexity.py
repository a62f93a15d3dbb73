"""How many pixels does the map need? Sparseness, entropy, effective complexity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.methods.chunking import gather_chunked
from salrun.metrics.common import as_plane, box_blur, scored
from salrun.metrics.masking import image_logits, log_odds
from salrun.ranges import AtLeast
from salrun.types import UNDEFINED, Metric, Scene, Score

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier


def relative_magnitude(plane: Tensor, owner: str) -> Tensor:
    """(B, P): |m| / max |m|; an all-zero map stays zero."""
    magnitude = as_plane(plane, owner).abs().flatten(1)
    largest = magnitude.amax(1, keepdim=True)
    return magnitude / largest.masked_fill(largest == 0, 1.0)


def descending(magnitude: Tensor, scene: Scene) -> Tensor:
    """(B, P) pixel indices by falling magnitude, equal ones in a random order of the image's own."""
    shuffle = scene.rng.permutation(magnitude.shape[1], "effective_complexity/ties").to(magnitude.device)
    return shuffle.gather(1, magnitude.gather(1, shuffle).argsort(dim=1, descending=True, stable=True))


@dataclass
class Sparseness(Metric):
    """Sparseness: Gini index sum_i (2i - n - 1) a_i / (n sum a) of the ascending a = |m| / max |m| + epsilon.

    0 for a flat map (also the all-zero map, by epsilon), 1 - 1/n for a single pixel. The papers print it times 100.
    """

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    source: ClassVar[str] = "Chalasani et al., ICML 2020"

    epsilon: Annotated[float, AtLeast(0)] = 1e-7

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        a = (relative_magnitude(plane, "Sparseness") + self.epsilon).sort(dim=1).values
        n = a.shape[1]
        weight = torch.arange(1 - n, n, 2, dtype=a.dtype, device=a.device)
        return scored((weight * a).sum(1) / (n * a.sum(1)), plane)


@dataclass
class Complexity(Metric):
    """Complexity: entropy -sum q ln q of q = |m| / sum |m|, in nats; at most ln n. The all-zero map has none
    (`undefined`), or 0 by choice."""

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    source: ClassVar[str] = "Bhatt, Weller, Moura, IJCAI 2020"

    zero_map: Literal["undefined", "zero"] = "undefined"

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        a = relative_magnitude(plane, "Complexity")
        q = a / a.sum(1, keepdim=True)
        entropy = -torch.xlogy(q, q).sum(1)
        empty = a.amax(1) == 0
        return scored(
            entropy.masked_fill(empty, 0.0 if self.zero_map == "zero" else torch.nan), plane, (UNDEFINED, empty)
        )


@dataclass
class EffectiveComplexity(Metric):
    """Effective complexity, in pixels.

    `count`: pixels with |m| / max |m| > epsilon (Quantus; the numbers of Zhang et al. 2024).
    `noise_mask`: the smallest k of a grid for which keeping the k largest |m| and replacing the rest gives
    E[(p - p_kept)^2] <= tolerance (Nguyen and Martinez 2020); the rest is replaced by U(0, 1) colours, `n_draws` times,
    or by an 11 x 11 mean blur; equal pixels come in a random order of the image's own. `bisection` takes the loss to
    fall with k.
    """

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    needs: ClassVar[frozenset[str]] = frozenset({"model"})
    source: ClassVar[str] = "Nguyen and Martinez 2020"

    definition: Literal["count", "noise_mask"] = "count"
    epsilon: Annotated[float, AtLeast(0)] = 1e-5
    tolerance: Annotated[float, AtLeast(0)] = 0.01
    baseline: Literal["uniform", "blur"] = "uniform"
    n_draws: Annotated[int, AtLeast(1)] = 10
    grid: Annotated[int, AtLeast(1)] = 28
    search: Literal["bisection", "sweep"] = "bisection"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        if self.definition == "count":
            return 0.0
        steps = self.grid.bit_length() if self.search == "bisection" else self.grid
        return float(steps * (self.n_draws if self.baseline == "uniform" else 1))

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 0.0 if self.definition == "count" else 1.0

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        magnitude = relative_magnitude(plane, "EffectiveComplexity")
        if self.definition == "count":
            return scored((magnitude > self.epsilon).sum(1).double(), plane)
        order = descending(magnitude, scene)
        rank = order.argsort(dim=1).view_as(plane)
        pixels = magnitude.shape[1]

        def kept(step: Tensor) -> Tensor:
            return (step * pixels + self.grid - 1) // self.grid

        def enough(step: Tensor) -> Tensor:
            return self._loss(rank < kept(step).view(-1, 1, 1, 1), scene) <= self.tolerance

        low = torch.zeros(len(plane), dtype=torch.int64, device=magnitude.device)
        high = torch.full_like(low, self.grid)  # the whole image: no loss
        if self.search == "bisection":
            for _ in range(self.grid.bit_length()):
                middle = (low + high) // 2
                fits = enough(middle)
                low, high = torch.where(fits, low, (middle + 1).minimum(high)), torch.where(fits, middle, high)
        else:
            for step in reversed(range(self.grid)):
                high = torch.where(enough(torch.full_like(low, step)), step, high)
        return scored(kept(high).double(), plane)

    def _loss(self, keep: Tensor, scene: Scene) -> Tensor:
        """(B,): mean over replacements of the rest of (p(x) - p(kept))^2."""
        keep = keep.to(scene.x.device)
        before = log_odds(image_logits(scene), scene.target).sigmoid()
        losses = []
        for rest in self._replacements(scene):

            def forward(part: slice, rest: Tensor = rest) -> Tensor:
                return scene.model.logits(torch.where(keep[part], scene.x[part], rest[part]))

            with torch.no_grad():
                logits = gather_chunked(forward, len(keep), scene.chunk)
            losses.append((log_odds(logits, scene.target).sigmoid() - before).square())
        return torch.stack(losses).mean(0)

    def _replacements(self, scene: Scene) -> Iterator[Tensor]:
        """What replaces the image, (B, C, H, W) each."""
        shape = scene.x.shape[1:]
        if self.baseline == "blur":
            yield box_blur(scene.x.flatten(0, 1), 11).view_as(scene.x)
            return
        for draw in range(self.n_draws):
            yield scene.rng.uniform("effective_complexity", shape, start=draw * math.prod(shape)).to(scene.x)
