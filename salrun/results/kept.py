"""A run's lasting form: the tables of single images that its paper's claims, tables and figures are made of.

    keep(Run(Path("outputs/smerf_simple_fr/latest")), Path("docs/results/smerf/simple_fr-0"))

The folder is a run directory again, which `salrun collect` takes beside fresh ones: run.json without its machine,
models, images, scores and where asked for curves, what was measured on single maps, and of
data that is ours to publish the few pictures and maps that a figure shows.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from salrun.errors import SalrunError
from salrun.results.collect import why_not
from salrun.results.maps import OWN, PER_IMAGE, KeptMaps, MapWriter
from salrun.results.run import Run
from salrun.store.files import write_atomic

MACHINE = ("host", "pid", "process", "queue", "runs", "made", "platform", "peak_memory_mib")  # of run.json
FOLDERS = re.compile(r"(?<![\w.~])~?/(?:[^\s\"'/]+/)+")  # of a path: its file says enough
OURS = ("textbox", "mnist", "mnist_halves", "mnist_shapes")  # kinds of data whose pictures may be published
NOT_OURS = ("places",)  # backgrounds that may not


def keep(run: Run, folder: Path, curves: bool = False, shown: Mapping[str, Any] | None = None) -> None:
    """The lasting form of a finished run in `folder`; `shown`: methods, roles and images per group of its pictures."""
    if not run.done:
        raise SalrunError(f"{run.path} is not kept ({why_not(run)})")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tables").mkdir(parents=True)
    for name in ("cells", "model", "numerics"):
        path = run.path / "tables" / f"{name}.csv"
        if path.is_file():
            shutil.copyfile(path, folder / "tables" / path.name)
    left_out = ("summary",) if curves else ("summary", "curves")  # a summary is made of the scores
    for path in sorted((run.path / "tables").glob("*.parquet")):
        if path.stem not in left_out:
            compact(path, folder / "tables" / path.name)
    if shown and run.maps and published(run):
        keep_maps(run.maps[0], folder / "maps", **shown)
    write_atomic(folder / "run.json", (json.dumps(without_machine(run.facts), indent=2) + "\n").encode())


def compact(source: Path, target: Path) -> None:
    """The same table in fewer bytes: numbers by the places of their bytes, text as a dictionary."""
    table = pq.read_table(source)
    kinds = {field.name: field.type for field in table.schema}
    numbers = [name for name, kind in kinds.items() if pa.types.is_float64(getattr(kind, "value_type", kind))]
    leaves = [f"{name}.list.element" if pa.types.is_list(kinds[name]) else name for name in numbers]
    text = [name for name in kinds if name not in numbers]
    how = {"compression": "zstd", "compression_level": 19, "use_dictionary": text, "use_byte_stream_split": leaves}
    pq.write_table(table.replace_schema_metadata(None), target, **how)


def without_machine(facts: Mapping[str, Any]) -> dict[str, Any]:
    """run.json without what is about one machine: its name, its folders."""
    said = json.dumps({name: value for name, value in facts.items() if name not in MACHINE})
    return json.loads(said, object_hook=lambda part: {k: _here(v) for k, v in part.items()})


def _here(value: Any) -> Any:
    if isinstance(value, list):
        return [_here(item) for item in value]
    return FOLDERS.sub("", value) if isinstance(value, str) else value


def published(run: Run) -> bool:
    """Whether the pictures of its data are ours to publish."""
    facts = run.cells.reindex(columns=["dataset.kind", "dataset.background"])
    return bool((facts["dataset.kind"].isin(OURS) & ~facts["dataset.background"].isin(NOT_OURS)).all())


def keep_maps(kept: KeptMaps, folder: Path, methods: Sequence[str], per_group: int, roles: Sequence[str] = ()) -> None:
    """The first images of each group and their maps by some methods and models."""
    rows = np.flatnonzero(kept.images.groupby("group").cumcount() < per_group)
    index = kept.index
    models = {role: cell for role, cell in index["models"].items() if role in (OWN, *roles)}
    writer = MapWriter([m for m in index["methods"] if m["name"] in methods], index["classes"], models)
    writer.pictures.append(kept.pictures[rows])
    writer.images = {name: [index[name][row] for row in rows] for name in PER_IMAGE}
    writer.masks = {name: [boxes[row] for row in rows] for name, boxes in index["masks"].items()}
    writer.roles = {name: [of[row] for row in rows] for name, of in index["roles"].items()}
    for role in models:
        for method in (m for m in methods if kept.has(m, role)):
            planes = kept.planes(method, role)
            there = rows[rows < len(planes)]
            plane, scale = planes[there].astype(np.float16), kept.scale(method, role)[there]
            writer.add_planes(role, method, {"plane": plane, "scale": scale})
    writer.write(folder)
