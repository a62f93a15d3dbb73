"""Weights from a user's file: safetensors, or a torch file read without executing anything in it."""

from __future__ import annotations

import hashlib
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


def read_weights(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a .pth with `weights_only`; wrappers and prefixes are taken off.

    `sha256`, or its beginning: what the file must have. A file without one can be checked only as far as its format
    goes; numbers that are not finite are refused in any case.
    """
    if not path.is_file():
        raise SalrunError(f"model.weights: there is no file {path}")
    if sha256 is not None and not hash_of(path).startswith(sha256):
        raise SalrunError(
            f"model.weights: {path} does not have the sha256 {sha256}..: damaged or another file; get it anew, "
            f"or give the right model.sha256"
        )
    tensors = _of_safetensors(path) if path.suffix == ".safetensors" else _of_torch(path)
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise SalrunError(f"model.weights: {path} is damaged: {name} has values that are not finite")
    return {name.removeprefix("module."): value for name, value in tensors.items()}


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return parse(read_safetensors(path))
    except SafetensorError as fault:
        raise SalrunError(f"model.weights: {path} is damaged or truncated ({fault})") from fault


def _of_torch(path: Path) -> dict[str, Tensor]:
    if path.suffix not in TORCH_FILES:
        raise SalrunError(f"model.weights: {path} must end in .safetensors or {', '.join(TORCH_FILES)}")
    try:
        _check_zip(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as fault:
        raise SalrunError(
            f"model.weights: {path} holds more than tensors, or is not a torch file; "
            f"loading it could execute code, so it is refused; save `model.state_dict()` instead"
        ) from fault
    except Exception as fault:  # a flipped bit can end in any of Python's errors
        raise SalrunError(f"model.weights: {path} is damaged or truncated ({str(fault).splitlines()[:1]})") from fault
    for wrapper in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    named = isinstance(content, Mapping) and all(isinstance(name, str) for name in content)
    if not named or not all(isinstance(value, Tensor) for value in content.values()):
        raise SalrunError(f"model.weights: {path} holds no state_dict (names and tensors)")
    return dict(content)


def _check_zip(path: Path) -> None:
    """torch.load does not look at the checksums of the zip archive that a .pth is."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise zipfile.BadZipFile(f"checksum of {broken}")
