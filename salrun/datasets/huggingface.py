"""Pictures of the Hugging Face hub, or of a folder in one of its forms (`pip install 'salrun[huggingface]'`)."""

from __future__ import annotations

import functools
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from salrun.datasets.base import SPLITS, Table, digest
from salrun.datasets.decoding import VERSION, rgb, stacked
from salrun.datasets.pictures import PictureDataset, fit_to
from salrun.errors import SalrunError, told, unknown


@dataclass
class HuggingFace(PictureDataset):
    """Images and classes of two columns of `name`: a data set of the hub, a folder that `load_dataset` reads, or one
    that `save_to_disk` wrote. What is downloaded is kept below `root`/huggingface.

    `split` is explained; `train_split` gives the statistics and backgrounds that some methods need (None: `split`).
    `image`, `label`: columns; None: the only one that holds images, classes. A label is a class of its own type, a
    number, or a word (then the sorted words are the classes).
    """

    name: str = ""
    subset: str | None = None  # the hub's `config`
    revision: str | None = None
    split: str = "test"
    train_split: str | None = None
    image: str | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            raise SalrunError("dataset.name is not set: give a data set of the hub (owner/name) or a folder")

    @property
    def parts(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys([self.split, self.train_split or self.split]))

    @functools.cached_property
    def _splits(self) -> dict[str, Any]:
        """split -> the library's data set, its images not decoded."""
        try:
            import datasets
        except ModuleNotFoundError as fault:
            raise SalrunError("dataset=huggingface needs datasets: pip install 'salrun[huggingface]'") from fault
        folder = Path(self.name).expanduser()
        written = any((folder / name).is_file() for name in ("dataset_dict.json", "dataset_info.json"))
        cache = Path(self.root).expanduser() / "huggingface"
        try:
            if written:
                loaded = datasets.load_from_disk(str(folder))
            else:
                name = str(folder) if folder.is_dir() else self.name
                loaded = datasets.load_dataset(name, self.subset, revision=self.revision, cache_dir=str(cache))
        except Exception as fault:  # of the hub, the network, the cache or the files: the library raises anything
            raise SalrunError(f"dataset.name={self.name} cannot be loaded: {told(fault)}") from fault
        splits = dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {str(loaded.split or "test"): loaded}
        for wanted in self.parts:
            if wanted not in splits:
                raise unknown("split", wanted, splits, f"dataset.name={self.name}")
        column = self._column(splits[self.split], "image", self.image, datasets.Image)
        return {part: splits[part].cast_column(column, datasets.Image(decode=False)) for part in self.parts}

    def _column(self, data: Any, what: str, given: str | None, kind: type) -> str:
        """The column that is given, or the only one of this kind."""
        if given is not None:
            if given not in data.features:
                raise unknown("column", given, data.features, f"dataset.{what} of {self.name}")
            return given
        found = [name for name, feature in data.features.items() if isinstance(feature, kind)]
        if len(found) != 1:
            raise SalrunError(
                f"dataset.{what}: {self.name} has {len(found)} columns of that kind, say which: "
                f"dataset.{what}=<column> (columns: {', '.join(data.features)})"
            )
        return found[0]

    @functools.cached_property
    def _columns(self) -> tuple[str, str]:
        import datasets

        data = self._splits[self.split]
        return (
            self._column(data, "image", self.image, datasets.Image),
            self._column(data, "label", self.label, datasets.ClassLabel),
        )

    @functools.cached_property
    def _labels(self) -> dict[str, list[Any]]:
        return {part: list(data[self._columns[1]]) for part, data in self._splits.items()}

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        known = getattr(self._splits[self.split].features[self._columns[1]], "names", None)
        if known:
            return tuple(known)
        every = {value for labels in self._labels.values() for value in labels}
        if all(isinstance(value, str) for value in every):
            return tuple(sorted(every))
        if all(isinstance(value, int) and value >= 0 for value in every):
            return tuple(map(str, range(max(every) + 1)))
        raise SalrunError(f"dataset.label={self._columns[1]} of {self.name} holds neither classes nor words")

    def load(self, part: str) -> Table:
        image, label = self._columns
        data, labels = self._splits[part], self._labels[part]
        index = {name: place for place, name in enumerate(self.classes)}
        y = [index[value] if isinstance(value, str) else int(value) for value in labels]
        if y and not 0 <= min(y) <= max(y) < len(self.classes):
            raise SalrunError(f"{self.name}: {part} has images without a label ({label} {min(y)} .. {max(y)})")
        prepare = fit_to(self.size, self.fit, self.short_side)

        def read(rows: list[int]) -> torch.Tensor:
            return stacked([self._decoded(data[row][image], f"{part}-{row}", prepare) for row in rows])

        return Table([f"{part}-{row:05d}" for row in range(len(data))], torch.tensor(y), read)

    def _decoded(self, stored: dict[str, Any], name: str, prepare: Any) -> np.ndarray:
        try:
            with Image.open(io.BytesIO(stored["bytes"]) if stored["bytes"] else stored["path"]) as picture:
                return np.asarray(prepare(rgb(picture)))
        except Exception as fault:  # Pillow's decoders raise anything on damaged files
            raise SalrunError(f"cannot read picture {name} of {self.name}: {fault}") from fault

    def ids(self, split: str) -> list[str]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, f"dataset '{self.name}'")
        return list(self.table(self.split if split == "test" else self.train_split or self.split).ids)

    @functools.cached_property
    def _digests(self) -> dict[str, str]:
        return {part: self._digest(part) for part in self.parts}

    def digests(self) -> dict[str, str]:
        return self._digests

    def _digest(self, part: str) -> str:
        """Of images as they are stored, and labels: a revision of the hub may move, a folder may change."""
        found = hashlib.sha256(str(VERSION).encode())
        for stored, label in zip(self._splits[part][self._columns[0]], self._labels[part], strict=True):
            content = stored["bytes"]
            found.update(hashlib.sha256(content).digest() if content else digest(Path(stored["path"])).encode())
            found.update(f"{label}\n".encode())
        return found.hexdigest()
