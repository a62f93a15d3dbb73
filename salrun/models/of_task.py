"""A model of another task: trained and verified on its own data, whatever data the run explains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from salrun.models.recipe import Obtained
from salrun.store import Store


@dataclass
class OfTask:
    """`recipe` on `dataset`: the model of task t beside that of task t~ on the same images (Yona & Greenfeld 2021)."""

    recipe: Any
    dataset: Any

    def obtain(self, data: Any, seed: int, store: Store, device: torch.device) -> Obtained:
        return self.recipe.obtain(self.dataset, seed, store, device)
