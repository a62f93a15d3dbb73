"""`salrun status`: what became of runs and of the jobs of sweeps, once or until all have ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from salrun.errors import SalrunError
from salrun.results.run import runs_below
from salrun.store.files import shown
from salrun.sweep.jobs import AGAIN, Job, counts, job_in, jobs_of, lease_of, sweeps_below

CLEAR = "\x1b[H\x1b[2J\x1b[3J"  # home, the screen, what was scrolled away


def status(paths: Sequence[Path]) -> int:
    """Print a line per job, and the counts to standard error."""
    jobs = jobs_below(paths)
    for job in jobs:
        print(line(job))
    print(summary(jobs), file=sys.stderr)
    return 0


def watch(paths: Sequence[Path], every: float) -> int:
    """Print the status until no job runs or waits: on a terminal anew each time, else the counts where they change."""
    if not 0.1 <= every <= 86400:
        raise SalrunError(f"salrun status --every must be in 0.1..86400 seconds, got {every:g}")
    said = ""
    while True:
        jobs = jobs_below(paths)
        left = at_work(jobs, paths)
        if sys.stdout.isatty():
            told = f"{counts(jobs)} (every {every:g} s)" if left else summary(jobs)
            print("\n".join([f"{CLEAR}salrun status", *map(line, jobs), told]))
        elif left and (now := counts(jobs)) != said:
            said = now
            print(f"{time.strftime('%H:%M:%S')} {now}", flush=True)
        if not left:
            return 0 if sys.stdout.isatty() else status(paths)
        time.sleep(every)


def jobs_below(paths: Sequence[Path]) -> list[Job]:
    """Of runs that are of no sweep, then of sweeps, in their order; plans left out."""
    asked = {job.folder: job for sweep in sweeps_below(paths) for job in jobs_of(sweep)}
    alone = [job_in(run) for run in runs_below(paths, none=bool(asked)) if run not in asked]
    return [job for job in (*alone, *asked.values()) if job.state != "planned"]


def at_work(jobs: Sequence[Job], paths: Sequence[Path]) -> bool:
    """Whether a job runs, waits in a queue, or will be started by a sweep that is at work."""
    return any(job.at_work for job in jobs) or any(lease_of(sweep).held() for sweep in sweeps_below(paths))


def line(job: Job) -> str:
    log = f"  log: {shown(job.log)}" if job.log and job.state == "failed" else ""
    return f"{job.state:<12}{job.what:<58}{shown(job.folder)}  {job.reason}{log}"


def summary(jobs: Sequence[Job]) -> str:
    """`3 done, 1 failed; of a sweep, the same command again does the rest`."""
    hint = f"; of a sweep, {AGAIN}" if any(job.state in ("failed", "missing") for job in jobs) else ""
    return f"{counts(jobs)}{hint}"
