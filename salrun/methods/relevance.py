"""Layer-wise relevance rules: how the relevance R of a layer's outputs is shared out among its inputs.

Notation: layer input x_i, weight w_ij, bias b_j, z_j = sum_i x_i w_ij + b_j; v+ = max(v, 0), v- = min(v, 0).
p / q stands for `safe_div`. A rule for a layer takes (layer, x, z) and returns the way back R_j -> R_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from salrun.methods.backward import Affine, Op, Step, batch_norm_parts, layer_norm_parts, pullback

Back = Callable[[Tensor], Tensor]
Divide = Callable[[Tensor, Tensor], Tensor]
Bias = Literal["split", "library", "none"]
TINY = 1e-7  # iNNvestigate's stabiliser


def safe_div(p: Tensor, q: Tensor) -> Tensor:
    """p / q, where q = 0 counts as 1e-7: the stabiliser acts at exact zero only."""
    moved = torch.eq(q, 0, out=torch.empty_like(q))  # 1 where q = 0; in place: a third of the time of masked_fill
    torch.add(q, moved, alpha=TINY, out=moved)
    return torch.div(p, moved, out=moved) if p.shape == q.shape else p / moved


def z_rule(layer: Affine, x: Tensor, z: Tensor) -> Back:
    """R_i = x_i sum_j w_ij R_j / z_j. The bias is in z_j: it absorbs its share."""
    return lambda r: layer.pull(safe_div(r, z), x).mul_(x)


def epsilon_div(p: Tensor, q: Tensor, epsilon: float) -> Tensor:
    """p / (q + epsilon sgn(q)), sgn(0) = 1, for p and q of one shape."""
    moved = torch.copysign(q.new_full((), epsilon), q).add_(q)
    return torch.div(p, moved, out=moved)


def epsilon_rule(layer: Affine, x: Tensor, z: Tensor, epsilon: float) -> Back:
    """R_i = x_i sum_j w_ij R_j / (z_j + epsilon sgn(z_j)), sgn(0) = 1."""
    return lambda r: layer.pull(epsilon_div(r, z, epsilon), x).mul_(x)


def alpha_beta_rule(
    layer: Affine, x: Tensor, alpha: float, beta: float, bias: Bias = "split", positive: bool = False
) -> Back:
    """R_i = sum_j (alpha (x_i w_ij)+ / Z+_j - beta (x_i w_ij)- / Z-_j) R_j.

    Z+_j = sum_i (x_i w_ij)+ + b+_j and Z-_j likewise ("split"); with b_j whole in both as iNNvestigate has it
    ("library": Z+ may then vanish or change sign); or without bias ("none"). `positive`: x has no negative entries.
    """

    def share(sign: int, r: Tensor) -> Tensor:
        """sum_j (x_i w_ij)+ R_j / Z+_j for sign = 1, the same with - for sign = -1."""
        up, down = part(layer.weight, sign), part(layer.weight, -sign)
        b = None if bias == "none" else layer.bias
        if bias == "split" and b is not None:
            b = part(b, sign)
        if positive:
            return layer.transpose(safe_div(r, layer(x, up, b)), up, x).mul_(x)
        above, below = part(x, 1), part(x, -1)
        s = safe_div(r, layer(above, up, b) + layer(below, down))
        return layer.transpose(s, up, x).mul_(above).add_(layer.transpose(s, down, x).mul_(below))

    if beta == 0:
        return lambda r: share(1, r).mul_(alpha)
    return lambda r: share(1, r).mul_(alpha).sub_(share(-1, r), alpha=beta)


def spread_rule(layer: Affine, x: Tensor, share: Tensor) -> Back:
    """R_i = sum_j s_ij / (sum_i s_ij) R_j, whatever the input: s = 1 is the flat rule, s = w^2 the w^2 rule."""
    total = layer(torch.ones_like(x[:1]), share)
    return lambda r: layer.transpose(safe_div(r, total), share, x)


def bounded_rule(layer: Affine, x: Tensor, low: Tensor, high: Tensor) -> Back:
    """R_i = sum_j q_ij R_j / sum_i q_ij, q_ij = x_i w_ij - low_i w+_ij - high_i w-_ij (z^B, for low <= x <= high)."""
    up, down = part(layer.weight, 1), part(layer.weight, -1)

    def back(r: Tensor) -> Tensor:
        # The bounds are the same for every image of the batch.
        s = safe_div(r, layer(x, layer.weight) - layer(low[:1], up) - layer(high[:1], down))
        return (x - low) * layer.transpose(s, up, x) + (x - high) * layer.transpose(s, down, x)

    return back


def part(t: Tensor, sign: int) -> Tensor:
    """t+ or t-."""
    return t.clamp(min=0) if sign > 0 else t.clamp(max=0)


def linear_z(op: Op) -> Step:
    """The z rule of a linear operator without a bias, such as average pooling, means and sums: R_i = x_i w_i R / y."""
    y, pull = pullback(lambda x: op.at(lambda _: x), op.x)
    return Step(y, [op.x], lambda r: (op.x * pull(safe_div(r, y)),))


def average_positive(op: Op) -> Step:
    """R_i = x+_i w_i R / sum_i x+_i w_i."""
    y, pull = pullback(lambda x: op.at(lambda _: x), part(op.x, 1))
    return Step(op(), [op.x], lambda r: (part(op.x, 1) * pull(safe_div(r, y)),))


def add_z(op: Op) -> Step:
    """The z rule of y = sum_k c_k t_k + const: R_k = c_k t_k R / y."""
    y = op()

    def back(r: Tensor) -> tuple[Tensor, ...]:
        s = safe_div(r, y)
        return tuple((s * t if c == 1 else c * t * s).sum_to_size(t.shape) for t, c in op.terms)

    return Step(y, [t for t, _ in op.terms], back)


def add_positive(op: Op) -> Step:
    """R_k = (c_k t_k)+ R / sum_k (c_k t_k)+; a lone term (plus a constant) keeps all."""
    y = op()

    def back(r: Tensor) -> tuple[Tensor, ...]:
        if len(op.terms) == 1:
            return (r.sum_to_size(op.x.shape),)
        shares = [(c * t).clamp(min=0) for t, c in op.terms]
        s = safe_div(r, shares[0] + shares[1])
        return tuple((share * s).sum_to_size(share.shape) for share in shares)

    return Step(y, [t for t, _ in op.terms], back)


def add_balanced(op: Op) -> Step:
    """The z rule, then R_k scaled to sum to |sum R_k| / (|sum R_1| + |sum R_2|) sum R over each image.

    Chefer et al. 2021, CVPR: where terms cancel neither may explode. A lone term (plus a constant) keeps all.
    """
    if len(op.terms) == 1:
        return Step(op(), [op.x], lambda r: (r.sum_to_size(op.x.shape),))
    step = add_z(op)

    def total(r: Tensor) -> Tensor:
        return r.flatten(1).sum(1).view(-1, *[1] * (r.dim() - 1))

    def back(r: Tensor) -> tuple[Tensor, ...]:
        parts = step.back(r)
        sums = [total(part) for part in parts]
        whole = safe_div(total(r), sums[0].abs() + sums[1].abs())
        return tuple(part * safe_div(whole * s.abs(), s) for part, s in zip(parts, sums, strict=True))

    return Step(step.value, step.inputs, back)


def scale_unchanged(op: Op) -> Step:
    """y = c x: all relevance to x, wherever c is not 0."""
    return Step(op(), [op.x], lambda r: (r.masked_fill(op.at(torch.ones_like) == 0, 0).sum_to_size(op.x.shape),))


def bilinear_z(op: Op, divide: Divide = safe_div) -> Step:
    """y = f(a, b), linear in each factor: R_a = a df/da (R / y), R_b likewise, for a share of R each.

    A gate (a sigmoid, a softmax) is taken for a constant, so that the other factor has all (Arras et al. 2017: "signal
    takes all"; of attention: Ali et al. 2022); otherwise both have half (Achtibat et al. 2024).
    """
    pair, y = op.bilinear, op()  # type: ignore[assignment]
    a, b, to_a, to_b = pair.a, pair.b, pair.to_a, pair.to_b  # type: ignore[union-attr]
    a_gates, b_gates = (bool(op.run.known(t).gate) for t in (a, b))
    if a_gates and not b_gates:
        return Step(y, [b], lambda r: (to_b(divide(r, y), a) * b,))
    if b_gates and not a_gates:
        return Step(y, [a], lambda r: (to_a(divide(r, y), b) * a,))
    return halves_z(op, divide)


def halves_z(op: Op, divide: Divide = safe_div) -> Step:
    """y = f(a, b), linear in each factor: R_a = a df/da (R / 2 y), R_b likewise."""
    pair, y = op.bilinear, op()
    a, b, to_a, to_b = pair.a, pair.b, pair.to_a, pair.to_b  # type: ignore[union-attr]

    def back(r: Tensor) -> tuple[Tensor, Tensor]:
        s = divide(r, y) / 2
        return to_a(s, b) * a, to_b(s, a) * b

    return Step(y, [a, b], back)


def factor_only(op: Op) -> Step:
    """A gate whose value may only be a factor, where it is handed nothing; anywhere else the operator is refused."""
    fault = op.run.refuse(op, "it has one as a factor only")

    def back(r: Tensor) -> tuple[Tensor]:
        raise fault

    return Step(op(), [op.x], back)


def standardised(op: Op) -> tuple[Tensor, Back]:
    """A layer norm's value y = gain (x - mean) / std + shift, and s -> J^T s, where std is taken for a constant."""
    x, (axes, gain, centred, eps) = op.x, layer_norm_parts(op)
    if centred:
        y, _, rate = torch.native_layer_norm(x, x.shape[-len(axes) :], gain, op.argument(3, "bias"), eps)
    else:
        y, rate = op(), torch.rsqrt(x.square().mean(axes, keepdim=True) + eps)

    def pull(s: Tensor) -> Tensor:
        s = s * rate if gain is None else (s * gain).mul_(rate)
        return s.sub_(s.mean(axes, keepdim=True)) if centred else s

    return y, pull


def layer_norm_z(op: Op) -> Step:
    """The z rule of a layer norm whose standard deviation is taken for a constant (Ali et al. 2022)."""
    y, pull = standardised(op)
    return Step(y, [op.x], lambda r: (pull(safe_div(r, y)).mul_(op.x),))


def batch_norm_z(op: Op) -> Step:
    """The z rule of y = a x + c per channel: R_x = a x R / y."""
    y = op()
    _, scale, _, _ = batch_norm_parts(op)
    return Step(y, [op.x], lambda r: (op.x * channels(scale, y) * safe_div(r, y),))


def batch_norm_library(op: Op) -> Step:
    """iNNvestigate's rule: R_x = x (y - beta) R / ((x - mean) y), the denominator moved away from 0 by 1e-7."""
    x, y = op.x, op()
    mean, _, _, beta = batch_norm_parts(op)

    def back(r: Tensor) -> tuple[Tensor]:
        q = (x - channels(mean, y)) * y
        return (x * (y - channels(beta, y)) * r / torch.where(q < 0, q - TINY, q + TINY),)

    return Step(y, [x], back)


def channels(v: Tensor, like: Tensor) -> Tensor:
    """A value per channel, ready to broadcast."""
    return v.view(1, -1, *[1] * (like.dim() - 2))
