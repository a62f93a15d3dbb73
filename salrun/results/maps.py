"""Kept maps of a run: `maps/` holds pictures, planes (float16) and an index, for the gallery and for comparing maps.

- `index.json`: `image_id`, `group`, `label`, `prediction` (one entry per image); `methods` (name, label, signed, plane,
  view); `masks` (name -> [row0, col0, row1, col1) or null per image) and `roles` (name -> primary | secondary |
  neutral per image); `classes`; `models` (role -> cell).
- `images.safetensors`: `x`, uint8 (N, H, W, 3).
- `<method>.safetensors`: `plane`, float16 (N, H, W), each map over its largest absolute value, and that value as
  `scale` (N); `<role>/<method>.safetensors` has the same of each further model of the run, for its first images.

Planes are for looking at: metrics score a view of the raw map (in the index: `view`), which for colour images is mostly
not the plane.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialise

from salrun.errors import SalrunError
from salrun.store.files import write_atomic

MOST = 240  # images kept
MOST_OF_OTHERS = 512 << 20  # bytes of other models' maps
PER_IMAGE = ("image_id", "group", "label", "prediction")
OWN = "model"  # the role of the run's own model


class BadMaps(SalrunError):
    """Why kept maps cannot be shown, in words for a reader."""


# -- writing ----------------------------------------------------------------------------------------------------------


def kept_tiles(sizes: Sequence[int], most: int = MOST) -> set[int]:
    """Which tiles (by position) are kept: spread evenly over the run, so that about `most` images are."""
    every = max(1, -(-sum(sizes) // most))
    return set(range(0, len(sizes), every))


@dataclass
class MapWriter:
    """Gathers the kept maps of a run while they are in memory, and writes them once."""

    methods: list[dict[str, Any]]  # name, label, signed, plane, view
    classes: Sequence[str]
    models: Mapping[str, str]  # role -> cell
    pictures: list[NDArray[np.uint8]] = field(default_factory=list)
    planes: dict[tuple[str, str], list[dict[str, NDArray[Any]]]] = field(default_factory=dict)
    images: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in PER_IMAGE})
    masks: dict[str, list[list[int] | None]] = field(default_factory=dict)
    roles: dict[str, list[str]] = field(default_factory=dict)

    def add_images(
        self,
        pictures: NDArray[np.uint8],
        about: Mapping[str, Sequence[Any]],
        masks: Mapping[str, NDArray[np.bool_]],
        roles: Mapping[str, Sequence[str]],
    ) -> None:
        """Some images (N, H, W, C), what is known of them, and the masks (N, H, W) of their objects."""
        self.pictures.append(pictures)
        for name in PER_IMAGE:
            self.images[name] += list(about[name])
        for name, mask in masks.items():
            self.masks.setdefault(name, []).extend(map(box_around, mask))
            self.roles.setdefault(name, []).extend(roles[name])

    def add_planes(self, role: str, method: str, planes: dict[str, NDArray[Any]]) -> None:
        """`plane` and `scale` of the next images; further models' only while there is room for them."""
        stored = self.planes.setdefault((role, method), [])
        used = sum(p["plane"].nbytes for p in stored)
        if role == OWN or used < MOST_OF_OTHERS // (len(self.models) * len(self.methods)):
            stored.append(planes)

    def write(self, folder: Path) -> None:
        """Write `maps/` below the run directory; the index last."""
        pixels = np.concatenate(self.pictures)
        if pixels.shape[-1] == 1:
            pixels = np.repeat(pixels, 3, axis=-1)
        write_atomic(folder / "images.safetensors", serialise({"x": np.ascontiguousarray(pixels)}))
        for (role, method), parts in self.planes.items():
            joined = {name: np.concatenate([part[name] for part in parts]) for name in ("plane", "scale")}
            write_atomic(folder / ("" if role == OWN else role) / f"{method}.safetensors", serialise(joined))
        content = {**self.images, "methods": self.methods, "masks": self.masks, "roles": self.roles}
        content |= {"classes": list(self.classes), "models": dict(self.models)}
        write_atomic(folder / "index.json", json.dumps(content).encode())


def box_around(mask: NDArray[np.bool_]) -> list[int] | None:
    """[row0, col0, row1, col1) around a mask; None where it is empty."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return None
    return [int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1]


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeptMaps:
    """The kept maps of one run. `cells`: the run's models and their facts."""

    folder: Path
    cells: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)

    @cached_property
    def index(self) -> dict[str, Any]:
        """index.json, every list of it as long as there are images."""
        path = self.folder / "index.json"
        if not path.is_file():
            raise BadMaps("This run kept no maps (there is no maps/index.json).")
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            n = len(raw["image_id"])
            index: dict[str, Any] = {name: list(raw.get(name) or [None] * n) for name in PER_IMAGE}
            for name in ("masks", "roles"):
                index[name] = {str(key): list(items) for key, items in (raw.get(name) or {}).items()}
            index["methods"] = [
                {**m, "name": str(m["name"]), "label": str(m.get("label") or m["name"]), "signed": bool(m["signed"])}
                for m in raw["methods"]
            ]
            index["classes"] = list(raw.get("classes") or [])
            index["models"] = dict(raw.get("models") or {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
            raise BadMaps(f"maps/index.json cannot be read ({type(fault).__name__}: {fault}).") from fault
        lists = [(name, index[name]) for name in PER_IMAGE] + [*index["masks"].items(), *index["roles"].items()]
        if wrong := [name for name, items in lists if len(items) != n]:
            raise BadMaps(f"maps/index.json does not have {n} entries in {', '.join(wrong)}.")
        if n == 0 or len(set(map(str, index["image_id"]))) < n:
            raise BadMaps("maps/index.json names no image." if n == 0 else "maps/index.json names an image twice.")
        return index

    @cached_property
    def images(self) -> pd.DataFrame:
        """image_id, group, label, prediction; one row per image, in the order of the planes."""
        return pd.DataFrame({name: self.index[name] for name in PER_IMAGE})

    @cached_property
    def row(self) -> dict[str, int]:
        """image_id -> its row."""
        return {str(name): row for row, name in enumerate(self.index["image_id"])}

    @property
    def facts(self) -> pd.Series:
        """The facts of the run's own model (a row of tables/cells.csv)."""
        row = self.cells[self.cells["role"] == OWN]
        return row.iloc[0]

    def cell(self, role: str = OWN) -> str:
        return str(self.index["models"].get(role, ""))

    @cached_property
    def pictures(self) -> NDArray[np.uint8]:
        """(N, H, W, 3)."""
        pictures = self._tensor("images", "x", 4)
        if pictures.shape[-1] != 3:
            raise BadMaps(f"maps/images.safetensors has {pictures.shape[-1]} channels, expected 3.")
        return pictures

    def has(self, method: str, role: str = OWN) -> bool:
        return self._path(method, role).is_file()

    def signed(self, method: str) -> bool:
        return next(bool(m["signed"]) for m in self.index["methods"] if m["name"] == method)

    def planes(self, method: str, role: str = OWN) -> NDArray[np.float32]:
        """(N, H, W): a method's maps, each over its largest absolute value; further models may have fewer images."""
        return self._tensor(method, "plane", 3, role).astype(np.float32)

    def plane(self, method: str, image: str, role: str = OWN) -> NDArray[np.float32]:
        """One image's plane, without reading the others."""
        return self._row(self._path(method, role), "plane", image).astype(np.float32)

    def picture(self, image: str) -> NDArray[np.uint8]:
        return self._row(self.folder / "images.safetensors", "x", image)

    def scale(self, method: str, role: str = OWN) -> NDArray[np.float32]:
        """The largest absolute value that was taken out of each map."""
        return self._tensor(method, "scale", 1, role).astype(np.float32)

    def boxes(self, row: int) -> dict[str, list[int]]:
        """[row0, col0, row1, col1) of every object in an image."""
        return {name: boxes[row] for name, boxes in self.index["masks"].items() if boxes[row] is not None}

    def _path(self, method: str, role: str = OWN) -> Path:
        folder = self.folder / ("" if role == OWN else role)
        path = folder / f"{method}.safetensors"
        if path.parent.resolve() != folder.resolve() or not folder.resolve().is_relative_to(self.folder.resolve()):
            raise BadMaps(f"maps/{path.name} is missing.")  # a name with a slash leads nowhere
        return path

    def _row(self, path: Path, name: str, image: str) -> NDArray[Any]:
        at = self.row[image]
        with safe_open(path, framework="numpy") as stored:
            return stored.get_slice(name)[at : at + 1][0]

    def _tensor(self, file: str, key: str, ndim: int, role: str = OWN) -> NDArray[Any]:
        path, n = self._path(file, role), len(self.index["image_id"])
        if not path.is_file():
            raise BadMaps(f"maps/{path.name} is missing.")
        try:
            with safe_open(path, framework="np") as stored:
                tensor: NDArray[Any] = stored.get_tensor(key)
        except (SafetensorError, OSError) as fault:
            raise BadMaps(f"maps/{path.name} cannot be read ({fault}).") from fault
        if tensor.ndim != ndim or (len(tensor) != n if role == OWN else len(tensor) > n):
            raise BadMaps(f"maps/{path.name} has shape {tensor.shape}, expected {n} x {ndim - 1} axes.")
        return tensor
