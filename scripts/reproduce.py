"""Run what is missing of a paper's experiments, one after the other, and collect them.

    python scripts/reproduce.py smerf --scale laptop
    python scripts/reproduce.py smerf --also background=noise --also training=pgd
    python scripts/reproduce.py tomsett --seed 0 --seed 1 --seed 2 -- device=cuda
    python scripts/reproduce.py zhang --scale laptop --group cifar10

A run counts as done if its command was the same. smerf's other conditions (noise, real backgrounds, adversarial
training) are run where their models are shipped; `--also` repeats all experiments under one more override, training
what is not there. What stands after `--` goes to every run. The joint tables, figures and verdicts are in
outputs/<paper>/<scale>; zhang's, which are about one model each, in outputs/zhang/<scale>/<group>.
"""

from __future__ import annotations

import argparse
import json
import os
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
    "zhang": [
        *("zhang_fidelity", "zhang_targets target=predicted", "zhang_targets target=least_probable"),
        *("zhang_robustness", "zhang_transforms"),
    ],
}
MODELS = {  # groups of runs: each is run and collected on its own
    "zhang": {
        "resnet50_v1": "model=resnet50_v1",
        "efficientnet_lite0": "model=efficientnet_lite0",
        "cifar10": "dataset=cifar10 model=tomsett_cnn",
    }
}
CHECKPOINTS = Path(__file__).resolve().parents[1] / "salrun" / "papers" / "smerf" / "checkpoints"
CONDITIONS = {"noise": "background=noise", "places": "background=places", "pgd": "training=pgd"}
ONE_PASS = "methods=[zhang/fake_cam,zhang/gradient,zhang/guided_backprop,zhang/grad_cam,zhang/grad_cam_pp]"
WITH_IG = ONE_PASS.replace("zhang/guided", "zhang/integrated_gradients,zhang/guided") + " budget.ig_steps.laptop=20"
FEWER = "budget.rise_masks.laptop=250 budget.lime_samples.laptop=150 methods.iba.copies=5"
# LIME's quickshift finds a single superpixel in half of the pictures of 32x32 pixels
SMALL = f"budget.ig_steps.laptop=20 {FEWER} methods.lime.segmentation=slic"
DEAR = f"name=zhang_fidelity_dear methods=[zhang/score_cam,zhang/rise,zhang/lime,zhang/iba] {FEWER}"
COARSE = "metrics.insertion.step=3584 metrics.deletion.step=3584"  # 14 steps, of 32x32 pixels too:
COARSE_32 = "metrics.insertion.step=74 metrics.deletion.step=74"
GROUPS = "metrics.monotonicity.groups=14"
LAPTOP = {  # what two cores can do in an afternoon: dear methods on fewer images, with fewer masks, or not at all
    "resnet50_v1": [
        f"zhang_fidelity dataset.n_explained=50 {WITH_IG} {COARSE} {GROUPS}",
        f"zhang_fidelity dataset.n_explained=10 {DEAR} {COARSE} {GROUPS}",
    ],
    "efficientnet_lite0": [
        f"zhang_fidelity dataset.n_explained=100 {WITH_IG} {COARSE} {GROUPS}",
        f"zhang_fidelity dataset.n_explained=100 {DEAR} methods.score_cam.layer=blocks.15 {COARSE} {GROUPS}",
        f"zhang_targets target=predicted dataset.n_explained=50 {ONE_PASS} {COARSE}",
        f"zhang_targets target=least_probable dataset.n_explained=50 {ONE_PASS} {COARSE}",
        f"zhang_robustness dataset.n_explained=50 {ONE_PASS}",
        f"zhang_transforms dataset.n_explained=10 {ONE_PASS} {COARSE}",
    ],
    "cifar10": [
        f"zhang_fidelity dataset.n_explained=500 {SMALL} {COARSE_32} {GROUPS}",
        f"zhang_targets target=predicted dataset.n_explained=500 {SMALL} {COARSE_32}",
        f"zhang_targets target=least_probable dataset.n_explained=500 {SMALL} {COARSE_32}",
        f"zhang_robustness dataset.n_explained=100 {SMALL}",
        f"zhang_transforms dataset.n_explained=30 {SMALL} {COARSE_32}",
    ],
}


def experiments(paper: str, scale: str, group: str = "") -> list[str]:
    """Name and overrides of each experiment, as one line."""
    if not group:
        return EXPERIMENTS[paper]
    lines = LAPTOP[group] if scale == "laptop" else EXPERIMENTS[paper]
    return [f"{line} {MODELS[paper][group]}" for line in lines]


def wanted(
    paper: str, scale: str, seeds: list[int], also: list[str], more: list[str], group: str = ""
) -> list[list[str]]:
    """The overrides of every run, the cheapest conditions first."""
    jobs = []
    for condition in [[], *([a] for a in also)]:
        for line in experiments(paper, scale, group):
            name, *own = line.split()
            for seed in seeds:
                jobs.append([f"+experiment={name}", f"scale={scale}", f"seed={seed}", *own, *condition, *more])
    # Shipped models are of seed 0; intervals over several seeds need the same runs of each.
    for name, override in shipped_conditions() if paper == "smerf" and seeds == [0] else ():
        if override == CONDITIONS["places"] and not (data_root(more) / "places").is_dir():
            print(f"left out: {name} {override}: no pictures in {data_root(more) / 'places'}")
        elif override not in also:
            jobs.append([f"+experiment={name}", f"scale={scale}", "seed=0", override, *more])
    return jobs


def shipped_conditions() -> list[tuple[str, str]]:
    """smerf's experiments under other conditions whose models are shipped: (experiment, override)."""
    return [
        (name, override)
        for condition, override in CONDITIONS.items()
        for name in EXPERIMENTS["smerf"]
        if (CHECKPOINTS / f"{name.replace('_', '-', 1)}-{condition}.safetensors").is_file()
    ]


def data_root(more: list[str]) -> Path:
    """Where the runs will look for data."""
    given = [word.partition("=")[2] for word in more if word.startswith("data_root=")]
    return Path([os.environ.get("SALRUN_DATA") or "~/.cache/salrun/data", *given][-1]).expanduser()


def done(job: list[str]) -> Path | None:
    """The newest finished run of this very job."""
    for path in sorted(OUTPUTS.glob("*/*/run.json"), key=lambda p: p.parent.name, reverse=True):
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
    parser.add_argument("--group", action="append", help=f"again for more; of zhang: {', '.join(LAPTOP)}; default all")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    options = parser.parse_args(own)
    groups = list(MODELS.get(options.paper, [""]))
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
        known = done(job)
        shown = shlex.join(["salrun", *job])
        print(f"[{number}/{len(jobs)}] {shown}{f'  (done: {known})' if known else ''}", flush=True)
        if known is None and not dry_run and subprocess.run([SALRUN, *job], check=False).returncode:
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
