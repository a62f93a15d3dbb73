"""What every metric does the same way: widen, refuse what is not a plane, flag."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from salrun.errors import SalrunError
from salrun.types import DEGENERATE_MAP, NAN_MAP, OK, UNDEFINED, Score
from salrun.views import map_flags


def wide(values: Tensor) -> Tensor:
    """float64, on the CPU where the device has none."""
    return values.to("cpu" if values.device.type == "mps" else values.device, torch.float64)


def as_plane(plane: Tensor, owner: str) -> Tensor:
    """The plane (B, 1, H, W) as (B, H, W) float64."""
    if plane.dim() != 4 or plane.shape[1] != 1:
        raise SalrunError(
            f"{owner} reads a plane (B, 1, H, W), got shape {tuple(plane.shape)}; "
            f"give it a view of the attribution, e.g. sum, max_abs, minmax"
        )
    return wide(plane).squeeze(1)


def settle(score: Score, flags: Tensor) -> Score:
    """The score under the map's own flags: `nan_map` takes the value away, `degenerate_map` fills an `ok`."""
    flags = flags.to(score.flag.device)
    broken = flags == NAN_MAP
    silent = (flags == DEGENERATE_MAP) & (score.flag == OK)
    flag = score.flag.masked_fill(silent, DEGENERATE_MAP).masked_fill(broken, NAN_MAP)
    return replace(score, value=score.value.masked_fill(broken, torch.nan), flag=flag)


def settled(score: Score, raw: Tensor) -> Score:
    """What a metric returned, under the flags of the raw maps it was about; refused unless it is a Score for each.

    A value that is no finite number is NaN, and never `ok`.
    """
    flags = map_flags(raw)
    if not isinstance(score, Score) or not score.value.shape == score.flag.shape == flags.shape:
        got = f"values {tuple(score.value.shape)}" if isinstance(score, Score) else f"a {type(score).__name__}"
        raise SalrunError(f"a metric must return a Score, a value and a flag for each of {len(flags)} maps, got {got}")
    endless = score.value.isinf()
    score = replace(score, value=score.value.masked_fill(endless, torch.nan))
    return settle(undefined(score, score.value.isnan()), flags)


def undefined(score: Score, where: Tensor | None = None) -> Score:
    """The score, flagged `undefined` (there) unless something else is said of it already."""
    silent = score.flag == OK if where is None else (score.flag == OK) & where.to(score.flag.device)
    return replace(score, flag=score.flag.masked_fill(silent, UNDEFINED))


def scored(value: Tensor, plane: Tensor, *causes: tuple[int, Tensor]) -> Score:
    """A Score whose flag is the first cause that holds, else `undefined` where the value is NaN, else the map's own."""
    flag = torch.full(value.shape, OK, dtype=torch.uint8, device=value.device)
    flag = flag.masked_fill(value.isnan(), UNDEFINED)
    for code, holds in reversed(causes):
        flag = flag.masked_fill(holds, code)
    return settle(Score(value, flag), map_flags(plane))


def box_blur(plane: Tensor, size: int) -> Tensor:
    """(B, H, W) -> size x size mean filter, border reflected without repeating the edge (OpenCV's `blur`)."""
    if size == 1:
        return plane
    half = size // 2
    if half >= min(plane.shape[1:]):
        raise SalrunError(f"a {size} x {size} blur needs more than {half} pixels a side, got {tuple(plane.shape[1:])}")
    padded = F.pad(plane.unsqueeze(1), (half, half, half, half), mode="reflect")
    return F.avg_pool2d(padded, size, stride=1).squeeze(1)
