"""Does the map move no more than the image, the model's features and its output do? Stability, sufficiency."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.methods.chunking import chunks
from salrun.metrics.common import as_plane, scored, wide
from salrun.metrics.perturbation import batch_size
from salrun.metrics.robustness import Neighbourhood
from salrun.models.classifier import Classifier, check_classes
from salrun.progress import passed
from salrun.ranges import Above
from salrun.types import UNDEFINED, Scene, Score


@contextmanager
def recorded(model: Classifier, layer: str | None) -> Iterator[list[Tensor]]:
    """The features of every pass inside: what a layer gives, or what the last linear layer is given."""
    seen: list[Tensor] = []
    if layer is not None:
        handle = model.layer(layer).register_forward_hook(lambda module, given, result: seen.append(result))
    else:
        linear = [part for part in model.module.modules() if isinstance(part, nn.Linear)]
        if not linear:
            raise SalrunError(f"model '{model.name}' has no linear layer: name the layer of its features by layer=")
        handle = linear[-1].register_forward_hook(lambda module, given, result: seen.append(given[0]))
    try:
        yield seen
    finally:
        handle.remove()


@dataclass
class Stable(Neighbourhood):
    """What the model says of the neighbours comes once for all methods; those of another top class are left out."""

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return self.n_draws + 1

    def told(self, scene: Scene, layer: str | None) -> dict[str, Tensor]:
        """(B, n_draws) each: `same` top class; relative changes `x` and `features`, change `logits`, as L2 norms."""
        return scene.shared(f"neighbours/{self.drawn()}/{layer}", lambda: self._told(scene, layer))

    @torch.no_grad()
    def _told(self, scene: Scene, layer: str | None) -> dict[str, Tensor]:
        model, x = scene.model.exact, scene.model.exact.normalise(scene.x)
        here = self._pass(model, x, scene, layer)
        check_classes(here[0])
        columns: dict[str, list[Tensor]] = {"same": [], "x": [], "features": [], "logits": []}
        for draw in range(self.n_draws):
            moved = x + self.noise(scene, draw).to(x)
            there = self._pass(model, moved, scene, layer)
            columns["same"].append(here[0].argmax(1) == there[0].argmax(1))
            columns["x"].append(relative_change(x, moved))
            columns["features"].append(relative_change(here[1], there[1]))
            columns["logits"].append((here[0] - there[0]).norm(dim=1))
        return {name: torch.stack(column, 1) for name, column in columns.items()}

    def _pass(self, model: Classifier, z: Tensor, scene: Scene, layer: str | None) -> tuple[Tensor, Tensor]:
        """Logits and features, float64."""
        logits, features = [], []
        for part in chunks(len(z), batch_size(z, scene.chunk)):
            with recorded(model, layer) as seen:
                logits.append(wide(model.head(z[part], "norm")))
            features.append(wide(seen[-1]).flatten(1))
            passed(part.stop - part.start)
        return torch.cat(logits), torch.cat(features)


EPSILON = 1e-6


def relative_change(here: Tensor, there: Tensor) -> Tensor:
    """(B,) float64: ||(here - there) / here||_2, element by element; where here is 0 it counts as 1e-6."""
    here, there = wide(here).flatten(1), wide(there).flatten(1)
    return ((here - there) / torch.where(here == 0, EPSILON, here)).norm(dim=1)


@dataclass
class RelativeStability(Stable):
    """Max over neighbours of ||(S(x) - S(x')) / S(x)||_2 over what else moved: the image, the features, the output.

    ris: ||(x - x') / x||_2; rrs: ||(h - h') / h||_2 of the features h; ros: ||y - y'||_2 of the logits y; each at
    least 1e-6, all divisions element by element. Only neighbours with the image's top class count; without any the
    score is undefined. `layer`: whose features; none: what enters the last linear layer. A pixel where S is 0 counts
    as 1e-6, as in Quantus: methods with exact zeros score badly.
    """

    radius: Annotated[float, Above(0)] = 0.05
    neighbourhood: Literal["cube", "ball", "gaussian"] = "gaussian"
    layer: str | None = None

    source: ClassVar[str] = "Agarwal et al. 2022, arXiv:2203.06877"

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        here = as_plane(plane, "RelativeStability")
        change = scene.once(
            f"relative/{self.drawn()}",
            plane,
            lambda: torch.stack([relative_change(here, there) for there in self.maps(scene)], 1),
        )
        told = self.told(scene, self.layer)
        same = told["same"].to(change.device)
        none = ~same.any(1)
        scores = {}
        for name, moved in {"ris": "x", "rrs": "features", "ros": "logits"}.items():
            ratio = change / told[moved].to(change.device).clamp(min=EPSILON)
            most = ratio.where(same, -torch.inf).amax(1).masked_fill(none, torch.nan)
            scores[name] = scored(most, plane, (UNDEFINED, none))
        return scores


@dataclass
class Sufficiency(Stable):
    """Of the neighbours that have this image's explanation, the share that has its top class too.

    Pr(f(x') = f(x) | ||S(x') - S(x)|| <= threshold ||S(x)||), x' a random neighbour. Dasgupta et al. leave the
    distribution of x' open; Quantus takes the other images of the batch, so that a score depends on them and an image
    without a like scores 0. Here it is the image's own neighbourhood, and no such neighbour is undefined.
    """

    radius: Annotated[float, Above(0)] = 0.5
    threshold: Annotated[float, Above(0)] = 0.6

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    source: ClassVar[str] = "Dasgupta, Frost, Moshkovitz 2022, ICML"

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        moved = self.distances(plane, scene)
        size = as_plane(plane, "Sufficiency").flatten(1).norm(dim=1, keepdim=True)
        alike = moved <= self.threshold * size
        same = self.told(scene, None)["same"].to(alike.device)
        value = wide((alike & same).sum(1)) / alike.sum(1)
        return scored(torch.where(moved.isnan().any(1), torch.nan, value), plane)
