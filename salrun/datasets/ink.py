"""What is drawn into images: bitmaps of glyphs, and how their ink covers pixels."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from salrun.errors import unknown

GLYPHS = Path(__file__).parent / "glyphs"


@lru_cache(maxsize=64)
def glyph(name: str, where: str = "dataset.objects") -> np.ndarray:
    """A glyph's bitmap, its whole text box: a bundled one by name, or any picture file by path."""
    path = GLYPHS / f"{name}.pgm"
    if not path.exists():
        path = Path(name)
    if not path.exists():
        bundled = sorted(p.stem for p in GLYPHS.glob("*.pgm"))
        raise unknown("glyph", name, bundled, f"{where} (a bundled glyph or a picture's path)")
    return np.asarray(Image.open(path).convert("L"))


def resized(bitmap: np.ndarray, height: int, width: int) -> np.ndarray:
    """The mean of the bitmap over the area of each new pixel: what share of it is ink, as bytes."""
    rows, columns = (_shares(new, old) for new, old in zip((height, width), bitmap.shape, strict=True))
    return np.rint(rows @ bitmap.astype(np.float64) @ columns.T).astype(np.uint8)


def _shares(new: int, old: int) -> np.ndarray:
    """(new, old) the share of each old pixel in a new one, along one side."""
    edge, cell = np.arange(new + 1)[:, None] * old / new, np.arange(old)
    overlap = np.minimum(edge[1:], cell + 1) - np.maximum(edge[:-1], cell)
    return np.clip(overlap, 0, None) * new / old


def covered(pixels: Tensor, colour: Tensor, cover: Tensor) -> Tensor:
    """Pillow's blend of bytes: (pixels (255 - cover) + colour cover) / 255 with rounding, in integers."""
    cover = cover.to(torch.int32)
    mixed = pixels.to(torch.int32) * (255 - cover) + colour.to(torch.int32) * cover + 128
    return (((mixed >> 8) + mixed) >> 8).to(torch.uint8)
