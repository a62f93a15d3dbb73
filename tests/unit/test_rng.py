"""Counter-based numbers: addresses, not sequences."""

from __future__ import annotations

import ast

import numpy as np
import pytest
import torch
from scipy import stats

from salrun.rng import Draws, bits, hash64
from tests.conftest import ROOT

IDS = [f"image-{i}" for i in range(6)]


def test_splitmix64_reference_words() -> None:
    """SplitMix64 seeded with 1234567 (the published test vector): state + k * golden, mixed."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    golden = 0x9E3779B97F4A7C15
    from salrun.rng import _mix, _signed

    state = torch.tensor([_signed(1234567 + golden * (k + 1)) for k in range(3)])
    assert [int(w) & (2**64 - 1) for w in _mix(state)] == expected


def test_a_number_depends_on_its_address_only() -> None:
    draws = Draws.of(3, IDS)
    everything = draws.uniform("noise", (4, 5))
    alone = Draws.of(3, [IDS[4]]).uniform("noise", (4, 5))
    assert torch.equal(everything[4], alone[0])
    part = draws.uniform("noise", 8, start=12)
    assert torch.equal(everything.flatten(1)[:, 12:20], part)
    assert torch.equal(draws[torch.tensor([2, 0])].uniform("noise", 3), draws.uniform("noise", 3)[[2, 0]])


def test_other_seed_purpose_or_image_gives_other_numbers() -> None:
    base = Draws.of(0, IDS).bits("a", 64)
    assert not (base == Draws.of(1, IDS).bits("a", 64)).any()
    assert not (base == Draws.of(0, IDS).bits("b", 64)).any()
    assert len({tuple(row.tolist()) for row in base}) == len(IDS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniforms_are_uniform(dtype: torch.dtype) -> None:
    u = Draws.of(0, ["x"]).uniform("u", 200_000, dtype=dtype)[0].double().numpy()
    assert 0 <= u.min() and u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01


def test_normals_are_normal_and_float32() -> None:
    n = Draws.of(0, ["x"]).normal("n", 200_000)[0]
    assert n.dtype == torch.float32
    assert stats.kstest(n.double().numpy(), "norm").pvalue > 1e-3


def test_integers_cover_their_range_evenly() -> None:
    k = Draws.of(0, ["x"]).integer(54, "k", 54_000)[0]
    counts = torch.bincount(k, minlength=54)
    assert counts.numel() == 54
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_permutations_are_permutations_and_shared_ones_are_shared() -> None:
    order = Draws.of(0, IDS).permutation(100, "order")
    assert torch.equal(order.sort(1).values, torch.arange(100).expand(6, -1))
    assert not torch.equal(order[0], order[1])
    shared = Draws.of(0, IDS).permutation(100, "order", shared=True)
    assert torch.equal(shared, Draws.of(0, ["another"]).permutation(100, "order", shared=True))


def test_names_are_stable() -> None:
    assert hash64("a", 1) == hash64("a", 1) != hash64("a1")
    assert bits(torch.tensor([5]), 3).tolist() == bits(torch.tensor([5, 6]), 3)[:1].tolist()


@pytest.mark.cuda
def test_the_same_numbers_on_the_accelerator() -> None:
    cpu, gpu = Draws.of(0, IDS), Draws.of(0, IDS, "cuda")
    assert torch.equal(cpu.uniform("u", 1000), gpu.uniform("u", 1000).cpu())
    assert torch.allclose(cpu.normal("n", 1000), gpu.normal("n", 1000).cpu(), atol=1e-6)


NAMES_OF_DRAWS = {
    *("effective_complexity", "effective_complexity/ties", "explained", "faithfulness_pixels", "fit", "flip", "iba"),
    *("init/", "lime", "mixup", "mnist_halves", "mnist_shapes", "mnist_shapes/place", "mnist_shapes/size", "noise"),
    *("order", "pairs/other", "pairs/own", "pairs/side", "pgd", "place/", "places", "random", "random_order/"),
    *("random_rgb", "reserved", "rise/grid", "rise/shift_", "sensitivity", "sensitivity/direction"),
    *("sensitivity/length", "shift", "smoothgrad", "ties", "validation"),
    *(
        "expected_gradients/place",
        "expected_gradients/reference",
        "infidelity",
        "kernel_shap/order",
        "kernel_shap/size",
    ),
    *("random_logit", "road", "sensitivity_n/", "smooth_mprt"),
    *("grid/asked", "grid/classes", "grid/pictures", "ladder/noise", "ladder/permute", "ladder/pixels"),
    *("watermark/order", "watermark/places"),
    *("noised", "weights"),
}


def test_draws_keep_their_names() -> None:
    """A draw is a function of its name: another name gives other images, masks or noise under the same keys."""
    drawing = {"uniform", "integer", "bits", "permutation", "normal", "generator", "balanced"}
    named = set()
    for package in ("datasets", "models", "methods", "metrics", "pipeline"):
        for path in (ROOT / "salrun" / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in drawing:
                    parts = (part for argument in node.args for part in ast.walk(argument))
                    named |= {p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)}
    assert named == NAMES_OF_DRAWS
