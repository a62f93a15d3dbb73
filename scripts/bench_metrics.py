"""Images per second of the metrics that ask the model, against plain forward passes and against peers at equal work.

Two tables. `metrics`: every metric on the inference copy that a run gives it (compiled; `exact`: float32, `fast`: half
precision), its floor (as many eager forward passes of the network) and the counterpart of Quantus or grad-cam, where
there is one, with as many forward passes of the same batch size. `engine`: forward passes per second, of the same batch
again and again through the network as it is (eager), in channels-last layout, with BatchNorm folded, compiled, in half
precision; and of pixel flipping, every step of the curve a new batch, on those copies. All contestants take turns.

    python scripts/bench_metrics.py --out docs/results/bench              # up to 10 minutes on two idle cores
    python scripts/bench_metrics.py --out docs/results/bench --models tomsett_cifar10 --metrics insertion engine
    python scripts/bench_metrics.py --out outputs/bench --quick
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from bench_common import (
    ABOUT,
    Job,
    Limits,
    Rows,
    finish,
    machine,
    measured,
    parser,
    read_rows,
    read_table,
    said,
    start,
    take_turns,
    told,
    write_rows,
    write_table,
)
from bench_methods import LARGER
from torch import Tensor, nn

from salrun.metrics.aopc import AOPCMoRF
from salrun.metrics.faithfulness import Faithfulness
from salrun.metrics.insertion import Deletion, Insertion, PixelFlipping
from salrun.metrics.masking import AverageDrop, AverageIncrease
from salrun.metrics.monotonicity import Monotonicity
from salrun.models.classifier import Classifier
from salrun.models.inference import InferenceCopy, inference_copy
from salrun.rng import Draws, generator
from salrun.types import Metric, Scene

# What the engine is to reach: of the best forward rate in float32, of the eager forward rate, of Quantus' rate. The
# last two on the CIFAR network only: on a large one the forward pass is all there is.
GOALS = {"of_best_forward": 0.9, "times_eager": 2.5, "times_quantus": 5.0}
ENGINE = "engine"


@dataclass
class Case:
    """A network, images with a plane each, and how many steps a curve has.

    A multiple of 3: Quantus takes only steps that divide the pixels evenly, and counts three channels' elements.
    """

    name: str
    model: Classifier
    x: Tensor
    plane: Tensor
    target: Tensor
    steps: int
    patch: int  # the side of what AOPC replaces at a time
    copies: dict[str, InferenceCopy]

    @property
    def batch(self) -> int:
        return len(self.x)

    @property
    def pixels(self) -> int:
        return self.x[0, 0].numel()

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.x.shape[1:]
        return channels, height, width


def make_case(
    name: str, module: nn.Module, size: int, batch: int, steps: int, patch: int, device: str, compile: bool = True
) -> Case:
    batch *= LARGER.get(torch.device(device).type, 1)
    draw = generator(0, f"bench/{name}")
    model = Classifier(module.eval(), (0.5,) * 3, (0.25,) * 3, name=name).to(device)
    x = torch.rand(batch, 3, size, size, generator=draw).to(device)
    plane = torch.rand(batch, 1, size, size, generator=draw).to(device)
    target = torch.zeros(batch, dtype=torch.int64, device=device)
    word: Literal["on", "off"] = "on" if compile else "off"
    copies = {
        "exact": inference_copy(model, x[:4], word, batch=batch),
        "fast": inference_copy(model, x[:4], word, batch=batch, numerics="fast"),
    }
    return Case(name, model, x, plane, target, steps, patch, copies)


def full_cases(device: str) -> Iterator[Case]:
    from torchvision.models import resnet50

    from salrun.models.architectures import TomsettCNN

    torch.manual_seed(0)
    yield make_case("tomsett_cifar10", TomsettCNN(), 32, 64, 24, 1, device)
    yield make_case("resnet50_224", resnet50(), 224, 4, 6, 8, device)


def quick_cases(device: str) -> Iterator[Case]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(784, 3))
    yield make_case("tiny", module, 16, 4, 6, 1, device, compile=False)


# -- metrics and peers -------------------------------------------------------------------------------------------------


def metric_of(name: str, case: Case) -> Metric:
    """The metric, with as many steps as the case has."""
    n = case.steps
    step = -(-case.pixels // (n - 1))  # the untouched image is a point of the curve too
    match name:
        case "insertion":
            return Insertion(step=step)
        case "deletion":
            return Deletion(step=step)
        case "pixel_flipping":
            return PixelFlipping(step=step)
        case "aopc_morf":
            return AOPCMoRF(perturbations=["mean"], levels=[n], pixels_per_step=case.patch**2)
        case "faithfulness":
            return Faithfulness(perturbations=["mean"], n_pixels=n)
        case "monotonicity":
            return Monotonicity(groups=n)
        case "monotonicity_arya":
            return Monotonicity(definition="arya", groups=n)
        case "monotonicity_nguyen":
            return Monotonicity(definition="nguyen", groups=3, n_samples=n // 3)
        case "average_drop":
            return AverageDrop()
    return AverageIncrease()


FAMILIES = {
    "insertion": "curve", "deletion": "curve", "pixel_flipping": "curve", "aopc_morf": "curve",
    "faithfulness": "correlation", "monotonicity": "correlation", "monotonicity_arya": "correlation",
    "monotonicity_nguyen": "correlation", "average_drop": "masking", "average_increase": "masking",
}  # fmt: skip


def ours(case: Case, metric: Metric, model: Classifier) -> Job:
    """A new scene each time: what a scene keeps is not asked twice."""
    rng = Draws.of(0, [str(i) for i in range(case.batch)], case.x.device)
    return lambda: metric(case.plane, Scene(model, case.x, case.target, case.target, rng, chunk=case.batch))


def by_quantus(name: str, parts: Callable[[Case], int] | None, **options: Any) -> Callable[[Case], Job]:
    """`parts`: into how many steps the channel elements of an image are divided, where the metric divides them."""

    def build(case: Case) -> Job:
        import quantus

        size = {"features_in_step": case.x[0].numel() // parts(case)} if parts else {}
        given = {key: value(case) if callable(value) else value for key, value in options.items()}
        metric = getattr(quantus, name)(abs=False, normalise=False, disable_warnings=True, **size, **given)
        x, a = case.model.normalise(case.x).cpu().numpy(), case.plane.cpu().numpy()
        y = case.target.cpu().numpy()
        return lambda: metric(
            model=case.model.module, x_batch=x, y_batch=y, a_batch=a, softmax=True, channel_first=True,
            batch_size=case.batch, device=str(case.x.device),
        )  # fmt: skip

    return build


def by_grad_cam(name: str) -> Callable[[Case], Job]:
    def build(case: Case) -> Job:
        from pytorch_grad_cam.metrics import cam_mult_image
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget

        metric = getattr(cam_mult_image, name)()
        targets = [ClassifierOutputSoftmaxTarget(c) for c in case.target.tolist()]
        planes = case.plane[:, 0].cpu().numpy()
        return lambda: metric(case.model.normalise(case.x), planes, targets, case.model.module)

    return build


PEERS: dict[str, tuple[str, Callable[[Case], Job]]] = {
    "deletion": (
        "quantus PixelFlipping",
        by_quantus("PixelFlipping", lambda case: case.steps, perturb_baseline="mean"),
    ),
    "pixel_flipping": ("quantus PixelFlipping", by_quantus("PixelFlipping", lambda case: case.steps)),
    "aopc_morf": (
        "quantus RegionPerturbation",
        by_quantus(
            "RegionPerturbation", None, perturb_baseline="mean",
            patch_size=lambda case: case.patch, regions_evaluation=lambda case: case.steps,
        ),
    ),
    "faithfulness": (
        "quantus FaithfulnessEstimate",
        by_quantus("FaithfulnessEstimate", lambda case: case.steps, perturb_baseline="mean"),
    ),
    "monotonicity_arya": ("quantus Monotonicity", by_quantus("Monotonicity", lambda case: case.steps)),
    "monotonicity_nguyen": (
        "quantus MonotonicityCorrelation",
        by_quantus(
            "MonotonicityCorrelation", lambda case: 3, nr_samples=lambda case: case.steps // 3
        ),
    ),
    "average_drop": ("grad-cam DropInConfidence", by_grad_cam("DropInConfidence")),
    "average_increase": ("grad-cam IncreaseInConfidence", by_grad_cam("IncreaseInConfidence")),
}  # fmt: skip


def passes_of(metric: Metric, case: Case) -> int:
    """Forward passes per image."""
    return int(metric.passes(case.model, case.shape) + metric.shared_passes(case.model, case.shape))


def forward(run: Callable[[Tensor], Tensor], point: Tensor, times: int) -> Job:
    @torch.no_grad()
    def job() -> None:
        for _ in range(times):
            run(point)

    return job


def measure(name: str, case: Case, limits: Limits) -> dict[str, Any]:
    """One row of the metrics' table."""
    metric = metric_of(name, case)
    passes = passes_of(metric, case)
    jobs = {"forward": forward(case.model.module, case.model.normalise(case.x), 2)}
    jobs |= {kind: ours(case, metric, copy) for kind, copy in case.copies.items() if kind == "exact" or copy.reduced}
    faults: dict[str, str] = {}
    peer, build = PEERS.get(name, ("", None))
    if build is not None:
        try:
            jobs[peer] = build(replace(case, model=deepcopy(case.model)))
        except Exception as fault:
            faults[peer] = said(fault)
    head = {"model": case.name, "family": FAMILIES[name], "metric": name, "passes": passes}
    return measured(head, case.batch, {"forward": passes / 2}, jobs, [peer], limits, faults)


# -- the engine --------------------------------------------------------------------------------------------------------


def measure_engine(case: Case, limits: Limits) -> list[dict[str, Any]]:
    """The rows of one network in the engine's table."""
    folded = inference_copy(case.model, case.x[:4], "off")
    copies = {"folded": folded, **case.copies} if case.copies["exact"].steps != folded.steps else {**case.copies}
    point = case.model.normalise(case.x)
    last = point.contiguous(memory_format=torch.channels_last)
    metric = metric_of("pixel_flipping", case)
    points = passes_of(metric, case)
    relaid = deepcopy(case.model.module).to(memory_format=torch.channels_last)
    jobs = {
        "forward eager": forward(case.model.module, point, points),
        "forward channels_last": forward(relaid, last, points),
        **{f"forward {name}": forward(copy.network, last, points) for name, copy in copies.items()},
        "engine eager": ours(case, metric, case.model),
        **{f"engine {name}": ours(case, metric, copy) for name, copy in copies.items()},
    }
    quantus, build = PEERS["pixel_flipping"]
    try:
        jobs[quantus] = build(replace(case, model=deepcopy(case.model)))
    except ImportError:
        print("quantus is not installed: left out", file=sys.stderr)
    times, faults = take_turns(jobs, limits.repeats, limits.device, limits.seconds)
    rates = {name: t.rates("rate", case.batch * points) for name, t in times.items()}
    best = max(r["rate"] for name, r in rates.items() if name.startswith("forward") and not name.endswith("fast"))

    def over(name: str, other: float | None) -> float | None:
        return rates[name]["rate"] / other if name in rates and other else None

    return [
        {
            "model": case.name,
            "contestant": name,
            "batch": case.batch,
            "passes": case.batch * points,
            **rates.get(name, {"rate": None, "rate_low": None, "rate_high": None}),
            "times_eager": over(name, rates["forward eager"]["rate"]),
            "of_best_forward": over(name, best),
            "times_quantus": over(name, rates.get(quantus, {}).get("rate")),
            "rounds": len(times[name].seconds) if name in times else 0,
            "note": faults.get(name, "+".join(copies[name.split()[1]].steps) if name.split()[1] in copies else ""),
        }
        for name in jobs
    ]


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        engines = [r for r in rows if r["model"] == model and r["contestant"].startswith("engine") and r["rate"]]
        goals = GOALS if model == "tomsett_cifar10" else {"of_best_forward": GOALS["of_best_forward"]}
        for best in (r for r in engines if r["contestant"] in ("engine exact", "engine fast")):
            for column, goal in goals.items():
                reached = best[column]
                if reached is not None:
                    word = "reached" if reached >= goal else "NOT reached"
                    lines.append(f"- {model}, {best['contestant']}: {column} {reached:.2f}, goal {goal}: {word}")
    return lines


def write_engine(rows: list[dict[str, Any]], facts: dict[str, str], out: Path) -> None:
    title = [
        "# Speed of the perturbation engine",
        "",
        "`rate`: forward passes (images) per second, one batch size; the median of the rounds, and its quartiles; all",
        "take turns. `forward`: the same batch over and over; `engine`: pixel flipping, each step a new batch. `exact`",
        "and `fast`: the compiled copies that a run uses, in float32 and in half precision. `of_best_forward`: of the",
        "best forward rate in float32.",
    ]
    write_table(out / ENGINE, title, rows, facts, end=["## Goals", "", *verdicts(rows)])


def write(rows: Rows, facts: dict[str, str], out: Path) -> None:
    title = [
        "# Speed of the metrics that ask the model",
        "",
        "Images per second, of one map each: the median of the rounds [quartiles]; all contestants of a row take",
        "turns. `passes`: forward passes per image. `floor`: as many eager forward passes in float32. `images/s` and",
        "`fast`: on the compiled copies that a run uses, in float32 and with `numerics=fast`. `peer`: its counterpart,",
        "with as many forward passes of the same batch size; insertion and Zhang's monotonicity have none.",
        *ABOUT,
    ]
    write_rows(out / "metrics", title, list(rows.values()), ("model", "family", "passes", "metric"), facts)


def main(argv: list[str] | None = None) -> int:
    names = [*FAMILIES, ENGINE]
    given = parser(__doc__, 15.0)
    given.add_argument("--metrics", nargs="+", choices=names, default=names, metavar="NAME")
    given.add_argument("--models", nargs="+", metavar="NAME", help="of tomsett_cifar10, resnet50_224")
    options = given.parse_args(argv)
    logging.basicConfig(level=logging.WARNING)
    limits, watch = start(options)
    facts = machine(limits.device)
    known = read_rows(options.out / "metrics", "metric")
    engine = read_table(options.out / ENGINE, ["contestant", "rate_low"])
    left, broken = [], []
    for case in (quick_cases if options.quick else full_cases)(limits.device):
        if options.models and case.name not in options.models:
            continue
        for name in options.metrics:
            there = (
                engine if name == ENGINE else [row for row in known.values() if row["metric"] == name and row["exact"]]
            )
            if options.missing and any(row["model"] == case.name for row in there):
                continue
            if limits.over():
                left.append(f"{case.name} {name}")
                continue
            if name == ENGINE:
                rows = measure_engine(case, replace(limits, seconds=2 * limits.seconds))
                engine = [row for row in engine if row["model"] != case.name] + rows
                broken += [f"{row['contestant']} failed: {row['note']}" for row in rows if row["rate"] is None]
                write_engine(engine, facts | watch.facts(), options.out)
                print((options.out / "engine.md").read_text(), flush=True)
                continue
            row = known[case.name, name] = measure(name, case, limits)
            print(told(row), flush=True)
            if row["exact"] is None:
                broken.append(f"{name} failed on {case.name}: {row['note']}")
            write(known, facts | watch.facts(), options.out)
    return finish(watch, left, broken)


if __name__ == "__main__":
    sys.exit(main())
