"""Operators that torch has as one and the backward engine takes apart: attention, in the ways a network calls it.

Each function has the arguments of torch's own and is written with operators that have rules, the images first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(Q K^T / sqrt(d) + mask) V, which F.scaled_dot_product_attention computes without its weights."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    if is_causal:
        whole = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        attn_mask = whole.tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _forbidding(~attn_mask, query.dtype)
    return F.dropout(weights(query, key, attn_mask, scale), dropout_p, dropout_p > 0) @ value


def weights(query: Tensor, key: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """softmax(scale Q K^T + mask), scale = 1 / sqrt(d) unless told."""
    scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.transpose(-2, -1)
    return (scores if mask is None else scores + mask).softmax(-1)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What nn.MultiheadAttention does to (tokens, images, width): heads of projections, attention, a projection."""
    given: tuple[Any, ...] = (q_proj_weight, k_proj_weight, v_proj_weight)
    if query is key is value and in_proj_weight is not None:
        q, k, v = F.linear(query.transpose(0, 1), in_proj_weight, in_proj_bias).chunk(3, -1)
    else:
        matrices = given if in_proj_weight is None else in_proj_weight.chunk(3)
        biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
        inputs = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = (F.linear(t, w, b) for t, w, b in zip(inputs, matrices, biases, strict=True))
    n, added = len(q), 0
    zeros = torch.zeros_like(k[:1, :1]) if add_zero_attn else None
    for more_k, more_v in ((bias_k, bias_v), (zeros, zeros)):
        if more_k is not None and more_v is not None:
            k, v = (torch.cat([t, more.expand(n, 1, -1)], 1) for t, more in ((k, more_k), (v, more_v)))
            added += 1
    mask = _mask(attn_mask, key_padding_mask, q.dtype, n, num_heads, added)
    q, k, v = (t.unflatten(-1, (num_heads, -1)).transpose(1, 2) for t in (q, k, v))
    dropout = dropout_p if training else 0.0
    shares = None
    if need_weights:
        shares = F.dropout(weights(q, k, mask), dropout, dropout > 0)
        mixed = shares @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    output = F.linear(mixed.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias).transpose(0, 1)
    return output, shares.mean(1) if shares is not None and average_attn_weights else shares


def _mask(
    among: Tensor | None, padding: Tensor | None, dtype: torch.dtype, n: int, heads: int, added: int
) -> Tensor | None:
    """What is added to the scores (images, heads, queries, keys); the `added` keys at the end are open to all."""
    found = None
    for mask, shape in ((among, (n, heads)), (padding, (n, 1, 1))):
        if mask is None:
            continue
        mask = _forbidding(mask, dtype) if mask.dtype == torch.bool else mask
        mask = mask if mask.dim() == 2 and mask is among else mask.view(*shape, *mask.shape[1:])
        mask = F.pad(mask, (0, added))
        found = mask if found is None else found + mask
    return found


def _forbidding(forbidden: Tensor, dtype: torch.dtype) -> Tensor:
    """0, and minus infinity where it is forbidden."""
    return torch.zeros_like(forbidden, dtype=dtype).masked_fill(forbidden, -math.inf)


def added_product(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta input + alpha A B."""
    product = batch1 @ batch2
    return (input if beta == 1 else beta * input) + (product if alpha == 1 else alpha * product)


COMPOSED: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": attention,
    "multi_head_attention_forward": multi_head_attention,
    "baddbmm": added_product,
}
