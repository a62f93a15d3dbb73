"""How much of the map lies on the object that matters, and how much would by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from salrun.metrics.common import as_plane, scored
from salrun.metrics.localisation import OnObjects, coverage, focus, objects
from salrun.types import DEGENERATE_MAP, NO_MASK, ROLES, Scene, Score


@dataclass
class MassShare(OnObjects):
    """sum of |map| over the objects of the role / sum of |map|; `chance` is the share of the area they cover.

    The numbers behind the pictures of Yona and Greenfeld 2021. The share itself is SMERF's AFL as its text has it.
    Data without masks gives the flag no_mask, not an error: the metric may be asked for on any data.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str] = "Yona and Greenfeld 2021, as a number"

    def __call__(self, plane: Tensor, scene: Scene) -> dict[str, Score]:
        p = focus(as_plane(plane, "MassShare"), "paper", 1)
        cover = torch.zeros_like(p, dtype=torch.int64)
        if scene.roles:
            cover = coverage(objects(scene, ROLES[self.role], "box", "MassShare"), "paper").to(p.device)
        absent = ~cover.flatten(1).any(1)
        share = (p * cover).sum((1, 2)).masked_fill(absent, torch.nan)
        chance = cover.to(p.dtype).mean((1, 2)).masked_fill(absent, torch.nan)
        causes = (NO_MASK, absent), (DEGENERATE_MAP, share.isnan())
        return {"": scored(share, plane, *causes), "chance": scored(chance, plane, *causes)}
