"""Tasks on MNIST whose right explanation is known (Yona & Greenfeld 2021): a deleted half, an added shape.

An image's task is drawn from (seed, its id), so it is the same in every batch and at every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from salrun.datasets.base import balanced, choice_seed
from salrun.datasets.mnist import MNIST
from salrun.errors import SalrunError
from salrun.ranges import AtLeast
from salrun.rng import Draws, to_integer
from salrun.types import NEUTRAL, PRIMARY, SECONDARY, Batch

VERSION = 1  # of the generators: a change of any pixel needs a new number
SIZE = 28


class Task(MNIST):
    """MNIST's images, splits and ids with other pixels and labels; `digits` are the originals."""

    choosing: ClassVar[tuple[str, ...]] = ("root", "n_explained", "explained_seed", "verify")

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"version": VERSION}

    def digits(self, ids: Sequence[str]) -> tuple[Tensor, Tensor]:
        return super().images(list(ids))

    def task(self, ids: Sequence[str]) -> Tensor:
        """(B,) what is done to each image."""
        raise NotImplementedError("abstract")

    def labels(self, ids: Sequence[str]) -> Tensor:
        return self.task(ids)


@dataclass
class MnistHalves(Task):
    """Half of the image is deleted (set to 0) with probability 1/2; the label says whether it was.

    `half`: the paper's text says bottom, the caption of its figure 1 top. `explain` restricts the explained images to
    intact ones, as in the paper's figure, or to deleted ones. Mask `half` is the region that decides, in both classes.
    """

    root: str
    n_explained: Annotated[int, AtLeast(1)] | None = None
    seed: int = 0
    explained_seed: int | None = None  # None: seed
    half: Literal["bottom", "top"] = "bottom"
    explain: Literal["all", "intact", "deleted"] = "all"
    validation: int = 5_000
    split_seed: int = 0
    verify: bool = True

    name = "mnist_halves"
    classes = ("intact", "deleted")
    mask_names = ("half",)
    choosing = (*Task.choosing, "explain")

    def task(self, ids: Sequence[str]) -> Tensor:
        return Draws.of(self.seed, ids).integer(2, "mnist_halves", 1)[:, 0]

    @property
    def region(self) -> Tensor:
        """(H, W) the half that may be deleted."""
        lower = torch.arange(SIZE).ge(SIZE // 2).view(-1, 1).expand(SIZE, SIZE)
        return lower if self.half == "bottom" else ~lower

    def images(self, ids: list[str]) -> tuple[Tensor, Tensor]:
        pixels, deleted = self.digits(ids)[0], self.task(ids)
        return pixels.masked_fill(self.region & deleted.bool().view(-1, 1, 1, 1), 0), deleted

    def explained(self) -> list[str]:
        ids = self.ids("test")
        y = self.task(ids)
        if self.explain != "all":
            wanted = y == self.classes.index(self.explain)
            ids, y = [i for i, keep in zip(ids, wanted.tolist(), strict=True) if keep], y[wanted]
        return balanced(ids, y, self.n_explained, choice_seed(self), "explained")

    def batch(self, ids: list[str]) -> Batch:
        pixels, y = self.images(ids)
        masks = {"half": self.region.expand(len(ids), SIZE, SIZE).clone()}
        roles = {"half": torch.full((len(ids),), PRIMARY)}
        return Batch(pixels / 255.0, y, tuple(ids), tuple(self.groups_of(ids)), masks, roles)


@dataclass
class MnistShapes(Task):
    """Nothing, a rectangle or an empty circle, each with probability 1/3, is added to the digit.

    `labels_of`: the same images labelled by the shape (3 classes) or by the digit (10). Masks `digit` and `shape` are
    their inked pixels (`region="ink"`) or bounding boxes ("box"); primary is what the label speaks of, secondary the
    other. Shapes are drawn at full intensity where they touch no ink, or as little as possible.
    """

    root: str
    n_explained: Annotated[int, AtLeast(1)] | None = None
    seed: int = 0
    explained_seed: int | None = None  # None: seed
    labels_of: Literal["shape", "digit"] = "shape"
    region: Literal["ink", "box"] = "ink"
    rectangle: Literal["outline", "filled"] = "outline"
    side: tuple[int, int] = (5, 9)  # of a rectangle, both inclusive, in pixels
    radius: tuple[int, int] = (3, 5)
    stroke: tuple[int, int] = (1, 2)
    validation: int = 5_000
    split_seed: int = 0
    verify: bool = True

    name = "mnist_shapes"
    mask_names = ("digit", "shape")
    choosing = (*Task.choosing, "region")

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, most in (("side", SIZE), ("radius", (SIZE - 1) // 2), ("stroke", SIZE)):
            low, high = getattr(self, field)
            setattr(self, field, (low, high))
            if not 1 <= low <= high <= most:
                raise SalrunError(f"dataset.{field} must be two numbers, 1 <= low <= high <= {most}, got {[low, high]}")
        shapes = ("nothing", "rectangle", "circle")
        self.classes = shapes if self.labels_of == "shape" else MNIST.classes

    def task(self, ids: Sequence[str]) -> Tensor:
        return Draws.of(self.seed, ids).integer(3, "mnist_shapes", 1)[:, 0]

    def labels(self, ids: Sequence[str]) -> Tensor:
        return self.task(ids) if self.labels_of == "shape" else MNIST.labels(self, ids)

    def images(self, ids: list[str]) -> tuple[Tensor, Tensor]:
        digits = self.digits(ids)[0]
        shape = self._shapes(ids, digits[:, 0] > 0)[0]
        return digits.masked_fill(shape.unsqueeze(1), 255), self.labels(ids)

    def batch(self, ids: list[str]) -> Batch:
        digits = self.digits(ids)[0]
        ink = digits[:, 0] > 0
        shape, shape_box = self._shapes(ids, ink)
        masks = {"digit": ink & ~shape, "shape": shape}
        if self.region == "box":
            masks = {"digit": bounding_box(ink), "shape": shape_box}
        x = digits.masked_fill(shape.unsqueeze(1), 255) / 255.0
        role_of = (
            {"shape": PRIMARY, "digit": SECONDARY}
            if self.labels_of == "shape"
            else {"digit": PRIMARY, "shape": SECONDARY}
        )
        roles = {name: torch.where(mask.any((1, 2)), role_of[name], NEUTRAL) for name, mask in masks.items()}
        return Batch(x, self.labels(ids), tuple(ids), tuple(self.groups_of(ids)), masks, roles)

    def _shapes(self, ids: Sequence[str], ink: Tensor) -> tuple[Tensor, Tensor]:
        """Inked pixels and bounding box of each image's shape, (B, H, W) each; empty where there is none."""
        rng = Draws.of(self.seed, ids)
        words = rng.bits("mnist_shapes/size", 4)
        drawn = [
            low + to_integer(words[:, k], high - low + 1)
            for k, (low, high) in enumerate((self.side, self.side, self.radius, self.stroke))
        ]
        height, width, radius, stroke = (value.view(-1, 1, 1) for value in drawn)
        kind = self.task(ids).view(-1, 1, 1)
        height = torch.where(kind == 2, 2 * radius + 1, height)
        width = torch.where(kind == 2, 2 * radius + 1, width)
        chance = rng.uniform("mnist_shapes/place", 1, dtype=torch.float64)[:, 0]
        top, left = (at.view(-1, 1, 1) for at in free_place(ink, height, width, chance))
        row, column = torch.arange(SIZE).view(1, -1, 1) - top, torch.arange(SIZE).view(1, 1, -1) - left
        box = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (kind > 0)
        depth = torch.minimum(torch.minimum(row, height - 1 - row), torch.minimum(column, width - 1 - column))
        rectangle = depth < stroke if self.rectangle == "outline" else box
        distance = torch.sqrt(((row - radius) ** 2 + (column - radius) ** 2).to(torch.float64))
        circle = (distance < radius + 0.5) & (distance >= radius + 0.5 - stroke)
        return box & torch.where(kind == 2, circle, rectangle), box


def free_place(ink: Tensor, height: Tensor, width: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """(top, left) of a height x width box inside the image, drawn evenly among the places that cover the least ink.

    Of places that cover equally little, those that keep a margin of one pixel are preferred; `chance` (B,) in [0, 1)
    picks one of the rest.
    """
    size = ink.shape[-1]
    total = torch.zeros((len(ink), size + 1, size + 1), dtype=torch.int64)
    total[:, 1:, 1:] = ink.long().cumsum(1).cumsum(2)
    image = torch.arange(len(ink)).view(-1, 1, 1)
    top, left = torch.arange(size).view(1, -1, 1), torch.arange(size).view(1, 1, -1)

    def covered(margin: int) -> Tensor:
        """Ink under the box and a margin, for all places at once, from the integral image."""
        y0, y1 = (top - margin).clamp(min=0), (top + height + margin).clamp(max=size)
        x0, x1 = (left - margin).clamp(min=0), (left + width + margin).clamp(max=size)
        return total[image, y1, x1] - total[image, y0, x1] - total[image, y1, x0] + total[image, y0, x0]

    cost = covered(0) * size**2 + covered(1)
    cost = cost.masked_fill((top + height > size) | (left + width > size), size**4).flatten(1)
    rank = (cost == cost.amin(1, keepdim=True)).cumsum(1)  # 1, 2, .. at the best places
    wanted = (chance * rank[:, -1]).long() + 1
    place = (rank < wanted.unsqueeze(1)).sum(1)
    return place // size, place % size


def bounding_box(mask: Tensor) -> Tensor:
    """(B, H, W): the smallest box around each mask."""
    rows, columns = mask.any(2), mask.any(1)
    between = lambda line: line.long().cumsum(1).gt(0) & line.flip(1).long().cumsum(1).flip(1).gt(0)  # noqa: E731
    return between(rows).unsqueeze(2) & between(columns).unsqueeze(1)
