"""The engine of modified backward passes and the methods on it: slow twins, known answers, conservation, refusals."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.methods import backward
from salrun.methods.backward import _KINDS, Affine, Op, Rules, Tape, trace
from salrun.methods.deep_taylor import DeepTaylor
from salrun.methods.deeplift import _RESCALE, DeepLiftRescale, DeepLiftRevealCancel, DeepSHAP
from salrun.methods.guided import DeconvNet, GuidedBackprop
from salrun.methods.lrp import LRP
from salrun.methods.relevance import alpha_beta_rule
from salrun.models.classifier import Classifier
from salrun.models.inference import InferenceCopy, folded_copy
from salrun.rng import Draws
from salrun.types import Fitted, Method
from tests import slow_relevance as slow
from tests import toys
from tests.toys import MEAN, STD, shaken


def rand(n: int, channels: int, *size: int, seed: int = 0) -> Tensor:
    return toys.images(n, size, channels, seed)


def classifier(net: nn.Module, seed: int = 0, plain: bool = False) -> Classifier:
    return (Classifier(shaken(net, seed)) if plain else Classifier(shaken(net, seed), MEAN, STD)).double().eval()


def run(method: Method, model: Classifier, x: Tensor, target: Tensor | None = None, **fitted: object) -> Tensor:
    return toys.run(method, model, x, torch.arange(len(x)) % 2 if target is None else target, **fitted)


def logit(model: Classifier, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).gather(1, (torch.arange(len(x)) % 2).view(-1, 1)).squeeze(1)


def input_times_gradient(model: Classifier, x: Tensor) -> Tensor:
    point = model.normalise(x).requires_grad_(True)
    score = model.module(point).gather(1, (torch.arange(len(x)) % 2).view(-1, 1)).sum()
    return point.detach() * torch.autograd.grad(score, point)[0]


# Slow twins -----------------------------------------------------------------------------------------------------------

TINY = (3, 6, 6)


def tiny() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    )


EVERYWHERE = {"alpha": 1.0, "beta": 0.0}
LRP_TWINS: dict[str, tuple[dict, list[str]]] = {
    "z": ({"dense": "z", "conv": "z"}, ["z"] * 4),
    "epsilon": ({"epsilon": 0.3}, ["epsilon"] * 4),
    "alpha_beta, bias split": ({"dense": "alpha_beta", "conv": "alpha_beta", **EVERYWHERE}, ["alpha_beta"] * 4),
    "alpha_beta, bias library": (
        {"dense": "alpha_beta", "conv": "alpha_beta", "bias": "library", "alpha": 2.0, "beta": 1.0},
        ["alpha_beta"] * 4,
    ),
    "alpha_beta, no bias": (
        {"dense": "alpha_beta", "conv": "alpha_beta", "bias": "none", "alpha": 3.0, "beta": 2.0},
        ["alpha_beta"] * 4,
    ),
    "a_flat": (
        {"conv": "alpha_beta", "first": "flat", "epsilon": 1.0, **EVERYWHERE},
        ["flat", "alpha_beta", "epsilon", "epsilon"],
    ),
    "b_flat": (
        {"conv": "alpha_beta", "first": "flat", "epsilon": 1.0, "bias": "library", "alpha": 2.0, "beta": 1.0},
        ["flat", "alpha_beta", "epsilon", "epsilon"],
    ),
}


@pytest.mark.parametrize("name", LRP_TWINS)
def test_lrp_twin(name: str) -> None:
    options, rules = LRP_TWINS[name]
    method, model, x = LRP(**options), classifier(tiny()), rand(2, *TINY, seed=1)
    layers = slow.unroll(model.module, TINY)
    found = run(method, model, x)
    for b in range(2):
        point = model.normalise(x)[b].flatten().numpy()
        start = np.zeros(3)
        start[b % 2] = logit(model, x)[b].item()
        settings = {"epsilon": method.epsilon, "alpha": method.alpha, "beta": method.beta, "bias": method.bias}
        expected = slow.relevance(layers, point, start, rules, **settings)
        np.testing.assert_allclose(found[b].flatten().numpy(), expected, rtol=1e-9, atol=1e-12 * abs(expected).max())


@pytest.mark.parametrize("first", ["w2", "bounded"])
@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("space", ["norm", "raw"])
def test_deep_taylor_twin(first: str, library: bool, space: str) -> None:
    model, x = classifier(tiny()), rand(2, *TINY, seed=1)
    layers = slow.unroll(model.module, TINY)
    found = run(DeepTaylor(first=first, library=library, low=-0.5, high=1.5, space=space), model, x)
    low, high = (model.normalise(torch.full((1, *TINY), v, dtype=torch.float64)).flatten().numpy() for v in (-0.5, 1.5))
    for b in range(2):
        start = np.zeros(3)
        start[b % 2] = max(logit(model, x)[b].item(), 0)
        settings = {"alpha": 1, "beta": 0, "bias": "library" if library else "none", "low": low, "high": high}
        point = model.normalise(x)[b].flatten().numpy()
        expected = slow.relevance(layers, point, start, [first] + ["alpha_beta"] * 3, **settings)
        np.testing.assert_allclose(found[b].flatten().numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("method", "reveal"), [(DeepLiftRescale, False), (DeepLiftRevealCancel, True)])
@pytest.mark.parametrize("baseline", ["zeros", "black", "mean"])
def test_deeplift_twin(method: Callable[..., Method], reveal: bool, baseline: str) -> None:
    model, x = classifier(tiny()), rand(2, *TINY, seed=1)
    x[:, :, :2] = 0  # pixels equal to a black reference
    black = model.normalise(torch.zeros(1, *TINY, dtype=torch.float64)).flatten().numpy()
    reference = black if baseline == "black" else np.zeros(int(np.prod(TINY)))
    found = run(method(baseline=baseline), model, x)
    for b in range(2):
        point = model.normalise(x)[b].flatten().numpy()
        expected = slow.deeplift(slow.unroll(model.module, TINY), point, reference, b % 2, reveal)
        bounds = {"rtol": 1e-5, "atol": 1e-7} if reveal else {"rtol": 1e-7, "atol": 1e-10}  # the package adds 1e-7
        np.testing.assert_allclose(found[b].flatten().numpy(), expected, **bounds)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("width", [3, 4, 6, 8])
def test_reveal_cancel_of_units_whose_contributions_have_one_sign(width: int, dtype: torch.dtype) -> None:
    """Of narrow layers many have: the sum that is 0 has the slope of the ReLU; the package's twin adds 1e-7 to it."""
    shape = (1, 2, 2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    net.append(nn.Linear(width, 2))
    one_sided = 0
    for seed in range(8):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for parameter in net.parameters():
                nn.init.normal_(parameter)
        model, x = classifier(net.double(), plain=True), rand(2, *shape, seed=seed)
        layers = slow.unroll(model.module, shape)
        expected = np.stack([slow.deeplift(layers, v.flatten().numpy(), np.zeros(4), 0, True) for v in x])
        hidden = net[:3](x) - net[:3](torch.zeros_like(x))
        contributions = hidden.unsqueeze(2) * net[3].weight.T
        one_sided += int((contributions >= 0).all(1).sum() + (contributions <= 0).all(1).sum())
        result = run(DeepLiftRevealCancel(), model.to(dtype), x.to(dtype), torch.zeros(2, dtype=torch.int64))
        size = np.abs(expected).max()
        bound = 1e-6 if dtype == torch.float64 else 1e-5
        np.testing.assert_allclose(result.double().flatten(1).numpy(), expected, rtol=0, atol=bound * size)
    assert one_sided > 0  # the case is met


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (3, 1)])
def test_cross_max_twin(size: int, stride: int) -> None:
    net = nn.Sequential(nn.MaxPool2d(size, stride), nn.Flatten(), nn.LazyLinear(2))
    net(torch.zeros(1, 1, 7, 7))
    model, x, reference = classifier(net, plain=True), rand(1, 1, 7, 7, seed=3), rand(1, 1, 7, 7, seed=4)
    found = run(DeepSHAP(), model, x, background=reference)
    m = net[2].weight[0].detach().view(1, 1, *net[0](x).shape[2:])[0, 0].numpy()
    expected = slow.cross_max(x[0, 0].numpy(), reference[0, 0].numpy(), m, size, stride) * (x - reference)[0, 0].numpy()
    np.testing.assert_allclose(found[0, 0].numpy(), expected, rtol=1e-12, atol=1e-14)


def test_the_librarys_bias_can_explode() -> None:
    """One dense unit, w = (1, -1), b = -1, x = (1, 1), R = z = -1: the activator 1 - 1 is zero."""
    layer = Affine(torch.tensor([[1.0, -1.0]]).double(), torch.tensor([-1.0]).double())
    x, r = torch.ones(1, 2).double(), torch.tensor([[-1.0]]).double()
    for alpha, beta, expected in ((1.0, 0.0, [-1e7, 0.0]), (2.0, 1.0, [-2e7, 0.5])):
        found = alpha_beta_rule(layer, x, alpha, beta, "library")(r)
        torch.testing.assert_close(found, torch.tensor([expected]).double())
    torch.testing.assert_close(alpha_beta_rule(layer, x, 2.0, 1.0, "split")(r), torch.tensor([[-2.0, 0.5]]).double())


def test_guided_backprop_and_deconvnet_by_hand() -> None:
    """x = (1, 2); z = (x0 - x1, x0 + x1) = (-1, 3); y = -3 relu(z0) + 2 relu(z1), and its negative."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model = Classifier(net.double()).double().eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[1.0, -1.0], [1.0, 1.0]]))
        net[3].weight.copy_(torch.tensor([[-3.0, 2.0], [3.0, -2.0]]))
        net[1].bias.zero_(), net[3].bias.zero_()
    x = torch.tensor([1.0, 2.0]).double().view(1, 1, 1, 2).repeat(2, 1, 1, 1)
    cases = {
        (GuidedBackprop, "one"): [[2.0, 2.0], [0.0, 0.0]],  # z0 is inactive; -2 is not positive
        (GuidedBackprop, "value"): [[12.0, 12.0], [12.0, 12.0]],  # y = 6: times 6; y = -6: -2 (-6) = 12 passes
        (DeconvNet, "one"): [[2.0, 2.0], [3.0, -3.0]],  # 3 passes the inactive z0
        (DeconvNet, "value"): [[12.0, 12.0], [12.0, 12.0]],
    }
    for (method, start), expected in cases.items():
        found = run(method(start=start), model, x).flatten(1)
        torch.testing.assert_close(found, torch.tensor(expected).double())


# The model as it is written -------------------------------------------------------------------------------------------


class Spelling(nn.Module):
    """conv, ReLU, max-pool, conv, batch norm, ReLU, residual sum, ReLU, mean, dense: spelled in several ways."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding="same")
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 2)
        self.one, self.two, self.three = nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.inplace, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.5)

    def relu(self, x: Tensor, which: nn.Module) -> Tensor:
        if self.style == "modules":
            return which(x)
        if self.style == "one module, in place":
            return self.inplace(x)
        if self.style == "in place, result unused":
            F.relu(x, inplace=True)
            return x
        if self.style == "in place method":
            x.relu_()
            return x.view_as(x)
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "functional": F.relu,
            "torch function": torch.relu,
            "method": Tensor.relu,
            "clamp": lambda t: t.clamp(min=0),
            "clamp_min": lambda t: torch.clamp_min(t, 0.0),
            "threshold": lambda t: F.threshold(t, 0.0, 0.0),
            "threshold in place": lambda t: nn.Threshold(0.0, 0.0, inplace=True)(t),
        }
        return functions[self.style](x)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.relu(self.a(x), self.one), 2)
        y = self.relu(self.norm(self.b(x)), self.two)
        if "in place" in self.style:
            y += x
        else:
            y = torch.add(y, x)
        y = self.drop(self.relu(y, self.three))
        if self.style == "functional":
            return F.linear(y.mean((2, 3)), self.head.weight, self.head.bias)
        if self.style == "method":
            return y.mean((-1, -2)) @ self.head.weight.T + self.head.bias
        if self.style == "torch function":
            return torch.addmm(self.head.bias, torch.mean(y, (2, 3)), self.head.weight.t())
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


STYLES = (
    *("one module, in place", "in place, result unused", "in place method", "functional", "torch function", "method"),
    *("clamp", "clamp_min", "threshold", "threshold in place"),
)
METHODS: dict[str, Method] = {
    "deconvnet": DeconvNet(),
    "guided_backprop": GuidedBackprop(),
    "lrp_z": LRP(dense="z", conv="z"),
    "lrp_epsilon": LRP(epsilon=0.1),
    "lrp_a_flat": LRP(conv="alpha_beta", first="flat"),
    "lrp_b_flat": LRP(conv="alpha_beta", first="flat", alpha=2.0, beta=1.0, batch_norm="library"),
    "deep_taylor": DeepTaylor(),
    "deep_taylor_bounded": DeepTaylor(first="bounded"),
    "deeplift_rescale": DeepLiftRescale(),
    "deeplift_reveal_cancel": DeepLiftRevealCancel(),
    "deep_shap": DeepSHAP(),
}


@pytest.mark.parametrize("name", METHODS)
def test_spelling_does_not_matter(name: str) -> None:
    """Only `x W + b` written out differs, under the epsilon rule: there epsilon acts on x W and not on the sum."""
    x, background = rand(3, 3, 8, 8, seed=1), rand(2, 3, 8, 8, seed=2)
    expected = run(METHODS[name], classifier(Spelling("modules")), x, background=background)
    assert expected.abs().max() > 0
    compared = 0
    for style in STYLES:
        if style == "method" and name in ("lrp_epsilon", "lrp_a_flat", "lrp_b_flat"):
            continue
        found = run(METHODS[name], classifier(Spelling(style)), x, background=background)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))
        compared += 1
    assert compared >= len(STYLES) - 1


class Mixed(nn.Module):
    """Batch norm before anything, branches of different depth, concatenation, overlapping pools, a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm0, self.a, self.norm1 = nn.BatchNorm2d(3), nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.twice, self.relu = nn.Conv2d(6, 6, 3, padding=1, groups=2), nn.ReLU(inplace=True)
        self.norm2, self.up = nn.BatchNorm2d(12), nn.ConvTranspose2d(12, 4, 2, stride=2)
        self.hidden, self.norm3, self.head = nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm1(self.a(self.norm0(x))))
        x = F.max_pool2d(x, 3, 2, 1)
        y = self.relu(self.twice(x))
        y = self.relu(self.twice(y)) - 0.25 * x
        x = self.relu(self.norm2(torch.cat([x, y], 1)))
        x = F.avg_pool2d(x, 3, 1, 1)
        x = F.pad(self.relu(self.up(x)), (1, 0, 0, 1))
        left, right = x.chunk(2, dim=1)
        x = F.adaptive_max_pool2d(torch.stack([left, right], 1).flatten(1, 2), 3)
        x = self.relu(self.norm3(self.hidden(x.view(x.size(0), -1))))
        return self.head(x) / 2 + 1


def test_lrp_z_is_input_times_gradient() -> None:
    model, x = classifier(Mixed()), rand(3, 3, 8, 8, seed=1)
    expected = input_times_gradient(model, x)
    found = run(LRP(dense="z", conv="z"), model, x)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10 * float(expected.abs().max()))


@pytest.mark.parametrize("method", [DeepLiftRescale(), DeepLiftRevealCancel(), DeepLiftRescale("black", "raw")])
def test_deeplift_is_complete(method: DeepLiftRescale | DeepLiftRevealCancel) -> None:
    model, x = classifier(Mixed()), rand(3, 3, 8, 8, seed=1)
    reference = torch.zeros_like(x) if method.baseline == "black" else model.denormalise(torch.zeros_like(x))
    gain = logit(model, x) - logit(model, reference)
    torch.testing.assert_close(run(method, model, x).sum((1, 2, 3)), gain, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("output", ["logit", "probability"])
@pytest.mark.parametrize("space", ["norm", "raw"])
def test_deep_shap_is_complete(output: str, space: str) -> None:
    model, x, background = classifier(Mixed()), rand(3, 3, 8, 8, seed=1), rand(5, 3, 8, 8, seed=2)
    with torch.no_grad():
        here, there = model(x), model(background)
    if output == "probability":
        here, there = here.softmax(1), there.softmax(1)
    target = torch.arange(3) % 2
    gain = here.gather(1, target.view(-1, 1)).squeeze(1) - there.mean(0)[target]
    found = run(DeepSHAP(output=output, space=space), model, x, background=background)
    torch.testing.assert_close(found.sum((1, 2, 3)), gain, rtol=1e-6, atol=1e-8)


def test_deep_shap_of_probabilities_far_apart() -> None:
    """Logits 2000 apart: exp would overflow, and no share may."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    model, x, background = classifier(net, plain=True), rand(1, 3, 2, 2), rand(2, 3, 2, 2, seed=5)
    with torch.no_grad():
        net[1].weight.mul_(1e3 * torch.tensor([[1.0], [-1.0], [0.5]]))
        gain = model(x).softmax(1)[0, 0] - model(background).softmax(1)[:, 0].mean()
    found = run(DeepSHAP(output="probability"), model, x, background=background)
    assert torch.isfinite(found).all()
    assert found.sum().item() == pytest.approx(gain.item(), abs=1e-9)


def test_deep_shap_is_the_mean_of_single_references() -> None:
    """Whatever the chunk: 5 references never fill the last batch evenly."""
    model, x, background = classifier(Mixed()), rand(3, 3, 8, 8, seed=1), rand(5, 3, 8, 8, seed=2)
    single = torch.stack([run(DeepSHAP(), model, x, background=r[None]) for r in background]).mean(0)
    for chunk in (None, 1, 2, 4, 7, 100):
        found = run(DeepSHAP(), model, x, background=background, chunk=chunk)
        torch.testing.assert_close(found, single, rtol=1e-9, atol=1e-12)
    first = run(DeepSHAP(n_references=2), model, x, background=background)
    torch.testing.assert_close(first, run(DeepSHAP(), model, x, background=background[:2]), rtol=1e-9, atol=1e-12)


class Positive(nn.Module):
    """Every unit has a positive contribution, so that z+ loses nothing; biases and batch norms all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.a(x))), 3, 2)
        x = F.relu(self.b(x) + x)
        return self.head(F.avg_pool2d(x, 3).flatten(1))


@pytest.mark.parametrize("space", ["norm", "raw"])
@pytest.mark.parametrize("first", ["w2", "bounded"])
def test_deep_taylor_conserves(first: str, space: str) -> None:
    model, x = classifier(Positive(), seed=3), rand(4, 3, 8, 8, seed=1)
    found = run(DeepTaylor(first=first, space=space), model, x)
    assert (logit(model, x) > 0).any()
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum((1, 2, 3)), logit(model, x).relu(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", [LRP(conv="alpha_beta", first="flat", alpha=2.0, beta=1.0), DeepTaylor()])
def test_batch_norm_is_folded(method: Method) -> None:
    """As if the layer before it had been rewritten: convolution, grouped convolution, dense layer."""

    def net(folded: bool) -> nn.Sequential:
        parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4)]
        parts += [nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)]
        done = shaken(nn.Sequential(*parts))
        if folded:
            for i in (0, 3, 7):
                norm = done[i + 1]
                scale = norm.weight / (norm.running_var + norm.eps).sqrt()
                with torch.no_grad():
                    done[i].weight.mul_(scale.view(-1, *[1] * (done[i].weight.dim() - 1)))
                    done[i].bias.sub_(norm.running_mean).mul_(scale).add_(norm.bias)
                done[i + 1] = nn.Identity()
        return done

    x = rand(2, 3, 8, 8, seed=1)
    plain, folded = (Classifier(net(f), MEAN, STD).double().eval() for f in (False, True))
    torch.testing.assert_close(plain(x), folded(x))
    torch.testing.assert_close(run(method, plain, x), run(method, folded, x), rtol=1e-9, atol=1e-12)


def test_batch_norm_rule_of_the_library() -> None:
    """R_x = x (y - beta) R / ((x - mean) y)."""
    net = shaken(nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)))
    x = rand(1, 2, 2, 2)
    norm, head = net[0], net[2]
    y = norm(x).detach()
    r = (y.flatten(1) * head.weight[0] * (head(y.flatten(1))[:, 0] / head(y.flatten(1))[:, 0])).view_as(x)
    shape = (1, 2, 1, 1)
    expected = x * (y - norm.bias.view(shape)) * r / ((x - norm.running_mean.view(shape)) * y)
    found = run(LRP(dense="z", conv="z", batch_norm="library"), Classifier(net).double().eval(), x)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-8)


def test_the_first_layer_may_follow_scaling_and_reshaping() -> None:
    """A network that normalises its own input gets the input rule at its first convolution all the same."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny()

        def forward(self, x: Tensor) -> Tensor:
            return self.net((x.flatten(2).view(-1, 3, 6, 6).contiguous() - outside.mean) / outside.std)

    x, outside = rand(2, *TINY, seed=1), classifier(tiny())
    inside = Classifier(shaken(Own())).double().eval()
    for method in (LRP(conv="alpha_beta", first="flat"), DeepTaylor(), DeepTaylor(first="bounded")):
        torch.testing.assert_close(run(method, inside, x), run(method, outside, x), rtol=1e-9, atol=1e-12)


def test_linear_model() -> None:
    """y = w x + b: the gradient is w; differences from a reference are w (x - x0), whatever the method."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    model, x, background = classifier(net), rand(2, 3, 2, 2), rand(3, 3, 2, 2, seed=7)
    w = net[1].weight.detach().view(2, 3, 2, 2)
    for method in (GuidedBackprop(), DeconvNet()):
        torch.testing.assert_close(run(method, model, x), w)
    for method in (DeepLiftRescale(), DeepLiftRevealCancel()):
        torch.testing.assert_close(run(method, model, x), w * model.normalise(x))
    expected = w * (model.normalise(x) - model.normalise(background).mean(0))
    torch.testing.assert_close(run(DeepSHAP(), model, x, background=background), expected)


# torchvision ----------------------------------------------------------------------------------------------------------

ARCHITECTURES = {
    "alexnet": 64,
    "vgg16": 32,
    "resnet18": 64,
    "resnet50": 32,
    "squeezenet1_1": 32,
    "shufflenet_v2_x0_5": 32,
    "mobilenet_v3_small": 32,
}


def zoo(name: str, dtype: torch.dtype = torch.float64) -> Classifier:
    """Random weights, and batch-norm statistics of random images, so that activations neither die nor explode."""
    if name == "vgg16":  # the two dense layers of 4096 units are most of its weights; the shape is what matters
        net = torchvision.models.vgg16(weights=None, init_weights=False)
        net.classifier = nn.Sequential(nn.Linear(25088, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 5))
    else:
        net = getattr(torchvision.models, name)(weights=None, num_classes=5)
    return toys.classifier(shaken(net, 1, toys.images(8, 64)), dtype=dtype)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_torchvision(name: str) -> None:
    """Completeness of DeepLIFT and DeepSHAP; LRP-z against input x gradient, where all activations are ReLUs."""
    size = ARCHITECTURES[name]
    model, x, background = zoo(name), rand(2, 3, size, size, seed=1), rand(2, 3, size, size, seed=2)
    zeros = model.denormalise(torch.zeros_like(x))
    gain = logit(model, x) - logit(model, zeros)
    over = logit(model, x) - torch.stack([logit(model, r.expand_as(x)) for r in background]).mean(0)
    torch.testing.assert_close(run(DeepLiftRescale(), model, x).sum((1, 2, 3)), gain, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(
        run(DeepSHAP(), model, x, background=background).sum((1, 2, 3)), over, rtol=1e-6, atol=1e-7
    )
    if name == "mobilenet_v3_small":
        refusal = (
            r"no rule for the operator 'hardswish' in layer 'features\.0\.2' \(Hardswish\): it is defined for ReLU"
        )
        for method in (DeconvNet(), GuidedBackprop(), DeepTaylor()):
            with pytest.raises(SalrunError, match=refusal):
                run(method, model, x)
        return
    expected = input_times_gradient(model, x)
    found = run(LRP(dense="z", conv="z"), model, x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max()))


def test_single_precision_is_complete_too() -> None:
    model, x = zoo("resnet18", torch.float32), rand(2, 3, 64, 64, seed=1).float()
    gain = logit(model, x) - logit(model, model.denormalise(torch.zeros_like(x)))
    found = run(DeepLiftRescale(), model, x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum((1, 2, 3)), gain, rtol=1e-3, atol=1e-3)


# Refusals -------------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer that applies a function, in a network that has one before and one after."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def around(function: Callable[[Tensor], Tensor]) -> Classifier:
    return classifier(nn.Sequential(nn.Conv2d(3, 4, 3), Layer(function), nn.Flatten(), nn.Linear(64, 2)))


class HiddenReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.saved_tensors[0] > 0)


def overwritten_view(x: Tensor) -> Tensor:
    y = x * 1
    y[:, :2].relu_()
    return y


def overwritten_flat(x: Tensor) -> Tensor:
    y = x * 1
    y.flatten(1).relu_()  # a view, in the layout the network was written for
    return y


def assigned(x: Tensor) -> Tensor:
    y = x * 1
    y[:, :2] = 0
    return y


@pytest.mark.parametrize("method", [LRP(), GuidedBackprop(), DeepLiftRescale(), DeepLiftRevealCancel()])
def test_views_need_not_be_one_piece_of_memory(method: Method) -> None:
    """The engine lays the image out channels last, where `view` would refuse what it grants in the usual layout."""
    there_and_back = around(lambda x: F.relu(x).view(len(x), -1).view_as(x))
    plain = around(F.relu)
    plain.load_state_dict(there_and_back.state_dict())
    x = torch.rand(3, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(run(method, there_and_back, x), run(method, plain, x))


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a function": (torch.exp, "operator 'exp' in layer '1' \\(Layer\\)"),
    "a mask by hand": (lambda x: x * (x > 0), "operator 'mul' in layer '1'.*mask"),
    "a selection": (lambda x: torch.where(x > 0, x, 0), "operator 'where' in layer '1'"),
    "maximum with zero": (lambda x: torch.maximum(x, torch.zeros_like(x)), "operator 'maximum' in layer '1'"),
    "a custom function": (HiddenReLU.apply, "in layer '2' \\(Flatten\\).*cannot be seen"),
    "scripted code": (torch.jit.trace(F.relu, torch.ones(1)), "cannot be seen"),
    "a view overwritten": (overwritten_view, "overwritten in place through another view"),
    "a flat view overwritten": (overwritten_flat, "overwritten in place through another view"),
    "an assignment": (assigned, "operator '__setitem__' in layer '1'"),
    "a quotient": (lambda x: x / (1 + x.sigmoid()), "operator 'div' in layer '1'"),
    "an image-dependent filter": (lambda x: F.conv2d(x, x[:1, :, :1, :1]), "operator 'conv2d' in layer '1'"),
    "batch statistics": (lambda x: F.batch_norm(x, None, None, training=True), "training mode"),
    "random units": (lambda x: F.dropout(x, 0.5, training=True), "training mode"),
    "a norm": (lambda x: F.group_norm(x, 2), "operator 'group_norm' in layer '1'"),
    "sorting": (lambda x: x.sort(1)[0], "operator 'sort' in layer '1'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_lrp(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(SalrunError, match=message) as caught:
        run(LRP(), around(function), rand(2, 3, 6, 6))
    assert "lrp" in str(caught.value)


@pytest.mark.parametrize("method", ["guided_backprop", "deconvnet", "deep_taylor", "deeplift_rescale", "deep_shap"])
def test_no_method_falls_back_silently(method: str) -> None:
    """A ReLU that the method cannot recognise as one is never passed by its plain gradient."""
    for name in ("a mask by hand", "a selection", "maximum with zero", "a custom function", "scripted code"):
        with pytest.raises(SalrunError, match=method):
            run(METHODS[method], around(REFUSED[name][0]), rand(2, 3, 6, 6), background=rand(1, 3, 6, 6))


class Token(nn.Module):
    """Joins every image's patches with a learnt token, as transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 4, 2, stride=2), nn.Parameter(torch.full((1, 1, 4), 0.3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head(x.relu().mean(1))


@pytest.mark.parametrize("method", [DeepLiftRescale(), DeepLiftRevealCancel(), DeepSHAP()])
def test_the_reference_is_joined_with_as_many_constants_as_there_are_images(method: Method) -> None:
    model, x = classifier(Token()), rand(3, 3, 6, 6)
    black = torch.tensor(MEAN, dtype=torch.float64).view(1, 3, 1, 1).expand(1, 3, 6, 6)
    raw = run(method, model, x, background=black)
    gained = (model(x) - model(black)).gather(1, (torch.arange(3) % 2).view(-1, 1)).squeeze(1)
    torch.testing.assert_close(raw.sum((1, 2, 3)), gained.detach())


def test_guided_backprop_keeps_what_is_no_activation() -> None:
    """Norms and gates have no ReLU: their own gradient; activations other than ReLU are refused."""
    model = around(lambda x: F.layer_norm(x, x.shape[1:]))
    point = model.normalise(rand(2, 3, 6, 6)).requires_grad_(True)
    score = model.module(point).gather(1, torch.tensor([[0], [1]])).sum()
    expected = torch.autograd.grad(score, point)[0]
    torch.testing.assert_close(run(GuidedBackprop(), model, rand(2, 3, 6, 6)), expected)
    with pytest.raises(
        SalrunError, match="guided_backprop has no rule for the operator 'gelu' .*: it is defined for ReLU"
    ):
        run(GuidedBackprop(), around(F.gelu), rand(2, 3, 6, 6))


def test_output_must_be_logits() -> None:
    for function in (lambda x: x.unsqueeze(-1), lambda x: (x, x), lambda x: x.detach(), HiddenReLU.apply):
        model = classifier(nn.Sequential(nn.Flatten(), nn.Linear(12, 2), Layer(function)))
        with pytest.raises(SalrunError, match="guided_backprop needs a model whose output"):
            run(GuidedBackprop(), model, rand(2, 3, 2, 2))


def test_parameters_are_checked() -> None:
    cases: list[tuple[Callable[[], Method], str]] = [
        (lambda: LRP(epsilon=-1.0), "epsilon of LRP"),
        (lambda: LRP(alpha=1.0, beta=1.0), "alpha and beta of lrp"),
        (lambda: DeepTaylor(low=1.0, high=0.0), "low of deep_taylor"),
        (lambda: DeepSHAP(n_references=0), "n_references of DeepSHAP"),
    ]
    for make, message in cases:
        with pytest.raises(SalrunError, match=message):
            make()
    model, x = classifier(Mixed()), rand(2, 3, 8, 8)
    with pytest.raises(SalrunError, match="deep_shap needs background"):
        run(DeepSHAP(), model, x)
    with pytest.raises(SalrunError, match="same shape"):
        run(DeepSHAP(), model, x, background=rand(2, 3, 9, 9))
    with pytest.raises(SalrunError, match="one target per image"):
        run(LRP(), model, x, target=torch.tensor([0]))


# Traces left ----------------------------------------------------------------------------------------------------------


def state(model: nn.Module) -> list[object]:
    hooks = [len(v) for m in model.modules() for k, v in vars(m).items() if k.endswith("_hooks") and v is not None]
    own = [[*sorted(vars(m)), type(m).forward, m.training] for m in model.modules()]
    values = [(v.clone(), v.requires_grad, v.grad, sorted(vars(v))) for v in model.state_dict(keep_vars=True).values()]
    return [hooks, own, [(v.tolist(), *rest) for v, *rest in values], nn.Module.__call__]


@pytest.mark.parametrize("name", METHODS)
def test_model_is_untouched(name: str) -> None:
    model, x = classifier(Spelling("one module, in place")), rand(2, 3, 8, 8)
    model.module.a.weight.requires_grad_(False)
    before, image = state(model), x.clone()
    run(METHODS[name], model, x, background=x)
    assert state(model) == before
    broken = classifier(nn.Sequential(Spelling("one module, in place"), Layer(lambda t: t.sort(1)[0])))
    before = state(broken)
    with pytest.raises(SalrunError, match="sort"):
        run(METHODS[name], broken, x, background=x)
    assert state(broken) == before
    assert torch.equal(x, image)
    assert torch.overrides._get_current_function_mode() is None


@pytest.mark.parametrize("name", METHODS)
def test_in_no_grad_and_inference_mode(name: str) -> None:
    model, x = classifier(Spelling("one module, in place")), rand(2, 3, 8, 8)
    expected = run(METHODS[name], model, x, background=x)
    with torch.no_grad():
        assert torch.equal(run(METHODS[name], model, x, background=x), expected)
    with torch.inference_mode():
        found = run(METHODS[name], model, x.clone(), background=x)
    assert torch.equal(found, expected)


def test_nothing_is_kept_alive() -> None:
    """In-place operators make tensors that stand for each other: no cycle may survive the pass."""
    seen: list[weakref.ref] = []
    model = around(lambda x: (seen.append(weakref.ref(x)), F.relu(x, inplace=True))[1])
    gc.collect()
    gc.disable()
    try:
        for method in (LRP(), GuidedBackprop(), DeepLiftRevealCancel()):
            run(method, model, rand(2, 3, 6, 6))
        assert len(seen) == 3
        assert all(ref() is None for ref in seen)
    finally:
        gc.enable()


def test_no_pass_outlives_its_method() -> None:
    """Of a network with several in-place operators too: a graph that holds its own tape is freed by nobody."""

    def tapes() -> int:
        return sum(isinstance(thing, Tape) for thing in gc.get_objects())

    model, x = classifier(Spelling("one module, in place")), rand(2, 3, 6, 6)
    gc.collect()
    before = tapes()
    for method in METHODS.values():
        run(method, model, x, background=x)
    gc.collect()
    assert tapes() == before


def test_a_rule_set_is_a_dictionary() -> None:
    """A new method is a name and a few rules: here the identity at ReLUs, the rest as it is."""
    from salrun.methods.backward import one_hot, ordinary, unchanged

    rules = Rules("mine", {"affine": ordinary, "relu": unchanged})
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    model, x = classifier(net, plain=True), rand(1, 3, 2, 2)
    done = trace(model, x, rules, "norm")
    found = done.pull(one_hot(done.output, torch.tensor([1])))
    torch.testing.assert_close(found.flatten(), (net[3].weight[1] @ net[1].weight).detach())


def test_names_of_operators_exist() -> None:
    """A misspelt name in the table of kinds would be a rule that is never found."""
    homes = (torch, F, Tensor)
    unknown = [name for name in _KINDS if not any(hasattr(home, name) for home in homes)]
    assert unknown == []
    assert len(_KINDS) > 120
    assert set(_RESCALE.rules) >= {"max_pool", "bilinear", "softmax", "layer_norm"}


class Forked(nn.Module):
    """Which of two layers runs depends on the image, and the reference goes with it."""

    def __init__(self) -> None:
        super().__init__()
        self.bright, self.dark, self.out = nn.Linear(12, 5), nn.Linear(12, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        layer = self.bright if bool((x.detach().mean() > 0).all()) else self.dark
        return self.out(layer(x.flatten(1)).relu())


def test_the_pass_of_a_reference_is_kept_on_a_copy_for_as_long_as_it_is_the_same() -> None:
    x = torch.rand(2, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.tensor([0, 2])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Forked().double().eval()
    model = Classifier(module, mean=(0.5,), std=(0.25,))
    copied = folded_copy(model, x)
    assert isinstance(copied, InferenceCopy)
    asked = [("zeros", x), ("zeros", x), ("black", x), ("black", 1 - x), ("zeros", 0.1 * x), ("zeros", x), ("mean", x)]
    for baseline, images in asked:
        method = DeepLiftRescale(baseline=baseline)  # type: ignore[arg-type]
        maps = [method(m, images, target, Draws.of(0, ["a", "b"]), Fitted()) for m in (model, copied)]
        torch.testing.assert_close(maps[1], maps[0], rtol=1e-10, atol=1e-12)
    computed: list[str] = []
    original = backward.Tape._beside

    def counted(run: backward.Tape, op: Op, value: Tensor) -> Tensor:
        computed.append(op.name)
        return original(run, op, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward.Tape, "_beside", counted)
        method = DeepLiftRescale(baseline="mean")
        method(copied, x.flip(0), target, Draws.of(0, ["a", "b"]), Fitted())
        assert computed == [], "another batch, the same reference"
        method(copied, 0.1 * x, target, Draws.of(0, ["a", "b"]), Fitted())
        assert computed, "another way through the network"
    assert copy.deepcopy(copied).beside is None


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("block", [7, 1 << 17])
def test_element_by_element_in_blocks_is_the_same(
    monkeypatch: pytest.MonkeyPatch, channels_last: bool, block: int
) -> None:
    monkeypatch.setattr(backward, "_BLOCK", block)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
    one = torch.randn(1, 4, 5, 6, generator=torch.Generator().manual_seed(1))  # a row for all
    expected = (x * one, x - one)

    def both(product: Tensor, difference: Tensor, a: Tensor, b: Tensor) -> None:
        torch.mul(a, b, out=product)
        torch.sub(a, b, out=difference)

    def total(value: Tensor, a: Tensor, b: Tensor) -> None:
        torch.add(a, b, out=value)

    found = backward.by_blocks(both, x, one, results=2)
    for value, wanted in zip(found, expected, strict=True):
        assert torch.equal(value, wanted) and value.shape == x.shape
    assert torch.equal(backward.by_blocks(total, x, torch.ones(3, 1, 1, 1))[0], x + 1)  # another form
    (over,) = backward.by_blocks(total, place := x.clone(), one, over=True)
    assert torch.equal(over, x + one) and over.data_ptr() == place.data_ptr()
    assert torch.equal(backward.by_images(total, x, one), x + one)
    assert torch.equal(backward.by_images(total, x, one.expand(x.shape)), x + one)


@pytest.mark.parametrize("stride", [(1, 1), (2, 3), (4, 4)])
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
def test_a_convolution_of_few_channels_goes_back_as_torch_does(
    stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> None:
    x, weight = rand(2, 3, 11, 13, seed=1), rand(5, 3, 4, 3, seed=2)
    conv = (list(stride), list(padding), list(dilation), False, [0, 0], 1)
    layer, z = Affine(weight, None, conv), torch.convolution(x, weight, None, *conv)
    signal = rand(*z.shape, seed=3)
    expected = torch.ops.aten.convolution_backward(signal, x, weight, None, *conv, [True, False, False])[0]
    assert layer.few(x)
    torch.testing.assert_close(layer.transpose(signal, weight, x), expected)
