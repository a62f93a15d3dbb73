"""Map similarity, the causal quantity, and re-initialisation in execution order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.feature import hog
from skimage.metrics import structural_similarity
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.metrics.correlation import average_ranks, pearson, spearman
from salrun.metrics.randomisation import (
    EfficientMPRT,
    MapSimilarity,
    RandomLogit,
    SmoothMPRT,
    causal_quantity,
    histogram_entropy,
)
from salrun.models.classifier import Classifier
from salrun.models.randomised import execution_order, reinitialised
from salrun.types import NAN_MAP, OK, UNDEFINED, Score
from tests import toys


def maps(n: int = 4, size: int = 26, seed: int = 0) -> Tensor:
    """Signed, smooth enough for SSIM and HOG to have something to say, with ties at zero."""
    noise = torch.randn(n, 1, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return nn.functional.avg_pool2d(noise, 3, 1, 1) * (noise > -0.5)


def similarity(a: Tensor, b: Tensor, **options: object) -> dict[str, Score]:
    asked: list[str] = []
    scene = toys.scene(a, other_map=lambda name: asked.append(name) or b)  # type: ignore[func-returns-value]
    result = MapSimilarity(other="fresh", **options)(a, scene)  # type: ignore[arg-type]
    assert asked == ["fresh"]
    return result


def rankdata(values: list[float]) -> list[float]:
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


def twin(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Plain loops (spearman, cosine, change, SSIM window by window); scikit-image for HOG."""
    a, b = np.abs(a), np.abs(b)
    pairs = list(zip(a.flat, b.flat, strict=True))
    ranks = np.corrcoef(rankdata(list(a.flat)), rankdata(list(b.flat)))[0, 1]
    dot = sum(u * v for u, v in pairs)
    length_a, length_b = sum(u * u for u, _ in pairs) ** 0.5, sum(v * v for _, v in pairs) ** 0.5
    change = sum((u - v) ** 2 for u, v in pairs) ** 0.5
    unit_a, unit_b = a / a.max(), b / b.max()
    windows = []
    for r in range(a.shape[0] - 6):
        for c in range(a.shape[1] - 6):
            u, v = unit_a[r : r + 7, c : c + 7].ravel(), unit_b[r : r + 7, c : c + 7].ravel()
            cov = np.cov(u, v)
            luminance = (2 * u.mean() * v.mean() + 1e-4) / (u.mean() ** 2 + v.mean() ** 2 + 1e-4)
            windows.append(luminance * (2 * cov[0, 1] + 9e-4) / (cov[0, 0] + cov[1, 1] + 9e-4))
    return {
        "spearman": ranks,
        "cosine": dot / (length_a * length_b),
        "ssim": float(np.mean(windows)),
        "hog": np.corrcoef(hog(unit_a), hog(unit_b, cells_per_block=(3, 3)))[0, 1],
        "relative_change": change / length_a,
    }


def test_equals_its_slow_twin_and_scikit_image() -> None:
    a, b = maps(3), maps(3, seed=1)
    result = similarity(a, b)
    for i in range(3):
        expected = twin(a[i, 0].numpy(), b[i, 0].numpy())
        assert expected.keys() == result.keys()
        for name, value in expected.items():
            assert float(result[name].value[i]) == pytest.approx(value, abs=1e-10), name
        u, v = (m[i, 0].abs().numpy() / float(m[i].abs().max()) for m in (a, b))
        assert float(result["ssim"].value[i]) == pytest.approx(structural_similarity(u, v, data_range=1.0), abs=1e-10)


def test_a_map_is_like_itself_and_its_negative() -> None:
    a = maps()
    for other in (a, -a):
        for name, score in similarity(a, other).items():
            expected = 0.0 if name == "relative_change" else 1.0
            torch.testing.assert_close(score.value, torch.full((4,), expected, dtype=torch.float64), rtol=0, atol=1e-9)
            assert score.flag.tolist() == [OK] * 4


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(1e-3, 1e3), power=st.sampled_from([1.0, 2.0, 3.0]))
def test_what_each_measure_is_blind_to(scale: float, power: float) -> None:
    a, b = maps(2), maps(2, seed=1)
    plain, scaled = similarity(a, b), similarity(a, scale * b)
    for name in ("spearman", "cosine", "ssim", "hog"):
        torch.testing.assert_close(scaled[name].value, plain[name].value, rtol=0, atol=1e-8)
    monotone = similarity(a, scale * b.abs() ** power, measures=["spearman"])
    torch.testing.assert_close(monotone["spearman"].value, plain["spearman"].value, rtol=0, atol=1e-9)
    for name in ("spearman", "cosine", "ssim", "hog"):
        assert (plain[name].value.abs() <= 1 + 1e-12).all()


def test_bad_maps_of_either_model_are_flagged_and_neighbours_unharmed() -> None:
    a, b = maps(6), maps(6, seed=1)
    expected = similarity(a, b)
    a, b = a.clone(), b.clone()
    a[0, 0, 3, 3] = torch.nan
    b[1, 0, 3, 3] = torch.inf
    a[2] = 0
    b[3] = 0
    result = similarity(a, b)
    for name, score in result.items():
        assert score.flag[:2].tolist() == [NAN_MAP, NAN_MAP], name
        assert score.value[:2].isnan().all()
        assert score.flag[2] == UNDEFINED
        assert score.value[2].isnan()
        assert score.flag[3] != OK
        assert torch.equal(score.value[4:], expected[name].value[4:])
    assert float(result["relative_change"].value[3]) == 1.0, "the other map vanished: a change of its whole norm"


def test_maps_too_small_and_unknown_measures_are_refused() -> None:
    with pytest.raises(SalrunError, match="at least 24"):
        similarity(maps(size=20), maps(size=20))
    with pytest.raises(SalrunError, match="at least 7"):
        similarity(maps(size=6), maps(size=6), measures=["ssim"])
    with pytest.raises(SalrunError, match="spearman"):
        MapSimilarity(measures=["spearmann"])  # type: ignore[list-item]
    with pytest.raises(SalrunError, match="second model"):
        MapSimilarity()(maps(), toys.scene(maps()))


# Correlations ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=6, max_size=6), min_size=1, max_size=4))
def test_ranks_share_ties(rows: list[list[int]]) -> None:
    ranks = average_ranks(torch.tensor(rows, dtype=torch.float64))
    assert ranks.tolist() == [rankdata([float(v) for v in row]) for row in rows]


def test_constant_rows_have_no_correlation() -> None:
    """Also a constant whose mean rounds to another number."""
    a = torch.full((2, 7), 0.1, dtype=torch.float64)
    b = torch.arange(14, dtype=torch.float64).view(2, 7)
    assert pearson(a, b).isnan().all()
    assert spearman(b, a).isnan().all()
    assert pearson(1e-200 * b, b).tolist() == pytest.approx([1.0, 1.0])


# The causal quantity --------------------------------------------------------------------------------------------------


def test_causal_quantity() -> None:
    trained, untrained = torch.stack([maps(3), maps(3, seed=1)]), maps(3, seed=2)
    uniform = causal_quantity(trained, untrained)
    torch.testing.assert_close(uniform, trained.mean(0) - untrained)
    assert causal_quantity(untrained.expand(2, -1, -1, -1, -1), untrained).abs().max() == 0
    certain = torch.tensor([[1.0, 0.0, 0.25], [0.0, 1.0, 0.75]])
    expected = [
        trained[0, 0] - untrained[0],
        trained[1, 1] - untrained[1],
        0.25 * trained[0, 2] + 0.75 * trained[1, 2] - untrained[2],
    ]
    torch.testing.assert_close(causal_quantity(trained, untrained, certain), torch.stack(expected))
    torch.testing.assert_close(causal_quantity(trained, untrained, certain[:, 0]), trained[0] - untrained)
    with pytest.raises(SalrunError, match="probability"):
        causal_quantity(trained, untrained, torch.ones(3))


# Re-initialisation ----------------------------------------------------------------------------------------------------


class Backwards(nn.Module):
    """Registered last to first; `twice` runs before and after `middle`."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)
        self.body = nn.ModuleDict(
            {"twice": nn.Conv2d(5, 5, 1), "middle": nn.Conv2d(5, 5, 1), "norm": nn.BatchNorm2d(5)}
        )
        self.stem = nn.Conv2d(3, 5, 3)

    def forward(self, z: Tensor) -> Tensor:
        z = self.body["twice"](torch.relu(self.stem(z)))
        z = self.body["twice"](self.body["norm"](self.body["middle"](z)))
        return self.out(z.mean((2, 3)))


ORDER = ["stem", "body.middle", "body.norm", "body.twice", "out"]


def classifier() -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Classifier(Backwards(), (0.5,) * 3, (0.2,) * 3, name="backwards", fingerprint="f").eval()
        norm = model.module.body["norm"]
        norm.running_mean.normal_()
        norm.weight.data.uniform_()
    return model


PROBE = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def changed(model: Classifier, other: Classifier) -> list[str]:
    """The layers that differ, in execution order."""
    mine, its = model.module.state_dict(), other.module.state_dict()
    names = {k.rpartition(".")[0] for k in mine if not torch.equal(mine[k], its[k])}
    return [name for name in ORDER if name in names]


def test_execution_order_is_not_registration_order() -> None:
    model = classifier()
    assert execution_order(model, PROBE) == ORDER
    assert not any(part._forward_hooks for part in model.modules())


def test_cascade_runs_from_the_output_to_the_input_and_leaves_the_model_alone() -> None:
    model = classifier()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    stages = [(ORDER[i], reinitialised(model, ORDER[i:], 3)) for i in reversed(range(len(ORDER)))]
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers are not used"
    for i, (_, stage) in enumerate(stages):
        assert changed(model, stage) == ORDER[-(i + 1) :]
        assert not stage.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    for (_, one), (name, two) in pairwise(stages):
        assert changed(one, two) == [name], "a layer once drawn stays as drawn"
    assert len({stage.fingerprint for _, stage in stages} | {model.fingerprint}) == len(ORDER) + 1
    norm = stages[-1][1].module.body["norm"]
    assert norm.running_mean.abs().max() == 0
    assert (norm.weight == 1).all()


def test_independent_changes_one_layer_at_a_time() -> None:
    model = classifier()
    assert [changed(model, reinitialised(model, [name], 3)) for name in ORDER] == [[name] for name in ORDER]


def test_draws_depend_on_seed_and_layer_alone() -> None:
    model = classifier()
    one, again, other = (reinitialised(model, ["body.middle"], seed) for seed in (1, 1, 2))
    assert torch.equal(one.module.body["middle"].weight, again.module.body["middle"].weight)
    assert not torch.equal(one.module.body["middle"].weight, other.module.body["middle"].weight)
    both = reinitialised(model, ["body.twice", "body.middle"], 1)
    assert torch.equal(one.module.body["middle"].weight, both.module.body["middle"].weight)
    assert not torch.equal(both.module.body["twice"].weight, both.module.body["middle"].weight), "not one seed for all"
    torch.testing.assert_close(one.mean, model.mean)


class Token(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, z: Tensor) -> Tensor:
        return z * self.scale


def test_parameters_that_cannot_be_reset_are_an_error_naming_the_layer() -> None:
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(108, 4), Token()), name="tokens")
    with pytest.raises(SalrunError, match=r"layer '2' \(Token\) of model 'tokens'"):
        reinitialised(model, execution_order(model, PROBE)[-1:], seed=0)
    assert reinitialised(model, ["1"], seed=0).name != "tokens"
    with pytest.raises(SalrunError, match="unknown layer 'fc'"):
        reinitialised(model, ["fc"], seed=0)


def test_weights_read_by_a_parent_belong_to_it() -> None:
    """Attention never calls its output projection: it reads its weight."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 2)
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, z: Tensor) -> Tensor:
            z = z.flatten(1, 2)
            return self.head(self.attention(z, z, z, need_weights=True)[0].mean(1))

    model = Classifier(Attending()).eval()
    assert execution_order(model, PROBE) == ["attention", "attention.out_proj", "head"]
    last = reinitialised(model, execution_order(model, PROBE), 0)
    assert not torch.equal(last.module.attention.in_proj_weight, model.module.attention.in_proj_weight)


# -- other classes, noisy images, entropy ------------------------------------------------------------------------------


def test_random_logit_explains_another_class() -> None:
    """By the same method; every class but the explained one may come; a map that ignores the class is like itself."""
    asked: list[Tensor] = []
    x = toys.images(60, 8)

    def explain(x: Tensor, target: Tensor) -> Tensor:
        asked.append(target)
        return x[:, :1] * (1 + target.view(-1, 1, 1, 1)) + x[:, 1:2]

    scene = toys.scene(x, toys.network(), toys.targets(60), explain=explain)
    plane = explain(x, scene.target)
    result = RandomLogit(measures=["cosine", "relative_change"])(plane, scene)
    off = asked[-1]
    assert (off != scene.target).all() and set(off.tolist()) == {0, 1, 2}
    other = explain(x, off)
    toys.close(result["cosine"].value, nn.functional.cosine_similarity(plane.flatten(1), other.flatten(1)))
    change = (plane - other).flatten(1).norm(dim=1) / plane.flatten(1).norm(dim=1)
    toys.close(result["relative_change"].value, change)
    blind = RandomLogit()(plane, replace(scene, explain=lambda x, target: plane))
    toys.close(blind["ssim"].value, torch.ones(60, dtype=torch.float64))
    part = replace(scene, x=x[7:9], target=scene.target[7:9], rng=scene.rng[7:9], memo={})
    RandomLogit(measures=["cosine"])(plane[7:9], part)
    assert torch.equal(asked[-1], off[7:9])


def test_smooth_mprt_averages_noisy_images() -> None:
    shown: dict[str, list[Tensor]] = {"own": [], "other": []}
    x = toys.images(3, 8)
    own = lambda x: shown["own"].append(x) or x[:, :1] ** 3
    other = lambda name, x: shown["other"].append(x) or x[:, 1:2] ** 2
    scene = toys.scene(x, mean=(0.5,), std=(0.25,), explain=own, other_map=other)
    metric = SmoothMPRT(n_draws=4, noise=0.2, measures=["cosine", "spearman"])
    result = metric(x[:, :1] ** 3, scene)
    assert [torch.equal(a, b) for a, b in zip(shown["own"], shown["other"], strict=True)] == [True] * 4
    a = torch.stack([x[:, :1] ** 3 for x in shown["own"]]).mean(0)
    b = torch.stack([x[:, 1:2] ** 2 for x in shown["other"]]).mean(0)
    want = similarity(a, b, measures=["cosine", "spearman"])
    for name in want:
        toys.close(result[name].value, want[name].value)
    z = scene.model.normalise(x)
    spread = z.amax((1, 2, 3)) - z.amin((1, 2, 3))
    noise = torch.stack([scene.model.normalise(x) - z for x in shown["own"]], 1).flatten(1)
    assert (noise.std(1) / spread).tolist() == pytest.approx([0.2] * 3, rel=0.1)
    assert metric.reads() == ("random",) and metric.passes(None, (3, 8, 8)) == 8  # type: ignore[arg-type]


def test_efficient_mprt_is_the_rise_of_entropy() -> None:
    """Two values, half and half: ln 2; four in equal shares: ln 4; so it doubles, and back it halves."""
    two, four = (torch.arange(16.0, dtype=torch.float64).remainder(n).view(1, 1, 4, 4) for n in (2, 4))
    scene = toys.scene(two, other_map=lambda name: four)
    assert EfficientMPRT()(two, scene).value.item() == pytest.approx(1.0)
    assert EfficientMPRT()(four, replace(scene, other_map=lambda name: two)).value.item() == pytest.approx(-0.5)
    flat = EfficientMPRT()(torch.ones_like(two), scene)
    assert flat.value.isnan().all() and flat.flag.tolist() == [UNDEFINED]


def test_entropy_is_that_of_numpys_histogram() -> None:
    planes = maps(5).squeeze(1)
    for bins in (10, 100):
        for plane, found in zip(planes, histogram_entropy(planes, bins), strict=True):
            share = np.histogram(plane.numpy(), bins)[0] / plane.numel()
            assert found.item() == pytest.approx(-sum(p * np.log(p) for p in share if p > 0), abs=1e-12)
