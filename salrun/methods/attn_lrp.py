"""AttnLRP (Achtibat et al. 2024): layer-wise relevance propagation through attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from salrun.methods.backward import Affine, Op, Rule, Rules, Step, explain, ordinary, pullbacks
from salrun.methods.relevance import Back, part, safe_div, standardised
from salrun.models.classifier import Classifier
from salrun.ranges import AtLeast
from salrun.rng import Draws
from salrun.types import Fitted, Method

# Where the rule is the z rule (or the softmax's, which is the Taylor expansion at x), m = R / x follows the gradient.
_ORDINARY = ("affine", "linear_map", "batch_norm", "average", "max_pool", "max", "add", "scale", "softmax")


def identity(op: Op) -> Step:
    """y = f(x), element by element: R_x = R_y, so m_x = m_y y / x."""
    y = op()
    return Step(y, [op.x], lambda m: (safe_div(y, op.x).mul_(m),))


def layer_norm(op: Op) -> Step:
    """The standard deviation is a constant, and what is left is linear."""
    y, pull = standardised(op)
    return Step(y, [op.x], lambda m: (pull(m),))


def gamma_rule(layer: Affine, x: Tensor, z: Tensor, gamma: float) -> Back:
    """m_i = sum_j w_ij g_ij z_j m_j / sum_i x_i w_ij g_ij, g_ij = 1 + gamma where x_i w_ij has the sign of z_j, else 1.

    The bias, in the denominator, is favoured likewise (Andeol et al. 2021: the gamma rule for inputs of both signs).
    """
    up, down, above, below = part(layer.weight, 1), part(layer.weight, -1), part(x, 1), part(x, -1)
    bias = (None, None) if layer.bias is None else (part(layer.bias, 1), part(layer.bias, -1))

    def back(m: Tensor) -> Tensor:
        rising = layer(above, up, bias[0]) + layer(below, down)
        falling = layer(above, down, bias[1]) + layer(below, up)
        s = safe_div(m * z, z + gamma * torch.where(z > 0, rising, falling))
        risen = s * (z > 0)
        fallen = s - risen
        for_positive = layer.transpose(risen, up, x) + layer.transpose(fallen, down, x)
        for_negative = layer.transpose(risen, down, x) + layer.transpose(fallen, up, x)
        return layer.transpose(s, layer.weight, x).add_(torch.where(x < 0, for_negative, for_positive), alpha=gamma)

    return back


@dataclass
class AttnLRP(Method):
    """Relevance y_c of the logit, handed down by a rule for every operator of a transformer.

    - a layer z_j = sum_i x_i w_ij + b_j, a sum, a mean: R_i = x_i sum_j w_ij R_j / z_j
    - softmax s = softmax(x): R_i = x_i (R_i - s_i sum_j R_j)
    - a product of matrices y = A B: A_ij sum_k B_jk R_ik / (2 y_ik), and B likewise: half to each factor
    - a layer norm: the z rule with its standard deviation as a constant
    - an activation: R unchanged

    Computed as x m, m = R / x: under all rules but those of products, norms and activations m follows the gradient. So
    there is no stabiliser; biases, positions and class tokens keep their share. In a ReLU network it is input times
    gradient. Of a product of two branches a sigmoid (squeeze and excitation) gets nothing, the other factor all.

    `conv_gamma`, `dense_gamma`: the gamma rule, which favours contributions of the output's sign by 1 + gamma; 0 is the
    z rule. For images the authors advise it, tuned by a search: their example for ViT-B/16 looks at conv_gamma 0.1,
    0.25, 100 by dense_gamma 0, 0.01, 0.05, 0.1, 1. `attention: values` takes attention's weights for constants, as that
    example does (Ali et al. 2022). The authors of LRP claim a patent on it.
    """

    conv_gamma: Annotated[float, AtLeast(0)] = 0.0
    dense_gamma: Annotated[float, AtLeast(0)] = 0.0
    attention: Literal["all", "values"] = "all"
    space: Literal["norm", "raw"] = "norm"

    paper_name: ClassVar[str] = "AttnLRP"
    source: ClassVar[str] = "Achtibat et al. 2024, arXiv:2402.05602"
    foldable = True

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 3.0 if self.conv_gamma == self.dense_gamma == 0 else 10.0

    def rules(self) -> Rules:
        rules: dict[str, Rule] = dict.fromkeys(_ORDINARY, ordinary)
        rules |= dict.fromkeys(("relu", "activation", "gate"), identity)
        rules |= {"layer_norm": layer_norm, "bilinear": self.product, "attention": self.attend}
        gamma = self.conv_gamma > 0 or self.dense_gamma > 0
        if gamma:
            rules |= {"affine": self.layer, "batch_norm": self.norm}
        return Rules("attn_lrp", rules, folds=gamma)

    def layer(self, op: Op) -> Step:
        """A kernel layer, with the batch norm that follows it."""
        layer, x = op.affine  # type: ignore[misc]
        z = op()
        back = gamma_rule(layer, x, z, self.dense_gamma if layer.conv is None else self.conv_gamma)
        return Step(z, [x], lambda m: (back(m),))

    def norm(self, op: Op) -> Step:
        if op.affine is not None:
            return self.layer(op)
        y, pull = pullbacks(lambda x: op.at(lambda _: x), op.x)
        return Step(y, [op.x], pull)

    def product(self, op: Op) -> Step:
        """y = f(a, b), linear in each factor: half of the relevance to each; a gate has none, and the other one all."""
        pair, y = op.bilinear, op()
        a, b, to_a, to_b = pair.a, pair.b, pair.to_a, pair.to_b  # type: ignore[union-attr]
        gates = ("gate", "softmax") if self.attention == "values" else ("gate",)
        a_gates, b_gates = (op.run.known(t).gate in gates for t in (a, b))
        if a_gates and not b_gates:
            return Step(y, [b], lambda m: (to_b(m, a),))
        if b_gates and not a_gates:
            return Step(y, [a], lambda m: (to_a(m, b),))
        return Step(y, [a, b], lambda m: (to_a(m / 2, b), to_b(m / 2, a)))

    def attend(self, op: Op) -> Step:
        """softmax(Q K^T / sqrt(d)) V as one: a half to V, and of the other half a half each to Q and K.

        A factor that does not depend on the image gets nothing, and the other one all.
        """
        q, k, v = (op.argument(i, name) for i, name in enumerate(("query", "key", "value")))
        if not all(any(t is u for u in (q, k, v)) for t in op.operands):
            raise op.run.refuse(op, "its mask depends on the image")
        if op.argument(4, "dropout_p", 0.0) > 0:
            raise op.run.refuse(op, "it is in training mode; call model.eval()")
        by_q, by_k, by_v = (op.depends(t) for t in (q, k, v))
        if self.attention == "values" and by_v:
            by_q = by_k = False
        weights = (0.5 if by_v else 1.0) * (0.5 if by_q and by_k else 1.0)
        shares = (weights * by_q, weights * by_k, (0.5 if by_q or by_k else 1.0) * by_v)
        chosen = [i for i, share in enumerate(shares) if share > 0]
        rest = {name: value for name, value in op.kwargs.items() if name not in ("query", "key", "value")}

        def attention(*leaves: Tensor) -> Tensor:
            factors = [q, k, v]
            for i, leaf in zip(chosen, leaves, strict=True):
                factors[i] = leaf
            return op.func(*factors, *op.args[3:], **rest)

        inputs = [(q, k, v)[i] for i in chosen]
        y, pull = pullbacks(attention, *inputs)
        return Step(y, inputs, lambda m: tuple(s * shares[i] for s, i in zip(pull(m), chosen, strict=True)))

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        m = explain(model, x, target, self.rules(), self.space, torch.ones_like, fitted.chunk)
        return model.enter(x.detach(), self.space) * m
