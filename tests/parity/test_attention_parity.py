"""Relevance through attention against lxt, Captum and zennit, in float64; and where those are wrong, what they say."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

from salrun.methods.attn_lrp import AttnLRP
from salrun.methods.deeplift import DeepLiftRescale
from salrun.methods.gradient import InputXGradient, IntegratedGradients
from salrun.methods.lrp import LRP
from salrun.models.classifier import Classifier
from salrun.models.vit import VisionTransformer
from salrun.types import Method
from tests import toys

TARGET = toys.targets(3)
TINY = 1e-14  # lxt's stabilisers, everywhere: ours act at exact zero


def random(net: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in net.double().parameters():
            parameter.normal_(0, 0.4, generator=generator)
    return net.eval()


def ours(method: Method, net: nn.Module, x: Tensor) -> Tensor:
    return toys.run(method, Classifier(net).double().eval(), x, TARGET)


def score(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).gather(1, TARGET.view(-1, 1))


def agree(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert expected.abs().max() > 0
    assert ((found - expected).abs().max() / expected.abs().max()).item() < tolerance


def relevance(forward, x: Tensor) -> Tensor:
    """What arrives at the image of the logits' own values, by lxt's operators."""
    point = x.clone().requires_grad_(True)
    logits = forward(point)
    seed = F.one_hot(TARGET, logits.shape[1]) * logits.detach()
    return torch.autograd.grad(logits, point, seed)[0]


# lxt ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["all", "values"])
def test_lxt_explicit(attention: str) -> None:
    """To 1e-7: every operator of the small ViT replaced by lxt's; "values" stops relevance at the softmax."""
    lf = pytest.importorskip("lxt.explicit.functional")
    rules = pytest.importorskip("lxt.explicit.rules")
    shape = {"size": 16, "patch": 8, "width": 8, "depth": 2, "heads": 2, "hidden": 12, "classes": 3}
    net, x = random(VisionTransformer(**shape)), toys.images(3, 16)

    def dense(layer: nn.Linear, v: Tensor) -> Tensor:
        return lf.linear_epsilon(v, layer.weight.flatten(1), layer.bias, TINY)

    def norm(layer: nn.LayerNorm, v: Tensor) -> Tensor:
        return lf.layer_norm_grad_fn.apply(v, layer.weight, layer.bias, layer.eps, TINY)

    def attend(layer: nn.Module, v: Tensor) -> Tensor:
        q, k, v = dense(layer.qkv, v).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        p = lf.softmax(lf.mul2(lf.matmul(q, k.mT, False, TINY), 0.5), -1)
        if attention == "values":
            mixed = rules.epsilon_lrp(lambda t: p.detach() @ t, TINY, v)
        else:
            mixed = lf.matmul(p, v, False, TINY)
        return dense(layer.project, mixed.transpose(1, 2).flatten(2))

    def forward(image: Tensor) -> Tensor:
        cut = image.unflatten(2, (2, 8)).unflatten(4, (2, 8)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        v = torch.cat([net.class_token.expand(len(image), -1, -1), dense(net.patches, cut)], 1)
        v = lf.add2(v, net.positions.expand_as(v), False, TINY)
        for block in net.blocks:
            v = lf.add2(v, attend(block.attention, norm(block.norm1, v)), False, TINY)
            hidden = rules.identity(F.gelu, dense(block.mlp.dense1, norm(block.norm2, v)))
            v = lf.add2(v, dense(block.mlp.dense2, hidden), False, TINY)
        return dense(net.output, norm(net.norm, v)[:, 0])

    torch.testing.assert_close(forward(x), net(x))
    agree(ours(AttnLRP(attention=attention), net, x), relevance(forward, x), 1e-7)


@pytest.fixture
def efficient() -> Iterator[object]:
    """lxt.efficient, which rewrites classes of torch and zennit for good: they are put back."""
    pytest.importorskip("lxt")
    try:
        import lxt.efficient as package
        from zennit.core import BasicHook
    except ImportError as fault:
        pytest.skip(f"lxt 2.1 needs transformers < 5: {fault}")

    kinds = (nn.GELU, nn.LayerNorm, nn.MultiheadAttention, BasicHook)
    before = [{key: vars(kind)[key] for key in ("forward", "backward") if key in vars(kind)} for kind in kinds]
    yield package
    for kind, methods in zip(kinds, before, strict=True):
        for key, value in methods.items():
            setattr(kind, key, value)
        if hasattr(kind, "original_forward"):
            del kind.original_forward


def test_lxt_efficient_on_torchvisions_vit(efficient) -> None:
    """To 1e-8: its map for this model takes attention's weights for constants, as lrp_z and `attention: values` do."""
    from torchvision.models import vision_transformer

    net, x = random(TorchvisionViT(16, 8, 2, 2, 8, 16, num_classes=3)), toys.images(3, 16)
    found = [ours(method, net, x) for method in (AttnLRP(attention="values"), LRP(dense="z", conv="z"))]
    efficient.monkey_patch(vision_transformer)
    point = x.clone().requires_grad_(True)
    expected = x * torch.autograd.grad(score(net, point).sum(), point)[0]
    for raw in found:
        agree(raw, expected, 1e-8)


def test_lxt_efficient_gamma(efficient) -> None:
    """To 1e-6 (zennit divides by its inputs plus 1e-10): the gamma rule in convolution and dense layers."""
    from torchvision.models import vision_transformer
    from zennit.composites import LayerMapComposite
    from zennit.rules import Gamma

    parts = [nn.Conv2d(3, 6, 4, 4), nn.GELU(), nn.Flatten(2), nn.LayerNorm(4), nn.Linear(4, 5), nn.GELU(), nn.Flatten()]
    net, x = random(nn.Sequential(*parts, nn.Linear(30, 3))), toys.images(3, 8)
    found = ours(AttnLRP(conv_gamma=0.25, dense_gamma=0.05), net, x)
    efficient.monkey_patch(vision_transformer)
    efficient.monkey_patch_zennit()
    rule = partial(Gamma, stabilizer=1e-14)
    point = x.clone().requires_grad_(True)
    with LayerMapComposite([(nn.Conv2d, rule(0.25)), (nn.Linear, rule(0.05))]).context(net) as modified:
        expected = x * torch.autograd.grad(score(modified, point).sum(), point)[0]
    agree(found, expected.detach(), 1e-6)


# Captum ---------------------------------------------------------------------------------------------------------------


def test_captum_on_a_transformer() -> None:
    """Gradients need no rules: input times gradient to 1e-10, IG to 1e-7 (its weights are float32).

    DeepLift keeps the plain gradient of GELU, softmax and layer norm and misses the gain, which ours shares out.
    """
    attr = pytest.importorskip("captum.attr")
    net, x = random(TorchvisionViT(16, 8, 2, 2, 8, 16, num_classes=3)), toys.images(3, 16)
    agree(ours(InputXGradient(), net, x), attr.InputXGradient(net).attribute(x.requires_grad_(True), TARGET), 1e-10)
    expected = attr.IntegratedGradients(net).attribute(x, target=TARGET, n_steps=4)
    agree(ours(IntegratedGradients(steps=4), net, x), expected, 1e-7)
    with torch.no_grad():
        gain = (score(net, x) - score(net, torch.zeros_like(x))).squeeze(1)
    torch.testing.assert_close(ours(DeepLiftRescale(), net, x).sum((1, 2, 3)), gain, rtol=1e-9, atol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = attr.DeepLift(net).attribute(x, torch.zeros_like(x), target=TARGET).detach()
    assert ((theirs.sum((1, 2, 3)) - gain).abs() / gain.abs()).max().item() > 0.1


# zennit ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU, nn.Hardswish])
def test_zennit_passes_other_activations_as_ours(activation: type[nn.Module]) -> None:
    pytest.importorskip("zennit")
    from zennit.composites import LayerMapComposite
    from zennit.rules import Epsilon, Pass

    parts = [nn.Conv2d(3, 6, 4, 2), activation(), nn.Conv2d(6, 4, 2), activation(), nn.Flatten(), nn.Linear(16, 3)]
    net, x = random(nn.Sequential(*parts)), toys.images(3, 8)
    rule = Epsilon(epsilon=0.1)
    with LayerMapComposite([(activation, Pass()), (nn.Conv2d, rule), (nn.Linear, rule)]).context(net) as modified:
        expected = relevance(modified, x)
    agree(ours(LRP(epsilon=0.1), net, x), expected, 1e-6)
