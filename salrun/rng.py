"""Counter-based random numbers: value = hash(seed, purpose, image id, index), the same on every device.

The hash is SplitMix64 (Steele, Lea, Flood 2014) in wrapping int64 arithmetic, so a number is a pure function of its
address: no generator state, no order of drawing, no batch. Integers and uniforms are bit-identical everywhere; normals
are Box-Muller in float64 (float32 where the device has no float64), equal to float32 rounding.
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
_BLOCK = 1 << 16


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch's is arithmetic)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of 64-bit words."""
    z = (z ^ _shift(z, 30)) * _signed(_MIX1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX2)
    return z ^ _shift(z, 31)


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
    return _shift(word, 40).to(torch.float32) * 2.0**-24


def to_integer(word: Tensor, n: int) -> Tensor:
    """{0, .., n-1}: floor(u n) of a 32-bit u; bias below n / 2^32."""
    return (_shift(word, 32) * n) >> 32


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
        """N(0, 1) float32: (B, *shape), or (*shape) where `shared`. Word k gives number k: no pairing over indices."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count, block = math.prod(shape), _BLOCK if shared else _BLOCK // max(1, len(self)) + 1
        if self.key.device.type == "cpu" and count > block:  # many passes over what stays in the cache: half the time
            parts = [self.normal(purpose, min(block, count - k), start + k, shared) for k in range(0, count, block)]
            return torch.cat(parts, dim=-1).unflatten(-1, shape)
        draw = self.shared_bits if shared else self.bits
        wide = torch.float32 if self.key.device.type == "mps" else torch.float64
        first = to_uniform(draw(purpose, shape, start), wide)
        second = to_uniform(draw(purpose + "/angle", shape, start), wide)
        radius = torch.sqrt(-2.0 * torch.log1p(-first))
        return (radius * torch.cos(2.0 * math.pi * second)).to(torch.float32)

    def permutation(self, n: int, purpose: str, shared: bool = False) -> Tensor:
        """A random order of 0..n-1: (B, n), or (n,) where `shared`."""
        word = self.shared_bits(purpose, n) if shared else self.bits(purpose, n)
        return torch.argsort(word, dim=-1, stable=True)


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for sequential work (initialisation of weights), seeded by name."""
    return torch.Generator(device=device).manual_seed(hash64(seed, purpose) & ((1 << 63) - 1))
