"""Masking metrics and completeness: known answers, log-space limits, one masked pass for four metrics."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from salrun.metrics.axiom import Completeness
from salrun.metrics.masking import AverageDrop, AverageGain, AverageIncrease, LocalAccuracy, log_odds
from salrun.types import DEGENERATE_MAP, NAN_MAP, OK, SATURATED, UNDEFINED, UNDERFLOW, Scene
from salrun.views import view
from tests import toys
from tests.toys import MEAN, STD

METRICS = (AverageDrop, AverageIncrease, AverageGain, LocalAccuracy)
quick = settings(max_examples=60, deadline=None, derandomize=True)


class Counting(nn.Module):
    """A small network that counts the images it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
        self.seen: list[int] = []

    def forward(self, x):
        self.seen.append(len(x))
        return self.net(x)


@pytest.fixture
def scene() -> Scene:
    generator = torch.Generator().manual_seed(0)
    module = Counting().double()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.15 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    x = torch.rand(6, 3, 8, 8, generator=generator, dtype=torch.float64)
    return toys.scene(x, module, [0, 1, 2, 3, 4, 0], MEAN, STD)


@pytest.fixture
def plane() -> torch.Tensor:
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("space", ["raw", "norm"])
def test_twin(scene, plane, space):
    """The textbook formulas, image by image, in plain numpy."""
    got = {metric: metric(mask_space=space)(plane, scene).value for metric in METRICS}
    logit = LocalAccuracy(mask_space=space, output="logit")(plane, scene).value

    def outputs(image):
        with torch.no_grad():
            y = scene.model.module(image.unsqueeze(0))[0].numpy()
        return y, np.exp(y) / np.exp(y).sum()

    for i, (x, m, c) in enumerate(zip(scene.x, plane, scene.target, strict=True)):
        norm = scene.model.normalise(x.unsqueeze(0))[0]
        y, before = outputs(norm)
        z, after = outputs(norm * m if space == "norm" else scene.model.normalise((x * m).unsqueeze(0))[0])
        p, o = before[c], after[c]
        assert got[AverageDrop][i].item() == pytest.approx(max(p - o, 0) / p, abs=1e-12)
        assert got[AverageGain][i].item() == pytest.approx(max(o - p, 0) / (1 - p), abs=1e-12)
        assert got[AverageIncrease][i].item() == float(o > p)
        assert got[LocalAccuracy][i].item() == pytest.approx(abs(p - o), abs=1e-12)
        assert logit[i].item() == pytest.approx(abs(y[c] - z[c]), abs=1e-12)
    assert got[AverageDrop].count_nonzero() > 0
    assert got[AverageGain].count_nonzero() > 0


def test_one_masked_pass_serves_all_four(scene, plane):
    store: dict = {}

    def shared(name, compute):
        if name not in store:
            store[name] = compute()
        return store[name]

    scene = replace(scene, memo={}, shared=shared)
    for metric in (*METRICS, lambda: AverageGain(clipped=True), lambda: LocalAccuracy(output="logit")):
        metric()(plane, scene)
    assert scene.model.module.seen == [6, 6]  # x, x * m
    AverageDrop()(plane.clone(), scene)
    assert scene.model.module.seen == [6, 6, 6]  # another map
    AverageDrop(mask_space="norm")(plane, scene)
    assert len(scene.model.module.seen) == 4  # another space


def test_chunk_bounds_the_forward_passes(scene, plane):
    whole = AverageDrop()(plane, scene).value
    scene.model.module.seen.clear()
    small = replace(scene, memo={}, chunk=4)
    torch.testing.assert_close(AverageDrop()(plane, small).value, whole, atol=1e-12, rtol=0)
    assert scene.model.module.seen == [4, 2, 4, 2]


def test_mask_of_ones_changes_nothing(scene):
    ones = torch.ones(6, 1, 8, 8, dtype=torch.float64)
    for metric in METRICS:
        score = metric()(ones, scene)
        assert score.value.tolist() == [0.0] * 6
        assert score.flag.tolist() == [DEGENERATE_MAP] * 6


def test_mask_of_zeros_is_the_black_image(scene):
    zeros = torch.zeros(6, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        black = scene.model(torch.zeros_like(scene.x)).softmax(1).gather(1, scene.target.view(-1, 1)).squeeze(1)
        p = scene.model(scene.x).softmax(1).gather(1, scene.target.view(-1, 1)).squeeze(1)
    torch.testing.assert_close(LocalAccuracy()(zeros, scene).value, (p - black).abs(), atol=1e-12, rtol=0)
    torch.testing.assert_close(AverageDrop()(zeros, scene).value, ((p - black).clamp(min=0) / p), atol=1e-12, rtol=0)


def test_fake_cam_is_finite(scene):
    fake = torch.ones(6, 1, 8, 8, dtype=torch.float64)
    fake[:, :, 0, 0] = 0
    for metric in METRICS:
        score = metric()(fake, scene)
        assert score.value.isfinite().all()
        assert score.flag.tolist() == [OK] * 6


class Logit(nn.Module):
    """Two classes; class 0 has the logit gain * mean(x) + shift, class 1 has 0."""

    def __init__(self, gain: float, shift: float) -> None:
        super().__init__()
        self.gain, self.shift = gain, shift

    def forward(self, x):
        y = self.gain * x.mean((1, 2, 3)) + self.shift
        return torch.stack([y, torch.zeros_like(y)], 1)


def one_pixel(shift: float, gain: float, m: float, dtype=torch.float32):
    """An image of ones under a mask whose mean is m (not constant); log-odds go from gain + shift to gain m + shift."""
    x = torch.ones(1, 1, 2, 2, dtype=dtype)
    plane = torch.tensor([m - 0.1, m + 0.1, m, m], dtype=dtype).view(1, 1, 2, 2)
    return plane, toys.scene(x, Logit(gain, shift))


def test_saturated_gain_is_exact_and_flagged():
    """p = 1 - e^-40: 1 - p is 0 in float32 and noise in float64, yet the gain is exact."""
    plane, scene = one_pixel(shift=44.0, gain=-4.0, m=0.5)  # log-odds 40 -> 42
    score = AverageGain()(plane, scene)
    assert score.value.item() == pytest.approx(1 - math.exp(-2), rel=1e-5)
    assert score.flag.tolist() == [SATURATED]
    assert AverageIncrease()(plane, scene).value.item() == 1.0
    clipped = AverageGain(clipped=True)(plane, scene)
    assert clipped.value.isnan().all()
    assert clipped.flag.tolist() == [SATURATED]


def test_clipping_starts_at_p_999():
    odds = math.log(0.999 / 0.001)
    for delta, flag in ((-0.01, OK), (0.01, SATURATED)):
        plane, scene = one_pixel(shift=odds + delta, gain=0.0, m=0.5)
        assert AverageGain(clipped=True)(plane, scene).flag.tolist() == [flag]
        assert AverageGain()(plane, scene).flag.tolist() == [OK]


def test_least_probable_class_drops_exactly():
    """p = e^-300 underflows float32, not the drop: o / p = e^-2."""
    plane, scene = one_pixel(shift=-304.0, gain=4.0, m=0.5)
    score = AverageDrop()(plane, scene)
    assert score.value.item() == pytest.approx(1 - math.exp(-2), rel=1e-4)
    assert score.flag.tolist() == [OK]


def test_underflow_is_excluded_and_said():
    plane, scene = one_pixel(shift=-904.0, gain=4.0, m=0.5)
    score = AverageDrop()(plane, scene)
    assert score.value.isnan().all()
    assert score.flag.tolist() == [UNDERFLOW]


def test_a_map_that_is_no_mask_is_undefined(scene, plane):
    plane = plane.clone()
    plane[0] *= -1
    plane[1] *= 3
    for metric in METRICS:
        score = metric()(plane, scene)
        assert score.value.isnan().tolist() == [True, True, False, False, False, False]
        assert score.flag.tolist() == [UNDEFINED, UNDEFINED, OK, OK, OK, OK]


def test_nan_map_is_said(scene, plane):
    plane = plane.clone()
    plane[2, 0, 1, 1] = torch.nan
    for metric in METRICS:
        score = metric()(plane, scene)
        assert score.value.isnan().tolist() == [False, False, True, False, False, False]
        assert score.flag[2] == NAN_MAP


@quick
@given(st.lists(st.floats(-40, 40), min_size=2, max_size=6), st.integers(0, 5))
def test_log_odds(logits, c):
    y = torch.tensor([logits], dtype=torch.float64)
    c %= len(logits)
    z = log_odds(y, torch.tensor([c])).item()
    p = y.softmax(1)[0]
    rest = sum(v.item() for j, v in enumerate(p) if j != c)
    assert math.exp(-abs(z)) == pytest.approx(min(p[c].item() / rest, rest / p[c].item()), rel=1e-9)


@quick
@given(st.floats(-30, 30), st.floats(-30, 30), st.floats(0.1, 0.9))
def test_bounds_and_exclusion(shift, gain, m):
    """Drop and gain lie in [0, 1] and never both happen; increase says which."""
    plane, scene = one_pixel(shift, gain, m, torch.float64)
    drop, up, gained = (metric()(plane, scene).value.item() for metric in (AverageDrop, AverageIncrease, AverageGain))
    assert 0 <= drop <= 1
    assert 0 <= gained <= 1
    assert drop * gained == 0
    assert up == 1 if gained > 0 else up in (0, 1)


# -- completeness ----------------------------------------------------------------------------------------------------


class Linear(nn.Module):
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x):
        return x.flatten(1) @ self.weight.flatten(1).T + self.bias


@pytest.mark.parametrize("baseline", ["zeros", "black"])
def test_completeness_of_a_linear_model(baseline):
    """w (x - baseline) sums to the difference of logits; after min-max it does not."""
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(3, 3, 4, 4, generator=generator, dtype=torch.float64)
    scene = toys.scene(toys.images(4, 4), Linear(weight, torch.tensor([1.0, -2.0, 0.5])), [0, 1, 2, 1], MEAN, STD)
    z = scene.model.normalise(scene.x)
    reference = torch.zeros_like(z) if baseline == "zeros" else scene.model.normalise(torch.zeros_like(z))
    raw = weight[scene.target] * (z - reference)
    metric = Completeness(baseline=baseline)
    scores = metric(raw, scene)
    assert list(scores) == ["residual", "relative", "complete"]
    assert scores["residual"].value.max() < 1e-12
    assert scores["relative"].value.max() < 1e-9
    assert scores["complete"].value.tolist() == [1.0] * 4
    assert metric(view("minmax")(raw), scene)["complete"].value.tolist() == [0.0] * 4
    other = Completeness(baseline="black" if baseline == "zeros" else "zeros")
    assert other(raw, scene)["complete"].value.tolist() == [0.0] * 4


def test_completeness_residual_by_hand():
    scene = toys.scene(torch.full((2, 1, 2, 2), 0.5), Logit(gain=8.0, shift=1.0))
    raw = torch.tensor([[1.0, 1.0, 1.0, 1.1], [2.0, 2.0, 1.0, 1.0]]).view(2, 1, 2, 2)  # dy = 4
    scores = Completeness(tolerance=0.03)(raw, scene)
    assert scores["residual"].value.tolist() == pytest.approx([0.1, 2.0], abs=1e-6)
    assert scores["relative"].value.tolist() == pytest.approx([0.025, 0.5], abs=1e-6)
    assert scores["complete"].value.tolist() == [1.0, 0.0]
