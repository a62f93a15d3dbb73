"""Transformers and gated CNNs through the backward engine: slow twins, known answers, every way to write attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.methods.attn_lrp import AttnLRP
from salrun.methods.deep_taylor import DeepTaylor
from salrun.methods.deeplift import DeepLiftRescale, DeepLiftRevealCancel, DeepSHAP, rows_stay
from salrun.methods.gradient import InputXGradient, IntegratedGradients
from salrun.methods.guided import DeconvNet, GuidedBackprop
from salrun.methods.lrp import LRP
from salrun.models.classifier import Classifier
from salrun.models.vit import VisionTransformer
from salrun.types import Method
from tests import slow_attention as slow
from tests import toys

TARGET = torch.tensor([1, 0, 2])
LRP_Z = LRP(dense="z", conv="z")
ON_TRANSFORMERS: dict[str, Method] = {
    "input_x_gradient": InputXGradient(),
    "integrated_gradients": IntegratedGradients(steps=3),
    "lrp_z": LRP_Z,
    "lrp_epsilon": LRP(epsilon=0.1),
    "deeplift_rescale": DeepLiftRescale(),
    "deeplift_reveal_cancel": DeepLiftRevealCancel(),
    "deep_shap": DeepSHAP(),
    "attn_lrp": AttnLRP(),
    "attn_lrp_gamma": AttnLRP(conv_gamma=0.25, dense_gamma=0.05),
}


def random(net: nn.Module, seed: int = 0, scale: float = 0.4) -> nn.Module:
    """Normal parameters, in float64; statistics of batch norms away from (0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    net = net.double().eval()
    with torch.no_grad():
        for name, value in [*net.named_parameters(), *net.named_buffers()]:
            if value.is_floating_point():
                value.normal_(0, scale, generator=generator)
                if name.endswith("running_var"):
                    value.abs_().add_(0.5)
    return net


def vit(**options: object) -> VisionTransformer:
    shape = {"size": 8, "patch": 4, "width": 4, "depth": 2, "heads": 2, "hidden": 5, "classes": 3}
    return random(VisionTransformer(**{**shape, **options}))  # type: ignore[return-value, arg-type]


def run(method: Method, net: nn.Module, x: Tensor, **fitted: object) -> Tensor:
    model = Classifier(net).double().eval()
    return toys.run(method, model, x, TARGET[: len(x)], **{"background": x[:1], **fitted})


def logit(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net(x).gather(1, TARGET[: len(x)].view(-1, 1)).squeeze(1)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


# Slow twins -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "rules"),
    [
        (AttnLRP(), {"epsilon": 0.0, "attention": "all"}),
        (AttnLRP(attention="values"), {"epsilon": 0.0, "attention": "values"}),
        (LRP_Z, {"epsilon": 0.0, "attention": "values"}),
        (LRP(epsilon=0.3), {"epsilon": 0.3, "attention": "values"}),
    ],
    ids=["attn_lrp", "attn_lrp, values", "lrp_z", "lrp_epsilon"],
)
def test_relevance_twin(method: Method, rules: dict) -> None:
    net, x = vit(), toys.images(2, 8)
    found, chain = run(method, net, x), slow.twin(net)
    for b in range(2):
        start = np.zeros((1, 3))
        start[0, TARGET[b]] = logit(net, x)[b].item()
        expected = chain.share(slow.patches(x[b].numpy(), 4), start, **rules)
        np.testing.assert_allclose(slow.patches(found[b].numpy(), 4), expected, rtol=0, atol=1e-9 * abs(expected).max())


def test_deeplift_twin() -> None:
    net, x = vit(), toys.images(2, 8)
    found, chain, zeros = run(DeepLiftRescale(), net, x), slow.twin(net), np.zeros((4, 48))
    for b in range(2):
        seed = np.zeros((1, 3))
        seed[0, TARGET[b]] = 1.0
        tokens = slow.patches(x[b].numpy(), 4)
        expected = chain.multiply(tokens, zeros, seed) * tokens
        np.testing.assert_allclose(slow.patches(found[b].numpy(), 4), expected, rtol=0, atol=1e-9 * abs(expected).max())


# Known answers --------------------------------------------------------------------------------------------------------


class LinearAttention(nn.Module):
    """Pixels as tokens of width 1, y_t = sum_s q_t k_s v_s without a softmax; the logits are a y_1 for two a."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = 2.0 * tokens, 0.5 * tokens, -1.0 * tokens
        return ((q @ k.transpose(1, 2)) @ v)[:, 1] @ torch.tensor([[1.0, 3.0]], dtype=x.dtype)


def test_linear_attention_has_its_relevance_written_down() -> None:
    """Of q_1 k_s v_s the value has a half, key and query a quarter each: R_s = 3/4 of it, R_1 a quarter of y more."""
    net, x = LinearAttention(), toys.images(2, (1, 4), 1)
    pixels = x.flatten(1)
    terms = -pixels[:, 1:2] * pixels * pixels * torch.tensor([[3.0], [1.0]]).double()  # targets 1 and 0
    expected = 0.75 * terms
    expected[:, 1] += 0.25 * terms.sum(1)
    found = run(AttnLRP(), net, x)
    close(found.flatten(1), expected, 1e-12)
    close(found.sum((1, 2, 3)), logit(net, x), 1e-12)
    close(run(LRP_Z, net, x).flatten(1), expected, 1e-12)  # no factor is a gate: half to each there, too


class Softmax(nn.Module):
    """One attention head without biases: logits = A (softmax(x x^T) x), A given."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        return F.scaled_dot_product_attention(tokens, tokens, tokens).mean(1)


@pytest.mark.parametrize("conv", [0.0, 0.5])
def test_attn_lrp_conserves(conv: float) -> None:
    """Without biases all of y_c arrives, but what the softmax's expansion at x keeps: R_p less x (R_p - p sum R_p)."""
    net = random(nn.Sequential(nn.Conv2d(3, 4, 2, 2, bias=False), nn.GELU(), Softmax()))
    x = toys.images(3, 6)
    tokens = net[:2](x).detach().flatten(2).transpose(1, 2)
    scores = tokens @ tokens.transpose(1, 2) / 2
    p, y = scores.softmax(-1), scores.softmax(-1) @ tokens
    m = F.one_hot(TARGET, 4).double().unsqueeze(1) / y.shape[1]  # the mean over tokens, one channel
    r_p = p * ((0.5 * m * torch.ones_like(y)) @ tokens.transpose(1, 2))
    kept = r_p.sum((1, 2)) - (scores * (r_p - p * r_p.sum(-1, keepdim=True))).sum((1, 2))
    found = run(AttnLRP(conv_gamma=conv), net, x)
    close(found.sum((1, 2, 3)), logit(net, x) - kept)
    values = run(AttnLRP(conv_gamma=conv, attention="values"), net, x)
    close(values.sum((1, 2, 3)), logit(net, x))


def test_layer_norms_and_activations_conserve() -> None:
    """Gains but no shifts: relevance of the input adds up to the logit, layer by layer."""
    parts = [nn.Conv2d(3, 6, 2, 2, bias=False), nn.Flatten(2), nn.LayerNorm(9, bias=False), nn.GELU(), nn.Flatten()]
    net, x = random(nn.Sequential(*parts, nn.SiLU(), nn.RMSNorm(54), nn.Linear(54, 3, bias=False))), toys.images(3, 6)
    for method in (AttnLRP(), AttnLRP(0.3, 0.1), LRP_Z):
        close(run(method, net, x).sum((1, 2, 3)), logit(net, x))


def test_attn_lrp_is_input_times_gradient_in_a_relu_network() -> None:
    parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)]
    net, x = random(nn.Sequential(*parts)), toys.images(3, 8)
    close(run(AttnLRP(), net, x), run(InputXGradient(), net, x))


def test_gamma_rule_by_hand() -> None:
    """x = (1, -2), gamma = 1: z_0 = 1 3 + (-2) 1 = 1 favours 1 3, z_1 = 1 1 + (-2) 1 = -1 favours (-2) 1."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[3.0, 1.0], [1.0, 1.0]]))
        net[1].bias.zero_()
    x = torch.tensor([1.0, -2.0]).double().view(1, 1, 1, 2).repeat(2, 1, 1, 1)
    found = run(AttnLRP(dense_gamma=1.0), net, x).flatten(1)  # targets 1 and 0
    expected = torch.tensor([[1.0 / 3, -4.0 / 3], [6.0 / 4, -2.0 / 4]], dtype=torch.float64)
    close(found, expected, 1e-12)


class Gated(nn.Module):
    """Squeeze and excitation: conv, activation, times a gate per channel, dense; `constant` stands for the gate."""

    def __init__(self, gate: Callable[[Tensor], Tensor], activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.squeeze, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Linear(4, 3)
        self.gate, self.activation, self.constant = gate, activation, None

    def gates(self, x: Tensor) -> Tensor:
        return self.gate(self.squeeze(F.adaptive_avg_pool2d(x, 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.a(x))
        return self.b((self.gates(x) * x if self.constant is None else self.constant * x).mean((2, 3)))


@pytest.mark.parametrize("gate", [torch.sigmoid, F.hardsigmoid, lambda x: x.softmax(1)])
@pytest.mark.parametrize("activation", [F.relu, F.silu, F.hardswish, F.gelu, lambda x: x * x.sigmoid()])
def test_a_gate_is_a_constant_to_lrp(gate: Callable[[Tensor], Tensor], activation: Callable[[Tensor], Tensor]) -> None:
    """The signal has all relevance: the map is that of the network whose gates are numbers."""
    net, x = random(Gated(gate, activation)), toys.images(1, 8)
    methods = [LRP_Z, LRP(epsilon=0.2), LRP(conv="alpha_beta", first="flat"), AttnLRP(attention="values")]
    methods += [DeepTaylor()] if activation is F.relu and gate is torch.sigmoid else []
    found = [run(method, net, x) for method in methods]
    with torch.no_grad():
        net.constant = net.gates(net.activation(net.a(x)))
    for method, raw in zip(methods, found, strict=True):
        close(raw, run(method, net, x))


def test_deeplift_shares_a_product_by_halves() -> None:
    """x times its sigmoid, both by themselves: d(a b) = da mean(b) + db mean(a), and the sigmoid is rescaled."""
    net, x = nn.Flatten(), toys.images(2, (1, 3), 1)
    squared = nn.Sequential(net, toys_layer(lambda v: v * v.sigmoid()))
    found = run(DeepLiftRescale(), squared, x).flatten(1)
    value = x.flatten(1)
    expected = torch.zeros_like(value)
    expected[0, 1], expected[1, 0] = ((v * (v.sigmoid() + 0.5) / 2 + (v.sigmoid() - 0.5) * v / 2) for v in
                                      (value[0, 1], value[1, 0]))  # fmt: skip
    close(found, expected, 1e-12)


def toys_layer(function: Callable[[Tensor], Tensor]) -> nn.Module:
    layer = nn.Module()
    layer.forward = function  # type: ignore[method-assign]
    return layer


# Every way to write attention -----------------------------------------------------------------------------------------


class Written(nn.Module):
    """One attention of two heads over four patches, written in several ways; the class token asks."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style, self.patches, self.token = style, nn.Conv2d(3, 4, 4, 4), nn.Parameter(torch.zeros(1, 1, 4))
        sequence_first = style == "module, tokens first"
        self.attention = nn.MultiheadAttention(4, 2, batch_first=not sequence_first)
        self.head = nn.Linear(4, 3)

    def attend(self, x: Tensor) -> Tensor:
        own, (n, tokens, width) = self.attention, x.shape
        if self.style == "module":
            return own(x, x, x)[0]
        if self.style == "module, no weights":
            return own(x, x, x, need_weights=False)[0]
        if self.style == "module, tokens first":
            y = x.transpose(0, 1)
            return own(y, y, y)[0].transpose(0, 1)
        if self.style == "module, open mask":
            return own(x, x, x, attn_mask=torch.zeros(tokens, tokens, dtype=torch.bool))[0]
        if self.style == "module, two inputs":
            return own(x, x * 1.0, x * 1.0, need_weights=False)[0]
        qkv = F.linear(x, own.in_proj_weight, own.in_proj_bias)
        q, k, v = qkv.reshape(n, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        if self.style == "function":
            y = F.scaled_dot_product_attention(q, k, v)
        elif self.style == "operators":
            y = ((q * (width // 2) ** -0.5) @ k.transpose(-2, -1)).softmax(dim=-1) @ v
        elif self.style == "scores divided":
            y = F.softmax(torch.matmul(q, k.mT) / math.sqrt(width // 2), -1).matmul(v)
        elif self.style == "einsum":
            p = torch.einsum("bhid,bhjd->bhij", q, k).mul((width // 2) ** -0.5).softmax(-1)
            y = torch.einsum("bhij,bhjd->bhid", p, v)
        else:  # bmm
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
            p = torch.baddbmm(torch.zeros(1, 1, 1).to(q), q, k.mT, alpha=(width // 2) ** -0.5).softmax(-1)
            y = torch.bmm(p, v).view(n, 2, tokens, -1)
        return own.out_proj(y.transpose(1, 2).reshape(n, tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head((x + self.attend(x))[:, 0])


WAYS = (
    *("module, no weights", "module, tokens first", "module, open mask", "module, two inputs", "function"),
    *("operators", "scores divided", "einsum", "bmm"),
)


@pytest.mark.parametrize("name", [name for name in ON_TRANSFORMERS if name != "integrated_gradients"])
def test_spelling_of_attention_does_not_matter(name: str) -> None:
    x = toys.images(3, 8)
    expected = run(ON_TRANSFORMERS[name], random(Written("module"), 3), x, background=x[:2])
    assert expected.abs().max() > 0
    for style in WAYS:
        net = random(Written(style), 3)
        close(run(ON_TRANSFORMERS[name], net, x, background=x[:2]), expected)


def test_masks_forbid() -> None:
    """A token that no one may look at has no relevance by keys and values; minus infinity makes no NaN."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(3, 1, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            tokens = x.flatten(2).transpose(1, 2)
            mask = torch.tensor([[False, False, True, False]]).expand(len(x), -1)
            return self.attention(tokens[:, :1], tokens, tokens, key_padding_mask=mask)[0][:, 0]

    net, x = random(Masked()), toys.images(2, 2)
    for name, method in ON_TRANSFORMERS.items():
        found = run(method, net, x).flatten(2)
        assert torch.isfinite(found).all(), name
        assert not found[..., 2].any() and found[..., 3].abs().max() > 0, name


# Networks of others ---------------------------------------------------------------------------------------------------


def completeness(net: nn.Module, x: Tensor, background: Tensor) -> None:
    """DeepLIFT and DeepSHAP share out exactly what the logit gains."""
    with torch.no_grad():
        over = logit(net, x) - net(background).mean(0)[TARGET[: len(x)]]
    close(run(DeepLiftRescale(), net, x).sum((1, 2, 3)), logit(net, x) - logit(net, torch.zeros_like(x)), 1e-7)
    close(run(DeepSHAP(), net, x, background=background).sum((1, 2, 3)), over, 1e-7)


def torchvision_vit() -> nn.Module:
    return torchvision.models.VisionTransformer(16, 8, 2, 2, 8, 16, num_classes=3)


def timm_vit() -> nn.Module:
    timm = pytest.importorskip("timm")
    options = {"embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 3, "init_values": 0.5}
    return timm.models.vision_transformer.VisionTransformer(16, 8, **options)


def encoder() -> nn.Module:
    """torch's own layers, whose fast path hides attention in one operator."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    patches = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.Flatten(2))
    return nn.Sequential(
        patches, toys_layer(lambda t: t.mT), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(32, 3)
    )


VITS = {"salrun": lambda: vit(size=16, patch=8, width=8), "torchvision": torchvision_vit, "timm": timm_vit,
        "encoder": encoder}  # fmt: skip


@pytest.mark.parametrize("name", VITS)
def test_vision_transformers(name: str) -> None:
    """The methods run; DeepLIFT is complete; guided backprop and DeconvNet say that they are defined for ReLU."""
    net, x = random(VITS[name]()), toys.images(2, 16)
    completeness(net, x, toys.images(2, 16, seed=5))
    for method in ON_TRANSFORMERS.values():
        assert run(method, net, x).abs().max() > 0
    close(run(AttnLRP(attention="values"), net, x), run(LRP_Z, net, x))
    for method in (GuidedBackprop(), DeconvNet()):
        with pytest.raises(
            SalrunError, match=r"no rule for the operator 'gelu' in layer '\S+' .*: it is defined for ReLU"
        ):
            run(method, net, x)
    with pytest.raises(SalrunError, match="deep_taylor has no rule for the operator '(layer_norm|matmul)'"):
        run(DeepTaylor(), net, x)


class TokensFirst(nn.Module):
    """Two tokens, on the first axis, where an activation meets them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.dense, self.head = nn.Conv2d(3, 4, (8, 4), (8, 4)), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).permute(2, 0, 1)
        return self.head(F.gelu(self.dense(tokens)).mean(0))


@pytest.mark.parametrize("references", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_deep_shap_where_the_images_are_not_the_first_axis(n: int, references: int) -> None:
    """Also where there are as many tokens as images; windows are rows, too."""
    completeness(random(TokensFirst()), toys.images(n, 8), toys.images(references, 8, seed=5))


def test_deep_shap_of_windows() -> None:
    swin = torchvision.models.SwinTransformer([2, 2], 4, [1, 1], [1, 2], [2, 2], num_classes=3)
    completeness(random(swin), toys.images(2, 8), toys.images(3, 8, seed=5))


def test_images_stay_first_in_plain_networks() -> None:
    """Of these DeepSHAP runs images and references forward once each."""
    x = toys.images(2, 16)
    for net in [*(build() for name, build in VITS.items() if name != "timm"), *(f() for f in gated_cnns().values())]:
        assert rows_stay(Classifier(random(net)).double(), x, "norm", lambda logits: logits)


def gated_cnns() -> dict[str, Callable[[], nn.Module]]:
    """The blocks of each family, as torchvision makes them, in small networks."""
    from torchvision.models import convnext, efficientnet, mobilenetv3, regnet

    mobile = [
        mobilenetv3.InvertedResidualConfig(8, 3, 16, 8, True, activation, 1, 1, 1.0) for activation in ("RE", "HS")
    ]
    efficient = [efficientnet.MBConvConfig(2, 3, 1, 8, 8, 1)]
    return {
        "mobilenet_v3": lambda: mobilenetv3.MobileNetV3(mobile, 8, num_classes=3),
        "efficientnet": lambda: efficientnet.EfficientNet(efficient, 0.0, num_classes=3, last_channel=8),
        "regnet_y": lambda: regnet.RegNet(
            regnet.BlockParams([1], [8], [4], [1.0], [2], 0.25), 3, stem_width=8, activation=nn.ReLU
        ),
        "convnext": lambda: convnext.ConvNeXt([convnext.CNBlockConfig(8, None, 2)], layer_scale=0.5, num_classes=3),
    }


REFUSING = {  # the first operator that guided backprop, and Deep Taylor, is not defined for
    "mobilenet_v3": ("hardswish", "hardswish"),
    "efficientnet": ("silu", "silu"),
    "regnet_y": ("sigmoid", None),
    "convnext": ("gelu", "layer_norm"),
}


@pytest.mark.parametrize("name", REFUSING)
def test_gated_cnns(name: str) -> None:
    net, x = random(gated_cnns()[name]()), toys.images(2, 16)
    completeness(net, x, toys.images(2, 16, seed=5))
    taken = [LRP_Z, LRP(), LRP(conv="alpha_beta", first="flat", alpha=2.0, beta=1.0), DeepLiftRevealCancel(), AttnLRP()]
    for method in taken:
        assert run(method, net, x).abs().max() > 0
    for refused, methods in zip(REFUSING[name], ((GuidedBackprop(), DeconvNet()), (DeepTaylor(),)), strict=True):
        for method in methods:
            if refused is None:
                assert torch.isfinite(run(method, net, x)).all()
                continue
            with pytest.raises(SalrunError, match=f"no rule for the operator '{refused}' in layer"):
                run(method, net, x)


def test_what_has_no_rule_is_named() -> None:
    net = random(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)))
    for method in (LRP(), AttnLRP(), DeepLiftRescale()):
        with pytest.raises(SalrunError, match=r"no rule for the operator 'group_norm' in layer '1' \(GroupNorm\)"):
            run(method, net, toys.images(1, 4))
    elsewhere = random(nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Softmax(1), nn.Linear(3, 3)))
    with pytest.raises(SalrunError, match=r"operator 'softmax' in layer '2' \(Softmax\): it has one as a factor only"):
        run(LRP(), elsewhere, toys.images(1, 2))
    pressed = random(nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Sigmoid(), nn.Linear(3, 3)))
    with torch.no_grad():
        pressed[3].weight.abs_()
        pressed[3].bias.abs_()
    with pytest.raises(SalrunError, match=r"deep_taylor has no rule for the operator 'sigmoid' in layer '2'"):
        run(DeepTaylor(), pressed, toys.images(1, 2))


# References -----------------------------------------------------------------------------------------------------------


def test_a_reference_for_all_images_stays_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through class tokens and reshaping: otherwise it would cost as much as the images."""
    from salrun.methods import backward

    rows: list[int] = []
    mark = backward.Tape._mark

    def spy(self: backward.Tape, op: backward.Op, value: object) -> None:
        rows.extend(len(t) for t in backward._tensors(op.reference) if op.name != "permute")
        mark(self, op, value)

    monkeypatch.setattr(backward.Tape, "_mark", spy)
    run(DeepLiftRescale(), vit(), toys.images(3, 8))
    assert len(rows) >= 40 and set(rows) <= {1}


def test_a_reference_without_contrast() -> None:
    """A layer norm of equal values divides by sqrt(eps): contributions stay as large as the gain."""
    net = random(nn.Sequential(nn.Conv2d(3, 4, 2, 2, bias=False), toys_layer(lambda t: t.permute(0, 2, 3, 1)),
                               nn.LayerNorm(4), nn.Flatten(), nn.Linear(16, 3)))  # fmt: skip
    x = toys.images(2, 4)
    found = run(DeepLiftRescale(), net, x)
    gain = logit(net, x) - logit(net, torch.zeros_like(x))
    close(found.sum((1, 2, 3)), gain)
    assert found.abs().max() < 10 * gain.abs().max()


# Batch-mates, chunk, precision ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_TRANSFORMERS)
def test_images_are_explained_one_by_one(name: str) -> None:
    net, x, method = vit(stem=(4,)), toys.images(3, 8), ON_TRANSFORMERS[name]
    whole = run(method, net, x, background=x[:2])
    for chunk in (1, 2):
        close(run(method, net, x, background=x[:2], chunk=chunk), whole)
    alone = run(method, net, x[:1], background=x[:2])
    beside = run(method, net, torch.stack([x[0], torch.full_like(x[0], torch.nan), x[2]]), background=x[:2])
    close(alone, whole[:1])
    close(beside[[0, 2]], whole[[0, 2]])
    assert beside[1].isnan().any()


@pytest.mark.parametrize("name", ON_TRANSFORMERS)
def test_single_precision(name: str) -> None:
    net, x, method = vit(), toys.images(3, 8), ON_TRANSFORMERS[name]
    expected = run(method, net, x)
    model = Classifier(net.float()).eval()
    found = toys.run(method, model, x.float(), TARGET, background=x[:1].float())
    assert found.dtype == torch.float32
    assert ((found - expected).abs().max() / expected.abs().max()).item() < 1e-3


@pytest.mark.parametrize(("inputs", "outputs"), [(7, 5), (48, 96), (192, 64)])
def test_a_dense_layer_of_tokens_is_exact_and_knows_no_batch_mates(inputs: int, outputs: int) -> None:
    """In float32 it is done by oneDNN, where torch has that."""
    from salrun.methods.dense import dense

    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(8, 17, inputs, generator=draw), torch.randn(outputs, inputs, generator=draw)
    whole, bias = dense(x, weight), torch.randn(outputs, generator=draw)
    torch.testing.assert_close(whole, nn.functional.linear(x.double(), weight.double()).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dense(x, weight, bias), whole + bias, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dense(whole, weight.mT), whole @ weight, rtol=1e-5, atol=1e-3)
    assert all(torch.equal(dense(x[i : i + n], weight), whole[i : i + n]) for i in range(5) for n in (1, 2, 3))
    assert dense(x.double(), weight.double()).dtype == torch.float64


@pytest.mark.parametrize("method", [DeepLiftRescale(), DeepSHAP()])
def test_attention_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch, method: Method) -> None:
    """Image by image, with a reference for all and with one for each."""
    from salrun.methods import backward

    net, x, background = vit(), toys.images(3, 8), toys.images(2, 8, seed=5)
    whole = run(method, net, x, background=background)
    monkeypatch.setattr(backward, "_BLOCK", 1)
    close(run(method, net, x, background=background), whole, 1e-12)
