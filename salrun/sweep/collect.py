"""`salrun collect`: runs joined into one directory of the same layout, with the figures and claims that span them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from salrun import papers
from salrun.config.settings import own_settings
from salrun.errors import SalrunError
from salrun.pipeline.heap import keep_freed_memory
from salrun.report import write_report
from salrun.report.console import amber, answer, joined, width, wrapped
from salrun.results.claims import headline
from salrun.results.collect import common_facts, missing_shards, newest, refuse_strangers, why_not, write_joined
from salrun.results.comparison import Comparison, compare_runs, write_comparison
from salrun.results.record import RunRecord, read_facts
from salrun.results.run import Run, runs_below
from salrun.store.files import shown
from salrun.sweep.jobs import ENDED, jobs_of, sweeps_below


def collect_runs(paths: list[Path], out: Path | None, stamp: str = "", drawn: bool = True) -> int:
    """Collect finished runs; unfinished ones are named, incompatible ones refused. `drawn`: with figures and report."""
    keep_freed_memory()
    runs = [Run(path) for path in runs_below(paths)]
    if out is not None:
        _check_out(out, runs)
    for run in runs:
        if not run.done:
            print(f"left out: {shown(run.path)} ({why_not(run)})")
    whole, replaced = newest([run for run in runs if run.done])
    if not whole:
        raise SalrunError("none of these runs is finished: nothing to collect")
    for run in replaced:
        print(f"left out: {shown(run.path)} (there is a newer run of the same cell)")
    refuse_strangers(whole)
    spoken_of = {str(run.facts["paper"]) for run in whole if run.facts.get("paper")}
    if len(spoken_of) > 1:
        raise SalrunError(
            f"these runs belong to several papers ({', '.join(sorted(spoken_of))}): collect one at a time"
        )
    paper = next(iter(spoken_of), None)
    out = out or Path("outputs") / (paper or "collected") / stamp
    missing = missing_shards(whole) + _missing_jobs(paths)
    command = ["collect", *map(str, paths)]
    facts = common_facts(whole)
    with RunRecord(out, command, experiment=paper or "collected", paper=paper, **facts) as record:
        deviations = [d for run in whole for d in run.facts.get("deviations", []) if "shard" not in d]
        deviations += [d for run in whole for d in own_settings(run.overrides)]
        record.write(deviations=[*dict.fromkeys(deviations), *(f"missing: {m}" for m in missing)])
        with record.stage("tables"):
            write_joined(whole, out / "tables", facts["metrics"])
        with record.stage("figures and claims"):
            claims, problems = papers.conclude(paper, Run(out), drawn)
        record.write(problems=problems)
        with record.stage("comparison"):
            comparisons = compare_runs([Run(out)], none=True)
            if comparisons:
                write_comparison(comparisons, out / "comparison")
        if drawn:
            with record.stage("report"):
                write_report(out, comparisons)
    tell(comparisons)
    for line in missing:
        print(f"missing: {line}")
    if claims is not None:
        print(f"paper:   {headline(claims)}")
    print(f"joined:  {len(whole)} {'run' if len(whole) == 1 else 'runs'} in {shown(out)}")
    if (out / "report.html").exists():
        print(f"report:  {shown(out / 'report.html')}")
    return 0


def tell(comparisons: Sequence[Comparison]) -> None:
    """One comparison as its table; several as a sentence each, and the ranks side by side."""
    columns = width()
    if len(comparisons) == 1:
        print("\n".join(["", *answer(comparisons[0], columns), ""]))
    elif comparisons:
        said = [line for c in comparisons for line in wrapped(f"{c.title}: {c.sentence}", columns, "  ")]
        print("\n".join(["", *said, "", *joined(comparisons, columns), ""]))
    for doubt in dict.fromkeys(f"{c.about['model']}: {'; '.join(c.doubts)}" for c in comparisons if c.doubts):
        print(amber(f"model:   NOT VERIFIED, {doubt}"))


def _check_out(out: Path, runs: list[Run]) -> None:
    """Refuse to write over a run or below a file; over an earlier collection is all right."""
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise SalrunError(f"-o {out}: {there} is no folder: choose another")
    for run in runs:
        if out.resolve() in (run.path, *run.path.parents) and "runs" not in read_facts(run.path):
            raise SalrunError(f"-o {out} is or holds {run.path}, which is collected: choose another folder")
    if (out / "run.json").exists() and "runs" not in read_facts(out):
        raise SalrunError(f"-o {out} is a run of its own: choose another folder")


def _missing_jobs(paths: list[Path]) -> list[str]:
    """Jobs of sweeps that are not done, and why."""
    return [
        f"{job.what or job.folder} of {sweep} ({': '.join(filter(None, [job.state, job.reason]))})"
        for sweep in sweeps_below(paths)
        for job in jobs_of(sweep)
        if job.state not in ENDED
    ]
