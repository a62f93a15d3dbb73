"""Maps that do not look at the model: what a saliency method has to beat, and what a metric has to reward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from salrun.errors import SalrunError
from salrun.models.classifier import Classifier
from salrun.ranges import AtLeast
from salrun.rng import Draws
from salrun.types import PRIMARY, Fitted, Method

# Smoothing across the axis and derivative along it (the kernels of OpenCV's Sobel).
SOBEL = {"sobel3": ((1, 2, 1), (-1, 0, 1)), "sobel5": ((1, 4, 6, 4, 1), (-1, -2, 0, 2, 1))}
LUMA = (0.299, 0.587, 0.114)


class ModelFree(Method):
    """Costs nothing and has no sign."""

    signed: ClassVar[bool] = False

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 0.0


@dataclass
class Edge(ModelFree):
    """Sobel filter of the raw image: sqrt(gx^2 + gy^2), or gx alone; borders mirrored without repeating the edge pixel.

    The edge detector of Adebayo et al. 2018. Tomsett et al.: 3x3 magnitude of the luma. SMERF: OpenCV's 5x5
    x-derivative of each channel, then min-max over the image (`minmax`).
    """

    kernel: Literal["sobel3", "sobel5"] = "sobel3"
    axis: Literal["magnitude", "x"] = "magnitude"
    reduce: Literal["luma", "channel_max", "per_channel"] = "luma"
    minmax: bool = False

    paper_name: ClassVar[str] = "Edge"
    source: ClassVar[str] = "Sobel filter; Adebayo et al. 2018, arXiv:1810.03292"

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        if self.reduce == "luma":
            x = luma(x)
        edges = self.filtered(x)
        if self.reduce == "channel_max":
            edges = edges.amax(1, keepdim=True)
        if self.minmax:
            low, high = edges.amin((1, 2, 3), keepdim=True), edges.amax((1, 2, 3), keepdim=True)
            edges = (edges - low) / torch.where(high == low, 1, high - low)
        return edges

    def filtered(self, x: Tensor) -> Tensor:
        smooth, slope = (torch.tensor(taps, dtype=x.dtype, device=x.device) for taps in SOBEL[self.kernel])
        across = torch.outer(smooth, slope)
        margin = len(smooth) // 2
        planes = F.pad(x, (margin,) * 4, mode="reflect").flatten(0, 1).unsqueeze(1)
        gx = F.conv2d(planes, across[None, None]).view_as(x)
        if self.axis == "x":
            return gx
        return torch.hypot(gx, F.conv2d(planes, across.T[None, None]).view_as(x))


def luma(x: Tensor) -> Tensor:
    """ITU-R BT.601 luma of RGB images, (B, 1, H, W); grey images are their own."""
    if x.shape[1] == 1:
        return x
    if x.shape[1] != 3:
        raise SalrunError(f"reduce=luma of edge needs 1 or 3 channels, got {x.shape[1]}; use reduce=channel_max")
    return (x * torch.tensor(LUMA, dtype=x.dtype, device=x.device).view(1, 3, 1, 1)).sum(1, keepdim=True)


@dataclass
class Random(ModelFree):
    """U[0, 1) independently for every pixel and channel."""

    paper_name: ClassVar[str] = "Random"
    source: ClassVar[str] = "control"

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        return rng.uniform("random", x.shape[1:]).to(x.dtype)


def ink(fitted: Fitted, name: str) -> Tensor:
    """How opaque an object is drawn at each pixel, or its region where the data set knows no better, (B, H, W)."""
    return fitted.masks.get(f"{name}_ink", fitted.masks[name])


def lit(x: Tensor, objects: Iterable[Tensor]) -> Tensor:
    """The greatest of the objects at each pixel, 0 where there is none, (B, 1, H, W)."""
    plane = torch.zeros_like(x[:, 0])
    for drawn in objects:
        plane = torch.maximum(plane, drawn.to(x))
    return plane.unsqueeze(1)


@dataclass
class Oracle(ModelFree):
    """The primary objects as they are drawn, 0 elsewhere: the map that a localisation metric should like best.

    1 on an object's ink, less at the soft edges of a letter; 1 on its region where the data set knows no ink. `cells`:
    as a network of so many tokens a side would have it, the mean of each cell, resized to the image (bilinear).
    """

    cells: Annotated[int | None, AtLeast(1)] = None

    needs: ClassVar[frozenset[str]] = frozenset({"masks"})
    paper_name: ClassVar[str] = "Oracle"
    source: ClassVar[str] = "control"

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        if not fitted.roles:
            raise SalrunError(
                "method 'oracle' needs masks with roles: the data set says of no object that it is primary"
            )
        plane = lit(x, (ink(fitted, name) * (role == PRIMARY)[:, None, None] for name, role in fitted.roles.items()))
        return on_cells(plane, self.cells)


@dataclass
class AllLit(ModelFree):
    """Every object as it is drawn, primary or not: what is visible, not what matters. `cells`: as in `oracle`."""

    cells: Annotated[int | None, AtLeast(1)] = None

    needs: ClassVar[frozenset[str]] = frozenset({"masks"})
    paper_name: ClassVar[str] = "All lit"
    source: ClassVar[str] = "control"

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        if not fitted.masks:
            raise SalrunError("method 'all_lit' needs masks: the data set gives none")
        names = fitted.roles or [name for name in fitted.masks if not name.endswith("_ink")]
        return on_cells(lit(x, (ink(fitted, name) for name in names)), self.cells)


def on_cells(plane: Tensor, cells: int | None) -> Tensor:
    """The plane (B, 1, H, W) as cells x cells tokens see it: the mean of each, resized (bilinear); None: as it is."""
    if cells is None:
        return plane
    tokens = F.adaptive_avg_pool2d(plane, cells)
    return F.interpolate(tokens, size=plane.shape[-2:], mode="bilinear", align_corners=False)
