"""What a caller in Python gives, as the engine reads it: accepted where the meaning is plain, else one sentence."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.models.classifier import Classifier

Array = Tensor | np.ndarray
HALF = (torch.float16, torch.bfloat16)
MARGIN = 1e-3  # by which an image may leave [0, 1]: rounding and resizing do that


def as_tensor(given: Any, what: str) -> Tensor:
    """A tensor, an array, or a sequence of equal ones."""
    try:
        if isinstance(given, list | tuple):
            return torch.stack([as_tensor(item, what) for item in given])
        return given if isinstance(given, Tensor) else torch.from_numpy(np.ascontiguousarray(given))
    except (TypeError, ValueError, RuntimeError) as fault:
        raise SalrunError(f"{what} must be a tensor or a numeric array, got {type(given).__name__}: {fault}") from fault


def as_tensors(given: Mapping[str, Any] | None, what: str, device: torch.device) -> dict[str, Tensor]:
    return {name: as_tensor(item, f"{what}['{name}']").to(device) for name, item in (given or {}).items()}


def as_images(given: Any, what: str = "images") -> Tensor:
    """Some images, as a tensor of floats with four axes."""
    images = as_tensor(given, what)
    if images.dim() != 4:
        raise SalrunError(f"{what} must be (B, C, H, W), got {tuple(images.shape)}")
    if not images.numel():
        raise SalrunError(f"{what} must hold one image at least, got {tuple(images.shape)}")
    if not images.is_floating_point():
        raise SalrunError(f"{what} must be floats, got {images.dtype}: divide by 255, say")
    return images


def in_full_precision(module: nn.Module) -> nn.Module:
    """The module; of one with weights in half precision a copy in float32: small gradients would vanish."""
    return copy.deepcopy(module).float() if dtypes(module) & set(HALF) else module


def dtypes(module: nn.Module) -> set[torch.dtype]:
    """Those of the weights."""
    return {p.dtype for p in module.parameters() if p.is_floating_point()}


def fitting(model: Classifier, images: Tensor, what: str = "images") -> Tensor:
    """The images in the model's dtype, channels first, grey ones in as many channels as the model takes.

    Whether they need that is seen by the first convolution; whether it helps, by trying one image.
    """
    images = images.to(next(iter(dtypes(model)), images.dtype))
    check_range(model, images, what)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None or images.shape[1] == first.in_channels:
        return images
    wanted = first.in_channels
    readings = [images]
    if images.shape[1] == 1:
        readings.insert(0, images.expand(-1, wanted, -1, -1))
    if images.shape[3] in (1, wanted):
        readings.append(images.permute(0, 3, 1, 2).expand(-1, wanted, -1, -1))
    for reading in readings:
        if _runs(model, reading[:1]):
            return reading.contiguous()
    raise SalrunError(
        f"{what} have {images.shape[1]} channels in {tuple(images.shape)}, model '{model.name}' takes {wanted}"
    )


def check_range(model: Classifier, images: Tensor, what: str) -> None:
    """Images that are normalised in front of the module must lie in [0, 1]."""
    if not (model.mean.any() or (model.std != 1).any()):
        return
    low, high = images.min().item(), images.max().item()
    if low < -MARGIN or high > 1 + MARGIN:
        raise SalrunError(
            f"{what} reach from {low:.3g} to {high:.3g}, and mean= and std= are for images in [0, 1]: "
            "divide by 255, or leave mean and std out where the images are normalised already"
        )


def _runs(model: Classifier, image: Tensor) -> bool:
    try:
        with torch.no_grad():
            model(image)
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


def as_maps(given: Any, images: Tensor, what: str = "maps") -> Tensor:
    """Raw attributions (B, C, H, W) of the images; also given as (B, H, W) or channels last."""
    maps = as_tensor(given, what).to(images.device, images.dtype)
    if maps.dim() == 3:
        maps = maps.unsqueeze(1)
    size = images.shape[2:]
    if maps.dim() == 4 and maps.shape[2:] != size and maps.shape[1:3] == size:
        maps = maps.permute(0, 3, 1, 2).contiguous()
    if maps.dim() != 4 or len(maps) != len(images) or maps.shape[2:] != size:
        raise SalrunError(f"{what} of shape {tuple(maps.shape)} do not fit images {tuple(images.shape)}")
    return maps


def logits_of(output: Any, name: str) -> Tensor:
    """The logits in what a model gives: the tensor, what is called `logits`, or the only tensor (B, classes)."""
    parts: Sequence[Any] = [output]
    if not isinstance(output, Tensor):
        named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
        inner = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
        parts = [named] if named is not None else list(inner)
    found = [part for part in parts if isinstance(part, Tensor) and part.dim() == 2]
    if len(found) == 1:
        return found[0]
    raise SalrunError(f"model '{name}' must give logits (B, classes), got {_told(output)}: wrap it so that it does")


def _told(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"a tensor {tuple(output.shape)}"
    if isinstance(output, Mapping):
        return "{" + ", ".join(f"{key}: {_told(item)}" for key, item in output.items()) + "}"
    if isinstance(output, list | tuple):
        return "(" + ", ".join(map(_told, output)) + ")"
    return f"a {type(output).__name__}"
