"""Perturbation and randomisation against Quantus and scipy where they are right, and where Quantus is not.

Quantus flips channel elements since 0.6, its "black" is the image's minimum, and it normalises over the whole batch:
on one channel with a black pixel and unnormalised maps its formulas are the papers'.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from salrun.methods.superpixels import superpixels
from salrun.metrics.correlation import average_ranks, pearson, spearman
from salrun.metrics.faithfulness import Faithfulness
from salrun.metrics.imputation import imputed
from salrun.metrics.infidelity import Infidelity
from salrun.metrics.insertion import PixelFlipping
from salrun.metrics.irof import IROF
from salrun.metrics.monotonicity import Monotonicity
from salrun.models.classifier import Classifier
from salrun.models.randomised import execution_order
from salrun.rng import Draws
from salrun.types import Scene, Score
from tests.toys import draws, network

quantus = pytest.importorskip("quantus")

OPTIONS = {"abs": False, "normalise": False, "disable_warnings": True, "display_progressbar": False}


class Backwards(nn.Module):
    """Registered last to first."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.hidden = nn.Linear(6, 3), nn.Linear(64, 6)

    def forward(self, z: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(z.flatten(1))))


def setting(batch: int = 4) -> tuple[Scene, Tensor]:
    rng = draws(batch, seed=3)
    x = rng.uniform("x", (1, 8, 8))
    x[:, 0, 0, 0] = 0.0  # Quantus' black is the darkest pixel
    model = Classifier(network(channels=1, padding=1))
    target = model(x).argmax(1)
    return Scene(model=model, x=x, y=target, target=target, rng=rng), rng.uniform("plane", (1, 8, 8)) - 0.3


def quantus_scores(metric: object, scene: Scene, plane: Tensor, **options: object) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, y, a = scene.x.numpy(), scene.target.numpy(), plane.numpy()
        scores = metric(  # type: ignore[operator]
            model=scene.model.module, x_batch=x, y_batch=y, a_batch=a, softmax=True, channel_first=True, **options
        )
    return np.array(scores, dtype=float)


@pytest.mark.parametrize("step", [1, 4, 16])
def test_pixel_flipping(step: int) -> None:
    """The same curve; ours has the untouched image in front."""
    scene, plane = setting()
    theirs = quantus_scores(
        quantus.PixelFlipping(features_in_step=step, perturb_baseline="black", **OPTIONS), scene, plane
    )
    ours = PixelFlipping(step=step)(plane, scene)
    assert ours.curve is not None
    np.testing.assert_allclose(ours.curve[:, 1:].numpy(), theirs, rtol=1e-5)
    untouched = scene.model(scene.x).softmax(1).gather(1, scene.target[:, None])[:, 0]
    np.testing.assert_allclose(ours.curve[:, 0].numpy(), untouched.detach().numpy(), rtol=1e-5)
    whole = np.concatenate([ours.curve[:, :1].numpy(), theirs], 1)
    area = (whole[:, 1:] + whole[:, :-1]).sum(1) / 2 * step / 64
    np.testing.assert_allclose(ours.value.numpy(), area, rtol=1e-5)


def test_faithfulness_estimate() -> None:
    """Pixel by pixel over all pixels, Quantus' estimate is Tomsett's F on all pixels."""
    scene, plane = setting()
    metric = quantus.FaithfulnessEstimate(features_in_step=1, perturb_baseline="black", **OPTIONS)
    theirs = quantus_scores(metric, scene, plane)
    ours = Faithfulness(perturbations=["mean"], n_pixels=64)(plane, scene)["mean"]
    np.testing.assert_allclose(ours.value.numpy(), theirs, atol=1e-4)  # their answers are float32


@pytest.mark.parametrize("groups", [8, 32])
def test_monotonicity_correlation(groups: int) -> None:
    scene, plane = setting()
    metric = quantus.MonotonicityCorrelation(
        nr_samples=1, features_in_step=64 // groups, perturb_baseline="black", **(OPTIONS | {"abs": True})
    )
    theirs = quantus_scores(metric, scene, plane)
    ours = Monotonicity(definition="nguyen", groups=groups, baseline="black")(plane, scene)
    assert isinstance(ours, Score)
    np.testing.assert_allclose(ours.value.numpy(), theirs, atol=1e-6)


@pytest.mark.parametrize("levels", [3, 50, 10**6])
def test_correlations_equal_scipy(levels: int) -> None:
    rng = Draws.of(0, list("abcde"))
    a, b = (rng.integer(levels, name, 200).double() for name in "ab")
    for i in range(5):
        assert average_ranks(a)[i].tolist() == stats.rankdata(a[i]).tolist()
        assert float(pearson(a, b)[i]) == pytest.approx(stats.pearsonr(a[i], b[i]).statistic, abs=1e-13)
        assert float(spearman(a, b)[i]) == pytest.approx(stats.spearmanr(a[i], b[i]).statistic, abs=1e-13)


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_road_imputes_as_quantus(share: float) -> None:
    x, rank = draws(1).uniform("x", (3, 9, 7), dtype=torch.float64), draws(1).permutation(63, "order")[0]
    hole = (rank < share * 63).view(1, 1, 9, 7)
    theirs = quantus.perturb_func.noisy_linear_imputation(x[0].numpy(), np.flatnonzero(hole), noise=0.0)
    np.testing.assert_allclose(imputed(x, hole, 30)[0].numpy(), theirs, atol=1e-9)


def test_irof_is_quantus_over_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs is L - area of the curve without its point 0, the segments one apart; ours divides by L and has it."""

    def segments_of(image: np.ndarray, **_: object) -> np.ndarray:
        """Ours, for which grey is RGB."""
        pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
        return superpixels(pixels, "slic", 100, 10.0, 0, 0, 0)[0].view(8, 8).numpy()

    monkeypatch.setattr(np, "trapz", np.trapezoid, raising=False)  # what NumPy 2.4 no longer has
    monkeypatch.setattr(quantus.helpers.utils, "get_superpixel_segments", lambda img, **_: segments_of(img))
    scene, plane = setting()
    black = {"perturb_baseline": 0.0, "return_aggregate": False}
    theirs = quantus_scores(quantus.IROF(segmentation_method="slic", **black, **OPTIONS), scene, plane)
    ours = IROF(n_segments=100, substrate="black")(plane, scene)
    whole = scene.model(scene.x).softmax(1)
    for i, x in enumerate(scene.x):
        segments = segments_of(x.permute(1, 2, 0).double().numpy())
        mean = [plane[i, 0].numpy()[segments == s].mean() for s in range(segments.max() + 1)]
        first = x * torch.from_numpy(segments != np.argmax(mean))
        relative = float((scene.model(first[None]).softmax(1) / whole[i])[0, scene.target[i]].detach())
        area = len(mean) - theirs[i] + (1 + relative) / 2
        assert float(ours.value[i]) == pytest.approx(1 - area / len(mean), abs=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
def test_infidelity_is_captums_given_the_same_perturbations(scaled: bool) -> None:
    captum = pytest.importorskip("captum.metrics")
    scene, plane = setting()
    metric = Infidelity(n_draws=6, size=3, scaled=scaled)
    image, draw = torch.arange(4).repeat_interleave(6), torch.arange(6).repeat(4)
    change = metric.change(scene.x, scene.rng, image, draw)
    theirs = captum.infidelity(
        scene.model.module,
        lambda inputs: (change, inputs - change),
        scene.x,
        plane,
        target=scene.target,
        n_perturb_samples=6,
        normalize=scaled,
    )
    np.testing.assert_allclose(metric(plane, scene).value.numpy(), theirs.detach().numpy(), rtol=1e-4)


# Where Quantus 0.6 differs, and why ours does not follow --------------------------------------------------------------


def test_quantus_monotonicity_never_inserts_the_image() -> None:
    """It writes the baseline over the baseline, so f never moves and every map is monotone; ours tells them apart."""
    scene, plane = setting()
    metric = quantus.Monotonicity(features_in_step=8, perturb_baseline="black", **OPTIONS)
    assert quantus_scores(metric, scene, plane).tolist() == [1.0] * 4
    assert quantus_scores(metric, scene, -plane).tolist() == [1.0] * 4
    ours = Monotonicity(definition="arya", groups=8)(plane, scene)
    assert isinstance(ours, dict)
    curve = ours["all"].curve
    assert curve is not None
    assert curve.diff(dim=1).abs().min() > 0
    assert ours["all"].value.tolist() == [0.0] * 4


def explain(model: nn.Module, inputs: np.ndarray, targets: np.ndarray, **_: object) -> np.ndarray:
    x = torch.as_tensor(inputs).requires_grad_()
    y = model(x).gather(1, torch.as_tensor(targets).view(-1, 1)).sum()
    return torch.autograd.grad(y, x)[0].numpy()


def test_quantus_mprt_average_counts_the_map_with_itself() -> None:
    scene, _ = setting()
    options = {"similarity_func": quantus.similarity_func.correlation_spearman, **OPTIONS}
    plane = torch.from_numpy(explain(scene.model.module, scene.x.numpy(), scene.target.numpy()))
    average = quantus_scores(
        quantus.MPRT(return_average_correlation=True, **options), scene, plane, explain_func=explain
    )
    metric = quantus.MPRT(return_average_correlation=False, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = metric(
            model=scene.model.module,
            x_batch=scene.x.numpy(),
            y_batch=scene.target.numpy(),
            a_batch=plane.numpy(),
            explain_func=explain,
            channel_first=True,
        )
    assert np.allclose(layers["original"], 1.0)
    with_itself = np.mean(list(layers.values()), axis=0)
    without = np.mean([v for name, v in layers.items() if name != "original"], axis=0)
    np.testing.assert_allclose(average, with_itself, atol=1e-6)
    assert (average > without + 0.1).all()


def test_quantus_randomises_in_registration_order() -> None:
    module = Backwards().eval()
    theirs = quantus.helpers.model.pytorch_model.PyTorchModel(module).get_random_layer_generator("top_down", seed=0)
    assert [name for name, _ in theirs if name != "original"] == ["hidden", "out"], (
        "the layer nearest to the image first"
    )
    assert execution_order(Classifier(module), torch.rand(1, 1, 8, 8)) == ["hidden", "out"], "ours, first to last"
