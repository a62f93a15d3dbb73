"""Picture files: decode to RGB, resize and crop as image classifiers were trained; what data sets of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from salrun.datasets.base import ImageDataset, Table
from salrun.errors import SalrunError
from salrun.ranges import AtLeast

SUFFIXES = (".jpeg", ".jpg", ".png")
Fit = Literal["crop", "squash"]


def fit_to(size: int, fit: Fit, short_side: int) -> Callable[[Image.Image], Image.Image]:
    """Bilinear resizing to size x size: "crop" = short side to `short_side`, then the centre; "squash" = both sides."""

    def crop(picture: Image.Image) -> Image.Image:
        width, height = picture.size
        scale = short_side / min(width, height)
        # The short side is exact; the long one is truncated, as in torchvision's Resize.
        new = (short_side, int(height * scale)) if width <= height else (int(width * scale), short_side)
        picture = picture if picture.size == new else picture.resize(new, Image.Resampling.BILINEAR)
        left, top = round((new[0] - size) / 2), round((new[1] - size) / 2)
        return picture.crop((left, top, left + size, top + size))

    def squash(picture: Image.Image) -> Image.Image:
        return picture.resize((size, size), Image.Resampling.BILINEAR)

    return crop if fit == "crop" else squash


def read_pictures(paths: Sequence[Path], prepare: Callable[[Image.Image], Image.Image] | None = None) -> Tensor:
    """(B, 3, H, W) bytes; grey and palette pictures become RGB."""
    arrays = []
    for path in paths:
        try:
            with Image.open(path) as picture:
                rgb = picture.convert("RGB")
        except OSError as fault:  # includes truncated files and what is no picture at all
            raise SalrunError(f"cannot read picture {path}: {fault}") from fault
        arrays.append(np.asarray(prepare(rgb) if prepare else rgb))
    return torch.from_numpy(np.stack(arrays).transpose(0, 3, 1, 2).copy())


@dataclass
class PictureDataset(ImageDataset):
    """Pictures of any size, at `size` x `size`.

    `fit`: "crop" = short side to `short_side`, centre crop of `size`; "squash" = both sides to `size` (RISE's code).
    """

    root: str
    n_explained: Annotated[int, AtLeast(1)] | None = None
    seed: int = 0
    explained_seed: int | None = None  # None: seed
    size: int = 224
    short_side: int = 256
    fit: Literal["crop", "squash"] = "crop"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.size <= self.short_side:
            raise SalrunError(f"dataset.size must be in 1..short_side ({self.short_side}), got {self.size}")
        self.shape = (3, self.size, self.size)

    def pictures(self, files: Sequence[tuple[str, Path, int]]) -> Table:
        """A table of (id, picture, class); pictures are read when they are asked for."""
        ids, paths, classes = zip(*files, strict=True)
        prepare = fit_to(self.size, self.fit, self.short_side)
        return Table(list(ids), torch.tensor(classes), lambda rows: read_pictures([paths[r] for r in rows], prepare))


def pictures_of(folder: Path) -> list[Path]:
    """The picture files of a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
