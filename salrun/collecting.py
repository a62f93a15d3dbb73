"""Join runs (seeds, settings, shards) into one directory of the same layout, with what spans them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from salrun import papers
from salrun.errors import SalrunError
from salrun.logbook import Logbook, own_settings
from salrun.report import write_report
from salrun.sweeps import jobs_of, sweeps_below
from salrun.tables import CELL, join, read_run, runs_below, write_csv, write_scores


def collect_runs(paths: list[Path], out: Path | None, stamp: str) -> int:
    """Collect finished runs; unfinished ones are named, incompatible ones refused."""
    runs = runs_below(paths)
    facts = {run: read_run(run) for run in runs}
    whole = [run for run in runs if facts[run].get("status") == "done" and not facts[run].get("planned_only")]
    for run in runs:
        if run not in whole:
            print(
                f"left out: {run} ({facts[run].get('status', 'unknown')}: {facts[run].get('reason', 'not finished')})"
            )
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
            write_scores(out / "tables", *join(whole))
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


def _newest(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> list[Path]:
    """Of runs of the same cell the newest (later ones are listed later)."""
    chosen: dict[tuple, Path] = {}
    for run in sorted(runs, key=lambda r: facts[r].get("started", "")):
        cell = (*_cell(facts[run]), *sorted({dataset for _, dataset, *_ in _cells_of(run)}))
        if cell in chosen:
            print(f"left out: {chosen[cell]} (there is a newer run of the same cell)")
        chosen[cell] = run
    return list(chosen.values())


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
        for run in same[1:]:
            differs = _difference(same[0], run, facts)
            if differs:
                raise SalrunError(
                    f"{same[0]} and {run} do not fit together: both are {' '.join(map(str, cell))}, but {differs}; "
                    f"collect runs of one configuration"
                )


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
        lone = sorted(mine.keys() ^ theirs)
        if lone and _shards(a) > 1 and _shards(a) == _shards(b):
            return f"{group}.{lone[0]} is only in one of these shards"
    return ""


def _shards(facts: dict[str, Any]) -> int:
    return int(str(facts.get("shard", "0/1")).partition("/")[2])


def _missing_shards(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> list[str]:
    """Shards of a cell that no run has, unless one run has all of it."""
    have: dict[tuple, dict[int, set[int]]] = {}
    for run in runs:
        index, count = map(int, facts[run].get("shard", "0/1").split("/"))
        experiment, seed, scale, _, model = _cell(facts[run])
        have.setdefault((experiment, seed, scale, model), {}).setdefault(count, set()).add(index)
    return [
        f"{experiment} seed {seed} shard {index}/{count}"
        for (experiment, seed, _, _), counts in have.items()
        if 1 not in counts and not any(len(indices) == count for count, indices in counts.items())
        for count, indices in counts.items()
        for index in range(count)
        if index not in indices
    ]


def _missing_jobs(paths: list[Path]) -> list[str]:
    """Jobs of sweeps that are not done, and why."""
    return [
        f"{job.what or job.folder} of {sweep} ({': '.join(filter(None, [job.state, job.reason]))})"
        for sweep in sweeps_below(paths)
        for job in jobs_of(sweep)
        if job.state != "done"
    ]


def _common(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> dict[str, Any]:
    """What all runs agree on; lists where they differ."""
    common: dict[str, Any] = {"runs": [str(r) for r in runs], "shard": "0/1"}
    for key in ("scale", "seed", "device", "precision"):
        values = sorted({str(facts[r].get(key)) for r in runs})
        common[key] = facts[runs[0]].get(key) if len(values) == 1 else ", ".join(values)
    return common
