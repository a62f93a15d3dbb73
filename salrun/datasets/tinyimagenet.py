"""TinyImageNet (Stanford cs231n): 64x64 colour images, 500 for training and 50 for testing of each of 200 classes.

Read from `tiny-imagenet-200/`, complete or with some classes only. The public "val" images, which have labels, are the
test split here; validation images are the last ones of each training folder.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from salrun.datasets.base import SPLITS, ImageDataset, Table, missing
from salrun.datasets.imagenet import ImageNet
from salrun.datasets.pictures import fit_to, read_pictures
from salrun.errors import SalrunError, unknown
from salrun.ranges import AtLeast

GET = "get it with `make data-tinyimagenet` (or `python scripts/get_data.py tinyimagenet`)"
ENLARGED = 224


def _number(path: Path) -> tuple[int, str]:
    """`n02486410_17.JPEG` -> 17: the pictures' own order."""
    digits = path.stem.rpartition("_")[2]
    return (int(digits) if digits.isdigit() else 0, path.name)


@dataclass
class TinyImageNet(ImageDataset):
    """TinyImageNet under `root`, the classes `only` (wnids or names; None: all that are there).

    Of each class the first `train_per_class` pictures train and the last `validation_per_class` validate.
    `task`: "own" = the classes that are there, 64x64; "imagenet" = input of an ImageNet classifier: enlarged to
    224x224, a label is its wnid's index among ImageNet's thousand (`imagenet/classes.tsv` under `root`).
    """

    root: str
    n_explained: Annotated[int, AtLeast(1)] | None = None
    seed: int = 0
    explained_seed: int | None = None  # None: seed
    only: list[str] | None = None
    train_per_class: Annotated[int, AtLeast(1)] | None = None
    validation_per_class: Annotated[int, AtLeast(0)] = 50
    task: Literal["own", "imagenet"] = "own"

    name = "tinyimagenet"
    shape = (3, 64, 64)
    choosing = (*ImageDataset.choosing, "task")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "imagenet":
            self.shape = (3, ENLARGED, ENLARGED)

    @property
    def folder(self) -> Path:
        return Path(self.root) / "tiny-imagenet-200"

    @functools.cached_property
    def wnids(self) -> tuple[str, ...]:
        """The classes in order of their wnid, which is their index."""
        if not (self.folder / "train").is_dir():
            raise missing("TinyImageNet", [self.folder / "train"], GET)
        folders = sorted(p.name for p in (self.folder / "train").iterdir() if p.is_dir())
        if self.only is None:
            return tuple(folders)
        wnids = {wnid: wnid for wnid in folders} | {self._words[wnid]: wnid for wnid in folders}
        for one in self.only:
            if one not in wnids:
                raise unknown("class", one, [self._words[w] for w in folders], "TinyImageNet (dataset.only)")
        return tuple(sorted({wnids[one] for one in self.only}))

    @functools.cached_property
    def _words(self) -> dict[str, str]:
        """wnid -> first name."""
        path = self.folder / "words.txt"
        lines = path.read_text().splitlines() if path.is_file() else []
        words = {wnid: names.split(",")[0] for wnid, _, names in (line.partition("\t") for line in lines)}
        return {p.name: words.get(p.name, p.name) for p in (self.folder / "train").iterdir()}

    @functools.cached_property
    def _index(self) -> dict[str, int]:
        """wnid -> class index, of the classes that are there."""
        names = self.wnids if self.task == "own" else self._imagenet.wnids
        place = {wnid: index for index, wnid in enumerate(names)}
        for wnid in self.wnids:
            if wnid not in place:
                raise SalrunError(f"{wnid} is none of ImageNet's classes: choose others by dataset.only=[..]")
        return {wnid: place[wnid] for wnid in self.wnids}

    @functools.cached_property
    def _imagenet(self) -> ImageNet:
        """Whose classes the labels are; its pictures are not needed."""
        imagenet, count = ImageNet(self.root), len(self.wnids)
        lists = [imagenet.folder / name for name in ("classes.tsv", "LOC_synset_mapping.txt", "val")]
        if not any(path.exists() for path in lists):
            raise SalrunError(
                f"the ImageNet labels of TinyImageNet's {count} classes need all thousand wnids: looked for "
                f"{', '.join(map(str, lists))}; put classes.tsv there (index, wnid, name, in order of wnid)"
            )
        return imagenet

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._imagenet.classes if self.task == "imagenet" else tuple(self._words[wnid] for wnid in self.wnids)

    @functools.cached_property
    def _files(self) -> dict[str, list[tuple[str, Path, int]]]:
        """part -> (id, picture, class)."""
        train = []
        for wnid, index in self._index.items():
            pictures = sorted((self.folder / "train" / wnid / "images").glob("*.JPEG"), key=_number)
            train += [(f"train/{p.stem}", p, index) for p in pictures]
        notes = self.folder / "val" / "val_annotations.txt"
        if not notes.is_file():
            raise missing("TinyImageNet", [notes], GET)
        rows = [line.split("\t")[:2] for line in notes.read_text().splitlines()]
        rows = [row for row in rows if row[1] in self.wnids]
        test = [(Path(name).stem, self.folder / "val" / "images" / name, self._index[w]) for name, w in rows]
        test.sort(key=lambda row: _number(row[1]))
        for _, path, _ in test:
            if not path.is_file():
                raise SalrunError(f"{notes} names {path.name}, which is not in {path.parent}; {GET}")
        return {"train": train, "test": [(f"val/{stem}", path, index) for stem, path, index in test]}

    def load(self, part: str) -> Table:
        ids, paths, classes = zip(*self._files[part], strict=True)
        enlarge = fit_to(ENLARGED, "squash", ENLARGED) if self.task == "imagenet" else None
        return Table(list(ids), torch.tensor(classes), lambda rows: read_pictures([paths[r] for r in rows], enlarge))

    def ids(self, split: str) -> list[str]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, "dataset 'tinyimagenet'")
        if split == "test":
            return list(self.table("test").ids)
        table, ids = self.table("train"), []
        for wnid, index in self._index.items():
            ids_of_class = [table.ids[r] for r in torch.nonzero(table.y == index).flatten().tolist()]
            end = len(ids_of_class) - self.validation_per_class
            if end < 1:
                raise SalrunError(
                    f"dataset.validation_per_class must be below the {len(ids_of_class)} pictures of {wnid}, "
                    f"got {self.validation_per_class}"
                )
            ids += ids_of_class[end:] if split == "validation" else ids_of_class[:end][: self.train_per_class]
        return ids

    def identity(self) -> dict[str, Any]:
        return super().identity() | ({} if self.task == "own" else {"task": self.task})

    def digests(self) -> dict[str, str]:
        """Of all pictures' bytes, part by part."""
        return self._digests

    @functools.cached_property
    def _digests(self) -> dict[str, str]:
        result = {}
        for part, rows in self._files.items():
            total = hashlib.sha256()
            for name, path, index in rows:
                total.update(f"{name}\x1f{index}\x1f{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
            result[part] = total.hexdigest()
        return result
