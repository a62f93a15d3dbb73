"""Metrics against quantus and captum where those are right, and the cases where they are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from salrun.metrics.axiom import Completeness
from salrun.metrics.complexity import Complexity, EffectiveComplexity, Sparseness
from salrun.metrics.localisation import (
    AFL,
    IOU,
    LocalisationAUC,
    PointingGame,
    RelevanceRankAccuracy,
    TopKIntersection,
)
from salrun.metrics.randomisation import histogram_entropy
from salrun.metrics.robustness import LocalLipschitz, Sensitivity
from salrun.metrics.stability import RelativeStability
from salrun.types import PRIMARY, UNDEFINED, Scene
from tests import toys

MAPS = np.random.default_rng(0).standard_normal((8, 1, 12, 12))
MAPS[1] = np.maximum(MAPS[1], 0)  # many exact zeros
MAPS[2] *= 1e-6
MAPS[3] = np.round(MAPS[3], 1)  # ties
MAPS[4] = MAPS[4] ** 9  # some values below the threshold of effective complexity


def scene_of(n: int, masks: np.ndarray | None = None) -> Scene:
    named = {} if masks is None else {"object": torch.tensor(masks).bool()}
    roles = {name: torch.full((n,), PRIMARY, dtype=torch.int8) for name in named}
    return toys.scene(torch.zeros(n, 1, 12, 12), masks=named, roles=roles)


def test_complexity_family_is_quantus_on_single_images():
    """One image at a time, where quantus' batch-wide maximum is the image's own."""
    quantus = pytest.importorskip("quantus")
    for ours, peer, tolerance in (
        (Sparseness(), quantus.Sparseness, 1e-12),
        (Complexity(), quantus.Complexity, 1e-9),  # ln(q + 1e-12) there
        (EffectiveComplexity(), quantus.EffectiveComplexity, 0.0),
    ):
        got = ours(torch.tensor(MAPS), scene_of(8)).value
        for value, a in zip(got, MAPS, strict=True):
            batch = {"x_batch": np.zeros((1, 1, 12, 12)), "y_batch": np.zeros(1), "a_batch": a[None].copy()}
            want = peer(disable_warnings=True)(model=None, **batch)[0]
            assert value.item() == pytest.approx(want, abs=tolerance)
    assert len(EffectiveComplexity()(torch.tensor(MAPS), scene_of(8)).value.unique()) > 2


@pytest.fixture
def masks() -> np.ndarray:
    out = np.zeros((8, 12, 12), bool)
    for i, mask in enumerate(out):
        mask[i : i + 4, 2 : 5 + i // 2] = True
    return out


def quantus_localisation(metric, masks) -> list[float]:
    positive = np.abs(MAPS)
    batch = {"x_batch": np.zeros((1, 1, 12, 12)), "y_batch": np.zeros(1)}
    return [
        float(np.ravel(metric(model=None, a_batch=a[None].copy(), s_batch=s[None, None], **batch))[0])
        for a, s in zip(positive, masks, strict=True)
    ]


def test_paper_afl_is_relevance_mass_accuracy(masks):
    quantus = pytest.importorskip("quantus")
    got = AFL(mode="paper")(torch.tensor(MAPS), scene_of(8, masks)).value
    want = quantus_localisation(quantus.RelevanceMassAccuracy(disable_warnings=True), masks)
    assert got.tolist() == pytest.approx(want, abs=1e-12)


def test_paper_iou_follows_from_relevance_rank_accuracy(masks):
    """r = |top K & mask| / K with K = |mask| gives IOU = r / (2 - r); maps without ties at the cut."""
    quantus = pytest.importorskip("quantus")
    plain = [0, 2, 4, 5, 6, 7]
    got = IOU(mode="paper", blur=1)(torch.tensor(np.abs(MAPS)), scene_of(8, masks)).value[plain]
    rank = np.array(quantus_localisation(quantus.RelevanceRankAccuracy(disable_warnings=True), masks))[plain]
    np.testing.assert_allclose(got, rank / (2 - rank), atol=1e-12)


def test_pointing_game_is_quantus(masks):
    quantus = pytest.importorskip("quantus")
    got = PointingGame()(torch.tensor(np.abs(MAPS)), scene_of(8, masks)).value
    want = quantus_localisation(quantus.PointingGame(disable_warnings=True), masks)
    single = [i for i in range(8) if (np.abs(MAPS[i]) == np.abs(MAPS[i]).max()).sum() == 1]
    assert len(single) >= 7
    assert [got[i].item() for i in single] == [float(want[i]) for i in single]


def test_ranks_of_pixels_are_quantus(masks):
    """Rank accuracy and top-k where no pixels tie at the cut; the area under the ROC curve with ties too."""
    quantus = pytest.importorskip("quantus")
    planes, plain, scene = torch.tensor(np.abs(MAPS)), [0, 2, 4, 5, 6, 7], scene_of(8, masks)
    for ours, peer in (
        (RelevanceRankAccuracy(), quantus.RelevanceRankAccuracy(disable_warnings=True)),
        (TopKIntersection(k=20), quantus.TopKIntersection(k=20, disable_warnings=True)),
    ):
        want = np.array(quantus_localisation(peer, masks))
        np.testing.assert_allclose(ours(planes, scene)[""].value[plain], want[plain], atol=1e-12)
    want = quantus_localisation(quantus.AUC(disable_warnings=True), masks)
    np.testing.assert_allclose(LocalisationAUC()(planes, scene).value, want, atol=1e-12)


def test_stability_is_quantus_given_the_same_neighbours():
    """The ratios of one neighbour; Quantus' own maximum is NaN as soon as one neighbour changes the class."""
    quantus = pytest.importorskip("quantus")
    net = toys.network(6, channels=1).double()
    x, model = toys.images(4, 6, 1), toys.classifier(net, (0.0,), (1.0,))
    explain = lambda x: x**2 - 0.4
    scene = Scene(model, x, toys.targets(4), toys.targets(4), toys.draws(4), explain=explain)
    metric = RelativeStability(n_draws=1, radius=1e-3)
    ours, moved = metric(explain(x), scene), x + metric.noise(scene, 0)
    maps = explain(x).numpy(), explain(moved).numpy()
    with torch.no_grad():
        logits, features = ((f(x).numpy(), f(moved).numpy()) for f in (net, net[:3]))
    ris, ros, rrs = (
        getattr(quantus, f"Relative{kind}Stability")(disable_warnings=True)
        for kind in ("Input", "Output", "Representation")
    )
    want = {
        "ris": ris.relative_input_stability_objective(x.numpy(), moved.numpy(), *maps),
        "ros": ros.relative_output_stability_objective(*logits, *maps),
        "rrs": rrs.relative_representation_stability_objective(*features, *maps),
    }
    for name, values in want.items():
        np.testing.assert_allclose(ours[name].value, values, rtol=1e-9)
    lipschitz = LocalLipschitz(n_draws=1)
    moved = x + lipschitz.noise(scene, 0)
    distance = quantus.similarity_func.distance_euclidean
    euclidean = {"norm_numerator": distance, "norm_denominator": distance}
    flat = [t.flatten(1).numpy() for t in (explain(x), explain(moved), x, moved)]
    theirs = [quantus.similarity_func.lipschitz_constant(*(t[i] for t in flat), **euclidean) for i in range(4)]
    np.testing.assert_allclose(lipschitz(explain(x), scene).value, theirs, rtol=1e-6)


def test_entropy_of_maps_is_quantus():
    quantus = pytest.importorskip("quantus")
    got = histogram_entropy(torch.tensor(MAPS[:, 0]), 100)
    want = [quantus.complexity_func.discrete_entropy(a, a, n_bins=100) for a in MAPS]
    np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("radius", [0.02, 0.2])
def test_max_sensitivity_is_captums_given_the_same_neighbours(radius):
    captum_metrics = pytest.importorskip("captum.metrics")
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, 3)).double()
    x, target, model = toys.images(4, 6), toys.targets(4), toys.classifier(net)

    def gradient(z: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            z = z.detach().requires_grad_(True)
            classes = target.repeat_interleave(len(z) // 4).view(-1, 1)
            return torch.autograd.grad(net(z).gather(1, classes).sum(), z)[0].sum(1, keepdim=True)

    neighbours = []

    def explain(image: torch.Tensor) -> torch.Tensor:
        neighbours.append(model.normalise(image))
        return gradient(model.normalise(image))

    scene = Scene(model, x, target, target, toys.draws(4), explain=explain)
    ours = Sensitivity(n_draws=7, radius=radius)(gradient(model.normalise(x)), scene)
    theirs = captum_metrics.sensitivity_max(
        lambda z: (gradient(z[0]),) if isinstance(z, tuple) else gradient(z),
        model.normalise(x),
        perturb_func=lambda inputs: torch.stack(neighbours, 1).flatten(0, 1),
        n_perturb_samples=7,
    )
    torch.testing.assert_close(ours.value, theirs, atol=1e-12, rtol=1e-9)


def test_quantus_batch_mates_change_the_score_and_ours_do_not():
    pytest.importorskip("quantus")
    from tests.parity.peer_cases import quantus_effective_complexity_depends_on_batch_mates

    assert quantus_effective_complexity_depends_on_batch_mates() == (16.0, 0.0)
    planes = torch.ones(2, 1, 4, 4, dtype=torch.float64)
    planes[0] = 1e-6
    assert EffectiveComplexity()(planes, scene_of(2)).value.tolist() == [16.0, 16.0]


def test_quantus_completeness_is_never_true_and_ours_is():
    pytest.importorskip("quantus")
    from tests.parity.peer_cases import quantus_completeness_is_never_true

    assert quantus_completeness_is_never_true() == [False] * 6
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False)).double()
    nn.init.constant_(net[1].weight, 0.5)
    x = toys.images(6, 4, 1)
    assert Completeness()(0.5 * x, toys.scene(x, net))["complete"].value.tolist() == [1.0] * 6


def test_quantus_complexity_changes_its_input_and_ours_do_not():
    pytest.importorskip("quantus")
    from tests.parity.peer_cases import quantus_complexity_changes_its_input

    assert quantus_complexity_changes_its_input() == (pytest.approx(24.0), pytest.approx(1.0))
    planes = torch.tensor(MAPS)
    for metric in (Sparseness(), Complexity(), EffectiveComplexity()):
        metric(planes, scene_of(8))
    assert torch.equal(planes, torch.tensor(MAPS))


def test_zero_maps_are_flagged_where_peers_are_silent():
    pytest.importorskip("quantus")
    pytest.importorskip("captum")
    from tests.parity.peer_cases import captum_sensitivity_of_a_zero_map, quantus_complexity_of_a_zero_map

    assert np.isnan(quantus_complexity_of_a_zero_map())
    assert captum_sensitivity_of_a_zero_map() == pytest.approx(2.0)
    zero = torch.zeros(1, 1, 12, 12)
    assert Complexity()(zero, scene_of(1)).flag.tolist() == [UNDEFINED]
    scene = replace(scene_of(1), explain=torch.ones_like)
    assert Sensitivity(n_draws=3)(zero, scene).flag.tolist() == [UNDEFINED]
