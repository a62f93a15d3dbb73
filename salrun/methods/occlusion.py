"""Occlusion: how much the class loses where a window hides the image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.methods.chunking import run_pairs
from salrun.methods.variants import class_score
from salrun.models.classifier import Classifier, check_targets
from salrun.ranges import AtLeast
from salrun.rng import Draws
from salrun.types import Fitted, Method


def windows(size: int, window: int, stride: int, like: Tensor) -> Tensor:
    """(places, size): 1 where a window covers a pixel of one axis; one starts every `stride` until all are covered."""
    start = torch.arange(ceil(max(size - window, 0) / stride) + 1, device=like.device).unsqueeze(1) * stride
    pixel = torch.arange(size, device=like.device)
    return ((pixel >= start) & (pixel < start + window)).to(like.dtype)


@dataclass
class Occlusion(Method):
    """mean over the windows that cover a pixel of s(x) - s(x with the window hidden), s the class's score.

    Zeiler, Fergus 2014, as Captum averages it. `window` and `stride` in pixels; null: an eighth of the shorter side,
    and half a window: about 225 passes whatever the size. `baseline` is what a window shows: `zeros` of the network's
    own input space, which is the mean colour, or black. `output`: the logit (Captum) or the probability (the paper).
    """

    window: Annotated[int, AtLeast(1)] | None = None
    stride: Annotated[int, AtLeast(1)] | None = None
    baseline: Literal["zeros", "black"] = "zeros"
    output: Literal["logit", "probability"] = "logit"

    paper_name: ClassVar[str] = "Occlusion"
    source: ClassVar[str] = "Zeiler, Fergus 2014, arXiv:1311.2901"
    forward_only: ClassVar[bool] = True
    subtracts_scores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window and self.stride:
            self.check(self.window, self.stride)

    def check(self, window: int, stride: int) -> None:
        if stride > window:
            raise SalrunError(f"stride of occlusion must not leave gaps: at most window={window}, got {stride}")

    def sides(self, x: Tensor) -> list[Tensor]:
        """The windows along each axis of the images."""
        window = self.window or max(1, ceil(min(x.shape[-2:]) / 8))
        stride = self.stride or max(1, window // 2)
        self.check(window, stride)
        return [windows(size, window, stride, x) for size in x.shape[-2:]]

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        rows, columns = self.sides(torch.empty(1, *shape, device="meta"))
        return 1.0 + len(rows) * len(columns)

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        rows, columns = self.sides(x)
        n = len(rows) * len(columns)
        point = model.normalise(x)
        hidden = torch.zeros_like(point[:1]) if self.baseline == "zeros" else model.normalise(torch.zeros_like(x[:1]))
        network = partial(model.head, space="norm")
        score = torch.zeros(len(x) * (n + 1), dtype=torch.float64, device=x.device if x.device.type != "mps" else "cpu")

        def step(part: slice) -> None:
            """Pair (n + 1) b + k hides window k of image b, and nothing for k = n."""
            pair = torch.arange(part.start, part.stop, device=x.device)
            image, place = pair // (n + 1), pair % (n + 1)
            at = place.clamp(max=n - 1)
            hide = rows[at // len(columns)].unsqueeze(2) * columns[at % len(columns)].unsqueeze(1)
            hide = hide * (place < n).to(hide).view(-1, 1, 1)
            variants = torch.lerp(point[image], hidden, hide.unsqueeze(1))
            score[part] = class_score(network, variants, target[image], self.output)

        run_pairs(step, len(score), len(x), fitted.chunk)
        score = score.view(len(x), n + 1)
        lost = (score[:, n:] - score[:, :n]).to(x).view(-1, len(rows), len(columns))
        covered = rows.sum(0).unsqueeze(1) * columns.sum(0)
        return ((rows.mT @ lost @ columns) / covered).unsqueeze(1)
