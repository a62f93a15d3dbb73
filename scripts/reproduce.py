"""Run what is missing of a paper's experiments, or of all papers' evidence.

    python scripts/reproduce.py smerf --scale laptop
    python scripts/reproduce.py smerf --also background=noise --also training=pgd
    python scripts/reproduce.py tomsett --seed 0 --seed 1 --seed 2 -- device=cuda
    python scripts/reproduce.py zhang --scale laptop --group cifar10
    python scripts/reproduce.py --hours 2.5 [PAPER ...]              # evidence: docs/results/<campaign>/<run>
    python scripts/reproduce.py --hours 2.5 --dry-run                # what is done, what is left

conf/campaign/<paper>.yaml lists a paper's runs. A run counts as done if its command was the same. smerf's other
conditions (noise, real backgrounds, adversarial training) are run where their models are shipped; `--also` repeats all
experiments under one more override, training what is not there. What stands after `--` goes to every run. The joint
tables, figures and verdicts are in outputs/<paper>/<scale>; zhang's, which are about one model each, in
outputs/zhang/<scale>/<group>.

With `--hours` the most valuable missing runs of `evidence` are done, of all papers or those named, `--jobs` at a time,
and the tables of each are kept in docs/results as it ends. When the time is over, or at Ctrl-C, runs are interrupted;
the same command goes on where they were. `python scripts/make_docs.py judge` makes verdicts and pages of what was kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from salrun.errors import SalrunError
from salrun.results.kept import keep
from salrun.results.run import Run
from salrun.sweep.campaigns import PAPERS, Evidence, asked, campaign, evidence, finished, words

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = Path("outputs")
RESULTS = ROOT / "docs" / "results"
SALRUN = [sys.executable, "-m", "salrun"]
CHECKPOINTS = ROOT / "salrun" / "papers" / "smerf" / "checkpoints"
FASTEST = OUTPUTS / "fastest.json"  # how many jobs at a time, as --measure found
GRACE = 60.0  # seconds that an interrupted run has to end
SHORT = [["+experiment=smerf_simple_fr", "scale=laptop"], ["+experiment=smerf_simple_nr", "scale=laptop"]]


# -- one paper ---------------------------------------------------------------------------------------------------------


def experiments(paper: str, scale: str, group: str = "") -> list[list[str]]:
    """Name and overrides of each experiment."""
    plan = campaign(paper)
    members = plan["groups"][group] if group else {}
    return [[*words(run), *members.get("overrides", [])] for run in members.get(scale, plan["runs"])]


def wanted(
    paper: str, scale: str, seeds: list[int], also: list[str], more: list[str], group: str = ""
) -> list[list[str]]:
    """The overrides of every run, the cheapest conditions first."""
    jobs = []
    for condition in [[], *([a] for a in also)]:
        for name, *overrides in experiments(paper, scale, group):
            for seed in seeds:
                jobs.append([f"+experiment={name}", f"scale={scale}", f"seed={seed}", *overrides, *condition, *more])
    # Shipped models are of seed 0; intervals over several seeds need the same runs of each.
    for name, condition, override in shipped_conditions(paper) if seeds == [0] else ():
        if condition == "places" and not (data_root(more) / "places").is_dir():
            print(f"left out: {name} {override}: no pictures in {data_root(more) / 'places'}")
        elif override not in also:
            jobs.append([f"+experiment={name}", f"scale={scale}", "seed=0", override, *more])
    return jobs


def shipped_conditions(paper: str) -> list[tuple[str, str, str]]:
    """Experiments under other conditions whose models are shipped: (experiment, condition, override)."""
    return [
        (name, condition, override)
        for condition, override in campaign(paper)["shipped"].items()
        for name in campaign(paper)["runs"]
        if (CHECKPOINTS / f"{name.replace('_', '-', 1)}-{condition}.safetensors").is_file()
    ]


def data_root(more: list[str]) -> Path:
    """Where the runs will look for data."""
    roots = [word.partition("=")[2] for word in more if word.startswith("data_root=")]
    return Path([os.environ.get("SALRUN_DATA") or "~/.cache/salrun/data", *roots][-1]).expanduser()


def done() -> dict[tuple[str, ...], Path]:
    """What was asked -> its newest finished run in outputs/."""
    return finished([path.parent for path in OUTPUTS.glob("*/*/run.json") if path.parent.name != "latest"])


def run_and_collect(jobs: list[list[str]], out: Path, dry_run: bool) -> int:
    """Run the jobs that are not done, collect all that are; how many failed."""
    failed = []
    before = done()
    for number, job in enumerate(jobs, 1):
        earlier = before.get(asked(job))
        shown = shlex.join(["salrun", *job])
        print(f"[{number}/{len(jobs)}] {shown}{f'  (done: {earlier})' if earlier else ''}", flush=True)
        if earlier is None and not dry_run and subprocess.run([*SALRUN, *job], check=False).returncode:
            failed.append(shown)
    if dry_run:
        return 0
    for shown in failed:
        print(f"failed: {shown}", file=sys.stderr)
    after = done()
    runs = [str(after[asked(job)]) for job in jobs if asked(job) in after]
    if runs and subprocess.run([*SALRUN, "collect", *runs, "-o", str(out)], check=False).returncode:
        failed.append("collect")
    return len(failed)


# -- evidence ----------------------------------------------------------------------------------------------------------


def kept(runs: Sequence[Evidence]) -> set[Path]:
    """Which of the runs have their tables in docs/results, made by the same command."""
    there = finished([RESULTS / run.folder for run in runs if (RESULTS / run.folder / "run.json").is_file()])
    return {run.folder for run in runs if there.get(asked(run.words)) == RESULTS / run.folder}


def keep_finished(runs: Sequence[Evidence]) -> list[Evidence]:
    """Keep the tables of runs that are finished in outputs/ and not yet kept; which of all are still missing."""
    have, ended = kept(runs), done()
    for run in runs:
        if run.folder not in have and (folder := ended.get(asked(run.words))):
            keep(Run(folder), RESULTS / run.folder, **run.kept)
            have.add(run.folder)
            print(f"kept: {folder} as {run.folder}", flush=True)
    return [run for run in runs if run.folder not in have]


def tell(runs: Sequence[Evidence], missing: Sequence[Evidence]) -> None:
    """What is done, what is left, and how long that takes."""
    hours = sum(run.hours for run in missing)
    print(
        f"evidence: {len(runs) - len(missing)} of {len(runs)} runs done, {len(missing)} left, about {hours:.1f} hours"
    )


class Conveyor:
    """Runs evidence `jobs` at a time, the most valuable first, until all is done or the time is over."""

    def __init__(self, jobs: int, deadline: float, more: Sequence[str] = ()) -> None:
        self.jobs, self.deadline = jobs, deadline
        self.more = [f"threads={max(1, (os.cpu_count() or 1) // jobs)}", "report=false", *more]
        self.working: dict[subprocess.Popen[bytes], Evidence] = {}
        self.failed: list[Evidence] = []

    def run(self, missing: Sequence[Evidence]) -> None:
        """Every run resumes, its training too: one that will not fit is worth starting."""
        waiting = list(missing)
        try:
            while (waiting or self.working) and time.monotonic() < self.deadline:
                while waiting and len(self.working) < self.jobs:
                    self._start(waiting.pop(0))
                time.sleep(0.2)
                for process in [p for p in self.working if p.poll() is not None]:
                    self._ended(process)
        finally:
            self._stop()

    def _start(self, run: Evidence) -> None:
        left = max(0.0, self.deadline - time.monotonic()) / 3600
        print(f"{run.folder} ({run.hours:g} hours, {left:.1f} left): {shlex.join(['salrun', *run.words])}", flush=True)
        log = OUTPUTS / "evidence" / f"{run.campaign}-{run.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as said:
            process = subprocess.Popen([*SALRUN, *run.words, *self.more], stdout=said, stderr=subprocess.STDOUT)
        self.working[process] = run

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        run = self.working.pop(process)
        if process.returncode or keep_finished([run]):
            self.failed.append(run)
            print(f"failed: {run.folder}: see outputs/evidence/{run.campaign}-{run.name}.log", file=sys.stderr)

    def _stop(self) -> None:
        """Interrupt what works; what it computed is in the store, and it goes on there the next time."""
        for process in self.working:
            process.send_signal(signal.SIGINT)
        for process, run in self.working.items():
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            print(f"interrupted: {run.folder}", flush=True)
        self.working.clear()


def fastest() -> int:
    """How many jobs at a time: as measured here, else 2."""
    return int(json.loads(FASTEST.read_text())["jobs"]) if FASTEST.is_file() else 2


def measure() -> None:
    """Time two short runs side by side with half of the cores each, and one after the other with all of them."""
    cores = os.cpu_count() or 1
    seconds: dict[int, float] = {}
    for jobs in (2, 1):
        with tempfile.TemporaryDirectory() as store:  # nothing is taken from an earlier run
            how = [f"threads={max(1, cores // jobs)}", "report=false", f"cache_dir={store}"]
            commands = [[*SALRUN, *run, *how, f"hydra.run.dir={store}/out/{n}"] for n, run in enumerate(SHORT)]
            begun = time.monotonic()
            for turn in (commands[i : i + jobs] for i in range(0, len(commands), jobs)):
                processes = [subprocess.Popen(command) for command in turn]
                if any([process.wait() for process in processes]):
                    raise SalrunError("a short run failed: nothing measured")
            seconds[jobs] = round(time.monotonic() - begun, 1)
    best = min(seconds, key=lambda jobs: seconds[jobs])
    FASTEST.parent.mkdir(parents=True, exist_ok=True)
    FASTEST.write_text(json.dumps({"jobs": best, "seconds": seconds}) + "\n")
    print(f"two jobs at a time {seconds[2]} s, one after the other {seconds[1]} s: --jobs {best} from now on")


def convey(papers: Sequence[str], hours: float, jobs: int, dry_run: bool, more: Sequence[str]) -> int:
    """Do what is missing of the evidence; 1 if a run failed."""
    deadline = time.monotonic() + 3600 * hours
    runs = evidence(papers)
    if dry_run:
        have, ended = kept(runs), done()
        missing = [run for run in runs if run.folder not in have and asked(run.words) not in ended]
        for run in runs:
            state = "left" if run in missing else "done"
            print(f"{state}  {run.priority:g}  {run.hours:g} h  {run.folder}  {shlex.join(['salrun', *run.words])}")
        tell(runs, missing)
        return 0
    missing = keep_finished(runs)
    tell(runs, missing)
    conveyor = Conveyor(jobs, deadline, more)
    conveyor.run(missing)
    tell(runs, keep_finished(runs))
    return 1 if conveyor.failed else 0


def idle() -> None:
    """Leave the cores to whoever else wants them; runs inherit it."""
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    given, more = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=", ".join(PAPERS))
    parser.add_argument("--scale", default="paper", choices=["smoke", "laptop", "paper"])
    parser.add_argument("--seed", type=int, action="append", help="again for more; default 0")
    parser.add_argument("--also", action="append", default=[], metavar="OVERRIDE", help="e.g. background=noise")
    parser.add_argument(
        "--group",
        action="append",
        help=f"again for more; of zhang: {', '.join(campaign('zhang')['groups'])}; default all",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--hours", type=float, help="do evidence for so long")
    parser.add_argument("--jobs", type=int, help="evidence: runs at a time, which share the cores; default 2")
    parser.add_argument("--measure", action="store_true", help="find out first whether 2 or 1 at a time is faster")
    parser.add_argument("--nice", action="store_true", help="only use cores that nobody else wants")
    options = parser.parse_args(given)
    for paper in options.papers:
        if paper not in PAPERS:
            parser.error(f"unknown paper '{paper}'; known: {', '.join(PAPERS)}")
    if options.jobs is not None and options.jobs < 1:
        parser.error("--jobs must be at least 1")
    if options.nice:
        idle()
    try:
        if options.measure:
            measure()
        if options.hours is not None:
            for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background job ignores SIGINT, and so would runs
                signal.signal(number, _interrupt)
            jobs = options.jobs or fastest()
            return convey(options.papers or PAPERS, options.hours, jobs, options.dry_run, more)
    except SalrunError as fault:
        print(f"reproduce: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("reproduce: interrupted; the same command goes on", file=sys.stderr)
        return 130
    if options.measure and not options.papers:
        return 0
    if len(options.papers) != 1:
        parser.error("give one paper, or --hours to do evidence of several")
    (paper,) = options.papers
    groups = list(campaign(paper)["groups"]) or [""]
    for group in options.group or []:
        if group not in groups:
            parser.error(f"{paper} has no group '{group}'; it has {', '.join(filter(None, groups)) or 'none'}")
    failed = 0
    for group in options.group or groups:
        jobs = wanted(paper, options.scale, options.seed or [0], options.also, more, group)
        failed += run_and_collect(jobs, OUTPUTS / paper / options.scale / group, options.dry_run)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
