"""Weights on disk: our safetensors file with its JSON card, and a user's file; nothing in either is executed."""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save as serialise
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.models.classifier import Classifier
from salrun.store.entries import key_of
from salrun.store.files import write_atomic
from salrun.store.sources import LIBRARIES, source_of_module
from salrun.store.tensors import digest, read_safetensors

TORCH_FILES = (".pth", ".pt", ".bin")
PAPERS = Path(__file__).resolve().parents[1] / "papers"  # shipped: <paper>/checkpoints/<name>.safetensors


def save_checkpoint(path: Path, module: nn.Module, card: dict[str, Any], half: bool = True) -> None:
    """`path` (.safetensors) and its card `path` (.json). `half` stores float16: verify the rounded weights."""
    tensors = {}
    for key, value in module.state_dict().items():
        value = value.detach().cpu().contiguous()
        tensors[key] = value.half() if half and value.is_floating_point() else value
    body = serialise(tensors)
    card = {**card, "sha256": digest(body), "dtype": "float16" if half else "float32"}
    write_atomic(path.with_suffix(".json"), (json.dumps(card, indent=2, sort_keys=True) + "\n").encode())
    write_atomic(path, body)  # last: weights that are there have their card, whenever this is interrupted


def load_checkpoint(path: Path, module: nn.Module) -> dict[str, Any]:
    """Fill `module` from `path`, all keys and shapes matching, and return the card. Refuses damage and mismatch."""
    body, card = _read(path)
    try:
        tensors = parse(body)
    except SafetensorError as fault:
        raise SalrunError(f"checkpoint {path} is damaged: {fault}") from fault
    fill(module, tensors, path)
    return card


def whole(path: Path) -> bool:
    """Whether the weights and their card are there and the sha256 on the card is that of the weights."""
    try:
        _read(path)
    except SalrunError:
        return False
    return True


def _read(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The weights as stored and their card, the sha256 compared."""
    ours = _shipped(path)
    remedy = f"restore it, or train it again: make train-{path.stem}" if ours else "delete or restore it"
    try:
        body, card = read_safetensors(path), read_card(path)
    except SalrunError as fault:
        if not ours:
            raise
        raise SalrunError(f"{fault}; {remedy}") from fault
    if card.get("sha256") != digest(body):
        raise SalrunError(f"checkpoint {path} does not match the sha256 on its card: damaged or exchanged; {remedy}")
    return body, card


def _shipped(path: Path) -> bool:
    folder = path.resolve().parent
    return folder.name == "checkpoints" and folder.parent.parent == PAPERS


def read_card(path: Path) -> dict[str, Any]:
    beside = path.with_suffix(".json")
    try:
        card = json.loads(beside.read_text(encoding="utf-8"))
    except OSError as fault:
        raise SalrunError(f"checkpoint {path} has no card beside it ({beside.name}, with its sha256)") from fault
    except ValueError as fault:
        raise SalrunError(f"the card of checkpoint {path} is not JSON: {fault}") from fault
    if not isinstance(card, dict):
        raise SalrunError(f"the card of checkpoint {path} is not a JSON object")
    return card


def fill(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy tensors into the module's state; a missing, extra or misshapen one is an error that names it."""
    state = module.state_dict()
    missing, extra = sorted(set(state) - set(tensors)), sorted(set(tensors) - set(state))
    if missing or extra:
        raise SalrunError(
            f"checkpoint {path} is for another architecture: "
            f"missing {missing[:3] or 'nothing'}, unexpected {extra[:3] or 'nothing'}"
        )
    for key, value in tensors.items():
        if state[key].shape != value.shape:
            raise SalrunError(
                f"checkpoint {path} is for another architecture: "
                f"{key} is {tuple(value.shape)}, the model has {tuple(state[key].shape)}"
            )
        if state[key].is_floating_point() != value.is_floating_point() or value.is_complex():
            raise SalrunError(f"checkpoint {path}: {key} is {value.dtype}, the model has {state[key].dtype}")
    with torch.no_grad():
        for key, value in tensors.items():
            state[key].copy_(value)


def round_half(module: nn.Module) -> None:
    """Round the weights to what a float16 checkpoint holds, so that what is verified is what is shipped."""
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.copy_(value.half())


# -- a user's file -----------------------------------------------------------------------------------------------------


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


# -- what results depend on --------------------------------------------------------------------------------------------


def fingerprint(module: nn.Module) -> str:
    """sha256 of all weights, by name: what a result depends on."""
    return digest(serialise({k: v.detach().cpu().contiguous() for k, v in module.state_dict().items()}))


def model_key(model: Classifier) -> str:
    """What results depend on: weights, normalisation, the network's layers, those that are read, and their code.

    The description of a network has strides and paddings, which its weights do not tell; neither tells what the forward
    pass of a class does that is not torch's.
    """
    modules = {type(part).__module__ for part in model.module.modules()}
    written = sorted(m for m in modules if m.partition(".")[0] not in LIBRARIES)
    return key_of(
        "weights",
        weights=fingerprint(model.module),
        network=repr(model.module),
        mean=model.mean.flatten().tolist(),
        std=model.std.flatten().tolist(),
        layers=dict(model.layers),
        code={module: source_of_module(module) for module in written},
    )
