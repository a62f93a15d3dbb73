"""Sensitivity: closed forms, a plain twin, what the neighbours are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from salrun.errors import SalrunError
from salrun.metrics.robustness import Sensitivity
from salrun.rng import Draws
from salrun.types import OK, UNDEFINED, Scene
from tests import toys
from tests.toys import MEAN, STD


def scene_with(explain, n: int = 4, size: int = 5, ids=None, dtype=torch.float64) -> Scene:
    x, rng = toys.images(n, size, seed=0, dtype=dtype), Draws.of(3, ids or [str(i) for i in range(n)])
    return toys.scene(x, mean=MEAN, std=STD, rng=rng, explain=explain)


def channel_sum(x):
    return x.sum(1, keepdim=True)


def test_constant_explanation_does_not_move():
    fake = torch.ones(4, 1, 5, 5, dtype=torch.float64)
    fake[:, :, 0, 0] = 0
    scene = scene_with(lambda x: fake)
    for reduce in ("max", "mean"):
        score = Sensitivity(reduce=reduce)(fake, scene)
        assert score.value.tolist() == [0.0] * 4
        assert score.flag.tolist() == [OK] * 4


@pytest.mark.parametrize("neighbourhood", ["cube", "ball"])
@pytest.mark.parametrize("denominator", ["map", "image", "none"])
def test_twin(neighbourhood, denominator):
    """Collect the neighbours the method is shown and redo the sums in numpy."""
    shown = []

    def explain(x):
        shown.append(x)
        return channel_sum(x**2)

    scene = scene_with(explain)
    plane = channel_sum(scene.x**2)
    options = {"n_draws": 6, "neighbourhood": neighbourhood, "denominator": denominator}
    most = Sensitivity(reduce="max", **options)(plane, scene).value
    mean = Sensitivity(reduce="mean", **options)(plane, scene).value
    assert len(shown) == 6, "the mean must reuse the neighbours of the maximum"
    for i in range(4):
        here = plane[i].numpy().ravel()
        moved = [np.linalg.norm((x[i].numpy() ** 2).sum(0).ravel() - here) for x in shown]
        norm = (scene.x[i].numpy() - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
        scale = {"map": np.linalg.norm(here), "image": np.linalg.norm(norm), "none": 1.0}[denominator]
        assert most[i].item() == pytest.approx(max(moved) / scale, rel=1e-6)
        assert mean[i].item() == pytest.approx(np.mean(moved) / scale, rel=1e-6)
    assert (most >= mean).all()


def test_cube_neighbours_are_uniform_in_the_networks_space():
    shown = []
    scene = scene_with(lambda x: shown.append(x) or channel_sum(x), n=8, size=16)
    Sensitivity(n_draws=5, radius=0.2)(channel_sum(scene.x), scene)
    noise = torch.stack([scene.model.normalise(x) - scene.model.normalise(scene.x) for x in shown])
    assert noise.abs().max() <= 0.2 + 1e-9
    assert noise.abs().max() > 0.199
    assert noise.mean().abs() < 0.002
    assert noise.var().item() == pytest.approx(0.2**2 / 3, rel=0.02)
    assert len(noise.flatten().unique()) > 0.99 * noise.numel()  # fresh per draw, image, channel and pixel


def test_ball_neighbours_are_uniform_in_the_ball():
    shown = []
    scene = scene_with(lambda x: shown.append(x) or channel_sum(x), n=400, size=1)
    Sensitivity(n_draws=10, radius=2.0, neighbourhood="ball")(channel_sum(scene.x), scene)
    noise = torch.stack([scene.model.normalise(x) - scene.model.normalise(scene.x) for x in shown]).reshape(-1, 3)
    length = noise.norm(dim=1)
    assert length.max() <= 2.0 + 1e-6
    assert ((length / 2) ** 3).mean().item() == pytest.approx(0.5, abs=0.02)  # volume grows with the cube
    assert noise.mean(0).abs().max() < 0.06


def test_neighbours_depend_on_the_image_only():
    first, second = [], []
    scene = scene_with(lambda x: first.append(x) or channel_sum(x), ids=["a", "b", "c", "d"])
    Sensitivity(n_draws=2)(channel_sum(scene.x), scene)
    turned = scene_with(lambda x: second.append(x) or channel_sum(x), ids=["d", "c", "b", "a"])
    turned = replace(turned, x=scene.x.flip(0))
    Sensitivity(n_draws=2)(channel_sum(turned.x), turned)
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two.flip(0))


def test_more_draws_never_lower_the_maximum():
    scene = scene_with(channel_sum)
    plane = channel_sum(scene.x)
    values = [Sensitivity(n_draws=n)(plane, scene).value for n in (1, 4, 16)]
    assert (values[0] <= values[1]).all()
    assert (values[1] <= values[2]).all()


def test_zero_map_is_undefined_and_its_neighbours_are_not():
    scene = scene_with(channel_sum)
    plane = channel_sum(scene.x)
    plane[1] = 0
    score = Sensitivity(n_draws=2)(plane, scene)
    assert score.value.isnan().tolist() == [False, True, False, False]
    assert score.flag.tolist() == [OK, UNDEFINED, OK, OK]


def test_a_neighbour_without_a_map_is_undefined():
    def explain(x):
        out = channel_sum(x)
        out[2] = torch.nan
        return out

    scene = scene_with(explain)
    score = Sensitivity(n_draws=2)(channel_sum(scene.x), scene)
    assert score.flag.tolist() == [OK, OK, UNDEFINED, OK]
    assert score.value.isnan().tolist() == [False, False, True, False]


def test_errors():
    scene = scene_with(None)
    with pytest.raises(SalrunError, match="needs the method"):
        Sensitivity()(channel_sum(scene.x), scene)
    with pytest.raises(SalrunError, match="n_draws of Sensitivity must be at least 1, got 0"):
        Sensitivity(n_draws=0)
    with pytest.raises(SalrunError, match="radius of Sensitivity must be at least 0"):
        Sensitivity(radius=-1.0)
