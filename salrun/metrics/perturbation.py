"""The perturbation engine: rank the pixels once, then show the model every step of the curve in bounded batches.

With r(px) the rank of a pixel, step k of a curve is `where(r < n_k, finish, start)`: one comparison on the device, no
scatter and no host copy per step. AOPC, faithfulness, insertion, deletion, pixel flipping and monotonicity differ
only in `start`, `finish`, the ranks and the counts n_k. Points live in the network's own input space, so 0 is the
mean colour of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from salrun.metrics.common import as_plane, settle, wide
from salrun.models.classifier import Classifier, check_classes, pick
from salrun.progress import passed
from salrun.rng import Draws
from salrun.types import NAN_MAP, OK, UNDEFINED, Scene, Score

Ties = Literal["random", "raster", "raster_reversed"]
Output = Literal["probability", "max_probability", "logit", "correct"]
Substrate = Literal["blur", "grey", "black", "random_rgb", "uniform", "image_mean"]

GROUPS = 28  # RISE's batch evaluation: 224*8 of 224*224 pixels per step
BATCH, BATCH_ELEMENTS = 256, 1 << 22  # where no chunk is given: images, and numbers in them (27 of 3x224x224)


def pixel_rank(plane: Tensor, rng: Draws, ties: Ties, ascending: bool, owner: str) -> Tensor:
    """(B, P) int32: the place of each pixel in the order of decreasing (or increasing) saliency.

    Tied pixels come in a random order that belongs to the image, or in raster order from the top left or from the
    bottom right (what numpy's ascending stable sort and a flip give).
    """
    pixels = as_plane(plane, owner).flatten(1)
    n = pixels.shape[1]
    place = torch.arange(n, device=pixels.device).expand_as(pixels)
    before = rng.permutation(n, "ties").to(pixels.device) if ties == "random" else place
    if ties == "raster_reversed":
        before = place.flip(1)
    order = pixels.gather(1, before).argsort(dim=1, descending=not ascending, stable=True)
    pixel = before.gather(1, order)
    return torch.empty_like(pixel).scatter_(1, pixel, place).to(plane.device, torch.int32)


def shared_rank(plane: Tensor, scene: Scene, ties: Ties, ascending: bool, owner: str) -> Tensor:
    """`pixel_rank`, once for all the metrics of a scene that ask for the same order of the same plane."""
    name = f"rank/{ties}/{ascending}"
    return scene.once(name, plane, lambda: pixel_rank(plane, scene.rng, ties, ascending, owner))


def batch_size(x: Tensor, chunk: int | None) -> int:
    """How many images one forward pass may hold."""
    return chunk or max(1, min(BATCH, BATCH_ELEMENTS // math.prod(x.shape[1:])))


def read(logits: Tensor, target: Tensor, output: Output) -> Tensor:
    """(n,) float64: what is plotted against the number of pixels; `correct`: 1 where the class is the top one."""
    logits = wide(logits)
    target = target.to(logits.device)
    if output == "logit":
        return pick(logits, target)
    check_classes(logits)
    if output == "correct":
        return torch.where(logits.isnan().any(1), torch.nan, wide(logits.argmax(1) == target))
    log_p = logits.log_softmax(1)
    return (log_p.amax(1) if output == "max_probability" else pick(log_p, target)).exp()


@torch.no_grad()
def curve(
    model: Classifier,
    start: Tensor,
    finish: Tensor,
    rank: Tensor,
    until: Tensor,
    target: Tensor,
    since: Tensor | None = None,
    output: Output = "probability",
    chunk: int | None = None,
) -> Tensor:
    """f(x_k) for k = 1..K, (B, K) float64: x_k is `finish` at pixels with since[k] <= rank < until[k], else `start`.

    `start`, `finish`: (B, C, H, W) in norm space; `rank`: (B, P); `until`, `since`: (K,) counts, `since` 0 if absent.
    The B x K images are made and shown `chunk` at a time. With n orders of every image, `rank` (n B, P), order by
    order, the result is (n B, K).
    """
    begin, end = start.flatten(2), finish.expand_as(start).flatten(2)
    until = until.to(rank.dtype)  # a comparison with another type would widen every rank
    since = None if since is None else since.to(rank.dtype)

    def points(row: Tensor, step: Tensor) -> Tensor:
        image = row % start.shape[0]
        place = rank.index_select(0, row).unsqueeze(1)
        shown = place < until[step].view(-1, 1, 1)
        if since is not None:
            shown &= place >= since[step].view(-1, 1, 1)
        point = torch.where(shown, end.index_select(0, image), begin.index_select(0, image))
        return point.unflatten(2, start.shape[2:])

    return ask(model, points, (len(rank), len(until)), target, output, batch_size(start, chunk))


@torch.no_grad()
def ask(
    model: Classifier,
    points: Callable[[Tensor, Tensor], Tensor],
    shape: tuple[int, int],
    target: Tensor,
    output: Output,
    size: int,
) -> Tensor:
    """f of every image of a table of rows and steps, (R, K) float64, made and shown `size` at a time.

    `points(row, step)` makes some of them in norm space; row r is about image r modulo the number of targets.
    """
    rows, steps = shape
    values = [wide(torch.empty(0, device=target.device))]
    for first in range(0, rows * steps, size):
        index = torch.arange(first, min(first + size, rows * steps), device=target.device)
        row, step = index // steps, index % steps
        values.append(read(model.head(points(row, step), "norm"), target[row % len(target)], output))
        passed(len(index))
    return torch.cat(values).view(rows, steps)


@torch.no_grad()
def answer(name: str, point: Tensor, scene: Scene, output: Output) -> Tensor:
    """f(point), (B,) float64, of images that no map has a part in (`name` says which): once for all methods."""

    def compute() -> dict[str, Tensor]:
        size = batch_size(point, scene.chunk)
        parts = zip(point.split(size), scene.target.split(size), strict=True)
        return {"f": torch.cat([read(scene.model.head(p, "norm"), target, output) for p, target in parts])}

    return scene.shared(f"answer/{name}/{output}", compute)["f"]


def step_counts(pixels: int, step: int | None) -> Tensor:
    """(K,) 0, step, 2 step, .., P; the last step may be shorter. `None`: P / 28 rounded up."""
    step = step or -(-pixels // GROUPS)
    return torch.tensor([*range(0, pixels, step), pixels], device="cpu")


def area(curve: Tensor, counts: Tensor) -> Tensor:
    """(B,) area under the curve against the true fraction of pixels, by the trapezoid rule."""
    fraction = wide(counts).to(curve.device) / counts[-1].to(curve.device)
    return torch.trapezoid(curve, fraction, dim=1)


def blur_kernel(size: int = 11, sigma: float = 5.0, true_gaussian: bool = False) -> Tensor:
    """(size, size) float64, sum 1. RISE's kernel is a delta of that size filtered by scipy's Gaussian.

    scipy reflects at the border of the small delta image, which folds the tails back: the kernel is nearly a box
    (0.00774 to 0.00883 for 11, 5). `true_gaussian` cuts the Gaussian instead and scales it to sum 1.
    """
    if true_gaussian:
        distance = torch.arange(size, dtype=torch.float64, device="cpu") - size // 2
        line = torch.exp(-(distance**2) / (2 * sigma**2))
    else:
        from scipy.ndimage import gaussian_filter1d  # here: a run that blurs nothing does without it

        line = torch.from_numpy(gaussian_filter1d(np.eye(size)[size // 2], sigma))
    return torch.outer(line, line) / line.sum() ** 2


def blur(z: Tensor, kernel: Tensor) -> Tensor:
    """Each channel filtered by `kernel`, zeros beyond the border."""
    channels = z.shape[1]
    weight = kernel.to(device=z.device, dtype=z.dtype).expand(channels, 1, *kernel.shape)
    return F.conv2d(z, weight, padding=kernel.shape[-1] // 2, groups=channels)


def substrate(name: Substrate, scene: Scene, true_gaussian: bool = False, draw: int = 0) -> Tensor:
    """(B, C, H, W) in norm space: what stands where the image is not shown.

    blur: RISE's blurred image; grey: the mean colour; black; random_rgb: one colour per image and pixel, uniform in
    raw [0, 1]^C; uniform: U(0, 1) in norm space itself, as Quantus has it; image_mean: the image's own mean colour.
    What is random is the same for all methods; `draw` numbers independent repetitions.
    """
    x, model = scene.x, scene.model
    if name == "grey":
        return torch.zeros_like(x)
    if name == "black":
        return model.normalise(torch.zeros_like(x))
    if name == "image_mean":
        return model.normalise(x).mean((2, 3), keepdim=True).expand_as(x)
    if name == "blur":
        return blur(model.normalise(x), blur_kernel(true_gaussian=true_gaussian))
    drawn = scene.rng.uniform("random_rgb", x.shape[1:], start=draw * math.prod(x.shape[1:])).to(x.dtype)
    return model.normalise(drawn) if name == "random_rgb" else drawn


def flagged(value: Tensor, flags: Tensor, curve: Tensor | None = None, curve_x: Tensor | None = None) -> Score:
    """The score of maps flagged `flags`, with its curve; a NaN map has neither."""
    undefined = torch.where(value.isnan(), UNDEFINED, OK).to(torch.uint8)
    score = settle(Score(value, undefined, curve, curve_x), flags)
    if curve is None:
        return score
    return replace(score, curve=curve.masked_fill((score.flag == NAN_MAP)[:, None], torch.nan))
