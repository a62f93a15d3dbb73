"""Join runs (seeds, settings, shards) into one directory of the same layout, with what spans them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from salrun import papers
from salrun.errors import SalrunError
from salrun.logbook import Logbook, own_settings
from salrun.report import write_report
from salrun.sweeps import ENDED, jobs_of, sweeps_below
from salrun.tables import CELL, SCORE, join, read_run, runs_below, split_variant, write_csv, write_scores

COMPARED = ("device", "precision", "models", "methods", "metrics")  # of run.json, between runs of one cell
ROUNDING = 1e-5  # of two scores of one image


def collect_runs(paths: list[Path], out: Path | None, stamp: str) -> int:
    """Collect finished runs; unfinished ones are named, incompatible ones refused."""
    runs = runs_below(paths)
    facts = {run: read_run(run) for run in runs}
    whole = [run for run in runs if facts[run].get("status") == "done" and not facts[run].get("planned_only")]
    for run in runs:
        if run not in whole:
            print(f"left out: {run} ({_why_not(facts[run])})")
    if not whole:
        raise SalrunError("none of these runs is finished: nothing to collect")
    whole = _newest(whole, facts)
    _refuse_strangers(whole, facts)
    papers_seen = {str(facts[run]["paper"]) for run in whole if facts[run].get("paper")}
    if len(papers_seen) > 1:
        raise SalrunError(
            f"these runs belong to several papers ({', '.join(sorted(papers_seen))}): collect one at a time"
        )
    paper = next(iter(papers_seen), None)
    out = out or Path("outputs") / (paper or "collected") / stamp
    missing = _missing_shards(whole, facts) + _missing_jobs(paths)
    command = "salrun collect " + " ".join(map(str, paths))
    with Logbook(out, command=command, experiment=paper or "collected", paper=paper, **_common(whole, facts)) as book:
        book.facts["deviations"] = list(
            dict.fromkeys(d for r in whole for d in facts[r].get("deviations", []) if "shard" not in d)
        )
        set_by_hand = [d for r in whole for d in own_settings(facts[r].get("command", ""))]
        book.facts["deviations"] += [d for d in dict.fromkeys(set_by_hand) if d not in book.facts["deviations"]]
        book.facts["commands"] = [facts[r].get("command", "") for r in whole]
        book.facts["deviations"] += [f"missing: {m}" for m in missing]
        with book.stage("tables"):
            write_scores(out / "tables", *_joined(whole))
            tables = [_accuracies(r) for r in whole if (r / "tables" / "model.csv").exists()]
            if tables:
                write_csv(out / "tables" / "model.csv", pd.concat(tables, ignore_index=True).drop_duplicates())
        with book.stage("figures and claims"):
            claims, problems = papers.conclude(paper, out)
        book.write(status="done", problems=problems)
        write_report(out)
    for line in missing:
        print(f"missing: {line}")
    if claims is not None:
        print("claims: " + ", ".join(f"{n} {v}" for v, n in claims["verdict"].value_counts().items()))
    print(f"collected {len(whole)} runs into {out}")
    return 0


def _why_not(facts: dict[str, Any]) -> str:
    """Why a run has nothing to collect."""
    if facts.get("planned_only"):
        return "planned: plan=true computes nothing"
    return f"{facts.get('status', 'unknown')}: {facts.get('reason', 'not finished')}"


def _newest(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> list[Path]:
    """The runs, oldest first, without those of which a newer one of the same cell measured all."""
    kept: list[Path] = []
    measured = {run: _measured(run) for run in runs}
    cells = {run: (*_cell(facts[run]), *sorted({dataset for _, dataset, *_ in _cells_of(run)})) for run in runs}
    for run in sorted(runs, key=lambda r: facts[r].get("started", "")):
        for older in [k for k in kept if cells[k] == cells[run] and measured[k] <= measured[run]]:
            print(f"left out: {older} (there is a newer run of the same cell)")
            kept.remove(older)
        kept.append(run)
    return kept


def _measured(run: Path) -> set[tuple]:
    """What a run scored: cell, method, metric and variant, whatever the view."""
    summary = pd.read_parquet(run / "tables" / "summary.parquet", columns=[*CELL, *SCORE]).drop_duplicates()
    return set(split_variant(summary)[[*CELL, "method", "metric", "mode"]].itertuples(False, None))


def _joined(runs: list[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores and curves of the runs, oldest first; what two of them measured must agree, and is the newer one's."""
    parts = [join([run]) for run in runs]
    once = [*CELL, "image_id", *SCORE]
    scores = pd.concat([part.assign(run=str(run)) for run, (part, _) in zip(runs, parts, strict=True)])
    twice = scores[scores.duplicated(once, keep=False)]
    if len(twice):
        _refuse_disagreement(twice.merge(twice.drop_duplicates(once, keep="last"), on=once, suffixes=("", "_newer")))
    curves = pd.concat([part for _, part in parts if len(part)] or [parts[0][1]])
    scores = scores.drop(columns="run").drop_duplicates(once, keep="last", ignore_index=True)
    return scores, curves.drop_duplicates(once, keep="last", ignore_index=True)


def _refuse_disagreement(pairs: pd.DataFrame) -> None:
    """Two scores of one image must be the same but for rounding: machines differ in the last bits of a sum."""
    wrong = ~np.isclose(pairs["value"], pairs["value_newer"], rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
    for column in ("group", "label", "prediction", "target", "flag"):
        wrong |= (pairs[column] != pairs[f"{column}_newer"]).to_numpy()
    if wrong.any():
        row = pairs[wrong].iloc[0]
        what = " ".join(str(row[c]) for c in ("method", "metric", "variant"))
        raise SalrunError(
            f"{row['run']} and {row['run_newer']} do not fit together: {what} of image {row['image_id']} is "
            f"{row['value']:.6g} ({row['flag']}) in one, {row['value_newer']:.6g} ({row['flag_newer']}) in the other; "
            f"collect runs of one configuration"
        )


def _cell(facts: dict[str, Any]) -> tuple:
    fingerprint = facts.get("models", {}).get("model", {}).get("fingerprint")
    return facts.get("experiment"), facts.get("seed"), facts.get("scale"), facts.get("shard"), fingerprint


def _refuse_strangers(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> None:
    """Runs of one cell of the tables must be of one configuration; the parts of one sharding in all they did."""
    cells: dict[tuple, list[Path]] = {}
    for run in runs:
        for cell in _cells_of(run):
            cells.setdefault(cell, []).append(run)
    for cell, same in cells.items():
        for one, other, differs in chain(_differences(same, facts), _uneven_shards(same, facts)):
            raise SalrunError(
                f"{one} and {other} do not fit together: both are {' '.join(map(str, cell))}, but {differs}; "
                f"collect runs of one configuration"
            )


def _differences(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> Iterator[tuple[Path, Path, str]]:
    """Pairs of incompatible runs of one cell; of runs that are alike in all that is compared, the first."""
    unlike: dict[str, Path] = {}
    for run in runs:
        unlike.setdefault(json.dumps([facts[run].get(k) for k in COMPARED], sort_keys=True), run)
    for one, other in combinations(unlike.values(), 2):
        differs = _difference(one, other, facts)
        if differs:
            yield one, other, differs


def _uneven_shards(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> Iterator[tuple[Path, Path, str]]:
    """(run that has it, run of another shard, what) where only some shards of a sharding measured something."""
    for count in sorted({_shards(facts[run]) for run in runs} - {1}):
        parts = [run for run in runs if _shards(facts[run]) == count]
        having: dict[str, list[Path]] = {}
        for run in parts:
            for name in _did(facts[run]):
                having.setdefault(name, []).append(run)
        for name, by in having.items():
            there = {facts[run]["shard"] for run in by}
            without = next((run for run in parts if facts[run]["shard"] not in there), None)
            if without is not None:
                yield by[0], without, f"{name} is only in one of these shards"


def _did(facts: dict[str, Any]) -> list[str]:
    """What a run measured by what, in words."""
    methods, metrics = facts.get("methods", {}), facts.get("metrics", {})
    return [
        *(f"methods.{method}" for method in methods),
        *(f"metrics.{metric}" for metric in metrics),
        *(f"methods.{method} with metrics.{metric}" for method in methods for metric in metrics),
    ]


def _cells_of(run: Path) -> list[tuple]:
    return list(
        pd.read_parquet(run / "tables" / "summary.parquet", columns=CELL).drop_duplicates().itertuples(False, None)
    )


def _accuracies(run: Path) -> pd.DataFrame:
    """A run's model.csv; older ones do not name the data set, which tells models on different backgrounds apart."""
    table = pd.read_csv(run / "tables" / "model.csv")
    datasets = {dataset for _, dataset, *_ in _cells_of(run)}
    if "dataset" not in table and len(datasets) == 1:
        table.insert(1, "dataset", datasets.pop())
    return table


def _difference(one: Path, other: Path, facts: dict[Path, dict[str, Any]]) -> str:
    """What makes two runs of one cell incompatible, in words; empty if nothing does."""
    a, b = facts[one], facts[other]
    for key in ("device", "precision"):
        if a.get(key) != b.get(key):
            return f"{key} is {a.get(key)} in one, {b.get(key)} in the other"
    weights = [{n: m.get("fingerprint") for n, m in f.get("models", {}).items()} for f in (a, b)]
    if any(weights[0][name] != weights[1][name] for name in weights[0].keys() & weights[1]):
        return "the weights of their models differ"
    for group in ("methods", "metrics"):
        mine, theirs = a.get(group, {}), b.get(group, {})
        for name in sorted(mine.keys() & theirs):
            if mine[name] != theirs[name]:
                return f"{group}.{name} is {mine[name]} in one, {theirs[name]} in the other"
    return ""


def _shards(facts: dict[str, Any]) -> int:
    return int(str(facts.get("shard", "0/1")).partition("/")[2])


def _missing_shards(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> list[str]:
    """Shards of a cell that no run has, unless one run has all of it; by method, as each may have runs of its own."""
    have: dict[tuple, dict[str, dict[int, set[int]]]] = {}
    for run in runs:
        index, count = map(int, facts[run].get("shard", "0/1").split("/"))
        experiment, seed, scale, _, model = _cell(facts[run])
        methods = have.setdefault((experiment, seed, scale, model), {})
        for method in facts[run].get("methods") or [""]:
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


def _lacking(counts: dict[int, set[int]]) -> list[str]:
    """The shards that are missing of what is there (number of shards -> indices); none if some sharding is whole."""
    if any(len(indices) == count for count, indices in counts.items()):
        return []
    return [f"{i}/{count}" for count, indices in counts.items() for i in range(count) if i not in indices]


def _missing_jobs(paths: list[Path]) -> list[str]:
    """Jobs of sweeps that are not done, and why."""
    return [
        f"{job.what or job.folder} of {sweep} ({': '.join(filter(None, [job.state, job.reason]))})"
        for sweep in sweeps_below(paths)
        for job in jobs_of(sweep)
        if job.state not in ENDED
    ]


def _common(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> dict[str, Any]:
    """What all runs agree on; lists where they differ."""
    common: dict[str, Any] = {"runs": [str(r) for r in runs], "shard": "0/1"}
    for key in ("scale", "seed", "device", "precision"):
        values = sorted({str(facts[r].get(key)) for r in runs})
        common[key] = facts[runs[0]].get(key) if len(values) == 1 else ", ".join(values)
    return common
