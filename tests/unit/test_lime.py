"""LIME against scikit-learn's ridge, a plain numpy loop, and a model that is linear in its superpixels."""

import numpy as np
import pytest
import torch
from skimage.segmentation import quickshift, slic
from torch import nn

from salrun.errors import SalrunError
from salrun.methods.lime import LIME, weighted_ridge
from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import Fitted
from tests import toys
from tests.toys import classifier, targets

IDS = ("a", "b", "c")


def network(channels=3):
    return classifier(toys.network((20, 24), channels), (0.4,) * channels, (0.25,) * channels)


def images(channels=3):
    """Noisy patches of colour of different sizes, so that the images have different numbers of superpixels."""
    generator = torch.Generator().manual_seed(5)
    x = torch.empty(3, channels, 20, 24, dtype=torch.float64)
    for image, patch in zip(x, (4, 5, 10), strict=True):
        small = torch.rand(1, channels, 20 // patch, -(-24 // patch), generator=generator, dtype=torch.float64)
        image[:] = small.repeat_interleave(patch, 2).repeat_interleave(patch, 3)[0, :, :20, :24]
    noise = torch.rand(x.shape, generator=generator, dtype=torch.float64)
    return 0.8 * x + 0.2 * noise, targets(3)


def small_slic(**options):
    return LIME(segmentation="slic", n_segments=12, **options)


def segments_of(method, image):
    pixels = image.permute(1, 2, 0).numpy()
    if method.segmentation == "slic":
        return slic(pixels, n_segments=method.n_segments, compactness=method.compactness, start_label=0)
    return quickshift(pixels, kernel_size=method.kernel_size, max_dist=method.max_dist, ratio=method.ratio)


def lime_by_loop(method, model, image, target, rng):
    """The image explainer's procedure for one image, sample by sample, with scikit-learn's Ridge."""
    ridge = pytest.importorskip("sklearn.linear_model").Ridge
    segments = segments_of(method, image)
    names = np.unique(segments)
    off = image.clone()
    for name in names:
        inside = torch.from_numpy(segments == name)
        off[:, inside] = image[:, inside].mean(1, keepdim=True) if method.hide == "mean" else method.hide_value
    features = np.zeros((method.n_samples, len(names)))
    labels, weights = np.zeros(method.n_samples), np.zeros(method.n_samples)
    for i in range(method.n_samples):
        for j in range(len(names)):
            features[i, j] = 1 if i == 0 else int(rng.integer(2, "lime", 1, start=j * method.n_samples + i)[0, 0])
        sample = image.clone()
        for name, kept in zip(names, features[i], strict=True):
            if not kept:
                inside = torch.from_numpy(segments == name)
                sample[:, inside] = off[:, inside]
        labels[i] = model(sample[None]).softmax(1)[0, target].item()
        on = features[i].sum()
        distance = 1 - on / (np.sqrt(on) * np.sqrt(len(names))) if on else 1.0
        weights[i] = np.sqrt(np.exp(-(distance**2) / method.kernel_width**2))
    coefficients = ridge(alpha=method.alpha, fit_intercept=True).fit(features, labels, sample_weight=weights).coef_
    plane = torch.zeros(image.shape[1:], dtype=torch.float64)
    for name, coefficient in zip(names, coefficients, strict=True):
        plane[torch.from_numpy(segments == name)] = max(coefficient, 0.0) if method.positive_part else coefficient
    return plane


@pytest.mark.parametrize("alpha", [1.0, 0.01, 30.0])
def test_ridge_equals_scikit_learn(alpha):
    ridge = pytest.importorskip("sklearn.linear_model").Ridge
    random = np.random.default_rng(0)
    z = random.integers(0, 2, (4, 60, 9)).astype(float)
    z[:, :, 7:] = 0  # padding
    y, weight = random.random((4, 60)), random.random((4, 60)) ** 3
    found = weighted_ridge(*map(torch.from_numpy, (z, y, weight)), alpha)
    for b in range(4):
        expected = ridge(alpha=alpha).fit(z[b, :, :7], y[b], sample_weight=weight[b]).coef_
        np.testing.assert_allclose(found[b, :7], expected, rtol=0, atol=1e-12)
        assert (found[b, 7:] == 0).all()


def test_ridge_with_more_features_than_samples():
    ridge = pytest.importorskip("sklearn.linear_model").Ridge
    random = np.random.default_rng(1)
    z, y, weight = random.integers(0, 2, (1, 8, 30)).astype(float), random.random((1, 8)), random.random((1, 8))
    found = weighted_ridge(*map(torch.from_numpy, (z, y, weight)), 1.0)
    np.testing.assert_allclose(found[0], ridge(alpha=1.0).fit(z[0], y[0], sample_weight=weight[0]).coef_, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"segmentation": "slic", "n_segments": 12},
        {"segmentation": "slic", "n_segments": 12, "positive_part": False, "kernel_width": 0.4, "alpha": 0.1},
        {"segmentation": "slic", "n_segments": 12, "hide": "constant", "hide_value": 0.3},
        {"segmentation": "quickshift", "kernel_size": 2.0, "max_dist": 12.0, "ratio": 0.5, "positive_part": False},
    ],
)
def test_map_equals_a_plain_loop(options):
    model, (x, target) = network(), images()
    method, rng = LIME(n_samples=40, **options), Draws.of(1, IDS)
    maps = method(model, x, target, rng, Fitted(chunk=16))
    counts = {len(np.unique(segments_of(method, image))) for image in x}
    assert len(counts) > 1, "the images should differ in their number of superpixels"
    for b in range(3):
        expected = lime_by_loop(method, model, x[b], target[b], rng[b : b + 1])
        torch.testing.assert_close(maps[b, 0], expected, rtol=0, atol=1e-10)
        assert expected.abs().max() > 1e-4


class Patches(nn.Module):
    """p_0 = 1/2 + sum of weights of the left and right halves' brightness."""

    def forward(self, x):
        p = 0.5 + 0.3 * x[..., :8].mean((1, 2, 3)) - 0.2 * x[..., 8:].mean((1, 2, 3))
        return torch.stack([p.log(), (1 - p).log()], 1)


def test_a_linear_model_gets_its_own_coefficients():
    """Two flat halves of brightness 1 that turn black: the effects are 0.3 and -0.2."""
    x = torch.ones(1, 3, 8, 16, dtype=torch.float64)
    x[..., 8:] = torch.tensor([1.0, 0.99, 0.99], dtype=torch.float64).view(3, 1, 1)
    method = LIME(segmentation="slic", n_segments=2, hide="constant", positive_part=False, alpha=1e-9, n_samples=50)
    rng, target = Draws.of(0, ["a"]), torch.tensor([0])
    plane = method(Classifier(Patches()), x, target, rng, Fitted())[0, 0]
    right = 0.2 * (1 + 2 * 0.99) / 3
    torch.testing.assert_close(plane[:, :8], torch.full((8, 8), 0.3, dtype=torch.float64), rtol=0, atol=1e-8)
    torch.testing.assert_close(plane[:, 8:], torch.full((8, 8), -right, dtype=torch.float64), rtol=0, atol=1e-8)
    clipped = LIME(segmentation="slic", n_segments=2, hide="constant", alpha=1e-9, n_samples=50)
    torch.testing.assert_close(clipped(Classifier(Patches()), x, target, rng, Fitted())[0, 0], plane.clamp(min=0))


def test_samples_are_fair_coins_and_start_with_all_on():
    method = LIME(n_samples=2000)
    on = method._samples(Draws.of(0, IDS), torch.tensor([5, 9, 7]), 9)
    assert on.shape == (3, 2000, 9)
    for b, n in enumerate((5, 9, 7)):
        assert on[b, 0, :n].all()
        assert not on[b, :, n:].any()
        assert (on[b, 1:, :n].double().mean(0) - 0.5).abs().max() < 5 * 0.5 / 2000**0.5
    assert not torch.equal(on[0, :, :5], on[1, :, :5])
    torch.testing.assert_close(method._samples(Draws.of(0, IDS), torch.tensor([5, 6, 6]), 6)[0], on[0, :, :6])


@pytest.mark.parametrize("chunk", [1, 2, 5, None, 999])
def test_neither_chunk_nor_batch_mates_matter(chunk):
    model, (x, target) = network(), images()
    method = small_slic(n_samples=30, positive_part=False)
    whole = method(model, x, target, Draws.of(1, IDS), Fitted(chunk=7))
    torch.testing.assert_close(
        method(model, x, target, Draws.of(1, IDS), Fitted(chunk=chunk)), whole, rtol=0, atol=1e-12
    )
    alone = method(model, x[1:2], target[1:2], Draws.of(1, IDS[1:2]), Fitted(chunk=chunk))
    torch.testing.assert_close(alone, whole[1:2], rtol=0, atol=1e-12)
    for bad in (torch.nan, torch.inf):
        spoilt = torch.cat([x[:2], torch.full_like(x[:1], bad)])
        maps = method(model, spoilt, target, Draws.of(1, IDS), Fitted(chunk=chunk))
        torch.testing.assert_close(maps[:2], whole[:2], rtol=0, atol=1e-12)
        assert maps[2].isnan().all()


@pytest.mark.parametrize("chunk", [1, 4, 7, 32])
def test_every_forward_pass_but_the_last_is_a_full_chunk(chunk):
    model, (x, target) = network(), images()
    sizes = []
    model.module.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    small_slic(n_samples=5)(model, x, target, Draws.of(1, IDS), Fitted(chunk=chunk))
    assert sizes == [*[chunk] * (15 // chunk), *[15 % chunk] * (15 % chunk > 0)]


@pytest.mark.parametrize("segmentation", ["quickshift", "slic"])
@pytest.mark.parametrize("channels", [1, 2])
def test_grey_and_other_images_work(segmentation, channels):
    x, target = images(channels)
    method = LIME(n_samples=20, segmentation=segmentation, kernel_size=2.0, max_dist=6.0, positive_part=False)
    maps = method(network(channels), x, target, Draws.of(1, IDS), Fitted())
    assert maps.shape == (3, 1, 20, 24)
    assert maps.isfinite().all()
    assert (maps.flatten(1).abs().amax(1) > 1e-6).all()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"alpha": 0.0}, "alpha"),
        ({"ratio": 1.5}, "ratio"),
        ({"kernel_width": -1.0}, "kernel_width"),
    ],
)
def test_bad_options_are_named(options, word):
    with pytest.raises(SalrunError, match=f"{word} of LIME"):
        LIME(**options)


def test_too_few_targets_are_an_error():
    model, (x, target) = network(), images()
    with pytest.raises(SalrunError, match="target"):
        small_slic()(model, x, target[:2], Draws.of(1, IDS), Fitted())
