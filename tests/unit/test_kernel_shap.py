"""Kernel SHAP against the closed form of the Shapley value."""

from itertools import combinations
from math import factorial

import pytest
import torch
from torch import nn

from salrun.errors import SalrunError
from salrun.methods.kernel_shap import KernelSHAP
from salrun.methods.superpixels import grid, superpixels
from tests.toys import classifier, close, draws, images, network, run, targets


def value(model, x, segment, on, target, output):
    """v(S): the parts of S as they are, the others in their mean colour."""
    hidden = x.clone()
    for part in segment.unique():
        if int(part) not in on:
            where = segment == part
            hidden[:, where] = x[:, where].mean(1, keepdim=True)
    logits = model(hidden[None]).detach()[0]
    return float((logits.softmax(0) if output == "probability" else logits)[target])


def shapley(model, x, segment, target, output):
    """phi_i = sum over S without i of s! (n - s - 1)! / n! (v(S + i) - v(S))."""
    n = int(segment.max()) + 1
    phi = torch.zeros(n, dtype=torch.float64)
    for i in range(n):
        others = [j for j in range(n) if j != i]
        for s in range(n):
            for chosen in combinations(others, s):
                gained = value(model, x, segment, {*chosen, i}, target, output)
                gained -= value(model, x, segment, set(chosen), target, output)
                phi[i] += factorial(s) * factorial(n - s - 1) / factorial(n) * gained
    return phi


@pytest.mark.parametrize("output", ["logit", "probability"])
@pytest.mark.parametrize("cells", [1, 2])
def test_few_parts_are_exact(cells, output):
    model, x = classifier(), images()
    raw = run(KernelSHAP(14, cells=cells, output=output), model, x, chunk=4)
    for b in range(3):
        segment = grid(x, cells)[b].view(8, 8)
        close(raw[b, 0], shapley(model, x[b], segment, targets(3)[b], output)[segment], 1e-9)


def test_superpixels_are_exact_too():
    """Images of different numbers of parts stand in one batch; one has more coalitions than are taken."""
    model, x = classifier(network(12)), images(3, 12)
    x[1] = 0.5  # one colour: squares
    method = KernelSHAP(62, "slic", n_segments=5, output="logit")
    segment, counts = superpixels(x, "slic", 5, 10.0, 0.2, 4.0, 200.0)
    assert len(set(counts)) > 1
    raw = run(method, model, x)
    for b in [b for b in range(3) if counts[b] <= 6]:
        labels = segment[b].view(12, 12)
        close(raw[b, 0], shapley(model, x[b], labels, targets(3)[b], "logit")[labels], 1e-9)


def test_drawn_coalitions_come_near_and_sum_exactly():
    model, x = classifier(network(12)), images(2, 12)
    segment = grid(x, 3)
    exact, drawn = (run(KernelSHAP(n, cells=3, output="logit"), model, x) for n in (510, 400))
    assert 1e-9 < (drawn - exact).abs().max() < 0.1 * exact.abs().max()
    size = torch.bincount(segment[0]).double()[segment].view(2, 1, 12, 12)
    for b in range(2):
        labels, c = segment[b].view(12, 12), targets(2)[b]
        gain = value(model, x[b], labels, set(range(9)), c, "logit") - value(model, x[b], labels, set(), c, "logit")
        for some in (exact, drawn):
            assert float((some / size)[b].sum()) == pytest.approx(gain, abs=1e-9)


def test_the_kernels_sizes_are_drawn_as_they_should():
    """Of 9 parts, sizes 1..8 with probabilities ~ 1 / (s (9 - s)); each coalition is followed by its complement."""
    n = torch.full((1,), 9)
    on, weight = KernelSHAP(400).coalitions(draws(1), n, 9)
    assert (weight == 1).all() and (on[:, 0::2] == ~on[:, 1::2]).all()
    on, _ = KernelSHAP(20_000, cells=9).coalitions(draws(1), torch.full((1,), 20), 20)
    share = torch.bincount(on.sum(2).flatten(), minlength=21)[1:20] / 20_000
    sizes = torch.arange(1, 20)
    expected = 1 / (sizes * (20 - sizes)).double()
    torch.testing.assert_close(share.double(), expected / expected.sum(), rtol=0, atol=0.01)


def test_too_few_samples_are_refused():
    with pytest.raises(SalrunError, match="at least twice the 49 parts of an image, got 50"):
        run(KernelSHAP(50), classifier(), images())


def test_a_linear_model_has_its_own_answer():
    """Parts do not interact: phi is what each part alone brings."""
    model, x = classifier(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 3))), images()
    raw = run(KernelSHAP(40, cells=3, hide="constant", output="logit"), model, x)
    weights = model.module[1].weight.detach()[targets(3)].view_as(x)
    each = (weights * (model.normalise(x) - model.normalise(torch.zeros_like(x)))).sum(1).flatten(1)
    segment = grid(x, 3)
    phi = torch.zeros(3, 9, dtype=torch.float64).scatter_add_(1, segment, each)
    close(raw.flatten(1), phi.gather(1, segment), 1e-9)
