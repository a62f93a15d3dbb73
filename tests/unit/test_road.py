"""ROAD: the imputation against a direct solve and by hand, the score against a slow twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import spsolve
from torch import Tensor, nn

from salrun.metrics.imputation import imputed, steps_of
from salrun.metrics.road import ROAD
from salrun.types import Scene
from tests import toys

WEIGHT = {(-1, -1): 1 / 12, (-1, 0): 1 / 6, (-1, 1): 1 / 12, (0, -1): 1 / 6}
WEIGHT |= {(-r, -c): w for (r, c), w in WEIGHT.items()}


def solved(image: np.ndarray, hole: np.ndarray) -> np.ndarray:
    """Slow twin: the equations of Rong et al. written pixel by pixel, solved directly."""
    (height, width), pixels = hole.shape, [tuple(p) for p in np.argwhere(hole)]
    number = {pixel: i for i, pixel in enumerate(pixels)}
    entries, b = {}, np.zeros((len(pixels), len(image)))
    for (r, c), i in number.items():
        near = {(r + dr, c + dc): w for (dr, dc), w in WEIGHT.items() if 0 <= r + dr < height and 0 <= c + dc < width}
        entries[i, i] = sum(near.values())
        for pixel, w in near.items():
            if pixel in number:
                entries[i, number[pixel]] = -w
            else:
                b[i] += w * image[:, *pixel]
    rows, columns = np.array(list(entries)).T
    result = image.copy()
    result[:, hole] = spsolve(csc_matrix((list(entries.values()), (rows, columns))), b).reshape(len(pixels), -1).T
    return result


def holes(shape: tuple[int, int], share: float) -> Tensor:
    """Scattered pixels; one blob; all but one pixel."""
    scattered = toys.rng(1).random(shape) < share
    blob = np.add.outer(np.arange(shape[0]) ** 2, np.arange(shape[1]) ** 2) < share * shape[0] * shape[1]
    rest = np.ones(shape, bool)
    rest[-1, 0] = False
    return torch.tensor(np.stack([scattered, blob, rest]))[:, None]


@pytest.mark.parametrize("shape", [(8, 8), (7, 12), (33, 18)])
@pytest.mark.parametrize("share", [0.1, 0.8])
def test_imputation_is_the_direct_solution(shape: tuple[int, int], share: float) -> None:
    x, hole = toys.images(3, shape), holes(shape, share)
    found = imputed(x, hole, 40)
    for image, where, result in zip(x, hole, found, strict=True):
        np.testing.assert_allclose(result, solved(image.numpy(), where[0].numpy()), atol=1e-10)
        assert torch.equal(result[:, ~where[0]], image[:, ~where[0]])


def test_ten_steps_do_for_a_large_hole() -> None:
    """A tenth of the noise at most, in a hole of 120 x 150 pixels of an image of 160 x 200."""
    x, hole = toys.images(1, (160, 200), channels=1), torch.zeros(1, 1, 160, 200, dtype=torch.bool)
    hole[..., 20:140, 25:175] = True
    assert (imputed(x, hole, 10) - imputed(x, hole, 60)).abs().max() < 1e-3


@pytest.mark.parametrize(("size", "steps"), [(32, 7), (64, 8), (160, 10)])
def test_as_many_steps_as_the_size_asks_for(size: int, steps: int) -> None:
    """A tenth of the noise at most where nine tenths of the pixels are gone, in the units of the network's input."""
    x, hole = (toys.images(3, (size, size)) - 0.5) / 0.25, holes((size, size), 0.9)[:2]
    assert steps_of(size) == steps
    assert (imputed(x[:2], hole, steps) - imputed(x[:2], hole, 60)).abs().max() < 1e-3
    assert (imputed(x[:2], hole, steps - 3) - imputed(x[:2], hole, 60)).abs().max() > 1e-3


def test_imputation_by_hand() -> None:
    """A single pixel is the weighted mean of its eight neighbours; in the corner of its three; a ramp stays a ramp."""
    x = torch.zeros(3, 1, 5, 5, dtype=torch.float64)
    x[0, 0, 2, 3], x[0, 0, 1, 1], x[1, 0, 0, 1] = 6.0, 12.0, 5.0
    x[2] = torch.arange(5.0)
    hole = torch.zeros(3, 1, 5, 5, dtype=torch.bool)
    hole[0, 0, 2, 2] = hole[1, 0, 0, 0] = True
    hole[2, 0, 1:4, 1:4] = True
    found = imputed(x, hole, 10)
    assert found[0, 0, 2, 2].item() == pytest.approx(6 / 6 + 12 / 12)
    assert found[1, 0, 0, 0].item() == pytest.approx(5 * (1 / 6) / (2 / 6 + 1 / 12))
    toys.close(found[2], x[2])
    assert torch.equal(imputed(x, torch.zeros_like(hole), 5), x)
    assert torch.equal(imputed(x, torch.ones_like(hole), 5), torch.zeros_like(x))


def scene_of(batch: int = 3) -> tuple[Scene, Tensor]:
    x = toys.images(batch)
    scene = toys.scene(x, toys.network(), toys.targets(batch), toys.MEAN, toys.STD)
    return scene, toys.images(batch, channels=1, seed=5) - 0.3


@pytest.mark.parametrize("output", ["correct", "probability"])
def test_equals_its_slow_twin(output: str) -> None:
    scene, plane = scene_of()
    metric = ROAD(fractions=[0.25, 0.6], output=output, iterations=40, noise=0.1)
    result = metric(plane, scene)
    noise = scene.rng.normal("road", (3, 8, 8)).double().numpy()
    z = scene.model.normalise(scene.x).numpy()
    for i in range(3):
        value = {}
        for name, sign in (("morf", -1), ("lerf", 1)):
            order = np.argsort(sign * plane[i, 0].numpy().ravel())
            f = []
            for count in (16, 38):
                hole = np.zeros(64, bool)
                hole[order[:count]] = True
                hole = hole.reshape(8, 8)
                point = solved(z[i], hole) + 0.1 * noise[i] * hole
                p = scene.model.module(torch.tensor(point)[None])[0].softmax(0).detach()
                f.append(p[scene.target[i]].item() if output == "probability" else float(p.argmax() == scene.target[i]))
            assert result[name].curve[i].tolist() == pytest.approx(f, abs=1e-9)
            value[name] = np.mean(f)
            assert result[name].value[i].item() == pytest.approx(value[name], abs=1e-9)
        assert result[""].value[i].item() == pytest.approx(value["lerf"] - value["morf"], abs=1e-9)


class Bright(nn.Module):
    """Class 0 where the left half of the image is brighter than 0.5, class 1 elsewhere."""

    def forward(self, z: Tensor) -> Tensor:
        y = z[..., : z.shape[-1] // 2].mean((1, 2, 3)) - 0.5
        return torch.stack([y, -y], 1)


def test_a_perfect_map_scores_one_and_its_opposite_minus_one() -> None:
    """The left half is white, the rest black: without it the class is lost, without the rest it stays."""
    x = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    x[..., :4] = 1
    scene = toys.scene(x, Bright())
    metric = ROAD(fractions=[0.5])
    plane = x + 0.1 * toys.images(1, channels=1)
    result = metric(plane, scene)
    assert (result["morf"].value.item(), result["lerf"].value.item(), result[""].value.item()) == (0.0, 1.0, 1.0)
    assert metric(-plane, scene)[""].value.item() == -1.0
