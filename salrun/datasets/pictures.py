"""Picture files as arrays: decode to RGB, resize and crop as image classifiers were trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from salrun.errors import SalrunError

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
