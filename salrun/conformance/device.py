"""Proof of device cleanliness without a GPU.

`DeviceClean` fails on a tensor factory that names no device and on anything that copies a tensor to the host. It names
the call; what happens inside an autograd Function it does not see. A run on the `meta` device sees that too: there a
tensor made elsewhere cannot be mixed in, and no value can be read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from salrun.conformance import Nonconforming

FACTORIES = frozenset(
    {
        *(torch.tensor, torch.zeros, torch.ones, torch.empty, torch.full, torch.eye, torch.arange, torch.linspace),
        *(torch.logspace, torch.rand, torch.randn, torch.randint, torch.randperm, torch.scalar_tensor),
        *(torch.tril_indices, torch.triu_indices),
    }
)
GLOBAL_RANDOM = frozenset(
    {
        *(torch.rand, torch.randn, torch.randint, torch.randperm),
        *(torch.rand_like, torch.randn_like, torch.randint_like),
        *(torch.bernoulli, torch.multinomial, torch.normal, Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_),
    }
)
HOST_COPIES = frozenset(
    {
        *(Tensor.item, Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.__bool__, Tensor.__float__, Tensor.__int__),
        *(Tensor.__index__, Tensor.__array__, Tensor.nonzero, torch.nonzero, Tensor.__complex__, torch.equal),
    }
)


class DeviceDirty(Nonconforming):
    """A call that would stall or break on an accelerator."""


class DeviceClean(TorchFunctionMode):
    """While it is on, a call that is not device-clean raises `DeviceDirty` with the call's name."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES and kwargs.get("device") is None:
            raise DeviceDirty(f"{resolve_name(func)} without device=")
        if func in GLOBAL_RANDOM and kwargs.get("generator") is None:
            raise DeviceDirty(f"{resolve_name(func)} draws from the global generator")
        if func in HOST_COPIES:
            raise DeviceDirty(f"{resolve_name(func)} copies to the host")
        if func is Tensor.to and "cpu" in map(str, (*args[1:], *kwargs.values())) and args[0].device.type != "cpu":
            raise DeviceDirty("Tensor.to('cpu') copies to the host")
        return func(*args, **kwargs)
