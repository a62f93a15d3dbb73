"""Slow twins: the textbook formulas of LRP, Deep Taylor and DeepLIFT in plain loops over dense matrices.

A network is a list of layers `Dense(w, b, relu, kind)` acting on flat vectors; convolutions are unrolled into matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

Vector = np.ndarray


@dataclass
class Dense:
    w: np.ndarray  # (inputs, outputs)
    b: np.ndarray
    reach: np.ndarray  # (inputs, outputs): 1 where an input is in the field of an output
    relu: bool
    kind: str  # dense | conv


def unroll(modules: Sequence[nn.Module], shape: tuple[int, ...]) -> list[Dense]:
    """The layers of conv / linear / ReLU / flatten modules as matrices."""
    layers: list[Dense] = []
    for module in modules:
        if isinstance(module, nn.ReLU):
            layers[-1].relu = True
        elif isinstance(module, nn.Flatten):
            shape = (int(np.prod(shape)),)
        else:
            n = int(np.prod(shape))
            ones = type(module).__new__(type(module))
            ones.__dict__ = {**module.__dict__, "_parameters": {"weight": torch.ones_like(module.weight), "bias": None}}
            with torch.no_grad():
                basis = torch.eye(n, dtype=torch.float64).reshape(n, *shape)
                zero = module(torch.zeros(1, *shape, dtype=torch.float64))
                w, reach = module(basis) - zero, ones(basis)
            shape = tuple(zero.shape[1:])
            kind = "conv" if len(shape) == 3 else "dense"
            flat = [t.reshape(len(t), -1).numpy() for t in (w, zero, reach)]
            layers.append(Dense(flat[0], flat[1][0], flat[2], False, kind))
    return layers


class Pass(NamedTuple):
    inputs: list[Vector]
    outputs: list[Vector]  # before the ReLU


def forward(layers: list[Dense], x: Vector) -> Pass:
    inputs, outputs = [], []
    for layer in layers:
        inputs.append(x)
        outputs.append(x @ layer.w + layer.b)
        x = np.maximum(outputs[-1], 0) if layer.relu else outputs[-1]
    return Pass(inputs, outputs)


def safe_div(p: float, q: float) -> float:
    return p / (q if q != 0 else 1e-7)


def share(rule: str, layer: Dense, x: Vector, z: Vector, r: Vector, **opt) -> Vector:
    """Relevance of the layer's inputs."""
    n, m = layer.w.shape
    out = np.zeros(n)
    for j in range(m):
        c = [x[i] * layer.w[i, j] for i in range(n)]
        b = layer.b[j]
        if rule == "z":
            for i in range(n):
                out[i] += c[i] * safe_div(r[j], z[j])
        elif rule == "epsilon":
            for i in range(n):
                out[i] += c[i] * r[j] / (z[j] + opt["epsilon"] * (1 if z[j] >= 0 else -1))
        elif rule == "alpha_beta":
            above, below = {"library": (b, b), "split": (max(b, 0), min(b, 0)), "none": (0, 0)}[opt["bias"]]
            up = sum(max(v, 0) for v in c) + above
            down = sum(min(v, 0) for v in c) + below
            for i in range(n):
                out[i] += opt["alpha"] * max(c[i], 0) * safe_div(r[j], up)
                out[i] -= opt["beta"] * min(c[i], 0) * safe_div(r[j], down)
        elif rule in ("flat", "w2"):
            s = [layer.reach[i, j] if rule == "flat" else layer.w[i, j] ** 2 for i in range(n)]
            for i in range(n):
                out[i] += s[i] * safe_div(r[j], sum(s))
        elif rule == "bounded":
            low, high = opt["low"], opt["high"]
            q = [c[i] - low[i] * max(layer.w[i, j], 0) - high[i] * min(layer.w[i, j], 0) for i in range(n)]
            for i in range(n):
                out[i] += q[i] * safe_div(r[j], sum(q))
    return out


def relevance(layers: list[Dense], x: Vector, start: Vector, rules: Sequence[str], **opt) -> Vector:
    """`start` at the output handed down by `rules`, one per layer."""
    run, r = forward(layers, x), start
    for layer, v, z, rule in reversed(list(zip(layers, run.inputs, run.outputs, rules, strict=True))):
        r = share(rule, layer, v, z, r, **opt)
    return r


def deeplift(layers: list[Dense], x: Vector, x0: Vector, output: int, reveal_cancel: bool) -> Vector:
    """Contributions of x - x0 to an output, by the rules of the deeplift package 0.6.13."""
    run, ref = forward(layers, x), forward(layers, x0)
    m = np.zeros(layers[-1].w.shape[1])
    m[output] = 1.0
    relu = lambda v: max(v, 0.0)
    for k in reversed(range(len(layers))):
        layer, d = layers[k], run.inputs[k] - ref.inputs[k]
        n, width = layer.w.shape
        plus, minus = m.copy(), m.copy()
        for j in range(width if layer.relu else 0):
            z, z0 = run.outputs[k][j], ref.outputs[k][j]
            c = [d[i] * layer.w[i, j] for i in range(n)]
            if not reveal_cancel:
                slope = float(z0 > 0) if abs(z - z0) < 1e-7 else (relu(z) - relu(z0)) / (z - z0)
                plus[j], minus[j] = m[j] * slope, m[j] * slope
                continue
            up, down = (
                v if abs(v) >= 5e-8 else v + math.copysign(1e-7, v)  # before the effects are taken, as the package does
                for v in (math.fsum(v for v in c if v > 0), math.fsum(v for v in c if v < 0))
            )
            y_up = 0.5 * (relu(z0 + up) - relu(z0) + relu(z0 + up + down) - relu(z0 + down))
            y_down = 0.5 * (relu(z0 + down) - relu(z0) + relu(z0 + up + down) - relu(z0 + up))
            plus[j], minus[j] = m[j] * y_up / up, m[j] * y_down / down
        below = np.zeros(n)
        for i in range(n):
            for j in range(width):
                w = layer.w[i, j]
                rising = max(w, 0) * plus[j] + min(w, 0) * minus[j]
                falling = min(w, 0) * plus[j] + max(w, 0) * minus[j]
                below[i] += rising if d[i] > 0 else falling if d[i] < 0 else w * (plus[j] + minus[j]) / 2
        m = below
    return m * (x - x0)


def cross_max(x: np.ndarray, x0: np.ndarray, m: np.ndarray, size: int, stride: int) -> np.ndarray:
    """Multipliers of max-pooling (height, width), windows of `size` every `stride`."""
    given = np.zeros_like(x)
    for a in range(m.shape[0]):
        for b in range(m.shape[1]):
            window = (slice(a * stride, a * stride + size), slice(b * stride, b * stride + size))
            change = x[window].max() - x0[window].max()
            source = x[window] if change > 0 else x0[window]
            i, j = np.unravel_index(source.argmax(), source.shape)
            given[a * stride + i, b * stride + j] += m[a, b] * change
    d = x - x0
    return np.where(np.abs(d) < 1e-7, 0, given / np.where(d == 0, 1, d))
