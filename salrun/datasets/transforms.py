"""Images seen through transforms: mixed with another, coarser, rotated, cropped (Zhang, Torres, Hermanns, ACML 2024).

The paper names four transforms with four variations each and no parameters; those here are our choice, so a run records
what the transforms do to the class probability beside what the paper's numbers imply.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as T

from salrun.datasets.base import Derived
from salrun.errors import SalrunError, unknown
from salrun.ranges import Above, AtMost, check_declared
from salrun.rng import Draws
from salrun.types import Batch, Deviating, Labelled

VERSION = 1
CLEAN = "clean"
MARK = "@"
SIDE = 224  # `resize` counts pixels of an image of this side; others in proportion


@dataclass
class Transformed(Derived):
    """Each explained image of `plain` as it is (`clean`) and in every variation, named `<id>@<transform>/<variation>`.

    A variation is the image's `group`. All work on raw pixels in [0, 1] and keep the image's size and label.
    mixup: w x + (1 - w) x', x' the next image of another class in a random cycle of all test images.
    resize: down to so many pixels and back, bilinear with antialiasing. rotation: degrees counter-clockwise, bilinear,
    black corners. crop: the centre, so much of the side, resized back. rotation_reflected: rotation, the corners filled
    with the image reflected at its edges (not one of the paper's four).
    """

    plain: Labelled  # the data set whose images these are; models are trained and verified on it
    clean: bool = True
    mixup: list[Annotated[float, Above(0), AtMost(1)]] = field(
        default_factory=lambda: [0.8, 0.6, 0.4, 0.2]
    )  # weight of the image itself
    resize: list[Annotated[int, Above(0), AtMost(SIDE)]] = field(default_factory=lambda: [128, 96, 64, 32])
    rotation: list[float] = field(default_factory=lambda: [45, 90, 135, 180])
    crop: list[Annotated[float, Above(0), AtMost(1)]] = field(default_factory=lambda: [0.9, 0.8, 0.7, 0.6])
    rotation_reflected: list[float] = field(default_factory=list)
    mixup_label: Literal["primary", "partner"] = "primary"
    seed: int = 0  # of the choice of partners

    mask_names = ()

    def __post_init__(self) -> None:
        check_declared(self)
        if self.plain.mask_names:
            raise SalrunError(f"dataset.transforms: the masks of '{self.plain.name}' would not move with its images")
        if not self._variations:
            raise SalrunError("dataset.transforms leaves no image to explain: give a variation or clean=true")
        self.name, self.shape = self.plain.name, self.plain.shape

    @functools.cached_property
    def _variations(self) -> dict[str, tuple[str, float]]:
        """group -> (transform, parameter); the image itself first."""
        variations: dict[str, tuple[str, float]] = {CLEAN: (CLEAN, 0.0)} if self.clean else {}
        for transform in ("mixup", *TRANSFORMS):
            variations |= {f"{transform}/{value:g}": (transform, value) for value in getattr(self, transform)}
        return variations

    # -- ids -------------------------------------------------------------------------------------------------------

    def explained(self) -> list[str]:
        return [i if v == CLEAN else f"{i}{MARK}{v}" for i in self.plain.explained() for v in self._variations]

    def split_id(self, name: str) -> tuple[str, str]:
        """`n01440764/x@crop/0.9` -> (`n01440764/x`, `crop/0.9`)."""
        plain, mark, variation = name.rpartition(MARK)
        if not mark:
            return name, CLEAN
        if variation not in self._variations:
            raise unknown("variation", variation, self._variations, f"image id '{name}'")
        return plain, variation

    def groups_of(self, ids: Sequence[str]) -> list[str]:
        return [self.split_id(i)[1] for i in ids]

    # -- images ----------------------------------------------------------------------------------------------------

    def batch(self, ids: list[str]) -> Batch:
        names, groups = zip(*map(self.split_id, ids), strict=True)
        x, y = self._read(names)
        for group in dict.fromkeys(groups):
            transform, value = self._variations.get(group, (CLEAN, 0.0))
            rows = [k for k, g in enumerate(groups) if g == group]
            if transform == "mixup":
                other, label = self._read(self.partners([names[k] for k in rows]))
                x[rows] = value * x[rows] + (1 - value) * other
                if self.mixup_label == "partner":
                    y[rows] = label
            elif transform != CLEAN:
                x[rows] = TRANSFORMS[transform](x[rows], value).clamp(0, 1)
        return Batch(x, y, tuple(ids), groups)

    def _read(self, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Images and labels; one that is wanted often is read once."""
        once = {name: row for row, name in enumerate(dict.fromkeys(names))}
        batch = self.plain.batch(list(once))
        rows = [once[name] for name in names]
        return batch.x[rows], batch.y[rows]

    def partners(self, names: Sequence[str]) -> list[str]:
        """The image that each is mixed with: the next of another class in the cycle."""
        ids, label, place = self._cycle
        result = []
        for name in names:
            k = place[name]
            turns = (j % len(ids) for j in range(k + 1, k + len(ids)))
            other = next((j for j in turns if label[j] != label[k]), None)
            if other is None:
                raise SalrunError(f"dataset.transforms.mixup needs two classes, '{self.name}' has images of one")
            result.append(ids[other])
        return result

    @functools.cached_property
    def _cycle(self) -> tuple[list[str], list[int], dict[str, int]]:
        ids = self.plain.ids("test")
        order = torch.argsort(Draws.of(self.seed, ids).bits("mixup", 1)[:, 0], stable=True).tolist()
        shuffled = [ids[i] for i in order]
        return shuffled, self.plain.labels(shuffled).tolist(), {name: k for k, name in enumerate(shuffled)}

    # -- identity --------------------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        return self.plain.identity()

    def facts(self) -> dict[str, Any]:
        """The facts of the untransformed data, and that it is seen through transforms."""
        return {**self.plain.facts(), "transformed": True}

    def deviations(self) -> list[str]:
        return self.plain.deviations() if isinstance(self.plain, Deviating) else []

    def image_facts(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """Of each image, for tables/images.parquet: the id of the untransformed one, the transform, its strength."""
        names, groups = zip(*map(self.split_id, ids), strict=True)
        variations = [self._variations[group] for group in groups]
        strength = ["" if transform == CLEAN else f"{value:g}" for transform, value in variations]
        return {"source_id": list(names), "transform": [t for t, _ in variations], "strength": strength}

    def fingerprint(self) -> dict[str, Any]:
        """Of everything that decides an image behind its id; which variations there are does not."""
        settings = {"version": VERSION, "mixup_label": self.mixup_label, "seed": self.seed}
        return {**self.plain.fingerprint(), "transforms": settings}


def coarser(x: Tensor, side: float) -> Tensor:
    """Down to side / 224 of the size and back: the detail is gone, the place is kept."""
    size = list(x.shape[2:])
    small = [max(1, round(s * side / SIDE)) for s in size]
    return T.resize(T.resize(x, small, antialias=True), size, antialias=True)


def rotated(x: Tensor, degrees: float) -> Tensor:
    return T.rotate(x, degrees, interpolation=InterpolationMode.BILINEAR, fill=[0.0])


def rotated_reflected(x: Tensor, degrees: float) -> Tensor:
    """`rotated`, with the image reflected at its edges where nothing was."""
    height, width = x.shape[2:]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[cosine, -sine * height / width, 0], [sine * width / height, cosine, 0]]).to(x)
    grid = F.affine_grid(turn.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def cropped(x: Tensor, share: float) -> Tensor:
    """The centre with `share` of the side, at the image's size."""
    size = list(x.shape[2:])
    return T.resize(T.center_crop(x, [max(1, round(s * share)) for s in size]), size, antialias=True)


TRANSFORMS = {"resize": coarser, "rotation": rotated, "crop": cropped, "rotation_reflected": rotated_reflected}
