"""What a method or metric returned, looked at: maps and scores as tables and store take them, or a line about it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.types import FLAGS, Score


def check_map(raw: Any, x: Tensor, name: str) -> Tensor:
    """The raw attribution of images `x`, without its graph."""
    expected = f"expected floats of shape {_shape(x)} or {_shape(x[:, :1])}"
    if not isinstance(raw, Tensor):
        raise SalrunError(f"method '{name}' returned a {type(raw).__name__}; {expected}")
    alike = raw.dim() == 4 and raw.shape[0] == x.shape[0] and raw.shape[2:] == x.shape[2:]
    if not alike or raw.shape[1] not in (1, x.shape[1]):
        raise SalrunError(f"method '{name}' returned shape {_shape(raw)} for images {_shape(x)}; {expected}")
    if not raw.is_floating_point() or raw.layout is not torch.strided or raw.device != x.device:
        kind = f"{_word(raw.dtype)} ({_word(raw.layout)}, {raw.device})"
        raise SalrunError(f"method '{name}' returned {kind}; {expected} on {x.device}")
    return raw.detach()


def check_scores(scores: Any, name: str) -> None:
    """Refuse what is no Score or dictionary of them; how many there are is checked with the maps."""
    named = scores if isinstance(scores, dict) else {"": scores}
    if not named or not all(isinstance(key, str) and isinstance(score, Score) for key, score in named.items()):
        kinds = ", ".join(f"{key!r}: {type(score).__name__}" for key, score in named.items())
        got = f"{{{kinds}}}" if isinstance(scores, dict) else f"a {type(scores).__name__}"
        raise SalrunError(f"metric '{name}' returned {got}; expected a Score, or a dictionary of them by name")
    for score in named.values():
        wrong = _complaint(score)
        if wrong:
            raise SalrunError(f"metric '{name}' returned a Score whose {wrong}")


def _complaint(score: Score) -> str:
    parts = {
        "value": (score.value, 1),
        "flag": (score.flag, 1),
        "curve": (score.curve, 2),
        "curve_x": (score.curve_x, 1),
    }
    for part, (tensor, dimensions) in parts.items():
        if tensor is None and part in ("curve", "curve_x"):
            continue
        if not isinstance(tensor, Tensor):
            return f"{part} is a {type(tensor).__name__}, not a tensor"
        if tensor.dim() != dimensions:
            return f"{part} has shape {_shape(tensor)}, not {dimensions} dimension{'s' if dimensions > 1 else ''}"
        if tensor.dtype is not torch.uint8 if part == "flag" else not tensor.is_floating_point():
            return f"{part} is {_word(tensor.dtype)}, not {'uint8' if part == 'flag' else 'float'}"
    if len(score.flag) and int(score.flag.max()) >= len(FLAGS):
        return f"flag is {int(score.flag.max())}; known: {', '.join(f'{k} {flag}' for k, flag in enumerate(FLAGS))}"
    return ""


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _word(kind: object) -> str:
    return str(kind).removeprefix("torch.")
