"""Iterative removal of features, IROF (Rieger and Hansen 2020): superpixels go, most relevant first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.methods.superpixels import superpixels
from salrun.metrics.common import as_plane, wide
from salrun.metrics.perturbation import answer, ask, batch_size, flagged, pixel_rank, substrate
from salrun.models.classifier import Classifier
from salrun.ranges import Above, AtLeast
from salrun.types import Metric, Scene, Score
from salrun.views import map_flags


@dataclass
class IROF(Metric):
    """1 - area under f(x^(l)) / f(x^(0)) against l / L, l = 0..L: the area over the curve.

    x^(l) is the image without its l superpixels of the largest mean relevance, which take the data's mean colour; f is
    the softmax probability of the class explained. The superpixels (SLIC, L of them, about `n_segments`) depend on the
    image alone. 1 is best; above f(x^(0)) the curve takes it below 0. Divided by L, images with many superpixels count
    as much as others; Quantus does not divide, and leaves the point l = 0 out.
    """

    n_segments: Annotated[int, AtLeast(2)] = 300
    compactness: Annotated[float, Above(0)] = 10.0
    substrate: Literal["blur", "grey", "black", "random_rgb", "image_mean"] = "grey"
    ties: Literal["random", "raster", "raster_reversed"] = "random"

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    needs: ClassVar[frozenset[str]] = frozenset({"model"})
    range: ClassVar[tuple[float, float]] = (float("-inf"), 1.0)
    source: ClassVar[str] = "Rieger and Hansen 2020, ICLR workshop, arXiv:2003.08747"
    on_host: ClassVar[str] = "superpixels (scikit-image)"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return min(self.n_segments, shape[1] * shape[2]) - 1

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 2

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        relevance = as_plane(plane, "irof").flatten(1)
        segment = scene.shared(
            f"superpixels/{self.n_segments}/{self.compactness}",
            lambda: {"segment": self._segments(scene.x)},
        )["segment"].to(relevance.device)
        count, most = segment.amax(1) + 1, int(segment.max()) + 1
        mean = torch.full((len(segment), most), -torch.inf, dtype=relevance.dtype, device=relevance.device)
        mean = mean.scatter_reduce(1, segment, relevance, "mean", include_self=False)
        # What pads the list of superpixels comes last, whatever the ties.
        place = pixel_rank(mean[:, None, None], scene.rng, self.ties, False, "irof")
        start, finish = scene.model.normalise(scene.x), substrate(self.substrate, scene)
        first = answer("image", start, scene, "probability").unsqueeze(1)
        last = answer(self.substrate, finish, scene, "probability").unsqueeze(1)
        f = last.repeat(1, most)
        image, step, value = self._removed(scene, start, finish, place.gather(1, segment), count)
        f[image, step] = value
        f = torch.cat([first, f], 1) / first
        between = torch.arange(most, device=f.device) < count.unsqueeze(1).to(f.device)
        area = ((f[:, 1:] + f[:, :-1]) / 2).where(between, 0).sum(1) / wide(count)
        return flagged(1 - area, map_flags(plane))

    def _removed(
        self, scene: Scene, start: Tensor, finish: Tensor, rank: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Image, l - 1 and f(x^(l)) for l = 1..L-1, L each image's own: nothing is shown beyond it."""
        rank, count = rank.to(start.device), count.to(start.device)
        level = torch.arange(1, int(count.max()), device=start.device)
        image, step = (level < count.unsqueeze(1)).nonzero(as_tuple=True)

        def points(row: Tensor, _: Tensor) -> Tensor:
            one = image[row]
            hidden = (rank[one] <= step[row].unsqueeze(1)).view(-1, 1, *start.shape[2:])
            return torch.where(hidden, finish[one], start[one])

        size = batch_size(start, scene.chunk)
        f = ask(scene.model, points, (len(image), 1), scene.target[image], "probability", size).squeeze(1)
        return image.to(f.device), step.to(f.device), f

    def _segments(self, x: Tensor) -> Tensor:
        return superpixels(x, "slic", self.n_segments, self.compactness, ratio=0, kernel_size=0, max_dist=0)[0]
