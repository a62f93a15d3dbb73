"""Pairs (Yona & Greenfeld 2021): two pictures side by side, the label is the class of the one that belongs to group 1.

Which half matters is known, so a map can be judged: masks `left` and `right`, primary the half of group 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from salrun.datasets.base import SPLITS, ImageDataset, balanced, choice_seed, plain_settings
from salrun.datasets.cifar10 import CIFAR10
from salrun.datasets.imagenet import ImageNet
from salrun.datasets.tinyimagenet import TinyImageNet
from salrun.errors import SalrunError, unknown
from salrun.ranges import AtLeast, check_declared
from salrun.rng import Draws
from salrun.types import PRIMARY, SECONDARY, Batch

VERSION = 1  # of the generator: a change of any pixel needs a new number


@dataclass
class Pairs:
    """Pairs of pictures of `source`, one of a class in `group1`, one of a class in `group2`, on random sides.

    Pair k of a split shows group-1 class k mod n, that class's pictures in turn and a random picture of group 2, so
    that a split's first pairs use every group-1 picture once. `height`: each half is resized to height x height (None:
    as stored). `train_per_class`: only the first so many training pictures of each class (the paper speaks of 250).
    """

    root: str
    group1: list[str]
    group2: list[str]
    source: Literal["tinyimagenet", "cifar10", "imagenet"] = "tinyimagenet"
    n_explained: Annotated[int, AtLeast(1)] | None = None
    seed: int = 0  # of the pairing and the sides
    explained_seed: int | None = None  # of the choice of explained pairs; None: seed
    height: Annotated[int, AtLeast(1)] | None = None
    train_per_class: Annotated[int, AtLeast(1)] | None = 250
    train_pairs: Annotated[int, AtLeast(1)] = 5_000
    validation_pairs: Annotated[int, AtLeast(1)] = 1_000
    test_pairs: Annotated[int, AtLeast(1)] = 1_000

    mask_names = ("left", "right")
    verification_split = "test"

    def __post_init__(self) -> None:
        check_declared(self)
        self.name = f"{self.source}_pairs"
        self.classes = tuple(self.group1)
        if not self.group1 or not self.group2 or set(self.group1) & set(self.group2):
            raise SalrunError(f"{self.name}: group1 and group2 must be non-empty and have no class in common")
        self.pictures = self._source()
        height = self.height or self.pictures.shape[1]
        self.shape = (3, height, 2 * height)
        self._decoded: dict[str, Tensor] = {}
        self._pools: dict[str, dict[str, list[str]]] = {}

    def _source(self) -> ImageDataset:
        if self.source == "tinyimagenet":
            return TinyImageNet(self.root, only=[*self.group1, *self.group2], train_per_class=self.train_per_class)
        if self.source == "cifar10":
            return CIFAR10(self.root)
        if self.source == "imagenet":
            return ImageNet(self.root, only=[*self.group1, *self.group2])
        raise unknown("source", self.source, ("tinyimagenet", "cifar10", "imagenet"), "dataset.source")

    # -- ids -------------------------------------------------------------------------------------------------------

    def ids(self, split: str) -> list[str]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, f"dataset '{self.name}'")
        return [f"{split}-{k:05d}" for k in range(getattr(self, f"{split}_pairs"))]

    def explained(self) -> list[str]:
        ids = self.ids("test")
        return balanced(ids, self.labels(ids), self.n_explained, choice_seed(self), "explained")

    def labels(self, ids: Sequence[str]) -> Tensor:
        return torch.tensor([int(i.rpartition("-")[2]) % len(self.classes) for i in ids])

    def groups_of(self, ids: Sequence[str]) -> list[str]:
        return [self.classes[c] for c in self.labels(ids).tolist()]

    # -- images ----------------------------------------------------------------------------------------------------

    def images(self, ids: list[str]) -> tuple[Tensor, Tensor]:
        return self._images(ids, self._sides(ids))

    def batch(self, ids: list[str]) -> Batch:
        on_right = self._sides(ids)
        pixels, y = self._images(ids, on_right)
        _, height, width = self.shape
        left = torch.arange(width).lt(width // 2).expand(len(ids), height, width)
        masks = {"left": left.clone(), "right": ~left}
        roles = {
            "left": torch.where(on_right, SECONDARY, PRIMARY),
            "right": torch.where(on_right, PRIMARY, SECONDARY),
        }
        return Batch(pixels / 255.0, y, tuple(ids), tuple(self.groups_of(ids)), masks, roles)

    def _sides(self, ids: Sequence[str]) -> Tensor:
        """(B,) whether the group-1 picture is on the right."""
        return Draws.of(self.seed, ids).integer(2, "pairs/side", 1)[:, 0].bool()

    def _images(self, ids: list[str], on_right: Tensor) -> tuple[Tensor, Tensor]:
        first, second = map(self._halves, self.members(ids))
        swap = on_right.view(-1, 1, 1, 1)
        halves = torch.where(swap, second, first), torch.where(swap, first, second)
        return torch.cat(halves, dim=3), self.labels(ids)

    def _halves(self, ids: list[str]) -> Tensor:
        """The pictures, resized; each is decoded once, as training meets it often."""
        new = [i for i in dict.fromkeys(ids) if i not in self._decoded]
        if new:
            self._decoded |= zip(new, self._resized(self.pictures.images(new)[0]), strict=True)
        return torch.stack([self._decoded[i] for i in ids])

    def _resized(self, pixels: Tensor) -> Tensor:
        size = self.shape[1:2] * 2
        if pixels.shape[2:] == size:
            return pixels
        wide = F.interpolate(pixels.float(), size, mode="bilinear", antialias=True, align_corners=False)
        return wide.round().clamp(0, 255).to(torch.uint8)

    def members(self, ids: Sequence[str]) -> tuple[list[str], list[str]]:
        """The ids, in the source, of each pair's group-1 and group-2 picture."""
        first, second = [], []
        draw = Draws.of(self.seed, ids).uniform("pairs/other", 1, dtype=torch.float64)[:, 0].tolist()
        for name, u in zip(ids, draw, strict=True):
            split, _, number = name.rpartition("-")
            if split not in SPLITS or not number.isdigit():
                raise unknown("image id", name, ["test-00042"], f"dataset '{self.name}'")
            turn, index = divmod(int(number), len(self.classes))
            pool = self._pool(split)
            mine = pool[self.group1[index]]
            others = pool[""]
            first.append(mine[turn % len(mine)])
            second.append(others[int(u * len(others))])
        return first, second

    def _pool(self, split: str) -> dict[str, list[str]]:
        """group-1 class -> its pictures in random order; and "" -> all pictures of group 2."""
        if split not in self._pools:
            self._pools[split] = self._gather(split)
        return self._pools[split]

    def _gather(self, split: str) -> dict[str, list[str]]:
        ids = self.pictures.ids(split)
        by_class: dict[str, list[str]] = {}
        for i, name in zip(ids, self.pictures.groups_of(ids), strict=True):
            by_class.setdefault(name, []).append(i)
        for name in (*self.group1, *self.group2):
            if name not in by_class:
                raise unknown("class", name, by_class, f"the {split} split of {self.source}")
        limit = self.train_per_class if split == "train" else None
        pool = {}
        for name in self.group1:
            mine = by_class[name][:limit]
            order = Draws.of(self.seed, [f"{split}/{name}"]).permutation(len(mine), "pairs/own")[0]
            pool[name] = [mine[k] for k in order.tolist()]
        pool[""] = [i for name in self.group2 for i in by_class[name][:limit]]
        return pool

    # -- identity --------------------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        settings = ("group1", "group2", "seed", "train_per_class", "train_pairs", "height")
        return {
            "dataset": self.name,
            "version": VERSION,
            "source": self.pictures.identity(),
            **{k: getattr(self, k) for k in settings},
        }

    def facts(self) -> dict[str, Any]:
        """What a reader asks of this data, for tables/cells.csv."""
        settings = plain_settings(self, ("root", "n_explained"))
        return {"kind": self.name, **settings, "explained_seed": choice_seed(self)}

    def fingerprint(self) -> dict[str, Any]:
        return self.identity()
