"""Run what is missing of a paper's experiments, one after the other, and collect them.

    python scripts/reproduce.py smerf --scale laptop
    python scripts/reproduce.py smerf --also background=noise --also training=pgd
    python scripts/reproduce.py tomsett --seed 0 --seed 1 --seed 2 -- device=cuda
    python scripts/reproduce.py zhang --scale laptop --group cifar10

conf/campaign/<paper>.yaml lists a paper's runs. A run counts as done if its command was the same. smerf's other
conditions (noise, real backgrounds, adversarial training) are run where their models are shipped; `--also` repeats all
experiments under one more override, training what is not there. What stands after `--` goes to every run. The joint
tables, figures and verdicts are in outputs/<paper>/<scale>; zhang's, which are about one model each, in
outputs/zhang/<scale>/<group>.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from salrun.config.catalogue import conf_dir
from salrun.errors import SalrunError
from salrun.results.run import Run

OUTPUTS = Path("outputs")
SALRUN = str(Path(sys.executable).with_name("salrun"))
CAMPAIGNS = conf_dir() / "campaign"
PAPERS = sorted(path.stem for path in CAMPAIGNS.glob("*.yaml"))
CHECKPOINTS = Path(__file__).resolve().parents[1] / "salrun" / "papers" / "smerf" / "checkpoints"


@cache
def campaign(paper: str) -> dict[str, Any]:
    """conf/campaign/<paper>.yaml: `runs`, and where a paper has them `groups` of runs and `shipped` conditions."""
    return {"groups": {}, "shipped": {}} | yaml.safe_load((CAMPAIGNS / f"{paper}.yaml").read_text(encoding="utf-8"))


def words(entry: str | list) -> Iterator[str]:
    """The words of an entry, those of the lists in it included."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry:
            yield from words(part)


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


def done(job: list[str]) -> Path | None:
    """The newest finished run of this very job; runs that cannot be read (an older schema) do not count."""
    folders = (path.parent for path in OUTPUTS.glob("*/*/run.json") if path.parent.name != "latest")
    for folder in sorted(folders, key=lambda path: path.name, reverse=True):
        run = Run(folder)
        try:
            if run.done and sorted(run.overrides) == sorted(job):
                return folder
        except SalrunError:
            continue
    return None


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    given, more = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=PAPERS)
    parser.add_argument("--scale", default="paper", choices=["smoke", "laptop", "paper"])
    parser.add_argument("--seed", type=int, action="append", help="again for more; default 0")
    parser.add_argument("--also", action="append", default=[], metavar="OVERRIDE", help="e.g. background=noise")
    parser.add_argument(
        "--group",
        action="append",
        help=f"again for more; of zhang: {', '.join(campaign('zhang')['groups'])}; default all",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    options = parser.parse_args(given)
    groups = list(campaign(options.paper)["groups"]) or [""]
    for group in options.group or []:
        if group not in groups:
            parser.error(f"{options.paper} has no group '{group}'; it has {', '.join(filter(None, groups)) or 'none'}")
    failed = 0
    for group in options.group or groups:
        jobs = wanted(options.paper, options.scale, options.seed or [0], options.also, more, group)
        failed += run_and_collect(jobs, OUTPUTS / options.paper / options.scale / group, options.dry_run)
    return 1 if failed else 0


def run_and_collect(jobs: list[list[str]], out: Path, dry_run: bool) -> int:
    """Run the jobs that are not done, collect all that are; how many failed."""
    failed = []
    for number, job in enumerate(jobs, 1):
        earlier = done(job)
        shown = shlex.join(["salrun", *job])
        print(f"[{number}/{len(jobs)}] {shown}{f'  (done: {earlier})' if earlier else ''}", flush=True)
        if earlier is None and not dry_run and subprocess.run([SALRUN, *job], check=False).returncode:
            failed.append(shown)
    if dry_run:
        return 0
    for shown in failed:
        print(f"failed: {shown}", file=sys.stderr)
    runs = [str(run) for job in jobs if (run := done(job))]
    if runs and subprocess.run([SALRUN, "collect", *runs, "-o", str(out)], check=False).returncode:
        failed.append("collect")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
