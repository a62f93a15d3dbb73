"""ImageNet and TinyImageNet as a run reads them: pictures that cannot be read right are refused by name.

Classes of their own, because the keys of models trained on pairs hold `imagenet`, `tinyimagenet` and `pictures`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from salrun.datasets import imagenet, tinyimagenet
from salrun.datasets.base import Table
from salrun.datasets.decoding import check_regular, decoded
from salrun.datasets.pictures import fit_to


@dataclass
class ImageNet(imagenet.ImageNet):
    __doc__ = imagenet.ImageNet.__doc__

    def load(self, part: str) -> Table:
        return decoded(self._files[part], fit_to(self.size, self.fit, self.short_side))


@dataclass
class TinyImageNet(tinyimagenet.TinyImageNet):
    __doc__ = tinyimagenet.TinyImageNet.__doc__

    @functools.cached_property
    def _files(self) -> dict[str, list[tuple[str, Path, int]]]:
        files = super()._files
        for _, path, _ in (row for rows in files.values() for row in rows):
            check_regular(path)  # before its bytes are read, which a pipe would never give
        return files

    def load(self, part: str) -> Table:
        side = self.shape[1]
        return decoded(self._files[part], fit_to(side, "squash", side) if self.task == "imagenet" else None)
