"""Infidelity (Yeh et al. 2019): how far is the attribution from what a perturbation does to the output?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.methods.chunking import chunks
from salrun.metrics.common import scored, wide
from salrun.metrics.perturbation import answer, ask, batch_size
from salrun.models.classifier import Classifier
from salrun.ranges import Above, AtLeast
from salrun.rng import Draws
from salrun.types import Metric, Scene, Score


@dataclass
class Infidelity(Metric):
    """E_I [(I . Phi - (f(x) - f(x - I)))^2] over random perturbations I, Phi the raw attribution, f the class's logit.

    In the network's input space. `square`: I is the image itself on a square of side `size` at a random place, 0
    elsewhere, so x - I has the data's mean colour there; `noisy_baseline`: I = x - e, e ~ N(0, `sigma`^2) for every
    element. An attribution of one channel counts for all. `scaled`: Phi is multiplied by the number that makes the
    error least (for maps whose scale means nothing). The perturbations are the same for all methods.
    """

    perturbation: Literal["square", "noisy_baseline"] = "square"
    n_draws: Annotated[int, AtLeast(1)] = 100
    size: Annotated[int, AtLeast(1)] = 10
    sigma: Annotated[float, Above(0)] = 0.2
    scaled: bool = False
    output: Literal["probability", "logit"] = "logit"

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
    needs: ClassVar[frozenset[str]] = frozenset({"model", "raw"})
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    source: ClassVar[str] = "Yeh, Hsieh, Suggala, Inouye, Ravikumar 2019, NeurIPS"

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return self.n_draws + 1

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        x = scene.model.normalise(scene.x)
        if self.perturbation == "square" and self.size > min(x.shape[2:]):
            raise SalrunError(
                f"infidelity: size must be at most the image's {min(x.shape[2:])} pixels, got {self.size}"
            )
        drawn = f"{self.size}" if self.perturbation == "square" else f"{self.sigma}"
        fall = scene.shared(
            f"infidelity/{self.perturbation}/{drawn}/{self.n_draws}/{self.output}",
            lambda: {"fall": self._fall(x, scene)},
        )["fall"]
        foretold = self._foretold(plane, x, scene).to(fall.device)
        if self.scaled:
            foretold = foretold * ((foretold * fall).sum(1) / foretold.square().sum(1)).unsqueeze(1)
        return scored((foretold - fall).square().mean(1), plane)

    def _fall(self, x: Tensor, scene: Scene) -> Tensor:
        """(B, n_draws): f(x) - f(x - I)."""

        def points(image: Tensor, draw: Tensor) -> Tensor:
            return x[image] - self.change(x, scene.rng, image, draw)

        shape = len(x), self.n_draws
        f = ask(scene.model, points, shape, scene.target, self.output, batch_size(x, scene.chunk))
        return answer("image", x, scene, self.output).unsqueeze(1) - f

    def _foretold(self, raw: Tensor, x: Tensor, scene: Scene) -> Tensor:
        """(B, n_draws) float64: I . Phi."""
        parts = []
        for part in chunks(len(x) * self.n_draws, batch_size(x, scene.chunk)):
            index = torch.arange(part.start, part.stop, device=x.device)
            image, draw = index // self.n_draws, index % self.n_draws
            change = self.change(x, scene.rng, image, draw)
            parts.append((wide(raw[image]) * wide(change)).flatten(1).sum(1))
        return torch.cat(parts).view(len(x), self.n_draws)

    def change(self, x: Tensor, rng: Draws, image: Tensor, draw: Tensor) -> Tensor:
        """I of some pairs of image and draw, (n, C, H, W)."""
        own = Draws(rng.seed, rng.key[image] + draw)  # a stream for each pair
        height, width = x.shape[2:]
        if self.perturbation == "noisy_baseline":
            return x[image] - self.sigma * own.normal("infidelity", x.shape[1:]).to(x)
        inside = []
        for side, purpose in ((height, "infidelity/row"), (width, "infidelity/column")):
            first = own.integer(side - self.size + 1, purpose, 1)
            place = torch.arange(side, device=x.device)
            inside.append((place >= first) & (place < first + self.size))
        square = inside[0].view(-1, 1, height, 1) & inside[1].view(-1, 1, 1, width)
        return torch.where(square, x[image], 0)
