"""Forward passes per second of the perturbation engine, against plain forward passes and Quantus' PixelFlipping.

One batch size for all. `forward`: the same batch again and again, through the network as it is (eager), in
channels-last layout, with BatchNorm folded, and compiled. `engine`: pixel flipping, every step of the curve a new
batch, on the network as it is, on the folded and on the compiled inference copy. All take turns, `--repeats` times or
`--seconds` long; medians count.

    python scripts/bench_metrics.py --out docs/results/bench
    python scripts/bench_metrics.py --out /tmp/bench --quick
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench_methods import machine, take_turns, write_table
from torch import Tensor, nn

from salrun.metrics.insertion import PixelFlipping
from salrun.models.classifier import Classifier
from salrun.models.inference import InferenceCopy, inference_copy
from salrun.rng import Draws, generator
from salrun.types import Scene

Job = Callable[[], object]
# What the engine is to reach: of the best forward rate, of the eager forward rate, of Quantus' rate. The last two on
# the CIFAR network only: on a large one the forward pass is all there is.
GOALS = {"of_best_forward": 0.9, "times_eager": 2.5, "times_quantus": 5.0}


@dataclass
class Case:
    name: str
    model: Classifier
    x: Tensor
    plane: Tensor
    step: int  # pixels per step of ours
    features_in_step: int  # channel elements per step of Quantus

    @property
    def batch(self) -> int:
        return len(self.x)

    @property
    def pixels(self) -> int:
        return self.x[0, 0].numel()


def make_case(
    name: str, module: nn.Module, size: int, batch: int, steps: int, features_in_step: int, device: str
) -> Case:
    draw = generator(0, f"bench/{name}")
    model = Classifier(module.eval(), (0.5,) * 3, (0.25,) * 3, name=name).to(device)
    x = torch.rand(batch, 3, size, size, generator=draw).to(device)
    plane = torch.rand(batch, 1, size, size, generator=draw).to(device)
    return Case(name, model, x, plane, size * size // steps, features_in_step)


def full_cases(device: str) -> Iterator[Case]:
    from torchvision.models import resnet50

    from salrun.models.architectures import TomsettCNN

    torch.manual_seed(0)
    yield make_case("tomsett_cifar10", TomsettCNN(), 32, 128, 32, 128, device)
    yield make_case("resnet50_224", resnet50(), 224, 8, 8, 224 * 112, device)


def quick_cases(device: str) -> Iterator[Case]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(784, 3))
    yield make_case("tiny", module, 16, 4, 4, 128, device)


def forward(run: Callable[[Tensor], Tensor], point: Tensor, times: int) -> Job:
    @torch.no_grad()
    def job() -> None:
        for _ in range(times):
            run(point)

    return job


def engine(case: Case, model: Classifier) -> Job:
    target = torch.zeros(case.batch, dtype=torch.int64, device=case.x.device)
    rng = Draws.of(0, [str(i) for i in range(case.batch)], case.x.device)
    scene = Scene(model, case.x, target, target, rng, chunk=case.batch)
    metric = PixelFlipping(step=case.step)
    return lambda: metric(case.plane, scene)


def quantus_flipping(case: Case) -> Job:
    import quantus

    metric = quantus.PixelFlipping(
        features_in_step=case.features_in_step, perturb_baseline="black", abs=False, normalise=False,
        disable_warnings=True,
    )  # fmt: skip
    x, a = case.model.normalise(case.x).cpu().numpy(), case.plane.cpu().numpy()
    y = torch.zeros(case.batch, dtype=torch.int64).numpy()
    return lambda: metric(
        model=case.model.module, x_batch=x, y_batch=y, a_batch=a, softmax=True, channel_first=True,
        batch_size=case.batch, device=str(case.x.device),
    )  # fmt: skip


def measure(case: Case, repeats: int, compiled: bool, device: str, limit: float) -> list[dict[str, Any]]:
    """The rows of one network."""
    probe = case.x[:4]
    copies: dict[str, InferenceCopy] = {"folded": inference_copy(case.model, probe, "off")}
    began = time.perf_counter()
    if compiled:
        copies["compiled"] = inference_copy(case.model, probe, "on", batch=case.batch)
    compile_seconds = time.perf_counter() - began
    point = case.model.normalise(case.x)
    last = point.contiguous(memory_format=torch.channels_last)
    points = len(range(0, case.pixels, case.step)) + 1
    relaid = deepcopy(case.model.module).to(memory_format=torch.channels_last)
    jobs = {
        "forward eager": forward(case.model.module, point, points),
        "forward channels_last": forward(relaid, last, points),
        **{f"forward {name}": forward(copy.network, last, points) for name, copy in copies.items()},
        "engine eager": engine(case, case.model),
        **{f"engine {name}": engine(case, copy) for name, copy in copies.items()},
    }
    work = dict.fromkeys(jobs, case.batch * points)
    try:
        jobs["quantus PixelFlipping"] = quantus_flipping(case)
        work["quantus PixelFlipping"] = case.batch * -(-3 * case.pixels // case.features_in_step)
    except ImportError:
        print("quantus is not installed: left out", file=sys.stderr)
    times, faults = take_turns(jobs, repeats, device, limit)
    rates = {name: work[name] / t for name, t in times.items()}
    best = max(rate for name, rate in rates.items() if name.startswith("forward"))
    quantus_rate = rates.get("quantus PixelFlipping")
    return [
        {
            "model": case.name,
            "contestant": name,
            "batch": case.batch,
            "passes": work[name],
            "rate": rates.get(name),
            "times_eager": rates[name] / rates["forward eager"] if name in rates else None,
            "of_best_forward": rates[name] / best if name in rates else None,
            "times_quantus": rates[name] / quantus_rate if name in rates and quantus_rate else None,
            "prepared_s": compile_seconds if name.endswith("compiled") else None,
            "note": faults.get(name, "+".join(copies[name.split()[1]].steps) if name.split()[1] in copies else ""),
        }
        for name in jobs
    ]


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        engines = [r for r in rows if r["model"] == model and r["contestant"].startswith("engine") and r["rate"]]
        best = max(engines, key=lambda r: r["rate"])
        goals = GOALS if model == "tomsett_cifar10" else {"of_best_forward": GOALS["of_best_forward"]}
        for column, goal in goals.items():
            reached = best[column]
            if reached is not None:
                word = "reached" if reached >= goal else "NOT reached"
                lines.append(f"- {model}, {best['contestant']}: {column} {reached:.2f}, goal {goal}: {word}")
    return lines


def write(rows: list[dict[str, Any]], facts: dict[str, str], repeats: int, out: Path) -> None:
    title = [
        "# Speed of the perturbation engine",
        "",
        f"`rate`: forward passes (images) per second, one batch size; medians of up to {repeats} repetitions in turn.",
        "`forward`: the same batch over and over; `engine`: pixel flipping, each step a new batch.",
    ]
    write_table(out / "metrics", title, rows, facts, ["## Goals", "", *verdicts(rows)])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for metrics.csv and metrics.md")
    parser.add_argument("--quick", action="store_true", help="a tiny network, one repetition, not compiled")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=120.0, help="no repetition begins after this time per network")
    parser.add_argument("--threads", type=int, help="of torch; default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="of tomsett_cifar10, resnet50_224")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    logging.basicConfig(level=logging.WARNING)
    warnings.simplefilter("ignore")
    repeats = 1 if options.quick else options.repeats
    facts = machine(options.device)
    rows: list[dict[str, Any]] = []
    for case in (quick_cases if options.quick else full_cases)(options.device):
        if options.models and case.name not in options.models:
            continue
        rows += measure(case, repeats, not options.quick, options.device, options.seconds)
        write(rows, facts, repeats, options.out)
        print((options.out / "metrics.md").read_text(), flush=True)
    return 0 if rows and all(row["rate"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
