"""Does a model reason as its task says? Accuracy, accuracy in every group, and paired flips (SMERF section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import nn

from salrun.errors import SalrunError
from salrun.models.classifier import Classifier
from salrun.models.training import predictions
from salrun.ranges import AtLeast, Between
from salrun.store.entries import Store, check_entry, key_of
from salrun.store.sources import source_of, users_code
from salrun.types import Dataset, Flipping

FLIPS = 100  # pairs for every two buckets that differ in one object


@dataclass
class Gate:
    """What a recipe's `gate` may ask for: accuracy overall and in every group, paired flips; measured on `images`."""

    accuracy: Annotated[float, Between(0, 1)] = 0.0
    group: Annotated[float, Between(0, 1)] = 0.0
    flips: Annotated[float, Between(0, 1)] = 0.0
    images: Annotated[float, AtLeast(1)] | None = None


@dataclass
class Verification:
    """Measured accuracies against what the gate asks for."""

    split: str
    accuracy: float
    groups: dict[str, float] = field(default_factory=dict)
    flips: dict[str, float] = field(default_factory=dict)
    gate: dict[str, float] = field(default_factory=dict)
    n: int = 0
    confidence: dict[str, float] = field(default_factory=dict)  # shares of images by their largest probability

    @property
    def reason(self) -> str:
        """What fails; empty if nothing does."""
        faults = []
        if self.accuracy < self.gate.get("accuracy", 0.0):
            faults.append(f"{self.split} accuracy {self.accuracy:.3f} < {self.gate['accuracy']}")
        if self.groups and min(self.groups.values()) < self.gate.get("group", 0.0):
            worst = min(self.groups, key=lambda g: self.groups[g])
            faults.append(f"accuracy in group {worst} {self.groups[worst]:.3f} < {self.gate['group']}")
        if self.flips and self.flip_rate < self.gate.get("flips", 0.0):
            faults.append(f"paired flips {self.flip_rate:.3f} < {self.gate['flips']}")
        return ", ".join(faults)

    @property
    def passed(self) -> bool:
        return not self.reason

    @property
    def flip_rate(self) -> float:
        return sum(self.flips.values()) / len(self.flips) if self.flips else float("nan")

    def as_dict(self) -> dict[str, Any]:
        rounded = lambda table: {k: round(v, 4) for k, v in table.items()}  # noqa: E731
        return {
            "split": self.split,
            "n": self.n,
            "accuracy": round(self.accuracy, 4),
            "groups": rounded(self.groups),
            "flips": rounded(self.flips),
            "flip_rate": round(self.flip_rate, 4) if self.flips else None,
            "confidence": rounded(self.confidence),
            "gate": self.gate,
            "passed": self.passed,
            "reason": self.reason,
        }


def verify_once(
    model: Classifier, data: Dataset, gate: Mapping[str, float], device: torch.device, store: Store
) -> Verification:
    """`verify`, measured once for these very weights and data; the store remembers the figures, not the verdict."""
    key = key_of(
        "verification",
        model=model.fingerprint,
        data=data.fingerprint(),
        **users_code(data),
        flips="flips" in gate,
        images=gate.get("images"),
        device=device.type,
        source=source_of(Verification),
    )
    known = store.read("verification", key, _figures)
    if known is None:
        with store.lease("verification", key, "verifying the model"):
            known = store.read("verification", key, _figures)  # another process may have measured it meanwhile
            if known is None:
                measured = verify(model, data, gate, device)
                figures = {k: getattr(measured, k) for k in ("split", "accuracy", "groups", "flips", "n", "confidence")}
                store.write("verification", key, {"done": torch.ones(1)}, figures)
                return measured
    return replace(known, gate=dict(gate))


def _figures(tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> Verification:
    """What the store remembers; raises where it cannot be figures of a verification."""
    known = Verification(**meta)
    shares = [known.accuracy, *known.groups.values(), *known.flips.values(), *known.confidence.values()]
    check_entry(isinstance(known.split, str) and all(0 <= share <= 1 for share in shares), "figures")
    return known


def check_fit(model: nn.Module, data: Dataset, name: str, device: torch.device) -> None:
    """Raise unless the model takes images of the data's shape and has one output per class."""
    there = f"data set '{data.name}'"
    size = "x".join(map(str, data.shape))
    mean, std = (getattr(model, part, torch.ones(1)) for part in ("mean", "std"))
    if not bool(((std > 0) & std.isfinite()).all()):
        raise SalrunError(f"model '{name}' divides by {std.flatten().tolist()}: model.std must be above 0 and finite")
    try:
        for channels in (mean.numel(), std.numel()):
            if channels not in (1, data.shape[0]):  # would broadcast grey images to the channels of the mean
                raise RuntimeError(f"the model normalises {channels} channels")
        with torch.no_grad():
            logits = model(torch.zeros(1, *data.shape, device=device))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError, AssertionError, ValueError) as fault:  # of torch, timm, transformers: shapes
        raise SalrunError(
            f"model '{name}' does not take the images of {there}, {size}: choose another dataset=.. or model=.. "
            f"({str(fault).partition(chr(10))[0]})"
        ) from fault
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2:
        given = f"a tensor {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        raise SalrunError(f"model '{name}' gives {given}, not logits (B, classes): wrap it so that it gives one output")
    if not logits.is_floating_point() or logits.layout is not torch.strided or logits.device.type != device.type:
        kind = f"{logits.dtype} ({logits.layout}, {logits.device})".replace("torch.", "")
        raise SalrunError(f"model '{name}' gives {kind}, not logits: floats on {device}")
    outputs = logits.shape[1]
    if outputs == 1:
        raise SalrunError(f"model '{name}' has one output, which is probability 1 whatever the image: give it two")
    if outputs != len(data.classes):
        raise SalrunError(
            f"model '{name}' has {outputs} outputs but {there} has {len(data.classes)} classes: "
            f"choose another dataset=.. or model=.."
        )


def verify(model: nn.Module, data: Dataset, gate: Mapping[str, float], device: torch.device) -> Verification:
    """Measure on the data's verification split; flips where the data can make pairs."""
    split = getattr(data, "verification_split", "validation")
    ids = data.ids(split)
    limit = gate.get("images")
    if limit and len(ids) > limit:
        ids = ids[:: -(-len(ids) // int(limit))]
    right, confidence = predictions(model, data, ids, device)
    right &= confidence.isfinite()  # what is no number is no answer
    groups: dict[str, list[bool]] = {}
    for hit, group in zip(right.tolist(), data.groups_of(ids), strict=True):
        groups.setdefault(group, []).append(hit)
    flips = {}
    if isinstance(data, Flipping) and "flips" in gate:
        for a, b, first, second in data.flips(FLIPS):
            hit = _right(model, first, data.label(a), device) & _right(model, second, data.label(b), device)
            flips[f"{a}-{b}"] = hit.float().mean().item()
    share = {g: sum(hits) / len(hits) for g, hits in groups.items()}
    sure = {">=0.99": confidence.ge(0.99), "<=0.8": confidence.le(0.8)}
    return Verification(
        split,
        right.float().mean().item(),
        share,
        flips,
        dict(gate),
        len(ids),
        {name: part.float().mean().item() for name, part in sure.items()},
    )


@torch.no_grad()
def _right(model: nn.Module, images: torch.Tensor, label: int, device: torch.device) -> torch.Tensor:
    return model(images.to(device).float() / 255).argmax(1) == label
