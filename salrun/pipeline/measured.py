"""What a run measured, gathered tile by tile and written once: rows of the tables, and maps to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from salrun.models.recipe import Obtained
from salrun.pipeline.build import Cell
from salrun.pipeline.facts import model_table
from salrun.pipeline.stages import OWN, Result, Stages, Tile
from salrun.results.maps import MapWriter, kept_tiles
from salrun.results.tables import CURVES, IMAGES, KEY, SCORE, SCORES, directions_of, write_tables
from salrun.types import FLAGS, ROLES


class Measured:
    """The tables and kept maps of a run in the making. `cells`: the facts of its models, one row each."""

    def __init__(self, cell: Cell, stages: Stages, work: Sequence[Tile], cells: pd.DataFrame) -> None:
        self.cell = cell
        self.stages = stages
        self.cells = cells
        self._called = {row["role"]: {key: row[key] for key in KEY} for row in cells.to_dict("records")}
        self._scores: list[pd.DataFrame] = []
        self._curves: list[pd.DataFrame] = []
        self._images: list[pd.DataFrame] = []
        chosen = kept_tiles([len(tile.ids) for tile in work]) if cell.keep_maps != "none" else set()
        self._shown = {work[k].index for k in chosen}
        self._maps = MapWriter(
            [
                {
                    "name": p.name,
                    "label": p.label,
                    "signed": p.method.signed,
                    "plane": "sum over channels" if p.method.signed else "sum of absolute values over channels",
                    "view": p.view.name,
                }
                for p in cell.methods
            ],
            list(cell.dataset.classes),
            {row["role"]: row["cell"] for row in cells.to_dict("records")},
        )

    def add(self, result: Result) -> None:
        """One tile with one model."""
        called = self._called[result.role]
        image = {
            "group": list(result.batch.group),
            "image_id": list(result.batch.id),
            "label": result.batch.y.tolist(),
            "prediction": result.prediction.tolist(),
        }
        more = self.cell.dataset.image_facts(image["image_id"]) if hasattr(self.cell.dataset, "image_facts") else {}
        confidence = result.confidence.double().cpu().numpy()
        self._images.append(pd.DataFrame({"cell": called["cell"], **image, "confidence": confidence, **more}))
        if result.scores:
            self._scores.append(_score_rows(result, called | image))
        for key, score in result.scores.items():
            if score.curve is not None:
                named = dict(zip(SCORE, key, strict=True))
                y = score.curve.double().cpu().numpy()
                x = np.arange(y.shape[1], dtype=float)
                if score.curve_x is not None:
                    x = score.curve_x.double().cpu().numpy()
                where = {"group": image["group"], "image_id": image["image_id"]}
                self._curves.append(pd.DataFrame({**called, **where, **named, "x": [x] * len(y), "y": list(y)}))
        if result.tile.index in self._shown:
            self._keep(result)

    def _keep(self, result: Result) -> None:
        batch = result.batch
        if result.role == OWN:
            names = {number: name for name, number in ROLES.items()}
            pictures = (batch.x.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
            about: dict[str, Sequence[Any]] = {"image_id": batch.id, "group": batch.group}
            about |= {"label": batch.y.tolist(), "prediction": result.prediction.tolist()}
            masks = {name: batch.masks[name].cpu().numpy() > 0 for name in self.cell.dataset.mask_names}
            given = {n: batch.roles[n].tolist() if n in batch.roles else [0] * len(batch) for n in masks}
            self._maps.add_images(pictures, about, masks, {n: [names[r] for r in of] for n, of in given.items()})
        for part in self.cell.methods:
            planes = self.stages.packed(result, part)
            self._maps.add_planes(result.role, part.name, {name: t.numpy() for name, t in planes.items()})

    def write(self, out: Path, obtained: Mapping[str, Obtained], facts: Mapping[str, Any]) -> None:
        """tables/ and maps/ of the run directory; `facts`: what run.json says so far."""
        scores, curves, images = (
            pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=columns)
            for rows, columns in ((self._scores, SCORES), (self._curves, CURVES), (self._images, IMAGES))
        )
        models = model_table(self.cells, obtained, images, facts["verification"])
        write_tables(
            out / "tables", scores, curves, images, self.cells, models, directions_of(facts["metrics"], scores)
        )
        if self._shown:
            self._maps.write(out / "maps")


def _score_rows(result: Result, image: Mapping[str, Any]) -> pd.DataFrame:
    """All scores of a tile as one table, score after score; `image`: columns that every score has alike."""
    n, scores = len(result.batch), result.scores.values()
    targets = {method: target.tolist() for method, target in result.target.items()}
    named = zip(SCORE, zip(*result.scores, strict=True), strict=True)
    return pd.DataFrame(
        {
            **{name: of * len(scores) if isinstance(of, list) else of for name, of in image.items()},
            "target": [target if result.of_class else -1 for method, *_ in result.scores for target in targets[method]],
            **{name: np.repeat(np.array(of), n) for name, of in named},
            "value": np.concatenate([score.value.double().cpu().numpy() for score in scores]),
            "flag": np.array(FLAGS)[np.concatenate([score.flag.cpu().numpy() for score in scores])],
        }
    )
