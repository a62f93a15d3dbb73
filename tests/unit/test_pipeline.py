"""A cell through the pipeline, in this process: what is stored, what is computed once, when a run is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.pipeline import cell, plan
from salrun.pipeline.stages import Stages
from salrun.results import record
from salrun.results.run import Run
from salrun.sweep.jobs import finished as finished_job
from salrun.sweep.jobs import job_in

WORDS = (
    *("dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "methods=[gradient,edge]", "device=cpu"),
    "controls=[]",
    *("metrics=[pafl,map_similarity]", "dataset.n_per_bucket=2", "dataset.groups=[2,5,11]", "tile=3", "compile=off"),
    "+others.random={_target_: salrun.models.randomised.Randomised, parent: ${model}, mode: all}",
)
ROLES = {"model", "random"}


def run(folder: Path, *words: str) -> Run:
    config = check(compose_config([*WORDS, f"cache_dir={folder.parent / 'store'}", *words]))
    return Run(cell.run(config, folder, [*WORDS, *words]))


def entries(folder: Path, stage: str) -> int:
    return len(list((folder / "store" / stage).rglob("*.safetensors")))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("pipeline") / "run", "report=false")


def test_facts_are_in_cells_and_images(finished: Run) -> None:
    cells = finished.cells.set_index("role")
    assert set(cells.index) == ROLES and cells["cell"].is_unique
    assert (
        cells.loc["model", "dataset.background"] == "black" and cells.loc["model", "dataset.reasoning"] == "simple_nr"
    )
    assert cells.loc["random", "model.randomised"] == "all" and cells.loc["random", "model.copy"] == 0
    assert cells.loc["model", "source"] == "shipped" and cells["fingerprint"].nunique() == 2
    images = finished.images
    assert list(images.columns) == ["cell", "image_id", "group", "label", "prediction", "confidence"]
    assert len(images) == 2 * 6 and images["confidence"].between(0, 1).all()
    assert set(finished.scores["method"]) == {"gradient", "edge"}
    similar = finished.scores.query("metric == 'map_similarity'")
    assert set(similar["score"]) == {"spearman", "cosine", "ssim", "hog", "relative_change"}
    assert set(similar["cell"]) == {cells.loc["model", "cell"]}  # one that compares models judges one of them
    assert set(finished.summary.query("metric == 'pafl'")["direction"]) == {"higher"}


def test_the_recipe_in_cells_is_the_one_that_made_the_weights(tmp_path: Path) -> None:
    told = run(tmp_path / "run", "report=false", "model.recipe=paper", "methods=[edge]", "metrics=[pafl]")
    assert told.cells.set_index("role").loc["model", ["source", "model.recipe"]].tolist() == ["shipped", "fast"]


def test_a_map_is_made_once_and_kept_maps_need_no_second_look(finished: Run) -> None:
    maps_made = 2 * 2  # tiles, methods
    scores = {"model": 3 * maps_made, "random": 2 * maps_made}  # two modes of PAFL; the own model's similarity
    assert finished.facts["computed"] == {role: {"maps": maps_made, "scores": n} for role, n in scores.items()}
    (maps,) = finished.maps
    assert sorted(maps.images["image_id"]) == sorted(set(finished.images["image_id"]))
    for role in ROLES:
        planes = maps.planes("gradient", role)
        assert planes.shape == (6, 64, 64) and np.abs(planes).max() == pytest.approx(1.0)
    assert maps.cell() == finished.cells.set_index("role").loc["model", "cell"]


def test_a_plan_counts_the_maps_of_all_models(finished: Run) -> None:
    config = check(compose_config([*WORDS, f"cache_dir={finished.path.parent / 'store'}"]))
    planned = cell.preview(cell.build(config), cell.tiles_of(cell.build(config)))
    lines = {line.name: (line.images, line.done) for line in planned.lines if line.stage == "maps"}
    assert lines == {name: (6, 6) for name in ("gradient", "edge")} | {
        f"{m}, 1 others": (6, 0) for m in ("gradient", "edge")
    }
    assert planned.map_bytes == 2 * 6 * 2 * 3 * 64 * 64 * 4


def test_no_more_images_are_timed_than_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []
    monkeypatch.setattr(plan, "forward_rate", lambda model, cell, batch, enough: timed.append(batch) or 1.0)
    run(tmp_path / "run", "methods=[gradient]", "metrics=[pafl]", "report=false", "tile=65536")
    assert set(timed) == {6}


def test_no_map_is_stored_where_none_is_to_be_kept(tmp_path: Path, finished: Run) -> None:
    bare = run(tmp_path / "run", "report=false", "keep_maps=none")
    assert entries(tmp_path, "maps") == entries(tmp_path, "planes") == 0 and not (bare.path / "maps").exists()
    assert bare.facts["computed"]["random"]["maps"] == finished.facts["computed"]["random"]["maps"]
    assert bare.scores.equals(finished.scores)


def test_too_many_maps_leave_planes_only(tmp_path: Path, finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "MAP_BUDGET", 0)
    first = run(tmp_path / "run", "report=false")
    assert entries(tmp_path, "maps") == 0 and entries(tmp_path, "planes") == 2 * 2 * 2
    again = run(tmp_path / "again", "report=false")
    assert again.facts["computed"] == {role: {"maps": 0, "scores": 0} for role in ROLES}
    for made in (first, again):
        for role in ROLES:
            assert np.array_equal(made.maps[0].planes("edge", role), finished.maps[0].planes("edge", role))


def test_a_run_is_done_when_its_report_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def report(out: Path, comparisons: object) -> None:
        seen.update(json.loads((out / "run.json").read_text()))
        raise ValueError("no page today")

    monkeypatch.setattr(cell, "write_report", report)
    with pytest.raises(ValueError, match="no page"):
        run(tmp_path / "run", "methods=[edge]", "metrics=[pafl]")
    assert (seen["status"], seen["stage"]) == ("running", "report")
    facts = record.read_facts(tmp_path / "run")
    assert facts["status"] == "failed" and facts["reason"].endswith("ValueError: no page today")


def test_a_job_is_done_while_all_that_it_made_is_there(tmp_path: Path) -> None:
    config = check(compose_config([*WORDS, f"cache_dir={tmp_path / 'store'}", "methods=[edge]", "metrics=[pafl]"]))
    out = cell.run(config, tmp_path / "run")
    code = record.code_of(config)
    assert {"report.html", "tables/scores.parquet"} < set(record.read_facts(out)["made"])
    assert finished_job(out, config, code)
    for name in ("report.html", "tables/scores.parquet"):
        data = (out / name).read_bytes()
        (out / name).write_bytes(b"")
        assert not finished_job(out, config, code) and job_in(out).state == "failed"
        (out / name).write_bytes(data)
    assert job_in(out).state == "done"


def test_overrides_are_kept_word_by_word(tmp_path: Path) -> None:
    made = run(tmp_path / "run", "methods=[edge]", "metrics=[pafl]", "report=false", r"name='it\'s mine'")
    assert made.overrides[-1] == r"name='it\'s mine'" and made.experiment == "it's mine"
    assert made.facts["command"].startswith("salrun dataset=textbox")


def test_a_scene_explains_other_classes_and_by_other_models(finished: Run) -> None:
    """The maps of this tile again: for the class of the method and for another, by this model and by the random one."""
    config = check(compose_config([*WORDS, f"cache_dir={finished.path.parent / 'store'}"]))
    work = cell.build(config)
    stages = Stages(work, {role: model.classifier for role, model in cell.obtain_models(work).items()})
    tile, part = cell.tiles_of(work)[0], work.methods[0]
    result = stages.open(tile)
    scene, plane = stages.scene(result, part, None, stages.map(result, part))
    assert scene.explain is not None and scene.other_map is not None
    torch.testing.assert_close(scene.explain(scene.x), plane)
    # Of two logits the gradients differ; those of the class itself are the method's.
    torch.testing.assert_close(scene.explain(scene.x, scene.target), plane)
    assert (scene.explain(scene.x, 1 - scene.target) - plane).abs().amax() > 1e-3 * plane.abs().amax()
    torch.testing.assert_close(scene.other_map("random", scene.x), scene.other_map("random"))
    assert not torch.allclose(scene.other_map("random", 1 - scene.x), scene.other_map("random"))
