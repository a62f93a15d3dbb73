"""Tokens of a transformer and their places in the image.

A network of tokens has first those that are no patch (class, distillation, registers), then the patches row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

MOST = 8  # tokens before the patches: class, distillation, registers


def grid_of(tokens: int, size: Sequence[int], module: nn.Module) -> tuple[int, int] | None:
    """(h, w) of the patches among so many tokens of an image (H, W) in a network; None: unknown.

    The network's only convolution with a stride cuts the patches; 8 other tokens at most are left over. A pyramid of
    tokens halves that grid and leaves none over. Where several convolutions have strides, or none: the grid that is
    shaped like the image and leaves the fewest over.
    """
    strided = [m for m in module.modules() if isinstance(m, nn.Conv2d) and max(m.stride) > 1]
    if len(strided) != 1:
        return _like_image(tokens, *size)
    padding = (0, 0) if isinstance(strided[0].padding, str) else strided[0].padding
    sides = zip(size, padding, strided[0].kernel_size, strided[0].stride, strict=True)
    height, width = ((side + 2 * pad - kernel) // stride + 1 for side, pad, kernel, stride in sides)
    most = MOST
    while height * width > tokens and min(height, width) > 1:
        height, width, most = -(-height // 2), -(-width // 2), 0
    return (height, width) if 0 <= tokens - height * width <= most else None


def _like_image(tokens: int, height: int, width: int) -> tuple[int, int] | None:
    """h : w is H : W up to rounding; of all such grids that leave 0 to 8 tokens over, the one that leaves fewest."""
    grids = {(h, w) for h in range(1, height + 1) for w in (h * width // height, -(-h * width // height))}
    fitting = {tokens - h * w: (h, w) for h, w in sorted(grids) if 0 <= tokens - h * w <= MOST and w}
    return fitting[min(fitting)] if fitting else None


def patches(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, N, C) -> (B, C, h, w): the tokens of the patches, the last h w, in their places."""
    return tokens[:, tokens.shape[1] - grid[0] * grid[1] :].mT.unflatten(2, grid)
