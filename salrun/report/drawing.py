"""A grid of images and maps as a figure, for `salrun.show`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from salrun.errors import SalrunError
from salrun.report.pictures import Pixels, coloured

Floats = NDArray[np.float64]
SIDE = 1.6  # inches of a picture


class Grid(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110)
        return file.getvalue()


def grid(
    images: Floats | None, maps: Mapping[str, Floats], signed: bool | None, mode: Literal["overlay", "map"]
) -> Grid:
    """One row per image: itself, then a map for each name."""
    if mode not in ("overlay", "map"):
        raise SalrunError(f"mode of show must be overlay or map, got {mode!r}")
    planes = {name: plane_of(given, signed) for name, given in maps.items()}
    sizes = {plane.shape for plane, _ in planes.values()}
    pictures = None if images is None else [picture_of(image) for image in images]
    if pictures:
        sizes.add((len(pictures), *pictures[0].shape[:2]))
    if len(sizes) != 1:
        raise SalrunError(f"images and maps must be equally many and equally large, got {sorted(sizes)}")
    ((rows, height, width),) = sizes
    columns = len(planes) + (pictures is not None)
    figure = Grid(figsize=(SIDE * columns, SIDE * rows * height / width + 0.25), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, line in enumerate(axes):
        shown = [] if pictures is None else [pictures[row]]
        under = pictures[row] if pictures is not None and mode == "overlay" else None
        shown += [coloured(plane[row], way, under) for plane, way in planes.values()]
        for ax, pixels in zip(line, shown, strict=True):
            ax.imshow(pixels, interpolation="nearest")
            ax.set_axis_off()
    for ax, name in zip(axes[0], ([] if pictures is None else ["image"]) + list(planes), strict=True):
        ax.set_title(name, fontsize=9)
    return figure


def plane_of(maps: Floats, signed: bool | None) -> tuple[Floats, bool]:
    """The planes (B, H, W) of attributions, and whether they have a sign."""
    if maps.ndim == 4 and maps.shape[1] not in (1, 3) and maps.shape[3] in (1, 3):
        maps = np.moveaxis(maps, 3, 1)
    if maps.ndim not in (3, 4):
        raise SalrunError(f"maps must be (B, C, H, W) or (B, H, W), got {maps.shape}")
    way = bool((maps < 0).any()) if signed is None else signed
    if maps.ndim == 3:
        return maps, way
    return (maps if way else np.abs(maps)).sum(axis=1), way


def picture_of(image: Floats) -> Pixels:
    """(H, W, 3) pixels of an image (C, H, W) or (H, W, C); one that leaves [0, 1] is stretched to it."""
    if image.ndim == 3 and image.shape[0] in (1, 3):
        image = np.moveaxis(image, 0, 2)
    if image.ndim != 3 or image.shape[2] not in (1, 3):
        raise SalrunError(f"images to show must have 1 or 3 channels, got one of shape {image.shape}")
    low, high = np.nanmin(image), np.nanmax(image)
    if low < 0 or high > 1:
        image = (image - low) / (high - low if high > low else 1.0)
    return np.rint(255 * np.nan_to_num(np.repeat(image, 3 // image.shape[2], axis=2))).astype(np.uint8)
