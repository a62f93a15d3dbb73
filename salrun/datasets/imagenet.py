"""ImageNet (ILSVRC 2012) from class folders: `imagenet/val/<wnid>/*.JPEG`, and `imagenet/train/` where it is there.

Complete or in part. A class's index is its wnid's place among the thousand sorted wnids: taken from the folders if
there are a thousand, else from `imagenet/classes.tsv` (index, wnid, name) or Kaggle's `LOC_synset_mapping.txt`.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from salrun.datasets.base import SPLITS, Table, balanced, choice_seed, missing
from salrun.datasets.pictures import PictureDataset, pictures_of
from salrun.errors import SalrunError, unknown

GET = "it has to be got from image-net.org and sorted into folders by class"


@dataclass
class ImageNet(PictureDataset):
    """ImageNet under `root`; the public validation images are the test split.

    `train_from`: where training images (statistics, backgrounds) come from: "train" = that folder, "val" = all
    validation images, "auto" = the folder or, without it, `reserved` validation images that are then never explained.
    """

    train_from: Literal["auto", "train", "val"] = "auto"
    reserved: int = 200
    only: list[str] | None = None  # classes, by wnid or name

    name = "imagenet"

    @property
    def folder(self) -> Path:
        return Path(self.root) / "imagenet"

    @functools.cached_property
    def _classes(self) -> dict[str, str]:
        """wnid -> name, all thousand in order of their index."""
        table, kaggle = self.folder / "classes.tsv", self.folder / "LOC_synset_mapping.txt"
        if table.is_file():
            rows = [line.split("\t") for line in table.read_text().splitlines() if line]
            names_by_wnid = {row[1]: row[-1] for row in rows if len(row) == 3}
        elif kaggle.is_file():
            pairs = [line.partition(" ") for line in kaggle.read_text().splitlines() if line]
            names_by_wnid = {wnid: names.split(",")[0] for wnid, _, names in pairs}
        else:
            if not (self.folder / "val").is_dir():
                raise missing("ImageNet", [self.folder / "val" / "<wnid>"], GET)
            names_by_wnid = {p.name: p.name for p in sorted((self.folder / "val").iterdir()) if p.is_dir()}
        if len(names_by_wnid) != 1000 or list(names_by_wnid) != sorted(names_by_wnid):
            raise SalrunError(
                f"{self.folder}: cannot number the classes: {len(names_by_wnid)} of 1000 wnids known; "
                f"put classes.tsv (index, wnid, name, all thousand in order of wnid) beside val/"
            )
        return names_by_wnid

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self._classes.values())

    @property
    def wnids(self) -> tuple[str, ...]:
        """All thousand in order of their index."""
        return tuple(self._classes)

    def _chosen(self) -> dict[str, int]:
        """wnid -> index of the classes `only` names."""
        index = {wnid: i for i, wnid in enumerate(self._classes)}
        if self.only is None:
            return index
        wnids = {name: wnid for wnid, name in self._classes.items()} | {wnid: wnid for wnid in index}
        for one in self.only:
            if one not in wnids:
                raise unknown("class", one, self.classes, "ImageNet (dataset.only)")
        return {wnids[one]: index[wnids[one]] for one in self.only}

    @functools.cached_property
    def parts(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("val", "train") if (self.folder / "train").is_dir() else ("val",)

    @functools.cached_property
    def _files(self) -> dict[str, list[tuple[str, Path, int]]]:
        """part -> (id, picture, class), in order of class and name."""
        result = {}
        for part in self.parts:
            folders = [(self.folder / part / wnid, index) for wnid, index in sorted(self._chosen().items())]
            rows = [
                (f"{folder.name}/{path.stem}", path, index)
                for folder, index in folders
                if folder.is_dir()
                for path in pictures_of(folder)
            ]
            if not rows:
                raise missing("ImageNet", [self.folder / part / "<wnid>" / "*.JPEG"], GET)
            result[part] = rows
        return result

    def load(self, part: str) -> Table:
        return self.pictures(self._files[part])

    def ids(self, split: str) -> list[str]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, "dataset 'imagenet'")
        if split == "test" or self.train_from == "val":
            return list(self.table("val").ids)
        if "train" in self.parts:
            return list(self.table("train").ids)
        if self.train_from == "train":
            raise missing("ImageNet training", [self.folder / "train" / "<wnid>"], GET)
        return self._reserved

    def explained(self) -> list[str]:
        ids = self.ids("test")
        if self.train_from == "auto" and "train" not in self.parts:
            reserved = set(self._reserved)
            ids = [i for i in ids if i not in reserved]
        return balanced(ids, self.labels(ids), self.n_explained, choice_seed(self), "explained")

    @functools.cached_property
    def _reserved(self) -> list[str]:
        val = self.table("val")
        if not 0 < self.reserved < len(val.ids):
            raise SalrunError(
                f"dataset.reserved of imagenet must be in 1..{len(val.ids) - 1} where there is no "
                f"{self.folder / 'train'}, got {self.reserved}; or give dataset.train_from=val"
            )
        return balanced(val.ids, val.y, self.reserved, 0, "reserved")

    def digests(self) -> dict[str, str]:
        """Of names and sizes of all pictures (their bytes would take minutes to read)."""
        return {
            part: hashlib.sha256("\n".join(f"{i} {p.stat().st_size}" for i, p, _ in rows).encode()).hexdigest()
            for part, rows in self._files.items()
        }
