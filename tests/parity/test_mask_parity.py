"""LIME against the lime package, RISE's masks against the authors' recipe."""

import numpy as np
import pytest
import torch

from salrun.methods.lime import LIME
from salrun.methods.rise import draw_masks
from salrun.methods.superpixels import superpixels
from salrun.rng import Draws
from salrun.types import Fitted
from tests.toys import classifier, network


def picture():
    """Coloured blobs with a little noise: quickshift finds a dozen superpixels."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:48, :64] / 3.0
    image = 0.5 + 0.4 * np.stack([np.sin(rows) * np.cos(columns), np.cos(rows + columns), np.sin(columns)], axis=-1)
    return np.clip(image + 0.05 * random.standard_normal(image.shape), 0, 1)


class Given:
    """A numpy random state that hands out our samples where lime draws its own."""

    def __init__(self, samples):
        self.samples = samples

    def randint(self, low, high=None, size=None):
        return 0 if size is None else self.samples.reshape(-1).copy()


@pytest.mark.parametrize("hide", ["mean", "constant"])
def test_lime_package(hide):
    """The package's own segmentation, perturbation, kernel and regression, fed with the same random bits."""
    explainer_class = pytest.importorskip("lime.lime_image").LimeImageExplainer
    base_class = pytest.importorskip("lime.lime_base").LimeBase
    model, image, rng = classifier(network((48, 64), stride=2)), picture(), Draws.of(4, ["a"])
    method = LIME(n_samples=60, positive_part=False, hide=hide, hide_value=0.2)
    x = torch.from_numpy(image).permute(2, 0, 1)[None]
    plane = method(model, x, torch.tensor([2]), rng, Fitted())[0, 0]

    looks = method.n_segments, method.compactness, method.ratio, method.kernel_size, method.max_dist
    labels, (n,) = superpixels(x, method.segmentation, *looks)
    segments = labels.view(x.shape[2:]).numpy()
    assert n > 6
    samples = method._samples(rng, torch.tensor([n]), n)[0].long().numpy()
    explainer = explainer_class()
    explainer.random_state = Given(samples)
    explainer.base = base_class(explainer.base.kernel_fn, random_state=0)
    explanation = explainer.explain_instance(
        image,
        lambda batch: model(torch.from_numpy(batch).permute(0, 3, 1, 2)).softmax(1).detach().numpy(),
        labels=(2,),
        top_labels=None,
        hide_color=None if hide == "mean" else 0.2,
        num_samples=60,
    )
    np.testing.assert_array_equal(explanation.segments, segments)
    expected = np.zeros(segments.shape)
    for name, coefficient in explanation.local_exp[2]:
        expected[segments == name] = coefficient
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(plane, expected, rtol=0, atol=1e-10)


def test_rise_masks_of_the_authors():
    """The authors enlarge with scikit-image (order 1, reflect).

    The same inside; towards the border, less than half a cell from the outermost cell centres, scikit-image mirrors
    about the centre of the outermost cell where torch repeats it.
    """
    resize = pytest.importorskip("skimage.transform").resize
    cells, size, cell, rng = 7, 56, 8, Draws.of(0, ["a"])
    like = torch.zeros(1, 3, size, size, dtype=torch.float64)
    masks = draw_masks(rng, slice(0, 12), cells, 0.5, like)
    worst = 0.0
    for i in range(12):
        grid = rng.uniform("rise/grid", (cells, cells), start=i * cells**2, shared=True) < 0.5
        top, left = (int(rng.integer(cell, f"rise/shift_{axis}", 1, start=i, shared=True)) for axis in "yx")
        side = (cells + 1) * cell
        large = resize(grid.double().numpy(), (side, side), order=1, mode="reflect", anti_aliasing=False)
        expected = torch.from_numpy(large[top : top + size, left : left + size])
        # Where the source coordinate lies between the first and the last cell centre.
        source = (torch.arange(side) + 0.5) * cells / side - 0.5
        inside = (source >= 0) & (source <= cells - 1)
        both = inside[top : top + size, None] & inside[None, left : left + size]
        assert both.float().mean() > 0.7
        torch.testing.assert_close(masks[i][both], expected[both], rtol=0, atol=1e-12)
        worst = max(worst, float((masks[i] - expected).abs().max()))
    assert worst <= 0.5 + 1e-9
