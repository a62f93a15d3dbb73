"""RISE against a plain loop over masks, a model whose map is known in closed form, and the statistics of its masks."""

from math import ceil

import pytest
import torch
from torch import nn
from torch.nn import functional

from salrun.errors import SalrunError
from salrun.methods.rise import RISE, draw_masks
from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import Fitted
from tests import toys

IDS = ("a", "b", "c")


def setting():
    """A model, three images and their classes."""
    return toys.classifier(toys.network((12, 16))), toys.images(3, (12, 16)), toys.targets(3)


def masks_by_loop(rng, n, cells, p1, height, width):
    """Enlarge by torch's own interpolation and crop, mask by mask."""
    cell = ceil(height / cells), ceil(width / cells)
    masks = []
    for i in range(n):
        grid = rng.uniform("rise/grid", (cells, cells), start=i * cells**2, shared=True) < p1
        size = [(cells + 1) * c for c in cell]
        large = functional.interpolate(grid[None, None].double(), size=size, mode="bilinear", align_corners=False)[0, 0]
        top = int(rng.integer(cell[0], "rise/shift_y", 1, start=i, shared=True))
        left = int(rng.integer(cell[1], "rise/shift_x", 1, start=i, shared=True))
        masks.append(large[top : top + height, left : left + width])
    return torch.stack(masks)


@pytest.mark.parametrize(("height", "width", "cells"), [(12, 16, 4), (15, 9, 4), (32, 32, 7), (5, 6, 1), (7, 7, 9)])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_masks_equal_interpolation_and_crop(height, width, cells, dtype, atol):
    rng = Draws.of(11, IDS)
    masks = draw_masks(rng, slice(0, 20), cells, 0.4, torch.zeros(1, 3, height, width, dtype=dtype))
    expected = masks_by_loop(rng, 20, cells, 0.4, height, width)
    assert masks.dtype == dtype
    torch.testing.assert_close(masks.double(), expected, rtol=0, atol=atol)


def test_masks_are_the_same_however_they_are_cut():
    rng, like = Draws.of(11, IDS), torch.zeros(1, 3, 12, 16)
    whole = draw_masks(rng, slice(0, 9), 4, 0.5, like)
    parts = [
        draw_masks(Draws.of(11, ("other",)), part, 4, 0.5, like) for part in (slice(0, 2), slice(2, 7), slice(7, 9))
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=0)
    assert not torch.equal(draw_masks(Draws.of(12, IDS), slice(0, 9), 4, 0.5, like), whole)


@pytest.mark.parametrize("p1", [0.1, 0.5, 1.0])
def test_masks_show_every_pixel_with_probability_p1(p1):
    masks = draw_masks(Draws.of(0, IDS), slice(0, 6000), 4, p1, torch.zeros(1, 1, 13, 13))
    assert masks.min() >= 0
    assert masks.max() <= 1 + 1e-6
    # A pixel's variance is at most p1 (1 - p1): five standard errors.
    assert (masks.mean(0) - p1).abs().max() <= 5 * (p1 * (1 - p1) / 6000) ** 0.5 + 1e-6


@pytest.mark.parametrize("normalise", ["p1", "empirical"])
@pytest.mark.parametrize("mask_space", ["norm", "raw"])
def test_map_equals_a_plain_loop(normalise, mask_space):
    model, x, target = setting()
    rng = Draws.of(1, IDS)
    method = RISE(n_masks=25, cells=3, p1=0.3, normalise=normalise, mask_space=mask_space)
    maps = method(model, x, target, rng, Fitted(chunk=8))
    masks = masks_by_loop(rng, 25, 3, 0.3, 12, 16)
    for b in range(3):
        total = torch.zeros(12, 16, dtype=torch.float64)
        for mask in masks:
            masked = (
                model.normalise(x[b : b + 1]) * mask if mask_space == "norm" else model.normalise(x[b : b + 1] * mask)
            )
            total += model.module(masked).softmax(1)[0, target[b]].detach() * mask
        expected = total / (masks.sum(0) if normalise == "empirical" else 25 * 0.3)
        torch.testing.assert_close(maps[b, 0], expected, rtol=1e-12, atol=1e-14)


class Revealed(nn.Module):
    """p_0(x) = sum w x: linear in what a mask reveals."""

    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x):
        p = (self.weight * x).flatten(1).sum(1)
        return torch.stack([p.log(), (1 - p).log()], 1)


def test_expected_map_of_a_linear_probability():
    """E[map]_n = sum_m w_m E[M_m M_n] / p1, E[M_m M_n] = p1^2 + p1 (1 - p1) overlap of the interpolation weights."""
    size, cells, p1, n = 6, 3, 0.5, 40_000
    weight = torch.zeros(1, 1, size, size, dtype=torch.float64)
    weight[..., 1, 1], weight[..., 4, 2], weight[..., 4, 3] = 0.5, 0.2, 0.2
    model = Classifier(Revealed(weight + 1e-4))
    x = torch.ones(1, 1, size, size, dtype=torch.float64)
    found = RISE(n_masks=n, cells=cells, p1=p1)(model, x, torch.tensor([0]), Draws.of(0, ("a",)), Fitted(chunk=4000))

    cell = size // cells
    unit = torch.eye(cells**2, dtype=torch.float64).view(-1, 1, cells, cells)
    large = functional.interpolate(unit, size=[(cells + 1) * cell] * 2, mode="bilinear", align_corners=False)[:, 0]
    overlap = torch.zeros(size**2, size**2, dtype=torch.float64)
    for top in range(cell):
        for left in range(cell):
            shares = large[:, top : top + size, left : left + size].flatten(1)
            overlap += shares.T @ shares / cell**2
    moment = p1**2 + p1 * (1 - p1) * overlap
    expected = ((weight + 1e-4).flatten() @ moment / p1).view(size, size)
    assert expected.max() - expected.min() > 0.1
    # |p M / p1| <= 2, so five standard errors are at most 5 * 1 / sqrt(n).
    assert (found[0, 0] - expected).abs().max() < 5 / n**0.5


def test_a_constant_probability_gives_a_flat_empirical_map():
    model, x, target = setting()
    nn.init.zeros_(model.module[3].weight)
    maps = RISE(n_masks=60, cells=3, normalise="empirical")(model, x, target, Draws.of(0, IDS), Fitted())
    p = model(x).softmax(1).gather(1, target.view(-1, 1)).view(3, 1, 1, 1)
    torch.testing.assert_close(maps, p.detach().expand_as(maps))


@pytest.mark.parametrize("chunk", [1, 2, 5, None, 999])
def test_neither_chunk_nor_batch_mates_matter(chunk):
    model, x, target = setting()
    method = RISE(n_masks=30, cells=3)
    whole = method(model, x, target, Draws.of(1, IDS), Fitted(chunk=7))
    torch.testing.assert_close(
        method(model, x, target, Draws.of(1, IDS), Fitted(chunk=chunk)), whole, rtol=1e-12, atol=0
    )
    alone = method(model, x[1:2], target[1:2], Draws.of(1, ["z"]), Fitted(chunk=chunk))
    torch.testing.assert_close(alone, whole[1:2], rtol=1e-12, atol=0)
    spoilt = torch.cat([x[:2], torch.full_like(x[:1], torch.nan)])
    maps = method(model, spoilt, target, Draws.of(1, IDS), Fitted(chunk=chunk))
    torch.testing.assert_close(maps[:2], whole[:2], rtol=1e-12, atol=0)
    assert maps[2].isnan().all()


def test_every_forward_pass_but_the_last_is_a_full_chunk():
    model, x, target = setting()
    sizes = []
    model.module.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    for chunk in (1, 2, 7):  # 7: more than the masks of one image, and no multiple of the images
        sizes.clear()
        RISE(n_masks=5, cells=2)(model, x, target, Draws.of(1, IDS), Fitted(chunk=chunk))
        assert sizes == [*[chunk] * (15 // chunk), *[15 % chunk] * (15 % chunk > 0)]


@pytest.mark.parametrize(
    ("options", "word"), [({"n_masks": 0}, "n_masks"), ({"cells": 0}, "cells"), ({"p1": 0.0}, "p1")]
)
def test_bad_options_are_named(options, word):
    with pytest.raises(SalrunError, match=f"{word} of RISE"):
        RISE(**options)


def test_too_few_targets_are_an_error():
    model, x, target = setting()
    with pytest.raises(SalrunError, match="target"):
        RISE(n_masks=2)(model, x, target[:1], Draws.of(1, IDS), Fitted())
