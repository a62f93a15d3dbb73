"""What every method must do, whoever wrote it. Found in conf/methods/*.yaml: a new method is covered at once."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import PRIMARY, ROLES, FeatureStats, Fitted, Method
from tests.conformance.device_mode import DeviceClean, DeviceDirtyError

CONF = Path(__file__).parents[2] / "conf" / "methods"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
PROMISED = {
    *("gradient", "sensitivity", "input_x_gradient", "smoothgrad", "integrated_gradients"),
    *("deconvnet", "guided_backprop", "deep_taylor", "lrp_z", "lrp_epsilon", "lrp_a_flat", "lrp_b_flat"),
    *("deeplift_rescale", "deeplift_reveal_cancel", "deep_shap", "rise", "lime", "iba"),
    *("grad_cam", "grad_cam_pp", "score_cam", "fake_cam", "edge", "random", "oracle", "all_lit", "captum"),
}
RESERVED = ("view", "target", "label")
# Hyper-parameters that only cost time, wherever a method has them.
QUICK = {"n_masks": 12, "n_samples": 12, "steps": 6, "copies": 3, "segmentation": "slic", "n_segments": 6}
# Stages that are declared to run on the CPU or in a foreign library.
NOT_DEVICE_CLEAN = {"captum": "a foreign library", "lime": "superpixels come from scikit-image on the CPU"}
SHAPE, CLASSES, BATCH = (3, 16, 16), 5, 7
TOLERANCE = 1e-9


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


def make_model() -> Classifier:
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        net = Net()
        nn.init.normal_(net.norm.running_mean, std=0.1)
        nn.init.uniform_(net.norm.running_var, 0.5, 1.5)
    layers = {"cam": "active", "iba": "second"}
    return Classifier(net, (0.45, 0.5, 0.4), (0.25, 0.2, 0.3), layers, "net").double().eval()


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pictures(n: int, seed: int) -> Tensor:
    """Soft blobs with a little noise: segmentation finds parts in them."""
    blobs = nn.functional.interpolate(uniform(n, SHAPE[0], 3, 3, seed=seed), size=SHAPE[1:], mode="bicubic")
    return (blobs + 0.05 * uniform(n, *SHAPE, seed=seed + 1000)).clamp(0, 1)


def stats_to(fitted: Fitted, **where: object) -> FeatureStats:
    stats = fitted.feature_stats
    active = stats.active.to(where.get("device", stats.active.device))
    return FeatureStats(stats.mean.to(**where), stats.std.to(**where), active, stats.n)


class Case:
    """A model and everything a method may be given for BATCH images; `at` is the case of some of the images."""

    def __init__(self) -> None:
        self.model = make_model()
        self.x = pictures(BATCH, seed=1)
        self.target = torch.tensor([3, 0, 4, 1, 1, 2, 0])
        self.rng = Draws.of(7, [f"image{b}" for b in range(BATCH)])
        stats = [4 * uniform(6, 8, 8, seed=2) - 2, 0.5 + uniform(6, 8, 8, seed=3), uniform(6, 8, 8, seed=4) > 0.1]
        boxes = {name: uniform(BATCH, *SHAPE[1:], seed=seed) > 0.7 for name, seed in (("text", 5), ("box", 6))}
        roles = {"text": torch.arange(BATCH) % len(ROLES), "box": torch.full((BATCH,), PRIMARY)}
        self.fitted = Fitted(
            background=pictures(3, seed=8),
            feature_stats=FeatureStats(*stats, n=100),
            masks={**boxes, "text_ink": boxes["text"] & (uniform(BATCH, *SHAPE[1:], seed=9) > 0.5)},
            roles=roles,
        )

    def at(self, index: slice | Tensor) -> Case:
        part = copy.copy(self)
        part.x, part.target, part.rng = self.x[index], self.target[index], self.rng[index]
        part.fitted = replace(
            self.fitted,
            masks={name: mask[index] for name, mask in self.fitted.masks.items()},
            roles={name: role[index] for name, role in self.fitted.roles.items()},
        )
        return part

    def to(self, device: str) -> Case:
        """On another device; what does not go by the batch (background, statistics) as well."""
        part = self.at(slice(None))
        part.model = copy.deepcopy(self.model).to(device)
        part.x, part.target = self.x.to(device), self.target.to(device)
        part.rng = Draws(self.rng.seed, self.rng.key.to(device))
        part.fitted = Fitted(
            background=self.fitted.background.to(device),
            feature_stats=stats_to(self.fitted, device=device),
            masks={name: mask.to(device) for name, mask in self.fitted.masks.items()},
            roles={name: role.to(device) for name, role in self.fitted.roles.items()},
        )
        return part

    def run(self, method: Method, **fitted: object) -> Tensor:
        self.model.forget()
        return method(self.model, self.x, self.target, self.rng, replace(self.fitted, **fitted))


@lru_cache
def build(name: str) -> Method:
    """The method of conf/methods/<name>.yaml, with fewer samples."""
    if name == "captum":
        pytest.importorskip("captum")
    config = OmegaConf.merge({"scale": "smoke", "budget": {}}, OmegaConf.load(CONF / f"{name}.yaml"))
    assert list(config) == ["scale", "budget", name], "one key, the file's own name"
    options = {key: value for key, value in OmegaConf.to_container(config, resolve=True)[name].items()}
    module, _, cls = options.pop("_target_").rpartition(".")
    cls = getattr(import_module(module), cls)
    assert issubclass(cls, Method)
    declared = {field.name for field in fields(cls)}
    assert declared == set(options) - set(RESERVED), "the file lists every parameter"
    quick = {key: value for key, value in QUICK.items() if key in declared}
    return cls(**{key: value for key, value in options.items() if key not in RESERVED} | quick)


def agree(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    scale = expected.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-30)
    assert torch.isfinite(expected).all()
    assert ((found - expected).abs() / scale).max() <= TOLERANCE


def model_free(method: Method, case: Case) -> bool:
    return method.passes(case.model, SHAPE) == 0


# The checks -----------------------------------------------------------------------------------------------------------


def shape_and_dtype(method: Method, case: Case) -> None:
    raw = case.run(method)
    assert raw.shape in {(BATCH, *SHAPE), (BATCH, 1, *SHAPE[1:])}
    assert raw.dtype == case.x.dtype
    assert raw.device == case.x.device
    assert not raw.requires_grad
    assert torch.isfinite(raw).all()
    if not method.signed:
        assert (raw >= 0).all()


def not_trivial(method: Method, case: Case) -> None:
    raw = case.run(method)
    assert (raw.flatten(1).amax(1) > raw.flatten(1).amin(1)).any()


def float32(method: Method, case: Case) -> None:
    """In single precision too, up to the odd ReLU that rounding turns over."""
    expected, part = case.run(method), case.at(slice(None))
    single = {"background": case.fitted.background.float(), "feature_stats": stats_to(case.fitted, dtype=torch.float32)}
    part.model, part.x = copy.deepcopy(case.model).float(), case.x.float()
    raw = part.run(method, **single)
    assert raw.dtype == torch.float32
    scale = expected.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-30)
    assert ((raw - expected).abs() / scale).mean() <= 1e-3


def target_matters(method: Method, case: Case) -> None:
    if model_free(method, case):
        pytest.skip("looks at no model")
    before = case.run(method)
    case.target = (case.target + 1) % CLASSES
    assert (before - case.run(method)).abs().max() > 0


def targets_are_per_image(method: Method, case: Case) -> None:
    """Another target for image 2 changes image 2 and nothing else."""
    before, changed = case.run(method), torch.arange(BATCH) == 2
    case.target = torch.where(changed, (case.target + 1) % CLASSES, case.target)
    agree(case.run(method)[~changed], before[~changed])


def wrong_number_of_targets(method: Method, case: Case) -> None:
    if model_free(method, case):
        pytest.skip("looks at no target")
    right = case.target
    for wrong in (right[:1], right[:-1], torch.cat([right, right])):
        case.target = wrong
        with pytest.raises(SalrunError, match="target"):
            case.run(method)


def batch_size(method: Method, case: Case) -> None:
    whole = case.run(method)
    for size in (1, 3):
        parts = [case.at(slice(start, start + size)).run(method) for start in range(0, BATCH, size)]
        agree(torch.cat(parts), whole)


def chunk_size(method: Method, case: Case) -> None:
    whole = case.run(method)
    for chunk in (1, 5, 999):
        agree(case.run(method, chunk=chunk), whole)


def order(method: Method, case: Case) -> None:
    shuffled = torch.tensor([4, 2, 6, 0, 1, 5, 3])
    agree(case.at(shuffled).run(method), case.run(method)[shuffled])


def batch_mates(method: Method, case: Case) -> None:
    """Garbage in the other images changes nothing; nor does NaN, which stays where it is."""
    before, others = case.run(method), torch.arange(BATCH) != 2
    for garbage in (uniform(BATCH, *SHAPE, seed=10), torch.full((BATCH, *SHAPE), torch.nan, dtype=torch.float64)):
        mixed = case.at(slice(None))
        mixed.x = torch.where(others.view(-1, 1, 1, 1), garbage, case.x)
        agree(mixed.run(method)[2:3], before[2:3])


def nan_image(method: Method, case: Case) -> None:
    """A map of an image that is not a number is not a number: never a silent zero."""
    if model_free(method, case):
        pytest.skip("looks at no model")
    case.x[1] = torch.nan
    raw = case.run(method)
    assert raw[1].isnan().any()
    assert torch.isfinite(raw[[0, 2]]).all()


def model_untouched(method: Method, case: Case) -> None:
    """State, mode, hooks, requires_grad, gradients, images and global generators: as before, also after an error."""
    case.model.module.drop.train()
    case.model.module.drop.p = 0.0
    case.model.module.head.weight.requires_grad_(False)
    case.model.module.first.weight.grad = torch.ones_like(case.model.module.first.weight)
    before = fingerprint(case)
    case.run(method)
    assert fingerprint(case) == before
    case.target = case.target + CLASSES
    try:
        case.run(method)
    except Exception:
        case.target = case.target - CLASSES
        assert fingerprint(case) == before
    else:
        assert model_free(method, case), "a target that does not exist must be an error"


def fingerprint(case: Case) -> list[object]:
    def hooks(module: nn.Module) -> list[object]:
        names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return [type(module).__name__, module.training, type(module).forward, *(list(vars(module)[n]) for n in names)]

    def weights(name: str, p: Tensor) -> list[object]:
        return [name, id(p), p.requires_grad, p.tolist(), None if p.grad is None else p.grad.tolist()]

    state = [name + str(buffer.tolist()) for name, buffer in case.model.named_buffers()]
    generators = [torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()]  # noqa: NPY002
    inputs = [case.x.tolist(), case.x.requires_grad, case.x.grad, case.target.tolist()]
    model = [hooks(m) for m in case.model.modules()] + [weights(n, p) for n, p in case.model.named_parameters()]
    return [*model, *state, *generators, *inputs, torch.is_grad_enabled()]


def seed(method: Method, case: Case) -> None:
    """The same seed gives the same map bit for bit, whatever the global generators did."""
    first = case.run(method)
    torch.manual_seed(1)
    assert torch.equal(first, case.run(method))


def without_grad(method: Method, case: Case) -> None:
    expected = case.run(method)
    with torch.no_grad():
        assert torch.equal(case.run(method), expected)
    case.x.requires_grad_(True)
    raw = case.run(method)
    assert not raw.requires_grad
    assert case.x.grad is None
    agree(raw, expected)


def device_clean(method: Method, case: Case) -> None:
    with DeviceClean():
        case.run(method)


def runs_on_meta(method: Method, case: Case) -> None:
    expected, meta = case.run(method), case.to("meta")
    raw = meta.run(method)
    assert raw.device.type == "meta"
    assert raw.shape == expected.shape


CHECKS: list[Callable[[Method, Case], None]] = [
    shape_and_dtype,
    not_trivial,
    float32,
    target_matters,
    targets_are_per_image,
    wrong_number_of_targets,
    batch_size,
    chunk_size,
    order,
    batch_mates,
    nan_image,
    model_untouched,
    seed,
    without_grad,
    device_clean,
    runs_on_meta,
]
MATRIX = [(name, check) for name in NAMES for check in CHECKS]


@pytest.mark.parametrize(("name", "check"), MATRIX, ids=[f"{name}-{check.__name__}" for name, check in MATRIX])
def test_method(name: str, check: Callable[[Method, Case], None]) -> None:
    if name in NOT_DEVICE_CLEAN and check in (device_clean, runs_on_meta):
        pytest.skip(NOT_DEVICE_CLEAN[name])
    check(build(name), Case())


def test_the_matrix_is_whole() -> None:
    """Every promised method is there, and every method meets every check."""
    assert len(PROMISED) == 27
    assert set(NAMES) >= PROMISED
    assert len(CHECKS) == 16
    assert len(set(MATRIX)) == len(NAMES) * 16


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.zeros(3),
        lambda x: torch.tensor([1.0]),
        lambda x: torch.arange(4),
        lambda x: torch.rand(3, device="cpu"),
        lambda x: torch.randn_like(x),
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: bool(x.sum() > 0),
        lambda x: float(x.sum()),
        lambda x: int(x.sum()),
        lambda x: x.nonzero(),
        lambda x: 1 if (x > 0).all() else 0,
    ],
)
def test_device_mode_fails_on(call: Callable[[Tensor], object]) -> None:
    x = torch.ones(2, 2)
    with DeviceClean(), pytest.raises(DeviceDirtyError):
        call(x)
    with DeviceClean():
        torch.zeros(2, device=x.device) + torch.zeros_like(x) + torch.softmax(x, 0)
