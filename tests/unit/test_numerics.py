"""`numerics=fast`: which work is done in half precision, its keys, the probe, its refusals, what a run says of it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.config.parts import method_part, metric_parts
from salrun.errors import SalrunError
from salrun.models import inference
from salrun.models.classifier import Classifier
from salrun.models.inference import InferenceCopy
from salrun.pipeline import cell as pipeline
from salrun.pipeline import numerics as numerics_module
from salrun.pipeline import stages as stages_of_cell
from salrun.pipeline.build import Cell, build
from salrun.pipeline.facts import cell_table
from salrun.pipeline.numerics import CERTAIN, Effect, Numerics, compare, measure, probe, refuse_large
from salrun.pipeline.stages import Stages, Tile
from salrun.results.collect import common_facts, refuse_strangers, write_joined
from salrun.results.run import Run
from salrun.results.tables import NUMERICS
from salrun.store.entries import Store, canonical, key_of
from salrun.store.sources import source_of
from salrun.types import Method, Metric, Score
from tests.unit.test_plan import Bar

WORDS = (
    *("dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "methods=[gradient,edge]", "device=cpu"),
    "controls=[]",
    *("metrics=[insertion]", "metrics.insertion.step=256", "dataset.n_per_bucket=2", "dataset.groups=[2,5,11]"),
    *("tile=4", "compile=off"),
)


@pytest.fixture(autouse=True)
def _bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every processor computes in bfloat16, if not faster."""
    monkeypatch.setattr(inference, "fast_dtype", lambda device: torch.bfloat16)


def config(folder: Path, *words: str) -> dict[str, Any]:
    return check(compose_config([*WORDS, f"cache_dir={folder / 'store'}", *words]))


def run(folder: Path, name: str, *words: str) -> Run:
    return Run(pipeline.run(config(folder, "report=false", *words), folder / name, [*WORDS, *words]))


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    """The stages of an exact cell whose model is at hand."""
    made = build(config(tmp_path_factory.mktemp("numerics")))
    return Stages(made, {role: model.classifier for role, model in pipeline.obtain_models(made).items()})


@pytest.fixture(autouse=True)
def _copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are made even for the few images of these tests."""
    monkeypatch.setattr(stages_of_cell, "FEW", 0)


def turned(stages: Stages, folder: Path, model: Classifier | None = None, **changes: Any) -> Stages:
    """The same cell with changes, a store of its own and perhaps another model."""
    cell: Cell = replace(stages.cell, store=Store(folder / "store"), **{"numerics": "fast", **changes})
    return Stages(cell, stages.models if model is None else {"model": model})


# -- which work, which keys --------------------------------------------------------------------------------------------


@dataclass
class Spy(Method):
    """Remembers the model it explained."""

    def __call__(self, model, x, target, rng, fitted):
        self.seen, self.chunk = model, fitted.chunk
        return model(x)[:, :1, None, None].expand(-1, 1, *x.shape[2:]).detach()


class Forward(Spy):
    forward_only = True


class Averaging(Spy):
    averages_passes = True


class Foldable(Spy):
    foldable = True


class LayoutFree(Spy):
    layout_free = True


HALF = {("fast", Forward), ("fast_gradients", Forward), ("fast_gradients", Averaging)}


@pytest.mark.parametrize("numerics", ["exact", "fast", "fast_gradients"])
@pytest.mark.parametrize("kind", [Spy, Foldable, LayoutFree, Forward, Averaging])
def test_what_a_method_explains(exact: Stages, tmp_path: Path, numerics: str, kind: type[Spy]) -> None:
    spy = method_part(kind(), name="spy")
    stages = turned(exact, tmp_path, numerics=numerics, methods=[spy])
    result = stages.open(Tile(0, tuple(stages.cell.dataset.explained()[:2])))
    stages.map(result, spy)
    seen, model = spy.method.seen, stages.models["model"]
    assert getattr(seen, "reduced", False) is ((numerics, kind) in HALF)
    if kind is Forward:
        assert seen is stages.inference() and spy.method.chunk == stages.forward_batch
    elif kind is Foldable:
        assert seen is stages.folded() is not model and spy.method.chunk == stages.cell.chunk
    elif kind is LayoutFree:
        assert seen is stages.folded(whole=True) is not model
    else:
        assert seen is (stages.averaging() if (numerics, kind) in HALF else model)
    if (numerics, kind) in HALF:
        stages.map(result, spy, exact=True)
        assert spy.method.seen is (stages.folded() if kind is Forward else model)


def test_a_method_that_reads_every_layer_explains_a_copy_that_has_them(exact: Stages, tmp_path: Path) -> None:
    """Its batch norm is folded for others, and for it alone stays what it was."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(3844, 2))
    methods = [method_part(LayoutFree(), name="whole"), method_part(Foldable(), name="folded")]
    stages = turned(exact, tmp_path, model=Classifier(module.eval()), methods=methods)
    whole, other = (stages.network_of("model", part) for part in methods)
    assert isinstance(whole, InferenceCopy) and isinstance(other, InferenceCopy)
    assert whole.steps == ("channels_last",) and other.steps == ("folded", "channels_last")
    assert whole.fingerprint != other.fingerprint


def test_little_work_is_done_on_the_model_itself(
    exact: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, images = method_part(Foldable()), len(exact.cell.dataset.explained())
    for few, copied in ((3 * images, True), (3 * images + 1, False)):
        monkeypatch.setattr(stages_of_cell, "FEW", few)
        stages = turned(exact, tmp_path, methods=[part])
        assert (stages.network_of("model", part) is not stages.models["model"]) is copied


def test_where_nothing_is_faster_methods_explain_no_half(
    exact: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "fast_dtype", lambda device: None)
    stages = turned(exact, tmp_path)
    assert stages.network_of("model", method_part(Forward())) is stages.inference() and not stages.inference().reduced
    numerics = measure(stages.cell, stages)
    assert numerics.effects == [] and numerics.facts()["mode"] == "exact" and numerics.dtype == "float32"
    assert "stays float32" in numerics.line() and numerics.deviations == []


def test_a_copy_is_in_the_key_of_its_maps(exact: Stages, tmp_path: Path) -> None:
    tile, part, (metric,) = Tile(0, ("a", "b")), exact.cell.methods[0], exact.cell.metrics
    fast = turned(exact, tmp_path)
    for method, copied in ((part, exact.folded()), (method_part("rise"), exact.inference())):
        expected = key_of(
            "maps",
            **exact.base("model"),
            ids=tile.ids,
            method=method.config,
            target=method.target,
            source=source_of(method.method),
            fit_images=None,
            network=copied.fingerprint,
        )
        assert exact.map_key(tile, method) == expected
        assert (fast.map_key(tile, method) == expected) is (method is part), "a gradient is the same, RISE is not"
    assert exact.inference().fingerprint == exact.folded().fingerprint
    assert exact.inference().fingerprint.endswith("|inference+channels_last")
    assert exact.score_key(tile, part, metric) != fast.score_key(tile, part, metric)


@dataclass
class Again(Metric):
    """Remembers which maps it was shown."""

    needs = frozenset({"explain"})

    def __call__(self, plane, scene):
        self.plane, self.again = plane, scene.explain(scene.x)
        return Score(plane.flatten(1)[:, 0].double(), torch.zeros(len(plane), dtype=torch.uint8))


def test_metrics_that_explain_again_stay_exact(exact: Stages, tmp_path: Path) -> None:
    """What they measure are small differences of maps: both maps are exact, whatever other metrics of the run read."""
    part, (again,) = method_part(Forward(), name="forward"), metric_parts(Again())
    (insertion,) = exact.cell.metrics
    stages = turned(exact, tmp_path, methods=[part], metrics=[insertion, again])
    result = stages.open(Tile(0, tuple(stages.cell.dataset.explained()[:2])))
    stages.score(result, part, insertion)
    assert isinstance(part.method.seen, InferenceCopy)
    stages.score(result, part, again)
    assert part.method.seen is stages.folded()
    with torch.no_grad():
        logits = stages.models["model"](result.batch.x)[:, 0]
    for plane in (again.metric.plane, again.metric.again):
        torch.testing.assert_close(plane[:, 0, 0, 0], logits.abs(), rtol=1e-5, atol=0)


def test_double_precision_is_no_half_precision(tmp_path: Path) -> None:
    with pytest.raises(SalrunError, match="numerics=fast is for precision=float32"):
        build(config(tmp_path, "numerics=fast", "precision=float64"))


# -- figures -----------------------------------------------------------------------------------------------------------

SCORES = torch.linspace(0, 1, 16, dtype=torch.float64)
NOISE = 0.01 * torch.tensor([1.0, -1.0] * 8, dtype=torch.float64)


def test_equal_scores_do_not_shift() -> None:
    assert compare(SCORES, SCORES, 100) == {
        "images": 16, "exact": 0.5, "fast": 0.5, "shift": 0.0, "unseen": 0.0, "rank": 1.0
    }  # fmt: skip


@pytest.mark.parametrize("planned", [16, 100, 10_000])
def test_a_bias_counts_in_standard_errors_of_the_run(planned: int) -> None:
    figures = compare(SCORES, SCORES + 0.02, planned)
    assert figures["shift"] == pytest.approx(0.02 * math.sqrt(planned) / float(SCORES.std()))
    assert figures["unseen"] == pytest.approx(0, abs=1e-9) and figures["rank"] == 1


def test_noise_does_not_add_up() -> None:
    """Without bias the mean of any number of images moves by the same share of its standard error."""
    share = float(NOISE.std() / SCORES.std())
    for planned in (16, 10_000):
        figures = compare(SCORES, SCORES + NOISE, planned)
        assert figures["shift"] == pytest.approx(share)
        assert figures["unseen"] == pytest.approx(CERTAIN * share * math.sqrt(planned / 16))


def test_a_bias_is_what_noise_does_not_explain() -> None:
    certain = CERTAIN * float(NOISE.std()) / 4
    for bias, excess in ((0.9 * certain, 0.0), (certain + 0.1, 0.1)):
        figures = compare(SCORES, SCORES + NOISE + bias, 400)
        assert figures["shift"] == pytest.approx(math.hypot(20 * excess, float(NOISE.std())) / float(SCORES.std()))


@pytest.mark.parametrize(
    ("fast", "rank"),
    [
        (SCORES.flip(0), -1.0),
        (torch.where(SCORES < 0.05, 0.1, SCORES), 1 - 6 * 2 / (16 * 255)),
        (torch.full_like(SCORES, 0.5), 0.0),
    ],
    ids=["reversed", "the first two changed places", "constant"],
)
def test_ranks_of_images(fast: Tensor, rank: float) -> None:
    assert compare(SCORES, fast, 16)["rank"] == pytest.approx(rank)


def test_differences_far_below_the_spread_change_no_rank() -> None:
    clustered = torch.tensor([0.5, 1.0], dtype=torch.float64).repeat(8)
    jitter = 1e-9 * torch.arange(16, dtype=torch.float64)
    figures = compare(clustered + jitter, clustered + jitter.flip(0), 16)
    assert figures["rank"] == 1 and figures["shift"] < 1e-6


def test_without_spread_any_difference_is_too_large() -> None:
    nothing = torch.zeros(16, dtype=torch.float64)
    assert compare(nothing, nothing + torch.eye(16)[0], 16)["shift"] == math.inf
    assert compare(SCORES[:1], SCORES[:1] + 1e-3, 1)["shift"] == math.inf


def test_images_without_a_score_are_left_out() -> None:
    exact, fast = SCORES.clone(), SCORES.clone()
    exact[0] = fast[1] = math.nan
    figures = compare(exact, fast, 16)
    assert figures["images"] == 14 and figures["exact"] == figures["fast"] == pytest.approx(float(SCORES[2:].mean()))
    none = torch.full_like(SCORES, math.nan)
    assert compare(none, none, 16)["shift"] == 0
    assert compare(none, SCORES, 16)["shift"] == compare(SCORES, none, 16)["shift"] == math.inf


# -- the probe ---------------------------------------------------------------------------------------------------------


def test_the_probe_is_evenly_spaced(exact: Stages) -> None:
    def ids_of(n: int) -> list[str]:
        data = type("Data", (), {"explained": lambda self: [str(k) for k in range(n)]})()
        return probe(replace(exact.cell, dataset=data))

    assert ids_of(6) == [str(k) for k in range(6)]
    assert ids_of(64) == [str(k) for k in range(0, 64, 4)]
    assert len(ids_of(6400)) == 100 and ids_of(6400)[1] == "64"


def test_a_small_effect_is_measured_and_told(exact: Stages, tmp_path: Path) -> None:
    rise = method_part("rise", {"n_masks": 20})
    stages = turned(exact, tmp_path, methods=[*exact.cell.methods, rise], tile=2)
    numerics = measure(stages.cell, stages)
    scores = [(e.method, e.metric) for e in numerics.effects if e.metric]
    assert sorted(scores) == [("edge", "insertion"), ("gradient", "insertion")], "a control and what takes one pass"
    (maps,) = (e for e in numerics.effects if not e.metric)
    assert maps.method == "rise" and maps.images == 2 and 0.999 < maps.correlation < 1
    assert all(0 < e.shift < 0.1 and e.exact != e.fast for e in numerics.effects if e.metric)
    half = {"numerics": "fast", "dtype": "bfloat16", "tf32": False}
    assert numerics.of("model") == {"precision": "float32", **half}
    exactly = {"numerics": "exact", "dtype": "float32", "tf32": False}
    assert numerics.of("other") == {"precision": "float32", **exactly}
    assert "numerics=fast: bfloat16; on a probe of 6 images scores shift by at most" in numerics.line()


def test_a_run_without_a_cheap_method_is_probed_by_the_gradient(exact: Stages, tmp_path: Path) -> None:
    stages = turned(exact, tmp_path, methods=[method_part("rise", {"n_masks": 20})])
    assert {e.method for e in measure(stages.cell, stages).effects if e.metric} == {"gradient"}


def test_a_run_in_which_nothing_is_faster_is_exact(exact: Stages, tmp_path: Path) -> None:
    stages = turned(exact, tmp_path, metrics=metric_parts("sparseness"))
    assert measure(stages.cell, stages).facts() == {"mode": "exact", "dtype": "float32", "tf32": False, "steps": {}}


def test_tf32_alone_is_measured_and_told(exact: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CUDA device, for a model that has no bfloat16."""
    monkeypatch.setattr(inference, "fast_dtype", lambda device: None)
    monkeypatch.setattr(inference, "has_tf32", lambda device: True)
    stages = turned(exact, tmp_path, methods=[*exact.cell.methods, method_part("rise", {"n_masks": 20})])
    numerics = measure(stages.cell, stages)
    assert {e.method for e in numerics.effects} == {"gradient", "edge", "rise"}
    assert numerics.of("model") == {"precision": "float32", "numerics": "fast", "dtype": "tf32", "tf32": True}
    assert numerics.facts()["tf32"] and numerics.line().startswith("numerics=fast: tf32; on a probe of 6 images")
    assert stages.map_key(Tile(0, ("a",)), stages.cell.methods[-1]) != exact.map_key(
        Tile(0, ("a",)), stages.cell.methods[-1]
    )


def test_cells_keep_their_names_but_where_they_are_computed_otherwise(exact: Stages) -> None:
    obtained = pipeline.obtain_models(exact.cell)
    usual = Numerics("exact", "float32", "float32", {}, [])
    table = cell_table(exact.cell, obtained, usual)
    (row,) = table.drop(columns=["cell", "precision", "numerics", "dtype", "tf32"]).to_dict("records")
    assert table["cell"][0] == hashlib.sha256(canonical(row).encode()).hexdigest()[:12], "nothing of it counts"
    for other in (replace(usual, precision="float64"), replace(usual, mode="fast", effects=[Effect("model", "rise")])):
        assert cell_table(exact.cell, obtained, other)["cell"][0] != table["cell"][0]


class Offset(nn.Module):
    """Logits beside a number so large that bfloat16 counts in eights."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, z: Tensor) -> Tensor:
        return self.module(z) + 1500


def spoilt(model: Classifier, change: Callable[[nn.Module], nn.Module]) -> Classifier:
    other = Classifier(change(model.module), name=model.name, fingerprint=change.__name__)
    other.mean, other.std = model.mean, model.std
    return other.eval()


def accepted(stages: Stages) -> Numerics:
    numerics = measure(stages.cell, stages)
    refuse_large(stages.cell, numerics)
    return numerics


def test_a_large_effect_on_scores_is_refused(exact: Stages, tmp_path: Path) -> None:
    with pytest.raises(SalrunError) as refusal:
        accepted(turned(exact, tmp_path, spoilt(exact.models["model"], Offset)))
    told = str(refusal.value)
    assert told.startswith("numerics=fast shifts metrics.insertion of edge by ") and "\n" not in told
    assert "standard errors (<= 0.1)" in told and "(>= 0.98)" in told
    assert told.endswith(": use numerics=exact, or +metrics.insertion.numerics=exact")
    assert accepted(turned(exact, tmp_path, spoilt(exact.models["model"], nn.Sequential))).effects


class Rough(nn.Module):
    """A derivative that bfloat16 cannot know: waves shorter than its last digit."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, z: Tensor) -> Tensor:
        return self.module(z) + (1000 * z).sin().mean((1, 2, 3)).unsqueeze(1)


def test_gradients_that_change_are_refused_by_the_method_s_name(exact: Stages, tmp_path: Path) -> None:
    smoothgrad = method_part("smoothgrad", {"n_samples": 4})
    for model, good in ((exact.models["model"], True), (spoilt(exact.models["model"], Rough), False)):
        for mode in ("fast", "fast_gradients"):
            stages = turned(exact, tmp_path, model, numerics=mode, methods=[smoothgrad], metrics=[])
            if good or mode == "fast":
                effects = accepted(stages).effects
                assert [(e.method, e.images) for e in effects] == [("smoothgrad", 4)] * (mode == "fast_gradients")
            else:
                with pytest.raises(SalrunError, match=r"maps of smoothgrad by 0\.\d+ .*: use numerics=fast, or leave"):
                    accepted(stages)


# -- a run -------------------------------------------------------------------------------------------------------------


def test_a_refused_run_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics_module, "SHIFT", 1e-12)
    with pytest.raises(SalrunError, match="shifts metrics.insertion of edge"):
        run(tmp_path, "refused", "numerics=fast")
    facts = json.loads((tmp_path / "refused" / "run.json").read_text())
    assert facts["status"] == "failed" and facts["reason"].startswith("numerics=fast shifts")
    assert [row["method"] for row in facts["numerics"]["probe"]] == ["edge", "gradient"]
    assert not (tmp_path / "refused" / "tables").exists()


def test_a_run_says_how_it_computed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    plain, fast = run(tmp_path, "plain"), run(tmp_path, "fast", "numerics=fast")
    steps = {"model": ["channels_last"]}
    assert plain.facts["numerics"] == {"mode": "exact", "dtype": "float32", "tf32": False, "steps": steps}
    assert plain.numerics == "exact" and len(plain.effects) == 0
    assert not (plain.path / "tables" / "numerics.csv").exists()
    numerics = fast.facts["numerics"]
    assert (fast.numerics, numerics["dtype"]) == ("fast", "bfloat16")
    assert numerics["steps"] == {"model": ["channels_last", "bfloat16"]}
    assert numerics["bounds"] == {"shift": 0.1, "rank": 0.98, "correlation": 0.999}
    assert any(deviation.startswith("numerics=fast: bfloat16") for deviation in fast.facts["deviations"])
    assert "NaN" not in (fast.path / "run.json").read_text()
    table = pd.read_csv(fast.path / "tables" / "numerics.csv")
    assert list(table.columns) == NUMERICS and set(table["cell"]) == set(fast.cells["cell"])
    assert table["shift"].tolist() == pytest.approx([row["shift"] for row in numerics["probe"]])
    assert set(fast.effects["score"]) == {""}
    computed = ["precision", "numerics", "dtype", "tf32"]
    assert plain.cells[computed].astype(str).values.tolist() == [["float32", "exact", "float32", "False"]]
    assert fast.cells[computed].astype(str).values.tolist() == [["float32", "fast", "bfloat16", "False"]]
    assert not set(plain.cells["cell"]) & set(fast.cells["cell"])
    keys = ["image_id", "method"]
    values = [r.scores.set_index(keys)["value"].sort_index() for r in (plain, fast)]
    assert not values[0].equals(values[1]) and values[0].sub(values[1]).abs().max() < 0.01
    assert fast.images["confidence"].equals(plain.images["confidence"]), "predictions are exact"
    with pytest.raises(SalrunError, match="numerics is exact in one, fast in the other"):
        refuse_strangers([plain, fast])
    again = run(tmp_path, "again", "numerics=fast")
    write_joined([fast, again], tmp_path / "joined", fast.metrics)
    assert pd.read_csv(tmp_path / "joined" / "numerics.csv").equals(table), "of both once"
    assert common_facts([fast, again])["numerics"] == {"mode": "fast"}
    assert again.facts["computed"]["model"] == {"maps": 0, "scores": 0} and again.scores.equals(fast.scores)
    capsys.readouterr()
    run_plan = pipeline.run(config(tmp_path, "numerics=fast", "plan=true"), tmp_path / "plan")
    assert json.loads((run_plan / "run.json").read_text())["planned_only"]
    assert capsys.readouterr().out.splitlines()[-1].startswith("numerics=fast: bfloat16; on a probe of 6 images")


def test_a_metric_may_stay_exact_beside_fast_ones(tmp_path: Path) -> None:
    """Its scores are those of the exact run; the probe leaves it out, and the run says so."""
    words = ("metrics=[insertion,deletion]", "metrics.deletion.step=256")
    plain = run(tmp_path, "plain", *words)
    fast = run(tmp_path, "fast", *words, "numerics=fast", "+metrics.deletion.numerics=exact")
    assert set(fast.effects["metric"]) == {"insertion"}
    assert fast.facts["numerics"]["exactly"] == ["deletion"]
    assert fast.facts["numerics"]["steps"] == {
        "model": ["channels_last", "bfloat16"],
        "model, exact": ["channels_last"],
    }
    assert any(deviation.endswith("; scored exactly: deletion") for deviation in fast.facts["deviations"])
    keys = ["image_id", "method", "metric"]
    a, b = (r.scores.set_index(keys)["value"].sort_index() for r in (plain, fast))
    for metric, same in (("deletion", True), ("insertion", False)):
        assert a.xs(metric, level="metric").equals(b.xs(metric, level="metric")) is same
    with pytest.raises(SalrunError, match=r"metrics.insertion.numerics must be exact .* got 'fast'"):
        run(tmp_path, "wrong", "+metrics.insertion.numerics=fast")


def test_a_plan_does_not_wait_for_a_long_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes what the store has; the rest, where it would take longer than its patience, is left to the run."""
    monkeypatch.setattr(pipeline, "PATIENCE", 0.0)
    words = ("numerics=fast", "methods=[gradient,edge,rise]", "methods.rise.n_masks=20")

    def planned(name: str) -> str:
        capsys.readouterr()
        pipeline.run(config(tmp_path, *words, "plan=true"), tmp_path / name)
        return capsys.readouterr().out.splitlines()[-1]

    told = planned("before")
    assert re.fullmatch(r"numerics=fast: its effect is measured when the run starts \(about \d+ s\)", told)
    assert not list((tmp_path / "store").glob("scores/*")), "nothing of the probe was computed"
    measured = run(tmp_path, "run", *words).facts["deviations"]
    assert planned("after") in measured, "it is known now"


def test_the_probe_shows_how_far_it_is(exact: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[Bar] = []

    def bar(**options: Any) -> Bar:
        bars.append(Bar(**options))
        return bars[-1]

    monkeypatch.setattr(numerics_module, "tqdm", bar)
    rise = method_part("rise", {"n_masks": 20})
    stages = turned(exact, tmp_path, methods=[*exact.cell.methods, rise], tile=2)
    measure(stages.cell, stages)
    again = turned(exact, tmp_path, methods=[*exact.cell.methods, rise], tile=2)
    measure(again.cell, again)
    first, second = bars
    passes = exact.cell.metrics[0].metric.passes(exact.models["model"], exact.cell.dataset.shape)
    least = 2 * (2 * 6 * passes + 2 * 20)  # exactly and fast: two methods on six images, RISE on two
    assert first.n == first.total >= least and len(first.moves) > 10
    assert second.total == 0, "the store has it"
