"""Noisy linear imputation (Rong et al. 2022): what a removed pixel would be by its neighbours.

A removed pixel is the weighted mean of its neighbours, 1/6 for each of the four beside it and 1/12 for each of the four
across, the weights of those inside the image scaled to sum 1. With all removed pixels unknown that is a linear system
per image, a graph's Laplacian on the removed pixels: symmetric, and definite where any pixel is left. All systems are
solved together by conjugate gradients; one multigrid cycle (Galerkin on blocks of 2 x 2, damped Jacobi) preconditions
them, so that the number of steps does not grow with the hole and none has to wait for another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Each pair of neighbours once: (rows, columns) to the second of them, and the weight.
LINKS = (((0, 1), 1 / 6), ((1, 0), 1 / 6), ((1, 1), 1 / 12), ((1, -1), 1 / 12))
DAMPING, OVERCORRECTION = 0.9, 1.7  # Jacobi's; constant interpolation underestimates the coarse correction
SMALL = 16  # pixels of the coarsest grid, whose system is inverted


def _pair(t: Tensor, down: int, right: int) -> tuple[Tensor, Tensor]:
    """The planes' pixels that have such a neighbour, and those neighbours, as views."""
    height, width = t.shape[-2:]
    first = t[..., : height - down, max(0, -right) : width - max(0, right)]
    return first, t[..., down:, max(0, right) : width - max(0, -right)]


@dataclass(frozen=True)
class Laplacian:
    """Links between the unknown pixels of a grid, and the weight of each pixel's links to known ones."""

    links: tuple[Tensor, ...]  # by LINKS, each (N, 1, h, w) of the pixels that have such a neighbour
    outside: Tensor  # (N, 1, H, W)
    hole: Tensor | None = None  # (N, 1, H, W), where all links are between its pixels, by their weights

    @classmethod
    def of_hole(cls, hole: Tensor) -> Laplacian:
        """The system of the pixels where `hole` (N, 1, H, W) is 1."""
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

    def product(self, diagonal: Tensor, v: Tensor) -> Tensor:
        """Of v that is 0 at known pixels."""
        if self.hole is not None:
            return (diagonal * v).addcmul_(self.hole, around(v).sub_(v), value=-1 / 3)
        result = diagonal * v
        for (way, _), link in zip(LINKS, self.links, strict=True):
            first, second = _pair(v, *way)
            for end, other in zip(_pair(result, *way), (second, first), strict=True):
                end.addcmul_(link, other, value=-1)
        return result

    def coarser(self) -> Laplacian:
        """The same for blocks of 2 x 2 pixels that have one value each: links between two blocks add up."""
        height, width = self.outside.shape[-2:]
        rows, columns = -(-height // 2), -(-width // 2)
        coarse = self.outside.new_zeros(len(self.outside), 1, rows, columns)
        planes = {way: torch.zeros_like(coarse) for way, _ in LINKS}
        for (way, _), link in zip(LINKS, self.links, strict=True):
            left = max(0, -way[1])
            for odd_row in (0, 1):
                for odd_column in (0, 1):
                    some = link[..., odd_row::2, (odd_column - left) % 2 :: 2]
                    step = (odd_row + way[0]) // 2, (odd_column + way[1]) // 2
                    if step == (0, 0) or some.numel() == 0:
                        continue
                    start = (left + (odd_column - left) % 2) // 2
                    if step == (0, -1):  # seen from the block on the left
                        step, start = (0, 1), start - 1
                    planes[step][..., : some.shape[-2], start : start + some.shape[-1]] += some
        links = tuple(
            planes[way][..., : rows - way[0], max(0, -way[1]) : columns - max(0, way[1])].contiguous()
            for way, _ in LINKS
        )
        return Laplacian(links, blocks(self.outside))


def around(v: Tensor) -> Tensor:
    """Sums over 3 x 3 pixels, 1 in the middle, 1/2 beside it, 1/4 across: three times the weights of LINKS, and v."""
    for axis in (-2, -1):
        n = v.shape[axis] - 1
        total = v.clone()
        total.narrow(axis, 1, n).add_(v.narrow(axis, 0, n), alpha=0.5)
        total.narrow(axis, 0, n).add_(v.narrow(axis, 1, n), alpha=0.5)
        v = total
    return v


def blocks(t: Tensor) -> Tensor:
    """Sums over blocks of 2 x 2; a last row or column of odd sides is a block of its own."""
    rows = t[..., ::2, :].clone()
    rows[..., : t.shape[-2] // 2, :] += t[..., 1::2, :]
    total = rows[..., ::2].clone()
    total[..., : t.shape[-1] // 2] += rows[..., 1::2]
    return total


class Inverse:
    """Of a Laplacian on a small grid, as a matrix."""

    def __init__(self, laplacian: Laplacian) -> None:
        shape = laplacian.outside.shape[-2:]
        place = torch.arange(shape.numel(), device=laplacian.outside.device).view(1, 1, *shape)
        diagonal = laplacian.diagonal().flatten(1)
        nothing = laplacian.outside.flatten(1).sum(1, keepdim=True) == 0  # is known: any system does
        matrix = torch.diag_embed(torch.where(diagonal > 0, diagonal + nothing, 1))
        for (way, _), link in zip(LINKS, laplacian.links, strict=True):
            first, second = (end.flatten() for end in _pair(place, *way))
            matrix[:, first, second] = matrix[:, second, first] = -link.flatten(1)
        self.matrix = torch.linalg.inv(matrix)

    def __call__(self, b: Tensor) -> Tensor:
        return (b.flatten(2) @ self.matrix).view_as(b)


class Multigrid:
    """An approximate inverse of a Laplacian, itself symmetric: a sweep, the coarser grid, a sweep."""

    def __init__(self, laplacian: Laplacian) -> None:
        self.laplacian, self.diagonal = laplacian, laplacian.diagonal()
        self.unknown = self.diagonal > 0
        self.damped = torch.where(self.unknown, DAMPING / self.diagonal, 0)
        coarse = laplacian.coarser()
        small = coarse.outside[0].numel() <= SMALL
        self.coarser: Inverse | Multigrid = Inverse(coarse) if small else Multigrid(coarse)
        self.overcorrection = OVERCORRECTION * self.unknown.to(self.diagonal)

    def product(self, v: Tensor) -> Tensor:
        return self.laplacian.product(self.diagonal, v)

    def __call__(self, b: Tensor) -> Tensor:
        v = self.damped * b
        correction = self.coarser(blocks(b - self.product(v)))
        height, width = v.shape[-2:]
        fine = correction.repeat_interleave(2, -2).repeat_interleave(2, -1)[..., :height, :width]
        v.addcmul_(self.overcorrection, fine)
        return v.addcmul_(self.damped, b - self.product(v))


def imputed(x: Tensor, hole: Tensor, iterations: int) -> Tensor:
    """The images x (N, C, H, W) with the pixels of `hole` (N, 1, H, W) bool imputed.

    The steps are the same for all, without a look at the residual: no image waits for, or depends on, another.
    """
    missing = hole.to(x)
    known = torch.where(hole, 0, x)
    residual = (around(known) - known) * (missing / 3)
    inverse = Multigrid(Laplacian.of_hole(missing))
    direction = z = inverse(residual)
    size, v = _dot(residual, z), known
    for last in (number == iterations for number in range(1, iterations + 1)):
        image = inverse.product(direction)
        step = _ratio(size, _dot(direction, image))
        v = torch.addcmul(v, step, direction)
        if last:
            break
        residual = torch.addcmul(residual, step, image, value=-1)
        z = inverse(residual)
        before, size = size, _dot(residual, z)
        direction = torch.addcmul(z, _ratio(size, before), direction)
    return v


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((-2, -1), keepdim=True)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """0 where a system is solved exactly."""
    return torch.where(b == 0, 0, a / b)
