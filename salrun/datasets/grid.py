"""Mosaics of pictures of different classes: photographs of which it is known where the evidence for a class is.

The grid of the pointing game of Boehle et al. (CVPR 2021) and Rao et al. (CVPR 2022), for any model and data set. What
they assume is measured here: that the explained class hangs on its own cell more than on any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from salrun.datasets.base import Derived, balanced
from salrun.errors import SalrunError
from salrun.ranges import AtLeast, Between, check_declared
from salrun.rng import Draws
from salrun.types import PRIMARY, SECONDARY, Batch, Labelled, Model

VERSION = 1
JOIN, AT = "+", "@"
BATCH = 50


@dataclass
class Grid(Derived):
    """`cells` x `cells` mosaics of pictures of `plain`, all of different classes; the predicted one is explained.

    Pictures: of up to `asked` test pictures, as many of each class, those that the model gives their own class with
    probability `sure` or more. A mosaic has the shape of a picture, which are shrunk into its cells; with `shrink`
    false the pictures keep their size and the mosaic is larger, for networks that take any size. A mosaic is kept where
    the model predicts the class of one of its pictures, and masking that picture's cell with the model's mean colour
    lowers the class's logit, and lowers it more than masking any other cell does; the others are counted. Mosaics are
    tried until `n_explained` are kept, or `tries` times as many were tried. A mosaic's id names its pictures and the
    explained one: `<picture>+<picture>+..@<place, from 1>`.
    """

    plain: Labelled
    root: str = ""  # where the files of `plain` are, where it is given by name
    cells: Annotated[int, Between(2, 3)] = 2
    n_explained: Annotated[int, AtLeast(1)] = 100
    sure: Annotated[float, Between(0, 1)] = 0.9
    asked: Annotated[int, AtLeast(1)] = 2000
    tries: Annotated[int, AtLeast(1)] = 10
    shrink: bool = True
    explained_seed: int = 0  # of the choice of pictures and their places

    def __post_init__(self) -> None:
        check_declared(self)
        if isinstance(self.plain, str):
            raise SalrunError(f"dataset.plain of a grid must be a data set, got {self.plain!r}")
        channels, height, width = self.plain.shape
        grown = 1 if self.shrink else self.cells
        self.shape = (channels, height * grown, width * grown)
        self.name = f"grid_{self.plain.name}"
        self.mask_names = tuple(f"cell{k}" for k in range(1, self.cells**2 + 1))
        self._effects: dict[str, Tensor] = {}  # of the mosaics that are explained
        self._tried = 0

    # -- the choice ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def select(self, model: Model, device: torch.device) -> None:
        """Choose the mosaics by the model's answers; done before anything is explained."""
        self._effects, self._tried = {}, 0
        for candidates in _parts(self._candidates(self._sure(model, device)), BATCH):
            names = self._predicted(candidates, model, device)
            known = [name for name in names if name]
            falls = iter(self._masked(known, model, device)) if known else iter(())
            for name in names:
                if len(self._effects) == self.n_explained:
                    return
                self._tried += 1
                if not name:
                    continue
                fall, place = next(falls), self.members(name)[1]
                if fall[place] > 0 and int(fall.argmax()) == place:
                    self._effects[name] = fall
        if not self._effects:
            raise SalrunError(
                f"{self.name}: of {self._tried} mosaics the model saw none in which a class that it predicts hangs on "
                "its own cell most; it takes a model that knows such pictures, or cells of full size (shrink=false)"
            )

    def _sure(self, model: Model, device: torch.device) -> dict[int, list[str]]:
        """Class -> pictures that the model is sure of."""
        ids = self.plain.ids("test")
        ids = balanced(ids, self.plain.labels(ids), self.asked, self.explained_seed, "grid/asked")
        sure: dict[int, list[str]] = {}
        for part in _parts(iter(ids), BATCH):
            x, y = self.plain.images(part)
            probability = model(_floats(x).to(device)).softmax(1).cpu().gather(1, y[:, None])[:, 0]
            for name, label, p in zip(part, y.tolist(), probability.tolist(), strict=True):
                if p >= self.sure:
                    sure.setdefault(label, []).append(name)
        if len(sure) < self.cells**2:
            raise SalrunError(
                f"{self.name}: mosaics need {self.cells**2} classes, and the model is sure (p >= {self.sure:g}) of "
                f"pictures of {len(sure)}: lower dataset.sure, or ask of more (dataset.asked={self.asked})"
            )
        return sure

    def _candidates(self, sure: dict[int, list[str]]) -> Iterator[str]:
        """Mosaics in the order they are tried, classes and pictures drawn for each; the first place is explained."""
        n = self.cells**2
        labels = sorted(sure)
        for number in range(self.tries * self.n_explained):
            draws = Draws.of(self.explained_seed, [f"mosaic-{number}"])
            chosen = [labels[k] for k in draws.permutation(len(labels), "grid/classes")[0, :n].tolist()]
            which = draws.uniform("grid/pictures", n, dtype=torch.float64)[0].tolist()
            members = [sure[c][int(u * len(sure[c]))] for c, u in zip(chosen, which, strict=True)]
            yield f"{JOIN.join(members)}{AT}1"

    def _predicted(self, candidates: list[str], model: Model, device: torch.device) -> list[str]:
        """The mosaics with the picture of the predicted class explained; empty where no picture is of that class."""
        classes = model(self.batch(candidates).x.to(device)).argmax(1).tolist()
        names = []
        for name, predicted in zip(candidates, classes, strict=True):
            members = self.members(name)[0]
            labels = self.plain.labels(members).tolist()
            there = predicted in labels
            names.append(f"{JOIN.join(members)}{AT}{1 + labels.index(predicted)}" if there else "")
        return names

    def _masked(self, names: list[str], model: Model, device: torch.device) -> Tensor:
        """(B, cells) fall of the explained class's logit as each cell takes the model's mean colour."""
        batch = self.batch(names)
        x, y = batch.x.to(device), batch.y.to(device)[:, None]
        whole = model(x).gather(1, y)
        falls = [
            whole - model(torch.where(batch.masks[name].to(device)[:, None], model.mean, x)).gather(1, y)
            for name in self.mask_names
        ]
        return torch.cat(falls, 1).cpu()

    # -- ids -------------------------------------------------------------------------------------------------------

    def explained(self) -> list[str]:
        if not self._effects:
            raise SalrunError(f"the mosaics of {self.name} are chosen by a model: it takes a run")
        return list(self._effects)

    def members(self, name: str) -> tuple[list[str], int]:
        """The pictures of a mosaic, row by row, and the place of the explained one, from 0."""
        pictures, mark, place = name.rpartition(AT)
        members = pictures.split(JOIN)
        if not mark or not place.isdigit() or not 1 <= int(place) <= len(members) == self.cells**2:
            raise SalrunError(f"dataset '{self.name}' has no mosaic '{name}'")
        return members, int(place) - 1

    def labels(self, ids: Sequence[str]) -> Tensor:
        """The classes that are explained."""
        return self.plain.labels([members[place] for members, place in map(self.members, ids)])

    def groups_of(self, ids: Sequence[str]) -> list[str]:
        return [self.classes[c] for c in self.labels(ids).tolist()]

    # -- mosaics ---------------------------------------------------------------------------------------------------

    def batch(self, ids: list[str]) -> Batch:
        mosaics = [self.members(name) for name in ids]
        x = torch.zeros(len(ids), *self.shape)
        masks = {name: torch.zeros(len(ids), *self.shape[1:], dtype=torch.bool) for name in self.mask_names}
        place = torch.tensor([place for _, place in mosaics])
        for k, name in enumerate(self.mask_names):
            rows, columns = self._span(k // self.cells, 1), self._span(k % self.cells, 2)
            pictures = _floats(self.plain.images([members[k] for members, _ in mosaics])[0])
            size = rows.stop - rows.start, columns.stop - columns.start
            if pictures.shape[2:] != size:
                pictures = F.interpolate(pictures, size, mode="bilinear", antialias=True, align_corners=False)
            x[:, :, rows, columns] = pictures.clamp(0, 1)
            masks[name][:, rows, columns] = True
        roles = {name: torch.where(place == k, PRIMARY, SECONDARY) for k, name in enumerate(self.mask_names)}
        return Batch(x, self.labels(ids), tuple(ids), tuple(self.groups_of(ids)), masks, roles)

    def _span(self, k: int, axis: int) -> slice:
        side = self.shape[axis]
        return slice(k * side // self.cells, (k + 1) * side // self.cells)

    # -- what it says of itself ------------------------------------------------------------------------------------

    def image_facts(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """The measured effect of masking each cell: by how much the explained class's logit falls."""
        rows = [self._effects[name].tolist() for name in ids]
        return {f"effect_{name}": [f"{row[k]:.3f}" for row in rows] for k, name in enumerate(self.mask_names)}

    def deviations(self) -> list[str]:
        left = self._tried - len(self._effects)
        return [
            f"{left} of {self._tried} mosaics left out: the predicted class is of none of their pictures, or masking "
            "another cell lowers its logit more"
        ]

    def identity(self) -> dict[str, Any]:
        return {"dataset": self.name, "version": VERSION, "cells": self.cells, "plain": self.plain.identity()}

    def fingerprint(self) -> dict[str, Any]:
        return {**self.identity(), "shrink": self.shrink, "plain": self.plain.fingerprint()}

    def facts(self) -> dict[str, Any]:
        """What a reader asks of this data, for tables/cells.csv."""
        named = {name: getattr(self, name) for name in ("cells", "sure", "asked", "shrink", "explained_seed")}
        return {"kind": self.name, **named, "tried": self._tried, "kept": len(self._effects)}


def _floats(pixels: Tensor) -> Tensor:
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels


def _parts(names: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lists of `size` names, the last one shorter."""
    part: list[str] = []
    for name in names:
        part.append(name)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
