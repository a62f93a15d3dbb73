"""Does a model answer as a classifier does: the same twice, something else for another image, in finite numbers?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from salrun.models.classifier import Classifier


@dataclass(frozen=True)
class Soundness:
    """What a few images show of a model."""

    finite: bool  # all logits are numbers
    repeated: bool  # a second pass gives the same: no random layer is at work
    varied: bool  # another image gives other logits: else scores that ask the model say nothing

    def doubts(self, role: str) -> list[str]:
        """What a reader of its scores must know, one sentence each."""
        said = {
            f"{role}: gives logits that are no finite numbers": self.finite,
            f"{role}: two passes over the same images differ (dropout that is always on?): no number comes out twice": (
                self.repeated
            ),
            f"{role}: gives the same logits for every image: scores that ask it are flagged undefined": self.varied,
        }
        return [f"UNSOUND MODEL {doubt}" for doubt, sound in said.items() if not sound]


@torch.no_grad()
def soundness(model: Classifier, x: Tensor) -> Soundness:
    """Two passes over some images, and one over their negatives."""
    first, again, other = model(x), model(x), model(1 - x)
    logits = torch.cat([first, other])
    return Soundness(
        finite=bool(logits.isfinite().all()),
        repeated=torch.allclose(first, again, rtol=1e-3, atol=1e-5, equal_nan=True),
        varied=not bool((logits == logits[0]).all()),
    )
