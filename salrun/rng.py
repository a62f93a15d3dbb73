"""Counter-based random numbers: value = hash(seed, purpose, image id, index), the same on every device.

The hash is SplitMix64 (Steele, Lea, Flood 2014) in wrapping int64 arithmetic, so a number is a pure function of its
address: no generator state, no order of drawing, no batch. Integers and uniforms are bit-identical everywhere; normals
are Box-Muller in float32, equal to rounding.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_BLOCK = 1 << 17  # words that stay in a processor's cache
_PAIRS = 1 << 10  # words of a group of normals


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch's is arithmetic)."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of 64-bit words."""
    z = _shift(z, 30).bitwise_xor_(z).mul_(_signed(_MIX1))
    z = _shift(z, 27).bitwise_xor_(z).mul_(_signed(_MIX2))
    return _shift(z, 31).bitwise_xor_(z)


def hash64(*parts: object) -> int:
    """A signed 64-bit name for any tuple of printable things; stable over machines and Python versions."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True)


def bits(key: Tensor, count: int, start: int = 0) -> Tensor:
    """Words `start .. start+count` of the streams `key` (...,) -> (..., count) int64."""
    index = torch.arange(start + 1, start + 1 + count, dtype=torch.int64, device=key.device)
    return _mix(_mix(key).unsqueeze(-1) + index * _signed(_GOLDEN))


def to_uniform(word: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[0, 1) from the top 24 bits (float32) or 53 bits (float64)."""
    if dtype == torch.float64:
        return _shift(word, 11).to(torch.float64) * 2.0**-53
    return _shift(word, 40).to(torch.float32).mul_(2.0**-24)


def to_integer(word: Tensor, n: int) -> Tensor:
    """{0, .., n-1}: floor(u n) of a 32-bit u; bias below n / 2^32."""
    return (_shift(word, 32) * n) >> 32


def _box_muller(word: Tensor) -> Tensor:
    """N(0, 1) float32 of words (..., n) -> (..., 2 n): n cosines, then n sines; 24 bits a radius, 24 an angle."""
    radius = to_uniform(word).neg_().add_(1).log_().mul_(-2).sqrt_()
    angle = to_uniform(word << 24).mul_(2 * math.pi)
    return torch.cat((angle.cos().mul_(radius), angle.sin().mul_(radius)), dim=-1)


@dataclass(frozen=True)
class Draws:
    """The random numbers of some images: `key[b]` is image b's own, `seed` serves what all images share."""

    seed: int
    key: Tensor  # (B,) int64, a hash of each image's id

    @classmethod
    def of(cls, seed: int, ids: Sequence[str], device: torch.device | str = "cpu") -> Draws:
        return cls(seed, torch.tensor([hash64(i) for i in ids], dtype=torch.int64, device=device))

    def __len__(self) -> int:
        return int(self.key.shape[0])

    def __getitem__(self, index: slice | Tensor) -> Draws:
        """The draws of a part of the batch."""
        return Draws(self.seed, self.key[index])

    def bits(self, purpose: str, shape: Sequence[int] | int, start: int = 0) -> Tensor:
        """(B, *shape) int64 words; `start` skips that many words of each image's stream."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        stream = _mix(self.key) ^ hash64(self.seed, purpose)
        return bits(stream, math.prod(shape), start).reshape(-1, *shape)

    def shared_bits(self, purpose: str, shape: Sequence[int] | int, start: int = 0) -> Tensor:
        """(*shape) int64 words, the same for every image."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        stream = torch.tensor(hash64(self.seed, purpose, "shared"), dtype=torch.int64, device=self.key.device)
        return bits(stream, math.prod(shape), start).reshape(shape)

    def uniform(
        self,
        purpose: str,
        shape: Sequence[int] | int,
        start: int = 0,
        dtype: torch.dtype = torch.float32,
        shared: bool = False,
    ) -> Tensor:
        """[0, 1): (B, *shape), or (*shape) where `shared`."""
        draw = self.shared_bits if shared else self.bits
        return to_uniform(draw(purpose, shape, start), dtype)

    def integer(self, n: int, purpose: str, shape: Sequence[int] | int, start: int = 0, shared: bool = False) -> Tensor:
        """{0, .., n-1}: (B, *shape), or (*shape) where `shared`."""
        draw = self.shared_bits if shared else self.bits
        return to_integer(draw(purpose, shape, start), n)

    def normal(self, purpose: str, shape: Sequence[int] | int, start: int = 0, shared: bool = False) -> Tensor:
        """N(0, 1) float32: (B, *shape), or (*shape) where `shared`. Every 1024 words give the next 2048 numbers."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        draw, count, group = self.shared_bits if shared else self.bits, math.prod(shape), 2 * _PAIRS
        first, last = start // group, -(-(start + count) // group)
        at_once = last - first
        if self.key.device.type == "cpu":  # many passes over what stays in the cache: half the time
            at_once = min(at_once, max(1, _BLOCK // (_PAIRS * (1 if shared else max(1, len(self))))))
        parts = [
            _box_muller(draw(purpose, (min(at_once, last - k), _PAIRS), k * _PAIRS)).flatten(-2)
            for k in range(first, last, at_once)
        ]
        return torch.cat(parts, dim=-1)[..., start - first * group :][..., :count].unflatten(-1, shape)

    def permutation(self, n: int, purpose: str, shared: bool = False) -> Tensor:
        """A random order of 0..n-1: (B, n), or (n,) where `shared`."""
        word = self.shared_bits(purpose, n) if shared else self.bits(purpose, n)
        return torch.argsort(word, dim=-1, stable=True)


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for sequential work (initialisation of weights), seeded by name."""
    return torch.Generator(device=device).manual_seed(hash64(seed, purpose) & ((1 << 63) - 1))
