"""What people marked in their pictures, as masks: a picture per image and role, or boxes in COCO's JSON.

A region is drawn at the size of its picture, then goes through the picture's own resizing and cropping; a pixel belongs
to it where at least half of it does. An image in which nothing is marked, or whose mark was cropped away, has no mask.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from salrun.datasets.base import digest
from salrun.datasets.decoding import opened
from salrun.errors import SalrunError
from salrun.types import NEUTRAL, ROLES

Prepare = Callable[[Image.Image], Image.Image]
HALF = 128  # of 255


class Regions(Protocol):
    """Which parts of pictures are marked, by role."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that some picture has a mark of."""

    def drawn(self, name: str, role: str, size: tuple[int, int]) -> Image.Image | None:
        """White on black, the size of the picture of this id; None where nothing is marked."""

    def digest(self) -> str:
        """Of all marks."""


def masks_of(
    regions: Regions, pictures: Mapping[str, Path], ids: Sequence[str], prepare: Prepare
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(role -> (B, H, W) masks, role -> (B,) that role, or neutral where an image has no mask of it)."""
    masks: dict[str, list[np.ndarray | None]] = {role: [] for role in regions.roles}
    for name in ids:
        with opened(pictures[name]) as picture:
            size = picture.size
        for role, planes in masks.items():
            plane = regions.drawn(name, role, size)
            planes.append(None if plane is None else np.asarray(prepare(plane)) >= HALF)
    side = prepare(Image.new("L", (8, 8))).size
    nothing = np.zeros((side[1], side[0]), bool)
    stacked = {
        role: torch.from_numpy(np.stack([nothing if plane is None else plane for plane in planes]))
        for role, planes in masks.items()
    }
    there = {role: torch.where(mask.any(2).any(1), ROLES[role], NEUTRAL) for role, mask in stacked.items()}
    return stacked, there


# -- a picture per mask ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskFiles:
    """`<folder>/<role>/<id>.png`, or `<folder>/<id>.png` for the primary role; every pixel that is not 0 is marked.

    Of an id `cat/1.jpg` the mask is `cat/1.png`, or `cat/1.jpg.png` where a class has two pictures of that name.
    """

    files: Mapping[tuple[str, str], Path]  # (id, role) -> file

    @staticmethod
    def below(folder: Path, ids: Sequence[str]) -> MaskFiles:
        """The masks in a folder. A file that belongs to no picture is refused: it is a name that was misspelt."""
        if not folder.is_dir():
            raise SalrunError(f"dataset.masks: there is no folder {folder}")
        named = {name: name for name in ids}
        for name in ids:
            stem = name.rpartition(".")[0]
            named[stem] = "" if stem in named else name  # two pictures of one name have to be told apart
        by_role = {role: folder / role for role in ROLES if role != "neutral" and (folder / role).is_dir()}
        files = {}
        for role, place in (by_role or {"primary": folder}).items():
            for path in sorted(path for path in place.rglob("*") if path.is_file()):
                key = path.relative_to(place).as_posix()
                name = named.get(key.removesuffix(".png"), "") if key.endswith(".png") else ""
                if not name:
                    raise SalrunError(
                        f"mask {path} belongs to no picture: of the picture <class>/<name>.jpg it is "
                        f"{place}/<class>/<name>.png"
                    )
                files[name, role] = path
        if not files:
            raise SalrunError(f"dataset.masks: {folder} has no masks, looked for <class>/<name>.png")
        return MaskFiles(files)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(role for role in ROLES if any(role == of for _, of in self.files))

    def drawn(self, name: str, role: str, size: tuple[int, int]) -> Image.Image | None:
        path = self.files.get((name, role))
        if path is None:
            return None
        with opened(path) as picture:
            values = np.asarray(picture)
            if picture.size != size:
                raise SalrunError(
                    f"mask {path} has {picture.width} x {picture.height} pixels, its picture {size[0]} x {size[1]}"
                )
            if picture.mode in ("LA", "PA", "RGBA"):
                raise SalrunError(f"mask {path} has an alpha channel: save it as black and white without one")
        marked = values != 0 if values.ndim == 2 else values.any(2)
        return Image.fromarray(np.where(marked, 255, 0).astype(np.uint8))

    def digest(self) -> str:
        lines = (f"{name} {role} {digest(path)}" for (name, role), path in sorted(self.files.items()))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# -- COCO's boxes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """One annotation: category and corners in pixels."""

    category: str
    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Boxes:
    """The boxes of each picture: those of its own class are primary, those of other categories secondary."""

    boxes: Mapping[str, Sequence[Box]]  # id -> boxes
    classes: Mapping[str, str]  # id -> the class of the picture

    @property
    def roles(self) -> tuple[str, ...]:
        found = {self._role(name, box) for name, boxes in self.boxes.items() for box in boxes}
        return tuple(role for role in ROLES if role in found)

    def _role(self, name: str, box: Box) -> str:
        return "primary" if box.category == self.classes[name] else "secondary"

    def drawn(self, name: str, role: str, size: tuple[int, int]) -> Image.Image | None:
        boxes = [box for box in self.boxes.get(name, ()) if self._role(name, box) == role]
        if not boxes:
            return None
        plane = Image.new("L", size)
        draw = ImageDraw.Draw(plane)
        for box in boxes:
            right, bottom = round(box.left + box.width) - 1, round(box.top + box.height) - 1  # the last pixels inside
            if right >= round(box.left) and bottom >= round(box.top):
                draw.rectangle((round(box.left), round(box.top), right, bottom), fill=255)
        return plane

    def digest(self) -> str:
        every = sorted((name, self.classes[name], [*map(repr, boxes)]) for name, boxes in self.boxes.items())
        return hashlib.sha256(json.dumps(every).encode()).hexdigest()


@dataclass(frozen=True)
class CocoFile:
    """What a COCO file says: the categories in order of their ids, and the boxes by file name (crowds left out)."""

    categories: tuple[str, ...]
    boxes: Mapping[str, Sequence[Box]]

    @staticmethod
    def read(path: Path) -> CocoFile:
        """Read `images`, `annotations` and `categories`; SalrunError says what is not as COCO has it."""
        if not path.is_file():
            raise SalrunError(f"COCO annotations: there is no file {path}")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            categories = {row["id"]: str(row["name"]) for row in sorted(content["categories"], key=lambda r: r["id"])}
            files = {row["id"]: str(row["file_name"]) for row in content["images"]}
            boxes: dict[str, list[Box]] = {name: [] for name in files.values()}
            for row in content["annotations"]:
                if not row.get("iscrowd"):
                    boxes[files[row["image_id"]]].append(Box(categories[row["category_id"]], *_corners(row["bbox"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
            raise SalrunError(
                f"{path} is no COCO file (images, annotations with image_id, category_id and bbox, categories): "
                f"{type(fault).__name__} {fault}"
            ) from fault
        return CocoFile(tuple(categories.values()), boxes)


def _corners(bbox: Any) -> tuple[float, float, float, float]:
    left, top, width, height = (float(value) for value in bbox)
    if not all(map(np.isfinite, (left, top, width, height))) or width < 0 or height < 0:
        raise ValueError(f"bbox {bbox}")
    return left, top, width, height
