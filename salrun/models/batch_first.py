"""`nn.MultiheadAttention` on images x tokens as they are.

torch's own puts the tokens first, and gets a matrix that is not in one piece: copied there and back, and, where the
weights are frozen, multiplied token by token.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class BatchFirst(nn.MultiheadAttention):
    """Attention of tokens (images, tokens, width) to each other; what is asked for beside that, torch's own does."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        masked = key_padding_mask is not None or attn_mask is not None or is_causal
        if need_weights or masked or query.dim() != 3 or not query is key is value:
            further = key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            return super().forward(query, key, value, *further)
        heads = F.linear(query, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (3, self.num_heads, -1))
        mixed = F.scaled_dot_product_attention(*heads.movedim(1, 3).unbind(1))
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


def images_first(module: nn.Module) -> bool:
    """Let every layer of self-attention in it leave the images first, in place; whether there is one."""
    layers = [layer for layer in module.modules() if type(layer) is nn.MultiheadAttention and _is_plain(layer)]
    for layer in layers:
        layer.__class__ = BatchFirst
    return bool(layers)


def _is_plain(layer: nn.MultiheadAttention) -> bool:
    extended = layer.bias_k is not None or layer.bias_v is not None or layer.add_zero_attn
    return layer.batch_first and layer.in_proj_weight is not None and not extended and not layer.training
