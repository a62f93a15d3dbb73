"""FullGrad: its decomposition is complete, its map is the slow twin's."""

import torch
from torch import nn
from torch.nn import functional as F

from salrun.methods.full_grad import FullGrad, bias_of
from tests.toys import classifier, close, images, run, seeded, targets


def net(in_place=True):
    def build():
        module = nn.Sequential(
            *(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(inplace=in_place), nn.Conv2d(5, 4, 3, bias=False)),
            *(nn.BatchNorm2d(4), nn.ReLU(inplace=in_place), nn.Conv2d(4, 4, 1), nn.ReLU(inplace=in_place)),
            *(nn.Flatten(), nn.Linear(64, 3, bias=False)),
        )
        for norm in (module[1], module[4]):
            for t in (norm.weight, norm.running_var, norm.running_mean, norm.bias):
                nn.init.uniform_(t, 0.5, 1.5)
        return module

    return classifier(seeded(build))


def test_input_and_biases_make_the_logit():
    """sum(x g) + sum over layers of sum(b dy/dz) = y_c in a ReLU network without other biases."""
    model, x, target = net(), images(), targets(3)
    parts = FullGrad().contributions(model, x, target)
    assert len(parts) == 5  # input, convolution, two batch norms, convolution
    total = sum(part.sum((1, 2, 3)) for part in parts)
    close(total, model(x).detach().gather(1, target[:, None])[:, 0], 1e-10)


def test_slow_twin():
    model, x, target = net(in_place=False), images(), targets(3)
    raw = run(FullGrad(), model, x, chunk=2)
    for b in range(3):
        point = model.normalise(x[b : b + 1]).requires_grad_(True)
        layers, t = [], point
        for layer in model.module:
            t = layer(t)
            if bias_of(layer) is not None:
                layers.append((t, bias_of(layer).detach().view(1, -1, 1, 1)))
        gradients = torch.autograd.grad(t[0, target[b]], [point, *(z for z, _ in layers)])
        terms = [point.detach() * gradients[0], *(bias * g for (_, bias), g in zip(layers, gradients[1:], strict=True))]
        expected = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
        for term in terms:
            size = term.abs()
            size = (size - size.min()) / (size.max() - size.min())
            expected += F.interpolate(size, size=(8, 8), mode="bilinear", align_corners=True).sum(1, keepdim=True)
        close(raw[b : b + 1], expected, 1e-10)
