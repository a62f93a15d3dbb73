"""Noisy linear imputation (Rong et al. 2022): what a removed pixel would be by its neighbours.

A removed pixel is the weighted mean of its neighbours, 1/6 for each of the four beside it and 1/12 for each of the four
across, the weights of those inside the image scaled to sum 1. With all removed pixels unknown that is a linear system
per image, a graph's Laplacian on the removed pixels: symmetric, and definite where any pixel is left. All systems are
solved together by conjugate gradients; one multigrid cycle (Galerkin on blocks of 2 x 2, damped Jacobi) preconditions
them, so that the number of steps does not grow with the hole and none has to wait for another.

Inside, planes are (C, H, W, N), the images last: whatever is cut from them stays long rows of memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Each pair of neighbours once: (rows, columns) to the second of them, and the weight.
LINKS = (((0, 1), 1 / 6), ((1, 0), 1 / 6), ((1, 1), 1 / 12), ((1, -1), 1 / 12))
DAMPING, OVERCORRECTION = 0.9, 1.7  # Jacobi's; constant interpolation underestimates the coarse correction
SMALL = 16  # pixels of the coarsest grid, whose system is inverted


def _pair(t: Tensor, down: int, right: int) -> tuple[Tensor, Tensor]:
    """The planes' pixels that have such a neighbour, and those neighbours, as views."""
    _, height, width, _ = t.shape
    first = t[:, : height - down, max(0, -right) : width - max(0, right)]
    return first, t[:, down:, max(0, right) : width - max(0, -right)]


@dataclass(frozen=True)
class Laplacian:
    """Links between the unknown pixels of a grid, and the weight of each pixel's links to known ones."""

    links: tuple[Tensor, ...]  # by LINKS, each (1, h, w, N) of the pixels that have such a neighbour
    outside: Tensor  # (1, H, W, N)
    hole: Tensor | None = None  # (1, H, W, N), where all links are between its pixels, by their weights

    @classmethod
    def of_hole(cls, hole: Tensor) -> Laplacian:
        """The system of the pixels where `hole` (1, H, W, N) is 1."""
        links, outside = [], torch.zeros_like(hole)
        for way, weight in LINKS:
            first, second = _pair(hole, *way)
            links.append(weight * first * second)
            for here, there in zip(_pair(outside, *way), (second, first), strict=True):
                here += weight * (1 - there)
        return cls(tuple(links), outside * hole, hole)

    def diagonal(self) -> Tensor:
        total = self.outside.clone()
        for (way, _), link in zip(LINKS, self.links, strict=True):
            for end in _pair(total, *way):
                end += link
        return total

    def linked(self, total: Tensor, v: Tensor, sign: int) -> Tensor:
        """In place, `total` plus or minus what the links bring of v, 0 at known pixels; of a hole v / 3 with it."""
        if self.hole is not None:
            return total.addcmul_(self.hole, around(v), value=sign / 12)
        for (way, _), link in zip(LINKS, self.links, strict=True):
            first, second = _pair(v, *way)
            for end, other in zip(_pair(total, *way), (second, first), strict=True):
                end.addcmul_(link, other, value=sign)
        return total

    def coarser(self) -> Laplacian:
        """The same for blocks of 2 x 2 pixels that have one value each: links between two blocks add up."""
        _, height, width, n = self.outside.shape
        rows, columns = -(-height // 2), -(-width // 2)
        planes = {way: self.outside.new_zeros(1, rows, columns, n) for way, _ in LINKS}
        for (way, _), link in zip(LINKS, self.links, strict=True):
            left = max(0, -way[1])
            for odd_row in (0, 1):
                for odd_column in (0, 1):
                    some = link[:, odd_row::2, (odd_column - left) % 2 :: 2]
                    step = (odd_row + way[0]) // 2, (odd_column + way[1]) // 2
                    if step == (0, 0) or some.numel() == 0:
                        continue
                    start = (left + (odd_column - left) % 2) // 2
                    if step == (0, -1):  # seen from the block on the left
                        step, start = (0, 1), start - 1
                    planes[step][:, : some.shape[1], start : start + some.shape[2]] += some
        links = tuple(
            planes[way][:, : rows - way[0], max(0, -way[1]) : columns - max(0, way[1])].contiguous() for way, _ in LINKS
        )
        return Laplacian(links, blocks(self.outside))


def around(v: Tensor) -> Tensor:
    """Sums over 3 x 3 pixels, 4 in the middle, 2 beside it, 1 across: twelve times the weights of LINKS, and 4 v."""
    for axis in (1, 2):  # pairs of neighbours, twice
        n = v.shape[axis]
        pairs = torch.cat([v.narrow(axis, 0, 1), v], axis)
        pairs.narrow(axis, 1, n - 1).add_(v.narrow(axis, 1, n - 1))
        v = pairs.narrow(axis, 0, n) + pairs.narrow(axis, 1, n)
    return v


def blocks(t: Tensor) -> Tensor:
    """Sums over blocks of 2 x 2; a last row or column of odd sides is a block of its own."""
    rows = t[:, ::2].clone()
    rows[:, : t.shape[1] // 2].add_(t[:, 1::2])
    total = rows[:, :, ::2].clone()
    total[:, :, : t.shape[2] // 2].add_(rows[:, :, 1::2])
    return total


class Inverse:
    """Of a Laplacian on a small grid, as a matrix."""

    def __init__(self, laplacian: Laplacian) -> None:
        outside, diagonal = laplacian.outside, laplacian.diagonal()
        place = torch.arange(outside[..., 0].numel(), device=outside.device).view(*outside.shape[:3], 1)
        nothing = outside.sum((1, 2), keepdim=True) == 0  # is known: any system does
        matrix = torch.diag_embed(torch.where(diagonal > 0, diagonal + nothing, 1).flatten(0, 2).T)
        for (way, _), link in zip(LINKS, laplacian.links, strict=True):
            first, second = (end.flatten() for end in _pair(place, *way))
            matrix[:, first, second] = matrix[:, second, first] = -link.flatten(0, 2).T
        self.matrix = torch.linalg.inv(matrix).permute(1, 2, 0).contiguous()

    def __call__(self, b: Tensor) -> Tensor:
        return (self.matrix * b.flatten(1, 2).unsqueeze(2)).sum(1).view_as(b)


class Multigrid:
    """An approximate inverse of a Laplacian, itself symmetric: a sweep, the coarser grid, a sweep."""

    def __init__(self, laplacian: Laplacian) -> None:
        self.laplacian, diagonal = laplacian, laplacian.diagonal()
        self.middle = diagonal if laplacian.hole is None else diagonal + laplacian.hole / 3
        self.damped = torch.where(diagonal > 0, DAMPING / diagonal, 0)
        coarse = laplacian.coarser()
        small = coarse.outside[..., 0].numel() <= SMALL
        self.coarser: Inverse | Multigrid = Inverse(coarse) if small else Multigrid(coarse)
        self.overcorrection = torch.where(diagonal > 0, OVERCORRECTION, 0).to(diagonal)

    def product(self, v: Tensor) -> Tensor:
        return self.laplacian.linked(self.middle * v, v, -1)

    def residual(self, b: Tensor, v: Tensor) -> Tensor:
        return self.laplacian.linked(torch.addcmul(b, self.middle, v, value=-1), v, 1)

    def __call__(self, b: Tensor) -> Tensor:
        v = self.damped * b
        correction = self.coarser(blocks(self.residual(b, v)))
        _, height, width, _ = v.shape
        fine = correction.repeat_interleave(2, 2).repeat_interleave(2, 1)[:, :height, :width]
        v.addcmul_(self.overcorrection, fine)
        return v.addcmul_(self.damped, self.residual(b, v))


def steps_of(size: int) -> int:
    """Steps that bring images of so many pixels a side within 0.001 where nine tenths of them are removed."""
    return 2 + math.ceil(math.log2(max(2, size)))


def imputed(x: Tensor, hole: Tensor, iterations: int) -> Tensor:
    """The images x (N, C, H, W) with the pixels of `hole` (N, 1, H, W) bool imputed.

    The steps are the same for all, without a look at the residual: no image waits for, or depends on, another.
    """
    missing = hole.permute(1, 2, 3, 0).to(x, memory_format=torch.contiguous_format)
    v = torch.where(hole, 0, x).permute(1, 2, 3, 0).contiguous()
    residual = around(v).mul_(missing / 12)  # v itself is 0 there
    inverse = Multigrid(Laplacian.of_hole(missing))
    direction = inverse(residual)
    size = _dot(residual, direction)
    for last in (number == iterations for number in range(1, iterations + 1)):
        image = inverse.product(direction)
        step = _ratio(size, _dot(direction, image))
        v.addcmul_(step, direction)
        if last:
            break
        z = inverse(residual.addcmul_(step, image, value=-1))
        before, size = size, _dot(residual, z)
        direction = z.addcmul_(_ratio(size, before), direction)
    return v.permute(3, 0, 1, 2).contiguous()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2), keepdim=True)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """0 where a system is solved exactly."""
    return torch.where(b == 0, 0, a / b)
