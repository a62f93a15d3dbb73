"""Occlusion against plain loops and a model whose answer is known."""

import pytest
import torch
from torch import nn

from salrun.errors import SalrunError
from salrun.methods.occlusion import Occlusion
from tests.toys import classifier, close, images, run, targets


def test_a_linear_model_loses_what_the_window_hides():
    """Windows of one pixel: what is lost is w z, z the normalised pixel, summed over channels."""
    model, x = classifier(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 3))), images()
    weights = model.module[1].weight.detach()[targets(3)].view_as(x)
    expected = (weights * model.normalise(x)).sum(1, keepdim=True)
    close(run(Occlusion(window=1, stride=1), model, x), expected, 1e-10)


@pytest.mark.parametrize("output", ["logit", "probability"])
@pytest.mark.parametrize("baseline", ["zeros", "black"])
@pytest.mark.parametrize(("window", "stride", "size"), [(3, 2, 8), (4, 4, (8, 10)), (5, 3, (9, 7)), (20, 1, 8)])
def test_slow_twin(window, stride, size, baseline, output):
    """Windows start every `stride` until the last pixel is covered; a pixel has the mean of those over it."""
    x, target = images(size=size), targets(3)
    height, width = x.shape[2:]
    model = classifier(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)))
    model(x)
    score = lambda image, c: (model.module(image).softmax(1) if output == "probability" else model.module(image))[0, c]
    starts = lambda length: [s for s in range(0, length, stride) if s == 0 or s - stride + window < length]
    raw = run(Occlusion(window, stride, baseline, output), model, x, chunk=7)
    for b in range(3):
        point, total, covered = model.normalise(x[b : b + 1]), torch.zeros(height, width).double(), 0
        empty = torch.zeros_like(point) if baseline == "zeros" else model.normalise(torch.zeros_like(point))
        for top in starts(height):
            for left in starts(width):
                hide = torch.zeros(height, width, dtype=torch.bool)
                hide[top : top + window, left : left + window] = True
                lost = score(point, target[b]) - score(torch.where(hide, empty, point), target[b])
                total, covered = total + lost.detach() * hide, covered + hide.int()
        close(raw[b, 0], total / covered, 1e-10)


def test_by_default_the_work_does_not_grow_with_the_image():
    assert Occlusion().passes(None, (3, 224, 224)) == Occlusion().passes(None, (3, 64, 64)) == 226


def test_gaps_are_refused():
    with pytest.raises(SalrunError, match="stride of occlusion must not leave gaps: at most window=4, got 5"):
        Occlusion(window=4, stride=5)
    with pytest.raises(SalrunError, match="at most window=1, got 5"):
        run(Occlusion(stride=5), classifier(), images())
