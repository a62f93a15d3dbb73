"""The gradient with another rule at ReLUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from salrun.methods.backward import Op, Rules, Step, explain, ordinary, starts
from salrun.methods.cam import GradCAM
from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import Fitted, Method

# What has no ReLU in it keeps its own gradient. Other activations are not in the list: the rule is about ReLUs.
_ORDINARY = (
    *("affine", "bilinear", "filter", "linear_map", "max_pool", "max", "average", "batch_norm", "layer_norm", "norm"),
    *("attention", "softmax", "log_softmax", "add", "scale", "quotient"),
)


def _rules(name: str, relu: Callable[[Op], Step]) -> Rules:
    why = dict.fromkeys(("activation", "gate", "function"), "it is defined for ReLU")
    return Rules(name, {**dict.fromkeys(_ORDINARY, ordinary), "relu": relu}, why=why)


def positive_signal(op: Op) -> Step:
    """s -> s+."""
    return Step(_value(op), [op.x], lambda s: (s.relu(),))


def positive_and_active(op: Op) -> Step:
    """s -> s+ [x > 0] (for ReLU6: [0 < x < 6])."""
    y = _value(op)

    def back(s: Tensor) -> tuple[Tensor]:
        passed = torch.ops.aten.threshold_backward(s, y, 0).relu_()  # s [y > 0], then its positive part
        return (passed if op.cap == math.inf else passed.masked_fill_(y >= op.cap, 0),)

    return Step(y, [op.x], back)


def _value(op: Op) -> Tensor:
    """The ReLU, in place where the network has it so: these rules do not look at what was there before."""
    if not op.in_place:
        return op()
    return op.x.detach().relu_() if op.cap == math.inf else op.x.detach().clamp_(0, op.cap)


@dataclass
class DeconvNet(Method):
    """The backward pass of y_c with, at every ReLU, the signal s replaced by s+ and no look at the forward pass.

    Zeiler, Fergus 2014 (DCN). `start`: the signal that enters at the logit, 1 (Captum) or its value y_c
    (iNNvestigate): the same map up to scale while y_c > 0, another one when y_c < 0.
    """

    start: Literal["one", "value"] = "one"
    space: Literal["norm", "raw"] = "norm"

    paper_name: ClassVar[str] = "DeconvNet"
    source: ClassVar[str] = "Zeiler, Fergus 2014, arXiv:1311.2901"
    foldable = True

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        rules = _rules("deconvnet", positive_signal)
        return explain(model, x, target, rules, self.space, starts(self.start), fitted.chunk)


@dataclass
class GuidedBackprop(Method):
    """The backward pass of y_c with, at every ReLU, the signal s replaced by s+ [x > 0], x the ReLU's input.

    Springenberg et al. 2015 (GBP). `start` as for DeconvNet.
    """

    start: Literal["one", "value"] = "one"
    space: Literal["norm", "raw"] = "norm"

    paper_name: ClassVar[str] = "Guided Backprop"
    source: ClassVar[str] = "Springenberg et al. 2015, arXiv:1412.6806"
    foldable = True

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        rules = _rules("guided_backprop", positive_and_active)
        return explain(model, x, target, rules, self.space, starts(self.start), fitted.chunk)


@dataclass
class GuidedGradCAM(Method):
    """Guided backprop times Grad-CAM, which is resized to the image and has no negative value.

    Selvaraju et al. 2017, section 3.2.
    """

    layer: str = "cam"
    space: Literal["norm", "raw"] = "norm"

    needs: ClassVar[frozenset[str]] = frozenset({"layer"})
    paper_name: ClassVar[str] = "Guided Grad-CAM"
    source: ClassVar[str] = "Selvaraju et al. 2017, arXiv:1610.02391"
    foldable = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 6.0

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        cam = GradCAM(layer=self.layer)(model, x, target, rng, fitted)
        return GuidedBackprop(space=self.space)(model, x, target, rng, fitted) * cam
