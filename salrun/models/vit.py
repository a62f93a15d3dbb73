"""A small vision transformer (Dosovitskiy et al. 2021) for pictures of 32 to 64 pixels. No weights, no files.

The key of a trained model holds this module's source.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention of h heads: softmax(Q K^T / sqrt(d)) V of each head, joined and projected."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(x).view(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.project(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(dense1=nn.Linear(width, hidden), gelu=nn.GELU(), dense2=nn.Linear(hidden, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches as tokens, a class token before them, learned positions, pre-norm blocks; the class token decides.

    `stem`: widths of 3x3 convolutions with batch norm and ReLU before the patches, of which the last `halvings` have
    stride 2 (Xiao et al. 2021 train small transformers that way where pictures are few); empty: the patches are cut
    from the picture. `patch` is in pixels of the picture.
    """

    def __init__(
        self,
        size: int = 64,
        patch: int = 8,
        width: int = 96,
        depth: int = 4,
        heads: int = 4,
        hidden: int = 192,
        classes: int = 2,
        stem: Sequence[int] = (),
        halvings: int = 0,
    ) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        channels = 3
        for k, out in enumerate(stem, 1):
            stride = 2 if k > len(stem) - halvings else 1
            layers[f"conv{k}"] = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
            layers[f"norm{k}"] = nn.BatchNorm2d(out)
            layers[f"relu{k}"] = nn.ReLU()
            channels = out
        self.stem = nn.Sequential(layers)
        self.patches = nn.Conv2d(channels, width, patch >> halvings, patch >> halvings)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(self.stem(x)).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1) + self.positions
        return self.output(self.norm(self.blocks(x))[:, 0])
