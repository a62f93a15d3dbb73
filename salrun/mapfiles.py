"""Kept maps of a run: `maps/` holds pictures, planes (float16) and an index, for the gallery and for comparing maps."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save as serialise

from salrun.build import Cell
from salrun.files import write_atomic
from salrun.stages import Stages, Tile

MOST = 240  # images kept for the gallery


def write_maps(cell: Cell, stages: Stages, work: list[Tile], out: Path, most: int = MOST) -> None:
    """The first tiles' maps, spread evenly over the run, as planes: the signed channel sum, or its magnitude."""
    if cell.keep_maps == "none":
        return
    every = max(1, -(-sum(len(t.ids) for t in work) // most))
    pictures, planes = [], {part.name: [] for part in cell.methods}  # type: ignore[var-annotated]
    index: dict[str, list] = {"image_id": [], "group": [], "label": [], "prediction": []}
    masks: dict[str, list] = {name: [] for name in cell.dataset.mask_names}
    for tile in work[::every] if every > 1 else work:
        result = stages.open(tile)
        batch = result.batch
        pictures.append((batch.x.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu())
        for part in cell.methods:
            raw = stages.map(result, part).sum(1) if part.method.signed else stages.map(result, part).abs().sum(1)
            scale = raw.abs().flatten(1).amax(1).clamp(min=1e-30).view(-1, 1, 1)
            planes[part.name].append((raw / scale).half().cpu())
        index["image_id"] += batch.id
        index["group"] += batch.group
        index["label"] += batch.y.tolist()
        index["prediction"] += result.prediction.tolist()
        for name in masks:
            masks[name] += [_box(m) for m in batch.masks[name].cpu()]
        stages.close(tile)
    pixels = torch.cat(pictures)
    if pixels.shape[-1] == 1:
        pixels = pixels.expand(-1, -1, -1, 3)
    write_atomic(out / "maps" / "images.safetensors", serialise({"x": pixels.contiguous()}))
    for name, parts in planes.items():
        write_atomic(out / "maps" / f"{name}.safetensors", serialise({"plane": torch.cat(parts).contiguous()}))
    methods = [{"name": p.name, "label": p.label, "signed": p.method.signed} for p in cell.methods]
    content = {**index, "methods": methods, "masks": masks, "classes": list(cell.dataset.classes)}
    write_atomic(out / "maps" / "index.json", json.dumps(content).encode())


def _box(mask: torch.Tensor) -> list[int] | None:
    """[row0, col0, row1, col1) around a mask; None where it is empty."""
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    if not len(rows):
        return None
    return [int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1]
