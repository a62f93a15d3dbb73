"""Maps of known order: a good map made worse by a stated dose of a stated defect, for metrics to be judged by.

A metric is right where its score falls with the dose (`salrun court`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from salrun.errors import SalrunError
from salrun.methods.baselines import Oracle, ink, lit
from salrun.models.classifier import Classifier
from salrun.ranges import Between
from salrun.rng import Draws
from salrun.types import PRIMARY, Fitted, Method

BLUR = 4  # the mean filter is a quarter of the side


@dataclass
class Ladder(Method):
    """`base` with a `dose` of a defect: a blend of the map a and its spoilt copy b.

    pixels: b in a share `dose` of the pixels, a in the others. A pixel is taken where its number u in [0, 1), drawn
    once per image, is below the dose, so what is wrong at one dose is wrong at every higher one.
    values: (1 - dose) a + dose b. Of a map of zeros and ones this leaves the order of the pixels as it is up to .5.

    The spoilt copy: noise, U[0, 1) max |a|; others, 1 on the objects that are not primary; shift, a rolled by half of
    both sides; blur, the mean of a over a square of a quarter of the side; permute, the pixels of a in random order;
    flip, -a; inverse, max a + min a - a; constant, the mean of a; blank, 0. There is no ladder (NaN) where the base is
    constant, nor of `others` where there are none.
    """

    base: Method = field(default_factory=Oracle)
    defect: Literal["noise", "others", "shift", "blur", "permute", "flip", "inverse", "constant", "blank"] = "noise"
    dose: Annotated[float, Between(0, 1)] = 0.5
    mix: Literal["pixels", "values"] = "pixels"

    source: ClassVar[str] = "control; permuted maps: F-Fidelity, Zheng et al. 2025, arXiv:2410.02970"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.base, Method):
            raise SalrunError(f"base of Ladder must be a method ({{_target_: its class}}), got {self.base!r}")
        masks = {"masks"} if self.defect == "others" else set()
        self.needs = self.base.needs | masks  # type: ignore[misc]
        self.sees_class = self.base.sees_class  # type: ignore[misc]
        for name in ("layer", "n_references"):  # what is fitted for a method is looked up on it
            if hasattr(self.base, name):
                setattr(self, name, getattr(self.base, name))

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return self.base.passes(model, shape)

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        base = self.base(model, x, target, rng, fitted).detach()
        if self.dose == 0:
            return base
        spoilt = self.spoilt(base, x, rng, fitted)
        if self.mix == "values":
            mixed = torch.lerp(base, spoilt, self.dose)
        else:
            taken = rng.uniform("ladder/pixels", (1, *base.shape[2:])) < self.dose
            mixed = torch.where(taken, spoilt, base)
        return mixed.masked_fill(flat(base), torch.nan)

    def spoilt(self, base: Tensor, x: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        """The map that is wrong altogether."""
        height, width = base.shape[2:]
        high, low = base.amax((1, 2, 3), keepdim=True), base.amin((1, 2, 3), keepdim=True)
        match self.defect:
            case "noise":
                return rng.uniform("ladder/noise", base.shape[1:]).to(base) * torch.maximum(high, -low)
            case "others":
                others = lit(x, (ink(fitted, o) * (r != PRIMARY)[:, None, None] for o, r in fitted.roles.items()))
                return others.masked_fill(flat(others), torch.nan).expand_as(base)
            case "shift":
                return base.roll((height // 2, width // 2), (2, 3))
            case "blur":
                size = min(height, width) // BLUR | 1
                return F.avg_pool2d(base, size, 1, size // 2, count_include_pad=False)
            case "permute":
                order = rng.permutation(height * width, "ladder/permute").unsqueeze(1).expand(*base.shape[:2], -1)
                return base.flatten(2).gather(2, order).view_as(base)
            case "flip":
                return -base
            case "inverse":
                return high + low - base
            case "constant":
                return base.mean((1, 2, 3), keepdim=True).expand_as(base)
            case "blank":
                return torch.zeros_like(base)


def flat(maps: Tensor) -> Tensor:
    """(B, 1, 1, 1) whether all values of a map are equal."""
    return maps.amax((1, 2, 3), keepdim=True) == maps.amin((1, 2, 3), keepdim=True)
