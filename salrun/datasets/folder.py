"""A user's own pictures: in a folder per class (`<root>/<class>/*.png`), or named by a COCO file; with what is marked
in them, by mask pictures or boxes, for the metrics that ask where a map lies.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from salrun.datasets.base import SPLITS, Table, digest
from salrun.datasets.decoding import VERSION, check_regular, decoded
from salrun.datasets.pictures import SUFFIXES, PictureDataset, fit_to, pictures_of
from salrun.datasets.regions import Boxes, CocoFile, MaskFiles, Regions, masks_of
from salrun.errors import SalrunError, unknown
from salrun.types import Batch


@dataclass
class OwnPictures(PictureDataset):
    """Pictures of `root`; all of them may be explained, and give the statistics and backgrounds that some methods need.

    Where the model knows more classes than there are pictures of, `names_file` has one name per line in the order of
    the model's outputs.
    """

    names_file: str | None = None

    parts = ("pictures",)
    choosing = (*PictureDataset.choosing, "masks", "boxes", "annotations")  # of which the digest tells

    @property
    def files(self) -> list[tuple[str, Path, int]]:
        """(id, picture, class), in order."""
        raise NotImplementedError("abstract")

    @property
    def regions(self) -> Regions | None:
        """What is marked in the pictures; None where nothing is."""
        raise NotImplementedError("abstract")

    @functools.cached_property
    def mask_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.regions.roles if self.regions else ()

    def _listed(self, used: Iterable[str], classes: tuple[str, ...], of: str) -> tuple[str, ...]:
        """The classes, in the order of the model's outputs; those used must be among the names of `names_file`."""
        if self.names_file is None:
            return classes
        path = Path(self.names_file).expanduser()
        if not path.is_file():
            raise SalrunError(f"dataset.names_file: there is no file {path}")
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        for one in used:
            if one not in names:
                raise unknown("class", one, names, f"{path} ({of})")
        return names

    def load(self, part: str) -> Table:
        return decoded(self.files, fit_to(self.size, self.fit, self.short_side))

    def batch(self, ids: list[str]) -> Batch:
        plain = super().batch(ids)
        if self.regions is None:
            return plain
        pictures = {name: path for name, path, _ in self.files}
        masks, roles = masks_of(self.regions, pictures, ids, fit_to(self.size, self.fit, self.short_side))
        return replace(plain, masks=masks, roles=roles)

    def ids(self, split: str) -> list[str]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, f"dataset '{self.name}'")
        return list(self.table("pictures").ids)

    def digests(self) -> dict[str, str]:
        pictures = "\n".join(f"{name} {index} {digest(path)}" for name, path, index in self.files)
        return {"pictures": hashlib.sha256(f"{VERSION}\n{pictures}".encode()).hexdigest()}

    def fingerprint(self) -> dict[str, Any]:
        """Of pictures and marks; a model is trained for the pictures alone."""
        return self.identity() | ({"marks": self.regions.digest()} if self.regions else {})


@dataclass
class Folder(OwnPictures):
    """The pictures of `root`/<class>/. A class's index is its place among the sorted folders, or in `names_file`.

    `masks`: a folder of mask pictures; None: `root`/masks, where it has folders in it and no pictures of its own.
    `boxes`: a COCO file instead; boxes of the picture's class are primary, those of other categories secondary.
    """

    masks: str | None = None
    boxes: str | None = None

    name = "folder"

    @functools.cached_property
    def _masks(self) -> Path | None:
        if self.masks is not None:
            return Path(self.masks).expanduser()
        place = Path(self.root).expanduser() / "masks"
        of_class = not place.is_dir() or pictures_of(place) or not any(p.is_dir() for p in place.iterdir())
        return None if of_class else place

    @functools.cached_property
    def _folders(self) -> list[Path]:
        root = Path(self.root).expanduser()
        folders = sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
        folders = [p for p in folders if self._masks is None or p.resolve() != self._masks.resolve()]
        if not folders:
            raise SalrunError(f"no pictures: looked for {root}/<class>/*.png or .jpg; set dataset.root to your folder")
        return folders

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        folders = tuple(folder.name for folder in self._folders)
        return self._listed(folders, folders, f"a folder of {self.root}")

    @functools.cached_property
    def files(self) -> list[tuple[str, Path, int]]:  # type: ignore[override]
        rows = [
            (f"{folder.name}/{path.name}", path, self.classes.index(folder.name))
            for folder in self._folders
            for path in pictures_of(folder)
        ]
        if not rows:
            raise SalrunError(f"no pictures: the folders of {self.root} have none that end in {', '.join(SUFFIXES)}")
        for _, path, _ in rows:
            check_regular(path)
        return rows

    @functools.cached_property
    def regions(self) -> Regions | None:  # type: ignore[override]
        if self.boxes is not None and self._masks is not None:
            raise SalrunError(f"dataset.boxes and the masks in {self._masks}: which of them? Take one away")
        if self._masks is not None:
            return MaskFiles.below(self._masks, [name for name, _, _ in self.files])
        if self.boxes is None:
            return None
        path = Path(self.boxes).expanduser()
        coco = CocoFile.read(path)
        if not set(self.classes) & set(coco.categories):
            raise unknown("category", coco.categories[0] if coco.categories else "", self.classes, f"{path}")
        times = Counter(Path(name).name for name, _, _ in self.files)
        boxes = {}
        for name, picture, _ in self.files:  # called by its class and name, or by its name where only one has it
            alone = picture.name if times[picture.name] == 1 else name
            boxes[name] = coco.boxes.get(name) or coco.boxes.get(alone) or ()
        if not any(boxes.values()):
            raise SalrunError(f"dataset.boxes: {path} has no box of any picture of {self.root} (by file_name)")
        return Boxes(boxes, {name: self.classes[index] for name, _, index in self.files})


@dataclass
class Coco(OwnPictures):
    """The pictures of a COCO file (`annotations`), found in `root`: the class is the category of the largest box.

    Boxes of that category are primary, others secondary; pictures without a box are left out. A class's index is its
    place among the categories by id, or in `names_file`.
    """

    annotations: str = ""

    name = "coco"

    @functools.cached_property
    def _coco(self) -> CocoFile:
        return CocoFile.read(Path(self.annotations).expanduser())

    @functools.cached_property
    def _class_of(self) -> dict[str, str]:
        """Picture -> the category of its largest box; of equal ones the first."""
        marked = {name: boxes for name, boxes in self._coco.boxes.items() if boxes}
        return {
            name: max(boxes, key=lambda box: box.width * box.height).category for name, boxes in sorted(marked.items())
        }

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._listed(self._class_of.values(), self._coco.categories, f"a category of {self.annotations}")

    @functools.cached_property
    def files(self) -> list[tuple[str, Path, int]]:  # type: ignore[override]
        root = Path(self.root).expanduser()
        rows = [(name, root / name, self.classes.index(one)) for name, one in self._class_of.items()]
        if not rows:
            raise SalrunError(f"no pictures: {self.annotations} has no box")
        for _, path, _ in rows:
            if not path.exists():
                raise SalrunError(
                    f"{self.annotations} names {path.name}, which is not in {path.parent}: set dataset.root"
                )
            check_regular(path)
        return rows

    @functools.cached_property
    def regions(self) -> Regions:  # type: ignore[override]
        return Boxes({name: self._coco.boxes[name] for name in self._class_of}, self._class_of)
