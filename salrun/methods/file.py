"""Maps that were computed elsewhere: read from files, by the id of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from salrun.errors import SalrunError
from salrun.models.classifier import check_targets
from salrun.types import Fitted, Method

if TYPE_CHECKING:
    from salrun.models.classifier import Classifier
    from salrun.rng import Draws

KINDS = (".npy", ".npz", ".safetensors")


@dataclass
class File(Method):
    """The map that `path` holds for the image: made by other code, judged by all metrics.

    `path` is a folder with one file per image, `<image id>.npy` (ids with a slash: in folders), or one .npz or
    .safetensors file with one array per image id. Arrays are (H, W), (1, H, W) or (C, H, W), of the size of the images.
    What they say of which class is the user's: the target is not looked at.
    """

    path: str = ""

    needs: ClassVar[frozenset[str]] = frozenset({"ids"})
    sees_class: ClassVar[bool] = False
    on_host: ClassVar[str] = "reading files"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 0.0

    @cached_property
    def place(self) -> Path:
        if not self.path:
            raise SalrunError(
                "method 'file' needs the maps: methods.file.path=<folder of .npy files, .npz, .safetensors>"
            )
        place = Path(self.path).expanduser()
        if not place.exists():
            raise SalrunError(f"methods.file.path: {place} does not exist")
        if place.is_file() and place.suffix not in (".npz", ".safetensors"):
            raise SalrunError(f"methods.file.path: {place} is no folder, .npz or .safetensors file")
        return place

    def content(self) -> str:
        """Names, sizes and times of the files."""
        files = [self.place] if self.place.is_file() else sorted(self.place.rglob("*.npy"))
        return " ".join(f"{f.name} {(stat := f.stat()).st_size} {stat.st_mtime_ns}" for f in files)

    def check_images(self, ids: Sequence[str], shape: tuple[int, int, int]) -> None:
        missing = [image for image in ids if not self._has(image)]
        if missing:
            raise SalrunError(
                f"methods.file.path: {self.place} has no map of {len(missing)} of {len(ids)} images, the first is "
                f"'{missing[0]}' (ids are the names of the arrays)"
            )
        for image in ids:
            self._read(image, shape)

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        if len(fitted.ids) != len(x):
            raise SalrunError("method 'file' has maps of the data set's own images alone")
        shape = (x.shape[1], x.shape[2], x.shape[3])
        planes = [torch.from_numpy(np.array(self._read(image, shape), dtype=np.float64)) for image in fitted.ids]
        if len({len(plane) for plane in planes}) > 1:
            planes = [plane.sum(0, keepdim=True) for plane in planes]
        return torch.stack(planes).to(x)

    @cached_property
    def _arrays(self) -> Any:
        """The arrays of a single file by name, read when they are asked for."""
        try:
            if self.place.suffix == ".npz":
                return np.load(self.place, allow_pickle=False)
            return safe_open(self.place, framework="pt")
        except (OSError, ValueError, BadZipFile, SafetensorError) as fault:
            raise SalrunError(f"methods.file.path: {self.place} cannot be read: {fault}") from fault

    def _has(self, image: str) -> bool:
        if self.place.is_dir():
            return (self.place / f"{image}.npy").is_file()
        return image in self._arrays.keys()  # noqa: SIM118 (safetensors has no __contains__)

    def _read(self, image: str, shape: tuple[int, int, int]) -> np.ndarray:
        """(1 or C, H, W)."""
        where = f"{self.place / image}.npy" if self.place.is_dir() else f"'{image}' of {self.place}"
        try:
            if self.place.is_dir():
                array = np.load(self.place / f"{image}.npy", mmap_mode="r", allow_pickle=False)
            elif self.place.suffix == ".npz":
                array = self._arrays[image]
            else:
                tensor = self._arrays.get_tensor(image)
                half = tensor.is_floating_point() and tensor.itemsize < 4  # numpy has no bfloat16
                array = (tensor.float() if half else tensor).numpy()
        except (OSError, ValueError, BadZipFile, SafetensorError) as fault:
            raise SalrunError(f"methods.file.path: {where} cannot be read: {fault}") from fault
        if array.dtype.kind not in "fiu" or array.shape not in {shape[1:], (1, *shape[1:]), shape}:
            found = f"{array.dtype} {tuple(array.shape)}"
            raise SalrunError(
                f"methods.file.path: {where} is {found}; a map of these images is (H, W) = {shape[1:]}, (1, H, W) or "
                f"(C, H, W), of real numbers"
            )
        return array[None] if array.ndim == 2 else array
