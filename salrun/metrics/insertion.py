"""Curves over the whole image: insertion and deletion (RISE), pixel flipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.metrics.common import wide
from salrun.metrics.perturbation import answer, area, curve, flagged, shared_rank, step_counts, substrate
from salrun.models.classifier import Classifier
from salrun.ranges import AtLeast
from salrun.types import Metric, Scene, Score
from salrun.views import map_flags


@dataclass
class InsertionDeletion(Metric):
    """Area under f against the fraction of pixels changed, most salient first, both end points included.

    f is the softmax probability of the class explained. Steps of `step` pixels; none given, 28 steps (1792 pixels at
    224 x 224, RISE's batch evaluation; its demo takes 224). The integral runs over the true fractions, so a shorter
    last step counts as what it is. Substrates are made in the network's input space: grey is the mean colour, blur
    RISE's nearly flat 11 x 11 kernel (`true_gaussian`: a Gaussian of the same sigma).
    """

    step: Annotated[int, AtLeast(1)] | None = None
    substrate: Literal["blur", "grey", "black", "random_rgb"] = "grey"
    true_gaussian: bool = False
    output: Literal["probability", "max_probability", "logit"] = "probability"
    ties: Literal["random", "raster", "raster_reversed"] = "random"

    inserts: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"model"})
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    source: ClassVar[str] = "Petsiuk, Das, Saenko 2018, BMVC (RISE)"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return len(step_counts(shape[1] * shape[2], self.step)) - 2

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 2

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        rank = shared_rank(plane, scene, self.ties, False, type(self).__name__)
        counts = step_counts(rank.shape[1], self.step).to(rank.device)
        kernel = "/gaussian" if self.true_gaussian else ""
        ends = {
            "image": scene.model.normalise(scene.x),
            f"{self.substrate}{kernel}": substrate(self.substrate, scene, self.true_gaussian),
        }
        if self.inserts:
            ends = dict(reversed(ends.items()))
        first, last = (answer(name, point, scene, self.output).unsqueeze(1) for name, point in ends.items())
        start, finish = ends.values()
        f = curve(scene.model, start, finish, rank, counts[1:-1], scene.target, output=self.output, chunk=scene.chunk)
        f = torch.cat([first, f, last], 1)
        return flagged(area(f, counts), map_flags(plane), f, wide(counts) / rank.shape[1])


@dataclass
class Insertion(InsertionDeletion):
    """Insertion: from the blurred image, the original's pixels are put back, most salient first."""

    substrate: Literal["blur", "grey", "black", "random_rgb"] = "blur"

    inserts: ClassVar[bool] = True
    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"


@dataclass
class Deletion(InsertionDeletion):
    """Deletion: the image's pixels are replaced by mean grey, most salient first."""

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"


@dataclass
class PixelFlipping(InsertionDeletion):
    """Pixel flipping (Bach et al. 2015): pixels set to black, most salient first; the untouched image is point 0.

    All channels of a pixel flip together. Quantus flips channel elements and leaves point 0 out.
    """

    substrate: Literal["blur", "grey", "black", "random_rgb"] = "black"

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
    source: ClassVar[str] = "Bach et al. 2015, PLoS ONE 10(7)"
