"""Images per second of every method, against its floor and against the fastest peer at equal work.

The floor is the time of what the method cannot avoid, at the same batch size, eager, in float32, taken in the same run:
forward and backward passes of the network, the further passes through its layers that a rule asks for, drawing noise.
All contestants of a row take turns, `--repeats` times or `--seconds` long; medians are reported. Rows of the table in
`--out` that are not measured again stay there.

    python scripts/bench_methods.py --out docs/results/bench              # about ten minutes on two idle cores
    python scripts/bench_methods.py --out docs/results/bench --missing    # go on where it stopped
    python scripts/bench_methods.py --out docs/results/bench --models resnet50_224 --methods lime iba
    python scripts/bench_methods.py --out /tmp/bench --quick --methods gradient rise
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import io
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from salrun.config.parts import method_part
from salrun.methods.iba import fit_feature_stats, go_on
from salrun.methods.layers import layer_output
from salrun.models.classifier import Classifier, pick
from salrun.models.inference import inference_copy
from salrun.rng import Draws, generator
from salrun.types import PRIMARY, Fitted, Method

CONF = Path(__file__).resolve().parents[1] / "conf" / "methods"
FORWARD_ONLY = ("rise", "lime", "score_cam")
GOAL = 0.95
Job = Callable[[], object]


@dataclass
class Case:
    """A network, a batch for it, and how much work the sampling methods do on it (`images`: on the first so many)."""

    name: str
    model: Classifier
    x: Tensor
    target: Tensor
    fitted: Fitted
    rng: Draws
    work: dict[str, dict[str, Any]]

    @property
    def batch(self) -> int:
        return len(self.x)

    @property
    def point(self) -> Tensor:
        return self.model.normalise(self.x)

    def first(self, n: int) -> Case:
        """The same with the first images alone; passes are as large as before."""
        return replace(self, x=self.x[:n], target=self.target[:n], rng=self.rng[:n])


# -- the networks ------------------------------------------------------------------------------------------------------


def make_case(
    name: str, module: nn.Module, size: int, classes: int, layers: dict[str, str], batch: int, work: dict, device: str
) -> Case:
    draw = generator(0, f"bench/{name}")
    model = Classifier(module.eval(), (0.5,) * 3, (0.25,) * 3, layers, name).to(device)
    x = torch.rand(batch, 3, size, size, generator=draw).to(device)
    target = torch.randint(classes, (batch,), generator=draw).to(device)
    mask = torch.zeros(batch, size, size, dtype=torch.bool, device=device)
    mask[:, : size // 2] = True
    fitted = Fitted(
        background=x[:4],
        feature_stats=fit_feature_stats(model, "iba", [x]),
        masks={"object": mask},
        roles={"object": torch.full((batch,), PRIMARY, device=device)},
        chunk=batch,
    )
    return Case(name, model, x, target, fitted, Draws.of(0, [str(i) for i in range(batch)], device), work)


def full_cases(device: str) -> Iterator[Case]:
    from torchvision.models import resnet50

    from salrun.models.architectures import TomsettCNN, smerf_cnn

    small = {
        "smoothgrad": {"images": 8, "n_samples": 16},
        "integrated_gradients": {"images": 8, "steps": 16},
        "rise": {"images": 8, "n_masks": 400},
        "lime": {"images": 8, "n_samples": 1000},
        "score_cam": {"images": 8},
        "iba": {"images": 8},
    }
    large = {
        "smoothgrad": {"images": 2, "n_samples": 4},
        "integrated_gradients": {"images": 2, "steps": 4},
        "rise": {"images": 2, "n_masks": 16},
        "lime": {"images": 1, "n_samples": 128},
        "score_cam": {"images": 1, "layer": "relu"},  # 64 channels instead of 2048
        "iba": {"images": 2, "steps": 3},
    }
    torch.manual_seed(0)
    yield make_case("smerf_complex", smerf_cnn("complex"), 64, 2, {"cam": "relu4", "iba": "relu2"}, 32, small, device)
    layers = {"cam": "block3.relu2", "iba": "block2.relu2"}
    yield make_case("tomsett_cifar10", TomsettCNN(), 32, 10, layers, 32, small, device)
    yield make_case("resnet50_224", resnet50(), 224, 1000, {"cam": "layer4", "iba": "layer2"}, 4, large, device)


def quick_cases(device: str) -> Iterator[Case]:
    work = {
        "smoothgrad": {"n_samples": 2},
        "integrated_gradients": {"steps": 2},
        "rise": {"n_masks": 4},
        "lime": {"n_samples": 4},
        "iba": {"steps": 2, "copies": 2},
    }
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 12 * 12, 3)
    )
    yield make_case("tiny", module, 16, 3, {"cam": "3", "iba": "1"}, 2, work, device)


# -- what a method cannot avoid ----------------------------------------------------------------------------------------


def forward(case: Case) -> Job:
    point = case.point

    @torch.no_grad()
    def run() -> None:
        case.model.module(point)

    return run


def forward_backward(case: Case) -> Job:
    point = case.point

    def run() -> None:
        leaf = point.detach().requires_grad_(True)
        torch.autograd.grad(pick(case.model.module(leaf), case.target).sum(), leaf)

    return run


def to_layer(case: Case) -> Job:
    """Forward, and backward to the CAM layer."""
    point, layer = case.point, case.model.layer("cam")

    def run() -> None:
        kept: list[Tensor] = []
        handle = layer.register_forward_hook(lambda module, inputs, output: kept.append(output))
        logits = case.model.module(point.detach().requires_grad_(True))
        handle.remove()
        torch.autograd.grad(pick(logits, case.target).sum(), kept)

    return run


def stem(case: Case) -> Job:
    """Forward up to the IBA layer."""

    return lambda: layer_output(case.model, case.x, "iba")


def tail(case: Case) -> Job:
    """Forward and backward behind the IBA layer."""
    r = layer_output(case.model, case.x, "iba")

    def run() -> None:
        leaf = r.clone().requires_grad_(True)
        logits = go_on(case.model, "iba", case.point[:1], leaf)
        torch.autograd.grad(pick(logits, case.target).sum(), leaf)

    return run


def noise(case: Case) -> Job:
    """A normal number for each neuron of the IBA layer, by torch's own generator."""
    draw, shape = generator(0, "bench/noise", case.x.device), layer_output(case.model, case.x, "iba").shape
    return lambda: torch.randn(shape, generator=draw, device=case.x.device)


def inner_layers(case: Case) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """The kernel layers but the first, each with its input and its output."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    layers = [m for m in case.model.module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    handles = [m.register_forward_hook(lambda m, u, z: calls.append((m, u[0].clone(), z.clone()))) for m in layers]
    with torch.no_grad():
        case.model.module(case.point)
    for handle in handles:
        handle.remove()
    return calls[1:]


def layers(case: Case) -> Job:
    """Once more forward through every kernel layer but the first."""
    calls = inner_layers(case)

    @torch.no_grad()
    def run() -> None:
        for layer, u, _ in calls:
            layer(u)

    return run


def layers_back(case: Case) -> Job:
    """Once more backward through every kernel layer but the first."""
    calls = inner_layers(case)

    def run() -> None:
        for layer, u, z in calls:
            if isinstance(layer, nn.Conv2d):
                shape = layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups
                torch.ops.aten.convolution_backward(z, u, layer.weight, None, *shape, [True, False, False])
            elif isinstance(layer, nn.Linear):
                z @ layer.weight.detach()

    return run


PASSES = {
    "forward": forward,
    "forward+backward": forward_backward,
    "to layer": to_layer,
    "layers": layers,
    "layers back": layers_back,
    "stem": stem,
    "tail": tail,
    "noise": noise,
}


def floor(name: str, method: Any, case: Case) -> dict[str, float]:
    """Passes per image, by kind; empty for methods that need no network."""
    match name:
        case "edge" | "random" | "oracle" | "all_lit" | "fake_cam":
            return {}
        case "smoothgrad":
            return {"forward+backward": method.n_samples}
        case "integrated_gradients":
            return {"forward+backward": method.steps}
        case "rise":
            return {"forward": method.n_masks}
        case "lime":
            return {"forward": method.n_samples}
        case "score_cam":
            return {"forward": method.passes(case.model, tuple(case.x.shape[1:]))}
        case "iba":
            draws = (method.steps - 1) * method.copies
            return {"stem": 1, "tail": draws, "noise": draws}
        case "grad_cam" | "grad_cam_pp":
            return {"to layer": 1}
        case "deep_taylor" | "lrp_a_flat":  # the positive part of a layer's sum
            return {"forward+backward": 1, "layers": 1}
        case "lrp_b_flat":  # the positive and the negative part, each handed down on its own
            return {"forward+backward": 1, "layers": 2, "layers back": 1}
        case "deeplift_reveal_cancel":  # the same, but the negative part is what the positive one leaves of the sum
            return {"forward+backward": 1, "layers": 1, "layers back": 1}
        case "deep_shap":
            return {"forward+backward": len(case.fitted.background if case.fitted.background is not None else ())}
    return {"forward+backward": 1}


# -- peers -------------------------------------------------------------------------------------------------------------


def by_captum(name: str, **options: Any) -> Callable[[Case, Any], Job]:
    def build(case: Case, method: Any) -> Job:
        attribution = getattr(importlib.import_module("captum.attr"), name)(case.model.module)
        return lambda: attribution.attribute(case.point, target=case.target, **options)

    return build


def captum_noise_tunnel(case: Case, method: Any) -> Job:
    attr = importlib.import_module("captum.attr")
    tunnel = attr.NoiseTunnel(attr.Saliency(case.model.module))
    return lambda: tunnel.attribute(
        case.point, nt_samples=method.n_samples, nt_samples_batch_size=1, stdevs=0.1, target=case.target, abs=False
    )


def captum_integrated_gradients(case: Case, method: Any) -> Job:
    return by_captum("IntegratedGradients", n_steps=method.steps, internal_batch_size=case.batch)(case, method)


def captum_deep_lift_shap(case: Case, method: Any) -> Job:
    background = case.model.normalise(case.fitted.background)
    return by_captum("DeepLiftShap", baselines=background)(case, method)


def captum_grad_cam(case: Case, method: Any) -> Job:
    attr = importlib.import_module("captum.attr")
    cam = attr.LayerGradCam(case.model.module, case.model.layer(method.layer))
    return lambda: attr.LayerAttribution.interpolate(
        cam.attribute(case.point, target=case.target, relu_attributions=True), tuple(case.x.shape[2:]), "bilinear"
    )


def by_grad_cam(name: str) -> Callable[[Case, Any], Job]:
    def build(case: Case, method: Any) -> Job:
        package = importlib.import_module("pytorch_grad_cam")
        output = importlib.import_module("pytorch_grad_cam.utils.model_targets").ClassifierOutputTarget
        cam = getattr(package, name)(model=case.model.module, target_layers=[case.model.layer(method.layer)])
        cam.batch_size = case.batch
        targets = [output(c) for c in case.target.tolist()]
        return lambda: cam(input_tensor=case.point, targets=targets)

    return build


def by_zennit(rule: str, **options: float) -> Callable[[Case, Any], Job]:
    def build(case: Case, method: Any) -> Job:
        rules, types = importlib.import_module("zennit.rules"), importlib.import_module("zennit.types")
        layers = [
            ((types.Convolution, types.Linear), getattr(rules, rule)(**options)),
            (types.Activation, rules.Pass()),
        ]
        composite = importlib.import_module("zennit.composites").LayerMapComposite(layers)
        attributor = importlib.import_module("zennit.attribution").Gradient(case.model.module, composite)
        with torch.no_grad():
            logits = case.model(case.x)
        start = nn.functional.one_hot(case.target, logits.shape[1]) * logits

        def run() -> None:
            with attributor:
                attributor(case.point.requires_grad_(True), start)

        return run

    return build


def lime_package(case: Case, method: Any) -> Job:
    explainer_class = importlib.import_module("lime.lime_image").LimeImageExplainer

    @torch.no_grad()
    def probabilities(batch: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(batch).permute(0, 3, 1, 2).to(case.x)
        return case.model(x).softmax(1).cpu().numpy()

    def run() -> None:
        explainer = explainer_class(random_state=0)
        for image, target in zip(case.x.permute(0, 2, 3, 1).cpu().numpy(), case.target.tolist(), strict=True):
            explainer.explain_instance(
                image, probabilities, labels=(target,), top_labels=None,
                num_samples=method.n_samples, batch_size=case.batch,
            )  # fmt: skip

    return run


PEERS: dict[str, dict[str, Callable[[Case, Any], Job]]] = {
    "gradient": {"captum": by_captum("Saliency", abs=False)},
    "sensitivity": {"captum": by_captum("Saliency")},
    "input_x_gradient": {"captum": by_captum("InputXGradient")},
    "smoothgrad": {"captum": captum_noise_tunnel},
    "integrated_gradients": {"captum": captum_integrated_gradients},
    "deconvnet": {"captum": by_captum("Deconvolution")},
    "guided_backprop": {"captum": by_captum("GuidedBackprop")},
    "lrp_z": {"zennit": by_zennit("Epsilon", epsilon=1e-9)},
    "lrp_epsilon": {"captum": by_captum("LRP"), "zennit": by_zennit("Epsilon")},
    "deep_taylor": {"zennit": by_zennit("ZPlus")},
    "deeplift_rescale": {"captum": by_captum("DeepLift")},
    "deep_shap": {"captum": captum_deep_lift_shap},
    "grad_cam": {"captum": captum_grad_cam, "grad-cam": by_grad_cam("GradCAM")},
    "grad_cam_pp": {"grad-cam": by_grad_cam("GradCAMPlusPlus")},
    "score_cam": {"grad-cam": by_grad_cam("ScoreCAM")},
    "lime": {"lime": lime_package},
}


# -- measuring ---------------------------------------------------------------------------------------------------------


def load_method(name: str, work: dict[str, Any]) -> Method:
    """The method as its configuration file has it, at the paper's scale."""
    return method_part(name, work).method


def seconds(job: Job, device: str) -> float:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):  # peers' progress bars
        start = time.perf_counter()
        job()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start


def take_turns(
    jobs: dict[str, Job], repeats: int, device: str, limit: float = float("inf")
) -> tuple[dict[str, float], dict[str, str]]:
    """Median seconds of each job and, for those that fail, why.

    The first round is a rehearsal and counts only if it alone takes longer than `limit`; no round begins after that.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    faults: dict[str, str] = {}
    began = time.perf_counter()
    for _ in range(repeats + 1):
        for name, job in jobs.items():
            if name in faults:
                continue
            try:
                times[name].append(seconds(job, device))
            except Exception as fault:  # a peer may refuse a network in any way; the table says so
                faults[name] = _said(fault)
        if time.perf_counter() - began > limit:
            break
    return {name: statistics.median(t[1:] or t) for name, t in times.items() if name not in faults}, faults


def _said(fault: Exception) -> str:
    return f"{type(fault).__name__}: {str(fault).strip().partition(chr(10))[0][:100]}"


def contestants(name: str, method: Method, case: Case) -> tuple[dict[str, Job], dict[str, str]]:
    def ours(model: Classifier) -> Job:
        def run() -> None:
            model.forget()
            method(model, case.x, case.target, case.rng, case.fitted)

        return run

    jobs, faults = {"salrun": ours(case.model)}, {}
    if name in FORWARD_ONLY:
        jobs["salrun fast"] = ours(inference_copy(case.model, case.x[:4], compile="off"))
    for peer, build in PEERS.get(name, {}).items():
        try:
            jobs[peer] = build(case, method)
        except Exception as fault:
            faults[peer] = _said(fault)
    return jobs, faults


def measure(name: str, case: Case, repeats: int, device: str, limit: float = float("inf")) -> dict[str, Any]:
    """One row of the table."""
    work = dict(case.work.get(name, {}))
    few = case.first(work.pop("images", case.batch))
    method = load_method(name, work)
    passes = floor(name, method, few)
    jobs, faults = contestants(name, method, few)
    times, failed = take_turns({**{kind: PASSES[kind](case) for kind in passes}, **jobs}, repeats, device, limit)
    faults |= failed
    least = sum(count * times[kind] for kind, count in passes.items()) * few.batch / case.batch
    best = min((times[k] for k in ("salrun", "salrun fast") if k in times), default=float("nan"))
    peers = {peer: times[peer] for peer in PEERS.get(name, {}) if peer in times}
    fastest = min(peers, key=lambda peer: peers[peer]) if peers else ""

    def rate(t: float | None) -> float | None:
        return few.batch / t if t else None

    return {
        "model": case.name,
        "method": name,
        "work": " ".join(f"{k}={v}" for k, v in work.items()),
        "images": few.batch,
        "batch": case.batch,
        "salrun": rate(times.get("salrun")),
        "salrun_fast": rate(times.get("salrun fast")),
        "floor": rate(least),
        "of_floor": least / best if passes else None,
        "peer": fastest,
        "peer_rate": rate(peers.get(fastest)),
        "times_peer": peers[fastest] / best if peers else None,
        "note": "; ".join(f"{who} fails: {why}" for who, why in faults.items()),
    }


# -- the report --------------------------------------------------------------------------------------------------------


def machine(device: str) -> dict[str, str]:
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "processor": cpu,
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "load at start": f"{os.getloadavg()[0]:.1f}",
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value).replace("|", "/")


def read(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of the table that is there, by network and method."""
    if not (out / "methods.csv").exists():
        return {}
    with (out / "methods.csv").open(newline="") as file:
        rows = [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return {(str(row["model"]), str(row["method"])): row for row in rows}


def _number(text: str) -> Any:
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        return text or None


def write_table(
    stem: Path, title: list[str], rows: list[dict[str, Any]], facts: dict[str, str], end: list[str]
) -> None:
    """stem.csv, and stem.md: the title, the machine, the table, what follows from it."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with stem.with_suffix(".csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    text = [*title, "", *(f"- {key}: {value}" for key, value in facts.items()), ""]
    text += ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    text += ["| " + " | ".join(shown(value) for value in row.values()) + " |" for row in rows]
    stem.with_suffix(".md").write_text("\n".join([*text, "", *end]) + "\n")


def write(rows: list[dict[str, Any]], facts: dict[str, str], repeats: int, out: Path) -> None:
    title = [
        "# Speed of the methods",
        "",
        f"Images per second; medians of up to {repeats} interleaved repetitions. `floor`: what a method cannot avoid,",
        "eager, timed in the same run: forward and backward passes, the further passes through the layers that a rule",
        "asks for (alpha-beta rules and Deep Taylor: the parts of each sum; RevealCancel: one there and one back), and",
        "for IBA the noise. `salrun_fast`: the same method on the inference copy of the network (BatchNorm folded,",
        "channels last; not compiled). `of_floor` and `times_peer`: of the faster of the two. `images` at a time, in",
        "passes of `batch`.",
    ]
    slow = [r for r in rows if (r["of_floor"] or 1) < GOAL or (r["times_peer"] or 1) < 1]
    end = [f"## Below {GOAL} of the floor, or slower than a peer", ""]
    end += [
        f"- {r['model']}, {r['method']}: {shown(r['of_floor'])} of the floor, {shown(r['times_peer']) or 'no'} x peer"
        for r in slow
    ] or ["None."]
    write_table(out / "methods", title, rows, facts, end)


def main(argv: list[str] | None = None) -> int:
    names = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "captum")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for methods.csv and methods.md")
    parser.add_argument("--quick", action="store_true", help="a tiny network, one repetition: does it run at all?")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="no repetition of a row begins after this time")
    parser.add_argument("--missing", action="store_true", help="only what the table in --out does not have")
    parser.add_argument("--threads", type=int, help="of torch; default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="of smerf_complex, tomsett_cifar10, resnet50_224")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    repeats = 1 if options.quick else options.repeats
    facts = machine(options.device)
    known = read(options.out)
    measured: list[dict[str, Any]] = []
    for case in (quick_cases if options.quick else full_cases)(options.device):
        if options.models and case.name not in options.models:
            continue
        for name in options.methods:
            if options.missing and known.get((case.name, name), {}).get("salrun"):
                continue
            row = known[case.name, name] = measure(name, case, repeats, options.device, options.seconds)
            measured.append(row)
            print(", ".join(f"{key} {shown(value)}" for key, value in row.items() if value), flush=True)
            write(list(known.values()), facts, repeats, options.out)
    broken = [row for row in measured if row["salrun"] is None]
    for row in broken:
        print(f"{row['method']} failed on {row['model']}: {row['note']}", file=sys.stderr)
    return 1 if broken or not known else 0


if __name__ == "__main__":
    sys.exit(main())
