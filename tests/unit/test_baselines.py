"""Edges by hand, by scipy and by OpenCV; random numbers; maps made of masks."""

import numpy as np
import pytest
import torch

from salrun.errors import SalrunError
from salrun.methods.baselines import AllLit, Edge, Oracle, Random, on_cells
from salrun.models.classifier import Classifier
from salrun.types import NEUTRAL, PRIMARY, SECONDARY
from tests import toys

B = 4
MODEL = Classifier(torch.nn.Identity())


def images(channels=3):
    return toys.images(B, (9, 11), channels)


def run(method, x, **given):
    return toys.run(method, MODEL, x, **given)


@pytest.mark.parametrize(("kernel", "gain"), [("sobel3", 8), ("sobel5", 128)])
def test_edge_of_a_ramp(kernel, gain):
    """A slope s gives s times (sum of smoothing) x (first moment of the derivative), the same at every inner pixel."""
    across = torch.arange(11.0).expand(B, 1, 9, 11)
    down = torch.arange(9.0).view(9, 1).expand(B, 1, 9, 11)
    inner = (..., slice(2, -2), slice(2, -2))
    assert (run(Edge(kernel, "x"), 0.5 * across)[inner] == 0.5 * gain).all()
    assert (run(Edge(kernel, "x"), -0.5 * across)[inner] == -0.5 * gain).all()
    assert (run(Edge(kernel, "x"), down) == 0).all()
    tilted = run(Edge(kernel), 3 * across + 4 * down)
    torch.testing.assert_close(tilted[inner], torch.full_like(tilted[inner], 5 * gain))


def test_edge_is_scipys_sobel():
    ndimage = pytest.importorskip("scipy.ndimage")
    x = images()
    for b in range(B):
        for c in range(3):
            plane = x[b, c].numpy()
            gx, gy = (ndimage.sobel(plane, axis=axis, mode="mirror") for axis in (1, 0))
            per_channel = run(Edge(reduce="per_channel"), x)
            np.testing.assert_allclose(per_channel[b, c], np.hypot(gx, gy), atol=1e-12)
            np.testing.assert_allclose(run(Edge(axis="x", reduce="per_channel"), x)[b, c], gx, atol=1e-12)
    largest = run(Edge(reduce="channel_max"), x)
    torch.testing.assert_close(largest, per_channel.amax(1, keepdim=True))


@pytest.mark.parametrize("size", [3, 5])
def test_edge_is_opencvs_sobel(size):
    cv2 = pytest.importorskip("cv2")
    x = images()
    found = run(Edge(f"sobel{size}", "x", "per_channel"), x)
    scaled = run(Edge(f"sobel{size}", "x", "per_channel", minmax=True), x)
    for b in range(B):
        picture = np.ascontiguousarray(x[b].permute(1, 2, 0).numpy())
        edges = cv2.Sobel(picture, cv2.CV_64F, 1, 0, ksize=size)
        np.testing.assert_allclose(found[b].permute(1, 2, 0), edges, atol=1e-12)
        expected = (edges - edges.min()) / (edges.max() - edges.min())
        np.testing.assert_allclose(scaled[b].permute(1, 2, 0), expected, atol=1e-12)


def test_luma():
    x = images()
    grey = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    torch.testing.assert_close(run(Edge(), x), run(Edge(), grey))
    with pytest.raises(SalrunError, match="reduce=luma of edge"):
        run(Edge(), images(2))
    assert run(Edge(reduce="channel_max"), images(2)).shape == (B, 1, 9, 11)


def test_a_flat_image_has_no_edges():
    for minmax in (False, True):
        assert (run(Edge(minmax=minmax), torch.zeros(B, 3, 9, 11)) == 0).all()


def test_random_is_uniform_and_by_image():
    x = torch.zeros(B, 3, 64, 64)
    raw = run(Random(), x)
    assert raw.shape == x.shape
    assert 0 <= raw.min() < 1e-3
    assert 1 - 1e-3 < raw.max() < 1
    assert abs(raw.mean() - 0.5) < 0.005
    assert abs(raw.var() - 1 / 12) < 0.002
    correlation = torch.corrcoef(raw.reshape(B * 3, -1)) - torch.eye(B * 3)
    assert correlation.abs().max() < 0.07
    other = run(Random(), x, rng=toys.draws(B, seed=1))
    assert (other != raw).float().mean() > 0.99


def scene():
    """Text is primary in images 0 and 1, the box in 1 and 2, nothing in 3; the text's ink is less than its region."""
    text, box, ink = (torch.zeros(B, 9, 11, dtype=torch.bool) for _ in range(3))
    text[:, :4, :4], ink[:, 1:3, 1:3], box[:, 5:7, 6:9] = True, True, True
    return {
        "masks": {"text": text, "text_ink": ink, "box": box},
        "roles": {
            "text": torch.tensor([PRIMARY, PRIMARY, SECONDARY, NEUTRAL]),
            "box": torch.tensor([SECONDARY, PRIMARY, PRIMARY, NEUTRAL]),
        },
    }


def test_oracle_and_all_lit():
    x, given = images(), scene()
    ink, box = given["masks"]["text_ink"][0].double(), given["masks"]["box"][0].double()
    expected = torch.stack([ink, ink + box, box, 0 * box]).unsqueeze(1)
    assert torch.equal(run(Oracle(), x, **given), expected)
    assert torch.equal(run(AllLit(), x, **given), (ink + box).expand(B, 1, 9, 11))
    assert torch.equal(run(AllLit(), x, masks=given["masks"]), (ink + box).expand(B, 1, 9, 11))


def test_masks_are_needed():
    with pytest.raises(SalrunError, match="'oracle' needs masks"):
        run(Oracle(), images(), masks=scene()["masks"])
    with pytest.raises(SalrunError, match="'all_lit' needs masks"):
        run(AllLit(), images())


def test_the_best_map_that_tokens_can_show():
    plane = torch.zeros(1, 1, 4, 4)
    plane[..., :2, :2] = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert on_cells(plane, None) is plane
    cells = on_cells(plane, 2)[0, 0]
    assert cells[0, 0] == 0.5 and cells[3, 3] == 0 and cells[0, 1] == 0.5 * 0.75  # bilinear between the cells
    assert torch.equal(on_cells(plane, 4), plane)
