"""Methods that read attention: seen on every path, equal to plain loops, right where the answer is known."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

import salrun
from salrun.errors import SalrunError
from salrun.methods.attention import Attentions
from salrun.methods.tokens import grid_of
from salrun.methods.transformer import (
    AttentionLast,
    AttentionRollout,
    LeGrad,
    TransformerRelevance,
    readout,
    relevance_of_attention,
)
from salrun.models.classifier import Classifier
from salrun.models.layers import blocks_of
from salrun.models.vit import VisionTransformer
from tests.toys import MEAN, STD, classifier, close, images, run, seeded

B, N, WIDTH, HEADS, CLASSES = 3, 5, 8, 2, 3
TARGET = torch.tensor([1, 0, 2])


def vit(depth: int = 3, size: int = 8) -> Classifier:
    """Four patches of 4 x 4 and a class token; weights large enough for attention to differ."""

    def build() -> nn.Module:
        net = VisionTransformer(size, 4, WIDTH, depth, HEADS, 12, CLASSES)
        for p in net.parameters():
            nn.init.normal_(p, std=0.5)
        return net

    return classifier(seeded(build))


def torchvision_vit(layers: int = 2, **options: object) -> nn.Module:
    """torchvision's own, tiny, its head not zero."""

    def build() -> nn.Module:
        net = torchvision.models.VisionTransformer(8, 4, layers, HEADS, WIDTH, 12, num_classes=CLASSES, **options)
        for p in net.parameters():
            nn.init.normal_(p, std=0.5)
        return net

    return seeded(build).double()


def written_out(model: Classifier, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Logits, attentions and block outputs of `vit`, computed here head by head."""
    net = model.module
    tokens = net.patches(model.normalise(x)).flatten(2).transpose(1, 2)
    z = torch.cat([net.class_token.expand(len(x), -1, -1), tokens], 1) + net.positions
    attentions, outputs = [], []
    for block in net.blocks:
        q, k, v = block.attention.qkv(block.norm1(z)).chunk(3, -1)
        heads, mixed = [], []
        for h in range(HEADS):
            part = slice(h * WIDTH // HEADS, (h + 1) * WIDTH // HEADS)
            heads.append((q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(WIDTH // HEADS)).softmax(-1))
        attention = torch.stack(heads, 1)
        for h in range(HEADS):
            part = slice(h * WIDTH // HEADS, (h + 1) * WIDTH // HEADS)
            mixed.append(attention[:, h] @ v[..., part])
        z = z + block.attention.project(torch.cat(mixed, -1))
        z = z + block.mlp(block.norm2(z))
        attentions.append(attention)
        outputs.append(z)
    return net.output(net.norm(z)[:, 0]), attentions, outputs


def up(values: list[float] | Tensor, grid: tuple[int, int] = (2, 2), size: tuple[int, int] = (8, 8)) -> Tensor:
    plane = torch.as_tensor(values, dtype=torch.float64).view(1, 1, *grid)
    return F.interpolate(plane, size=size, mode="bilinear", align_corners=False)[0]


# -- what is seen ------------------------------------------------------------------------------------------------------


class ByHand(nn.Module):
    """The attention of `nn.MultiheadAttention` as some libraries write it, one of three ways to take a softmax."""

    def __init__(self, like: nn.MultiheadAttention, way: str) -> None:
        super().__init__()
        self.like, self.way = like, way

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for t in F.linear(x, self.like.in_proj_weight, self.like.in_proj_bias).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = {"method": lambda: scores.softmax(dim=-1), "function": lambda: F.softmax(scores, -1)}
        weights["torch"] = lambda: torch.softmax(scores, 3)
        return self.like.out_proj((weights[self.way]() @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("way", ["plain", "averaged", "heads", "method", "function", "torch", "encoder"])
@pytest.mark.parametrize("gradients", [False, True])
def test_attention_is_seen_whatever_path_it_takes(way: str, gradients: bool) -> None:
    attention = seeded(lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)).double().requires_grad_(gradients)
    x = images(B, (N, WIDTH), 1).squeeze(1)
    expected, weights = attention(x, x, x, average_attn_weights=False)
    seen: list[Tensor] = []
    with torch.set_grad_enabled(gradients), Attentions(lambda a: seen.append(a) or a):
        if way == "plain":  # without gradients: the fast path of torch
            output = attention(x, x, x, need_weights=False)[0]
        elif way in ("averaged", "heads"):
            output, given = attention(x, x, x, average_attn_weights=way == "averaged")
            close(given, weights.mean(1) if way == "averaged" else weights)
        elif way == "encoder":
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 8, 0.0, batch_first=True).double().eval()
            layer.self_attn = attention
            layer(x)
            output = expected
        else:
            output = ByHand(attention, way)(x)
    assert len(seen) == 1
    close(seen[0], weights)
    close(output, expected)
    assert seen[0].requires_grad == gradients


@pytest.mark.parametrize(
    "options", [{}, {"scale": 0.3}, {"is_causal": True}, {"attn_mask": "bool"}, {"attn_mask": "add"}]
)
def test_scaled_dot_product_attention_keeps_its_result(options: dict) -> None:
    q, k, v = (images(2, (N, 4), HEADS, seed) for seed in (1, 2, 3))
    mask = {"bool": images(1, (N, N), 1)[0, 0] > 0.3, "add": images(1, (N, N), 1)[0, 0]}
    mask["bool"].fill_diagonal_(True)
    given = {key: mask[value] if key == "attn_mask" else value for key, value in options.items()}
    seen: list[Tensor] = []
    with Attentions(lambda a: seen.append(a) or a):
        found = F.scaled_dot_product_attention(q, k, v, **given)
    close(found, F.scaled_dot_product_attention(q, k, v, **given))
    close(seen[0].sum(-1), torch.ones(2, HEADS, N, dtype=torch.float64))
    grouped = {"enable_gqa": True}
    with Attentions(lambda a: a):
        found = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], **grouped)
    close(found, F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], **grouped))


def test_the_capture_equals_attention_written_out() -> None:
    model, x = vit(), images(B)
    logits, attentions, _ = written_out(model, x)
    seen: list[Tensor] = []
    with Attentions(lambda a: seen.append(a) or a):
        close(model(x), logits)
    for a, b in zip(seen, attentions, strict=True):
        close(a, b)


# -- slow twins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize(("residual", "discard"), [(0.5, 0.0), (0.3, 0.4), (0.0, 0.0)])
def test_rollout_slow_twin(fusion: str, residual: float, discard: float) -> None:
    model, x = vit(), images(B)
    _, attentions, _ = written_out(model, x)
    raw = run(AttentionRollout(residual, fusion, discard), model, x, TARGET)
    for b in range(B):
        product = torch.eye(N, dtype=torch.float64)
        for attention in attentions:
            mixed = torch.zeros(N, N, dtype=torch.float64)
            for i in range(N):
                for j in range(N):
                    values = [attention[b, h, i, j].item() for h in range(HEADS)]
                    mixed[i, j] = {"mean": sum(values) / HEADS, "max": max(values), "min": min(values)}[fusion]
            for value in sorted(mixed.flatten().tolist())[: int(discard * N * N)]:
                mixed[mixed == value] = 0
            step = residual * torch.eye(N, dtype=torch.float64) + (1 - residual) * mixed
            for i in range(N):
                step[i] /= step[i].sum()
            product = step @ product
        close(raw[b], up(product[0, 1:]))


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_last_attention_slow_twin(fusion: str) -> None:
    model, x = vit(), images(B)
    attention = written_out(model, x)[1][-1]
    raw = run(AttentionLast(fusion), model, x, TARGET)
    pick = {"mean": lambda v: sum(v) / len(v), "max": max, "min": min}[fusion]
    for b in range(B):
        close(raw[b], up([pick([attention[b, h, 0, j].item() for h in range(HEADS)]) for j in range(1, N)]))


def test_relevance_slow_twin() -> None:
    model, x = vit(), images(B)
    raw = run(TransformerRelevance(), model, x, TARGET)
    logits, attentions, _ = written_out(model, x)
    for b in range(B):
        gradients = torch.autograd.grad(logits[b, TARGET[b]], attentions, retain_graph=True)
        relevance = torch.eye(N, dtype=torch.float64)
        for attention, gradient in zip(attentions, gradients, strict=True):
            mixed = torch.zeros(N, N, dtype=torch.float64)
            for h in range(HEADS):
                mixed += (gradient[b, h] * attention[b, h]).clamp(min=0).detach() / HEADS
            relevance = relevance + mixed @ relevance
        close(raw[b], up(relevance[0, 1:]))


def positive_shares(layer: nn.Linear, x: Tensor, r: Tensor) -> Tensor:
    """(x_i w_ij)+ r_j / sum_i (x_i w_ij)+, summed over j, for one token."""
    handed = torch.zeros_like(x)
    for j in range(len(r)):
        share = (x * layer.weight[j]).clamp(min=0)
        handed += share / share.sum() * r[j] if share.sum() > 0 else 0
    return handed


def balanced(a: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """What the terms of a + b get: the z rule, then both scaled to their shares of the whole."""
    by_a, by_b = a * r / (a + b), b * r / (a + b)
    whole = by_a.sum().abs() + by_b.sum().abs()
    return tuple(t * (t.sum().abs() / whole) * r.sum() / t.sum() for t in (by_a, by_b))


def relevance_by_hand(model: Classifier, x: Tensor, target: int) -> list[Tensor]:
    """The relevance of each block's attention for one image, token by token and head by head."""
    net, size = model.module, WIDTH // HEADS
    tokens = net.patches(model.normalise(x[None])).flatten(2).transpose(1, 2)[0]
    z = torch.cat([net.class_token[0], tokens]) + net.positions[0]
    kept = []
    for block in net.blocks:
        normed = block.norm1(z)
        q, k, v = (t.unflatten(-1, (HEADS, size)).transpose(0, 1) for t in block.attention.qkv(normed).chunk(3, -1))
        scores = q @ k.transpose(1, 2) / math.sqrt(size)
        weights = scores.softmax(-1)
        mixed = (weights @ v).transpose(0, 1).flatten(1)
        attended = block.attention.project(mixed)
        middle = z + attended
        kept.append((block, z, normed, q, k, v, weights, mixed, attended, middle))
        z = middle + block.mlp(block.norm2(middle))
    r = torch.zeros_like(z)
    r[0] = positive_shares(net.output, net.norm(z)[0], F.one_hot(torch.tensor(target), CLASSES).double())
    found = []
    for block, before, normed, q, k, v, weights, mixed, attended, middle in reversed(kept):
        first, _, second = (m for m in block.mlp if not isinstance(m, nn.Dropout))
        inner = block.norm2(middle)
        skipped, through = balanced(middle, block.mlp(inner), r)
        hidden = F.gelu(first(inner))
        through = torch.stack([positive_shares(second, hidden[i], through[i]) for i in range(N)])
        through = torch.stack([positive_shares(first, inner[i], through[i]) for i in range(N)])
        skipped, through = balanced(before, attended, skipped + through)
        through = torch.stack([positive_shares(block.attention.project, mixed[i], through[i]) for i in range(N)])
        of_heads = through.unflatten(-1, (HEADS, size)).transpose(0, 1)
        ratio = of_heads / (weights @ v) / 2
        r_weights, r_v = weights * (ratio @ v.transpose(1, 2)), v * (weights.transpose(1, 2) @ ratio)
        found.insert(0, r_weights)
        ratio = r_weights / (q @ k.transpose(1, 2)) / 2
        r_q, r_k = q * (ratio @ k), k * (ratio.transpose(1, 2) @ q)
        r_qkv = torch.cat([t.transpose(0, 1).flatten(1) for t in (r_q, r_k, r_v)], -1)
        r = skipped + torch.stack([positive_shares(block.attention.qkv, normed[i], r_qkv[i]) for i in range(N)])
    return found


def test_relevance_of_attention_slow_twin() -> None:
    """The CVPR rule: the relevance of attention stands where the ICCV rule has attention itself."""
    model, x = vit(), images(B)
    raw = run(TransformerRelevance("cvpr"), model, x, TARGET)
    logits, attentions, _ = written_out(model, x)
    for b in range(B):
        gradients = torch.autograd.grad(logits[b, TARGET[b]], attentions, retain_graph=True)
        relevance = torch.eye(N, dtype=torch.float64)
        for of_attention, gradient in zip(relevance_by_hand(model, x[b], int(TARGET[b])), gradients, strict=True):
            relevance = relevance + (gradient[b] * of_attention).clamp(min=0).mean(0).detach() @ relevance
        close(raw[b], up(relevance[0, 1:]))
    assert (raw - run(TransformerRelevance(), model, x, TARGET)).abs().max() > 1e-3


def test_relevance_of_one_linear_attention_by_the_cvpr_rule() -> None:
    """y = w (1 + v), all positive, v the value taken: w v / y of the 1 that enters is v's, half of it attention's, and
    dy/dA = w v."""
    model, x = classifier(seeded(lambda: Copies(2, asks=True))), images(B)
    with torch.no_grad():
        for p in model.module.parameters():
            p.abs_()
    values = model.module.patches(model.normalise(x)).flatten(2)[:, :, 1]
    assert values.min() > 0
    raw = run(TransformerRelevance("cvpr"), model, x, TARGET)
    for b in range(B):
        weight = model.module.head.weight[TARGET[b]]
        taken = weight @ values[b]
        close(raw[b], up([0, (taken * taken / (weight.sum() + taken) / 2).item(), 0, 0]))


def test_a_stem_of_convolutions_has_no_say_in_the_relevance_of_attention() -> None:
    """Relevance comes from above: the network behind its stem, given what the stem makes, has the same."""
    net = seeded(lambda: VisionTransformer(8, 4, WIDTH, 2, HEADS, 12, CLASSES, stem=(4, 6), halvings=1))
    whole = Classifier(net, MEAN, STD, {}, "net").double().eval()
    x = images(B)
    behind = relevance_of_attention(
        Classifier(Behind(net), [0.0] * 6, [1.0] * 6, {}, "behind").double().eval(),
        net.stem(whole.normalise(x)).detach(),
        TARGET,
        2,
    )
    for a, b in zip(relevance_of_attention(whole, x, TARGET, 2), behind, strict=True):
        close(a, b)


class Behind(nn.Module):
    """A transformer without its stem."""

    def __init__(self, net: VisionTransformer) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.net.patches(x).flatten(2).mT
        z = torch.cat([self.net.class_token.expand(len(x), -1, -1), tokens], 1) + self.net.positions
        return self.net.output(self.net.norm(self.net.blocks(z))[:, 0])


def test_attention_that_no_image_changes_has_no_relevance_to_tell() -> None:
    with pytest.raises(SalrunError, match="in model 'net' 2 of 2 do not: use rule=iccv"):
        run(TransformerRelevance("cvpr"), classifier(seeded(lambda: Copies(2, 2))), images(B), TARGET)


@pytest.mark.parametrize("layers", [None, 1, 2])
def test_legrad_slow_twin(layers: int | None) -> None:
    model, x = vit(), images(B)
    raw = run(LeGrad(layers), model, x, TARGET)
    _, attentions, outputs = written_out(model, x)
    chosen = range(3)[-(layers or 3) :]
    for b in range(B):
        total = torch.zeros(N, dtype=torch.float64)
        for block in chosen:
            mean = sum(outputs[block][b, i] for i in range(N)) / N
            score = model.module.output(model.module.norm(mean))[TARGET[b]]
            (gradient,) = torch.autograd.grad(score, attentions[block], retain_graph=True)
            for h in range(HEADS):
                for i in range(N):
                    total += gradient[b, h, i].clamp(min=0) / (HEADS * N * len(chosen))
        close(raw[b], up(total[1:]))


def test_no_square_is_needed() -> None:
    """Images of 8 x 12 have 2 x 3 patches: rows before columns."""
    model, x = vit(1), images(B, (8, 12))
    with torch.no_grad():
        model.module.positions = nn.Parameter(
            torch.randn(1, 7, WIDTH, generator=torch.Generator().manual_seed(0)).double()
        )
    attention = written_out(model, x)[1][-1]
    raw = run(AttentionLast(), model, x, TARGET)
    for b in range(B):
        close(raw[b], up(attention[b].mean(0)[0, 1:].detach(), (2, 3), (8, 12)))


# -- known answers -----------------------------------------------------------------------------------------------------


class Copies(nn.Module):
    """Every token looks at token `place` alone and takes its value; `depth` times, with skip connections.

    `asks`: the scores come from the tokens, which they outweigh; else they are constants.
    """

    def __init__(self, place: int, depth: int = 1, read: str = "class", asks: bool = False) -> None:
        super().__init__()
        self.asks = asks
        self.patches, self.depth, self.read = nn.Conv2d(3, 2, 4, 4), depth, read
        self.register_buffer("scores", 1e4 * F.one_hot(torch.full((N,), place), N).double())
        self.head = nn.Linear(2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.patches(x).flatten(2).mT
        z = torch.cat([torch.ones_like(z[:, :1]), z], 1)
        for _ in range(self.depth):
            scores = self.scores + z @ z.mT if self.asks else self.scores.expand(len(x), -1, -1)
            z = z + scores.softmax(-1) @ z
        read = {"class": z[:, 0], "mean": z[:, 1:].mean(1), "all": z.mean(1), "both": z[:, 0] + z[:, 1:].mean(1)}
        return self.head(read[self.read])


@pytest.mark.parametrize("place", [1, 3])
def test_attention_that_copies_one_token(place: int) -> None:
    """One layer: half of the class token's flow is that patch's, the other half its own. Two: 3/4 and 1/4."""
    x = images(B)
    lit = F.one_hot(torch.tensor(place - 1), 4).double()
    for depth, share in ((1, 0.5), (2, 0.75)):
        model = classifier(seeded(lambda: Copies(place, depth)))
        close(run(AttentionRollout(), model, x, TARGET), up(share * lit).expand(B, -1, -1, -1))
        close(run(AttentionLast(), model, x, TARGET), up(lit).expand(B, -1, -1, -1))


def test_relevance_of_one_linear_attention_is_what_the_head_makes_of_the_value() -> None:
    """y_c = w_c (A z)[class]: dy_c/dA[class, place] = w_c z[place], and all other attention is 0."""
    model, x = classifier(seeded(lambda: Copies(2))), images(B)
    values = model.module.patches(model.normalise(x)).flatten(2)[:, :, 1] @ model.module.head.weight.T
    raw = run(TransformerRelevance(), model, x, TARGET)
    for b in range(B):
        close(raw[b], up([0, values[b, TARGET[b]].clamp(min=0).item(), 0, 0]))


class LinearAttention(nn.Module):
    """z + A z, A constant."""

    def forward(self, z: Tensor) -> Tensor:
        return z + torch.zeros(len(z), 1, N, N).to(z).softmax(-1).squeeze(1) @ z


class OneBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.blocks, self.head = nn.Conv2d(3, 2, 4, 4), nn.Sequential(LinearAttention()), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.patches(x).flatten(2).mT
        return self.head(self.blocks(torch.cat([torch.ones_like(z[:, :1]), z], 1))[:, 0])


def test_legrad_of_one_linear_attention_is_what_the_head_makes_of_the_token() -> None:
    """s = w_c mean_i (z + A z)_i + b: ds/dA_ij = w_c z_j / N, whoever asks."""
    model, x = classifier(seeded(OneBlock)), images(B)
    tokens = model.module.patches(model.normalise(x)).flatten(2).mT
    values = torch.einsum("bjk,bk->bj", tokens, model.module.head.weight[TARGET]).relu() / N
    close(run(LeGrad(), model, x, TARGET), torch.cat([up(row)[None] for row in values.detach()]))


@pytest.mark.parametrize(
    ("read", "share"),
    [
        ("class", [1, 0, 0, 0, 0]),
        ("mean", [0] + [0.25] * 4),
        ("all", [0.5] + [0.125] * 4),
        ("both", [0.5] + [0.125] * 4),
    ],
)
def test_who_is_read(read: str, share: list[float]) -> None:
    model, x = classifier(seeded(lambda: Copies(2, 2, read))), images(B)
    close(readout(model, x, 2, N), torch.tensor([share], dtype=torch.float64))


def test_without_a_class_token_the_rows_of_the_patches_are_averaged() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            net = vit(2).module
            self.patches, self.blocks, self.norm, self.output = net.patches, net.blocks, net.norm, net.output

        def forward(self, x: Tensor) -> Tensor:
            return self.output(self.norm(self.blocks(self.patches(x).flatten(2).mT)).mean(1))

    model, x = classifier(Mean()), images(B)
    seen: list[Tensor] = []
    with torch.no_grad(), Attentions(lambda a: seen.append(a) or a):
        model(x)
    close(run(AttentionLast(), model, x, TARGET), torch.stack([up(a.mean((0, 1))) for a in seen[-1]]))
    assert run(TransformerRelevance(), model, x, TARGET).std() > 0
    assert run(LeGrad(), model, x, TARGET).std() > 0


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "size", "grid"),
    [
        (197, (224, 224), (14, 14)),
        (198, (224, 224), (14, 14)),  # and a distillation token
        (261, (224, 224), (16, 16)),  # and four registers
        (196, (224, 224), (14, 14)),
        (253, (224, 300), (14, 18)),
        (13, (16, 12), (4, 3)),
        (95, (224, 224), None),
    ],
)
def test_the_grid_is_like_the_image_where_no_convolution_tells(tokens, size, grid) -> None:
    assert grid_of(tokens, size, nn.Linear(1, 1)) == grid


@pytest.mark.parametrize(
    ("patch", "tokens", "size", "grid"),
    [
        (16, 197, (224, 224), (14, 14)),
        (16, 205, (224, 230), None),  # nine more than patches
        ((4, 1), 17, (8, 8), (2, 8)),  # 4 x 4 and one more would be as many
        (4, 12, (16, 16), None),  # four were dropped
        (4, 49, (56, 56), (7, 7)),  # a pyramid's second stage
    ],
)
def test_the_grid_is_that_of_the_convolution_that_cuts_the_patches(patch, tokens, size, grid) -> None:
    assert grid_of(tokens, size, nn.Sequential(nn.Conv2d(3, 4, patch, patch), nn.Conv2d(4, 4, 1))) == grid


# -- what cannot be explained so ---------------------------------------------------------------------------------------

NAMES = ["attention_rollout", "attention_last", "transformer_relevance", "legrad"]


class Reduced(nn.Module):
    """`keys` of the tokens are looked at; or the tokens become fewer."""

    def __init__(self, keys: int, fewer: bool = False) -> None:
        super().__init__()
        self.patches, self.head, self.keys, self.fewer = nn.Conv2d(3, 4, 2, 2), nn.Linear(4, CLASSES), keys, fewer

    def forward(self, x: Tensor) -> Tensor:
        z = self.patches(x).flatten(2).mT.unsqueeze(1)
        if self.fewer:
            z = F.scaled_dot_product_attention(z, z, z)[:, :, :9]
        seen = z[:, :, : self.keys]
        return self.head(F.scaled_dot_product_attention(z, seen, seen).squeeze(1).mean(1))


def swin() -> nn.Module:
    return torchvision.models.SwinTransformer([2, 2], 4, [1, 1], [1, 2], [2, 2], num_classes=CLASSES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, CLASSES)), "has no attention, which"),
        (swin, r"has attention in windows \(8 of 4 tokens for 2 images\)"),
        (lambda: Reduced(5), "has attention of 16 tokens to 5 others"),
        (lambda: Reduced(9, fewer=True), "changes the number of its tokens, from 16 to 9"),
    ],
)
def test_what_is_no_plain_transformer_is_told_so(name: str, build, words: str) -> None:
    with pytest.raises(SalrunError, match=f"model '.*' {words}"):
        salrun.explain(seeded(build), images(2, dtype=torch.float32), [0, 1], name)


def test_tokens_of_no_grid_are_told_so() -> None:
    class Dropped(Reduced):
        def forward(self, x: Tensor) -> Tensor:
            z = self.patches(x).flatten(2).mT[:, :11].unsqueeze(1)
            return self.head(F.scaled_dot_product_attention(z, z, z).squeeze(1).mean(1))

    with pytest.raises(SalrunError, match="has 11 tokens, which are no grid of patches of an image 8x8"):
        run(AttentionLast(), classifier(seeded(lambda: Dropped(0))), images(B), TARGET)


def test_legrad_needs_blocks() -> None:
    model = classifier(seeded(lambda: Copies(2)))
    assert blocks_of(model.module) == []
    with pytest.raises(SalrunError, match="needs a network of blocks with one attention each; model 'net' has 1 att"):
        run(LeGrad(), model, images(B), TARGET)


def test_several_outputs_are_told_so() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = torchvision_vit().float()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.vit(x), self.vit(x)

    with pytest.raises(SalrunError, match=r"must give logits \(B, classes\), got \(a tensor"):
        salrun.explain(Two(), images(2, dtype=torch.float32), [0, 1], "attention_rollout")


# -- CAMs of tokens ----------------------------------------------------------------------------------------------------


def test_cams_read_the_tokens_before_the_last_attention() -> None:
    """Grad-CAM and Layer-CAM by hand, the class token left out; `layer` chooses another place."""
    model, x = classifier(torchvision_vit(), MEAN, STD, cam="encoder.layers.encoder_layer_1.ln_1"), images(B)
    kept: list[Tensor] = []
    hook = model.layer("cam").register_forward_hook(lambda m, i, o: kept.append(o))
    point = model.normalise(x).requires_grad_()
    (gradient,) = torch.autograd.grad(model.module(point).gather(1, TARGET.view(-1, 1)).sum(), kept)
    hook.remove()
    for b in range(B):
        a, g = kept[0][b, 1:].detach(), gradient[b, 1:]
        weight = g.mean(0)
        cam = torch.stack([sum(weight[k] * a[i, k] for k in range(WIDTH)) for i in range(4)])
        layer = torch.stack([sum(g[i, k].clamp(min=0) * a[i, k] for k in range(WIDTH)) for i in range(4)])
        for name, values in (("grad_cam", cam), ("layer_cam", layer)):
            found = salrun.explain(model.module, point.detach(), TARGET, name)
            close(found[b].as_subclass(Tensor), up(values.clamp(min=0)))
    other = salrun.explain(model.module, point.detach(), TARGET, "grad_cam", layer="encoder.layers.encoder_layer_0")
    assert (other - found).abs().max() > 0


@pytest.mark.parametrize("method", ["grad_cam", "grad_cam_pp", "layer_cam", "score_cam", "eigen_cam", "iba"])
@pytest.mark.parametrize("build", [swin, lambda: torchvision_vit().float()])
def test_layers_of_transformers_are_read(method: str, build) -> None:
    x = images(4, dtype=torch.float32)
    options = {"background": x, "steps": 3, "copies": 2, "sigma": 0.4} if method == "iba" else {}
    maps = salrun.explain(seeded(build), x, [0, 1, 2, 0], method, **options)
    assert maps.shape == (4, 1, 8, 8)
    assert maps.isfinite().all() and (maps.flatten(1).std(1) > 0).any()


def test_channels_last_are_moved_first() -> None:
    """Swin's blocks give (B, h, w, C): Grad-CAM there is that of the same numbers with channels first."""
    net, x = seeded(swin), images(2, dtype=torch.float32)
    last = salrun.explain(net, x, [0, 1], "grad_cam", layer="norm")
    first = salrun.explain(net, x, [0, 1], "grad_cam", layer="permute")
    torch.testing.assert_close(last, first)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ("encoder.ln", "the patches of layer 'encoder.ln' do not reach the logits .* give layer=<one before the last"),
        ("heads", r"gives no feature maps .* but a tensor \(2, 3\); give layer=<one of conv_proj, encoder, heads"),
    ],
)
def test_layers_without_maps_are_told_so(layer: str, words: str) -> None:
    with pytest.raises(SalrunError, match=words):
        salrun.explain(torchvision_vit(), images(2), [0, 1], "grad_cam", layer=layer)


def test_iba_of_tokens_leaves_the_class_token_as_it_is() -> None:
    """With features kept whole the network behind the layer gives its own logits, class tokens and all."""
    from salrun.methods.iba import go_on, is_cut
    from salrun.methods.layers import layer_output

    model, x = vit(), images(B)
    maps = layer_output(model, x, "blocks.1")
    assert maps.shape == (B, WIDTH, 2, 2)
    close(go_on(model, "blocks.1", model.normalise(x), maps), model(x))
    assert not is_cut(model, "blocks.1", model.normalise(x), maps)
