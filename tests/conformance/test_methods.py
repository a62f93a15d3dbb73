"""Every method of ours passes the suite that anybody's must (salrun.conformance). Found in conf/methods/*.yaml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from salrun.config.parts import OF_METHOD, entry, method_part
from salrun.conformance import NotApplicable, apply, examine
from salrun.conformance.device import DeviceClean, DeviceDirty
from salrun.conformance.methods import CHECKS, Case, TokenNet, folded, half_precision
from salrun.methods.transformer import TransformerRelevance
from salrun.types import Method

CONF = Path(__file__).parents[2] / "conf" / "methods"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "file")  # it has maps of files alone
PROMISED = {
    *("gradient", "sensitivity", "input_x_gradient", "smoothgrad", "integrated_gradients"),
    *("deconvnet", "guided_backprop", "deep_taylor", "lrp_z", "lrp_epsilon", "lrp_a_flat", "lrp_b_flat"),
    *("deeplift_rescale", "deeplift_reveal_cancel", "deep_shap", "attn_lrp", "rise", "lime", "iba"),
    *("grad_cam", "grad_cam_pp", "score_cam", "fake_cam", "edge", "random", "oracle", "all_lit", "captum"),
    *("vargrad", "expected_gradients", "layer_cam", "xgrad_cam", "eigen_cam", "guided_grad_cam", "full_grad"),
    *("occlusion", "kernel_shap", "attention_rollout", "attention_last", "transformer_relevance", "legrad"),
}
# Hyper-parameters that only cost time, wherever a method has them.
QUICK = {"cells": 2, "n_masks": 12, "n_samples": 12, "steps": 6, "copies": 3, "segmentation": "slic", "n_segments": 6}
MATRIX = [(name, check) for name in NAMES for check in CHECKS]


@lru_cache
def build(name: str) -> Method:
    """The method of conf/methods/<name>.yaml, with fewer samples."""
    if name == "captum":
        pytest.importorskip("captum")
    spec = entry("methods", name, scale="smoke").spec
    declared = {field.name for field in fields(method_part(spec).method)}
    assert declared == set(spec) - {"_target_", *OF_METHOD}, "the file lists every parameter"
    return method_part(spec, {key: value for key, value in QUICK.items() if key in declared}).method


@pytest.mark.parametrize(("name", "check"), MATRIX, ids=[f"{name}-{check.__name__}" for name, check in MATRIX])
def test_method(name: str, check: Callable[[Method, Case], None]) -> None:
    try:
        apply(check, build(name))
    except NotApplicable as reason:
        pytest.skip(str(reason))


TOKENS = ("grad_cam", "grad_cam_pp", "layer_cam", "xgrad_cam", "eigen_cam", "score_cam", "iba")


@pytest.mark.parametrize("name", TOKENS)
def test_a_method_of_layers_on_a_transformer(name: str) -> None:
    """All checks but those of copies: it has no batch norms, and bfloat16 is too coarse for random ones this small."""
    for check in CHECKS:
        if check not in (folded, half_precision):
            try:
                check(build(name), Case(TokenNet))
            except NotApplicable:
                continue


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_relevance_by_the_cvpr_rule(check: Callable[[Method, Case], None]) -> None:
    try:
        apply(check, TransformerRelevance("cvpr"))
    except NotApplicable as reason:
        pytest.skip(str(reason))


def test_the_matrix_is_whole() -> None:
    """Every promised method is there, every method meets every check, and few are excused."""
    assert len(PROMISED) == 41
    assert set(NAMES) >= PROMISED
    assert len(CHECKS) == 18
    assert len(set(MATRIX)) == len(NAMES) * 18
    assert {name for name in NAMES if name != "captum" and build(name).on_host} <= {"lime", "kernel_shap"}
    shown = {"rise", "lime", "score_cam", "occlusion", "kernel_shap"}
    assert {name for name in NAMES if build(name).forward_only} == shown
    averages = {"integrated_gradients", "smoothgrad", "expected_gradients"}
    assert {name for name in NAMES if build(name).averages_passes} == averages
    model_free = {"all_lit", "edge", "fake_cam", "ladder", "oracle", "random"}
    tokens = {name for name in NAMES if "attention" in build(name).needs}
    plain = {"captum", "lrp_a_flat_library", "lrp_b_flat_library", *model_free, *shown, "full_grad", *tokens}
    assert {name for name in NAMES if not build(name).foldable} == plain & set(NAMES)
    assert {name for name in NAMES if build(name).layout_free} == {"full_grad"}


# -- the checks find what they look for --------------------------------------------------------------------------------


@dataclass
class Good(Method):
    """The gradient."""

    averages_passes = True  # of one
    foldable = True

    def __call__(self, model, x, target, rng, fitted):
        return self.change(model.pass_once(x, target, chunk=fitted.chunk).input_gradient, model, x, rng)

    def change(self, raw, model, x, rng):
        return raw


def spoilt(name: str, change: Callable, **facts: object) -> type[Method]:
    return dataclass(type(name, (Good,), {"change": change, "__doc__": "Spoilt.", **facts}))


def hooked(self, raw, model, x, rng):
    model.module.head.register_forward_hook(lambda *given: None)
    return raw


class LooseTargets(Good):
    def __call__(self, model, x, target, rng, fitted):
        return super().__call__(model, x, target[:1].expand(len(x)), rng, fitted)


FORWARD_ONLY = {"forward_only": True, "averages_passes": False}
SPOILT = {
    "by the norms": (
        lambda self, raw, model, x, rng: raw * sum("BatchNorm" in str(type(m)) for m in model.modules()),
        "folded",
    ),
    "one map for all": (lambda self, raw, model, x, rng: raw.sum(0), "shape_and_dtype"),
    "negative": (lambda self, raw, model, x, rng: raw, "shape_and_dtype", {"signed": False}),
    "constant": (lambda self, raw, model, x, rng: torch.zeros_like(raw), "not_trivial"),
    "double": (lambda self, raw, model, x, rng: raw.double(), "float32"),
    "scaled by the batch": (lambda self, raw, model, x, rng: raw / raw.abs().max(), "batch_size"),
    "centred on the batch": (lambda self, raw, model, x, rng: raw - raw.mean(0), "batch_mates"),
    "by position": (lambda self, raw, model, x, rng: raw + 1e-3 * torch.arange(len(x)).view(-1, 1, 1, 1), "order"),
    "NaN made 0": (lambda self, raw, model, x, rng: raw.nan_to_num(), "nan_image"),
    "left hook": (hooked, "model_untouched"),
    "global noise": (lambda self, raw, model, x, rng: raw + torch.randn_like(raw), "seed"),
    "host copy": (lambda self, raw, model, x, rng: raw * float(raw.numel() * x[0, 0, 0, 0]), "device_clean"),
    "no gradient to ask for": (lambda self, raw, model, x, rng: raw, "half_precision", FORWARD_ONLY),
    "raises": (lambda self, raw, model, x, rng: 1 / 0, "seed"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_method_that_does_wrong_is_told_so(what: str) -> None:
    change, check, *facts = SPOILT[what]
    part = spoilt("Spoilt", change, **(facts[0] if facts else {}))()
    verdicts = {v.check: v for v in examine(part)}
    assert list(verdicts) == [c.__name__ for c in CHECKS]
    assert verdicts[check].result == "FAIL" and verdicts[check].reason


def test_a_method_that_reads_one_target_is_told_so() -> None:
    verdicts = {v.check: v for v in examine(LooseTargets())}
    assert verdicts["targets_are_per_image"].result == "ok"  # the first target is not changed
    assert verdicts["batch_size"].result == "FAIL" and "batches of 1" in verdicts["batch_size"].reason
    assert "taken without a word" in verdicts["wrong_number_of_targets"].reason


def test_a_good_method_passes_everything() -> None:
    assert [str(v) for v in examine(Good()) if v.result != "ok"] == []


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
    with DeviceClean(), pytest.raises(DeviceDirty):
        call(x)
    with DeviceClean():
        torch.zeros(2, device=x.device) + torch.zeros_like(x) + torch.softmax(x, 0)
