"""Does the map fall on the objects that matter? Attribution focus, intersection over union, the pointing game.

Kim, Plumb, Talwalkar, "Sanity Simulations for Saliency Methods", ICML 2022 (SMERF). `mode: code` is what the public
code computes, `mode: paper` what the text says. An object is a mask that has a role; `roi: ink` takes its drawn pixels
instead of its box.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.common import as_plane, box_blur, scored
from salrun.metrics.correlation import average_ranks
from salrun.ranges import AtLeast, Odd
from salrun.types import DEGENERATE_MAP, NO_MASK, PRIMARY, ROLES, Metric, Scene, Score
from salrun.views import constant, rescale


def objects(scene: Scene, role: int, roi: str, owner: str) -> Tensor:
    """(B, N, H, W) bool: each object's region in the images where it has that role, nothing elsewhere."""
    suffix = "_ink" if roi == "ink" else ""
    missing = [name + suffix for name in scene.roles if name + suffix not in scene.masks]
    if missing or not scene.roles:
        what = f"mask '{missing[0]}'" if missing else "masks with roles"
        raise SalrunError(f"{owner} needs {what}, which this data set does not have; it has {sorted(scene.masks)}")
    return torch.stack(
        [scene.masks[name + suffix].bool() & (has == role).view(-1, 1, 1) for name, has in scene.roles.items()], 1
    )


@dataclass
class OnObjects(Metric):
    """What falls on the objects of a role: to be sought on primary ones, to be avoided on secondary ones."""

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    needs: ClassVar[frozenset[str]] = frozenset({"masks"})

    role: Literal["primary", "secondary"] = "primary"

    @property
    def direction(self) -> Literal["higher", "lower", "none"]:  # type: ignore[override]
        return "higher" if self.role == "primary" else "lower"


@dataclass
class Focus(OnObjects):
    """`blur`: side of the mean filter over the map, 1 = none."""

    source: ClassVar[str] = "Kim, Plumb, Talwalkar, ICML 2022"

    mode: Literal["code", "paper"] = "code"
    roi: Literal["box", "ink"] = "box"
    blur: Annotated[int, AtLeast(1), Odd()] = 7


def focus(plane: Tensor, mode: str, blur: int) -> Tensor:
    """(B, H, W): the map as shares of 1. Code: blurred and min-maxed first; paper: |p| as it is. No mass: NaN."""
    shares = rescale(box_blur(plane, blur)) if mode == "code" else plane.abs()
    return shares / shares.sum((1, 2), keepdim=True)


def coverage(regions: Tensor, mode: str) -> Tensor:
    """(B, H, W): how often a pixel counts. Code: once per object; paper: once."""
    return regions.sum(1) if mode == "code" else regions.any(1).long()


@dataclass
class AFL(Focus):
    """Attribution focus level, PAFL / SAFL: sum of p over the objects of the role, p >= 0, sum p = 1.

    Code: p = map after 7 x 7 mean blur and min-max; overlapping objects count twice. Paper: p = |map| / sum |map|;
    union of the objects. A perfect 4 x 4 map scores 16/49 under the code's blur.
    """

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        p = focus(as_plane(plane, "AFL"), self.mode, self.blur)
        cover = coverage(objects(scene, ROLES[self.role], self.roi, "AFL"), self.mode).to(p.device)
        absent = ~cover.flatten(1).any(1)
        value = (p * cover).sum((1, 2)).masked_fill(absent, torch.nan)
        return scored(value, plane, (NO_MASK, absent), (DEGENERATE_MAP, value.isnan()))


@dataclass
class MAFL(Focus):
    """Mean attribution focus level, PMAFL / SMAFL: mean of AFL's p over the pixels of the role's objects."""

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        p = focus(as_plane(plane, "MAFL"), self.mode, self.blur)
        cover = coverage(objects(scene, ROLES[self.role], self.roi, "MAFL"), self.mode).to(p.device)
        absent = ~cover.flatten(1).any(1)
        value = (p * cover).sum((1, 2)) / cover.sum((1, 2))
        return scored(value, plane, (NO_MASK, absent), (DEGENERATE_MAP, value.isnan()))


def histogram_cut(plane: Tensor, count: Tensor, bins: int = 10) -> Tensor:
    """(B, H, W) bool: p >= the highest lower edge of the `bins` equal bins of [min, max] that keeps >= count pixels."""
    flat = plane.flatten(1)
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    edges = torch.arange(bins, dtype=flat.dtype, device=flat.device) * ((high - low) / bins) + low
    above = (flat.unsqueeze(2) >= edges.unsqueeze(1)).sum(1)
    bin_ = (above >= count.unsqueeze(1)).sum(1, keepdim=True) - 1  # `above` falls from bin to bin
    mask = flat >= edges.gather(1, bin_.clamp(min=0))
    return (mask | constant(flat).unsqueeze(1)).view_as(plane)


def top_pixels(plane: Tensor, count: Tensor) -> Tensor:
    """(B, H, W) bool: the `count` largest pixels, equal ones by index."""
    order = plane.flatten(1).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)
    return (rank < count.unsqueeze(1)).view_as(plane)


@dataclass
class IOU(Focus):
    """Intersection over union, PIOU / SIOU: the role's objects against the mask M of the map's largest values.

    The map is blurred 7 x 7; K = area of the *primary* objects for both roles.
    Code: M = pixels above the edge of a 10-bin histogram that keeps at least K; mean over objects of
    |object & M| / |object | M|, so at most 1/n for n disjoint objects. Paper: M = top K; one IOU with the objects'
    union (undefined without a primary object).
    """

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        p = box_blur(as_plane(plane, "IOU"), self.blur)
        primary = objects(scene, PRIMARY, self.roi, "IOU").to(p.device)
        regions = objects(scene, ROLES[self.role], self.roi, "IOU").to(p.device)
        k = coverage(primary, self.mode).sum((1, 2))
        if self.mode == "code":
            selected = histogram_cut(p, k)
            undecided = torch.zeros_like(k, dtype=torch.bool)
        else:
            selected = top_pixels(p, k)
            regions = regions.any(1, keepdim=True)
            undecided = k == 0
        selected = selected.unsqueeze(1)
        both = (regions & selected).sum((2, 3)).double()
        either = (regions | selected).sum((2, 3))
        present = regions.flatten(2).any(2)
        value = (both / either).where(present, 0.0).sum(1) / present.sum(1)  # no object: 0/0
        absent = ~present.any(1) | undecided
        return scored(value.masked_fill(absent, torch.nan), plane, (NO_MASK, absent), (DEGENERATE_MAP, constant(p)))


@dataclass
class PointingGame(OnObjects):
    """Does the map's maximum hit an object of the role, or come within `tolerance` pixels of it?

    Zhang et al., "Top-down neural attention by excitation backprop", IJCV 2018 (15 pixels on VOC and COCO images).
    Where several pixels share the maximum the value is the share of them that hit.
    """

    source: ClassVar[str] = "Zhang et al., IJCV 2018"

    roi: Literal["box", "ink"] = "box"
    tolerance: Annotated[int, AtLeast(0)] = 0

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        p = as_plane(plane, "PointingGame")
        target = objects(scene, ROLES[self.role], self.roi, "PointingGame").any(1).to(p.device)
        absent = ~target.flatten(1).any(1)
        maximum = p == p.amax((1, 2), keepdim=True)
        hits = (maximum & self._widen(target)).sum((1, 2)).double() / maximum.sum((1, 2))
        return scored(hits.masked_fill(absent, torch.nan), plane, (NO_MASK, absent))

    def _widen(self, target: Tensor) -> Tensor:
        """All pixels at a distance <= tolerance of the region."""
        t = self.tolerance
        square = torch.arange(-t, t + 1, device=target.device) ** 2
        disc = (square.view(-1, 1) + square <= t * t).float()
        return F.conv2d(target.float().unsqueeze(1), disc[None, None], padding=t).squeeze(1) > 0.5


@dataclass
class OnRegion(OnObjects):
    """The map against the union of the role's objects, as two kinds of pixels."""

    roi: Literal["box", "ink"] = "box"

    def region(self, plane: Tensor, scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
        """(B, P) the map, (B, P) bool the region, (B,) bool where there is none."""
        name = type(self).__name__
        pixels = as_plane(plane, name).flatten(1)
        inside = objects(scene, ROLES[self.role], self.roi, name).any(1).flatten(1).to(pixels.device)
        return pixels, inside, ~inside.any(1)


def hits(pixels: Tensor, inside: Tensor, count: Tensor) -> Tensor:
    """(B,) float64: how many of the `count` (B,) largest pixels lie inside; of equal ones at the cut, their share."""
    ordered = pixels.sort(dim=1, descending=True).values
    cut = ordered.gather(1, (count - 1).clamp(min=0).unsqueeze(1))
    above, level = pixels > cut, pixels == cut
    rest = (count - above.sum(1)).double()
    return (above & inside).sum(1) + rest * (level & inside).sum(1) / level.sum(1)


@dataclass
class RelevanceRankAccuracy(OnRegion):
    """Relevance rank accuracy: share of the K most salient pixels that lie on the objects, K the objects' area.

    Pixels that tie at the cut count by the share of them that hits. `chance` is the share of the image they cover.
    """

    source: ClassVar[str] = "Arras, Osman, Samek 2022, Information Fusion 81"

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        pixels, inside, absent = self.region(plane, scene)
        area = inside.sum(1)
        share = hits(pixels, inside, area) / area
        return with_chance(share, inside, absent, plane)


@dataclass
class TopKIntersection(OnRegion):
    """Top-k intersection: share of the k most salient pixels that lie on the objects.

    Pixels that tie at the cut count by the share of them that hits. `chance` is the share of the image they cover.
    """

    k: Annotated[int, AtLeast(1)] = 1000

    source: ClassVar[str] = "Theiner, Mueller-Budack, Ewerth 2022, WACV"

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        pixels, inside, absent = self.region(plane, scene)
        if self.k > pixels.shape[1]:
            raise SalrunError(f"top_k_intersection: k must be at most the image's {pixels.shape[1]}, got {self.k}")
        count = torch.full_like(inside.sum(1), self.k)
        return with_chance(hits(pixels, inside, count) / self.k, inside, absent, plane)


def with_chance(share: Tensor, inside: Tensor, absent: Tensor, plane: Tensor) -> dict[str, Score]:
    """The score, and what a random map would have."""
    named = {"": share, "chance": inside.double().mean(1)}
    return {name: scored(v.masked_fill(absent, torch.nan), plane, (NO_MASK, absent)) for name, v in named.items()}


@dataclass
class LocalisationAUC(OnRegion):
    """Area under the ROC curve of the map as a detector of the objects' pixels.

    The probability that a pixel on the objects is more salient than one beside them, ties counting one half. Undefined
    where the objects cover the image.
    """

    chance: ClassVar[float | None] = 0.5
    source: ClassVar[str] = "Fawcett 2006, Pattern Recognition Letters 27"

    def __call__(self, plane: Tensor, scene: Scene) -> Score:
        pixels, inside, absent = self.region(plane, scene)
        on = inside.sum(1).double()
        above = (average_ranks(pixels) * inside).sum(1) - on * (on + 1) / 2
        value = above / (on * (pixels.shape[1] - on))
        return scored(value.masked_fill(absent, torch.nan), plane, (NO_MASK, absent))
