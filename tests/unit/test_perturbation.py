"""AOPC, faithfulness, insertion, deletion, pixel flipping and monotonicity: closed forms, slow twins, invariances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter
from scipy.stats import pearsonr, spearmanr
from torch import Tensor, nn

from salrun.errors import SalrunError
from salrun.metrics import perturbation
from salrun.metrics.aopc import AOPC, AOPCLeRF, AOPCMoRF
from salrun.metrics.faithfulness import Faithfulness
from salrun.metrics.insertion import Deletion, Insertion, PixelFlipping
from salrun.metrics.monotonicity import Monotonicity
from salrun.metrics.perturbation import blur, blur_kernel, curve, pixel_rank, step_counts, substrate
from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import DEGENERATE_MAP, NAN_MAP, OK, UNDEFINED, Metric, Scene, Score

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


class Linear(nn.Module):
    """p(class 0) = sum_px w_px z_px, exactly: logits log p and log(1 - p)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, z: Tensor) -> Tensor:
        p = (z.mean(1) * self.weight).sum((1, 2))
        return torch.stack([p.log(), (1 - p).log()], 1)


class Counting(Classifier):
    """Remembers the sizes of the batches it was shown."""

    def __init__(self, module: nn.Module, **options: object) -> None:
        super().__init__(module, **options)  # type: ignore[arg-type]
        self.seen: list[int] = []

    def head(self, point: Tensor, space: str) -> Tensor:
        self.seen.append(len(point))
        return super().head(point, space)  # type: ignore[arg-type]


def cnn(size: int = 8, classes: int = 4, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * size * size, classes)
        ).eval()


def scene_of(
    batch: int = 5,
    size: int = 8,
    chunk: int | None = None,
    ids: list[str] | None = None,
    model: Classifier | None = None,
) -> Scene:
    ids = ids or [f"image{i}" for i in range(batch)]
    rng = Draws.of(7, ids)
    x = rng.uniform("test_image", (3, size, size), dtype=torch.float64)
    model = model or Counting(cnn(size).double(), mean=MEAN, std=STD).double()
    target = model(x).argmax(1)
    return Scene(model=model, x=x, y=target, target=target, rng=rng, chunk=chunk)


def planes(scene: Scene) -> Tensor:
    """Signed, without ties."""
    return scene.rng.uniform("test_plane", (1, *scene.x.shape[2:]), dtype=torch.float64) - 0.4


def part(scene: Scene, rows: Tensor) -> Scene:
    return replace(
        scene,
        x=scene.x[rows],
        y=scene.y[rows],
        target=scene.target[rows],
        rng=Draws(scene.rng.seed, scene.rng.key[rows]),
    )


def flat(result: Score | dict[str, Score]) -> dict[str, Score]:
    return result if isinstance(result, dict) else {"": result}


METRICS: dict[str, Metric] = {
    "morf": AOPCMoRF(levels=[3, 10], n_random=3),
    "lerf": AOPCLeRF(levels=[3, 10], divide_by="L", pixels_per_step=2),
    "max": AOPCMoRF(levels=[4], output="max_probability"),
    "faithfulness": Faithfulness(n_pixels=20),
    "insertion": Insertion(step=5),
    "deletion": Deletion(),
    "flipping": PixelFlipping(step=3),
    "mono_d": Monotonicity(groups=7),
    "mono_d_norm": Monotonicity(groups=7, scalar="group_mean", mask_space="norm", output="logit"),
    "mono_arya": Monotonicity(definition="arya", groups=9),
    "mono_nguyen": Monotonicity(definition="nguyen", groups=6, n_samples=3),
    "mono_nguyen_uniform": Monotonicity(definition="nguyen", groups=6, n_samples=2, baseline="uniform"),
}
assert len(METRICS) == 12


# Slow twins: the textbook formula, one image, one step, one pixel at a time ------------------------------------------


def probability(scene: Scene, i: int, z: np.ndarray, output: str = "probability") -> float:
    logits = scene.model.module(torch.from_numpy(z)[None]).detach().numpy()[0]
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return {"probability": p[scene.target[i]], "max_probability": p.max(), "logit": logits[scene.target[i]]}[output]


def normal(scene: Scene, x: np.ndarray) -> np.ndarray:
    return (x - scene.model.mean[0].numpy()) / scene.model.std[0].numpy()


def order_of(plane: np.ndarray, ascending: bool = False) -> list[tuple[int, int]]:
    pixels = [(r, c) for r in range(plane.shape[0]) for c in range(plane.shape[1])]
    return sorted(pixels, key=lambda rc: plane[rc] if ascending else -plane[rc])


def walk(
    scene: Scene,
    i: int,
    start: np.ndarray,
    finish: np.ndarray,
    order: list[tuple[int, int]],
    counts: list[int],
    output: str,
) -> list[float]:
    """f after the first n pixels of `order` have been changed from `start` to `finish`, for each n."""
    values, z, done = [], start.copy(), 0
    for n in counts:
        for r, c in order[done:n]:
            z[:, r, c] = finish[:, r, c]
        done = n
        values.append(probability(scene, i, z, output))
    return values


def fill(name: str, scene: Scene, i: int, draw: int = 0) -> np.ndarray:
    x = scene.x[i].numpy()
    if name in ("mean", "grey"):
        return np.zeros_like(x)
    if name == "black":
        return normal(scene, np.zeros_like(x))
    if name == "blur":
        delta = np.zeros((11, 11))
        delta[5, 5] = 1
        kernel = gaussian_filter(delta, 5)
        z = normal(scene, x)
        padded = np.pad(z, ((0, 0), (5, 5), (5, 5)))
        out = np.zeros_like(z)
        for r in range(z.shape[1]):
            for c in range(z.shape[2]):
                out[:, r, c] = (padded[:, r : r + 11, c : c + 11] * kernel).sum((1, 2))
        return out
    drawn = scene.rng[i : i + 1].uniform("random_rgb", x.shape, start=draw * x.size)[0].double().numpy()
    return normal(scene, drawn) if name == "random_rgb" else drawn


def twin(metric: Metric, scene: Scene, plane: Tensor, i: int) -> dict[str, float]:
    m, x = plane[i, 0].numpy(), scene.x[i].numpy()
    z, size = normal(scene, x), m.size
    if isinstance(metric, AOPC):
        found = {}
        steps = max(metric.levels)
        counts = [k * metric.pixels_per_step for k in range(steps + 1)]
        for name in metric.perturbations:
            f = walk(scene, i, z, fill(name, scene, i), order_of(m, metric.ascending), counts, metric.output)
            for level in metric.levels:
                total = sum(f[0] - f[k] for k in range(level + 1))
                found[f"{name}_L{level}"] = total / (level + 1 if metric.divide_by == "L+1" else level)
            scores: dict[int, list[float]] = {level: [] for level in metric.levels}
            for j in range(metric.n_random):
                rank = scene.rng.permutation(size, f"random_order/{j}", shared=True).reshape(m.shape).numpy()
                f = walk(scene, i, z, fill(name, scene, i), order_of(rank, ascending=True), counts, metric.output)
                for level in metric.levels:
                    scores[level].append(sum(f[0] - f[k] for k in range(level + 1)) / (level + 1))
            for level in metric.levels if metric.n_random else ():
                found[f"{name}_L{level}_random"] = float(np.mean(scores[level]))
                found[f"{name}_L{level}_orderings"] = float(np.std(scores[level]))
        return found
    if isinstance(metric, Faithfulness):
        chosen = scene.rng.permutation(size, "faithfulness_pixels", shared=True)[: metric.n_pixels].tolist()
        found = {}
        for name in metric.perturbations:
            relevance, fall = [], []
            for pixel in chosen:
                r, c = divmod(pixel, m.shape[1])
                changed = z.copy()
                changed[:, r, c] = fill(name, scene, i)[:, r, c]
                relevance.append(m[r, c])
                fall.append(probability(scene, i, z) - probability(scene, i, changed))
            found[name] = pearsonr(relevance, fall).statistic
        return found
    if isinstance(metric, Insertion | Deletion | PixelFlipping):
        step = metric.step or -(-size // 28)
        counts = [*range(0, size, step), size]
        start, finish = z, fill(metric.substrate, scene, i)
        if isinstance(metric, Insertion):
            start, finish = finish, start
        f = walk(scene, i, start, finish, order_of(m), counts, metric.output)
        return {"": sum((f[k] + f[k + 1]) / 2 * (counts[k + 1] - counts[k]) / size for k in range(len(f) - 1))}
    assert isinstance(metric, Monotonicity)
    if metric.definition == "nguyen":
        m = np.abs(m)
    order = order_of(m, ascending=True)
    edge = [k * size // metric.groups for k in range(metric.groups + 1)]
    groups = [order[a:b] for a, b in pairwise(edge)]
    if metric.definition == "d":
        scalars, values = [], []
        for k in range(1, metric.groups + 1):
            mask = np.zeros_like(m)
            for group in groups[:k]:
                for pixel in group:
                    mask[pixel] = m[pixel]
            masked = normal(scene, x * mask) if metric.mask_space == "raw" else z * mask
            values.append(probability(scene, i, masked, metric.output))
            last = np.mean([m[pixel] for pixel in groups[k - 1]])
            scalars.append(mask.sum() if metric.scalar == "cumulative_sum" else last)
        return {"": pearsonr(scalars, values).statistic}
    if metric.definition == "arya":
        f = walk(scene, i, fill("black", scene, i), z, order, edge[1:], metric.output)
        rises = [b >= a for a, b in pairwise(f)]
        return {"all": float(all(rises)), "fraction": float(np.mean(rises))}
    before = probability(scene, i, z)
    scale = 1 / before**2 if before >= 1e-5 else 1.0
    mass, variance = [], []
    for group in groups:
        changes = []
        for draw in range(metric.n_samples):
            changed, other = z.copy(), fill(metric.baseline or "random_rgb", scene, i, draw)
            for r, c in group:
                changed[:, r, c] = other[:, r, c]
            changes.append((probability(scene, i, changed) - before) ** 2)
        mass.append(sum(m[pixel] for pixel in group))
        variance.append(np.mean(changes) * scale)
    return {"": spearmanr(mass, variance).statistic}


@pytest.mark.parametrize("name", METRICS)
def test_equals_its_slow_twin(name: str) -> None:
    scene = scene_of(batch=3)
    plane = planes(scene)
    result = flat(METRICS[name](plane, scene))
    for i in range(3):
        expected = twin(METRICS[name], scene, plane, i)
        assert expected.keys() == result.keys()
        for variant, score in result.items():
            assert score.value.dtype == torch.float64
            assert score.flag.dtype == torch.uint8
            assert float(score.value[i]) == pytest.approx(expected[variant], abs=1e-12), variant


# Known answers --------------------------------------------------------------------------------------------------------


def linear_scene(size: int = 6) -> tuple[Scene, Tensor]:
    """White images, p = the weight of the pixels that are white; the weight is also the perfect map."""
    rng = Draws.of(1, ["a", "b"])
    weight = rng[:1].uniform("weight", (size, size), dtype=torch.float64)[0] + 0.05
    weight = weight / weight.sum()
    x = torch.ones(2, 3, size, size, dtype=torch.float64)
    target = torch.zeros(2, dtype=torch.int64)
    model = Classifier(Linear(weight)).double()
    return Scene(model=model, x=x, y=target, target=target, rng=rng), weight.expand(2, 1, size, size)


def test_insertion_and_deletion_of_revealed_area() -> None:
    """p linear in the revealed weight: with equal weights both areas are 1/2, else the area of the sorted weights."""
    scene, plane = linear_scene()
    weights = plane[0].flatten().sort(descending=True).values
    p = torch.cat([torch.zeros(1, dtype=torch.float64), weights.cumsum(0)])
    area = float((p[1:] + p[:-1]).sum() / (2 * len(weights)))
    assert area > 0.55
    inserted = Insertion(step=1, substrate="black")(plane, scene)
    deleted = Deletion(step=1, substrate="black")(plane, scene)
    torch.testing.assert_close(inserted.value, torch.full((2,), area, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(deleted.value, torch.full((2,), 1 - area, dtype=torch.float64), rtol=0, atol=1e-12)
    even = replace(scene, model=Classifier(Linear(torch.full((6, 6), 1 / 36, dtype=torch.float64))).double())
    for step in (1, 5, 7, None):
        value = Insertion(step=step, substrate="black")(plane, even).value
        torch.testing.assert_close(value, torch.full((2,), 0.5, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_short_last_step_counts_by_its_true_fraction() -> None:
    assert step_counts(36, 16).tolist() == [0, 16, 32, 36]
    assert step_counts(224 * 224, None).diff().unique().tolist() == [1792]
    assert len(step_counts(224 * 224, None)) == 29
    assert len(step_counts(224 * 224, 224)) == 225


def test_aopc_of_a_linear_model() -> None:
    """p falls by the weight removed: AOPC(L) is the mean of the partial sums of the sorted weights."""
    scene, plane = linear_scene()
    ordered = plane[0].flatten().sort(descending=True).values
    for metric, weights in ((AOPCMoRF, ordered), (AOPCLeRF, ordered.flip(0))):
        result = metric(perturbations=["mean"], levels=[5, 9])(plane, scene)
        for level in (5, 9):
            expected = weights[:level].cumsum(0).sum() / (level + 1)
            torch.testing.assert_close(result[f"mean_L{level}"].value, expected.expand(2), rtol=0, atol=1e-12)
        best, negated = (
            result["mean_L9"].value,
            metric(perturbations=["mean"], levels=[9])(-plane, scene)["mean_L9"].value,
        )
        assert ((best > negated) if metric is AOPCMoRF else (best < negated)).all()


def test_faithfulness_is_one_for_the_effect_itself_and_minus_one_for_its_opposite() -> None:
    scene, plane = linear_scene()
    metric = Faithfulness(perturbations=["mean"], n_pixels=30)
    ones = torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(metric(3 * plane + 1, scene)["mean"].value, ones, rtol=0, atol=1e-9)
    torch.testing.assert_close(metric(-plane, scene)["mean"].value, -ones, rtol=0, atol=1e-9)


def test_monotonicity_of_a_linear_model() -> None:
    scene, plane = linear_scene()
    arya = Monotonicity(definition="arya", groups=12)(plane, scene)
    assert isinstance(arya, dict)
    assert arya["all"].value.tolist() == arya["fraction"].value.tolist() == [1.0, 1.0]
    nguyen = Monotonicity(definition="nguyen", groups=12, baseline="black")(plane, scene)
    assert isinstance(nguyen, Score)
    assert nguyen.value.tolist() == pytest.approx([1.0, 1.0])
    # A map of 0 and 1: p is proportional to the map's sum, so Pearson is exactly 1.
    halves = (plane > plane.flatten(1).median(1).values.view(2, 1, 1, 1)).double()
    even = replace(scene, model=Classifier(Linear(torch.full((6, 6), 1 / 36, dtype=torch.float64))).double())
    d = Monotonicity(groups=12)(halves, even)
    assert isinstance(d, Score)
    assert d.value.tolist() == pytest.approx([1.0, 1.0])


def test_arya_falls_where_the_model_falls() -> None:
    """A class whose probability falls with every pixel: no step is a rise. (Quantus says True here.)"""
    scene, plane = linear_scene()
    result = Monotonicity(definition="arya", groups=12)(plane, replace(scene, target=torch.ones_like(scene.target)))
    assert isinstance(result, dict)
    assert result["all"].value.tolist() == result["fraction"].value.tolist() == [0.0, 0.0]


def test_rise_kernel() -> None:
    kernel = blur_kernel()
    delta = np.zeros((11, 11))
    delta[5, 5] = 1
    np.testing.assert_allclose(kernel.numpy(), gaussian_filter(delta, 5), atol=1e-15)
    assert float(kernel.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(kernel.min()) == pytest.approx(0.00774, abs=5e-6)
    assert float(kernel.max()) == pytest.approx(0.00883, abs=5e-6)
    assert float(kernel.max() / kernel.min()) == pytest.approx(1.142, abs=1e-3)
    gaussian = blur_kernel(true_gaussian=True)
    assert float(gaussian.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(gaussian.max() / gaussian.min()) == pytest.approx(np.e, rel=1e-9)
    # A constant image keeps its value inside, and darkens towards the zeros beyond the border.
    blurred = blur(torch.ones(1, 2, 21, 21, dtype=torch.float64), kernel)
    assert float(blurred[0, 1, 10, 10]) == pytest.approx(1.0)
    assert float(blurred[0, 1, 0, 0]) < 0.35


def test_random_colours_lie_in_the_raw_range_and_belong_to_the_image() -> None:
    scene = scene_of()
    raw = scene.model.denormalise(substrate("random_rgb", scene))
    assert float(raw.min()) >= -1e-12
    assert float(raw.max()) <= 1.0
    assert not torch.equal(raw[0], raw[1])
    assert not torch.equal(raw[:, 0], raw[:, 1])
    rows = torch.tensor([3, 1])
    assert torch.equal(substrate("random_rgb", part(scene, rows)), substrate("random_rgb", scene)[rows])
    assert not torch.equal(substrate("random_rgb", scene, draw=1), substrate("random_rgb", scene))


# Orders ---------------------------------------------------------------------------------------------------------------


def test_ties() -> None:
    plane = torch.tensor([[[[1.0, 2.0], [1.0, 1.0]]]]).expand(400, 1, 2, 2)
    rng = Draws.of(0, [str(i) for i in range(400)])
    assert pixel_rank(plane, rng, "raster", False, "test")[0].tolist() == [1, 0, 2, 3]
    assert pixel_rank(plane, rng, "raster_reversed", False, "test")[0].tolist() == [3, 0, 2, 1]
    assert pixel_rank(plane, rng, "raster", True, "test")[0].tolist() == [0, 3, 1, 2]
    random = pixel_rank(plane, rng, "random", False, "test")
    assert (random[:, 1] == 0).all()
    assert random.float().mean(0)[[0, 2, 3]].tolist() == pytest.approx([2.0, 2.0, 2.0], abs=0.15)
    assert torch.equal(random.sort(1).values, torch.arange(4, dtype=torch.int32).expand(400, 4))


def test_lerf_removes_the_most_negative_pixels_first() -> None:
    plane = torch.tensor([[[[0.1, -3.0], [2.0, -0.5]]]])
    rank = pixel_rank(plane, Draws.of(0, ["a"]), "random", True, "test")
    assert rank[0].tolist() == [2, 0, 3, 1]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), power=st.sampled_from([1, 3, 5]), scale=st.floats(1e-3, 1e3), shift=st.floats(-5, 5))
@pytest.mark.parametrize("name", ["morf", "lerf", "insertion", "deletion", "flipping", "mono_arya"])
def test_rank_metrics_see_nothing_but_the_order(name: str, seed: int, power: int, scale: float, shift: float) -> None:
    scene = scene_of(batch=2, ids=[f"{seed}a", f"{seed}b"])
    plane = planes(scene)
    changed = scale * plane**power + shift
    # The transform must stay one-to-one in floating point.
    if any(len(p.unique()) < p.numel() for p in changed):
        return
    metric = AOPCMoRF(levels=[10]) if name == "morf" else METRICS[name]
    for variant, score in flat(metric(plane, scene)).items():
        assert torch.equal(score.value, flat(metric(changed, scene))[variant].value)


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(1e-4, 1e4), shift=st.floats(-3, 3))
def test_faithfulness_is_blind_to_scale_and_shift_and_bounded(scale: float, shift: float) -> None:
    scene = scene_of()
    plane, metric = planes(scene), METRICS["faithfulness"]
    for name, score in flat(metric(plane, scene)).items():
        assert (score.value.abs() <= 1).all()
        other = flat(metric(scale * plane + shift, scene))[name].value
        torch.testing.assert_close(score.value, other, rtol=0, atol=1e-8)


def test_insertion_and_deletion_share_the_order() -> None:
    """On one substrate the two curves are each other's mirror, ties included: one shows what the other has left."""
    scene = scene_of()
    plane = torch.ones(5, 1, 8, 8, dtype=torch.float64)
    plane[:, :, 2:4] = 2
    inserted = Insertion(step=4, substrate="grey", output="logit")(plane, scene).curve
    rank = pixel_rank(plane, scene.rng, "random", False, "test")
    counts = step_counts(64, 4)
    z = scene.model.normalise(scene.x)
    removed = curve(scene.model, z, torch.zeros_like(z), 63 - rank, counts, scene.target, output="logit")
    assert inserted is not None
    torch.testing.assert_close(inserted, removed.flip(1), rtol=0, atol=1e-12)


# Independence of batch and chunk, memory ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_batch_and_chunk_change_nothing(name: str) -> None:
    whole = scene_of(batch=7)
    plane = planes(whole)
    expected = flat(METRICS[name](plane, whole))
    for chunk in (1, 13, 999):
        for variant, score in flat(METRICS[name](plane, replace(whole, chunk=chunk))).items():
            torch.testing.assert_close(score.value, expected[variant].value, rtol=0, atol=1e-9)
    rows = torch.tensor([6, 2, 3])
    for variant, score in flat(METRICS[name](plane[rows], part(whole, rows))).items():
        torch.testing.assert_close(score.value, expected[variant].value[rows], rtol=0, atol=1e-9)
        assert torch.equal(score.flag, expected[variant].flag[rows])


@pytest.mark.parametrize("name", METRICS)
def test_the_model_never_sees_more_than_a_chunk(name: str) -> None:
    scene = scene_of(batch=6, chunk=11)
    model = scene.model
    assert isinstance(model, Counting)
    model.seen.clear()
    METRICS[name](planes(scene), scene)
    assert max(model.seen) <= 11
    assert sum(size < 11 for size in model.seen) <= len(model.seen) / 2 + 6, (
        "batches are full but for the last of a curve"
    )


@pytest.mark.parametrize("name", METRICS)
def test_passes_are_as_announced(name: str) -> None:
    scene = scene_of(batch=4)
    model, metric = scene.model, METRICS[name]
    assert isinstance(model, Counting)
    model.seen.clear()
    metric(planes(scene), scene)
    shape = (3, 8, 8)
    assert sum(model.seen) == 4 * (metric.passes(model, shape) + metric.shared_passes(model, shape))


def remembering(scene: Scene) -> Scene:
    """A scene that keeps what is shared; of rows, only if all are asked for."""
    kept: dict[str, dict[str, Tensor]] = {}

    def shared(name: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        if name not in kept:
            kept[name] = compute()
        return kept[name]

    def shared_rows(name: str, rows: Tensor, compute: Callable[[Tensor], dict[str, Tensor]]) -> dict[str, Tensor]:
        assert rows.tolist() == list(range(len(scene.x)))
        return shared(name, lambda: compute(rows))

    return replace(scene, shared=shared, shared_rows=shared_rows)


def test_what_no_map_has_a_part_in_is_asked_once() -> None:
    """The image and the substrates: once for all methods and for the metrics of a module that show them."""
    scene, shape = remembering(scene_of()), (3, 8, 8)
    model = scene.model
    assert isinstance(model, Counting)
    first = Insertion(step=16)(planes(scene), scene)
    model.seen.clear()
    assert torch.equal(Insertion(step=16)(planes(scene), scene).value, first.value)
    assert model.seen == [5 * 3] == [5 * Insertion(step=16).passes(model, shape)]
    model.seen.clear()
    Deletion(step=16)(planes(scene), scene)
    assert model.seen == [5, 5 * 3], "the image is known, grey is not"
    model.seen.clear()
    blurred = Insertion(step=64, true_gaussian=True)(planes(scene), scene)
    assert model.seen == [5], "another blur, and no step between the ends"
    assert blurred.curve is not None and blurred.curve.shape == (5, 2)


def test_pixels_are_ranked_once_for_the_metrics_of_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def counted(plane: Tensor, rng: Draws, ties: str, ascending: bool, owner: str) -> Tensor:
        asked.append(ascending)
        return pixel_rank(plane, rng, ties, ascending, owner)  # type: ignore[arg-type]

    monkeypatch.setattr(perturbation, "pixel_rank", counted)
    scene = scene_of()
    plane = planes(scene)
    metrics = (Insertion(), Deletion(), PixelFlipping(), AOPCMoRF(levels=[3]), Monotonicity(), AOPCLeRF(levels=[3]))
    for metric in metrics:
        metric(plane, scene)
    assert asked == [False, True]
    Insertion()(plane.clone(), scene)
    Insertion(ties="raster")(plane, scene)
    assert asked == [False, True, False, False]


def test_method_independent_work_is_shared() -> None:
    scene = remembering(scene_of())
    model, shape = scene.model, (3, 8, 8)
    assert isinstance(model, Counting)
    morf, lerf = AOPCMoRF(levels=[6], n_random=4), AOPCLeRF(levels=[6], n_random=4)
    first = morf(planes(scene), scene)
    model.seen.clear()
    second = lerf(-planes(scene), scene)
    assert sum(model.seen) == 5 * lerf.passes(model, shape), "the baseline is not computed again"
    assert torch.equal(first["mean_L6_random"].value, second["mean_L6_random"].value)
    curve_ = first["mean_L6_orderings"].curve
    assert curve_ is not None
    torch.testing.assert_close(curve_.mean(1), first["mean_L6_random"].value, rtol=0, atol=1e-12)
    faithfulness = Faithfulness(n_pixels=10)
    faithfulness(planes(scene), scene)
    model.seen.clear()
    faithfulness(-planes(scene), scene)
    assert model.seen == []


# As many random orders as it takes ------------------------------------------------------------------------------------


def with_suite(scene: Scene, plane: Tensor, others: int = 3) -> Scene:
    """A scene of a run with further methods: the map with its channels' columns turned."""
    maps = {"own": plane} | {f"turned {k}": plane.roll(k, dims=-1) for k in range(1, others + 1)}
    return replace(scene, suite=lambda metric: {name: flat(metric(m, scene)) for name, m in maps.items()})


@pytest.mark.parametrize("kind", [AOPCMoRF, AOPCLeRF])
def test_orders_are_drawn_until_the_error_is_small_beside_the_methods_deviation(kind: type[AOPC]) -> None:
    plain = scene_of(batch=8)
    plane = planes(plain)
    scene = with_suite(plain, plane)
    options = {"levels": [3, 10], "n_random": 45}
    everything, few = kind(**options)(plane, plain), kind(**options, random_error=0.35)(plane, scene)  # type: ignore[arg-type]
    assert scene.suite is not None
    suite = scene.suite(kind(levels=[3, 10]))
    numbers = set()
    for name in ("mean", "random_rgb"):
        for i in range(8):
            each = {at: everything[f"{name}_L{at}_orderings"].curve[i].numpy() for at in (3, 10)}  # type: ignore[index]
            spread = {at: np.std([s[f"{name}_L{at}"].value[i] for s in suite.values()], ddof=1) for at in (3, 10)}
            enough = [
                n
                for n in (10, 20, 30, 40, 45)
                if n == 45 or all(each[at][:n].std(ddof=1) / n**0.5 <= 0.35 * spread[at] for at in (3, 10))
            ]
            n = enough[0]
            numbers.add(n)
            assert few[f"{name}_orders"].value[i] == n
            for at in (3, 10):
                assert few[f"{name}_L{at}_random"].value[i] == pytest.approx(each[at][:n].mean(), abs=1e-12)
                assert few[f"{name}_L{at}_orderings"].value[i] == pytest.approx(each[at][:n].std(), abs=1e-12)
                drawn = few[f"{name}_L{at}_orderings"].curve[i].numpy()  # type: ignore[index]
                np.testing.assert_allclose(drawn[:n], each[at][:n], rtol=0, atol=1e-12)
                assert np.isnan(drawn[n:]).all()
    assert len(numbers) > 2, "the images should differ"
    for name, score in kind(levels=[3, 10])(plane, plain).items():
        assert torch.equal(few[name].value, score.value)
    assert not any(name.endswith("_orders") for name in everything)


@pytest.mark.parametrize("chunk", [1, 7, None])
def test_how_many_orders_an_image_takes_is_its_own_matter(chunk: int | None) -> None:
    plain = scene_of(batch=8)
    plane, metric = planes(plain), AOPCMoRF(levels=[10], n_random=30, random_error=0.3)
    whole = metric(plane, with_suite(plain, plane))
    assert len(set(whole["mean_orders"].value.tolist())) > 1
    for rows in (torch.tensor([5]), torch.tensor([6, 0, 3])):
        some = replace(part(plain, rows), chunk=chunk)
        for name, score in metric(plane[rows], with_suite(some, plane[rows])).items():
            torch.testing.assert_close(score.value, whole[name].value[rows], rtol=0, atol=1e-9)


def test_without_other_methods_all_orders_are_drawn() -> None:
    scene, metric = scene_of(), AOPCMoRF(levels=[3], n_random=20, random_error=100.0)
    alone = metric(planes(scene), with_suite(scene, planes(scene), others=0))
    assert alone["mean_orders"].value.tolist() == [20] * 5
    assert metric(planes(scene), with_suite(scene, planes(scene)))["mean_orders"].value.tolist() == [10] * 5
    with pytest.raises(SalrunError, match="random_error looks at the methods of a run"):
        metric(planes(scene), scene)


def test_curves_come_with_the_largest_level() -> None:
    scene = scene_of()
    result = AOPCMoRF(levels=[10, 3])(planes(scene), scene)
    curve_, x = result["mean_L10"].curve, result["mean_L10"].curve_x
    assert curve_ is not None
    assert x is not None
    assert curve_.shape == (5, 11)
    assert x.tolist() == list(range(11))
    assert result["mean_L3"].curve is None
    torch.testing.assert_close(result["mean_L3"].value, (curve_[:, :1] - curve_[:, :4]).mean(1), rtol=0, atol=1e-12)


# Defects are flagged, neighbours unharmed -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_bad_maps_are_flagged_and_do_not_touch_their_neighbours(name: str) -> None:
    scene = scene_of()
    plane = planes(scene)
    expected = flat(METRICS[name](plane, scene))
    bad = plane.clone()
    bad[0, 0, 2, 2] = torch.nan
    bad[1, 0, 0, 1] = torch.inf
    bad[2] = 0.0
    for variant, score in flat(METRICS[name](bad, scene)).items():
        if variant.endswith(("_random", "_orderings")):
            assert torch.equal(score.value, expected[variant].value)
            continue
        assert score.flag[:2].tolist() == [NAN_MAP, NAN_MAP]
        assert score.value[:2].isnan().all()
        assert score.flag[2] in (DEGENERATE_MAP, UNDEFINED)
        assert (score.flag[2] == UNDEFINED) == bool(score.value[2].isnan())
        assert score.flag[3:].tolist() == [OK, OK]
        assert torch.equal(score.value[3:], expected[variant].value[3:])


def test_no_variance_is_undefined_not_zero() -> None:
    scene = scene_of()
    flat_model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(192, 4))).double()
    for parameter in flat_model.parameters():
        nn.init.zeros_(parameter)
    deaf = replace(scene, model=flat_model)
    for metric in (METRICS["faithfulness"], METRICS["mono_d"], METRICS["mono_nguyen"]):
        for score in flat(metric(planes(scene), deaf)).values():
            assert score.flag.tolist() == [UNDEFINED] * 5
            assert score.value.isnan().all()


def test_gradients_and_mode_stay_as_found() -> None:
    scene = scene_of()
    before = {k: v.clone() for k, v in scene.model.state_dict().items()}
    with torch.enable_grad():
        for metric in METRICS.values():
            for score in flat(metric(planes(scene).requires_grad_(), scene)).values():
                assert score.curve is None or not score.curve.requires_grad
    assert all(torch.equal(before[k], v) for k, v in scene.model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in scene.model.parameters())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: AOPCMoRF(levels=[]), "levels"),
        (lambda: AOPCMoRF(levels=[0, 5]), "level"),
        (lambda: AOPCMoRF(n_random=-1), "n_random"),
        (lambda: AOPCMoRF(random_error=0.0), "random_error"),
        (lambda: AOPCMoRF(perturbations=["mena"]), "mean"),  # type: ignore[list-item]
        (lambda: Faithfulness(n_pixels=1), "n_pixels"),
        (lambda: Insertion(step=0), "step"),
        (lambda: Monotonicity(groups=1), "groups"),
        (lambda: Monotonicity(n_samples=0), "n_samples"),
        (lambda: AOPCMoRF(levels=[65])(planes(scene_of()), scene_of()), "64 pixels"),
        (lambda: Faithfulness(n_pixels=65)(planes(scene_of()), scene_of()), "64"),
        (lambda: Monotonicity(groups=65)(planes(scene_of()), scene_of()), "64 pixels"),
        (lambda: Deletion()(scene_of().x, scene_of()), "view"),
    ],
)
def test_errors_name_the_parameter(build: object, words: str) -> None:
    with pytest.raises(SalrunError, match=words):
        build()  # type: ignore[operator]
