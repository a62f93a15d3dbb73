"""What every metric must do, whoever wrote it. Found in conf/metrics/*.yaml: a new metric is covered at once."""

from __future__ import annotations

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
from salrun.types import FLAGS, NAN_MAP, OK, PRIMARY, SECONDARY, Metric, Scene, Score
from salrun.views import VIEWS, view
from tests.conformance.device_mode import DeviceClean

CONF = Path(__file__).parents[2] / "conf" / "metrics"
PROMISED = {
    *("pafl", "safl", "pmafl", "smafl", "piou", "siou", "pointing_game"),
    *("aopc_morf", "aopc_lerf", "faithfulness", "insertion", "deletion", "pixel_flipping", "monotonicity"),
    *("average_drop", "average_increase", "average_gain", "local_accuracy", "completeness"),
    *("max_sensitivity", "avg_sensitivity", "sparseness", "complexity", "effective_complexity", "map_similarity"),
}
RESERVED = {"view", "variants"}
# Hyper-parameters that only cost time, wherever a metric has them.
QUICK = {"levels": [2, 5], "n_pixels": 12, "n_samples": 3, "n_draws": 3, "groups": 6, "n_random": 2, "grid": 6}
# Scores of random pixel orders, which no map has a part in.
MAPLESS = ("_random", "_orderings")
# Definitions that no configuration file selects.
MORE = {
    "monotonicity": [{"definition": "arya"}, {"definition": "nguyen"}],
    "effective_complexity": [{"definition": "noise_mask"}, {"definition": "noise_mask", "search": "sweep"}],
    "max_sensitivity": [{"neighbourhood": "ball", "denominator": "image"}],
    "pointing_game": [{"tolerance": 3}],
    "pafl": [{"roi": "ink"}],
}
NOT_DEVICE_CLEAN = {"map_similarity": "HOG comes from scikit-image on the CPU"}
SHAPE, CLASSES, BATCH, TOLERANCE = (3, 32, 32), 4, 5, 1e-9


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@lru_cache
def make_model() -> Classifier:
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        net = nn.Sequential(
            *(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, CLASSES)),
        )
        net[6].weight.data *= 4
    return Classifier(net, (0.45, 0.5, 0.4), (0.25, 0.2, 0.3), name="net").double().eval()


def explain(x: Tensor) -> Tensor:
    """A method of its own: image by image, smooth, in [0, 1]."""
    return view("minmax")(x - x.mean((1, 2, 3), keepdim=True))


class Case:
    """Raw attributions of BATCH images and everything a metric may look at; `at` is the case of some of the images."""

    def __init__(self) -> None:
        self.raw = uniform(BATCH, *SHAPE, seed=1) - 0.5
        boxes = {name: torch.zeros(BATCH, *SHAPE[1:], dtype=torch.bool) for name in ("text", "box")}
        for b in range(BATCH):
            boxes["text"][b, 2 + b : 12 + b, 3:12] = True
            boxes["box"][b, 20:26, 14 + b : 20 + b] = True
        target = torch.tensor([3, 0, 2, 1, 1])
        self.scene = Scene(
            model=make_model(),
            x=uniform(BATCH, *SHAPE, seed=2),
            y=target,
            target=target,
            rng=Draws.of(7, [f"image{b}" for b in range(BATCH)]),
            masks={**boxes, **{f"{k}_ink": v & (uniform(BATCH, *SHAPE[1:], seed=3) > 0.4) for k, v in boxes.items()}},
            roles={
                "text": torch.tensor([PRIMARY, SECONDARY, PRIMARY, SECONDARY, PRIMARY], dtype=torch.int8),
                "box": torch.tensor([SECONDARY, PRIMARY, SECONDARY, PRIMARY, PRIMARY], dtype=torch.int8),
            },
        )

    def at(self, index: slice | Tensor, raw: Tensor | None = None, x: Tensor | None = None) -> Case:
        part, scene = Case.__new__(Case), self.scene
        part.raw = (self.raw if raw is None else raw)[index]
        part.scene = replace(
            scene,
            x=(scene.x if x is None else x)[index],
            y=scene.y[index],
            target=scene.target[index],
            rng=scene.rng[index],
            masks={name: mask[index] for name, mask in scene.masks.items()},
            roles={name: role[index] for name, role in scene.roles.items()},
            memo={},
        )
        return part

    def run(self, metric: Metric, plane: Tensor | None = None, **scene: object) -> dict[str, Score]:
        if plane is None:
            plane = self.raw if "raw" in metric.needs else view("minmax")(self.raw)
        other = explain(1 - self.scene.x**2)
        scores = metric(plane, replace(self.scene, explain=explain, other_map=lambda name: other, memo={}, **scene))
        return scores if isinstance(scores, dict) else {"": scores}


def config(name: str) -> dict:
    merged = OmegaConf.merge({"scale": "smoke", "budget": {}}, OmegaConf.load(CONF / f"{name}.yaml"))
    assert list(merged) == ["scale", "budget", name], "one key, the file's own name"
    return OmegaConf.to_container(merged, resolve=True)[name]  # type: ignore[index, return-value]


def variants(name: str) -> dict[str, dict]:
    """All instances of conf/metrics/<name>.yaml, and definitions it only mentions."""
    options = config(name)
    named = options.get("variants") or {"": {}}
    more = {"+".join(map(str, extra.values())): extra for extra in MORE.get(name, [])}
    return {variant: {**options, **extra} for variant, extra in {**named, **more}.items()}


def build(options: dict) -> Metric:
    module, _, cls_name = options["_target_"].rpartition(".")
    cls = getattr(import_module(module), cls_name)
    declared = {field.name for field in fields(cls)}
    quick = {key: value for key, value in QUICK.items() if key in declared}
    chosen = {key: value for key, value in options.items() if key in declared}
    return cls(**chosen | quick)


def agree(found: dict[str, Score], expected: dict[str, Score], rows: slice | Tensor = slice(None)) -> None:
    """Values, flags and curves of `rows` of the expected."""
    assert list(found) == list(expected)
    for name, want in expected.items():
        got = found[name]
        torch.testing.assert_close(got.value, want.value[rows], atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True)
        assert torch.equal(got.flag, want.flag[rows])
        if want.curve is not None:
            torch.testing.assert_close(got.curve, want.curve[rows], atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True)


# The checks -----------------------------------------------------------------------------------------------------------


def contract(metric: Metric, case: Case) -> None:
    assert metric.direction in ("higher", "lower", "none")
    assert metric.needs <= {"model", "masks", "explain", "raw", "other_map"}
    assert metric.source
    assert metric.__doc__
    low, high = metric.range
    scores = case.run(metric)
    assert scores
    for score in scores.values():
        assert score.value.shape == score.flag.shape == (BATCH,)
        assert score.value.dtype == torch.float64
        assert score.flag.dtype == torch.uint8
        assert score.flag.max() < len(FLAGS)
        assert not score.value.requires_grad
        assert not (score.value.isnan() & (score.flag == OK)).any(), "a NaN must say why"
        known = score.value[~score.value.isnan()]
        assert ((known >= low - TOLERANCE) & (known <= high + TOLERANCE)).all()
    assert any(score.value.isfinite().any() and (score.flag == OK).any() for score in scores.values())


def batch_mates(metric: Metric, case: Case) -> None:
    """Garbage or NaN in the other images and maps changes nothing for image 2."""
    before, others = case.run(metric), (torch.arange(BATCH) != 2).view(-1, 1, 1, 1)
    nan = torch.full((BATCH, *SHAPE), torch.nan, dtype=torch.float64)
    for garbage in (1e6 * uniform(BATCH, *SHAPE, seed=10), torch.zeros_like(nan), nan):
        mixed = case.at(slice(None), torch.where(others, garbage, case.raw), torch.where(others, garbage, case.scene.x))
        found = mixed.run(metric)
        agree({name: rows(score, slice(2, 3)) for name, score in found.items()}, before, slice(2, 3))


def rows(score: Score, index: slice) -> Score:
    curve = None if score.curve is None else score.curve[index]
    return replace(score, value=score.value[index], flag=score.flag[index], curve=curve)


def order(metric: Metric, case: Case) -> None:
    shuffled = torch.tensor([4, 2, 0, 1, 3])
    agree(case.at(shuffled).run(metric), case.run(metric), shuffled)


def batch_size(metric: Metric, case: Case) -> None:
    whole = case.run(metric)
    for start, stop in ((0, 1), (1, 2), (2, 5)):
        agree(case.at(slice(start, stop)).run(metric), whole, slice(start, stop))


def chunk_size(metric: Metric, case: Case) -> None:
    whole = case.run(metric)
    for chunk in (1, 3, 999):
        agree(case.run(metric, chunk=chunk), whole)


def of_the_map(scores: dict[str, Score]) -> list[tuple[str, Score]]:
    return [(name, score) for name, score in scores.items() if not name.endswith(MAPLESS)]


def nan_map(metric: Metric, case: Case) -> None:
    """One NaN or one infinity in a map: no value and the flag that says so, for that image alone."""
    before = case.run(metric)
    for bad in (torch.nan, torch.inf):
        plane = case.raw.clone() if "raw" in metric.needs else view("minmax")(case.raw)
        plane[1, 0, 4, 5] = bad
        for name, score in of_the_map(case.run(metric, plane)):
            assert score.value[1].isnan()
            assert score.flag[1] == NAN_MAP
            keep = torch.arange(BATCH) != 1
            torch.testing.assert_close(score.value[keep], before[name].value[keep], equal_nan=True)


def constant_map(metric: Metric, case: Case) -> None:
    """All zeros, or all the same: flagged, whatever the value, and the neighbours are unmoved."""
    before = case.run(metric)
    for level in (0.0, 0.3, 1.0):
        plane = case.raw.clone() if "raw" in metric.needs else view("minmax")(case.raw)
        plane[3] = level
        for name, score in of_the_map(case.run(metric, plane)):
            assert score.flag[3] != OK
            keep = torch.arange(BATCH) != 3
            torch.testing.assert_close(score.value[keep], before[name].value[keep], equal_nan=True)


def float32_maps(metric: Metric, case: Case) -> None:
    """A float32 map of a float64 model is read in float64."""
    plane = case.raw if "raw" in metric.needs else view("minmax")(case.raw)
    for score in case.run(metric, plane.float()).values():
        assert score.value.dtype == torch.float64


def several_channels(metric: Metric, case: Case) -> None:
    if "raw" in metric.needs:
        pytest.skip("reads raw attributions")
    with pytest.raises(SalrunError, match=r"plane .*view"):
        case.run(metric, case.raw)


def seed(metric: Metric, case: Case) -> None:
    """The same numbers bit for bit, whatever the global generators did, which are left alone."""
    first = case.run(metric)
    torch.manual_seed(1)
    before = [torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()]  # noqa: NPY002
    for name, score in case.run(metric).items():
        assert torch.equal(score.value.nan_to_num(-9), first[name].value.nan_to_num(-9))
    assert before == [torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()]  # noqa: NPY002


def inputs_untouched(metric: Metric, case: Case) -> None:
    plane = case.raw if "raw" in metric.needs else view("minmax")(case.raw)
    kept = [
        t.clone() for t in (plane, case.scene.x, *case.scene.masks.values(), *case.scene.model.state_dict().values())
    ]
    mode = [module.training for module in case.scene.model.modules()]
    case.run(metric, plane)
    now = (plane, case.scene.x, *case.scene.masks.values(), *case.scene.model.state_dict().values())
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))
    assert mode == [module.training for module in case.scene.model.modules()]
    assert all(p.grad is None and p.requires_grad for p in case.scene.model.parameters())


def without_grad(metric: Metric, case: Case) -> None:
    expected = case.run(metric)
    with torch.no_grad():
        agree(case.run(metric), expected)


def device_clean(metric: Metric, case: Case) -> None:
    plane = case.raw if "raw" in metric.needs else view("minmax")(case.raw)
    case.run(metric, plane)  # shared tables are made once
    with DeviceClean():
        case.run(metric, plane)


CHECKS: list[Callable[[Metric, Case], None]] = [
    contract,
    batch_mates,
    order,
    batch_size,
    chunk_size,
    nan_map,
    constant_map,
    float32_maps,
    several_channels,
    seed,
    inputs_untouched,
    without_grad,
    device_clean,
]
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
MATRIX = [(name, variant, check) for name in NAMES for variant in variants(name) for check in CHECKS]


@pytest.mark.parametrize(
    ("name", "variant", "check"), MATRIX, ids=[f"{n}-{v + '-' if v else ''}{c.__name__}" for n, v, c in MATRIX]
)
def test_metric(name: str, variant: str, check: Callable[[Metric, Case], None]) -> None:
    if name in NOT_DEVICE_CLEAN and check is device_clean:
        pytest.skip(NOT_DEVICE_CLEAN[name])
    check(build(variants(name)[variant]), Case())


@pytest.mark.parametrize("name", NAMES)
def test_configuration(name: str) -> None:
    """The file lists every parameter and nothing else, says what it is in its first line, and names a view."""
    options = config(name)
    metric = build(options)
    declared = {field.name for field in fields(metric)}
    assert declared == set(options) - RESERVED - {"_target_"}
    views = {key["view"] for key in (options, *(options.get("variants") or {}).values()) if "view" in key}
    assert views <= {*VIEWS, "method"}
    assert bool(views) != ("raw" in metric.needs)
    for variant in (options.get("variants") or {}).values():
        assert set(variant) <= declared | {"view"}
    first = (CONF / f"{name}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 20


def test_matrix_is_complete() -> None:
    assert set(NAMES) >= PROMISED
    instances = sum(max(1, len(config(name).get("variants") or {})) + len(MORE.get(name, [])) for name in NAMES)
    assert len(CHECKS) == 13
    assert len(MATRIX) == 13 * instances
    assert instances >= len(PROMISED) + 7 + 7  # two modes of six SMERF metrics, clipped gain, seven more definitions
    assert len(set(MATRIX)) == len(MATRIX)
