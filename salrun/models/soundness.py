"""Does a model answer as a classifier does: the same twice, something else for another image, in finite numbers?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.models.classifier import Classifier

CUT = "does not require grad and does not have a grad_fn"  # what torch says of a gradient that cannot be taken


@dataclass(frozen=True)
class Soundness:
    """What a few images show of a model."""

    finite: bool  # all logits are numbers
    repeated: bool  # a second pass gives the same: no random layer is at work
    varied: bool  # another image gives other logits: else scores that ask the model say nothing
    alone: bool = True  # an image has the same logits with others in its batch and without

    def doubts(self, role: str) -> list[str]:
        """What a reader of its scores must know, one sentence each."""
        said = {
            f"{role}: gives logits that are no finite numbers": self.finite,
            f"{role}: two passes over the same images differ (dropout that is always on?): no number comes out twice": (
                self.repeated
            ),
            f"{role}: an image has other logits with others in its batch (batch norm that is always training?): its "
            "scores depend on tile= and chunk=": self.alone,
            f"{role}: gives the same logits for every image: scores that ask it are flagged undefined": self.varied,
        }
        return [f"UNSOUND MODEL {doubt}" for doubt, sound in said.items() if not sound]


@torch.no_grad()
def soundness(model: Classifier, x: Tensor) -> Soundness:
    """Two passes over some images, one over their negatives, and one over the first image alone."""
    first, again, other, alone = model(x), model(x), model(1 - x), model(x[:1])
    if len(first) != len(x):
        raise SalrunError(f"model '{model.name}' gives {len(first)} rows of logits for {len(x)} images: one for each")
    logits = torch.cat([first, other])
    repeated = _alike(first, again)
    return Soundness(
        finite=bool(logits.isfinite().all()),
        repeated=repeated,
        varied=not bool((logits == logits[0]).all()),
        alone=not repeated or _alike(first[:1], alone),
    )


def _alike(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True)


@contextmanager
def gradients_of(model: Classifier) -> Iterator[None]:
    """Around a method: of a network that cuts the way back, a line that says so."""
    try:
        yield
    except RuntimeError as fault:
        if CUT not in str(fault):
            raise
        raise SalrunError(
            f"the logits of model '{model.name}' have no gradient (detach() or no_grad() in its forward?): take "
            "methods that only ask for its answers, as rise or occlusion"
        ) from fault
