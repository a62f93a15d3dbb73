"""What all data sets read from files share: images by id, splits, a balanced choice, hashes, one-line errors."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from salrun.errors import SalrunError, unknown
from salrun.ranges import check_declared
from salrun.rng import Draws
from salrun.types import Batch, Labelled

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Table:
    """The images of one part of a data set in their fixed order; `read(rows)` gives (B, C, H, W) bytes."""

    ids: list[str]
    y: Tensor
    read: Callable[[list[int]], Tensor]

    @functools.cached_property
    def row(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def digest(self) -> str:
        """The hash of images and labels, whatever the form they are stored in."""
        pixels = self.read(list(range(len(self.ids)))).contiguous().numpy()
        return hashlib.sha256(pixels.tobytes() + self.y.to(torch.uint8).numpy().tobytes()).hexdigest()


def stored(prefix: str, pixels: Tensor, y: Tensor) -> Table:
    """A table held in memory as bytes, its images named `<prefix>-00042`."""
    ids = [f"{prefix}-{i:05d}" for i in range(len(y))]
    return Table(ids, y, lambda rows: pixels[rows])


def balanced(ids: Sequence[str], y: Tensor, n: int | None, seed: int, purpose: str) -> list[str]:
    """`n` of the ids, as many of each class as possible, chosen by `seed`, in their given order (None: all).

    Ids are taken class by class in turn, each class in its own random order; so a smaller choice is part of a larger.
    """
    if n is None or n >= len(ids):
        return list(ids)
    word = Draws.of(seed, ids).bits(purpose, 1)[:, 0]
    by_class = torch.argsort(word, stable=True)
    by_class = by_class[torch.argsort(y[by_class], stable=True)]
    first = torch.searchsorted(y[by_class].contiguous(), y[by_class].contiguous())
    turn = torch.empty_like(by_class)
    turn[by_class] = torch.arange(len(ids)) - first
    order = torch.argsort(word, stable=True)
    chosen = order[torch.argsort(turn[order], stable=True)][:n].sort().values
    return [ids[i] for i in chosen.tolist()]


@functools.cache
def _digest(path: Path, algorithm: str, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The file's hash, computed once per process and version of the file."""
    stat = path.stat()
    return _digest(path, algorithm, stat.st_size, stat.st_mtime_ns)


def check_file(path: Path, expected: str, advice: str = "delete it and get it again") -> None:
    """Refuse a file that is not the published one; `expected` is an md5 or a sha256."""
    checksum = digest(path, "md5" if len(expected) == 32 else "sha256")
    if checksum != expected:
        raise SalrunError(
            f"{path} is damaged or not the published file: "
            f"checksum {checksum[:12]}.., expected {expected[:12]}..; {advice}"
        )


def choice_seed(dataset: Any) -> int:
    """The seed that chooses the explained images: `explained_seed`, or `seed` where that is None or no field."""
    given: int | None = getattr(dataset, "explained_seed", None)
    return int(dataset.seed) if given is None else given


def plain_settings(dataset: Any, left_out: Sequence[str]) -> dict[str, Any]:
    """The fields of a dataclass that are one word, number or switch."""
    fields = {k: getattr(dataset, k) for k in getattr(dataset, "__dataclass_fields__", {}) if k not in left_out}
    return {k: v for k, v in fields.items() if isinstance(v, str | int | float)}


def missing(name: str, looked: Sequence[Path], command: str) -> SalrunError:
    """The error for data that is not there: where we looked and what gets it."""
    return SalrunError(f"no {name} data: looked for {' and '.join(map(str, looked))}; {command}")


def how_to_get(name: str) -> str:
    return f"get it with `make data-{name}` (or `python scripts/get_data.py {name} --source registry`)"


class ImageDataset:
    """Images by id from a few tables (parts of the data as it is stored, such as "train" and "test").

    A data set is a dataclass with the fields `root`, `n_explained` (how many images a run explains, None for all),
    `explained_seed` (which ones; None, or without that field: `seed`) and `seed` (what is drawn to make the images, if
    anything); it gives `parts`, `load(part)`, `ids(split)` and `digests()`.
    """

    if TYPE_CHECKING:  # what a data set says of itself, or lets its user say; here so that it is no parameter
        root: str
        n_explained: int | None
        seed: int
        explained_seed: int | None
        name: str
        classes: tuple[str, ...]
        shape: tuple[int, int, int]

    mask_names: ClassVar[tuple[str, ...]] = ()
    verification_split: ClassVar[str] = "test"  # what a model's accuracy is measured on
    parts: ClassVar[tuple[str, ...]] = ("test", "train")
    choosing: ClassVar[tuple[str, ...]] = (  # fields that change no image
        *("root", "n_explained", "seed", "explained_seed", "verify"),
    )

    def load(self, part: str) -> Table:
        """Read a part from its files."""
        raise NotImplementedError("abstract")

    def table(self, part: str) -> Table:
        tables: dict[str, Table] = self.__dict__.setdefault("_tables", {})
        if part not in tables:
            tables[part] = self.load(part)
        return tables[part]

    def ids(self, split: str) -> list[str]:
        raise NotImplementedError("abstract")

    def digests(self) -> dict[str, str]:
        """Hashes of what is stored, by name."""
        raise NotImplementedError("abstract")

    def explained(self) -> list[str]:
        """The images a run explains: of the test split, as many of each class as possible."""
        ids = self.ids("test")
        return balanced(ids, self.labels(ids), self.n_explained, choice_seed(self), "explained")

    def batch(self, ids: list[str]) -> Batch:
        pixels, y = self.images(ids)
        return Batch(pixels / 255.0, y, tuple(ids), tuple(self.groups_of(ids)))

    def images(self, ids: list[str]) -> tuple[Tensor, Tensor]:
        """Pixels (B, C, H, W) as bytes and class indices (B,)."""
        pixels = torch.empty((len(ids), *self.shape), dtype=torch.uint8)
        for part, (at, rows) in self._rows(ids).items():
            pixels[at] = self.table(part).read(rows)
        return pixels, self.labels(ids)

    def identity(self) -> dict[str, Any]:
        """What decides the images behind the ids and the splits: the files and all fields but those that choose."""
        fields = getattr(self, "__dataclass_fields__", {})
        settings = {k: getattr(self, k) for k in fields if k not in self.choosing}
        return {"dataset": self.name, "files": self.digests(), **settings}

    def fingerprint(self) -> dict[str, Any]:
        return self.identity()

    def facts(self) -> dict[str, Any]:
        """What a reader asks of this data, for tables/cells.csv: its settings that are one word or number."""
        seeds = {"seed": self.seed, "explained_seed": choice_seed(self)}
        return {"kind": self.name, **plain_settings(self, (*self.choosing, "split_seed")), **seeds}

    def labels(self, ids: Sequence[str]) -> Tensor:
        """(B,) class indices."""
        y = torch.empty(len(ids), dtype=torch.int64)
        for part, (at, rows) in self._rows(ids).items():
            y[at] = self.table(part).y[rows]
        return y

    def groups_of(self, ids: Sequence[str]) -> list[str]:
        """The name of each image's class."""
        return [self.classes[c] for c in self.labels(ids).tolist()]

    def _rows(self, ids: Sequence[str]) -> dict[str, tuple[list[int], list[int]]]:
        """part -> (positions in `ids`, rows of the part's table)."""
        places: dict[str, tuple[list[int], list[int]]] = {}
        pending = list(enumerate(ids))
        for part in self.parts:
            if not pending:
                break
            row = self.table(part).row
            here = [(at, row[i]) for at, i in pending if i in row]
            if here:
                places[part] = ([at for at, _ in here], [r for _, r in here])
                pending = [(at, i) for at, i in pending if i not in row]
        if pending:
            raise unknown("image id", pending[0][1], self.table(self.parts[-1]).ids[:3], f"dataset '{self.name}'")
        return places

    def __post_init__(self) -> None:
        check_declared(self)


class TrainTestDataset(ImageDataset):
    """A data set stored as a training and a test part; the validation split is held out of the training part."""

    if TYPE_CHECKING:
        validation: int
        split_seed: int

    def ids(self, split: str) -> list[str]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, f"dataset '{self.name}'")
        if split == "test":
            return list(self.table("test").ids)
        return [i for i in self.table("train").ids if (i in self._held_out) == (split == "validation")]

    @functools.cached_property
    def _held_out(self) -> frozenset[str]:
        train = self.table("train")
        if not 0 <= self.validation < len(train.ids):
            raise SalrunError(
                f"dataset.validation of {self.name} must be in 0..{len(train.ids) - 1}, got {self.validation}"
            )
        return frozenset(balanced(train.ids, train.y, self.validation, self.split_seed, "validation"))

    def digests(self) -> dict[str, str]:
        return self._digests

    @functools.cached_property
    def _digests(self) -> dict[str, str]:
        return {part: self.table(part).digest() for part in self.parts}


class Derived:
    """A data set whose images are made of those of `plain`, on which models are trained and verified."""

    plain: Labelled

    @property
    def classes(self) -> Sequence[str]:
        return self.plain.classes

    @property
    def verification_split(self) -> str:
        return self.plain.verification_split

    def ids(self, split: str) -> list[str]:
        return self.plain.ids(split)

    def images(self, ids: list[str]) -> tuple[Tensor, Tensor]:
        """Images of `plain` as they are, as bytes: what backgrounds and statistics are made of."""
        return self.plain.images(ids)
