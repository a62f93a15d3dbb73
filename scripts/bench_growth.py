"""How time and memory grow: with the images, their size, the methods, and the masks of RISE and LIME.

- images: whole runs of smerf_simple_fr (three methods, deletion), each a process of its own with an empty store; the
  time is that of its stage `maps and scores`, the memory the high-water mark of the process.
- pixels: ResNet-18, not trained, on images of a growing side.
- methods: one to five methods that read the same gradient pass, on one tile: together, and each on its own.
- masks: RISE and LIME on two images.

But for the images, memory is what one call needs at its peak beside network and images.

    python scripts/bench_growth.py --out docs/results/bench                # up to 4 minutes on two idle cores
    python scripts/bench_growth.py --out docs/results/bench --axes masks
    python scripts/bench_growth.py --out outputs/bench --quick
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from bench_common import (
    Job,
    Limits,
    Times,
    Watch,
    finish,
    machine,
    parser,
    peak_memory,
    read_table,
    shown,
    start,
    take_turns,
    write_table,
)
from bench_figures import growth_figure
from bench_methods import Case, full_cases, load_method, make_case, quick_cases
from torch import nn

from salrun.metrics.insertion import Deletion
from salrun.types import Scene

ONE_PASS = ("gradient", "sensitivity", "input_x_gradient", "grad_cam", "grad_cam_pp")
RUN = (
    "+experiment=smerf_simple_fr", "methods=[gradient,integrated_gradients,grad_cam]", "metrics=[deletion]",
    "compile=off", "report=false",
)  # fmt: skip
STAGE = "maps and scores"
# A process's mark begins at that of the one that starts it: torch is in this one, so a small one starts the run.
LAUNCH = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)"""
Points = Iterator[tuple[str, dict[int, Job]]]  # a series, and its jobs by n


# -- jobs --------------------------------------------------------------------------------------------------------------


def explained(case: Case, method: Any) -> Job:
    def run() -> None:
        method(case.model, case.x, case.target, case.rng, case.fitted)
        case.model.forget()

    return run


def masks(case: Case, quick: bool) -> Points:
    few, ns = case.first(2), (4, 16) if quick else (100, 400, 1600)
    for name, count in {"rise": "n_masks", "lime": "n_samples"}.items():
        yield name, {n: explained(few, load_method(name, {count: n})) for n in ns}


def methods(case: Case, quick: bool) -> Points:
    known = [load_method(name, {}) for name in ONE_PASS]

    def job(n: int, alone: bool) -> Job:
        def run() -> None:
            for method in known[:n]:
                method(case.model, case.x, case.target, case.rng, case.fitted)
                if alone:
                    case.model.forget()
            case.model.forget()

        return run

    for series, alone in {"together": False, "each on its own": True}.items():
        yield series, {n: job(n, alone) for n in range(1, len(known) + 1)}


def pixels(case: Case, quick: bool) -> Points:
    """The case's own network takes one size of image only."""
    from torchvision.models import resnet18

    small = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    torch.manual_seed(0)
    module, layer = (small, "1") if quick else (resnet18(), "layer2")
    sides, device = (8, 16) if quick else (56, 112, 224), str(case.x.device)
    grown = [make_case("growth", module, side, 3, {"cam": layer, "iba": layer}, 4, {}, device) for side in sides]

    def scored(case: Case) -> Job:
        plane = case.x.mean(1, keepdim=True)
        return lambda: Deletion()(
            plane, Scene(case.model, case.x, case.target, case.target, case.rng, chunk=case.batch)
        )

    yield "gradient", {c.x[0, 0].numel(): explained(c, load_method("gradient", {})) for c in grown}
    yield "deletion", {c.x[0, 0].numel(): scored(c) for c in grown}


AXES: dict[str, Callable[[Case, bool], Points]] = {"pixels": pixels, "methods": methods, "masks": masks}


# -- whole runs --------------------------------------------------------------------------------------------------------


def watched(command: list[str], environment: dict[str, str]) -> float:
    """Runs it to its end; the high-water mark of its resident memory in MiB."""
    words = [sys.executable, "-S", "-c", LAUNCH, *command]
    done = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-500:]}")
    return int(done.stdout) / (2**20 if sys.platform == "darwin" else 1024)


def whole_run(n_per_bucket: int) -> tuple[float, int, float]:
    """Seconds of the stage, images, MiB."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        command = [sys.executable, "-m", "salrun", *RUN, f"dataset.n_per_bucket={n_per_bucket}", f"hydra.run.dir={out}"]
        mib = watched(command, {"SALRUN_CACHE": f"{folder}/store"})
        facts = json.loads(Path(out, "run.json").read_text())
    return facts["timings"][STAGE], 12 * n_per_bucket, mib


def images() -> list[dict[str, Any]]:
    rows = []
    for n_per_bucket in (2, 6, 20):
        watch = Watch()
        seconds, n, mib = whole_run(n_per_bucket)
        rows.append(point("images", "a whole run", n, Times([seconds]), mib, watch.others()))
    return rows


# -- measuring ---------------------------------------------------------------------------------------------------------


def point(axis: str, series: str, n: int, times: Times, mib: float | None, others: float | None) -> dict[str, Any]:
    low, high = times.quartiles
    return {
        "axis": axis, "series": series, "n": n, "seconds": times.median, "seconds_low": low, "seconds_high": high,
        "mib": mib, "rounds": len(times.seconds), "others": others,
    }  # fmt: skip


def measure(axis: str, case: Case, quick: bool, limits: Limits) -> list[dict[str, Any]]:
    """All points of an axis take turns."""
    jobs = {(series, n): job for series, points in AXES[axis](case, quick) for n, job in points.items()}
    watch = Watch()
    times, faults = take_turns(jobs, limits.repeats, limits.device, limits.seconds)
    if faults:
        raise RuntimeError(f"{axis}: {faults}")
    others = watch.others()
    return [
        point(axis, series, n, times[series, n], peak_memory(job, limits.device), others)
        for (series, n), job in jobs.items()
    ]


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """How much more the last point of each series takes than the first."""
    lines = []
    for axis, series in dict.fromkeys((row["axis"], row["series"]) for row in rows):
        line = [row for row in rows if (row["axis"], row["series"]) == (axis, series)]
        first, last = line[0], line[-1]
        memory = f"{last['mib'] / first['mib']:.2f}" if first["mib"] and last["mib"] else "not known"
        lines.append(
            f"- {axis} x {last['n'] / first['n']:.3g} ({series}): time x {last['seconds'] / first['seconds']:.2f}, "
            f"memory x {memory}"
        )
    return lines


def report(rows: list[dict[str, Any]], facts: dict[str, str], out: Path) -> None:
    title = [
        "# Growth of cost",
        "",
        *(line.strip() for line in (__doc__ or "").split("\n\n    python")[0].splitlines()[2:]),
        "",
        "Seconds: the median of the rounds and its quartiles; the points of an axis take turns (whole runs: one each).",
        "",
        *verdicts(rows),
        "",
        "![growth](growth.svg)",
    ]
    write_table(out / "growth", title, rows, facts)
    growth_figure(rows, out / "growth.svg")


def main(argv: list[str] | None = None) -> int:
    names = ["images", *AXES]
    given = parser(__doc__, 15.0)
    given.add_argument("--axes", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    options = given.parse_args(argv)
    limits, watch = start(options)
    known = read_table(options.out / "growth", ["axis", "mib"])
    left = []
    for axis in options.axes or names[options.quick :]:  # a whole run is not quick
        if options.missing and any(row["axis"] == axis for row in known):
            continue
        if limits.over():
            left.append(axis)
            continue
        if axis == "images":
            rows = images()
        else:
            cases = quick_cases if options.quick else full_cases
            case = next(c for c in cases(limits.device) if c.name in ("tiny", "tomsett_cifar10"))
            rows = measure(axis, case, options.quick, limits)
        known = [row for row in known if row["axis"] != axis] + rows
        known.sort(key=lambda row: names.index(row["axis"]))
        for row in rows:
            print(", ".join(f"{name} {shown(value)}" for name, value in row.items()), flush=True)
        report(known, machine(limits.device) | watch.facts(), options.out)
    return finish(watch, left, [])


if __name__ == "__main__":
    sys.exit(main())
