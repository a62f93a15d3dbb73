"""ADCC, and average drop and increase with half of the pixels muted: by hand and against plain formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from salrun.errors import SalrunError
from salrun.metrics.adcc import ADCC
from salrun.metrics.masking import AverageDrop, AverageIncrease
from salrun.types import OK, UNDEFINED, Scene
from tests import toys


def scene_of(**more) -> tuple[Scene, Tensor]:
    scene = toys.scene(toys.images(4), toys.network(), toys.targets(4), toys.MEAN, toys.STD, **more)
    return scene, toys.images(4, channels=1, seed=5)


def probability(scene: Scene, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        return scene.model(x).softmax(1).gather(1, scene.target[:, None])[:, 0].numpy()


def redness(x: Tensor) -> Tensor:
    return x[:, :1] ** 2


@pytest.mark.parametrize("space", ["raw", "norm"])
def test_adcc_twin(space: str) -> None:
    scene, m = scene_of(explain=redness)
    result = ADCC(mask_space=space)(m, scene)
    z = scene.model.normalise(scene.x)
    masked = scene.x * m if space == "raw" else scene.model.denormalise(z * m)
    p, o = probability(scene, scene.x), probability(scene, masked)
    for i in range(4):
        coherency = (1 + np.corrcoef(m[i].numpy().ravel(), redness(masked)[i].numpy().ravel())[0, 1]) / 2
        complexity, drop = float(m[i].mean()), max(p[i] - o[i], 0) / p[i]
        want = {"coherency": coherency, "complexity": complexity, "average_drop": drop}
        want[""] = 3 / (1 / coherency + 1 / (1 - complexity) + 1 / (1 - drop))
        assert {name: score.value[i].item() for name, score in result.items()} == pytest.approx(want, abs=1e-12)


def test_adcc_by_hand() -> None:
    """The same map again, half of it 1, the probability untouched: 3 / (1 + 2 + 1); the opposite map: 0."""
    m = torch.zeros(2, 1, 4, 4, dtype=torch.float64)
    m[..., :2] = 1
    flat = toys.scene(torch.zeros(2, 3, 4, 4, dtype=torch.float64), explain=lambda x: m)
    same = ADCC()(m, flat)
    assert same[""].value.tolist() == pytest.approx([0.75, 0.75])
    opposite = ADCC()(m, replace(flat, explain=lambda x: 1 - m, memo={}))
    assert opposite["coherency"].value.tolist() == opposite[""].value.tolist() == [0.0, 0.0]
    assert opposite[""].flag.tolist() == [OK, OK]
    nothing = ADCC()(m, replace(flat, explain=lambda x: 0 * m, memo={}))
    assert nothing[""].value.isnan().all() and (nothing[""].flag == UNDEFINED).all()
    with pytest.raises(SalrunError, match="needs the method"):
        ADCC()(m, replace(flat, explain=None))


@pytest.mark.parametrize("keep", [0.5, 0.25])
@pytest.mark.parametrize("space", ["raw", "norm"])
def test_muted_pixels(keep: float, space: str) -> None:
    """Only the most salient pixels are shown, as they are; the map need not be a mask."""
    scene, m = scene_of()
    m = 10 * m - 5
    cut = m.flatten(1).sort(1, descending=True).values[:, round(keep * 64) - 1].view(-1, 1, 1, 1)
    z = scene.model.normalise(scene.x) * (m >= cut)
    shown = scene.x * (m >= cut) if space == "raw" else scene.model.denormalise(z)
    p, o = probability(scene, scene.x), probability(scene, shown)
    drop = AverageDrop(keep=keep, mask_space=space)(m, scene)
    assert drop.flag.tolist() == [OK] * 4
    assert drop.value.tolist() == pytest.approx(np.maximum(p - o, 0) / p, abs=1e-12)
    assert AverageIncrease(keep=keep, mask_space=space)(m, scene).value.tolist() == (o > p).tolist()


def test_all_kept_is_the_image() -> None:
    scene, m = scene_of()
    assert AverageDrop(keep=1)(m, scene).value.tolist() == [0.0] * 4
    with pytest.raises(SalrunError, match="above 0 and at most 1"):
        AverageDrop(keep=0)
