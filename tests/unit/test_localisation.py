"""Localisation: plain-loop twins, the known answers of the SMERF benchmark, bounds and invariances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import salrun
from salrun.errors import SalrunError
from salrun.methods.baselines import Oracle
from salrun.metrics.common import box_blur
from salrun.metrics.localisation import (
    AFL,
    IOU,
    MAFL,
    LocalisationAUC,
    PointingGame,
    RelevanceRankAccuracy,
    TopKIntersection,
    histogram_cut,
    top_pixels,
)
from salrun.metrics.mass import MassShare
from salrun.rng import Draws
from salrun.types import DEGENERATE_MAP, FLAGS, NEUTRAL, NO_MASK, OK, PRIMARY, SECONDARY, UNDEFINED, Fitted, Scene
from salrun.views import view
from tests import toys

quick = settings(max_examples=40, deadline=None, derandomize=True)
ROLE = {"primary": PRIMARY, "secondary": SECONDARY}


def scene_of(masks: dict, roles: dict) -> Scene:
    """A scene of masks only: name -> (B, H, W), name -> role(s)."""
    n, h, w = next(iter(masks.values())).shape
    return toys.scene(
        torch.zeros(n, 3, h, w),
        masks={k: torch.as_tensor(v).bool() for k, v in masks.items()},
        roles={k: torch.as_tensor(v, dtype=torch.int8).expand(n) for k, v in roles.items()},
    )


# -- plain-loop twins ------------------------------------------------------------------------------------------------


def slow_blur(p: np.ndarray, size: int) -> np.ndarray:
    half, (h, w) = size // 2, p.shape
    out = np.zeros_like(p)

    def mirror(i: int, n: int) -> int:
        i = abs(i)
        return 2 * (n - 1) - i if i >= n else i

    for r in range(h):
        for c in range(w):
            for dr in range(-half, half + 1):
                for dc in range(-half, half + 1):
                    out[r, c] += p[mirror(r + dr, h), mirror(c + dc, w)]
    return out / size**2


def slow_afl(plane: np.ndarray, boxes: list, mode: str, mean: bool) -> float:
    p = plane
    if mode == "code":
        p = slow_blur(p, 7)
        p = (p - p.min()) / (p.max() - p.min())
    p = p / p.sum()
    if mode == "paper":
        boxes = [np.any(boxes, axis=0)]
    inside = [p[r, c] for box in boxes for r, c in zip(*np.nonzero(box), strict=True)]
    return float(np.mean(inside) if mean else np.sum(inside))


def slow_iou(plane: np.ndarray, boxes: list, primary: list, mode: str) -> float:
    p = slow_blur(plane, 7)
    if mode == "code":
        k = sum(int(box.sum()) for box in primary)
        counts, edges = np.histogram(p, bins=10)
        i, total = 9, counts[9]
        while total < k:
            i -= 1
            total += counts[i]
        chosen = p >= edges[i]
    else:
        boxes, k = [np.any(boxes, axis=0)], int(np.any(primary, axis=0).sum())
        chosen = np.zeros(p.size, bool)
        chosen[np.argsort(-p.ravel(), kind="stable")[:k]] = True
        chosen = chosen.reshape(p.shape)
    return float(np.mean([(box & chosen).sum() / (box | chosen).sum() for box in boxes]))


def slow_pointing(plane: np.ndarray, boxes: list, tolerance: int) -> float:
    region = list(zip(*np.nonzero(np.any(boxes, axis=0)), strict=True))
    hits = []
    for r, c in zip(*np.nonzero(plane == plane.max()), strict=True):
        hits.append(any((r - a) ** 2 + (c - b) ** 2 <= tolerance**2 for a, b in region))
    return float(np.mean(hits))


def random_case(seed: int, n: int = 6, size: int = 20):
    """Planes and three boxes with random places and roles, some overlapping."""
    rng = np.random.default_rng(seed)
    masks = {k: np.zeros((n, size, size), bool) for k in ("a", "b", "c")}
    for mask in masks.values():
        for image in mask:
            r, c = rng.integers(0, size - 4, 2)
            h, w = rng.integers(2, 9, 2)
            image[r : r + h, c : c + w] = True
    roles = {k: rng.integers(0, 3, n) for k in masks}
    planes = rng.random((n, size, size)) ** 3
    return planes, masks, roles


def boxes_of(masks: dict, roles: dict, i: int, role: int) -> list:
    return [masks[k][i] for k in masks if roles[k][i] == role]


@pytest.mark.parametrize("role", ["primary", "secondary"])
@pytest.mark.parametrize("mode", ["code", "paper"])
@pytest.mark.parametrize("metric", ["afl", "mafl", "iou"])
def test_twin(metric, mode, role):
    seen = set()
    for seed in range(4):
        planes, masks, roles = random_case(seed)
        score = {"afl": AFL, "mafl": MAFL, "iou": IOU}[metric](role=role, mode=mode)(
            torch.tensor(planes).unsqueeze(1), scene_of(masks, roles)
        )
        for i, plane in enumerate(planes):
            boxes, primary = boxes_of(masks, roles, i, ROLE[role]), boxes_of(masks, roles, i, PRIMARY)
            seen.add(FLAGS[score.flag[i]])
            if not boxes or (metric == "iou" and mode == "paper" and not primary):
                assert score.flag[i] == NO_MASK
                assert score.value[i].isnan()
                continue
            if metric == "iou":
                want = slow_iou(plane, boxes, primary, mode)
            else:
                want = slow_afl(plane, boxes, mode, mean=metric == "mafl")
            assert score.value[i].item() == pytest.approx(want, abs=1e-12)
    assert seen == {"ok", "no_mask"}


@pytest.mark.parametrize("tolerance", [0, 1, 4])
def test_pointing_game_twin(tolerance):
    planes, masks, roles = random_case(7, n=12)
    planes[3] = 0.5
    planes[4] = np.round(planes[4])
    score = PointingGame(tolerance=tolerance)(torch.tensor(planes).unsqueeze(1), scene_of(masks, roles))
    for i, plane in enumerate(planes):
        boxes = boxes_of(masks, roles, i, PRIMARY)
        if boxes:
            assert score.value[i].item() == pytest.approx(slow_pointing(plane, boxes, tolerance), abs=1e-12)
        else:
            assert score.flag[i] == NO_MASK


def test_blur_twin_and_opencv():
    planes = np.random.default_rng(3).random((2, 13, 17))
    got = box_blur(torch.tensor(planes), 7).numpy()
    np.testing.assert_allclose(got, [slow_blur(p, 7) for p in planes], atol=1e-14)
    cv2 = pytest.importorskip("cv2")
    opencv = [cv2.blur(p, (7, 7), borderType=cv2.BORDER_REFLECT_101) for p in planes]
    np.testing.assert_allclose(got, opencv, atol=1e-14)


@quick
@given(st.integers(0, 2**31), st.integers(0, 120), st.integers(1, 12))
def test_histogram_cut_is_numpys(seed, count, levels):
    """Few levels put many pixels exactly on bin edges."""
    plane = np.random.default_rng(seed).integers(0, levels, (10, 12)) / 7
    assume(plane.min() < plane.max())
    counts, edges = np.histogram(plane, bins=10)
    i = 9
    while counts[i:].sum() < count:
        i -= 1
    got = histogram_cut(torch.tensor(plane).unsqueeze(0), torch.tensor([count]))
    np.testing.assert_array_equal(got[0].numpy(), plane >= edges[i])


@quick
@given(st.integers(0, 2**31), st.integers(0, 4096), st.integers(1, 5))
def test_top_pixels_breaks_ties_by_index(seed, count, levels):
    plane = np.random.default_rng(seed).integers(0, levels, (64, 64)).astype(float)
    want = np.zeros(4096, bool)
    want[np.argsort(-plane.ravel(), kind="stable")[:count]] = True
    got = top_pixels(torch.tensor(plane).unsqueeze(0), torch.tensor([count]))
    np.testing.assert_array_equal(got.flatten().numpy(), want)


# -- known answers ---------------------------------------------------------------------------------------------------


def rectangle(row: int, col: int, height: int, width: int, size: int = 64) -> torch.Tensor:
    mask = torch.zeros(1, size, size, dtype=torch.bool)
    mask[0, row : row + height, col : col + width] = True
    return mask


def test_toy_of_figure_14():
    """247 primary pixels at 1, 100 secondary at 0.8, the rest at 0.001; the paper prints .75 and .24."""
    primary, secondary = rectangle(3, 3, 19, 13), rectangle(40, 40, 10, 10)
    plane = torch.where(primary, 1.0, torch.where(secondary, 0.8, 0.001)).unsqueeze(1)
    scene = scene_of({"text": primary, "box1": secondary}, {"text": PRIMARY, "box1": SECONDARY})

    def both(**options):
        return [AFL(role=role, **options)(plane, scene).value.item() for role in ROLE]

    assert both(blur=1) == pytest.approx([0.755, 0.245], abs=5e-4)
    assert both(mode="paper") == pytest.approx([0.747, 0.242], abs=5e-4)


def test_perfect_map_of_box2_scores_16_of_49():
    box2 = rectangle(30, 30, 4, 4)
    scene = scene_of({"box2": box2}, {"box2": PRIMARY})
    plane = view("seismic")(box2.unsqueeze(1).double())
    assert AFL()(plane, scene).value.item() == pytest.approx(16 / 49, abs=1e-12)
    assert MAFL()(plane, scene).value.item() == pytest.approx(1 / 49, abs=1e-12)
    assert AFL(mode="paper")(box2.unsqueeze(1).double(), scene).value.item() == 1.0
    corner = rectangle(0, 0, 4, 4)
    scene = scene_of({"box2": corner}, {"box2": PRIMARY})
    assert AFL()(corner.unsqueeze(1).double(), scene).value.item() == pytest.approx(0.62, abs=0.01)


def glyph(letter: str) -> np.ndarray:
    """The anti-aliased letter in its 19-row box, from the package's own PGM."""
    path = Path(salrun.__file__).parent / "datasets" / "glyphs" / f"{letter}.pgm"
    words = " ".join(line for line in path.read_text().splitlines() if not line.startswith("#")).split()
    width, height = int(words[1]), int(words[2])
    return np.array(words[4:], float).reshape(height, width) / 255


SHAPES = {"box1": np.ones((10, 10)), "box2": np.ones((4, 4)), "A": glyph("A"), "B": glyph("B")}


def textbox(names: tuple, n: int = 300, seed: int = 0):
    """Objects placed by TextBox's rules -> (ink, box), each name -> (n, 64, 64)."""
    rng = np.random.default_rng(seed)
    ink = {k: np.zeros((n, 64, 64)) for k in names}
    box = {k: np.zeros((n, 64, 64), bool) for k in names}
    for i in range(n):
        u = rng.random(2)
        phantom, text = (36 * u).astype(int), (36 * u + 6).astype(int)

        def far(a, b, squared):
            return ((a - b) ** 2).sum() > squared

        while not far(box1 := rng.integers(0, 54, 2), phantom, 300):
            pass
        while True:
            box2 = rng.integers(0, 54, 2)
            clear_of_text = far(box2, phantom, 400) or not {"A", "B"} & set(names)
            if clear_of_text and (far(box2, box1, 300) or "box1" not in names):
                break
        for k in names:
            (r, c), (h, w) = {"box1": box1, "box2": box2}.get(k, text), SHAPES[k].shape
            ink[k][i, r : r + h, c : c + w] = SHAPES[k]
            box[k][i, r : r + h, c : c + w] = True
    return ink, box


# PAFL and PIOU of a map that is the primary objects' ink, measured with the benchmark's own code.
ORACLE = [
    (("box1",), 0.686, 0.82),
    (("box2",), 0.329, 0.95),
    (("A",), 0.911, 0.070),
    (("B",), 0.832, 0.73),
    (("box1", "box2"), 0.638, 0.39),
    (("A", "box1"), 0.81, 0.29),
    (("B", "box1"), 0.78, 0.35),
    (("A", "box2"), 0.82, 0.27),
    (("B", "box2"), 0.77, 0.36),
]


@pytest.mark.parametrize(("names", "pafl", "piou"), ORACLE, ids=lambda v: "+".join(v) if isinstance(v, tuple) else "")
def test_ceiling_of_the_oracle(names, pafl, piou):
    """The control lights ink as it is drawn, soft edges included: lit whole, letters beside a box would be .01 off."""
    ink, box = textbox(names)
    scene = scene_of(box, dict.fromkeys(names, PRIMARY))
    drawn = {f"{name}_ink": torch.tensor(pixels) for name, pixels in ink.items()}
    fitted = Fitted(masks={**scene.masks, **drawn}, roles=scene.roles)
    raw = Oracle()(scene.model, torch.zeros(300, 3, 64, 64, dtype=torch.float64), scene.target, scene.rng, fitted)
    plane = view("seismic")(raw)
    assert AFL()(plane, scene).value.mean().item() == pytest.approx(pafl, abs=0.007)
    assert IOU()(plane, scene).value.mean().item() == pytest.approx(piou, abs=0.008)


def test_oracle_of_letter_a_selects_everything():
    ink, box = textbox(("A",), n=50)
    score = IOU()(view("seismic")(torch.tensor(ink["A"]).unsqueeze(1)), scene_of(box, {"A": PRIMARY}))
    assert score.value.tolist() == [285 / 4096] * 50
    assert score.flag.tolist() == [OK] * 50


def test_negative_evidence_swamps_the_offset_views():
    """Box1 = +1, text = -q: where zero is drawn mid-grey, a small coherent negative wins; drawn in `seismic`, less."""
    ink, box = textbox(("box1", "A"), n=150)
    scene = scene_of(box, {"box1": PRIMARY, "A": SECONDARY})
    published = {
        "shap": (0.687, 0.55, 0.32, 0.21, 0.11, 0.05),
        "seismic": (0.687, 0.68, 0.65, 0.62, 0.54, 0.40),
    }
    for name, row in published.items():
        got = []
        for q in (0, 0.01, 0.05, 0.1, 0.25, 1):
            raw = torch.tensor(np.where(box["box1"], 1.0, -q * ink["A"])).unsqueeze(1)
            got.append(AFL()(view(name)(raw), scene).value.mean().item())
        assert got == pytest.approx(row, abs=0.025)


def test_random_map_scores_the_area():
    raw = Draws.of(0, [str(i) for i in range(200)]).uniform("noise", (3, 64, 64))
    plane = view("inverse")(raw)
    for name, share in {"box1": 0.025, "A": 0.070, "B": 0.060, "box2": 0.004}.items():
        h, w = SHAPES[name].shape
        scene = scene_of({name: rectangle(21, 17, h, w).expand(200, -1, -1)}, {name: PRIMARY})
        got = AFL()(plane, scene).value.mean().item()
        assert got == pytest.approx(h * w / 4096, abs=0.003)
        assert got == pytest.approx(share, abs=0.003)


def test_overlap_counts_twice_in_the_code_and_once_in_the_paper():
    box = rectangle(10, 10, 5, 5, 32)
    plane = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, two = scene_of({"a": box}, {"a": PRIMARY}), scene_of({"a": box, "b": box}, {"a": PRIMARY, "b": PRIMARY})
    assert AFL()(plane, two).value.item() == pytest.approx(2 * AFL()(plane, one).value.item(), abs=1e-15)
    assert AFL(mode="paper")(plane, two).value.item() == AFL(mode="paper")(plane, one).value.item()
    assert MAFL()(plane, two).value.item() == pytest.approx(MAFL()(plane, one).value.item(), abs=1e-15)


@pytest.mark.parametrize("metric", [AFL, MAFL, IOU, PointingGame, MassShare])
def test_the_role_says_which_way_is_better(metric):
    assert (metric().direction, metric(role="secondary").direction) == ("higher", "lower")


def test_ink_instead_of_box():
    ink, box = textbox(("A",), n=3)
    drawn = ink["A"] > 0
    scene = scene_of({"A": box["A"], "A_ink": drawn}, {"A": PRIMARY})
    plane = torch.tensor(ink["A"]).unsqueeze(1)
    assert AFL(mode="paper", roi="ink")(plane, scene).value.tolist() == pytest.approx([1.0] * 3)
    assert IOU(mode="paper", roi="ink", blur=1)(plane, scene).value.tolist() == [1.0] * 3
    assert IOU(mode="paper", blur=1)(plane, scene).value.max() < 0.5
    with pytest.raises(SalrunError, match="needs mask 'A_ink'"):
        AFL(roi="ink")(plane, scene_of(box, {"A": PRIMARY}))


def test_siou_without_a_primary_object():
    """Code: K = 0, the top bin alone. Paper: no K, no value."""
    box = rectangle(20, 20, 10, 10)
    scene = scene_of({"box1": box}, {"box1": SECONDARY})
    plane = box.unsqueeze(1).double()
    assert IOU(role="secondary", blur=1)(plane, scene).value.item() == 1.0
    paper = IOU(role="secondary", mode="paper")(plane, scene)
    assert paper.value.isnan().all()
    assert paper.flag.tolist() == [NO_MASK]


def test_neutral_objects_do_not_count():
    box = rectangle(20, 20, 10, 10)
    scene = scene_of({"box1": box}, {"box1": NEUTRAL})
    for metric in (AFL(), MAFL(), IOU(), PointingGame()):
        score = metric(box.unsqueeze(1).double(), scene)
        assert score.value.isnan().all()
        assert score.flag.tolist() == [NO_MASK]


@pytest.mark.parametrize("level", [0.0, 0.1, 0.7])
def test_constant_map(level):
    """AFL has no value; IOU selects every pixel."""
    box = rectangle(20, 20, 10, 10)
    scene = scene_of({"box1": box}, {"box1": PRIMARY})
    plane = torch.full((1, 1, 64, 64), level)
    for metric, value in ((AFL(), np.nan), (MAFL(), np.nan), (IOU(), 100 / 4096), (PointingGame(), 100 / 4096)):
        score = metric(plane, scene)
        np.testing.assert_allclose(score.value, [value], atol=1e-12)
        assert score.flag.tolist() == [DEGENERATE_MAP]


def test_errors():
    with pytest.raises(SalrunError, match="blur of AFL must be at least 1 and odd, got 4"):
        AFL(blur=4)
    with pytest.raises(SalrunError, match="tolerance of PointingGame must be at least 0, got -1"):
        PointingGame(tolerance=-1)
    scene = scene_of({"a": rectangle(0, 0, 2, 2)}, {"a": PRIMARY})
    with pytest.raises(SalrunError, match=r"reads a plane .* got shape \(1, 3, 64, 64\).*view"):
        AFL()(torch.rand(1, 3, 64, 64), scene)
    with pytest.raises(SalrunError, match="needs masks with roles"):
        IOU()(torch.rand(1, 1, 64, 64), scene_of({"a": rectangle(0, 0, 2, 2)}, {}))
    with pytest.raises(SalrunError, match="7 x 7 blur needs more than 3 pixels"):
        AFL()(torch.rand(1, 1, 3, 3), scene_of({"a": rectangle(0, 0, 2, 2, 3)}, {"a": PRIMARY}))


# -- properties ------------------------------------------------------------------------------------------------------


@quick
@given(st.integers(0, 2**31), st.floats(0.3, 4.0))
def test_piou_of_two_disjoint_objects_is_at_most_a_half(seed, power):
    rng = np.random.default_rng(seed)
    a, b = rectangle(*rng.integers(0, 12, 2), 9, 6, 32), rectangle(*(16 + rng.integers(0, 8, 2)), 5, 7, 32)
    noise = torch.tensor(rng.random((1, 1, 32, 32))) ** power
    plane = noise + (a | b).unsqueeze(1) * float(rng.choice([0, 1, 5]))
    value = IOU()(plane, scene_of({"a": a, "b": b}, {"a": PRIMARY, "b": PRIMARY})).value.item()
    assert 0 <= value <= 0.5


@quick
@given(st.integers(0, 2**31), st.sampled_from([torch.exp, torch.atan, lambda v: v**3, lambda v: 5 * v - 2]))
def test_rank_metrics_see_only_the_order(seed, monotone):
    planes, masks, roles = random_case(seed)
    planes = torch.tensor(planes).unsqueeze(1)
    scene = scene_of(masks, roles)
    for metric in (IOU(mode="paper", blur=1), PointingGame()):
        before, after = metric(planes, scene).value, metric(monotone(planes), scene).value
        assert torch.equal(before.nan_to_num(-1), after.nan_to_num(-1))


@quick
@given(st.integers(0, 2**31), st.floats(0.01, 100), st.floats(-5, 5))
def test_code_mode_is_affine_invariant_and_paper_mode_scale_invariant(seed, factor, shift):
    planes, masks, roles = random_case(seed)
    planes = torch.tensor(planes).unsqueeze(1)
    scene = scene_of(masks, roles)
    for role in ROLE:
        code, paper = AFL(role=role), AFL(role=role, mode="paper")
        for metric, other in ((code, planes * factor + shift), (paper, planes * factor)):
            a, b = metric(planes, scene).value, metric(other, scene).value
            torch.testing.assert_close(a, b, atol=1e-9, rtol=0, equal_nan=True)


@quick
@given(st.integers(0, 2**31))
def test_bounds(seed):
    planes, masks, roles = random_case(seed)
    planes = torch.tensor(planes).unsqueeze(1)
    scene = scene_of(masks, roles)
    for mode in ("code", "paper"):
        share, mean, iou = (metric(mode=mode)(planes, scene).value.nan_to_num(0) for metric in (AFL, MAFL, IOU))
        overlaps = 3 if mode == "code" else 1
        assert ((share >= 0) & (share <= overlaps + 1e-12)).all()
        assert ((mean >= 0) & (mean <= share + 1e-12)).all()
        assert ((iou >= 0) & (iou <= 1)).all()


# -- ranks of pixels against the objects -------------------------------------------------------------------------------


def region_scene() -> tuple[torch.Tensor, Scene, np.ndarray]:
    """Four images with a box each, maps with ties; the third has no primary object."""
    masks = torch.zeros(4, 6, 6, dtype=torch.bool)
    for i, mask in enumerate(masks):
        mask[i : i + 3, 1:4] = True
    roles = torch.tensor([PRIMARY, PRIMARY, SECONDARY, PRIMARY], dtype=torch.int8)
    plane = torch.round(toys.images(4, 6, 1, seed=3) * 6) / 6
    scene = toys.scene(torch.zeros(4, 1, 6, 6), masks={"object": masks}, roles={"object": roles})
    return plane, scene, masks.numpy()


def expected_hits(m: np.ndarray, mask: np.ndarray, k: int) -> float:
    """Mean over random orders of tied pixels."""
    rng, total = toys.rng(0), 0.0
    for _ in range(4000):
        order = np.lexsort((rng.random(m.size), -m.ravel()))[:k]
        total += mask.ravel()[order].sum()
    return total / 4000


def test_relevance_rank_accuracy_and_top_k_are_means_over_ties() -> None:
    plane, scene, masks = region_scene()
    rank, top = RelevanceRankAccuracy()(plane, scene), TopKIntersection(k=7)(plane, scene)
    for i in (0, 1, 3):
        m = plane[i, 0].numpy()
        assert rank[""].value[i].item() == pytest.approx(expected_hits(m, masks[i], 9) / 9, abs=0.02)
        assert top[""].value[i].item() == pytest.approx(expected_hits(m, masks[i], 7) / 7, abs=0.02)
        assert rank["chance"].value[i].item() == top["chance"].value[i].item() == 9 / 36
    for score in (rank[""], top[""], LocalisationAUC()(plane, scene)):
        assert score.flag.tolist() == [OK, OK, NO_MASK, OK] and score.value[2].isnan()
    flat = torch.full_like(plane, 0.5)
    assert RelevanceRankAccuracy()(flat, scene)[""].value[0].item() == pytest.approx(9 / 36)
    with pytest.raises(SalrunError, match="k must be at most"):
        TopKIntersection(k=37)(plane, scene)


def test_auc_counts_pairs_of_pixels() -> None:
    plane, scene, masks = region_scene()
    score = LocalisationAUC()(plane, scene)
    for i in (0, 1, 3):
        m = plane[i, 0].numpy()
        on, off = m[masks[i]], m[~masks[i]]
        pairs = [(a > b) + (a == b) / 2 for a in on for b in off]
        assert score.value[i].item() == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("metric", [RelevanceRankAccuracy(), TopKIntersection(k=5), LocalisationAUC()])
def test_the_mask_itself_scores_one_and_its_opposite_less_than_chance(metric) -> None:
    _, scene, masks = region_scene()
    plane = torch.tensor(masks, dtype=torch.float64)[:, None] + 0.1 * toys.images(4, 6, 1)
    for sign, value in ((1, 1.0), (-1, 0.0)):
        score = metric(sign * plane, scene)
        score = score[""] if isinstance(score, dict) else score
        assert score.value[[0, 1, 3]].tolist() == [value] * 3
    secondary = replace(metric, role="secondary")
    assert (metric.direction, secondary.direction) == ("higher", "lower")
    whole = replace(scene, masks={"object": torch.ones(4, 6, 6, dtype=torch.bool)})
    assert LocalisationAUC()(plane, whole).flag.tolist() == [UNDEFINED, UNDEFINED, NO_MASK, UNDEFINED]
