"""Layer-wise relevance propagation (Bach et al. 2015), with a rule per kind of layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.methods.backward import Affine, Op, Rules, Step, explain, ordinary, starts, unchanged
from salrun.methods.relevance import (
    Back,
    add_z,
    alpha_beta_rule,
    batch_norm_library,
    batch_norm_z,
    bilinear_z,
    epsilon_div,
    epsilon_rule,
    factor_only,
    layer_norm_z,
    linear_z,
    safe_div,
    scale_unchanged,
    spread_rule,
    z_rule,
)
from salrun.models.classifier import Classifier
from salrun.ranges import AtLeast
from salrun.rng import Draws
from salrun.types import Fitted, Method


@dataclass
class LRP(Method):
    """Relevance y_c of the logit, handed down layer by layer; x_i a layer's input, z_j = sum_i x_i w_ij + b_j.

    - z: R_i = x_i sum_j w_ij R_j / z_j (in a ReLU network the same as input times gradient)
    - epsilon: the same with z_j + epsilon sgn(z_j)
    - alpha_beta: R_i = sum_j (alpha (x_i w_ij)+ / Z+_j - beta (x_i w_ij)- / Z-_j) R_j
    - flat (first convolution only): R_i = sum_j R_j / (number of inputs of j)

    LRP-z and LRP-epsilon use one rule everywhere. LRP-A-flat and LRP-B-flat (presets of iNNvestigate) use epsilon in
    dense layers, alpha_beta = (1, 0) or (2, 1) in convolutions, flat in the first. Activations pass relevance
    unchanged, max-pooling gives all to the winner, average pooling and additions follow the z rule.

    Of a product of two branches a gate (a sigmoid, the softmax of attention) gets nothing and the other factor all;
    where neither is a gate, both get half. A layer norm follows the z rule with its standard deviation as a constant.
    In a transformer that is the conservative propagation of Ali et al. 2022; `attn_lrp` hands relevance to queries and
    keys too.

    `bias`: the bias in Z+ and Z-, its own sign in each ("split") or whole in both as in iNNvestigate ("library").
    `batch_norm`: folded into the layer before it, or iNNvestigate's rule for it.
    """

    dense: Literal["z", "epsilon", "alpha_beta"] = "epsilon"
    conv: Literal["z", "epsilon", "alpha_beta"] = "epsilon"
    first: Literal["same", "flat"] = "same"
    epsilon: Annotated[float, AtLeast(0)] = 1e-6
    alpha: float = 1.0
    beta: Annotated[float, AtLeast(0)] = 0.0
    bias: Literal["split", "library", "none"] = "split"
    batch_norm: Literal["fold", "library"] = "fold"
    start: Literal["value", "one"] = "value"
    space: Literal["norm", "raw"] = "norm"

    paper_name: ClassVar[str] = "LRP"
    source: ClassVar[str] = "Bach et al. 2015, doi:10.1371/journal.pone.0130140; iNNvestigate 1.0.8"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.foldable = self.batch_norm == "fold"
        if abs(self.alpha - self.beta - 1) > 1e-9:
            raise SalrunError(f"alpha and beta of lrp must satisfy alpha - beta = 1, got {self.alpha} and {self.beta}")

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 3.0 if "alpha_beta" not in (self.dense, self.conv) else 4.0 + 3.0 * (self.beta > 0)

    def rules(self) -> Rules:
        return Rules(
            "lrp",
            {
                "affine": self.layer,
                "batch_norm": self.norm,
                "relu": unchanged,
                "activation": unchanged,
                "gate": unchanged,
                "softmax": factor_only,
                "max_pool": ordinary,
                "max": ordinary,
                "average": linear_z,
                "linear_map": linear_z,
                "bilinear": self.product,
                "layer_norm": layer_norm_z,
                "add": self.add,
                "scale": scale_unchanged,
            },
            folds=self.batch_norm == "fold",
        )

    def layer(self, op: Op) -> Step:
        """A kernel layer, with the batch norm that follows it where that is folded in."""
        layer, x = op.affine  # type: ignore[misc]
        z = op()
        back = self.rule(layer, x, z, op)
        return Step(z, [x], lambda r: (back(r),))

    def rule(self, layer: Affine, x: Tensor, z: Tensor, op: Op) -> Back:
        lane = op.run.known(x)
        if lane.first and self.first == "flat" and layer.conv is not None:
            return spread_rule(layer, x, torch.ones_like(layer.weight))
        name = self.dense if layer.conv is None else self.conv
        if name == "z":
            return z_rule(layer, x, z)
        if name == "epsilon":
            return epsilon_rule(layer, x, z, self.epsilon)
        return alpha_beta_rule(layer, x, self.alpha, self.beta, self.bias, lane.positive)

    def norm(self, op: Op) -> Step:
        if op.affine is not None:
            return self.layer(op)
        return batch_norm_library(op) if self.batch_norm == "library" else batch_norm_z(op)

    def product(self, op: Op) -> Step:
        """Of a product of matrices each sum is a dense layer's; a product of numbers has nothing to stabilise."""
        stabilised = self.dense == "epsilon" and op.name not in ("mul", "multiply")
        return bilinear_z(op, partial(epsilon_div, epsilon=self.epsilon) if stabilised else safe_div)

    def add(self, op: Op) -> Step:
        """The z rule; but what the flat rule gave to an image shifted by a constant belongs to the image."""
        shifted_image = self.first == "flat" and op.run.known(op.x).first
        return unchanged(op) if shifted_image and len(op.terms) == 1 else add_z(op)

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        return explain(model, x, target, self.rules(), self.space, starts(self.start), fitted.chunk)
