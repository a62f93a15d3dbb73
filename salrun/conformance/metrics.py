"""What every metric must do, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from salrun.conformance import NotApplicable, require
from salrun.conformance.device import DeviceClean
from salrun.conformance.methods import generators, halved, uniform
from salrun.errors import SalrunError
from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import FLAGS, NAN_MAP, OK, PRIMARY, SECONDARY, Metric, Scene, Score
from salrun.views import view

SHAPE, CLASSES, BATCH, TOLERANCE = (3, 32, 32), 4, 5, 1e-9
NEEDS = {"model", "masks", "explain", "raw", "other_map"}
# Scores of random pixel orders, which no map has a part in.
MAPLESS = ("_random", "_orderings", "_orders")


# -- the case ----------------------------------------------------------------------------------------------------------


def make_model() -> Classifier:
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        head = nn.Linear(64, CLASSES)
        net = nn.Sequential(
            *(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), head),
        )
        head.weight.data *= 4
    return Classifier(net, (0.45, 0.5, 0.4), (0.25, 0.2, 0.3), name="net").double().eval()


def explain(x: Tensor, target: Tensor | None = None) -> Tensor:
    """A method of its own: image by image, smooth, in [0, 1]; of another class, another map."""
    level = x.mean((1, 2, 3), keepdim=True)
    return view("minmax")(x - level if target is None else x**2 - level * target.view(-1, 1, 1, 1))


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

    def map_for(self, metric: Metric) -> Tensor:
        """What the metric reads: the raw attribution, or a plane of it; its own copy."""
        return self.raw.clone() if "raw" in metric.needs else view("minmax")(self.raw)

    def run(self, metric: Metric, plane: Tensor | None = None, **scene: Any) -> dict[str, Score]:
        plane = self.map_for(metric) if plane is None else plane

        def other_map(name: str, x: Tensor | None = None) -> Tensor:
            return explain(1 - (self.scene.x if x is None else x) ** 2)

        scores = metric(plane, replace(self.scene, explain=explain, other_map=other_map, memo={}, **scene))
        return scores if isinstance(scores, dict) else {"": scores}


def rows(scores: dict[str, Score], index: slice | Tensor) -> dict[str, Score]:
    """The scores of some of the images."""
    return {
        name: replace(s, value=s.value[index], flag=s.flag[index], curve=None if s.curve is None else s.curve[index])
        for name, s in scores.items()
    }


def agree(result: dict[str, Score], expected: dict[str, Score], when: str) -> None:
    """The same values, flags and curves."""
    require(list(result) == list(expected), f"scores {list(result)} {when}, {list(expected)} before")
    for name, want in expected.items():
        got, score = result[name], f"score '{name}'" if name else "the score"
        require(close(got.value, want.value), f"{score} is {shown(got.value)} {when}, {shown(want.value)} before")
        require(torch.equal(got.flag, want.flag), f"flags of {score} are {flags(got)} {when}, {flags(want)} before")
        if want.curve is not None:
            require(got.curve is not None and close(got.curve, want.curve), f"the curve of {score} changes {when}")


def close(result: Tensor, expected: Tensor) -> bool:
    return result.shape == expected.shape and torch.allclose(result, expected, TOLERANCE, TOLERANCE, equal_nan=True)


def shown(values: Tensor) -> str:
    return "[" + ", ".join(f"{v:.6g}" for v in values.tolist()) + "]"


def flags(score: Score) -> str:
    return ", ".join(FLAGS[f] for f in score.flag.tolist())


def of_the_map(scores: dict[str, Score]) -> dict[str, Score]:
    return {name: score for name, score in scores.items() if not name.endswith(MAPLESS)}


# -- the checks --------------------------------------------------------------------------------------------------------


def contract(metric: Metric, case: Case) -> None:
    """One float64 value in `range` and one known flag per image; a NaN says why; it says what it is and needs."""
    require(metric.direction in ("higher", "lower", "none"), f"direction is '{metric.direction}'")
    require(metric.needs <= NEEDS, f"needs {sorted(metric.needs - NEEDS)}; known: {', '.join(sorted(NEEDS))}")
    require(metric.__doc__ and not metric.__doc__.startswith(f"{type(metric).__name__}("), "it has no docstring")
    low, high = metric.range
    scores = case.run(metric)
    require(scores, "it returns no score")
    for score in scores.values():
        shapes = (tuple(score.value.shape), tuple(score.flag.shape))
        require(shapes == ((BATCH,), (BATCH,)), f"value and flag have shapes {shapes} for {BATCH} images")
        require(score.value.dtype == torch.float64, f"values are {score.value.dtype}, not float64")
        require(score.flag.dtype == torch.uint8, f"flags are {score.flag.dtype}, not uint8")
        require(score.flag.max() < len(FLAGS), f"unknown flag {int(score.flag.max())}")
        require(not score.value.requires_grad, "values require a gradient")
        require(not (score.value.isnan() & (score.flag == OK)).any(), "a NaN is flagged ok")
        values = score.value[~score.value.isnan()]
        require(
            ((values >= low - TOLERANCE) & (values <= high + TOLERANCE)).all(), f"{shown(values)} leaves {low}..{high}"
        )
    good = [score.value.isfinite().any() and (score.flag == OK).any() for score in scores.values()]
    require(any(good), "no score of ordinary maps is ok")


def batch_mates(metric: Metric, case: Case) -> None:
    """Garbage, zeros or NaN in the other images and maps change nothing for image 2."""
    before, others = case.run(metric), (torch.arange(BATCH) != 2).view(-1, 1, 1, 1)
    noise = 1e6 * uniform(BATCH, *SHAPE, seed=10)
    for what, bad in {"garbage": noise, "zeros": 0 * noise, "NaN": torch.nan * noise}.items():
        mixed = case.at(slice(None), torch.where(others, bad, case.raw), torch.where(others, bad, case.scene.x))
        agree(rows(mixed.run(metric), slice(2, 3)), rows(before, slice(2, 3)), f"beside {what}")


def order(metric: Metric, case: Case) -> None:
    """The order of the images does not matter."""
    shuffled = torch.tensor([4, 2, 0, 1, 3])
    agree(case.at(shuffled).run(metric), rows(case.run(metric), shuffled), "in another order")


def batch_size(metric: Metric, case: Case) -> None:
    """An image's score is the same alone, with two others, or with all."""
    whole = case.run(metric)
    for start, stop in ((0, 1), (1, 2), (2, 5)):
        part = slice(start, stop)
        agree(case.at(part).run(metric), rows(whole, part), f"in a batch of {stop - start}")


def chunk_size(metric: Metric, case: Case) -> None:
    """`scene.chunk` bounds memory and changes no score."""
    whole = case.run(metric)
    for chunk in (1, 3, 999):
        agree(case.run(metric, chunk=chunk), whole, f"with chunk={chunk}")


def nan_map(metric: Metric, case: Case) -> None:
    """One NaN or infinity in a map: NaN and the flag nan_map, for that image alone."""
    before, keep = case.run(metric), torch.arange(BATCH) != 1
    for bad in (torch.nan, torch.inf):
        plane = case.map_for(metric)
        plane[1, 0, 4, 5] = bad
        scores = of_the_map(case.run(metric, plane))
        for score in scores.values():
            require(score.value[1].isnan(), f"a map with {bad} scores {score.value[1]:.6g}")
            require(score.flag[1] == NAN_MAP, f"a map with {bad} is flagged {FLAGS[int(score.flag[1])]}, not nan_map")
        agree(rows(scores, keep), rows(of_the_map(before), keep), f"beside a map with {bad}")


def constant_map(metric: Metric, case: Case) -> None:
    """All zeros, or all the same: flagged, whatever the value, and the neighbours are unmoved."""
    before, keep = case.run(metric), torch.arange(BATCH) != 3
    for level in (0.0, 0.3, 1.0):
        plane = case.map_for(metric)
        plane[3] = level
        scores = of_the_map(case.run(metric, plane))
        for score in scores.values():
            require(score.flag[3] != OK, f"a map of {level} everywhere is flagged ok")
        agree(rows(scores, keep), rows(of_the_map(before), keep), f"beside a map of {level}")


def float32_maps(metric: Metric, case: Case) -> None:
    """A float32 map of a float64 model is read in float64."""
    for score in case.run(metric, case.map_for(metric).float()).values():
        require(score.value.dtype == torch.float64, f"values are {score.value.dtype}, not float64")


def several_channels(metric: Metric, case: Case) -> None:
    """A map of several channels, where a plane is read, is a SalrunError that speaks of views."""
    if "raw" in metric.needs:
        raise NotApplicable("it reads raw attributions")
    try:
        case.run(metric, case.raw)
    except SalrunError as fault:
        said = str(fault)
        require("plane" in said and "view" in said, f"the error does not speak of planes and views: {fault}")
    else:
        require(False, "a map of 3 channels is taken without a word (salrun.metrics.common.as_plane refuses it)")


def seed(metric: Metric, case: Case) -> None:
    """The same numbers bit for bit, whatever the global generators did, which are left alone."""
    first = case.run(metric)
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        before = generators()
        for name, score in case.run(metric).items():
            same = torch.equal(score.value.nan_to_num(-9), first[name].value.nan_to_num(-9))
            require(same, f"{shown(score.value)} the second time, {shown(first[name].value)} the first")
        require(before == generators(), "it draws from a global random generator")


def inputs_untouched(metric: Metric, case: Case) -> None:
    """Maps, images, masks, weights, modes and gradients are as before."""
    plane, scene = case.map_for(metric), case.scene
    tensors = (plane, scene.x, *scene.masks.values(), *scene.model.state_dict().values())
    copies = [t.clone() for t in tensors]
    mode = [module.training for module in scene.model.modules()]
    case.run(metric, plane)
    require(all(map(torch.equal, copies, tensors)), "it writes into what it was given")
    require(mode == [module.training for module in scene.model.modules()], "it changes the model's mode")
    flags_kept = all(p.grad is None and p.requires_grad for p in scene.model.parameters())
    require(flags_kept, "it leaves gradients or changes requires_grad")


def without_grad(metric: Metric, case: Case) -> None:
    """Works under torch.no_grad()."""
    expected = case.run(metric)
    with torch.no_grad():
        agree(case.run(metric), expected, "under torch.no_grad()")


def device_clean(metric: Metric, case: Case) -> None:
    """Every new tensor names its device; nothing is copied to the host or drawn from a global generator.

    Nor where it is given a copy of the model in half precision.
    """
    plane, half = case.map_for(metric), halved(case.scene.model)
    case.run(metric, plane)  # shared tables are made once
    with DeviceClean():
        case.run(metric, plane)
        case.run(metric, plane, model=half)


CHECKS: list[Callable[[Metric, Case], None]] = [
    *(contract, batch_mates, order, batch_size, chunk_size, nan_map, constant_map, float32_maps, several_channels),
    *(seed, inputs_untouched, without_grad, device_clean),
]
