"""Deep Taylor decomposition (Montavon et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.methods.backward import Op, Rules, Step, explain, ordinary, unchanged
from salrun.methods.relevance import (
    add_positive,
    alpha_beta_rule,
    average_positive,
    bilinear_z,
    bounded_rule,
    factor_only,
    scale_unchanged,
    spread_rule,
)
from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import Fitted, Method


def gated(op: Op) -> Step:
    """Signal times gate: the signal has all."""
    if op.name not in ("mul", "multiply") or sum(bool(op.run.known(t).gate) for t in op.operands) != 1:
        raise op.run.refuse(op, "of two factors one must be a sigmoid")
    return bilinear_z(op)


@dataclass
class DeepTaylor(Method):
    """Relevance y_c+ of the logit, handed down by the z+ rule R_i = sum_j (x_i w_ij)+ R_j / sum_i (x_i w_ij)+.

    In the first layer, where x is not a ReLU's output, by the w^2 rule R_i = sum_j w_ij^2 R_j / sum_i w_ij^2 or, for
    images in [low, high], by z^B ("bounded"): shares x_i w_ij - low w+_ij - high w-_ij. Non-negative; sums to y_c+.
    Max-pooling gives all to the winner; average pooling and additions share by positive parts; a batch norm is folded
    into the layer before it, and one that has none passes relevance unchanged. A branch times a sigmoid of another
    (squeeze and excitation) has all relevance, the sigmoid none. Activations other than ReLU are refused.

    `library: true` is what iNNvestigate's `deep_taylor.bounded` computes: the bias is added to the denominators (which
    may then vanish or change sign), batch norm is ignored, average pooling and additions pass the plain gradient.
    """

    first: Literal["w2", "bounded"] = "w2"
    low: float = 0.0
    high: float = 1.0
    library: bool = False
    space: Literal["norm", "raw"] = "norm"

    signed: ClassVar[bool] = False
    paper_name: ClassVar[str] = "Deep Taylor"
    source: ClassVar[str] = "Montavon et al. 2017, doi:10.1016/j.patcog.2016.11.008"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.foldable = not self.library
        if not self.low < self.high:
            raise SalrunError(f"low of deep_taylor must be below high, got {self.low} and {self.high}")

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 4.0

    def rules(self) -> Rules:
        return Rules(
            "deep_taylor",
            {
                "affine": self.layer,
                "batch_norm": self.norm,
                "relu": unchanged,
                "gate": factor_only,
                "bilinear": gated,
                "max_pool": ordinary,
                "max": ordinary,
                "average": ordinary if self.library else average_positive,
                "add": ordinary if self.library else add_positive,
                "scale": scale_unchanged,
            },
            folds=not self.library,
            why={"activation": "it is defined for ReLU"},
        )

    def layer(self, op: Op) -> Step:
        layer, x = op.affine  # type: ignore[misc]
        lane = op.run.known(x)
        if lane.first and self.first == "w2":
            back = spread_rule(layer, x, layer.weight.square())
        elif lane.first and lane.box is not None:
            back = bounded_rule(layer, x, *lane.box)
        else:
            back = alpha_beta_rule(layer, x, 1.0, 0.0, "library" if self.library else "none", lane.positive)
        return Step(op(), [x], lambda r: (back(r),))

    def norm(self, op: Op) -> Step:
        return unchanged(op) if op.affine is None else self.layer(op)

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        box = None
        if self.first == "bounded":
            low, high = (model.enter(torch.full_like(x, value), self.space) for value in (self.low, self.high))
            box = (low, high)
        return explain(model, x, target, self.rules(), self.space, torch.relu, fitted.chunk, box)
