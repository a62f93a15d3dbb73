"""IROF, SaCo, the single deletion score, sensitivity-n and infidelity: slow twins and known answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from skimage.segmentation import slic
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.methods.superpixels import superpixels
from salrun.metrics.infidelity import Infidelity
from salrun.metrics.irof import IROF
from salrun.metrics.sensitivity_n import SensitivityN
from salrun.metrics.single_deletion import IDSDS, SaCo
from salrun.rng import Draws
from salrun.types import DEGENERATE_MAP, UNDEFINED, Metric, Scene
from tests import toys

BATCH, SIZE = 3, 8


def scene_of(size: int = SIZE) -> tuple[Scene, Tensor]:
    """A small CNN on random images, and signed maps without ties."""
    x = toys.images(BATCH, size)
    scene = toys.scene(x, toys.network(size), toys.targets(BATCH), toys.MEAN, toys.STD)
    return scene, toys.images(BATCH, size, channels=1, seed=5) - 0.4


class Sum(nn.Module):
    """Logits: the weighted sum of the pixels, and 0."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, z: Tensor) -> Tensor:
        y = (z * self.weight).sum((1, 2, 3))
        return torch.stack([y, torch.zeros_like(y)], 1)


def linear() -> tuple[Scene, Tensor]:
    """f(x) = w . x without normalisation: w x is the effect of every pixel, exactly."""
    x, weight = toys.images(BATCH, SIZE, 1), toys.images(1, SIZE, 1, seed=7)[0] - 0.3
    return toys.scene(x, Sum(weight)), x * weight


# -- slow twins: one image, one removal at a time ----------------------------------------------------------------------


def output(scene: Scene, i: int, z: np.ndarray, what: str) -> float:
    logits = scene.model.module(torch.tensor(z)[None])[0].detach()
    return (logits if what == "logit" else logits.softmax(0))[scene.target[i]].item()


def without(z: np.ndarray, pixels: np.ndarray, colour: np.ndarray | float = 0.0) -> np.ndarray:
    """The image without the pixels of a mask; 0 is the data's mean colour."""
    changed = z.copy()
    changed[:, pixels] = np.broadcast_to(colour, (len(z), 1))
    return changed


def irof_twin(metric: IROF, scene: Scene, i: int, z: np.ndarray, m: np.ndarray) -> float:
    segments = slic(scene.x[i].permute(1, 2, 0).numpy(), metric.n_segments, metric.compactness, start_label=0)
    names = sorted(np.unique(segments), key=lambda s: -m[segments == s].mean())
    f = [output(scene, i, without(z, np.isin(segments, names[:k])), "probability") for k in range(len(names) + 1)]
    return 1 - np.trapezoid(np.array(f) / f[0], dx=1 / len(names))


def saco_twin(metric: SaCo, scene: Scene, i: int, z: np.ndarray, m: np.ndarray) -> float:
    order, k = np.argsort(-m.ravel()), metric.groups
    s, d = [], []
    for g in range(k):
        group = np.zeros(m.size, bool)
        group[order[g * m.size // k : (g + 1) * m.size // k]] = True
        group = group.reshape(m.shape)
        s.append(m[group].sum())
        changed = without(z, group, z.mean((1, 2))[:, None])
        d.append(output(scene, i, z, metric.output) - output(scene, i, changed, metric.output))
    weights = [(s[a] - s[b]) * (1 if d[a] >= d[b] else -1) for a, b in combinations(range(k), 2)]
    return sum(weights) / sum(map(abs, weights))


def idsds_twin(metric: IDSDS, scene: Scene, i: int, z: np.ndarray, m: np.ndarray) -> float:
    total, d = [], []
    for row in range(metric.grid):
        for column in range(metric.grid):
            cell = np.zeros(m.shape, bool)
            for r, c in np.ndindex(m.shape):
                cell[r, c] = r * metric.grid // m.shape[0] == row and c * metric.grid // m.shape[1] == column
            total.append(m[cell].sum())
            d.append(output(scene, i, z, metric.output) - output(scene, i, without(z, cell), metric.output))
    return spearmanr(total, d).statistic


def sensitivity_n_twin(metric: SensitivityN, scene: Scene, i: int, z: np.ndarray, m: np.ndarray) -> float:
    found = []
    for fraction in metric.fractions:
        total, d = [], []
        for draw in range(metric.n_draws):
            order = scene.rng.permutation(m.size, f"sensitivity_n/{draw}", shared=True).numpy()
            chosen = np.isin(np.arange(m.size), order[: max(1, round(fraction * m.size))]).reshape(m.shape)
            total.append(m[chosen].sum())
            d.append(output(scene, i, z, metric.output) - output(scene, i, without(z, chosen), metric.output))
        found.append(pearsonr(total, d).statistic)
    return float(np.mean(found))


def infidelity_twin(metric: Infidelity, scene: Scene, i: int, z: np.ndarray, m: np.ndarray) -> float:
    foretold, d = [], []
    for draw in range(metric.n_draws):
        own = Draws(scene.rng.seed, scene.rng.key[i : i + 1] + draw)
        if metric.perturbation == "square":
            side = m.shape[0] - metric.size + 1
            r, c = (int(own.integer(side, f"infidelity/{way}", 1)) for way in ("row", "column"))
            change = np.zeros_like(z)
            change[:, r : r + metric.size, c : c + metric.size] = z[:, r : r + metric.size, c : c + metric.size]
        else:
            change = z - metric.sigma * own.normal("infidelity", z.shape)[0].double().numpy()
        foretold.append((change * m).sum())
        d.append(output(scene, i, z, metric.output) - output(scene, i, z - change, metric.output))
    told, d = np.array(foretold), np.array(d)
    scale = (told * d).sum() / (told * told).sum() if metric.scaled else 1.0
    return float(((scale * told - d) ** 2).mean())


TWINS = {
    "irof": (IROF(n_segments=9), irof_twin),
    "saco": (SaCo(groups=7), saco_twin),
    "saco_logit": (SaCo(groups=64, output="logit"), saco_twin),
    "idsds": (IDSDS(grid=3), idsds_twin),
    "idsds_probability": (IDSDS(grid=4, output="probability"), idsds_twin),
    "sensitivity_n": (SensitivityN(fractions=[0.001, 0.3, 0.8], n_draws=9), sensitivity_n_twin),
    "infidelity": (Infidelity(n_draws=6, size=3), infidelity_twin),
    "infidelity_noise": (Infidelity("noisy_baseline", n_draws=5, scaled=True, output="probability"), infidelity_twin),
}


@pytest.mark.parametrize("name", TWINS)
def test_equals_its_slow_twin(name: str) -> None:
    metric, twin = TWINS[name]
    scene, plane = scene_of()
    z = scene.model.normalise(scene.x).numpy()
    values = metric(plane, scene).value
    for i in range(BATCH):
        assert values[i].item() == pytest.approx(twin(metric, scene, i, z[i], plane[i, 0].numpy()), abs=1e-10)


# -- known answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [IDSDS(), SensitivityN(n_draws=20), SaCo(substrate="black", output="logit")])
def test_the_effects_themselves_score_one_and_their_opposites_minus_one(metric: Metric) -> None:
    scene, effect = linear()
    ones = torch.ones(BATCH, dtype=torch.float64)
    toys.close(metric(effect, scene).value, ones, 1e-9)
    toys.close(metric(-effect, scene).value, -ones, 1e-9)


@pytest.mark.parametrize("perturbation", ["square", "noisy_baseline"])
def test_the_gradient_of_a_linear_model_has_no_infidelity(perturbation: str) -> None:
    """I . w is f(x) - f(x - I); twice the gradient is wrong by I . w, which scaling mends, as it does any scale."""
    scene, _ = linear()
    gradient = scene.model.module.weight.expand(BATCH, -1, -1, -1)
    metric = Infidelity(perturbation, size=3, n_draws=8)
    assert metric(gradient, scene).value.max() < 1e-20
    index, draw = torch.arange(8) * 0, torch.arange(8)
    told = (metric.change(scene.x, scene.rng, index, draw) * gradient[:1]).sum((1, 2, 3))
    assert metric(2 * gradient, scene).value[0].item() == pytest.approx(told.square().mean().item())
    assert replace(metric, scaled=True)(-5 * gradient, scene).value.max() < 1e-20


def test_irof_of_a_class_that_one_superpixel_decides() -> None:
    """f falls to nothing with the first of L superpixels: 1 - 1 / (2 L); kept to the end: 1 / (2 L)."""
    x = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    x[..., :4, :4] = 1
    scene = toys.scene(x, Sum(40.0 * x[0]), [0])
    scene.model.module.register_forward_hook(lambda module, given, logits: logits - torch.tensor([320.0, 0.0]))
    segments, (count,) = superpixels(x, "slic", 4, 10.0, 0, 0, 0)
    assert count == 4 and len(segments.view(8, 8)[:4, :4].unique()) == 1
    plane = x + 0.01 * toys.images(1, channels=1)
    assert IROF(n_segments=4)(plane, scene).value.item() == pytest.approx(1 - 1 / (2 * count))
    assert IROF(n_segments=4)(-plane, scene).value.item() == pytest.approx(1 / (2 * count))


def test_irof_shows_no_image_beyond_its_own_superpixels() -> None:
    scene, plane = scene_of()
    parts = torch.stack([torch.arange(SIZE**2) * n // SIZE**2 for n in (2, 3, 7)])
    given = {"segment": parts}
    shown: list[int] = []
    scene.model.module.register_forward_hook(lambda module, given, logits: shown.append(len(logits)))
    scene = replace(scene, shared=lambda name, compute: given if "superpixels" in name else compute())  # as it is then
    together = IROF()(plane, scene).value
    assert sum(shown) == (2 + 3 + 7) - BATCH + 2 * BATCH
    for i in range(BATCH):
        one = replace(scene, x=scene.x[i : i + 1], target=scene.target[i : i + 1], rng=scene.rng[i : i + 1])
        given = {"segment": parts[i : i + 1]}
        assert IROF()(plane[i : i + 1], one).value.item() == pytest.approx(together[i].item(), rel=1e-12)


def test_answers_are_computed_once_for_all_methods() -> None:
    scene, plane = scene_of()
    kept: dict = {}
    seen: list[int] = []
    scene.model.module.register_forward_hook(lambda module, given, logits: seen.append(len(logits)))

    def shared(name, compute):
        if name not in kept:
            kept[name] = compute()
        return kept[name]

    scene = replace(scene, shared=shared)
    for metric in (IDSDS(), SensitivityN(fractions=[0.5], n_draws=3), Infidelity(n_draws=4, size=2)):
        metric(plane, scene)
        before = len(seen)
        metric(plane.flip(2), scene)
        assert len(seen) == before


def test_what_has_no_answer_is_flagged() -> None:
    scene, plane = scene_of()
    flat = torch.full_like(plane, 0.3)
    for metric in (IDSDS(), SensitivityN(n_draws=3), SaCo(), IROF(n_segments=5), Infidelity(n_draws=3, size=2)):
        score = metric(flat, scene)
        assert (score.flag != 0).all()
    assert IDSDS()(flat, scene).value.isnan().all()
    assert IDSDS()(flat, scene).flag.tolist() == [UNDEFINED] * BATCH
    assert IROF(n_segments=5)(flat, scene).flag.tolist() == [DEGENERATE_MAP] * BATCH
    zero = Infidelity(n_draws=3, size=2, scaled=True)(0 * plane, scene)
    assert zero.value.isnan().all() and (zero.flag == UNDEFINED).all()


@pytest.mark.parametrize("metric", [IDSDS(grid=9), SaCo(groups=65), Infidelity(size=9)])
def test_more_than_the_image_has_is_refused(metric: Metric) -> None:
    scene, plane = scene_of()
    with pytest.raises(SalrunError, match="must be at most the image's"):
        metric(plane, scene)
