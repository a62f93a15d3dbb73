"""Join runs (seeds, settings, shards, methods) into the tables of one; runs that do not fit together are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from salrun.errors import SalrunError
from salrun.results.run import Run
from salrun.results.tables import (
    CELL,
    CURVES,
    SCORE,
    SUMMARY_KEYS,
    coded,
    directions_of,
    write_csv,
    write_parquet,
    write_tables,
)

COMPARED = ("device", "precision", "models", "methods", "metrics")  # of run.json, between runs of one cell
ROUNDING = 1e-5  # of two scores of one image
ONCE = ["cell", "image_id", *SCORE]  # what a score is of
STANDARD = ("scores", "curves", "images", "summary")  # parquet tables that every run may have


def why_not(run: Run) -> str:
    """Why a run has nothing to collect."""
    if run.facts.get("planned_only"):
        return "planned: plan=true computes nothing"
    return f"{run.facts.get('status', 'unknown')}: {run.facts.get('reason', 'not finished')}"


def newest(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """(the runs, oldest first, without those of which a newer one of the same cells measured all; those left out)."""
    current: list[Run] = []
    replaced: list[Run] = []
    for run in runs:
        _ = run.scores  # a damaged table is told before anything is written
    identity = {run.path: (run.facts.get("shard"), *sorted(run.cells["cell"])) for run in runs}
    for run in sorted(runs, key=lambda r: str(r.facts.get("started", ""))):
        for older in [r for r in current if identity[r.path] == identity[run.path]]:
            if _measured(older) <= _measured(run):
                current.remove(older)
                replaced.append(older)
        current.append(run)
    return current, replaced


def _measured(run: Run) -> set[tuple]:
    """What a run scored: cell, method, metric, mode and score, whatever the view."""
    names = [name for name in SUMMARY_KEYS if name not in ("view", "group")]
    return set(run.scores[names].drop_duplicates().itertuples(index=False, name=None))


def refuse_strangers(runs: Sequence[Run]) -> None:
    """Runs of one cell of the tables must be of one configuration; the parts of one sharding in all they did."""
    by_name: dict[tuple, list[Run]] = {}
    for run in runs:
        for name in run.cells[CELL].drop_duplicates().itertuples(index=False, name=None):
            by_name.setdefault(name, []).append(run)
    for name, same in by_name.items():
        for one, other, difference in chain(_differences(same), _uneven_shards(same)):
            raise SalrunError(
                f"{one.path} and {other.path} do not fit together: both are {' '.join(map(str, name))}, but "
                f"{difference}; collect runs of one configuration"
            )


def _differences(runs: Sequence[Run]) -> Iterator[tuple[Run, Run, str]]:
    """Pairs of incompatible runs of one cell; of runs that are alike in all that is compared, the first."""
    unlike: dict[str, Run] = {}
    for run in runs:
        compared = [run.numerics, *(run.facts.get(k) for k in COMPARED)]
        unlike.setdefault(json.dumps(compared, sort_keys=True), run)
    for one, other in combinations(unlike.values(), 2):
        difference = _difference(one, other)
        if difference:
            yield one, other, difference


def _difference(one: Run, other: Run) -> str:
    """What makes two runs of one cell incompatible, in words; empty if nothing does."""
    a, b = one.facts, other.facts
    for key in ("device", "precision"):
        if a.get(key) != b.get(key):
            return f"{key} is {a.get(key)} in one, {b.get(key)} in the other"
    if one.numerics != other.numerics:
        return f"numerics is {one.numerics} in one, {other.numerics} in the other"
    weights = [{n: m.get("fingerprint") for n, m in f.get("models", {}).items()} for f in (a, b)]
    if any(weights[0][name] != weights[1][name] for name in weights[0].keys() & weights[1]):
        return "the weights of their models differ"
    for group, (mine, theirs) in {"methods": (one.methods, other.methods), "metrics": _metrics(one, other)}.items():
        for name in sorted(mine.keys() & theirs):
            if mine[name] != theirs[name]:
                return f"{group}.{name} is {mine[name]} in one, {theirs[name]} in the other"
    return ""


def _metrics(*runs: Run) -> tuple[dict[str, Any], ...]:
    """The metrics of each run by name and mode."""
    return tuple({" ".join(filter(None, [m["metric"], m["mode"]])): m for m in run.metrics} for run in runs)


def _shard(run: Run) -> tuple[int, int]:
    """(index, number of shards)."""
    index, count = str(run.facts.get("shard") or "0/1").split("/")
    return int(index), int(count)


def _uneven_shards(runs: Sequence[Run]) -> Iterator[tuple[Run, Run, str]]:
    """(run that has it, run of another shard, what) where only some shards of a sharding measured something."""
    for count in sorted({_shard(run)[1] for run in runs} - {1}):
        parts = [run for run in runs if _shard(run)[1] == count]
        having: dict[str, list[Run]] = {}
        for run in parts:
            for name in _did(run):
                having.setdefault(name, []).append(run)
        for name, by in having.items():
            there = {run.facts["shard"] for run in by}
            without = next((run for run in parts if run.facts["shard"] not in there), None)
            if without is not None:
                yield by[0], without, f"{name} is only in one of these shards"


def _did(run: Run) -> list[str]:
    """What a run measured by what, in words."""
    (metrics,) = _metrics(run)
    return [
        *(f"methods.{method}" for method in run.methods),
        *(f"metrics.{metric}" for metric in metrics),
        *(f"methods.{method} with metrics.{metric}" for method in run.methods for metric in metrics),
    ]


def missing_shards(runs: Sequence[Run]) -> list[str]:
    """Shards of a cell that no run has, unless one run has all of it; by method, as each may have runs of its own."""
    have: dict[tuple, dict[str, dict[int, set[int]]]] = {}
    for run in runs:
        index, count = _shard(run)
        weights = run.facts.get("models", {}).get("model", {}).get("fingerprint")
        methods = have.setdefault((*(run.facts.get(k) for k in ("experiment", "seed", "scale")), weights), {})
        for method in run.methods or [""]:
            methods.setdefault(method, {}).setdefault(count, set()).add(index)
    missing = []
    for (experiment, seed, _, _), methods in have.items():
        lacking: dict[str, list[str]] = {}
        for method, counts in methods.items():
            for shard in _lacking(counts):
                lacking.setdefault(shard, []).append(method)
        for shard, by in lacking.items():
            of = "" if len(by) == len(methods) else f" of {', '.join(by)}"
            missing.append(f"{experiment} seed {seed} shard {shard}{of}")
    return missing


def _lacking(counts: Mapping[int, set[int]]) -> list[str]:
    """The shards that are missing of what is there (number of shards -> indices); none if some sharding is whole."""
    if any(len(indices) == count for count, indices in counts.items()):
        return []
    return [f"{i}/{count}" for count, indices in counts.items() for i in range(count) if i not in indices]


def common_facts(runs: Sequence[Run]) -> dict[str, Any]:
    """What a collection's run.json says: what all runs agree on, lists where they differ, all methods and metrics."""
    common: dict[str, Any] = {"runs": [str(run.path) for run in runs], "shard": "0/1"}
    for key in ("scale", "seed", "device", "precision"):
        values = sorted({str(run.facts.get(key)) for run in runs})
        common[key] = runs[0].facts.get(key) if len(values) == 1 else ", ".join(values)
    common["numerics"] = {"mode": ", ".join(sorted({run.numerics for run in runs}))}
    common["commands"] = [run.facts.get("command", "") for run in runs]
    common["methods"] = {name: about for run in runs for name, about in run.methods.items()}
    common["controls"] = sorted({name for run in runs for name in run.controls})
    common["metrics"] = list({json.dumps(m, sort_keys=True): m for run in runs for m in run.metrics}.values())
    return common


def write_joined(runs: Sequence[Run], folder: Path, metrics: Sequence[Mapping[str, Any]]) -> None:
    """The tables of all runs, oldest first, in `folder`; what two of them measured must agree, and is the newer's."""
    scores = _scores(runs)
    curves = [run.curves for run in runs if len(run.curves)]
    joined = pd.concat(curves).drop_duplicates(ONCE, keep="last") if curves else pd.DataFrame(columns=CURVES)
    images = pd.concat([run.images for run in runs]).drop_duplicates(["cell", "image_id"], keep="last")
    cells = pd.concat([run.cells for run in runs]).drop_duplicates("cell", keep="last")
    models = pd.concat([run.models for run in runs]).drop_duplicates(["cell", "what", "group"], keep="last")
    write_tables(folder, scores, joined, images, cells, models, directions_of(metrics, scores))
    effects = [run.effects for run in runs if len(run.effects)]
    if effects:
        write_csv(folder / "numerics.csv", pd.concat(effects, ignore_index=True).drop_duplicates())
    further = {p.stem for run in runs for p in (run.path / "tables").glob("*.parquet")} - {*STANDARD}
    for name in sorted(further):
        parts = [table for run in runs if (table := run.table(name)) is not None]
        write_parquet(folder / f"{name}.parquet", pd.concat(parts, ignore_index=True).drop_duplicates())


def _scores(runs: Sequence[Run]) -> pd.DataFrame:
    scores = coded(pd.concat([run.scores.assign(run=str(run.path)) for run in runs], ignore_index=True))
    twice = scores[scores.duplicated(ONCE, keep=False)]
    if len(twice):
        _refuse_disagreement(twice.merge(twice.drop_duplicates(ONCE, keep="last"), on=ONCE, suffixes=("", "_newer")))
    return scores.drop(columns="run").drop_duplicates(ONCE, keep="last", ignore_index=True)


def _refuse_disagreement(pairs: pd.DataFrame) -> None:
    """Two scores of one image must be the same but for rounding: machines differ in the last bits of a sum."""
    wrong = ~np.isclose(pairs["value"], pairs["value_newer"], rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
    for column in ("group", "label", "prediction", "target", "flag"):
        wrong |= (pairs[column] != pairs[f"{column}_newer"]).to_numpy()
    if wrong.any():
        row = pairs[wrong].iloc[0]
        what = " ".join(filter(None, (str(row[c]) for c in SCORE)))
        raise SalrunError(
            f"{row['run']} and {row['run_newer']} do not fit together: {what} of image {row['image_id']} is "
            f"{row['value']:.6g} ({row['flag']}) in one, {row['value_newer']:.6g} ({row['flag_newer']}) in the other; "
            f"collect runs of one configuration"
        )
