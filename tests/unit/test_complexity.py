"""Sparseness, complexity, effective complexity: known answers, plain twins, invariances."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from salrun.errors import SalrunError
from salrun.metrics.complexity import Complexity, EffectiveComplexity, Sparseness
from salrun.types import DEGENERATE_MAP, NAN_MAP, OK, UNDEFINED
from tests import toys

quick = settings(max_examples=40, deadline=None, derandomize=True)


def value(metric, plane) -> float:
    return metric(plane, toys.scene(len(plane))).value[0].item()


def random_planes(seed: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).standard_normal((4, 1, 6, 7)))


def slow_gini(plane) -> float:
    """Mean absolute difference over twice the mean, all pairs."""
    a = np.abs(plane).ravel() / np.abs(plane).max() + 1e-7
    total = sum(abs(p - q) for p in a for q in a)
    return total / (2 * a.size**2 * a.mean())


def slow_entropy(plane) -> float:
    q = np.abs(plane).ravel() / np.abs(plane).sum()
    return -sum(v * math.log(v) for v in q if v > 0)


def test_twins():
    planes = random_planes(0)
    planes[1, 0, :3] = 0
    planes[2] = planes[2].round()
    scene = toys.scene(4)
    for metric, slow in (
        (Sparseness(), slow_gini),
        (Complexity(), slow_entropy),
        (EffectiveComplexity(), lambda p: sum(v / np.abs(p).max() > 1e-5 for v in np.abs(p).ravel())),
    ):
        score = metric(planes, scene)
        assert score.value.tolist() == pytest.approx([slow(p.numpy()) for p in planes], abs=1e-12)
        assert score.value.dtype == torch.float64
        assert score.flag.tolist() == [OK] * 4


def test_fake_cam():
    """One zero among 50,176 ones."""
    fake = torch.ones(1, 1, 224, 224)
    fake[0, 0, 0, 0] = 0
    assert value(Sparseness(), fake) == pytest.approx(1.993e-5, abs=1e-8)
    assert value(Complexity(), fake) == pytest.approx(math.log(50175), abs=1e-9)
    assert value(EffectiveComplexity(), fake) == 50175


def test_single_pixel_is_the_sparsest():
    lone = torch.zeros(1, 1, 10, 10)
    lone[0, 0, 3, 4] = -2.0
    assert value(Sparseness(), lone) == pytest.approx(0.99, abs=2e-5)
    assert value(Complexity(), lone) == 0.0
    assert value(EffectiveComplexity(), lone) == 1


def test_effective_complexity_counts_above_the_threshold():
    plane = torch.tensor([2.0, 2.2e-5, -2.2e-5, 1.8e-5, 0.0, 1.0], dtype=torch.float64).view(1, 1, 2, 3)
    assert value(EffectiveComplexity(), plane) == 4
    assert value(EffectiveComplexity(epsilon=0.4), plane) == 2


def test_zero_constant_and_nan_maps():
    planes = random_planes(1)
    planes[0] = 0
    planes[1] = 0.3
    planes[2, 0, 0, 0] = torch.nan
    scene = toys.scene(4)
    sparse, entropy, count = (metric(planes, scene) for metric in (Sparseness(), Complexity(), EffectiveComplexity()))
    assert sparse.value[:2].tolist() == pytest.approx([0, 0], abs=1e-12)
    assert entropy.value[0].isnan()
    assert entropy.value[1].item() == pytest.approx(math.log(42))
    assert count.value[:2].tolist() == [0, 42]
    assert sparse.flag.tolist() == count.flag.tolist() == [DEGENERATE_MAP, DEGENERATE_MAP, NAN_MAP, OK]
    assert entropy.flag.tolist() == [UNDEFINED, DEGENERATE_MAP, NAN_MAP, OK]
    for score in (sparse, entropy, count):
        assert score.value[2].isnan()
        assert score.value[3].isfinite()
    zero = Complexity(zero_map="zero")(planes, scene)
    assert zero.value[0] == 0
    assert zero.flag[0] == UNDEFINED


@quick
@given(st.integers(0, 2**31), st.floats(1e-6, 1e6))
def test_scale_sign_and_place_do_not_matter(seed, factor):
    planes = random_planes(seed)
    shuffled = planes.flatten(2)[:, :, torch.randperm(42, generator=torch.Generator().manual_seed(seed))].view_as(
        planes
    )
    scene = toys.scene(4)
    for metric in (Sparseness(), Complexity(), EffectiveComplexity()):
        want = metric(planes, scene).value
        for other in (planes * factor, -planes, shuffled):
            torch.testing.assert_close(metric(other, scene).value, want, atol=1e-9, rtol=0)


@quick
@given(st.integers(0, 2**31), st.floats(1.1, 4.0))
def test_bounds_and_sharpening(seed, power):
    """A power > 1 makes any map sparser and simpler."""
    planes = random_planes(seed)
    scene = toys.scene(4)
    gini, entropy = Sparseness()(planes, scene).value, Complexity()(planes, scene).value
    assert ((gini >= 0) & (gini < 1)).all()
    assert ((entropy >= 0) & (entropy <= math.log(42))).all()
    assert (Sparseness()(planes.abs() ** power, scene).value > gini).all()
    assert (Complexity()(planes.abs() ** power, scene).value < entropy).all()


# -- effective complexity by noise masks -----------------------------------------------------------------------------


class Region(nn.Module):
    """The log-odds of class 0 are decided by the sum over an L-shaped region of `pixels`."""

    def __init__(self, region: torch.Tensor, gain: float) -> None:
        super().__init__()
        self.register_buffer("region", region)
        self.gain = gain
        self.seen: list[int] = []

    def forward(self, x):
        self.seen.append(len(x))
        y = self.gain * ((x * self.region).sum((1, 2, 3)) / (3 * self.region.sum()) - 0.75)
        return torch.stack([y, torch.zeros_like(y)], 1)


@pytest.fixture
def region() -> torch.Tensor:
    mask = torch.zeros(8, 8)
    mask[2:4, 1:5] = 1
    return mask


@pytest.mark.parametrize("baseline", ["uniform", "blur"])
def test_noise_mask_twin(region, baseline):
    """Smallest k of the grid with expected squared loss <= tolerance, image by image."""
    ndimage = pytest.importorskip("scipy.ndimage")
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    planes = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1)).double() + 0.3 * region
    scene = toys.scene(x, Region(region.double(), 12.0))
    options = {"definition": "noise_mask", "tolerance": 1e-3, "grid": 16, "search": "sweep"}
    got = EffectiveComplexity(baseline=baseline, n_draws=3, **options)(planes, scene).value
    if baseline == "uniform":
        rest = [scene.rng.uniform("effective_complexity", (3, 8, 8), start=192 * d).double() for d in range(3)]
    else:
        rest = [torch.tensor(ndimage.uniform_filter(x.numpy(), size=(0, 0, 11, 11), mode="mirror"))]
    for i in range(4):
        order = np.argsort(-planes[i].numpy().ravel())
        p = scene.model(x[i : i + 1]).softmax(1)[0, 0]
        for k in range(0, 65, 4):
            keep = torch.zeros(64, dtype=torch.bool)
            keep[order[:k].copy()] = True
            tried = [torch.where(keep.view(8, 8), x[i], other[i]).unsqueeze(0) for other in rest]
            if np.mean([(scene.model(image).softmax(1)[0, 0] - p).item() ** 2 for image in tried]) <= 1e-3:
                break
        assert got[i].item() == k
    assert len(got.unique()) > 1


@pytest.mark.parametrize("search", ["bisection", "sweep"])
def test_noise_mask_finds_the_region_the_model_reads(region, search):
    """Bright region on black: 8 pixels where the map ranks them first, all but the grid's last step where last."""
    x = region.expand(2, 3, 8, 8).double().clone()
    ramp = torch.arange(64).view(8, 8) / 1000
    planes = torch.stack([region + ramp, ramp - region]).unsqueeze(1).double()
    planes -= planes.amin((2, 3), keepdim=True)
    module = Region(region.double(), 20.0)
    metric = EffectiveComplexity(definition="noise_mask", tolerance=1e-6, n_draws=3, grid=64, search=search)
    scene = toys.scene(x, module, chunk=1)
    score = metric(planes, scene)
    assert score.value.tolist() == [8, 64]
    assert score.flag.tolist() == [OK, OK]
    assert set(module.seen) == {1}
    module.seen.clear()
    store = {"logits": scene.model(x)}
    module.seen.clear()
    metric(planes, replace(scene, x=x, memo={}, shared=lambda name, compute: store))
    assert sum(module.seen) / 2 == metric.passes(scene.model, (3, 8, 8))


def test_errors():
    with pytest.raises(SalrunError, match="grid of EffectiveComplexity must be at least 1, got 0"):
        EffectiveComplexity(grid=0)
    with pytest.raises(SalrunError, match="Sparseness reads a plane"):
        Sparseness()(torch.rand(1, 3, 4, 4), toys.scene(1))
