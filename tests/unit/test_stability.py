"""Local Lipschitz estimate, relative stability, sufficiency: closed forms and plain twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.metrics.robustness import LocalLipschitz, Sensitivity
from salrun.metrics.stability import RelativeStability, Sufficiency
from salrun.types import OK, UNDEFINED, Scene
from tests import toys

BATCH = 4


def scene_of(explain, net: nn.Module | None = None, channels: int = 3) -> Scene:
    x = toys.images(BATCH, 6, channels)
    return toys.scene(x, net or toys.network(6, channels), mean=(0.4,), std=(0.3,), explain=explain)


def squares(x: Tensor) -> Tensor:
    return (x**2).sum(1, keepdim=True)


def neighbours(metric, scene: Scene) -> list[np.ndarray]:
    """Of each draw, the images in the network's space."""
    z = scene.model.normalise(scene.x)
    return [(z + metric.noise(scene, draw)).numpy() for draw in range(metric.n_draws)]


@pytest.mark.parametrize("neighbourhood", ["cube", "ball", "gaussian"])
def test_a_linear_map_has_its_factor_as_lipschitz_constant(neighbourhood: str) -> None:
    scene = scene_of(None, channels=1)
    scene = replace(scene, explain=lambda x: -3 * scene.model.normalise(x))
    score = LocalLipschitz(n_draws=4, neighbourhood=neighbourhood)(-3 * scene.model.normalise(scene.x), scene)
    toys.close(score.value, torch.full((BATCH,), 3.0, dtype=torch.float64), 1e-6)
    assert score.flag.tolist() == [OK] * BATCH


def test_lipschitz_twin_and_its_maps_serve_sensitivity() -> None:
    shown: list[Tensor] = []
    scene = scene_of(lambda x: shown.append(x) or squares(x))
    plane, metric = squares(scene.x), LocalLipschitz(n_draws=5)
    value = metric(plane, scene).value
    Sensitivity(n_draws=5)(plane, scene)
    assert len(shown) == 5
    z, near = scene.model.normalise(scene.x).numpy(), neighbours(metric, scene)
    for i in range(BATCH):
        ratios = []
        for point in near:
            there = ((point[i] * 0.3 + 0.4) ** 2).sum(0)
            ratios.append(np.linalg.norm(there - plane[i, 0].numpy()) / np.linalg.norm(point[i] - z[i]))
        assert value[i].item() == pytest.approx(max(ratios), rel=1e-5)


@pytest.mark.parametrize("layer", [None, "0"])
def test_relative_stability_twin(layer: str | None) -> None:
    scene = scene_of(squares)
    plane = squares(scene.x) - 0.5
    scene = replace(scene, explain=lambda x: squares(x) - 0.5)
    metric = RelativeStability(n_draws=6, radius=0.3, layer=layer)
    result = metric(plane, scene)
    net, z = scene.model.module, scene.model.normalise(scene.x)
    features = net[:1] if layer else net[:3]

    def relative(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.linalg.norm(((a - b) / np.where(a == 0, 1e-6, a)).ravel()))

    seen_changes = 0
    with torch.no_grad():
        for i in range(BATCH):
            found: dict[str, list[float]] = {"ris": [], "rrs": [], "ros": []}
            for point in neighbours(metric, scene):
                there = torch.tensor(point[i : i + 1])
                y, y_there = net(z[i : i + 1])[0], net(there)[0]
                if y.argmax() != y_there.argmax():
                    seen_changes += 1
                    continue
                moved = squares(scene.model.denormalise(there))[0, 0].numpy() - 0.5
                change = relative(plane[i, 0].numpy(), moved)
                found["ris"].append(change / relative(z[i].numpy(), point[i]))
                h, h_there = (features(t)[0].numpy() for t in (z[i : i + 1], there))
                found["rrs"].append(change / max(relative(h, h_there), 1e-6))
                found["ros"].append(change / float((y - y_there).norm()))
            for name, ratios in found.items():
                want = max(ratios) if ratios else np.nan
                assert result[name].value[i].item() == pytest.approx(want, rel=1e-5, nan_ok=True), name
    assert seen_changes > 0


def test_the_image_as_its_own_map_is_as_stable_as_itself() -> None:
    scene = scene_of(None, channels=1)
    scene = replace(scene, explain=scene.model.normalise)
    result = RelativeStability(n_draws=5, radius=0.01)(scene.model.normalise(scene.x), scene)
    toys.close(result["ris"].value, torch.ones(BATCH, dtype=torch.float64), 1e-6)


class Fickle(nn.Module):
    """The class changes with every image that is not exactly one of the given."""

    def __init__(self, known: Tensor) -> None:
        super().__init__()
        self.known, self.head = known, nn.Linear(1, 2)

    def forward(self, z: Tensor) -> Tensor:
        old = (z[:, None] == self.known).flatten(2).all(2).any(1).to(z)
        self.head(z[:, :1, 0, 0])
        return torch.stack([old, 1 - old], 1)


def test_without_a_neighbour_of_the_class_there_is_no_answer() -> None:
    x = toys.images(2, 4)
    scene = toys.scene(x, Fickle(x), explain=squares)
    for score in RelativeStability(n_draws=3)(squares(x), scene).values():
        assert score.value.isnan().all() and (score.flag == UNDEFINED).all()
    assert Sufficiency(n_draws=3, radius=0.01)(squares(x), scene).value.tolist() == [0.0, 0.0]
    far = Sufficiency(n_draws=3, threshold=1e-9)(squares(x), scene)
    assert far.value.isnan().all() and (far.flag == UNDEFINED).all()


def test_sufficiency_of_a_half_plane() -> None:
    """One map for all, the class is the sign of one pixel: sufficient as often as the noise leaves that sign."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False))
    net[1].weight.data.zero_()[:, 0] = torch.tensor([1.0, -1.0])
    x = torch.full((2, 1, 4, 4), 0.3, dtype=torch.float64)
    x[1] = 0.6
    scene = toys.scene(x, net, explain=torch.ones_like)
    value = Sufficiency(n_draws=4000, radius=0.5)(torch.ones_like(x), scene).value
    assert value.tolist() == pytest.approx([0.8, 1.0], abs=0.02)  # u > -0.3 of [-0.5, 0.5]


def test_sufficiency_twin() -> None:
    scene = scene_of(squares)
    plane = squares(scene.x)
    metric = Sufficiency(n_draws=20, radius=1.5, threshold=0.45)
    value = metric(plane, scene).value
    z = scene.model.normalise(scene.x)
    with torch.no_grad():
        own = scene.model.module(z).argmax(1)
        for i in range(BATCH):
            same = []
            for point in neighbours(metric, scene):
                there = torch.tensor(point[i : i + 1])
                moved = (squares(scene.model.denormalise(there))[0] - plane[i]).norm() / plane[i].norm()
                if moved <= 0.45:
                    same.append(float(scene.model.module(there)[0].argmax() == own[i]))
            assert 0 < len(same) < 20
            assert value[i].item() == pytest.approx(np.mean(same))
    assert 0 < value.mean() < 1


def test_what_it_needs_is_said() -> None:
    scene = scene_of(None)
    for metric in (LocalLipschitz(), RelativeStability(), Sufficiency()):
        with pytest.raises(SalrunError, match="needs the method, not only its maps"):
            metric(squares(scene.x), scene)
    one = toys.scene(toys.images(2, 4), toys.network(4, classes=1), explain=squares)
    for metric in (RelativeStability(), Sufficiency()):
        with pytest.raises(SalrunError, match="two classes or more"):
            metric(squares(one.x), one)
    without = toys.scene(toys.images(2, 4), nn.Flatten(), explain=squares)
    with pytest.raises(SalrunError, match="has no linear layer"):
        RelativeStability()(squares(without.x), without)
