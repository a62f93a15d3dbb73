"""Slow twins of a small vision transformer (salrun.models.vit): LRP, AttnLRP and DeepLIFT in plain loops over numbers.

A layer acts on tokens (T, E) of one image and has three faces: `value`, `share` (the relevance of its input, given that
of its output) and `multiply` (DeepLIFT's multipliers at its input, given those at its output and the reference).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from salrun.models.vit import Block, VisionTransformer

Tokens = np.ndarray


def away(z: float, epsilon: float) -> float:
    """z + epsilon sgn(z); where that is 0 it counts as 1e-7."""
    moved = z + math.copysign(epsilon, z)
    return moved if moved != 0 else 1e-7


@dataclass
class Dense:
    w: np.ndarray  # (outputs, inputs)
    b: np.ndarray

    def value(self, x: Tokens) -> Tokens:
        return np.array([[sum(row * token) + b for row, b in zip(self.w, self.b, strict=True)] for token in x])

    def share(self, x: Tokens, r: Tokens, epsilon: float, **rest: Any) -> Tokens:
        z, out = self.value(x), np.zeros_like(x)
        for t in range(len(x)):
            for j, row in enumerate(self.w):
                for i, w in enumerate(row):
                    out[t, i] += x[t, i] * w * r[t, j] / away(z[t, j], epsilon)
        return out

    def multiply(self, x: Tokens, x0: Tokens, m: Tokens) -> Tokens:
        return np.array([[sum(m[t] * self.w[:, i]) for i in range(x.shape[1])] for t in range(len(x))])


@dataclass
class Norm:
    gain: np.ndarray
    shift: np.ndarray
    eps: float

    def parts(self, token: np.ndarray) -> tuple[np.ndarray, float, float]:
        """The centred token, its variance plus eps, and one over the root of that."""
        c = token - sum(token) / len(token)
        v = sum(c * c) / len(c) + self.eps
        return c, v, v**-0.5

    def value(self, x: Tokens) -> Tokens:
        return np.array([self.gain * self.parts(token)[0] * self.parts(token)[2] + self.shift for token in x])

    def share(self, x: Tokens, r: Tokens, **rest: Any) -> Tokens:
        y, out, n = self.value(x), np.zeros_like(x), x.shape[1]
        for t, token in enumerate(x):
            rate = self.parts(token)[2]
            for j in range(n):
                for i in range(n):
                    w = ((i == j) - 1 / n) * self.gain[j] * rate
                    out[t, i] += token[i] * w * r[t, j] / away(y[t, j], 0)
        return out

    def multiply(self, x: Tokens, x0: Tokens, m: Tokens) -> Tokens:
        rows = []
        for token, token0, at in zip(x, x0, m * self.gain, strict=True):
            if (token == token0).all():  # the class token at first: it contributes nothing, whatever its multiplier
                rows.append(np.zeros_like(token))
                continue
            (c, v, r), (c0, v0, r0) = self.parts(token), self.parts(token0)
            m_v = sum(at * c0) * (r - r0) / (v - v0)
            m_c = at * r + m_v * (c * c - c0 * c0) / (c - c0) / len(c)
            rows.append(m_c - sum(m_c) / len(m_c))
        return np.array(rows)


@dataclass
class Gelu:
    def value(self, x: Tokens) -> Tokens:
        return np.array([[v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in token] for token in x])

    def share(self, x: Tokens, r: Tokens, **rest: Any) -> Tokens:
        return r

    def multiply(self, x: Tokens, x0: Tokens, m: Tokens) -> Tokens:
        return m * (self.value(x) - self.value(x0)) / (x - x0)


@dataclass
class Positions:
    """The class token put first, then a constant added to each token."""

    token: np.ndarray
    places: np.ndarray

    def value(self, x: Tokens) -> Tokens:
        return np.concatenate([self.token, x]) + self.places

    def share(self, x: Tokens, r: Tokens, **rest: Any) -> Tokens:
        return x * r[1:] / (x + self.places[1:])

    def multiply(self, x: Tokens, x0: Tokens, m: Tokens) -> Tokens:
        return m[1:]


@dataclass
class First:
    """The class token alone."""

    def value(self, x: Tokens) -> Tokens:
        return x[:1]

    def share(self, x: Tokens, r: Tokens, **rest: Any) -> Tokens:
        return np.concatenate([r, np.zeros_like(x[1:])])

    def multiply(self, x: Tokens, x0: Tokens, m: Tokens) -> Tokens:
        return self.share(x, m)


@dataclass
class Heads:
    """softmax(Q K^T / sqrt(d)) V of each head; the input has Q, K and V of all heads side by side."""

    heads: int

    def split(self, x: Tokens) -> list[list[Tokens]]:
        return [np.split(third, self.heads, 1) for third in np.split(x, 3, 1)]

    def scores(self, q: Tokens, k: Tokens) -> np.ndarray:
        return np.array([[sum(a * b) / math.sqrt(len(a)) for b in k] for a in q])

    def softmax(self, scores: np.ndarray) -> np.ndarray:
        return np.array([[math.exp(v) / sum(math.exp(u) for u in row) for v in row] for row in scores])

    def value(self, x: Tokens) -> Tokens:
        return np.concatenate(
            [self.softmax(self.scores(q, k)) @ v for q, k, v in zip(*self.split(x), strict=True)], axis=1
        )

    def share(self, x: Tokens, r: Tokens, epsilon: float, attention: str) -> Tokens:
        """`attention`: "all", or "values", where the softmax is a constant."""
        y, half = self.value(x), 0.5 if attention == "all" else 1.0
        found = [[np.zeros_like(part) for part in third] for third in self.split(x)]
        for h, (q, k, v) in enumerate(zip(*self.split(x), strict=True)):
            (n, d), s = q.shape, self.scores(q, k)
            p, r_p = self.softmax(s), np.zeros((n, n))
            for t in range(n):
                for u in range(n):
                    for e in range(d):
                        given = half * p[t, u] * v[u, e] * r[t, h * d + e] / away(y[t, h * d + e], epsilon)
                        found[2][h][u, e] += given
                        r_p[t, u] += given
            for t in range(n if attention == "all" else 0):
                for u in range(n):
                    r_s = s[t, u] * (r_p[t, u] - p[t, u] * sum(r_p[t]))
                    for e in range(d):
                        given = 0.5 * q[t, e] * k[u, e] / math.sqrt(d) * r_s / away(s[t, u], 0)
                        found[0][h][t, e] += given
                        found[1][h][u, e] += given
        return np.concatenate([part for third in found for part in third], axis=1)

    def multiply(self, x: Tokens, x0: Tokens, m: Tokens) -> Tokens:
        found = [[np.zeros_like(part) for part in third] for third in self.split(x)]
        for h, (now, then) in enumerate(
            zip(zip(*self.split(x), strict=True), zip(*self.split(x0), strict=True), strict=True)
        ):
            (q, k, v), (q0, k0, v0), (n, d) = now, then, now[0].shape
            s, s0 = self.scores(q, k), self.scores(q0, k0)
            p, p0 = self.softmax(s), self.softmax(s0)
            m_y = m[:, h * d : (h + 1) * d]
            for t in range(n):
                m_p = [sum(m_y[t] * (v[u] + v0[u])) / 2 for u in range(n)]
                whole, whole0 = (sum(math.exp(w) for w in row) for row in (s[t], s0[t]))
                m_log = [m_p[u] * (p[t, u] - p0[t, u]) / math.log(p[t, u] / p0[t, u]) for u in range(n)]
                m_whole = -sum(m_log) * math.log(whole / whole0) / (whole - whole0)
                for u in range(n):
                    step = s[t, u] - s0[t, u]  # 0 between class tokens of the first block
                    rise = (math.exp(s[t, u]) - math.exp(s0[t, u])) / step if step else math.exp(s[t, u])
                    m_s = (m_log[u] + m_whole * rise) / math.sqrt(d)
                    found[0][h][t] += m_s * (k[u] + k0[u]) / 2
                    found[1][h][u] += m_s * (q[t] + q0[t]) / 2
                    found[2][h][u] += m_y[t] * (p[t, u] + p0[t, u]) / 2
        return np.concatenate([part for third in found for part in third], axis=1)


@dataclass
class Chain:
    layers: Sequence[Any]

    def values(self, x: Tokens) -> list[Tokens]:
        found = [x]
        for layer in self.layers:
            found.append(layer.value(found[-1]))
        return found

    def value(self, x: Tokens) -> Tokens:
        return self.values(x)[-1]

    def share(self, x: Tokens, r: Tokens, **rules: Any) -> Tokens:
        for layer, v in reversed(list(zip(self.layers, self.values(x), strict=False))):
            r = layer.share(v, r, **rules)
        return r

    def multiply(self, x: Tokens, x0: Tokens, m: Tokens) -> Tokens:
        for layer, v, v0 in reversed(list(zip(self.layers, self.values(x), self.values(x0), strict=False))):
            m = layer.multiply(v, v0, m)
        return m


class Residual(Chain):
    """x + the chain's value."""

    def value(self, x: Tokens) -> Tokens:
        return x + super().value(x)

    def share(self, x: Tokens, r: Tokens, **rules: Any) -> Tokens:
        branch = super().value(x)
        return x * r / (x + branch) + super().share(x, branch * r / (x + branch), **rules)

    def multiply(self, x: Tokens, x0: Tokens, m: Tokens) -> Tokens:
        return m + super().multiply(x, x0, m)


def twin(net: VisionTransformer) -> Chain:
    """The network on patches (T, 3 * side * side): no stem."""
    dense = lambda layer: Dense(layer.weight.detach().flatten(1).numpy(), layer.bias.detach().numpy())
    norm = lambda layer: Norm(layer.weight.detach().numpy(), layer.bias.detach().numpy(), layer.eps)

    def block(b: Block) -> list[Chain]:
        mixing = [norm(b.norm1), dense(b.attention.qkv), Heads(b.attention.heads), dense(b.attention.project)]
        return [Residual(mixing), Residual([norm(b.norm2), dense(b.mlp.dense1), Gelu(), dense(b.mlp.dense2)])]

    places = Positions(net.class_token[0].detach().numpy(), net.positions[0].detach().numpy())
    blocks = [part for b in net.blocks for part in block(b)]
    return Chain([dense(net.patches), places, *blocks, First(), norm(net.norm), dense(net.output)])


def patches(image: np.ndarray, side: int) -> Tokens:
    """(C, H, W) cut into squares, row by row."""
    c, h, w = image.shape
    return image.reshape(c, h // side, side, w // side, side).transpose(1, 3, 0, 2, 4).reshape(-1, c * side * side)
