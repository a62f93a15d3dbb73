"""Modified backward passes against Captum, zennit and shap, in float64; and where those are wrong, what they answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import Tensor, nn

from salrun.methods.deep_taylor import DeepTaylor
from salrun.methods.deeplift import DeepLiftRescale, DeepSHAP
from salrun.methods.guided import DeconvNet, GuidedBackprop
from salrun.methods.lrp import LRP
from salrun.models.classifier import Classifier
from salrun.types import Method
from tests import toys
from tests.toys import shaken

TARGET = toys.targets(3)


def rand(n: int, size: int = 32, seed: int = 0) -> Tensor:
    return toys.images(n, size, seed=seed) * 2 - 1


class Small(nn.Module):
    """Each module used once, ReLUs as modules: what hooks can follow."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        first = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), pool, nn.Conv2d(6, 8, 3, padding=1), nn.ReLU()]
        self.features = nn.Sequential(*first, nn.AvgPool2d(2))
        self.head = nn.Sequential(nn.Linear(8 * 64, 10), nn.ReLU(), nn.Linear(10, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def small() -> nn.Module:
    return shaken(Small(nn.MaxPool2d(2)))


def averaging() -> nn.Module:
    return shaken(Small(nn.AvgPool2d(2)))


def resnet18() -> nn.Module:
    return shaken(torchvision.models.resnet18(weights=None, num_classes=3), 3, rand(6, seed=9))


def vgg16() -> nn.Module:
    """torchvision's, with a smaller head: the 4096-unit layers would be most of the time."""
    net = torchvision.models.vgg16(weights=None, init_weights=False)
    net.avgpool = nn.Identity()
    net.classifier = nn.Sequential(nn.Linear(512, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 3))
    net = shaken(net)
    for parameter in net.classifier[3].parameters():  # so that there is a positive logit
        parameter.data.neg_()
    return net


NETS: dict[str, Callable[[], nn.Module]] = {"small": small, "resnet18": resnet18, "vgg16": vgg16}


def ours(method: Method, net: nn.Module, x: Tensor, target: Tensor = TARGET, **fitted: object) -> Tensor:
    return toys.run(method, Classifier(net).double().eval(), x, target[: len(x)], **fitted)


def agree(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """The greatest difference, relative to the greatest value."""
    assert expected.abs().max() > 0
    assert ((found - expected).abs().max() / expected.abs().max()).item() < tolerance


# Captum ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("method", "peer"), [(GuidedBackprop(), "GuidedBackprop"), (DeconvNet(), "Deconvolution")])
def test_captum_guided(name: str, method: Method, peer: str) -> None:
    """To 1e-9, on nets whose ReLUs are modules (torchvision's ResNet reuses them: these hooks can)."""
    attr = pytest.importorskip("captum.attr")
    net, x = NETS[name](), rand(1)
    found = ours(method, net, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(attr, peer)(net).attribute(x.clone().requires_grad_(True), target=TARGET[:1])
    agree(found, expected.detach())


def test_captum_deeplift() -> None:
    """To 1e-9 where Captum is right: every module used once, no in-place ReLU, no max-pooling."""
    attr = pytest.importorskip("captum.attr")
    net, x = averaging(), rand(3)
    found = ours(DeepLiftRescale(), net, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = attr.DeepLift(net).attribute(x, torch.zeros_like(x), target=TARGET)
    agree(found, expected.detach())


def test_captum_deeplift_shap() -> None:
    attr = pytest.importorskip("captum.attr")
    net, x, background = averaging(), rand(3), rand(4, seed=1)
    found = ours(DeepSHAP(), net, x, background=background)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = attr.DeepLiftShap(net).attribute(x, background, target=TARGET)
    agree(found, expected.detach())


def test_captum_lrp() -> None:
    """The epsilon rule in all layers, on layers that Captum's LRP knows; it starts from the logit, as we do."""
    attr = pytest.importorskip("captum.attr")
    from captum.attr._utils.lrp_rules import EpsilonRule

    net, x = small(), rand(3)
    found = ours(LRP(epsilon=0.05), net, x)
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.rule = EpsilonRule(epsilon=0.05)
        if isinstance(module, (nn.AvgPool2d, nn.MaxPool2d)):
            module.rule = EpsilonRule(epsilon=1e-12)
    expected = attr.LRP(net).attribute(x, target=TARGET)
    agree(found, expected.detach(), 1e-8)


def test_captum_deeplift_errs_on_max_pooling() -> None:
    """conv (identity), ReLU, max-pool 2 x 2, dense (identity): the logit gains 1; Captum's contributions sum to 2."""
    attr = pytest.importorskip("captum.attr")
    net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 1)).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(float(parameter.dim() > 1))
    x, reference = (torch.tensor(v).double().view(1, 1, 2, 2) for v in ([-2.0, 2, -1, 0], [1.0, -2, -3, -1]))
    model = Classifier(net).double().eval()
    found = toys.run(DeepSHAP(), model, x, torch.tensor([0]), background=reference)
    torch.testing.assert_close(found.flatten(), torch.tensor([0.0, 1.0, 0.0, 0.0]).double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = attr.DeepLift(net).attribute(x, reference, target=0).detach()
    assert theirs.sum().item() == pytest.approx(2.0)


class Reused(nn.Module):
    """One ReLU module at two places; `apart` writes them as two."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)
        self.one, self.head = nn.ReLU(), nn.Linear(5 * 16, 3)
        self.two = nn.ReLU() if apart else self.one

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.b(self.one(self.a(x)))).flatten(1))


def test_captum_deeplift_errs_on_a_reused_relu() -> None:
    """The same function written with one ReLU module: Captum's hooks mix the two places up, or refuse; ours do not."""
    attr = pytest.importorskip("captum.attr")
    x, apart, reused = rand(3, 8), shaken(Reused(True)), shaken(Reused(False))
    torch.testing.assert_close(apart(x), reused(x))
    agree(ours(DeepLiftRescale(), reused, x), ours(DeepLiftRescale(), apart, x), 1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = attr.DeepLift(apart).attribute(x, torch.zeros_like(x), target=TARGET).detach()
        agree(ours(DeepLiftRescale(), apart, x), right)
        try:
            wrong = attr.DeepLift(reused).attribute(x, torch.zeros_like(x), target=TARGET).detach()
        except RuntimeError:
            return
    assert ((wrong - right).abs().max() / right.abs().max()).item() > 1e-3


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "resnet50", "vgg16"])
def test_captum_deeplift_on_torchvision(name: str) -> None:
    """Ours is complete. Captum's refuses (overlapping max-pooling, reused ReLUs), or its sum misses the gain."""
    attr = pytest.importorskip("captum.attr")
    size = 64 if name == "alexnet" else 32
    net = getattr(torchvision.models, name)
    net = vgg16() if name == "vgg16" else shaken(net(weights=None, num_classes=3), 3, rand(6, size, seed=9))
    x = rand(1, size)
    with torch.no_grad():
        gain = (net(x) - net(torch.zeros_like(x)))[:, TARGET[0]]
    torch.testing.assert_close(ours(DeepLiftRescale(), net, x).sum((1, 2, 3)), gain, rtol=1e-6, atol=1e-7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = attr.DeepLift(net).attribute(x, torch.zeros_like(x), target=TARGET[:1]).detach()
        except (AssertionError, RuntimeError):
            return
    assert ((theirs.sum((1, 2, 3)) - gain).abs() / gain.abs()).item() > 1e-3


def test_captum_guided_backprop_misses_functional_relus() -> None:
    """Captum hooks modules, so F.relu keeps its plain gradient without a word; ours is the same for both spellings."""
    attr = pytest.importorskip("captum.attr")

    class Functional(Reused):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.b(nn.functional.relu(self.a(x)))).flatten(1))

    x, functional, modules = rand(3, 8), shaken(Functional(True)), shaken(Reused(True))
    agree(ours(GuidedBackprop(), functional, x), ours(GuidedBackprop(), modules, x), 1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = attr.GuidedBackprop(functional).attribute(x.clone().requires_grad_(True), target=TARGET).detach()
    right = ours(GuidedBackprop(), modules, x)
    assert ((theirs - right).abs().max() / right.abs().max()).item() > 1e-2


# zennit ---------------------------------------------------------------------------------------------------------------


def zennit_relevance(net: nn.Module, x: Tensor, target: Tensor, composite: object) -> Tensor:
    """zennit's relevance, started from the logit's value."""
    point = x.clone().requires_grad_(True)
    with composite.context(net) as modified:  # type: ignore[attr-defined]
        output = modified(point)
        seed = torch.zeros_like(output).scatter_(1, target.view(-1, 1), 1.0)
        return torch.autograd.grad(output, point, seed * output.detach())[0]


def zennit_composite(name: str, canonizers: list) -> object:
    from zennit import rules
    from zennit.composites import LayerMapComposite, SpecialFirstLayerMapComposite
    from zennit.types import Activation, AvgPool, Convolution

    tiny = 1e-12
    fixed = [(Activation, rules.Pass()), (AvgPool, rules.Norm(stabilizer=tiny))]
    kernel = (nn.Conv2d, nn.Linear)
    alpha_beta = {a: rules.AlphaBeta(alpha=a, beta=a - 1, stabilizer=tiny) for a in (1, 2)}
    no_bias = rules.AlphaBeta(alpha=1, beta=0, stabilizer=tiny, zero_params="bias")
    flat = [(Convolution, rules.Flat(stabilizer=tiny, zero_params="bias"))]
    box = rules.ZBox(-1.0, 1.0, stabilizer=tiny, zero_params="bias")
    w2 = [(kernel, rules.WSquare(stabilizer=tiny, zero_params="bias"))]
    dense = [(nn.Linear, rules.Epsilon(epsilon=1e-3))]
    if name == "epsilon":
        return LayerMapComposite([*fixed, (kernel, rules.Epsilon(epsilon=0.1))], canonizers=canonizers)
    if name == "z+":
        return SpecialFirstLayerMapComposite([*fixed, (kernel, no_bias)], w2, canonizers=canonizers)
    if name == "zbox":
        return SpecialFirstLayerMapComposite([*fixed, (kernel, no_bias)], [(kernel, box)], canonizers=canonizers)
    alpha = {"a_flat": 1, "b_flat": 2}[name]
    layers = [*fixed, (Convolution, alpha_beta[alpha]), *dense]
    return SpecialFirstLayerMapComposite(layers, flat, canonizers=canonizers)


ZENNIT: dict[str, Method] = {
    "epsilon": LRP(epsilon=0.1),
    "a_flat": LRP(conv="alpha_beta", first="flat", epsilon=1e-3),
    "b_flat": LRP(conv="alpha_beta", first="flat", epsilon=1e-3, alpha=2.0, beta=1.0),
    "z+": DeepTaylor(),
    "zbox": DeepTaylor(first="bounded", low=-1.0, high=1.0),
}


@pytest.mark.parametrize("rule", ZENNIT)
@pytest.mark.parametrize("name", ["small", "vgg16"])
def test_zennit(rule: str, name: str) -> None:
    """To 1e-6: zennit adds its stabiliser (1e-12 here) everywhere, we ours at exact zero only."""
    pytest.importorskip("zennit")
    net, x = NETS[name](), rand(1)
    target = net(x).argmax(1)
    assert net(x).amax() > 0  # where Deep Taylor starts from zero there is nothing to compare
    expected = zennit_relevance(net, x, target, zennit_composite(rule, []))
    agree(ours(ZENNIT[rule], net, x, target), expected, 1e-6)


@pytest.mark.parametrize("rule", ["epsilon", "a_flat", "b_flat"])
def test_zennit_resnet18(rule: str) -> None:
    """To 1e-6 with zennit's canonizer for torchvision's ResNet: batch norms folded, sums by the z rule.

    The canonizer folds a batch norm and leaves its eps behind, so that each one still divides by sqrt(1 + eps): with
    the usual eps = 1e-5 the relevance is off by 1e-4 in the end. Here eps is 1e-12.
    """
    pytest.importorskip("zennit")
    from zennit import rules
    from zennit.layer import Sum
    from zennit.torchvision import ResNetCanonizer

    net, x = resnet18(), rand(2)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-12
    composite = zennit_composite(rule, [ResNetCanonizer()])
    composite.layer_map.append((Sum, rules.Norm(stabilizer=1e-12)))  # type: ignore[attr-defined]
    found = ours(ZENNIT[rule], net, x)
    agree(found, zennit_relevance(net, x, TARGET[:2], composite), 1e-6)


# shap -----------------------------------------------------------------------------------------------------------------


def test_shap_deep_explainer() -> None:
    """To 1e-9: logits, 4 references, max-pooling by the same rule (windows apart: shap's unpooling cannot overlap)."""
    shap = pytest.importorskip("shap")
    net, x, background = small(), rand(3), rand(4, seed=1)
    found = ours(DeepSHAP(), net, x, background=background)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = shap.DeepExplainer(net, background).shap_values(x, check_additivity=False)
    values = torch.as_tensor(values)  # (B, C, H, W, classes)
    agree(found, torch.stack([values[b, ..., c] for b, c in enumerate(TARGET.tolist())]))


def test_shap_errs_on_overlapping_max_pooling() -> None:
    """shap puts a window's share back by unpooling, where windows that share a winner overwrite each other."""
    shap = pytest.importorskip("shap")
    net = shaken(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 1), nn.Flatten(), nn.Linear(64, 3)))
    x, background = rand(3, 8), rand(2, 8, seed=1)
    with torch.no_grad():
        gain = net(x).gather(1, TARGET.view(-1, 1)).squeeze(1) - net(background).mean(0)[TARGET]
    found = ours(DeepSHAP(), net, x, background=background)
    torch.testing.assert_close(found.sum((1, 2, 3)), gain, rtol=1e-9, atol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = torch.as_tensor(shap.DeepExplainer(net, background).shap_values(x, check_additivity=False))
    theirs = torch.stack([values[b, ..., c].sum() for b, c in enumerate(TARGET.tolist())])
    assert ((theirs - gain).abs() / gain.abs()).max().item() > 1e-2
