"""The output contract: schemas, writers, the summary, and joining the tables of several runs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from salrun.errors import SalrunError
from salrun.files import write_atomic
from salrun.logbook import read_facts
from salrun.stats.bootstrap import mean_interval

if TYPE_CHECKING:
    from salrun.build import Cell
    from salrun.stages import Result

ALL = "(all)"  # the group of a summary row over all groups
CELL = ["experiment", "dataset", "model", "seed", "scale"]
IMAGE = ["group", "image_id", "label", "prediction", "target"]
SCORE = ["method", "metric", "variant"]
SCORES = [*CELL, *IMAGE, *SCORE, "value", "flag"]
CURVES = [*CELL, "group", "image_id", *SCORE, "x", "y"]
KEYS = [*CELL, "group", *SCORE]
SUMMARY = [*KEYS, "n", "n_flagged", "mean", "std", "ci_low", "ci_high"]
DRAWS = 2000
ROW_GROUP = 1 << 16

SCORES_SCHEMA = pa.schema(
    [(c, pa.int64() if c in ("seed", "label", "prediction", "target") else pa.string()) for c in SCORES[:-2]]
    + [("value", pa.float64()), ("flag", pa.string())]
)
CURVES_SCHEMA = pa.schema(
    [(c, pa.int64() if c == "seed" else pa.string()) for c in CURVES[:-2]]
    + [("x", pa.list_(pa.float64())), ("y", pa.list_(pa.float64()))]
)


def variant_name(variant: str, name: str, view: str | None) -> str:
    """What the `variant` column says: `<config variant>/<score name>:<view>`, empty parts left out."""
    label = "/".join(filter(None, [variant, name]))
    return ":".join(filter(None, [label, view or "raw"]))


def score_rows(cell: Cell, result: Result) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of `scores` and of `curves` for one tile."""
    from salrun.types import FLAGS

    n = len(result.batch)
    images = {
        "group": list(result.batch.group),
        "image_id": list(result.batch.id),
        "label": result.batch.y.tolist(),
        "prediction": result.prediction.tolist(),
    }
    own = {
        "experiment": cell.name,
        "dataset": cell.dataset.name,
        "model": result.model,
        "seed": cell.seed,
        "scale": cell.scale,
    }
    scores = [
        pd.DataFrame(
            {
                **own,
                **images,
                "target": result.prediction.tolist(),
                "method": "-",
                "metric": "confidence",
                "variant": "-",
            }
            | {"value": result.confidence.double().cpu().numpy(), "flag": "ok"}
        )
    ]
    curves = []
    for (method, metric, variant), score in result.scores.items():
        what = {"method": method, "metric": metric, "variant": variant}
        flags = np.array(FLAGS)[score.flag.cpu().numpy()]
        target = result.target[method].tolist()
        value = score.value.double().cpu().numpy()
        scores.append(pd.DataFrame({**own, **images, "target": target, **what, "value": value, "flag": flags}))
        if score.curve is not None:
            y = score.curve.double().cpu().numpy()
            x = np.arange(y.shape[1], dtype=float) if score.curve_x is None else score.curve_x.double().cpu().numpy()
            keys = {"group": images["group"], "image_id": images["image_id"]}
            curves.append(pd.DataFrame({**own, **keys, **what, "x": [x] * n, "y": list(y)}))
    return pd.concat(scores)[SCORES], pd.concat(curves)[CURVES] if curves else pd.DataFrame(columns=CURVES)


def write_scores(tables: Path, scores: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Sorted scores.parquet and curves.parquet, and the summary in both forms. Equal content, equal bytes."""
    order = [*CELL, "method", "metric", "variant", "group", "image_id"]
    scores = scores.sort_values(order, kind="stable", ignore_index=True)
    write_parquet(tables / "scores.parquet", scores, SCORES_SCHEMA)
    if len(curves):
        curves = curves.sort_values(order, kind="stable", ignore_index=True)
        write_parquet(tables / "curves.parquet", curves, CURVES_SCHEMA)
    summary = summarise(scores)
    write_parquet(tables / "summary.parquet", summary)
    write_csv(tables / "summary.csv", summary)
    return summary


def write_parquet(path: Path, frame: pd.DataFrame, schema: pa.Schema | None = None) -> None:
    buffer = io.BytesIO()
    table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
    pq.write_table(table.replace_schema_metadata(None), buffer, row_group_size=ROW_GROUP, compression="zstd")
    write_atomic(path, buffer.getvalue())


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    write_atomic(path, frame.to_csv(index=False, float_format="%.10g").encode())


def summarise(scores: pd.DataFrame) -> pd.DataFrame:
    """Mean, standard deviation and 95% bootstrap interval over images, per group and over all of them."""
    frames = [_summary(scores)]
    if scores["group"].nunique() > 1:
        frames.append(_summary(scores.assign(group=ALL)))
    return pd.concat(frames).sort_values(KEYS, kind="stable", ignore_index=True)[SUMMARY]


def _summary(scores: pd.DataFrame) -> pd.DataFrame:
    """Columns that share their images share their resamples, in one matrix product."""
    rows = []
    cells = scores.groupby([*CELL, "group"], sort=True)
    for cell, part in cells:
        wide = part.pivot(index="image_id", columns=SCORE, values="value")
        flagged = part.assign(bad=part["flag"] != "ok").groupby(SCORE)["bad"].sum()
        interval = mean_interval(wide.to_numpy(), np.random.default_rng(0), draws=DRAWS)
        with np.errstate(invalid="ignore"):
            std = wide.std(ddof=1).to_numpy()
        frame = pd.DataFrame(list(wide.columns), columns=SCORE)
        frame[[*CELL, "group"]] = cell
        frame["n"] = interval.n
        frame["n_flagged"] = flagged.reindex(wide.columns).to_numpy()
        frame["mean"], frame["std"], frame["ci_low"], frame["ci_high"] = interval.mean, std, interval.low, interval.high
        rows.append(frame)
    return pd.concat(rows)


# -- reading and joining ----------------------------------------------------------------------------------------------


def read_scores(run: Path) -> pd.DataFrame:
    path = run / "tables" / "scores.parquet"
    if not path.exists():
        raise SalrunError(f"{run} has no tables/scores.parquet: is it a finished run?")
    return pd.read_parquet(path)


def split_variant(frame: pd.DataFrame) -> pd.DataFrame:
    """With columns `mode` and `view` cut from `variant` (`code:seismic` -> code, seismic)."""
    cut = [str(variant).rpartition(":") for variant in frame["variant"]]
    return frame.assign(mode=[mode for mode, _, _ in cut], view=[view for _, _, view in cut])


def runs_below(paths: Iterable[Path], none: bool = False) -> list[Path]:
    """Run directories among or below the given folders (those with a run.json), oldest first; `none`: may be none."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise SalrunError(f"{path} is not there")
        path = path.resolve()
        inside = [path] if (path / "run.json").exists() else sorted(p.parent for p in path.rglob("run.json"))
        found += inside
    if not found and not none:
        raise SalrunError(f"no runs in {', '.join(map(str, paths))}: a run has a run.json")
    return list(dict.fromkeys(p.resolve() for p in found))


def read_run(run: Path) -> dict[str, Any]:
    try:
        return json.loads((run / "run.json").read_text())
    except (OSError, ValueError) as fault:
        raise SalrunError(f"{run}/run.json cannot be read: {fault}") from fault


def members(run: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The run itself, or the runs that it was collected from as far as they are still there, with their run.json."""
    facts = read_facts(run)
    if "runs" not in facts:
        return [(run, facts)]
    return [(path, read_facts(path)) for path in map(Path, facts["runs"]) if path.is_dir()]


def join(runs: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores and curves of several runs. Runs that measured the same image twice must agree; others are refused."""
    scores = pd.concat([read_scores(r) for r in runs], ignore_index=True)
    keys = [c for c in SCORES if c not in ("value", "flag")]
    unique = scores.drop_duplicates()
    clash = unique.duplicated([*CELL, "image_id", *SCORE], keep=False)
    if clash.any():
        row = unique[clash].iloc[0]
        raise SalrunError(
            f"these runs do not fit together: {row['experiment']} seed {row['seed']} scale {row['scale']} "
            f"image {row['image_id']} {row['method']} {row['metric']} has different values; collect runs of one "
            f"configuration"
        )
    files = [r / "tables" / "curves.parquet" for r in runs]
    curves = [pd.read_parquet(f) for f in files if f.exists()]
    joined = pd.concat(curves, ignore_index=True).drop_duplicates([*CELL, "image_id", *SCORE]) if curves else None
    return unique[[*keys, "value", "flag"]], joined if joined is not None else pd.DataFrame(columns=CURVES)
