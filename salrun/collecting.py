"""Join runs (seeds, settings, shards) into one directory of the same layout, with what spans them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from salrun import papers
from salrun.errors import SalrunError
from salrun.logbook import Logbook, own_settings
from salrun.report import write_report
from salrun.tables import join, read_run, runs_below, write_csv, write_scores


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
    papers_seen = {str(facts[run]["paper"]) for run in whole if facts[run].get("paper")}
    if len(papers_seen) > 1:
        raise SalrunError(
            f"these runs belong to several papers ({', '.join(sorted(papers_seen))}): collect one at a time"
        )
    paper = next(iter(papers_seen), None)
    out = out or Path("outputs") / (paper or "collected") / stamp
    missing = _missing_shards(whole, facts)
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
            tables = [pd.read_csv(r / "tables" / "model.csv") for r in whole if (r / "tables" / "model.csv").exists()]
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
        chosen[_cell(facts[run])] = run
    return list(chosen.values())


def _cell(facts: dict[str, Any]) -> tuple:
    fingerprint = facts.get("models", {}).get("model", {}).get("fingerprint")
    return facts.get("experiment"), facts.get("seed"), facts.get("scale"), facts.get("shard"), fingerprint


def _missing_shards(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> list[str]:
    """Shards of a cell that no run has."""
    have: dict[tuple, set[int]] = {}
    for run in runs:
        index, count = map(int, facts[run].get("shard", "0/1").split("/"))
        have.setdefault((facts[run].get("experiment"), facts[run].get("seed"), count), set()).add(index)
    return [
        f"{experiment} seed {seed} shard {index}/{count}"
        for (experiment, seed, count), indices in have.items()
        for index in range(count)
        if index not in indices
    ]


def _common(runs: list[Path], facts: dict[Path, dict[str, Any]]) -> dict[str, Any]:
    """What all runs agree on; lists where they differ."""
    common: dict[str, Any] = {"runs": [str(r) for r in runs], "shard": "0/1"}
    for key in ("scale", "seed", "device", "precision"):
        values = sorted({str(facts[r].get(key)) for r in runs})
        common[key] = facts[runs[0]].get(key) if len(values) == 1 else ", ".join(values)
    return common
