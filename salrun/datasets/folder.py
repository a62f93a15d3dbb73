"""A user's own pictures, sorted into a folder per class: `<root>/<class>/*.png`."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from salrun.datasets.base import SPLITS, Table, digest
from salrun.datasets.decoding import VERSION, check_regular, decoded
from salrun.datasets.pictures import SUFFIXES, PictureDataset, fit_to, pictures_of
from salrun.errors import SalrunError, unknown


@dataclass
class Folder(PictureDataset):
    """The pictures of `root`/<class>/; all of them may be explained, and give the statistics and backgrounds that some
    methods need.

    A class's index is its place among the sorted folders; where the model knows more classes, its place in
    `names_file`, which has one name per line in the order of the model's outputs.
    """

    names_file: str | None = None

    name = "folder"
    parts = ("pictures",)

    @functools.cached_property
    def _folders(self) -> list[Path]:
        root = Path(self.root).expanduser()
        folders = sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
        if not folders:
            raise SalrunError(f"no pictures: looked for {root}/<class>/*.png or .jpg; set dataset.root to your folder")
        return folders

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        folders = tuple(folder.name for folder in self._folders)
        if self.names_file is None:
            return folders
        path = Path(self.names_file).expanduser()
        if not path.is_file():
            raise SalrunError(f"dataset.names_file: there is no file {path}")
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        for one in folders:
            if one not in names:
                raise unknown("class", one, names, f"{path} (a folder of {self.root})")
        return names

    @functools.cached_property
    def _files(self) -> list[tuple[str, Path, int]]:
        """(id, picture, class), in order of class and name."""
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

    def load(self, part: str) -> Table:
        return decoded(self._files, fit_to(self.size, self.fit, self.short_side))

    def ids(self, split: str) -> list[str]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, "dataset 'folder'")
        return list(self.table("pictures").ids)

    def digests(self) -> dict[str, str]:
        pictures = "\n".join(f"{name} {index} {digest(path)}" for name, path, index in self._files)
        return {"pictures": hashlib.sha256(f"{VERSION}\n{pictures}".encode()).hexdigest()}
