"""What happens to the class when the image is multiplied by the map: average drop, increase, gain, local accuracy.

p = p_c(x), o = p_c(x * m), m in [0, 1]. All is computed from the log-odds z = log p / (1 - p), so that neither p nor
1 - p is ever the difference of two numbers. Values are shares; the papers print them times 100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from salrun.methods.chunking import gather_chunked
from salrun.metrics.common import as_plane, scored, wide
from salrun.metrics.perturbation import shared_rank
from salrun.models.classifier import check_classes, pick
from salrun.ranges import Above, AtMost
from salrun.types import SATURATED, UNDEFINED, UNDERFLOW, Metric, Scene, Score

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier, Space

_LOG_TINY = math.log(torch.finfo(torch.float64).tiny)


def log_odds(logits: Tensor, target: Tensor) -> Tensor:
    """(B,) float64: z = y_c - log sum over j != c of exp y_j = log p_c / (1 - p_c)."""
    check_classes(logits)
    logits = wide(logits)
    target = target.to(logits.device)
    others = logits.scatter(1, target.view(-1, 1), -torch.inf)
    return pick(logits, target) - others.logsumexp(1)


def image_logits(scene: Scene) -> Tensor:
    """Logits of the images themselves, once for all maps."""

    def compute() -> dict[str, Tensor]:
        with torch.no_grad():
            return {"logits": gather_chunked(lambda part: scene.model.logits(scene.x[part]), len(scene.x), scene.chunk)}

    return scene.shared("logits", compute)["logits"]


def masked_logits(plane: Tensor, scene: Scene, space: Space) -> Tensor:
    """Logits of x * m, once for all metrics of this plane. `raw` darkens to black, `norm` to the data set's mean."""

    def masked(part: slice) -> Tensor:
        point = scene.model.enter(scene.x[part], space)
        return scene.model.head(point * plane[part].to(point), space)

    def compute() -> Tensor:
        with torch.no_grad():
            return gather_chunked(masked, len(plane), scene.chunk)

    return scene.once(f"masked/{space}", plane, compute)


def kept_logits(plane: Tensor, scene: Scene, space: Space, keep: float) -> Tensor:
    """Logits of the image with only the `keep` share of its pixels of largest saliency, the others 0 in `space`."""

    def compute() -> Tensor:
        rank = shared_rank(plane, scene, "random", False, "keep")
        mask = (rank < round(keep * rank.shape[1])).view(len(plane), 1, *plane.shape[2:])
        return masked_logits(mask, replace(scene, memo={}), space)

    return scene.once(f"kept/{space}/{keep}", plane, compute)


def not_a_mask(plane: Tensor, owner: str) -> Tensor:
    """(B,) bool: values outside [0, 1], up to float32 rounding."""
    flat = as_plane(plane, owner).flatten(1)
    return (flat.amin(1) < -1e-6) | (flat.amax(1) > 1 + 1e-6)


@dataclass
class Masking(Metric):
    """One pass for the masked image, and one for the image that serves all methods."""

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    needs: ClassVar[frozenset[str]] = frozenset({"model"})

    mask_space: Literal["raw", "norm"] = "raw"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 1.0

    def shared_passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 1.0

    def shared_as(self) -> str:
        return "images as they are"


@dataclass
class Muting(Masking):
    """`keep: k` shows only the share k of the pixels with the largest saliency, as they are, instead of x * m.

    Score-CAM (Wang et al. 2020) evaluates with half of the pixels muted, k = 0.5. Equal pixels come in random order.
    """

    keep: Annotated[float, Above(0), AtMost(1)] | None = None

    def masked(self, plane: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        """(B, classes) logits of what is shown, and (B,) where the map cannot serve as a mask."""
        wrong = not_a_mask(plane, type(self).__name__)
        if self.keep is None:
            return masked_logits(plane, scene, self.mask_space), wrong
        return kept_logits(plane, scene, self.mask_space, self.keep), torch.zeros_like(wrong)


@dataclass
class AverageDrop(Muting):
    """Average drop, AD: max(p - o, 0) / p. (Tables of Zhang et al. 2024 print 100 - AD.)"""

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
    source: ClassVar[str] = "Chattopadhay et al., Grad-CAM++, WACV 2018; half of the pixels muted: Wang et al. 2020"

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        shown, wrong = self.masked(plane, scene)
        log_p = logsigmoid(log_odds(image_logits(scene), scene.target))
        log_o = logsigmoid(log_odds(shown, scene.target))
        lost = log_p < _LOG_TINY
        drop = -torch.expm1((log_o - log_p).clamp(max=0.0))
        return scored(drop.masked_fill(wrong | lost, torch.nan), plane, (UNDEFINED, wrong), (UNDERFLOW, lost))


@dataclass
class AverageIncrease(Muting):
    """Average increase, AI: 1 where o > p, else 0 (equality is no increase)."""

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    source: ClassVar[str] = "Chattopadhay et al., Grad-CAM++, WACV 2018; half of the pixels muted: Wang et al. 2020"

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        shown, wrong = self.masked(plane, scene)
        before = log_odds(image_logits(scene), scene.target)
        after = log_odds(shown, scene.target)
        unknown = wrong | before.isnan() | after.isnan()
        return scored((after > before).double().masked_fill(unknown, torch.nan), plane, (UNDEFINED, wrong))


@dataclass
class AverageGain(Masking):
    """Average gain, AG: max(o - p, 0) / (1 - p) = 1 - min((1 - o) / (1 - p), 1).

    Ill-conditioned where 1 - p < 1e-7: flagged `saturated`. `clipped` leaves out images with p > 0.999.
    """

    direction: ClassVar[Literal["higher", "lower", "none"]] = "higher"
    source: ClassVar[str] = "Zhang et al., Opti-CAM, CVIU 2024"

    clipped: bool = False

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        wrong = not_a_mask(plane, "AverageGain")
        log_p_rest = logsigmoid(-log_odds(image_logits(scene), scene.target))
        log_o_rest = logsigmoid(-log_odds(masked_logits(plane, scene, self.mask_space), scene.target))
        saturated = log_p_rest < math.log(1e-3 if self.clipped else 1e-7)
        gain = -torch.expm1((log_o_rest - log_p_rest).clamp(max=0.0))
        left_out = wrong | saturated if self.clipped else wrong
        return scored(gain.masked_fill(left_out, torch.nan), plane, (UNDEFINED, wrong), (SATURATED, saturated))


@dataclass
class LocalAccuracy(Masking):
    """Local accuracy, LA: |f_c(x) - f_c(x * m)|, f the probability or the logit."""

    direction: ClassVar[Literal["higher", "lower", "none"]] = "lower"
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    source: ClassVar[str] = "Zhang, Torres, Hermanns, ACML 2024"

    output: Literal["prob", "logit"] = "prob"

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        wrong = not_a_mask(plane, "LocalAccuracy")
        before = self._output(image_logits(scene), scene.target)
        after = self._output(masked_logits(plane, scene, self.mask_space), scene.target)
        return scored((before - after).abs().masked_fill(wrong, torch.nan), plane, (UNDEFINED, wrong))

    def _output(self, logits: Tensor, target: Tensor) -> Tensor:
        return wide(pick(logits, target)) if self.output == "logit" else log_odds(logits, target).sigmoid()
