"""Kept maps of a run: `maps/` holds pictures, planes (float16) and an index, for the gallery and for comparing maps.

`maps/<method>.safetensors` has `plane` (N, H, W), each map over its largest absolute value, and that value as `scale`;
`maps/<model>/<method>.safetensors` has the same of each further model of the run, for its first images. Planes are for
looking at: metrics score a view of the raw map (in the index: `view`), which for colour images is mostly not the plane.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save as serialise
from torch import Tensor

from salrun.build import Cell, MethodPart
from salrun.files import write_atomic
from salrun.stages import Result, Stages, Tile
from salrun.types import ROLES

MOST = 240  # images kept for the gallery
MOST_OF_OTHERS = 512 << 20  # bytes of other models' maps


def write_maps(cell: Cell, stages: Stages, work: list[Tile], out: Path, most: int = MOST) -> None:
    """The first tiles' maps, spread evenly over the run, as planes: the signed channel sum, or its magnitude."""
    if cell.keep_maps == "none":
        return
    every = max(1, -(-sum(len(t.ids) for t in work) // most))
    models = {"": stages} | {name: other for name, other in stages.others.items() if other is not stages}
    pictures: list[Tensor] = []
    planes: dict[tuple[str, str], list[dict[str, Tensor]]] = {(m, p.name): [] for m in models for p in cell.methods}
    _, height, width = cell.dataset.shape
    room = MOST_OF_OTHERS // (2 * height * width * len(planes))  # images of further models
    index: dict[str, list] = {"image_id": [], "group": [], "label": [], "prediction": []}
    masks: dict[str, list] = {name: [] for name in cell.dataset.mask_names}
    roles: dict[str, list] = {name: [] for name in cell.dataset.mask_names}
    role_names = {number: name for name, number in ROLES.items()}
    for tile in work[::every] if every > 1 else work:
        result = stages.open(tile)
        batch = result.batch
        pictures.append((batch.x.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu())
        for part in cell.methods:
            planes["", part.name].append(_plane(stages, result, part))
            for name, other in models.items():
                if name and len(index["image_id"]) < room:
                    planes[name, part.name].append(_plane(other, other.opened(tile), part))
        index["image_id"] += batch.id
        index["group"] += batch.group
        index["label"] += batch.y.tolist()
        index["prediction"] += result.prediction.tolist()
        for name in masks:
            masks[name] += [_box(m) for m in batch.masks[name].cpu()]
            given = batch.roles[name].tolist() if name in batch.roles else [0] * len(batch)
            roles[name] += [role_names[r] for r in given]
        stages.close(tile)
    pixels = torch.cat(pictures)
    if pixels.shape[-1] == 1:
        pixels = pixels.expand(-1, -1, -1, 3)
    write_atomic(out / "maps" / "images.safetensors", serialise({"x": pixels.contiguous()}))
    for (model, method), parts in planes.items():
        if parts:
            joined = {name: torch.cat([part[name] for part in parts]).contiguous() for name in ("plane", "scale")}
            write_atomic(out / "maps" / model / f"{method}.safetensors", serialise(joined))
    methods = [
        {
            "name": p.name,
            "label": p.label,
            "signed": p.method.signed,
            "plane": "sum over channels" if p.method.signed else "sum of absolute values over channels",
            "view": p.view.name,
        }
        for p in cell.methods
    ]
    content = {**index, "methods": methods, "masks": masks, "roles": roles, "classes": list(cell.dataset.classes)}
    write_atomic(out / "maps" / "index.json", json.dumps(content).encode())


def _plane(stages: Stages, result: Result, part: MethodPart) -> dict[str, Tensor]:
    """The signed channel sum, or its magnitude, of a tile's maps."""
    raw = stages.map(result, part)
    raw = raw.sum(1) if part.method.signed else raw.abs().sum(1)
    scale = raw.abs().flatten(1).amax(1).clamp(min=1e-30)
    return {"plane": (raw / scale.view(-1, 1, 1)).half().cpu(), "scale": scale.float().cpu()}


def _box(mask: torch.Tensor) -> list[int] | None:
    """[row0, col0, row1, col1) around a mask; None where it is empty."""
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    if not len(rows):
        return None
    return [int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1]
