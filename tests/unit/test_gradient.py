"""The gradient family against closed forms and plain loops."""

import math

import pytest
import torch
from torch import nn

from salrun.errors import SalrunError
from salrun.methods.cam import GradCAM, GradCAMPlusPlus
from salrun.methods.gradient import (
    ExpectedGradients,
    Gradient,
    InputXGradient,
    IntegratedGradients,
    Sensitivity,
    SmoothGrad,
    VarGrad,
    quadrature,
)
from salrun.types import Fitted
from tests import toys
from tests.toys import CLASSES, STD, close, draws, run, targets

B = 4
TARGET, RNG = targets(B), draws(B)
RULES = ("gauss_legendre", "riemann_left", "riemann_middle", "trapezoid")


def images(n=B, size=6):
    return toys.images(n, size)


def classifier(*layers, seed=0, **names):
    return toys.classifier(toys.seeded(lambda: nn.Sequential(*(layer() for layer in layers)), seed), **names)


def linear():
    return classifier(nn.Flatten, lambda: nn.Linear(108, CLASSES))


def small(bias=True, act=nn.ReLU):
    return classifier(
        lambda: nn.Conv2d(3, 5, 3, bias=bias),
        act,
        lambda: nn.MaxPool2d(2),
        lambda: nn.Conv2d(5, 4, 1, bias=bias),
        act,
        nn.Flatten,
        lambda: nn.Linear(16, CLASSES, bias=bias),
        cam="4",
    )


class Squares(nn.Module):
    """y_c = (c + 1) sum z^2: gradient 2 (c + 1) z."""

    def forward(self, z):
        return z.square().sum((1, 2, 3)).unsqueeze(1) * torch.arange(1, CLASSES + 1, dtype=z.dtype, device=z.device)


def test_linear_model_gives_its_weights():
    model, x = linear(), images()
    w = model.module[1].weight.detach()[TARGET].view_as(x)
    std = torch.tensor(STD, dtype=torch.float64).view(1, 3, 1, 1)
    close(run(Gradient(), model, x), w)
    close(run(Gradient("raw"), model, x), w / model.std)
    close(model.std, std, 1e-7)
    close(run(Sensitivity(), model, x), w.abs().amax(1, keepdim=True))
    close(run(InputXGradient(), model, x), w * model.normalise(x))
    close(run(InputXGradient("raw"), model, x), w / model.std * x)
    close(run(InputXGradient(baseline="black"), model, x), w * (model.normalise(x) - model.normalise(0 * x)))
    close(run(InputXGradient("raw", "mean"), model, x), w / model.std * (x - model.mean))
    close(run(SmoothGrad(n_samples=3), model, x), w)
    close(run(SmoothGrad(n_samples=3, squared=True), model, x), w.square())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("baseline", ["zeros", "black", "mean"])
@pytest.mark.parametrize("space", ["norm", "raw"])
def test_integrated_gradients_of_a_linear_model_are_complete(rule, baseline, space):
    model, x = linear(), images()
    method = IntegratedGradients(steps=4, rule=rule, baseline=baseline, space=space)
    raw = run(method, model, x)
    reference = {
        ("norm", "zeros"): model.denormalise(torch.zeros_like(x)),
        ("raw", "zeros"): torch.zeros_like(x),
    }.get((space, baseline), torch.zeros_like(x) if baseline == "black" else model.denormalise(torch.zeros_like(x)))
    w = model.module[1].weight.detach()[TARGET].view_as(x) / model.std
    close(raw, w * (x - reference))
    assert (method.completeness_error(model, x, TARGET, raw) < 1e-10).all()
    assert (method.completeness_error(model, x, TARGET, 1.1 * raw) > 0.09).all()


def test_gradient_is_the_limit_of_differences():
    model, x = small(act=nn.Tanh), images()
    raw, h = run(Gradient("raw"), model, x), 1e-5
    for place in ((0, 1, 2), (2, 4, 0), (1, 5, 5)):
        step = torch.zeros_like(x)
        step[(slice(None), *place)] = h
        with torch.no_grad():
            slope = (model(x + step) - model(x - step)).gather(1, TARGET.view(-1, 1))[:, 0] / (2 * h)
        close(raw[(slice(None), *place)], slope, 1e-8)


def test_bias_free_relu_net_is_the_sum_of_input_x_gradient():
    model, x = small(bias=False), images()
    with torch.no_grad():
        logit = model(x).gather(1, TARGET.view(-1, 1))[:, 0]
    close(run(InputXGradient(), model, x).sum((1, 2, 3)), logit)
    with_bias = small()
    assert (run(InputXGradient(), with_bias, x).sum((1, 2, 3)) - logit).abs().max() > 1e-3


@pytest.mark.parametrize("steps", [1, 2, 5, 50])
def test_quadrature(steps):
    for rule in RULES:
        if rule == "trapezoid" and steps == 1:
            continue
        nodes, weights = quadrature(rule, steps)
        assert len(nodes) == len(weights) == steps
        assert min(nodes) >= 0
        assert max(nodes) <= 1
        assert math.isclose(sum(weights), 1, rel_tol=1e-12)
    nodes, weights = quadrature("gauss_legendre", steps)
    for power in range(min(2 * steps, 12)):  # exact up to degree 2 n - 1
        assert math.isclose(sum(w * a**power for a, w in zip(nodes, weights, strict=True)), 1 / (power + 1))


def test_integrated_gradients_of_squares():
    """int 2 a z da = z, so IG = z^2; from z to 2 z it is 3 z^2; n left steps miss 1/n of the slope."""
    model, x = toys.classifier(Squares()), images()
    z2 = model.normalise(x).square() * (TARGET + 1).view(-1, 1, 1, 1)
    for rule in ("gauss_legendre", "riemann_middle", "trapezoid"):
        close(run(IntegratedGradients(steps=8, rule=rule), model, x), z2)
        close(run(IntegratedGradients(steps=8, rule=rule, path="inn108"), model, x), 3 * z2)
    left = {"steps": 64, "rule": "riemann_left"}
    close(run(IntegratedGradients(**left), model, x), z2 * 63 / 64)
    close(run(IntegratedGradients(**left, path="inn108"), model, x), z2 * (2 + 63 / 64))


@pytest.mark.parametrize("chunk", [1, 3, 17, None])
def test_integrated_gradients_slow_twin(chunk):
    model, x = small(), images()
    nodes, weights = quadrature("gauss_legendre", 7)
    expected = torch.zeros_like(x)
    for b in range(B):
        z = model.normalise(x[b : b + 1])
        for a, w in zip(nodes, weights, strict=True):
            point = (a * z).requires_grad_(True)
            model.module(point)[0, TARGET[b]].backward()
            expected[b] += w * z[0].detach() * point.grad[0]
    close(run(IntegratedGradients(steps=7), model, x, chunk=chunk), expected)


def test_many_steps_are_complete_on_a_net():
    model, x = small(), images()
    method = IntegratedGradients(steps=300)
    assert (method.completeness_error(model, x, TARGET, run(method, model, x)) < 0.01).all()


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("relative", [False, True])
def test_smoothgrad_slow_twin(squared, relative):
    model, x = small(), images()
    method = SmoothGrad(n_samples=6, sigma=0.3, relative=relative, squared=squared)
    noise = RNG.normal("smoothgrad", (6, *x.shape[1:])).double()
    expected = torch.zeros_like(x)
    for b in range(B):
        z = model.normalise(x[b : b + 1])[0]
        scale = 0.3 * (z.max() - z.min()) if relative else 0.3
        for k in range(6):
            point = (z + scale * noise[b, k])[None].requires_grad_(True)
            (gradient,) = torch.autograd.grad(model.module(point)[0, TARGET[b]], point)
            expected[b] += (gradient[0] ** 2 if squared else gradient[0]) / 6
    for chunk in (1, 5, None):
        close(run(method, model, x, chunk=chunk), expected)


def test_smoothgrad_draws_by_image_and_seed():
    model, x = small(), images(1).expand(B, -1, -1, -1).contiguous()
    same = torch.zeros(B, dtype=torch.long)
    raw = run(SmoothGrad(n_samples=2), model, x, same)
    assert (raw[0] - raw[1]).abs().max() > 0
    other = run(SmoothGrad(n_samples=2), model, x, same, draws(B, seed=4))
    assert (raw - other).abs().max() > 0


def test_one_forward_serves_many():
    model, x = small(), images()
    calls = []
    model.module.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    suite = (Gradient(), Sensitivity(), InputXGradient(), GradCAM(), GradCAMPlusPlus())
    for chunk, expected in ((None, [4]), (3, [3, 1])):
        calls.clear()
        model.forget()
        for method in suite:
            method(model, x, TARGET, RNG, Fitted(chunk=chunk))
        assert calls == expected
    Gradient("raw")(model, x, TARGET, RNG, Fitted())
    assert len(calls) == 3


def test_nan_is_not_lost_in_a_relu():
    model, x = small(), images()
    x[1, 0, 0, 0] = torch.nan
    for method in (Gradient(), Sensitivity(), InputXGradient(), SmoothGrad(2), IntegratedGradients(2)):
        raw = run(method, model, x)
        assert raw[1].isnan().all()
        assert torch.isfinite(raw[[0, 2, 3]]).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SmoothGrad(n_samples=0), "n_samples of SmoothGrad"),
        (lambda: SmoothGrad(sigma=-1), "sigma of SmoothGrad"),
        (lambda: IntegratedGradients(steps=0), "steps of IntegratedGradients"),
        (lambda: IntegratedGradients(steps=1, rule="trapezoid"), "at least 2"),
    ],
)
def test_bad_parameters(make, words):
    with pytest.raises(SalrunError, match=words):
        make()


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_vargrad_is_the_variance_of_what_smoothgrad_averages(chunk):
    model, x, n = small(act=nn.Softplus), images(), 7
    squares, mean = (run(SmoothGrad(n, squared=squared), model, x) for squared in (True, False))
    close(run(VarGrad(n), model, x, chunk=chunk), squares - mean**2, 1e-10)


def test_vargrad_of_squares_is_that_of_the_noise():
    """g = 2 (c + 1) z: its variance is (2 (c + 1) sigma)^2 times that of the normal draws."""
    model, x, n, sigma = toys.classifier(Squares()), images(), 9, 0.3
    noise = RNG.normal("smoothgrad", (n, *x.shape[1:])).double()
    factor = 2 * (TARGET + 1).double().view(-1, 1, 1, 1) * sigma
    close(run(VarGrad(n, sigma, relative=False), model, x), factor**2 * noise.var(1, correction=0), 1e-6)


def test_expected_gradients_of_a_linear_model_are_weights_times_the_mean_difference():
    model, x, n = linear(), images(), 11
    references = toys.images(5, 6, seed=7)
    chosen = RNG.integer(5, "expected_gradients/reference", n)
    difference = (model.normalise(x).unsqueeze(1) - model.normalise(references)[chosen]).mean(1)
    weights = model.module[1].weight.detach()[TARGET].view_as(x)
    close(run(ExpectedGradients(n), model, x, background=references), weights * difference, 1e-12)


@pytest.mark.parametrize("chunk", [1, 5, None])
def test_expected_gradients_slow_twin(chunk):
    model, x, n = small(act=nn.Softplus), images(), 6
    references = toys.images(3, 6, seed=7)
    chosen = RNG.integer(3, "expected_gradients/reference", n)
    share = RNG.uniform("expected_gradients/place", n).double()
    expected = torch.zeros_like(x)
    for b in range(B):
        for k in range(n):
            point, start = (model.normalise(t) for t in (x[b : b + 1], references[chosen[b, k]][None]))
            leaf = (start + share[b, k] * (point - start)).requires_grad_(True)
            model.module(leaf)[0, TARGET[b]].backward()
            expected[b] += ((point - start) * leaf.grad)[0] / n
    close(run(ExpectedGradients(n), model, x, background=references, chunk=chunk), expected, 1e-10)


def test_expected_gradients_sum_to_the_gain_over_the_background():
    """On average over draws; with many the sum is near."""
    model, x = small(act=nn.Softplus), images()
    references = toys.images(3, 6, seed=7)
    found = run(ExpectedGradients(4000), model, x, background=references).sum((1, 2, 3))
    logits, others = (model(t).detach() for t in (x, references))
    gain = logits.gather(1, TARGET[:, None])[:, 0] - others[:, TARGET].mean(0)
    torch.testing.assert_close(found, gain, rtol=0, atol=0.05 * float(gain.abs().max()))
