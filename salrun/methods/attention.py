"""The attention of tokens to each other, seen whatever way a module takes to compute it.

`F.scaled_dot_product_attention` never gives its weights, and `nn.MultiheadAttention` in evaluation mode runs one fused
kernel. While `Attentions` is on both are computed as they are written, softmax(Q K^T / sqrt d) V; where a module writes
them so itself, its softmax is seen. The module is never touched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

See = Callable[[Tensor], Tensor]
SOFTMAX = ("softmax", "special_softmax")


class Attentions(TorchFunctionMode):
    """While it is on, every attention (B, heads, queries, keys) passes through `see`; the network goes on with that."""

    def __init__(self, see: See) -> None:
        super().__init__()
        self.see = see

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return scaled_dot_product(self.see, *args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head(args, kwargs)
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") not in SOFTMAX or not _is_attention(result, args, kwargs):
            return result
        return self.see(result) if result.dim() == 4 else self.see(result.unsqueeze(1)).squeeze(1)

    def _multi_head(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """`nn.MultiheadAttention`'s own function, made to ask for its attention where this mode sees it."""
        asked = _signature(F.multi_head_attention_forward).bind(*args, **kwargs)
        asked.apply_defaults()
        wanted, averaged = (asked.arguments[name] for name in ("need_weights", "average_attn_weights"))
        asked.arguments["need_weights"] = False
        weights: list[Tensor] = []
        see, self.see = self.see, lambda attention: weights.append(see(attention)) or weights[0]  # type: ignore[func-returns-value]
        try:
            with self:
                output, _ = _seen_inside(F.multi_head_attention_forward)(*asked.args, **asked.kwargs)
        finally:
            self.see = see
        return output, (weights[0].mean(1) if averaged else weights[0]) if wanted else None


def scaled_dot_product(
    see: See,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """see(softmax(scale Q K^T + mask)) V, the arguments those of `F.scaled_dot_product_attention`."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return F.dropout(see(scores.softmax(-1)), dropout_p, dropout_p > 0) @ value


def _is_attention(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A softmax over keys: of the last axis of (B, heads, queries, keys), or of square matrices (B, tokens, tokens)."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(result, Tensor) or dim not in (-1, result.dim() - 1):
        return False
    return result.dim() == 4 or (result.dim() == 3 and result.shape[1] == result.shape[2])


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


@cache
def _seen_inside(function: FunctionType) -> FunctionType:
    """A function of torch's whose body runs under a mode that is on: as it is, it hands itself over to the mode."""
    names = {**function.__globals__, "has_torch_function": lambda operands: False}
    inside = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    inside.__kwdefaults__ = function.__kwdefaults__
    return inside
