"""Every metric of ours passes the suite that anybody's must (salrun.conformance). Found in conf/metrics/*.yaml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from salrun.config.parts import OF_METRIC, entry, metric_parts
from salrun.conformance import NotApplicable, apply, examine
from salrun.conformance.metrics import CHECKS, Case
from salrun.metrics.common import as_plane, scored
from salrun.types import OK, Metric, Score
from salrun.views import VIEWS

CONF = Path(__file__).parents[2] / "conf" / "metrics"
PROMISED = {
    *("pafl", "safl", "pmafl", "smafl", "piou", "siou", "pointing_game"),
    *("aopc_morf", "aopc_lerf", "faithfulness", "insertion", "deletion", "pixel_flipping", "monotonicity"),
    *("average_drop", "average_increase", "average_gain", "local_accuracy", "completeness"),
    *("max_sensitivity", "avg_sensitivity", "sparseness", "complexity", "effective_complexity", "map_similarity"),
    *("road", "irof", "infidelity", "sensitivity_n", "idsds", "saco", "sufficiency", "random_logit", "smooth_mprt"),
    *("efficient_mprt", "local_lipschitz", "relative_stability", "relevance_rank_accuracy", "localisation_auc"),
    *("top_k_intersection", "adcc"),
}
# Hyper-parameters that only cost time, wherever a metric has them.
QUICK = {
    "n_segments": 12,
    "levels": [2, 5],
    "n_pixels": 12,
    "n_samples": 3,
    "n_draws": 3,
    "groups": 6,
    "n_random": 2,
    "grid": 6,
}
# Definitions that no configuration file selects.
MORE = {
    "monotonicity": [{"definition": "arya"}, {"definition": "nguyen"}],
    "effective_complexity": [{"definition": "noise_mask"}, {"definition": "noise_mask", "search": "sweep"}],
    "max_sensitivity": [{"neighbourhood": "ball", "denominator": "image"}],
    "pointing_game": [{"tolerance": 3}],
    "pafl": [{"roi": "ink"}],
    "road": [{"output": "probability"}],
    "average_drop": [{"keep": 0.5}],
    "average_increase": [{"keep": 0.5}],
    "adcc": [{"mask_space": "norm"}],
    "relative_stability": [{"layer": "0"}],
    "infidelity": [{"perturbation": "noisy_baseline", "scaled": True}],
}


def config(name: str) -> dict:
    return entry("metrics", name, scale="smoke").spec


def variants(name: str) -> dict[str, dict]:
    """All instances of conf/metrics/<name>.yaml, and definitions it only mentions."""
    options = config(name)
    named = options.get("variants") or {"": {}}
    more = {"+".join(map(str, extra.values())): extra for extra in MORE.get(name, [])}
    return {variant: {**options, **extra, "variants": None} for variant, extra in {**named, **more}.items()}


def build(options: dict) -> Metric:
    plain = metric_parts({**options, "variants": None})[0].metric
    declared = {field.name for field in fields(plain)}
    quick = {key: value for key, value in QUICK.items() if key in declared}
    return metric_parts({**options, "variants": None}, quick)[0].metric


NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
MATRIX = [(name, variant, check) for name in NAMES for variant in variants(name) for check in CHECKS]


@pytest.mark.parametrize(
    ("name", "variant", "check"), MATRIX, ids=[f"{n}-{v + '-' if v else ''}{c.__name__}" for n, v, c in MATRIX]
)
def test_metric(name: str, variant: str, check: Callable[[Metric, Case], None]) -> None:
    try:
        apply(check, build(variants(name)[variant]))
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", NAMES)
def test_configuration(name: str) -> None:
    """The file lists every parameter and nothing else, says what it is in its first line, and names a view."""
    options = config(name)
    metric = build(options)
    assert metric.source
    declared = {field.name for field in fields(metric)}
    assert declared == set(options) - {"_target_", *OF_METRIC}
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
    assert {name for name in NAMES if build(config(name)).on_host} <= {"map_similarity", "smooth_mprt", "irof"}


# -- the checks find what they look for --------------------------------------------------------------------------------


@dataclass
class Good(Metric):
    """Mean of the map."""

    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __call__(self, plane, scene):
        return self.change(as_plane(plane, "Good").flatten(1), plane, scene)

    def change(self, m, plane, scene):
        return scored(m.mean(1), plane)


def ok(value: torch.Tensor) -> Score:
    return Score(value, torch.full(value.shape, OK, dtype=torch.uint8, device=value.device))


def draws(self, m, plane, scene):
    torch.rand(1, device="cpu")
    return scored(m.mean(1), plane)


def writes(self, m, plane, scene):
    plane.clamp_(0.2, 0.8)
    return scored(m.mean(1), plane)


class Loose(Good):
    """Reads whatever it is given."""

    def __call__(self, plane, scene):
        return self.change(plane.double().flatten(1), plane, scene)


SPOILT = {
    "one for all": (lambda self, m, plane, scene: ok(m.mean().view(1)), "contract"),
    "float32": (lambda self, m, plane, scene: ok(m.mean(1).float()), "contract"),
    "out of range": (lambda self, m, plane, scene: scored(m.sum(1), plane), "contract"),
    "NaN is ok": (lambda self, m, plane, scene: ok(m.mean(1) * torch.nan), "contract"),
    "by the batch": (lambda self, m, plane, scene: scored(m.mean(1) / m.max(), plane), "batch_mates"),
    "by position": (lambda self, m, plane, scene: scored(m.mean(1) + torch.arange(len(m)) / 99, plane), "order"),
    "batch mean": (lambda self, m, plane, scene: scored(m.mean(1) - m.mean(), plane), "batch_size"),
    "NaN made 0": (lambda self, m, plane, scene: ok(m.nan_to_num(0, 0, 0).mean(1)), "nan_map"),
    "no flags": (lambda self, m, plane, scene: ok(m.mean(1)), "constant_map"),
    "global random": (draws, "seed"),
    "writes": (writes, "inputs_untouched"),
    "host": (lambda self, m, plane, scene: scored(m.mean(1) * float(m[0, 0] * 0 + 1), plane), "device_clean"),
    "host, where fast": (
        lambda self, m, plane, scene: scored(
            m.mean(1) * (not scene.model.fingerprint or m.sum().item() * 0 + 1), plane
        ),
        "device_clean",
    ),
    "raises": (lambda self, m, plane, scene: 1 / 0, "without_grad"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_metric_that_does_wrong_is_told_so(what: str) -> None:
    change, check = SPOILT[what]
    part = dataclass(type("Spoilt", (Good,), {"change": change, "__doc__": "Spoilt."}))()
    verdicts = {v.check: v for v in examine(part)}
    assert list(verdicts) == [c.__name__ for c in CHECKS]
    assert verdicts[check].result == "FAIL" and verdicts[check].reason


def test_a_metric_that_reads_anything_is_told_so() -> None:
    failed = {v.check: v.reason for v in examine(Loose()) if v.result == "FAIL"}
    assert list(failed) == ["several_channels"] and "as_plane" in failed["several_channels"]


def test_a_good_metric_passes_everything() -> None:
    assert [str(v) for v in examine(Good()) if v.result != "ok"] == []
