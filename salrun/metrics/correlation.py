"""Correlations of paired rows, (B, N) with (B, N) -> (B,), in float64. A constant row has none: NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from salrun.metrics.common import wide


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """cov(a, b) / (std(a) std(b)) of each row."""
    a, b = wide(a), wide(b)
    # Rounding of the mean leaves a constant row with tiny residuals, so constancy is read off the values themselves.
    constant = (a.amax(1) == a.amin(1)) | (b.amax(1) == b.amin(1))
    return torch.where(constant, torch.nan, (_unit(a) * _unit(b)).sum(1))


def _unit(a: Tensor) -> Tensor:
    """Centred, of length 1; divided by the largest first, as squares of tiny values would underflow."""
    a = a - a.mean(1, keepdim=True)
    a = a / a.abs().amax(1, keepdim=True)
    return a / torch.linalg.vector_norm(a, dim=1, keepdim=True)


def average_ranks(a: Tensor) -> Tensor:
    """Ranks 1..N of each row, tied values sharing the mean of their ranks (scipy's `rankdata`)."""
    values, order = a.sort(dim=1, stable=True)
    position = torch.arange(1, a.shape[1] + 1, device=a.device).expand_as(a).contiguous()
    fresh = torch.ones_like(values, dtype=torch.bool)
    fresh[:, 1:] = values[:, 1:] != values[:, :-1]
    last = torch.ones_like(fresh)
    last[:, :-1] = fresh[:, 1:]
    n = a.shape[1] + 1
    # Each run of ties lies between its first and its last position.
    first_position = torch.where(fresh, position, 0).cummax(1).values
    last_position = torch.where(last, position, n).flip(1).cummin(1).values.flip(1)
    ranks = wide(first_position + last_position) / 2
    return torch.empty_like(ranks).scatter_(1, order.to(ranks.device), ranks)


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation of the average ranks."""
    return pearson(average_ranks(a), average_ranks(b))
