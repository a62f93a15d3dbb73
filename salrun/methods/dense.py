"""x W^T + b by oneDNN, where torch has it: on AMD's processors in half of the time of MKL, which else does it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear; a gradient of it cannot be asked for."""
    if not _fits(x, weight) or (bias is not None and not _fits(bias)):
        return functional.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _fits(*tensors: Tensor) -> bool:
    return _ONE_DNN and all(t.device.type == "cpu" and t.dtype == torch.float32 and t.numel() for t in tensors)


def _one_dnn() -> bool:
    """Whether torch has the operator, in the form that is used here."""
    try:
        return torch.ops.mkldnn._linear_pointwise(torch.ones(1, 1), torch.ones(1, 1), None, "none", [], "").item() == 1
    except (AttributeError, RuntimeError):
        return False


_ONE_DNN = _one_dnn()
