"""Run what is missing of a paper's experiments, one after the other, and collect them.

    python scripts/reproduce.py smerf --scale laptop
    python scripts/reproduce.py smerf --also background=noise --also training=pgd
    python scripts/reproduce.py tomsett --seed 0 --seed 1 --seed 2 -- device=cuda

A run counts as done if its command was the same. `--also` repeats all experiments under one more override; what stands
after `--` goes to every run. The joint tables, figures and verdicts are in outputs/<paper>/<scale>.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

OUTPUTS = Path("outputs")
SALRUN = str(Path(sys.executable).with_name("salrun"))
EXPERIMENTS = {
    "smerf": [
        *("smerf_simple_fr", "smerf_simple_nr", "smerf_complex_fr"),
        *("smerf_complex_cr1", "smerf_complex_cr2", "smerf_complex_cr3", "smerf_complex_cr4"),
    ],
    "tomsett": ["tomsett_cifar10"],
    "yona": ["yona_mnist_halves", "yona_mnist_shapes", "yona_tinyimagenet_pairs", "yona_sanity_checks"],
    "zhang": ["zhang_fidelity", "zhang_targets", "zhang_robustness", "zhang_transforms"],
}


def wanted(paper: str, scale: str, seeds: list[int], also: list[str], more: list[str]) -> list[list[str]]:
    """The overrides of every run, the cheapest conditions first."""
    jobs = []
    for condition in [[], *([a] for a in also)]:
        for experiment in EXPERIMENTS[paper]:
            for seed in seeds:
                jobs.append([f"+experiment={experiment}", f"scale={scale}", f"seed={seed}", *condition, *more])
    return jobs


def done(job: list[str]) -> Path | None:
    """The newest finished run of this very job."""
    name = job[0].partition("=")[2]
    for path in sorted((OUTPUTS / name).glob("*/run.json"), reverse=True):
        facts = json.loads(path.read_text())
        same = sorted(shlex.split(facts.get("command", ""))[1:]) == sorted(job)
        if same and facts.get("status") == "done" and not facts.get("planned_only") and path.parent.name != "latest":
            return path.parent
    return None


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    own, more = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=sorted(EXPERIMENTS))
    parser.add_argument("--scale", default="paper", choices=["smoke", "laptop", "paper"])
    parser.add_argument("--seed", type=int, action="append", help="again for more; default 0")
    parser.add_argument("--also", action="append", default=[], metavar="OVERRIDE", help="e.g. background=noise")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    options = parser.parse_args(own)
    jobs = wanted(options.paper, options.scale, options.seed or [0], options.also, more)
    failed = []
    for number, job in enumerate(jobs, 1):
        known = done(job)
        shown = shlex.join(["salrun", *job])
        print(f"[{number}/{len(jobs)}] {shown}{f'  (done: {known})' if known else ''}", flush=True)
        if known is None and not options.dry_run and subprocess.run([SALRUN, *job], check=False).returncode:
            failed.append(shown)
    if options.dry_run:
        return 0
    runs = [str(run) for job in jobs if (run := done(job))]
    for shown in failed:
        print(f"failed: {shown}", file=sys.stderr)
    if not runs:
        return 1
    collected = subprocess.run(
        [SALRUN, "collect", *runs, "-o", str(OUTPUTS / options.paper / options.scale)], check=False
    )
    return 1 if failed else collected.returncode


if __name__ == "__main__":
    sys.exit(main())
