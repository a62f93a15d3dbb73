"""The attention of tokens to each other, seen whatever way a module takes to compute it.

`F.scaled_dot_product_attention` never gives its weights, and `nn.MultiheadAttention` in evaluation mode runs one fused
kernel. While `Attentions` is on both are taken apart (`composed.py`), and the softmax of any attention is seen, also
where a module writes it itself. The module is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from salrun.methods.composed import COMPOSED

FUSED = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
SOFTMAX = ("softmax", "special_softmax")


class Attentions(TorchFunctionMode):
    """While it is on, every attention (B, heads, queries, keys) passes through `see`; the network goes on with that."""

    def __init__(self, see: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.see = see

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FUSED:
            with self:
                return COMPOSED[func.__name__](*args, **kwargs)
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") not in SOFTMAX or not _is_attention(result, args, kwargs):
            return result
        return self.see(result) if result.dim() == 4 else self.see(result.unsqueeze(1)).squeeze(1)


def _is_attention(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A softmax over keys: of the last axis of (B, heads, queries, keys), or of square matrices (B, tokens, tokens)."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(result, Tensor) or dim not in (-1, result.dim() - 1):
        return False
    return result.dim() == 4 or (result.dim() == 3 and result.shape[1] == result.shape[2])
