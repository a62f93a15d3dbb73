"""What every saliency method must do, whoever wrote it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from salrun.conformance import NotApplicable, require
from salrun.conformance.device import DeviceClean
from salrun.errors import SalrunError
from salrun.models.classifier import Classifier
from salrun.models.inference import InferenceCopy, Network, folded_copy
from salrun.models.vit import Block
from salrun.rng import Draws
from salrun.types import PRIMARY, ROLES, FeatureStats, Fitted, Method

SHAPE, CLASSES, BATCH = (3, 16, 16), 5, 7
TOLERANCE = 1e-9


# -- the case ----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Convolutions, in-place, reused and functional ReLUs, batch norm, a residual sum, max and average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.last = nn.Conv2d(6, 8, 3, padding=1)
        self.active = nn.ReLU()
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm(self.first(x))))
        x = self.relu(self.second(x)) + x
        x = self.active(self.last(x))
        return self.head(self.drop(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)))


class TokenNet(nn.Module):
    """A small transformer: patches of 4 pixels, a class token, two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.positions = nn.Parameter(torch.randn(1, 17, 6))
        self.blocks = nn.Sequential(Block(6, 2, 8), Block(6, 2, 8))
        self.norm = nn.LayerNorm(6)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(len(x), -1, -1), self.first(x).flatten(2).mT], 1)
        return self.head(self.drop(self.norm(self.blocks(tokens + self.positions))[:, 0]))


LAYERS = {Net: {"cam": "active", "iba": "second"}, TokenNet: {"cam": "blocks.1.norm1", "iba": "blocks.0"}}
MAPS = {Net: (6, 8, 8), TokenNet: (6, 4, 4)}  # of the IBA layer


def make_model(kind: type[Net | TokenNet]) -> Classifier:
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        net = kind()
        if isinstance(net, Net):
            nn.init.normal_(net.norm.get_buffer("running_mean"), std=0.1)
            nn.init.uniform_(net.norm.get_buffer("running_var"), 0.5, 1.5)
    return Classifier(net, (0.45, 0.5, 0.4), (0.25, 0.2, 0.3), LAYERS[kind], "net").double().eval()


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pictures(n: int, seed: int) -> Tensor:
    """Soft blobs with a little noise: segmentation finds parts in them."""
    blobs = nn.functional.interpolate(uniform(n, SHAPE[0], 3, 3, seed=seed), size=SHAPE[1:], mode="bicubic")
    return (blobs + 0.05 * uniform(n, *SHAPE, seed=seed + 1000)).clamp(0, 1)


class Case:
    """A model and everything a method may be given for BATCH images; `at` is the case of some of the images."""

    def __init__(self, kind: type[Net | TokenNet] = Net) -> None:
        self.model = make_model(kind)
        self.x = pictures(BATCH, seed=1)
        self.target = torch.tensor([3, 0, 4, 1, 1, 2, 0])
        self.rng = Draws.of(7, [f"image{b}" for b in range(BATCH)])
        self.background = pictures(3, seed=8)
        mean, std, active = (uniform(*MAPS[kind], seed=seed) for seed in (2, 3, 4))
        self.stats = FeatureStats(4 * mean - 2, 0.5 + std, active > 0.1, n=100)
        boxes = {name: uniform(BATCH, *SHAPE[1:], seed=seed) > 0.7 for name, seed in (("text", 5), ("box", 6))}
        self.masks = {**boxes, "text_ink": boxes["text"] & (uniform(BATCH, *SHAPE[1:], seed=9) > 0.5)}
        self.roles = {"text": torch.arange(BATCH) % len(ROLES), "box": torch.full((BATCH,), PRIMARY)}

    def at(self, index: slice | Tensor) -> Case:
        part = copy.copy(self)
        part.x, part.target, part.rng = self.x[index], self.target[index], self.rng[index]
        part.masks = {name: mask[index] for name, mask in self.masks.items()}
        part.roles = {name: role[index] for name, role in self.roles.items()}
        return part

    def to(self, device: str) -> Case:
        """On another device; what does not go by the batch (background, statistics) as well."""
        part = copy.copy(self)
        part.model = copy.deepcopy(self.model).to(device)
        part.x, part.target, part.background = (t.to(device) for t in (self.x, self.target, self.background))
        part.rng = Draws(self.rng.seed, self.rng.key.to(device))
        stats = self.stats
        part.stats = replace(
            stats, mean=stats.mean.to(device), std=stats.std.to(device), active=stats.active.to(device)
        )
        part.masks = {name: mask.to(device) for name, mask in self.masks.items()}
        part.roles = {name: role.to(device) for name, role in self.roles.items()}
        return part

    def single(self) -> Case:
        """In float32."""
        part = copy.copy(self)
        part.model, part.x = copy.deepcopy(self.model).float(), self.x.float()
        part.background = self.background.float()
        part.stats = replace(self.stats, mean=self.stats.mean.float(), std=self.stats.std.float())
        return part

    def run(self, method: Method, chunk: int | None = None) -> Tensor:
        self.model.forget()
        fitted = Fitted(self.background, self.stats, None, self.masks, self.roles, chunk)
        return method(self.model, self.x, self.target, self.rng, fitted)


def agree(result: Tensor, expected: Tensor, when: str) -> None:
    """The same maps, each up to TOLERANCE of its largest value."""
    require(result.shape == expected.shape, f"shape {tuple(result.shape)} {when}, {tuple(expected.shape)} before")
    require(torch.isfinite(expected).all(), "the map has values that are no finite numbers")
    scale = expected.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-30)
    off = ((result - expected).abs() / scale).flatten(1).amax(1)
    worst = int(off.nan_to_num(torch.inf).argmax())
    require((off <= TOLERANCE).all(), f"image {worst} changes by {off[worst]:.1e} of its largest value {when}")


def case_of(method: Method) -> Case:
    """What a method is tried on: a network of convolutions, or a transformer where it reads attention."""
    return Case(TokenNet if "attention" in method.needs else Net)


def model_free(method: Method, case: Case) -> bool:
    return method.passes(case.model, SHAPE) == 0


# -- the checks --------------------------------------------------------------------------------------------------------


def shape_and_dtype(method: Method, case: Case) -> None:
    """(B, C, H, W) or (B, 1, H, W), finite, detached, of the images' dtype and device; not negative if not `signed`."""
    raw = case.run(method)
    allowed = {(BATCH, *SHAPE), (BATCH, 1, *SHAPE[1:])}
    require(tuple(raw.shape) in allowed, f"shape {tuple(raw.shape)} for images {tuple(case.x.shape)}")
    require(raw.dtype == case.x.dtype, f"{raw.dtype} maps of {case.x.dtype} images")
    require(raw.device == case.x.device, f"the map is on {raw.device}, the images on {case.x.device}")
    require(not raw.requires_grad, "the map still requires a gradient: detach it")
    require(torch.isfinite(raw).all(), "values that are no finite numbers")
    require(method.signed or (raw >= 0).all(), "negative values, though `signed` is False")


def not_trivial(method: Method, case: Case) -> None:
    """Some map has a largest and a smallest value."""
    raw = case.run(method).flatten(1)
    require((raw.amax(1) > raw.amin(1)).any(), "every map is constant")


def float32(method: Method, case: Case) -> None:
    """Works in single precision too, up to the odd ReLU that rounding turns over."""
    expected, raw = case.run(method), case.single().run(method)
    require(raw.dtype == torch.float32, f"{raw.dtype} maps of float32 images")
    scale = expected.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-30)
    off = ((raw - expected).abs() / scale).mean()
    require(off <= 1e-3, f"float32 and float64 maps differ by {off:.1e} of their largest value on average")


def target_matters(method: Method, case: Case) -> None:
    """Another target gives another map."""
    if model_free(method, case):
        raise NotApplicable("it looks at no model")
    if not method.sees_class:
        raise NotApplicable("it asks for no class")
    before = case.run(method)
    case.target = (case.target + 1) % CLASSES
    require((before - case.run(method)).abs().max() > 0, "the map is the same for another class")


def targets_are_per_image(method: Method, case: Case) -> None:
    """Another target for image 2 changes image 2 and nothing else."""
    before, changed = case.run(method), torch.arange(BATCH) == 2
    case.target = torch.where(changed, (case.target + 1) % CLASSES, case.target)
    agree(case.run(method)[~changed], before[~changed], "when another image has another target")


def wrong_number_of_targets(method: Method, case: Case) -> None:
    """Too few or too many targets are a SalrunError that says so, never truncated or broadcast."""
    if model_free(method, case):
        raise NotApplicable("it looks at no target")
    right = case.target
    for wrong in (right[:1], right[:-1], torch.cat([right, right])):
        case.target = wrong
        try:
            case.run(method)
        except SalrunError as fault:
            require("target" in str(fault), f"the error does not speak of targets: {fault}")
        except Exception as fault:
            require(False, f"{len(wrong)} targets for {BATCH} images raise {type(fault).__name__}, not SalrunError")
        else:
            require(False, f"{len(wrong)} targets for {BATCH} images are taken without a word")


def batch_size(method: Method, case: Case) -> None:
    """An image's map is the same in a batch of 1, 3 or 7."""
    whole = case.run(method)
    for size in (1, 3):
        parts = [case.at(slice(start, start + size)).run(method) for start in range(0, BATCH, size)]
        agree(torch.cat(parts), whole, f"in batches of {size} instead of {BATCH}")


def chunk_size(method: Method, case: Case) -> None:
    """`fitted.chunk` bounds memory and changes no map."""
    whole = case.run(method)
    for chunk in (1, 5, 999):
        agree(case.run(method, chunk), whole, f"with chunk={chunk}")


def order(method: Method, case: Case) -> None:
    """The order of the images does not matter."""
    shuffled = torch.tensor([4, 2, 6, 0, 1, 5, 3])
    agree(case.at(shuffled).run(method), case.run(method)[shuffled], "in another order")


def batch_mates(method: Method, case: Case) -> None:
    """Garbage in the other images changes nothing; nor does NaN, which stays where it is."""
    before, others = case.run(method), torch.arange(BATCH) != 2
    nan = torch.full((BATCH, *SHAPE), torch.nan, dtype=torch.float64)
    for what, garbage in (("garbage", uniform(BATCH, *SHAPE, seed=10)), ("NaN", nan)):
        mixed = case.at(slice(None))
        mixed.x = torch.where(others.view(-1, 1, 1, 1), garbage, case.x)
        agree(mixed.run(method)[2:3], before[2:3], f"beside images of {what}")


def nan_image(method: Method, case: Case) -> None:
    """The map of an image that is not a number is not a number: never a silent zero."""
    if model_free(method, case):
        raise NotApplicable("it looks at no model")
    case.x[1] = torch.nan
    raw = case.run(method)
    require(raw[1].isnan().any(), "an image of NaN gets a map of numbers")
    require(torch.isfinite(raw[[0, 2]]).all(), "NaN spreads to other images")


def model_untouched(method: Method, case: Case) -> None:
    """Weights, modes, hooks, requires_grad, gradients, images and global generators are as before, also after an error.

    The error is a target that does not exist, which must be one.
    """
    net: Any = case.model.module
    net.drop.train()
    net.drop.p = 0.0
    net.head.weight.requires_grad_(False)
    net.first.weight.grad = torch.ones_like(net.first.weight)
    before = state_of(case)
    case.run(method)
    require(state_of(case) == before, f"changed: {_changed(before, state_of(case))}")
    case.target = case.target + CLASSES
    try:
        case.run(method)
    except Exception:
        case.target = case.target - CLASSES
        require(state_of(case) == before, f"changed after an error: {_changed(before, state_of(case))}")
    else:
        require(
            model_free(method, case) or not method.sees_class, "a target that does not exist is taken without an error"
        )


def state_of(case: Case) -> dict[str, object]:
    """Everything a method could leave behind."""

    def hooks(module: nn.Module) -> list[object]:
        names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return [type(module).__name__, type(module).forward, *(list(vars(module)[n]) for n in names)]

    parameters = dict(case.model.named_parameters())
    return {
        "modes": [m.training for m in case.model.modules()],
        "hooks": [hooks(m) for m in case.model.modules()],
        "weights": [[n, id(p), p.tolist()] for n, p in parameters.items()],
        "requires_grad": [p.requires_grad for p in parameters.values()],
        "gradients": [None if p.grad is None else p.grad.tolist() for p in parameters.values()],
        "buffers": [[n, b.tolist()] for n, b in case.model.named_buffers()],
        "global generators": generators(),
        "images": [case.x.tolist(), case.x.requires_grad, case.x.grad],
        "targets": case.target.tolist(),
        "grad mode": torch.is_grad_enabled(),
    }


def generators() -> list[object]:
    """The state of the global random generators."""
    return [torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()]  # noqa: NPY002


def _changed(before: dict[str, object], after: dict[str, object]) -> str:
    return ", ".join(name for name in before if before[name] != after[name])


def seed(method: Method, case: Case) -> None:
    """The same seed gives the same map bit for bit, whatever the global generators did."""
    first = case.run(method)
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        require(torch.equal(first, case.run(method)), "the second map differs from the first")


def without_grad(method: Method, case: Case) -> None:
    """Works under torch.no_grad() and on images that require a gradient, and leaves none behind."""
    expected = case.run(method)
    with torch.no_grad():
        require(torch.equal(case.run(method), expected), "another map under torch.no_grad()")
    case.x.requires_grad_(True)
    raw = case.run(method)
    require(not raw.requires_grad, "the map requires a gradient")
    require(case.x.grad is None, "the images got a gradient")
    agree(raw, expected, "when the images require a gradient")


def device_clean(method: Method, case: Case) -> None:
    """Every new tensor names its device; nothing is copied to the host or drawn from a global generator."""
    with DeviceClean():
        case.run(method)


def runs_on_meta(method: Method, case: Case) -> None:
    """Runs on another device (torch's `meta`), also inside autograd Functions."""
    expected, raw = case.run(method), case.to("meta").run(method)
    require(raw.device.type == "meta", f"the map is on {raw.device}, the images on meta")
    require(raw.shape == expected.shape, f"shape {tuple(raw.shape)} on meta, {tuple(expected.shape)} on the CPU")


def halved(model: Classifier, gradients: bool = False) -> InferenceCopy:
    """What `numerics=fast` (`gradients`: `fast_gradients`) gives methods and metrics on a CUDA device."""
    network = Network(copy.deepcopy(model.module).bfloat16(), dtype=torch.bfloat16, tf32=not gradients)
    return InferenceCopy(model, network, ["bfloat16"] if gradients else ["bfloat16", "tf32"], gradients)


def half_precision(method: Method, case: Case) -> None:
    """With `forward_only` or `averages_passes`, a copy in half precision is explained nearly as the model."""
    if not (method.forward_only or method.averages_passes):
        raise NotApplicable("it always explains the model itself")
    expected = case.run(method)
    case.model = halved(case.model, gradients=method.averages_passes)
    with nullcontext() if method.on_host else DeviceClean():
        raw = case.run(method)
    require(raw.dtype == case.x.dtype, f"{raw.dtype} maps of {case.x.dtype} images")
    scale = expected.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-30)
    off = ((raw - expected).abs() / scale).mean()
    require(
        0 < off <= (0.05 if method.subtracts_scores else 0.02),
        f"maps in half precision differ by {off:.1e} of their largest value on average",
    )


def folded(method: Method, case: Case) -> None:
    """With `foldable`, a copy whose batch norms are folded into the layers before them is explained as the model; with
    `layout_free` one whose layers are the same, in another memory layout."""
    if not (method.foldable or method.layout_free):
        raise NotApplicable("it explains the model itself")
    whole = dict(case.model.module.named_modules())
    read, step = (whole, "channels_last") if method.layout_free else ((getattr(method, "layer", ""),), "folded")
    expected, keep = case.run(method), {case.model.layers.get(name, name) for name in read}
    copied = folded_copy(case.model, case.x, keep)
    require(step in getattr(copied, "steps", ()), f"the copy of the network is not {step}")
    case.model = copied
    agree(case.run(method), expected, f"on a copy that is {step}")


CHECKS: list[Callable[[Method, Case], None]] = [
    *(shape_and_dtype, not_trivial, float32, target_matters, targets_are_per_image, wrong_number_of_targets),
    *(batch_size, chunk_size, order, batch_mates, nan_image, model_untouched, seed, without_grad),
    *(device_clean, runs_on_meta, half_precision, folded),
]
