"""DeepLIFT's multipliers of a softmax, and of attention as one operator."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from salrun.methods.backward import Op, Step, by_images, few_images, rows


def softmax(op: Op) -> Step:
    """p = exp(l), l_k = x_k - log S, S = sum_j exp(x_j): exp and log by rescaling, so m_x = m_l - sum(m_l) d(log S)/dx.

    exp(x) is p S. With log S and log S0 it is taken relative to the larger of both: no term is large however far input
    and reference are apart.
    """
    x, p, dim = op.x, op(), op.argument(1, "dim")

    def back(m: Tensor) -> tuple[Tensor]:
        x0, p0 = op.run.paired(op.run.reference(x)), op.run.paired(op.reference)
        parts = x, p, log_sum(x, p, dim), x0, p0, log_sum(x0, p0, dim), m
        if dim % x.dim() > 0:
            return (by_images(multiply, *parts),)
        multiply(value := torch.empty_like(x), *parts)
        return (value,)

    def multiply(
        value: Tensor, x: Tensor, p: Tensor, log_s: Tensor, x0: Tensor, p0: Tensor, log_s0: Tensor, m: Tensor
    ) -> None:
        d = (x - x0).nan_to_num_(nan=0.0)  # minus infinity less itself, of a mask; of an image that is NaN p is, too
        through_softmax(value.copy_(m), d, p, log_s, p0, log_s0, dim)

    return Step(p, [x], back)


def log_sum(x: Tensor, p: Tensor, dim: int) -> Tensor:
    """log S, off the largest: its p is exp(x - log S), and no less than one over their number."""
    return x.amax(dim, keepdim=True) - p.amax(dim, keepdim=True).log_()


def through_softmax(
    m: Tensor, d: Tensor, p: Tensor, log_s: Tensor, p0: Tensor, log_s0: Tensor, dim: int = -1
) -> Tensor:
    """m becomes the multipliers at x, those at p being there before, for d = x - x0, which is overwritten."""
    d_log_s, most = log_s - log_s0, torch.maximum(log_s, log_s0)
    s, s0 = (log_s - most).exp_(), (log_s0 - most).exp_()
    m.mul_(slope_of_exp(d - d_log_s, torch.maximum(p, p0)))
    shared = m.sum(dim, keepdim=True) / slope_of_exp(d_log_s, torch.maximum(s, s0))
    larger = p * s
    return m.addcmul_(slope_of_exp(d, torch.maximum(larger, p0 * s0, out=larger)), shared, value=-1)


def slope_of_exp(d: Tensor, most: Tensor) -> Tensor:
    """(e - e0) / d of e = exp(u), e0 = exp(u0), d = u - u0, `most` the larger of both; that where d = 0.

    It is most (1 - exp(-|d|)) / |d|, in which nothing cancels. Overwrites d and `most`.
    """
    d = d.abs_().clamp_(min=torch.finfo(d.dtype).tiny).neg_()
    return most.mul_(torch.expm1(d).div_(d))


class Weights(NamedTuple):
    """Attention of some images, (images, heads, queries, keys): scores, their softmax p, its log S."""

    scores: Tensor
    p: Tensor
    log_s: Tensor


def attention(op: Op) -> Step | None:
    """y = p V, p = softmax(c Q K^T): two products, each factor at the mean of the other one, and a softmax.

    What is plain is taken as one operator, a few images at a time, so that what belongs to them stays in the cache.
    """
    q, k, v = factors = [op.argument(i, name) for i, name in enumerate(("query", "key", "value"))]
    if not _plain(op, q, k, v):
        return None
    q0, k0, v0 = before = [op.run.reference(t) for t in factors]
    if not len(q0) == len(k0) == len(v0):
        return None
    scale = op.argument(6, "scale")
    c = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    y, weights = attend(q, k, v, c)
    op.reference, weights0 = op.run.beside.of(op, lambda: attend(q0, k0, v0, c))

    def back(m: Tensor) -> tuple[Tensor, ...]:
        beside = [op.run.paired(t) for t in (*before, *weights0)]
        results = tuple(torch.empty_like(t) for t in factors)
        for some in few_images(weights.p):
            multiply(*(rows(t, some) for t in (*results, m, *factors, *weights, *beside)))
        return results

    def multiply(
        m_q: Tensor, m_k: Tensor, m_v: Tensor, m: Tensor,
        q: Tensor, k: Tensor, v: Tensor, scores: Tensor, p: Tensor, log_s: Tensor,
        q0: Tensor, k0: Tensor, v0: Tensor, scores0: Tensor, p0: Tensor, log_s0: Tensor,
    ) -> None:  # fmt: skip
        half = m / 2
        m_v.copy_((p + p0).mT @ half)
        m_scores = through_softmax(half @ (v + v0).mT, scores - scores0, p, log_s, p0, log_s0)
        torch.mul(m_scores @ (k + k0), c / 2, out=m_q)
        torch.mul(m_scores.mT @ (q + q0), c / 2, out=m_k)

    return Step(y, factors, back)


def _plain(op: Op, q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether it is attention of (images, heads, tokens, width) without a mask, all of which depend on the images."""
    masked = op.argument(3, "attn_mask") is not None or op.argument(5, "is_causal", False)
    if masked or op.argument(4, "dropout_p", 0.0) > 0 or op.kwargs.get("enable_gqa", False):
        return False
    return len(op.operands) == 3 and q.dim() == 4 and q.shape[:2] == k.shape[:2] and q.shape[3] == v.shape[3]


def attend(q: Tensor, k: Tensor, v: Tensor, c: float) -> tuple[Tensor, Weights]:
    """softmax(c Q K^T) V, and what was on the way."""
    y, scores = torch.empty_like(q), q.new_empty(*q.shape[:-1], k.shape[-2])
    p, log_s = torch.empty_like(scores), torch.empty_like(scores[..., :1])
    for some in few_images(scores):
        torch.matmul(q[some] * c, k[some].mT, out=scores[some])
        torch.softmax(scores[some], -1, out=p[some])
        log_s[some] = log_sum(scores[some], p[some], -1)
        y[some] = p[some] @ v[some]
    return y, Weights(scores, p, log_s)
