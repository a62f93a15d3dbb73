"""Maps from the attention of a vision transformer: rollout, the last layer's, gradient-weighted relevance, LeGrad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from salrun.errors import SalrunError
from salrun.methods.attention import Attentions
from salrun.methods.backward import Op, Rule, Rules, Step, one_hot, ordinary, trace, unchanged
from salrun.methods.bilinear import resize
from salrun.methods.chunking import gather_chunked
from salrun.methods.relevance import add_balanced, alpha_beta_rule, halves_z, linear_z, scale_unchanged
from salrun.methods.tokens import grid_of, patches
from salrun.models.classifier import Classifier, check_targets, not_a_number, pick, tensor_of
from salrun.models.layers import blocks_of
from salrun.ranges import AtLeast, Between
from salrun.rng import Draws
from salrun.types import Fitted, Method

FUSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda heads: heads.mean(1),
    "max": lambda heads: heads.amax(1),
    "min": lambda heads: heads.amin(1),
}
Fusion = Literal["mean", "max", "min"]
_SHARES: WeakKeyDictionary[nn.Module, dict[Any, Tensor]] = WeakKeyDictionary()  # by network: found once


@dataclass
class AttentionMethod(Method):
    """A_l, (heads, N, N), is the attention of layer l: rows are the tokens that ask, columns those they look at.

    r is the share of each token in what the head reads: 1 for the class token, 1 / n for n patches that are averaged.
    The map has a value for each patch, resized to the image (bilinear); tokens that are no patch are left out.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"attention"})
    signed: ClassVar[bool] = False

    def __call__(self, model: Classifier, x: Tensor, target: Tensor, rng: Draws, fitted: Fitted) -> Tensor:
        check_targets(x, target)
        return gather_chunked(
            lambda part: on_image(self.values(model, x[part], target[part]), x[part], model), len(x), fitted.chunk
        )

    def values(self, model: Classifier, x: Tensor, target: Tensor) -> Tensor:
        """A value for each token, (B, N)."""
        raise NotImplementedError("abstract")


@dataclass
class AttentionRollout(AttentionMethod):
    """r^T S_L ... S_1 at the patches, S_l = a I + (1 - a) A_l with every row scaled to sum to 1; no class is asked.

    Abnar, Zuidema 2020: how much of each patch has flowed into what the head reads, if tokens mixed as attention says
    and skip connections kept the share a (`residual`). A_l: the heads' mean, maximum or minimum (`head_fusion`), of
    which the `discard` share of smallest entries is set to 0 first. Not signed.
    """

    residual: Annotated[float, Between(0, 1)] = 0.5
    head_fusion: Fusion = "mean"
    discard: Annotated[float, Between(0, 1)] = 0.0

    sees_class: ClassVar[bool] = False
    paper_name: ClassVar[str] = "Attention Rollout"
    source: ClassVar[str] = "Abnar, Zuidema 2020, arXiv:2005.00928"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 1.0

    @torch.no_grad()
    def values(self, model: Classifier, x: Tensor, target: Tensor) -> Tensor:
        layers = attention(model, x, FUSIONS[self.head_fusion])
        flow = readout(model, x, len(layers), layers[0].shape[-1])
        for fused in reversed(layers):
            kept = without_smallest(fused, self.discard)
            flow = flow / (self.residual + (1 - self.residual) * kept.sum(2))
            flow = self.residual * flow + (1 - self.residual) * (flow.unsqueeze(1) @ kept).squeeze(1)
        return flow


def without_smallest(matrices: Tensor, share: float) -> Tensor:
    """(B, N, N) with the smallest of each, so large a share of its entries, set to 0."""
    few = int(share * matrices[0].numel())
    if not few:
        return matrices
    flat = matrices.flatten(1)
    return flat.scatter(1, flat.topk(few, largest=False).indices, 0).view_as(matrices)


@dataclass
class AttentionLast(AttentionMethod):
    """r^T A_L at the patches: where the last layer looks, its heads fused (`head_fusion`); no class is asked.

    The picture by which Caron et al. 2021 (DINO) made attention known, there head by head. Not signed.
    """

    head_fusion: Fusion = "mean"

    sees_class: ClassVar[bool] = False
    paper_name: ClassVar[str] = "Last attention"
    source: ClassVar[str] = "Caron et al. 2021, arXiv:2104.14294"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 1.0

    @torch.no_grad()
    def values(self, model: Classifier, x: Tensor, target: Tensor) -> Tensor:
        layers = attention(model, x, FUSIONS[self.head_fusion])
        read = readout(model, x, len(layers), layers[0].shape[-1])
        return (read.expand(len(x), 1, -1) @ layers[-1]).squeeze(1)


@dataclass
class TransformerRelevance(AttentionMethod):
    """r^T R_L at the patches, R_0 = I, R_l = R_(l-1) + E_l R_(l-1), E_l = mean over heads of ReLU(dy_c/dA_l * P_l).

    Chefer, Gur, Wolf 2021. `rule: iccv`: P_l is the attention A_l itself ("Generic Attention-model Explainability", the
    rule for self-attention). `rule: cvpr`: P_l is the relevance of A_l by LRP ("Transformer Interpretability Beyond
    Attention Visualization"): 1 enters at y_c; a layer hands it down by positive contributions, R_i = sum_j (x_i w_ij)+
    R_j / sum_i (x_i w_ij)+; a product of matrices gives half to each factor; a sum follows the z rule, balanced between
    its terms; norms, activations and the softmax pass it unchanged. Not signed.
    """

    rule: Literal["iccv", "cvpr"] = "iccv"

    paper_name: ClassVar[str] = "Transformer relevance"
    source: ClassVar[str] = "Chefer et al. 2021, arXiv:2103.15679; rule cvpr: arXiv:2012.09838"

    def passes(self, model: Classifier, shape: tuple[int, int, int]) -> float:
        return 3.0 if self.rule == "iccv" else 8.0

    def values(self, model: Classifier, x: Tensor, target: Tensor) -> Tensor:
        layers: list[Tensor] = []

        def see(weights: Tensor) -> Tensor:
            layers.append(weights if weights.requires_grad else weights.requires_grad_())
            return weights

        with torch.enable_grad():
            score = pick(seen(model, x, see), target)
            gradients = torch.autograd.grad(score.sum(), layers)
        propagated = layers if self.rule == "iccv" else relevance_of_attention(model, x, target, len(layers))
        with torch.no_grad():
            flow = readout(model, x, len(layers), layers[0].shape[-1]).expand(len(x), -1)
            for weights, gradient in zip(reversed(propagated), reversed(gradients), strict=True):
                mixed = (gradient * weights).relu().mean(1).to(flow)
                flow = flow + (flow.unsqueeze(1) @ mixed).squeeze(1)
            return not_a_number(flow, score)


def relevance_of_attention(model: Classifier, x: Tensor, target: Tensor, layers: int) -> list[Tensor]:
    """The relevance of so many layers' attention, (B, heads, N, N) each, by the LRP of Chefer et al. 2021, CVPR."""
    found: list[Tensor] = []

    def layer(op: Op) -> Step:
        affine, source = op.affine  # type: ignore[misc]
        back = alpha_beta_rule(affine, source, 1.0, 0.0, "none", op.run.known(source).positive)
        return Step(op(), [source], lambda r: (back(r),))

    def softmax(op: Op) -> Step:
        value, place = op(), len(found)
        if value.shape[-2] != value.shape[-1]:
            raise op.run.refuse(op, "it is no attention of tokens to each other")
        found.append(value)

        def back(r: Tensor) -> tuple[Tensor]:
            found[place] = r if r.dim() == 4 else r.unsqueeze(1)
            return (r,)

        return Step(value, [op.x], back)

    def norm(op: Op) -> Step:
        return unchanged(op) if op.affine is None else layer(op)

    rules: dict[str, Rule] = {
        **dict.fromkeys(("relu", "activation", "gate", "layer_norm"), unchanged),
        **dict.fromkeys(("max_pool", "max"), ordinary),
        "affine": layer,
        "batch_norm": norm,
        "softmax": softmax,
        "bilinear": halves_z,
        "average": linear_z,
        "linear_map": linear_z,
        "add": add_balanced,
        "scale": scale_unchanged,
    }
    run = trace(model, model.normalise(x), Rules("transformer_relevance", rules, folds=True), "norm")
    if len(found) != layers:
        raise SalrunError(
            f"transformer_relevance by rule=cvpr needs attention that depends on the image; in model '{model.name}' "
            f"{layers - len(found)} of {layers} do not: use rule=iccv"
        )
    run.pull(one_hot(run.output, target))
    return found


@dataclass
class LeGrad(AttentionMethod):
    """Mean over layers, heads and asking tokens of ReLU(ds_l/dA_l), at the patches.

    Bousselham et al. 2024. s_l is the logit that the network's own end (norm and head) gives the mean of the tokens
    behind block l, and A_l acts on it through block l alone. `layers`: so many of the last blocks; None: all. The map
    is as it is, not scaled to [0, 1]. Not signed.
    """

    layers: Annotated[int, AtLeast(1)] | None = None

    paper_name: ClassVar[str] = "LeGrad"
    source: ClassVar[str] = "Bousselham et al. 2024, arXiv:2404.03214"

    def values(self, model: Classifier, x: Tensor, target: Tensor) -> Tensor:
        blocks = blocks_of(model.module)
        means: list[Tensor] = []
        layers: list[Tensor] = []

        def enter(block: nn.Module, *given: Any) -> Any:
            return tree_map_only(Tensor, Tensor.detach, given)

        def leave(block: nn.Module, given: object, output: Any) -> None:
            means.append(tensor_of(output).mean(1, keepdim=True))

        def see(weights: Tensor) -> Tensor:
            layers.append(weights.detach().requires_grad_())
            return layers[-1]

        with ExitStack() as hooks, torch.enable_grad():
            for name in blocks:
                block = model.module.get_submodule(name)
                hooks.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
                hooks.callback(block.register_forward_hook(leave).remove)
            seen(model, x, see)
        if not len(blocks) == len(means) == len(layers):
            told = f"{len(layers)} attentions in {len(blocks)} blocks, of which {len(means)} ran"
            raise SalrunError(
                f"LeGrad needs a network of blocks with one attention each; model '{model.name}' has {told}"
            )
        with torch.enable_grad():
            last = slice(-(self.layers or len(blocks)), None)
            score = pick(self.ends(model, x, means[last]), target.repeat(len(means[last])))
            gradients = torch.autograd.grad(score.sum(), layers[last])
        values = torch.stack([gradient.relu().mean((1, 2)) for gradient in gradients]).mean(0).to(x)
        return not_a_number(values, score.unflatten(0, (-1, len(x))).sum(0))

    def ends(self, model: Classifier, x: Tensor, means: Sequence[Tensor]) -> Tensor:
        """Logits that the network's end gives each mean token, which stands for all tokens behind the last block."""
        *_, last = blocks_of(model.module)

        def replace(block: nn.Module, given: object, own: Any) -> Any:
            tokens = torch.cat(list(means)).expand(-1, tensor_of(own).shape[1], -1)
            return (tokens, *own[1:]) if isinstance(own, tuple) else tokens

        handle = model.module.get_submodule(last).register_forward_hook(replace)
        try:  # what comes before the last block is thrown away: one image serves
            return model(x[:1])
        finally:
            handle.remove()


# -- a network's attention ---------------------------------------------------------------------------------------------


def seen(model: Classifier, x: Tensor, see: Callable[[Tensor], Tensor]) -> Tensor:
    """The logits; on the way every layer's attention passes `see`. Raises where it is not one of all tokens to all."""
    tokens: list[int] = []

    def check(weights: Tensor) -> Tensor:
        fault = unfit(weights.shape, tokens, x, model.module)
        if fault:
            raise SalrunError(
                f"model '{model.name}' {fault}: methods that read attention need all tokens to see each other"
            )
        tokens.append(weights.shape[-1])
        return see(weights)

    with Attentions(check):
        logits = model(x)
    if not tokens:
        raise SalrunError(
            f"model '{model.name}' has no attention, which this method reads: it explains transformers "
            f"(for convolutions: grad_cam, lrp_epsilon, ...)"
        )
    return logits


def unfit(shape: torch.Size, before: Sequence[int], x: Tensor, module: nn.Module) -> str:
    """What keeps attention of this shape from being one of all tokens of an image to all; empty: nothing."""
    images, _, queries, keys = shape
    if images != len(x):
        return f"has attention in windows ({images} of {keys} tokens for {len(x)} images)"
    if queries != keys:
        return f"has attention of {queries} tokens to {keys} others"
    if before:
        return "" if before[0] == keys else f"changes the number of its tokens, from {before[0]} to {keys}"
    size = "x".join(map(str, x.shape[2:]))
    known = grid_of(keys, x.shape[2:], module)
    return "" if known else f"has {keys} tokens, which are no grid of patches of an image {size}"


def attention(model: Classifier, x: Tensor, keep: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """`keep` of every layer's attention, in order."""
    layers: list[Tensor] = []

    def see(weights: Tensor) -> Tensor:
        layers.append(keep(weights).to(x))  # some take the softmax in float32 whatever the network's type
        return weights

    seen(model, x, see)
    return layers


@torch.no_grad()
def readout(model: Classifier, x: Tensor, layers: int, tokens: int) -> Tensor:
    """r, (1, N): 1 for the class token where the head reads it alone; in general each token that is no patch counts as
    much as all patches together, as far as they are read.

    Found by trying: what the last attention gives a token is made NaN; if the logits are NaN, they depend on it.
    """
    height, width = grid_of(tokens, x.shape[2:], model.module) or (1, tokens)
    others = tokens - height * width
    known = _SHARES.setdefault(model.module, {})
    key = tokens, height, x.dtype, x.device
    if key not in known:
        count: list[int] = []
        trial = torch.eye(1 + others, dtype=torch.bool, device=x.device)
        spoilt = torch.cat([trial[:, 1:], trial[:, :1].expand(-1, height * width)], 1)[:, None, :, None]

        def see(weights: Tensor) -> Tensor:
            count.append(1)
            return weights.masked_fill(spoilt, torch.nan) if len(count) == layers else weights

        logits = seen(model, torch.zeros_like(x[:1]).expand(1 + others, -1, -1, -1), see)
        read = logits.isnan().any(1).to(x)
        known[key] = torch.cat([read[1:], (read[:1] / (height * width)).expand(height * width)]) / read.sum()
    return known[key].unsqueeze(0)


def on_image(values: Tensor, x: Tensor, model: Classifier) -> Tensor:
    """Values of tokens (B, N) as a plane of the image: those of the patches in their places, bilinear."""
    grid = grid_of(values.shape[1], x.shape[2:], model.module)
    assert grid is not None
    return resize(patches(values.unsqueeze(2), grid), x)
