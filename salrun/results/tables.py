"""The tables of a run: their columns, and how they are written. `salrun.results.run` reads them.

A fact is a column: which model a row is about stands in `cells` (one row per model of the run, keyed by the opaque
`cell`), what an image is in `images`, which of a metric's numbers a score is in `mode` (the variant of the config),
`score` (the name the metric gave it) and `view` (what made the plane it read; `raw`: the attribution itself).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from salrun.stats.bootstrap import mean_interval
from salrun.store.files import write_atomic

SCHEMA = 2  # of run.json and the tables: a change that readers must know of needs a new number
ALL = "(all)"  # the group of a summary row over all groups
CELL = ["experiment", "dataset", "model", "seed", "scale"]  # what a reader calls a cell by
KEY = ["cell", *CELL]
IMAGE = ["group", "image_id", "label", "prediction", "target"]
SCORE = ["method", "metric", "mode", "score", "view"]
SCORES = [*KEY, *IMAGE, *SCORE, "value", "flag"]
CURVES = [*KEY, "group", "image_id", *SCORE, "x", "y"]
IMAGES = ["cell", "image_id", "group", "label", "prediction", "confidence"]
CELLS = [*KEY, "role"]  # facts follow
SUMMARY_KEYS = [*KEY, "group", *SCORE]
SUMMARY = [*SUMMARY_KEYS, "direction", "n", "n_flagged", "mean", "std", "ci_low", "ci_high"]
MODEL = [*KEY, "source", "verified", "in_doubt", "what", "group", "value"]
NUMERICS = ["cell", "role", "method", "metric", "mode", "score", "images"]
NUMERICS += ["exact", "fast", "shift", "unseen", "rank", "correlation"]
DRAWS = 2000
COLUMNS = 2048  # summarised at a time
# Text that a spreadsheet would run: = + - @ first, and no number.
FORMULA = re.compile(r"(?![+-]?[\d.]+(?:e[+-]?\d+)?$|[+-](?:inf|nan)$)[=+\-@\t\r].+", re.DOTALL | re.IGNORECASE)
ROW_GROUP = 1 << 16

_TYPES: dict[str, pa.DataType] = {name: pa.int64() for name in ("seed", "label", "prediction", "target")}
_TYPES |= {"value": pa.float64(), "confidence": pa.float64()}
_TYPES |= {axis: pa.list_(pa.float64()) for axis in ("x", "y")}


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The types of a table's columns: text unless it is a number."""
    return pa.schema([(name, _TYPES.get(name, pa.string())) for name in columns])


SCORES_SCHEMA, CURVES_SCHEMA = schema_of(SCORES), schema_of(CURVES)

Directions = Mapping[tuple[str, str, str], str]  # (metric, mode, score) -> higher | lower | none


def write_tables(
    folder: Path,
    scores: pd.DataFrame,
    curves: pd.DataFrame,
    images: pd.DataFrame,
    cells: pd.DataFrame,
    models: pd.DataFrame,
    directions: Directions,
) -> None:
    """Every table of a run, sorted; equal content gives equal bytes."""
    order = [*CELL, "cell", *SCORE, "group", "image_id"]
    scores = coded(scores).sort_values(order, kind="stable", ignore_index=True)
    write_parquet(folder / "scores.parquet", scores[SCORES], SCORES_SCHEMA)
    if len(curves):
        curves = curves.sort_values(order, kind="stable", ignore_index=True)
        write_parquet(folder / "curves.parquet", curves[CURVES], CURVES_SCHEMA)
    further = [name for name in images if name not in IMAGES]
    images = images.sort_values(["cell", "group", "image_id"], kind="stable", ignore_index=True)
    write_parquet(folder / "images.parquet", images[[*IMAGES, *further]], schema_of([*IMAGES, *further]))
    summary = summarise(scores, directions)
    write_parquet(folder / "summary.parquet", summary)
    write_csv(folder / "summary.csv", summary)
    write_csv(folder / "cells.csv", cells.sort_values([*CELL, "cell"], kind="stable"))
    write_csv(folder / "model.csv", models.reindex(columns=MODEL))


def coded(table: pd.DataFrame) -> pd.DataFrame:
    """The table with text as categories, in the order of the alphabet: millions of rows sort and group by codes."""
    text = [name for name, kind in table.dtypes.items() if pd.api.types.is_string_dtype(kind) and kind != "category"]
    return table.assign(**{str(name): table[name].astype("category") for name in text})


def write_numerics(folder: Path, cells: pd.DataFrame, effects: Sequence[Mapping[str, Any]]) -> None:
    """numerics.csv: what half precision does to each score and map of the probe; none for an exact run."""
    if effects:
        names = dict(zip(cells["role"], cells["cell"], strict=True))
        table = pd.DataFrame(effects)
        write_csv(folder / "numerics.csv", table.assign(cell=table["role"].map(names))[NUMERICS])


def write_parquet(path: Path, frame: pd.DataFrame, schema: pa.Schema | None = None) -> None:
    """Write a table whole or not at all; the same rows give the same bytes."""
    buffer = io.BytesIO()
    table = pa.Table.from_pandas(frame, schema=schema and _as_coded(schema, frame), preserve_index=False)
    table = table if schema is None else table.cast(schema)
    pq.write_table(table.replace_schema_metadata(None), buffer, row_group_size=ROW_GROUP, compression="zstd")
    write_atomic(path, buffer.getvalue())


def _as_coded(schema: pa.Schema, frame: pd.DataFrame) -> pa.Schema:
    """The schema with the categories that the frame has: Arrow turns them into text sooner than pandas."""
    for place, name in enumerate(schema.names):
        if frame[name].dtype == "category":
            schema = schema.set(place, pa.field(name, pa.dictionary(pa.int32(), schema.field(name).type)))
    return schema


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a table whole or not at all, numbers with ten digits."""
    harmless = _reworded(frame, FORMULA, lambda cell: f"'{cell}")
    write_atomic(path, harmless.to_csv(index=False, float_format="%.10g").encode())


def unquoted(frame: pd.DataFrame) -> pd.DataFrame:
    """A table that `write_csv` wrote as it was: text that a spreadsheet would run has an apostrophe before it there."""
    return _reworded(frame, re.compile(f"'(?:{FORMULA.pattern})", FORMULA.flags), lambda cell: cell[1:])


def _reworded(frame: pd.DataFrame, kind: re.Pattern[str], change: Callable[[str], str]) -> pd.DataFrame:
    """With every cell of this kind changed; other columns stay the very same."""

    def of_kind(cell: object) -> bool:
        return isinstance(cell, str) and kind.fullmatch(cell) is not None

    for name in frame.select_dtypes(exclude=["number", "bool"]):
        if frame[name].map(of_kind).any():
            frame = frame.assign(**{str(name): [change(cell) if of_kind(cell) else cell for cell in frame[name]]})
    return frame


def summarise(scores: pd.DataFrame, directions: Directions) -> pd.DataFrame:
    """Mean, standard deviation and 95% bootstrap interval over images, per group and over all of them."""
    frames = [_summary(scores)]
    if scores["group"].nunique() > 1:
        frames.append(_summary(scores.assign(group=ALL)))
    summary = pd.concat(frames).sort_values(SUMMARY_KEYS, kind="stable", ignore_index=True)
    named = summary[["metric", "mode", "score"]].itertuples(index=False, name=None)
    return summary.assign(direction=[directions.get(name, "none") for name in named])[SUMMARY]


def _summary(scores: pd.DataFrame) -> pd.DataFrame:
    """Columns (a score of a method in a group) of as many images share their resamples, in one matrix product."""
    keys = [*KEY, "group"]
    block, column = (_number(scores, by) for by in (keys, [*keys, *SCORE]))
    first = np.unique(column, return_index=True)[1]
    image = _number(scores, ["image_id"])
    pairs, pair = np.unique(block * (len(scores) + 1) + image, return_inverse=True)
    starts = np.searchsorted(pairs // (len(scores) + 1), np.arange(block.max(initial=-1) + 1))
    row, sizes = pair - starts[block], np.diff(starts, append=len(pairs))[block]
    value, flagged = scores["value"].to_numpy(dtype=np.float64), (scores["flag"] != "ok").to_numpy()
    frame = scores[SUMMARY_KEYS].iloc[first].astype({name: str for name in SUMMARY_KEYS if name != "seed"})
    frame["n_flagged"] = np.bincount(column, weights=flagged, minlength=len(first)).astype(np.int64)
    measured = np.full((len(first), 5), np.nan)
    for n in np.unique(sizes):
        asked = np.unique(column[sizes == n])
        for some in np.array_split(asked, -(-len(asked) // COLUMNS)):
            place = np.full(len(first), -1)
            place[some] = np.arange(len(some))
            rows = np.flatnonzero(place[column] >= 0)
            wide = np.full((n, len(some)), np.nan)
            wide[row[rows], place[column[rows]]] = value[rows]
            interval = mean_interval(wide, np.random.default_rng(0), draws=DRAWS)
            with np.errstate(invalid="ignore"):
                std = pd.DataFrame(wide).std(ddof=1).to_numpy()
            measured[some] = np.stack([interval.n, interval.mean, std, interval.low, interval.high], 1)
    frame[["n", "mean", "std", "ci_low", "ci_high"]] = measured
    return frame.astype({"n": np.int64})


def _number(table: pd.DataFrame, by: list[str]) -> np.ndarray:
    """The number of each row's group, groups in sorted order."""
    return table.groupby(by, sort=True, observed=True, dropna=False).ngroup().to_numpy(dtype=np.int64)


def directions_of(metrics: Sequence[Mapping[str, Any]], scores: pd.DataFrame) -> dict[tuple[str, str, str], str]:
    """Which way each named score is better, from the metrics of a run.json."""
    ways = {(m["metric"], m["mode"]): (m["direction"], m.get("turned", ())) for m in metrics}
    opposite = {"higher": "lower", "lower": "higher", "none": "none"}
    directions = {}
    for metric, mode, score in scores[["metric", "mode", "score"]].drop_duplicates().itertuples(index=False, name=None):
        way, turned = ways.get((metric, mode), ("none", ()))
        directions[metric, mode, score] = opposite[way] if score in turned else way
    return directions


def markdown(table: pd.DataFrame) -> str:
    """A GitHub table; numbers right-aligned."""
    numeric = [pd.api.types.is_numeric_dtype(table[c]) for c in table]
    lines = [
        "| " + " | ".join(map(str, table.columns)) + " |",
        "|" + "|".join("--:" if n else "---" for n in numeric) + "|",
    ]
    for row in table.itertuples(index=False):
        lines.append("| " + " | ".join(_cell(v) for v in row) + " |")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.3f}"
    return str(value).replace("|", "\\|")
