"""Views: named reductions of a raw attribution (B, C, H, W) to the plane (B, 1, H, W) that a metric reads.

Every view works image by image. `view("minmax")` looks one up; `view("max_abs|ranks")` chains them. A view that only
reshapes a plane (`ranks`, `matched_mean`) is preceded by `minmax` where the name does not say what by.

The views of the SMERF benchmark (Kim, Plumb, Talwalkar, ICML 2022) are the pictures its public code scores: colour map
and 256 levels included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from salrun.errors import SalrunError, unknown
from salrun.types import DEGENERATE_MAP, NAN_MAP, OK

Clip = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class NamedView:
    """A view with its description. `clip` = (low, high), one number per image, for the view that needs it."""

    name: str
    about: str
    function: Callable[..., Tensor]
    of_plane: bool = False  # reshapes a plane rather than reducing an attribution
    needs_clip: bool = False

    def __call__(self, raw: Tensor, clip: Clip | None = None) -> Tensor:
        if not self.needs_clip:
            return self.function(raw)
        if clip is None:
            raise SalrunError(f"view '{self.name}' needs clip=(low, high): the percentiles over the image's group")
        return self.function(raw, clip)


VIEWS: dict[str, NamedView] = {}


def _named(name: str, of_plane: bool = False, needs_clip: bool = False) -> Callable:
    """Register a view; the first line of its docstring is its description. Arithmetic is float64 where there is one."""

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrapped(raw: Tensor, *context: object) -> Tensor:
            dtype = torch.float32 if raw.device.type == "mps" else torch.float64
            return function(raw.to(dtype), *context).to(raw.dtype)

        about = (function.__doc__ or "").split("\n")[0]
        VIEWS[name] = NamedView(name, about, wrapped, of_plane, needs_clip)
        return function

    return register


def view(name: str) -> NamedView:
    """The view of that name; `a|b` is b of a."""
    parts = [part.strip() for part in name.split("|")]
    for part in parts:
        if part not in VIEWS:
            raise unknown("view", part, VIEWS)
    views = [VIEWS[part] for part in parts]
    if views[0].of_plane:
        views.insert(0, VIEWS["minmax"])
    if len(views) == 1:
        return views[0]
    head, *tail = views

    def chain(raw: Tensor, *context: object) -> Tensor:
        plane = head.function(raw, *context)
        for step in tail:
            plane = step(plane)
        return plane

    about = ", then ".join(step.about.rstrip(".") for step in views) + "."
    return NamedView(name, about, chain, needs_clip=head.needs_clip)


def constant(values: Tensor) -> Tensor:
    """(B,) bool: max - min <= 1e-12 max(1, |max|), i.e. nothing but rounding tells the image's values apart."""
    values = values.flatten(1)
    high, low = values.amax(1), values.amin(1)
    return high - low <= 1e-12 * high.abs().clamp(min=1.0)


def map_flags(raw: Tensor, plane: Tensor | None = None) -> Tensor:
    """(B,) uint8: `nan_map` where the attribution has a value that is not finite, `degenerate_map` where it, or the
    plane made of it, is constant."""
    flag = torch.full((raw.shape[0],), OK, dtype=torch.uint8, device=raw.device)
    flag = flag.masked_fill(constant(raw if plane is None else plane), DEGENERATE_MAP)
    return flag.masked_fill(~raw.isfinite().flatten(1).all(1), NAN_MAP)


def percentiles(values: Tensor, low: float = 1.0, high: float = 99.0) -> Clip:
    """Two percentiles of each row of (N, K), linearly interpolated."""
    values = values.sort(dim=1).values
    last = values.shape[1] - 1

    def at(q: float) -> Tensor:
        position = q / 100.0 * last
        below = int(position)
        return torch.lerp(values[:, below], values[:, min(below + 1, last)], position - below)

    return at(low), at(high)


def group_clip(raw: Tensor) -> Clip:
    """The clip of `bk_bucket` for the N images that make up one group: percentiles over all of them together."""
    low, high = percentiles(raw.reshape(1, -1))
    return low.expand(raw.shape[0]), high.expand(raw.shape[0])


def rescale(values: Tensor) -> Tensor:
    """(v - min) / (max - min) over all of an image's values; a constant image becomes zeros."""
    flat = values.flatten(1)
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    scaled = (flat - low) / (high - low)
    return scaled.masked_fill(constant(flat).unsqueeze(1), 0.0).view_as(values)


def _absmax_scaled(values: Tensor) -> Tensor:
    """v / max |v| over all of an image's values; an all-zero image stays zero."""
    largest = values.abs().flatten(1).amax(1).view(-1, 1, 1, 1)
    return values / largest.masked_fill(largest == 0, 1.0)


@_named("raw")
def _raw(raw: Tensor) -> Tensor:
    """A single-channel attribution as it is."""
    if raw.shape[1] != 1:
        raise SalrunError(
            f"view 'raw' takes a single-channel attribution, got {raw.shape[1]} channels; "
            f"choose a view that reduces them, e.g. sum, mean, max_abs, minmax"
        )
    return raw


@_named("sum")
def _sum(raw: Tensor) -> Tensor:
    """Signed sum over channels."""
    return raw.sum(1, keepdim=True)


@_named("abs_sum")
def _abs_sum(raw: Tensor) -> Tensor:
    """|sum over channels|, the text of the SMERF paper."""
    return _sum(raw).abs()


@_named("mean")
def _mean(raw: Tensor) -> Tensor:
    """Signed mean over channels."""
    return raw.mean(1, keepdim=True)


@_named("max_abs")
def _max_abs(raw: Tensor) -> Tensor:
    """Largest |a| over channels."""
    return raw.abs().amax(1, keepdim=True)


@_named("minmax")
def _minmax(raw: Tensor) -> Tensor:
    """Largest |a| over channels, then min-max to [0, 1] (constant: zeros)."""
    return rescale(_max_abs(raw))


@_named("minmax_text_signed")
def _minmax_text_signed(raw: Tensor) -> Tensor:
    """Min-max of the signed values over all channels, then the largest over channels."""
    return rescale(raw).amax(1, keepdim=True)


@_named("minmax_text_abs")
def _minmax_text_abs(raw: Tensor) -> Tensor:
    """Min-max of |a| over all channels, then the largest over channels."""
    return rescale(raw.abs()).amax(1, keepdim=True)


@_named("gray")
def _gray(raw: Tensor) -> Tensor:
    """SMERF, gradient and SmoothGrad: sum over channels of |a| over its maximum, in 256 grey levels."""
    return (255.0 * _absmax_scaled(raw.abs().sum(1, keepdim=True))).floor() / 255.0


@_named("bk_bucket", needs_clip=True)
def _bk_bucket(raw: Tensor, clip: Clip) -> Tensor:
    """SMERF as run, DeconvNet and guided backprop: `bk` with the percentiles of the image's whole bucket."""
    low, high = (bound.to(raw).view(-1, 1, 1, 1) for bound in clip)
    clipped = torch.minimum(torch.maximum(raw, low), high)
    return ((_absmax_scaled(clipped) + 1.0) / 2.0).amax(1, keepdim=True)


@_named("bk")
def _bk(raw: Tensor) -> Tensor:
    """SMERF, DeconvNet and guided backprop: clipped at percentiles 1 and 99, (v / max |v| + 1) / 2, channel maximum."""
    return _bk_bucket(raw, percentiles(raw.flatten(1)))


@cache
def _seismic_table(device: torch.device, dtype: torch.dtype) -> Tensor:
    """1 - mean(R, G, B) of matplotlib's 256 `seismic` colours."""
    from matplotlib import colormaps

    rgb = colormaps["seismic"](range(256))[:, :3]
    return torch.as_tensor(1.0 - rgb.mean(1), dtype=dtype, device=device)


@_named("seismic")
def _seismic(raw: Tensor) -> Tensor:
    """SMERF, Deep Taylor, input x gradient, IG, LRP, DeepLIFT: 1 - mean RGB of the signed sum in `seismic` colours."""
    level = 127.5 * (_absmax_scaled(_sum(raw)) + 1.0)
    colour = level.nan_to_num(0.0).floor().long()  # a NaN has no colour, and must stay one
    return torch.where(level.isnan(), level, _seismic_table(raw.device, raw.dtype)[colour])


@_named("cam")
def _cam(raw: Tensor) -> Tensor:
    """SMERF, Grad-CAM: the positive part over its maximum (nothing positive: zeros)."""
    return _absmax_scaled(_sum(raw).clamp(min=0.0))


@_named("shap")
def _shap(raw: Tensor) -> Tensor:
    """SMERF, DeepSHAP: min-max over all channels, then the largest over channels; zero is not 0."""
    return _minmax_text_signed(raw)


@_named("inverse")
def _inverse(raw: Tensor) -> Tensor:
    """SMERF, Random and Edge: 1 - mean over channels."""
    return 1.0 - _mean(raw)


@_named("ranks", of_plane=True)
def _ranks(plane: Tensor) -> Tensor:
    """Control: each pixel's rank / number of pixels, equal values sharing their average rank."""
    flat = plane.flatten(1).contiguous()
    ordered = flat.sort(dim=1).values
    below = torch.searchsorted(ordered, flat, right=False)
    not_above = torch.searchsorted(ordered, flat, right=True)
    ranks = (below + not_above + 1).to(flat.dtype) / (2 * flat.shape[1])
    missing = flat.isnan().any(1, keepdim=True)
    return ranks.masked_fill(missing, torch.nan).view_as(plane)


@_named("matched_mean", of_plane=True)
def _matched_mean(plane: Tensor) -> Tensor:
    """Control: stretched linearly from 0 (down) or from 1 (up) so that a plane in [0, 1] has mean 0.5.

    Order is kept and nothing leaves [0, 1]; a brighter map is m / (2 mean), a darker one 1 - (1 - m) / (2 (1 - mean)).
    """
    mean = plane.mean((2, 3), keepdim=True)
    return torch.where(mean > 0.5, plane * (0.5 / mean), 1.0 - (1.0 - plane) * (0.5 / (1.0 - mean)))
