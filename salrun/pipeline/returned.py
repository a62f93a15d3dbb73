"""What a method or metric returned, looked at: maps and scores as tables and store take them, or a line about it."""

from __future__ import annotations

import re
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.types import FLAGS, Score

NAME = re.compile(r"[^\x00-\x1f\x7f]{0,120}")  # of a score: a cell of tables
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # that can be computed with


def check_cost(cost: Any, who: str, what: str) -> None:
    """Refuse a cost that is no number of passes or seconds: plans add it up."""
    if isinstance(cost, bool) or not isinstance(cost, Real) or not 0 <= float(cost) < float("inf"):
        raise SalrunError(f"{who} says that its {what} is {cost!r}; expected a number of at least 0")


def check_map(raw: Any, x: Tensor, name: str) -> Tensor:
    """The raw attribution of images `x`, without its graph."""
    expected = f"expected floats of shape {_shape(x)} or {_shape(x[:, :1])}"
    if not isinstance(raw, Tensor):
        raise SalrunError(f"method '{name}' returned a {type(raw).__name__}; {expected}")
    if raw.dtype not in FLOATS or raw.layout is not torch.strided or raw.is_nested or raw.device != x.device:
        kind = f"{_word(raw.dtype)} ({'nested' if raw.is_nested else _word(raw.layout)}, {raw.device})"
        raise SalrunError(f"method '{name}' returned {kind}; {expected} on {x.device}")
    alike = raw.dim() == 4 and raw.shape[0] == x.shape[0] and raw.shape[2:] == x.shape[2:]
    if not alike or raw.shape[1] not in (1, x.shape[1]):
        raise SalrunError(f"method '{name}' returned shape {_shape(raw)} for images {_shape(x)}; {expected}")
    return raw.detach()


def check_scores(scores: Any, name: str) -> dict[str, Score]:
    """The scores by name, without their graphs; what is none is refused. How many they are is checked with the maps."""
    named = scores if isinstance(scores, dict) else {"": scores}
    if not named or not all(isinstance(key, str) and isinstance(score, Score) for key, score in named.items()):
        kinds = ", ".join(f"{key!r}: {type(score).__name__}" for key, score in named.items())
        got = f"{{{kinds}}}" if isinstance(scores, dict) else f"a {type(scores).__name__}"
        raise SalrunError(f"metric '{name}' returned {got}; expected a Score, or a dictionary of them by name")
    for key, score in named.items():
        wrong = _complaint(score)
        if wrong:
            raise SalrunError(f"metric '{name}' returned a Score whose {wrong}")
        if not NAME.fullmatch(key):
            raise SalrunError(
                f"metric '{name}' returned a Score called {key!a}; expected at most 120 letters in a line"
            )
    return {key: _plain(score) for key, score in named.items()}


def _plain(score: Score) -> Score:
    curve, axis = (None if part is None else part.detach() for part in (score.curve, score.curve_x))
    return Score(score.value.detach(), score.flag, curve, axis)


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
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            return f"{part} is {_word(tensor.layout)} on {tensor.device}, not numbers in memory"
        if tensor.dtype is not torch.uint8 if part == "flag" else tensor.dtype not in FLOATS:
            return f"{part} is {_word(tensor.dtype)}, not {'uint8' if part == 'flag' else 'float'}"
    if score.curve is None and score.curve_x is not None:
        return "curve_x is the axis of no curve"
    if score.curve is not None:
        rows, axis = len(score.value), score.curve.shape[1:] if score.curve_x is None else score.curve_x.shape
        if score.curve.shape != (rows, *axis) or not score.curve.shape[1]:
            return f"curve has shape {_shape(score.curve)} for {rows} values and an axis of {axis[0]} points"
    if len(score.flag) and int(score.flag.max()) >= len(FLAGS):
        return f"flag is {int(score.flag.max())}; known: {', '.join(f'{k} {flag}' for k, flag in enumerate(FLAGS))}"
    return ""


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _word(kind: object) -> str:
    return str(kind).removeprefix("torch.")
