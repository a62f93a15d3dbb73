"""Tensors and a JSON dictionary in one checksummed safetensors file: how entries of the store are kept."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save as serialise
from torch import Tensor

from salrun.errors import SalrunError
from salrun.store.files import write_atomic


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def save_state(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any], durable: bool = True) -> None:
    """Write both atomically; the header carries the sha256 of everything else."""
    body = serialise(_apart({k: v.detach().cpu().contiguous() for k, v in tensors.items()}))
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    notes = {"meta": json.dumps(meta)}  # in its own order: what is read back is what was written
    notes["sha256"] = _checksum(header, notes["meta"], body[8 + length :])
    text = json.dumps({"__metadata__": notes, **header}).encode()
    text += b" " * (-len(text) % 8)
    write_atomic(path, len(text).to_bytes(8, "little") + text + body[8 + length :], durable)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory (one axis of several curves), each with its own: safetensors refuses others."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return tensors


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_state` wrote; a damaged file is named, never half-read."""
    data = read_safetensors(path)
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        notes = header.pop("__metadata__")
        if _checksum(header, notes["meta"], data[8 + length :]) != notes["sha256"]:
            raise ValueError("checksum mismatch")
        return parse(data), json.loads(notes["meta"])
    except (KeyError, ValueError, TypeError, AttributeError, SafetensorError) as fault:
        raise SalrunError(f"{path} is damaged ({fault}): delete it and run again") from fault


def read_safetensors(path: Path) -> bytes:
    """The bytes of a safetensors file; anything else (a pickle in disguise, an empty file) is refused."""
    try:
        data = path.read_bytes()
    except OSError as fault:
        raise SalrunError(f"cannot read {path}: {fault.strerror}") from fault
    length = int.from_bytes(data[:8], "little")
    if len(data) < 10 or length > len(data) or data[8:9] != b"{":
        raise SalrunError(f"{path} is not a safetensors file (pickled checkpoints are refused, they can execute code)")
    return data


def _checksum(header: dict[str, Any], meta: str, section: bytes) -> str:
    return digest(json.dumps(header, sort_keys=True).encode() + meta.encode() + section)
