"""Weights from a user's file: safetensors, or a torch file read without executing anything in it."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from torch import Tensor

from salrun.errors import SalrunError
from salrun.models.checkpoint import read_safetensors

TORCH_FILES = (".pth", ".pt", ".bin")


def is_file(weights: str) -> bool:
    """A path, not the name of published weights."""
    return "/" in weights or weights.endswith((".safetensors", *TORCH_FILES))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a .pth with `weights_only`; wrappers and prefixes are taken off."""
    if not path.is_file():
        raise SalrunError(f"model.weights: there is no file {path}")
    if path.suffix == ".safetensors":
        try:
            return parse(read_safetensors(path))
        except SafetensorError as fault:
            raise SalrunError(f"model.weights: {path} is damaged or truncated ({fault})") from fault
    if path.suffix not in TORCH_FILES:
        raise SalrunError(f"model.weights: {path} must end in .safetensors or {', '.join(TORCH_FILES)}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as fault:
        raise SalrunError(
            f"model.weights: {path} holds more than tensors, or is not a torch file; "
            f"loading it could execute code, so it is refused; save `model.state_dict()` instead"
        ) from fault
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, zipfile.BadZipFile) as fault:
        raise SalrunError(f"model.weights: {path} is damaged or truncated ({str(fault).splitlines()[0]})") from fault
    for wrapper in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise SalrunError(f"model.weights: {path} holds no state_dict (names and tensors)")
    return {name.removeprefix("module."): value for name, value in content.items()}
