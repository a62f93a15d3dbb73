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
import math
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
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

from salrun.metrics.adcc import ADCC
from salrun.metrics.aopc import AOPCMoRF
from salrun.metrics.faithfulness import Faithfulness
from salrun.metrics.infidelity import Infidelity
from salrun.metrics.insertion import Deletion, Insertion, PixelFlipping
from salrun.metrics.irof import IROF
from salrun.metrics.localisation import LocalisationAUC, RelevanceRankAccuracy, TopKIntersection
from salrun.metrics.masking import AverageDrop, AverageIncrease
from salrun.metrics.monotonicity import Monotonicity
from salrun.metrics.randomisation import EfficientMPRT, RandomLogit, SmoothMPRT
from salrun.metrics.road import ROAD
from salrun.metrics.robustness import LocalLipschitz
from salrun.metrics.sensitivity_n import SensitivityN
from salrun.metrics.single_deletion import IDSDS, SaCo
from salrun.metrics.stability import RelativeStability, Sufficiency
from salrun.models.classifier import Classifier
from salrun.models.inference import InferenceCopy, inference_copy
from salrun.rng import Draws, generator
from salrun.types import PRIMARY, Metric, Scene

# What the engine is to reach: of the best forward rate in float32, of the eager forward rate, of Quantus' rate. The
# last two on the CIFAR network only: on a large one the forward pass is all there is.
GOALS = {"of_best_forward": 0.9, "times_eager": 2.5, "times_quantus": 5.0}
ENGINE = "engine"
METHODS = 5  # whose maps are scored where a row has several
SEVERAL = ("road", "irof", "sensitivity_n")  # metrics measured with several methods too, as a run scores them


@dataclass
class Case:
    """A network, images with a plane each, and how many steps a curve has.

    A multiple of 3: Quantus takes only steps that divide the pixels evenly, and counts three channels' elements.
    """

    name: str
    model: Classifier
    x: Tensor
    planes: list[Tensor]  # of as many methods
    target: Tensor
    steps: int
    patch: int  # the side of what AOPC replaces at a time
    copies: dict[str, InferenceCopy]

    @property
    def plane(self) -> Tensor:
        return self.planes[0]

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
    planes = [torch.rand(batch, 1, size, size, generator=draw).to(device) for _ in range(METHODS)]
    target = torch.zeros(batch, dtype=torch.int64, device=device)
    word: Literal["on", "off"] = "on" if compile else "off"
    copies = {
        "exact": inference_copy(model, x[:4], word, batch=batch),
        "fast": inference_copy(model, x[:4], word, batch=batch, numerics="fast"),
    }
    return Case(name, model, x, planes, target, steps, patch, copies)


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
        case "road":
            return ROAD(fractions=[(k + 1) / (n // 2 + 1) for k in range(n // 2)])
        case "irof":
            return IROF(n_segments=n, compactness=COMPACT)
        case "saco":
            return SaCo(groups=n)
        case "idsds":
            return IDSDS(grid=math.isqrt(n))
        case "sensitivity_n":
            return SensitivityN(fractions=[0.2, 0.5, 0.8], n_draws=n // 3)
        case "infidelity":
            return Infidelity(n_draws=n, size=case.shape[1] // 2)
        case "local_lipschitz":
            return LocalLipschitz(n_draws=n // 3)
        case "relative_stability":
            return RelativeStability(n_draws=n // 3)
        case "sufficiency":
            return Sufficiency(n_draws=n // 3)
        case "random_logit":
            return RandomLogit(measures=["ssim"])
        case "smooth_mprt":
            return SmoothMPRT(n_draws=n // 3, measures=["ssim"])
        case "efficient_mprt":
            return EfficientMPRT()
        case "relevance_rank_accuracy":
            return RelevanceRankAccuracy()
        case "localisation_auc":
            return LocalisationAUC()
        case "top_k_intersection":
            return TopKIntersection(k=case.pixels // 4)
        case "adcc":
            return ADCC()
        case "average_drop":
            return AverageDrop()
    return AverageIncrease()


FAMILIES = {
    "insertion": "curve", "deletion": "curve", "pixel_flipping": "curve", "aopc_morf": "curve",
    "faithfulness": "correlation", "monotonicity": "correlation", "monotonicity_arya": "correlation",
    "monotonicity_nguyen": "correlation", "average_drop": "masking", "average_increase": "masking", "adcc": "masking",
    "road": "removal", "irof": "removal", "saco": "removal", "idsds": "removal", "sensitivity_n": "removal",
    "infidelity": "removal", "local_lipschitz": "neighbours", "relative_stability": "neighbours",
    "sufficiency": "neighbours", "random_logit": "randomisation", "smooth_mprt": "randomisation",
    "efficient_mprt": "randomisation", "relevance_rank_accuracy": "localisation", "localisation_auc": "localisation",
    "top_k_intersection": "localisation",
}  # fmt: skip


# What a row is called -> its metric, and how many methods' maps it scores.
TITLES = {name: (name, 1) for name in FAMILIES} | {f"{name}_of_{METHODS}_methods": (name, METHODS) for name in SEVERAL}


def gradient(module: nn.Module, z: Tensor, target: Tensor) -> Tensor:
    """The method where a metric explains: (B, 1, H, W) of |gradient|, in the network's input space."""
    z = z.detach().requires_grad_()
    (slope,) = torch.autograd.grad(module(z).gather(1, target.unsqueeze(1)).sum(), z)
    return slope.abs().amax(1, keepdim=True)


def for_quantus(model: nn.Module, inputs: Any, targets: Any, **_: Any) -> Any:
    device = next(model.parameters()).device
    z, target = (torch.as_tensor(t, device=device) for t in (inputs, targets))
    return gradient(model, z.float(), target.long()).cpu().numpy()


def inside(case: Case) -> Tensor:
    """(B, H, W): the object of the localisation metrics, a quarter of the image."""
    mask = torch.zeros(case.batch, *case.shape[1:], dtype=torch.bool, device=case.x.device)
    mask[:, : case.shape[1] // 2, : case.shape[2] // 2] = True
    return mask


def ours(case: Case, metric: Metric, model: Classifier, methods: int = 1) -> Job:
    """A new scene each time: what a scene keeps is not asked twice. Several methods share what no map has a part in."""
    rng = Draws.of(0, [str(i) for i in range(case.batch)], case.x.device)
    other = deepcopy(case.model)

    def explain(x: Tensor, target: Tensor | None = None, by: Classifier = case.model) -> Tensor:
        return gradient(by.module, by.normalise(x), case.target if target is None else target)

    def other_map(name: str, x: Tensor | None = None) -> Tensor:
        return explain(case.x if x is None else x, by=other)

    def scene(kept: dict[str, dict[str, Tensor]]) -> Scene:
        def shared(name: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
            if name not in kept:
                kept[name] = compute()
            return kept[name]

        masks = {"object": inside(case)}
        roles = {"object": torch.full((case.batch,), PRIMARY, device=case.x.device)}
        return Scene(
            model, case.x, case.target, case.target, rng, masks, roles,
            explain=explain, other_map=other_map, shared=shared, chunk=case.batch,
        )  # fmt: skip

    def job() -> None:
        kept: dict[str, dict[str, Tensor]] = {}
        for plane in case.planes[:methods]:
            metric(plane, scene(kept))

    return job


def by_quantus(name: str, parts: Callable[[Case], int] | None, **options: Any) -> Callable[[Case], Job]:
    """`parts`: into how many steps the channel elements of an image are divided, where the metric divides them."""

    def build(case: Case) -> Job:
        import quantus

        size = {"features_in_step": case.x[0].numel() // parts(case)} if parts else {}
        given = {key: value(case) if callable(value) else value for key, value in options.items()}
        metric = getattr(quantus, name)(abs=False, normalise=False, disable_warnings=True, **size, **given)
        x, a = case.model.normalise(case.x).cpu().numpy(), case.plane.cpu().numpy()
        y = case.target.cpu().numpy()
        s = inside(case).unsqueeze(1).cpu().numpy()
        return lambda: metric(
            model=case.model.module, x_batch=x, y_batch=y, a_batch=a, s_batch=s, softmax=True, channel_first=True,
            batch_size=case.batch, device=str(case.x.device), explain_func=for_quantus,
        )  # fmt: skip

    return build


def together(*builds: Callable[[Case], Job]) -> Callable[[Case], Job]:
    """One after the other: what one of our metrics measures at once."""

    def build(case: Case) -> Job:
        jobs = [each(case) for each in builds]
        return lambda: [job() for job in jobs]

    return build


def one_by_one(build: Callable[[Case], Job], methods: int) -> Callable[[Case], Job]:
    """The maps of several methods, each scored on its own."""
    return together(*(lambda case, k=k: build(replace(case, planes=case.planes[k:])) for k in range(methods)))


COMPACT = 1e4  # superpixels are nearly squares: as many of noise as of a picture


def with_segments(build: Callable[[Case], Job]) -> Callable[[Case], Job]:
    """Quantus' superpixels as ours: it has no option for their number."""

    def job(case: Case) -> Job:
        from quantus.helpers import utils
        from skimage.segmentation import slic

        utils.slic = partial(slic, n_segments=case.steps, compactness=COMPACT)
        np.trapz = np.trapezoid  # type: ignore[attr-defined]  # noqa: NPY201  # the name that it calls is gone
        return build(case)

    return job


def in_colour(arr: Any, mask: Any, **options: Any) -> Any:
    """Quantus' own replacement; its IROF gives it a mask of one channel, which it takes for no colour image."""
    from quantus.functions.perturb_func import baseline_replacement_by_mask

    return baseline_replacement_by_mask(arr, np.broadcast_to(mask, arr.shape), **options)


def of_one_channel(build: Callable[[Case], Job]) -> Callable[[Case], Job]:
    """Quantus' ROAD takes elements of the first channel for pixels, and fails at those of others: they come last."""

    def job(case: Case) -> Job:
        last = torch.full_like(case.x[:, 1:], -1)
        return build(replace(case, planes=[torch.cat([plane, last], 1) for plane in case.planes]))

    return job


def samples(case: Case) -> int:
    return case.steps // 3


def classes(case: Case) -> int:
    with torch.no_grad():
        return case.model(case.x[:1]).shape[1]


def by_grad_cam(name: str) -> Callable[[Case], Job]:
    def build(case: Case) -> Job:
        from pytorch_grad_cam.metrics import cam_mult_image
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget

        metric = getattr(cam_mult_image, name)()
        targets = [ClassifierOutputSoftmaxTarget(c) for c in case.target.tolist()]
        planes = case.plane[:, 0].cpu().numpy()
        return lambda: metric(case.model.normalise(case.x), planes, targets, case.model.module)

    return build


KINDS = ("Input", "Output", "Representation")
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
    "road": (
        "quantus ROAD",
        of_one_channel(
            by_quantus("ROAD", None, percentages=lambda case: (np.linspace(5, 95, case.steps) / 3).tolist())
        ),
    ),
    "irof": ("quantus IROF", with_segments(by_quantus("IROF", None, perturb_func=lambda _: in_colour))),
    "sensitivity_n": (
        "quantus SensitivityN",
        by_quantus("SensitivityN", lambda case: case.steps, n_max_percentage=1.0),
    ),
    "infidelity": (
        "quantus Infidelity",
        by_quantus(
            "Infidelity", None, perturb_patch_sizes=lambda case: [case.shape[1]],
            n_perturb_samples=lambda case: case.steps,
        ),
    ),
    "local_lipschitz": (
        "quantus LocalLipschitzEstimate",
        by_quantus("LocalLipschitzEstimate", None, nr_samples=samples),
    ),
    "relative_stability": (
        "quantus RelativeInputStability, Output, Representation",
        together(*(by_quantus(f"Relative{k}Stability", None, nr_samples=samples) for k in KINDS)),
    ),
    "random_logit": ("quantus RandomLogit", by_quantus("RandomLogit", None, num_classes=classes)),
    "smooth_mprt": ("quantus SmoothMPRT", by_quantus("SmoothMPRT", None, nr_samples=samples, skip_layers=True)),
    "efficient_mprt": ("quantus EfficientMPRT", by_quantus("EfficientMPRT", None)),
    "relevance_rank_accuracy": ("quantus RelevanceRankAccuracy", by_quantus("RelevanceRankAccuracy", None)),
    "localisation_auc": ("quantus AUC", by_quantus("AUC", None)),
    "top_k_intersection": (
        "quantus TopKIntersection",
        by_quantus("TopKIntersection", None, k=lambda case: case.pixels // 4),
    ),
    "average_drop": ("grad-cam DropInConfidence", by_grad_cam("DropInConfidence")),
    "average_increase": ("grad-cam IncreaseInConfidence", by_grad_cam("IncreaseInConfidence")),
}  # fmt: skip


# For the same samples Quantus' stability asks for the predictions again for each of its three metrics, its efficient
# MPRT for the map of the image that it is given.
MORE_WORK = ("relative_stability", "efficient_mprt")


def passes_of(metric: Metric, case: Case, methods: int = 1) -> int:
    """Forward passes per image, and maps; ADCC's pass of the masked image is beside its map."""
    own, shared = metric.passes(case.model, case.shape), metric.shared_passes(case.model, case.shape)
    own += isinstance(metric, ADCC) + ("explain" not in metric.needs) * len(metric.reads())
    return int(methods * own + shared)


def forward(run: Callable[[Tensor], Tensor], point: Tensor, times: int) -> Job:
    @torch.no_grad()
    def job() -> None:
        for _ in range(times):
            run(point)

    return job


def measure(title: str, case: Case, limits: Limits) -> dict[str, Any]:
    """One row of the metrics' table; the images of several methods count once for each."""
    name, methods = TITLES[title]
    metric = metric_of(name, case)
    point = case.model.normalise(case.x)
    maps = metric.passes(case.model, case.shape) if "explain" in metric.needs else len(metric.reads())
    explained, passes = int(maps), passes_of(metric, case, methods) - int(maps)
    jobs = {"forward": forward(case.model.module, point, 2)} if passes else {}
    if explained:
        jobs["gradient"] = lambda: gradient(case.model.module, point, case.target)
    copies = {kind: copy for kind, copy in case.copies.items() if kind == "exact" or copy.reduced}
    jobs |= {kind: ours(case, metric, copy, methods) for kind, copy in copies.items()}
    faults: dict[str, str] = {}
    peer, build = PEERS.get(name, ("", None))
    if build is not None:
        try:
            jobs[peer] = one_by_one(build, methods)(replace(case, model=deepcopy(case.model)))
        except Exception as fault:
            faults[peer] = said(fault)
    head = {"model": case.name, "family": FAMILIES[name], "metric": title, "passes": passes, "maps": explained}
    floor = {kind: count for kind, count in {"forward": passes / 2, "gradient": explained}.items() if kind in jobs}
    return measured(head, methods * case.batch, floor, jobs, [peer], limits, faults)


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
        "turns. `passes`: forward passes per image; `maps`: maps that are made anew, here |gradient|. `floor`: as many",
        "eager passes and gradients in float32. `images/s` and `fast`: on the compiled copies that a run uses, in",
        "float32 and with `numerics=fast`. `peer`: its counterpart with as many forward passes and maps, in batches of",
        "the same size; insertion, Zhang's monotonicity, SaCo, IDSDS, ADCC and sufficiency (Quantus' looks at no",
        "neighbours) have none. IROF: Quantus is given as many superpixels as ours. For the same samples Quantus'",
        f"stability and efficient MPRT make more passes. `of_{METHODS}_methods`: the maps of {METHODS} methods of the",
        "same images, as a run scores them: what depends on the image alone (superpixels, the model's answer to it,",
        "random removals) is done once; Quantus scores each method on its own. Images then count once per method,",
        "`passes` are those of all.",
        *ABOUT,
    ]
    write_rows(out / "metrics", title, list(rows.values()), ("model", "family", "passes", "maps", "metric"), facts)


def main(argv: list[str] | None = None) -> int:
    names = [*TITLES, ENGINE]
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
