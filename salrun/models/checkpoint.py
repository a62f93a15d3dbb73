"""Weights on disk: a safetensors file (never a pickle) and its JSON card, written atomically, checksummed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save as serialise
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.files import write_atomic
from salrun.models.classifier import Classifier
from salrun.store import key_of, source_of_module
from salrun.tensorfile import digest, read_safetensors

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
    """Copy tensors into the module's own; a missing, extra or misshapen one is an error that names it."""
    own = module.state_dict()
    missing, extra = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
    if missing or extra:
        raise SalrunError(
            f"checkpoint {path} is for another architecture: "
            f"missing {missing[:3] or 'nothing'}, unexpected {extra[:3] or 'nothing'}"
        )
    for key, value in tensors.items():
        if own[key].shape != value.shape:
            raise SalrunError(
                f"checkpoint {path} is for another architecture: "
                f"{key} is {tuple(value.shape)}, the model has {tuple(own[key].shape)}"
            )
    with torch.no_grad():
        for key, value in tensors.items():
            own[key].copy_(value)


def round_half(module: nn.Module) -> None:
    """Round the weights to what a float16 checkpoint holds, so that what is verified is what is shipped."""
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.copy_(value.half())


def fingerprint(module: nn.Module) -> str:
    """sha256 of all weights, by name: what a result depends on."""
    return digest(serialise({k: v.detach().cpu().contiguous() for k, v in module.state_dict().items()}))


def model_key(model: Classifier) -> str:
    """What results depend on: weights, normalisation, the network's layers, those that are read, and a user's code.

    The description of a network has strides and paddings, which its weights do not tell.
    """
    theirs = {type(part).__module__ for part in model.module.modules()}
    own = sorted(m for m in theirs if m.partition(".")[0] not in ("salrun", "torch", "torchvision"))
    return key_of(
        "weights",
        weights=fingerprint(model.module),
        network=repr(model.module),
        mean=model.mean.flatten().tolist(),
        std=model.std.flatten().tolist(),
        layers=dict(model.layers),
        code={module: source_of_module(module) for module in own},
    )
