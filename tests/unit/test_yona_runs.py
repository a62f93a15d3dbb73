"""Whole runs of Yona & Greenfeld's experiments on tiny data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.papers.yona.evidence import HALVES, SANITY
from salrun.pipeline.build import build
from salrun.pipeline.cell import obtain_models, run
from salrun.pipeline.stages import Stages, tiles
from salrun.results.run import Run
from salrun.store.entries import Store
from tests.fake_data import write_mnist


def words(root: Path, experiment: str) -> list[str]:
    tiny = ["verify=false", "validation=10"]
    quick = ["accept_unverified=true", "recipes.fast.epochs=1"]
    chosen = [f"dataset.{w}" for w in tiny] + [f"model.{w}" for w in quick]
    if experiment != SANITY:
        chosen += [f"others.digits.dataset.{w}" for w in tiny] + [f"others.digits.recipe.{w}" for w in quick]
    return [
        f"+experiment={experiment}",
        "scale=smoke",
        "device=cpu",
        f"data_root={root}",
        f"cache_dir={root}/store",
        *chosen,
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("yona")
    write_mnist(folder)
    return folder


@pytest.fixture(scope="module")
def halves_run(root: Path) -> Path:
    config = check(compose_config([*words(root, HALVES), "report=false"]))
    return run(config, root / "outputs" / HALVES / "1")


def test_a_run_of_halves_makes_everything(halves_run: Path) -> None:
    for name in ("similarity", "mass", "causal", "effects", "argument"):
        assert len(pd.read_csv(halves_run / "tables" / f"yona_{name}.csv")), name
    for name in ("figure1", "effects", "cascade_halves"):
        assert (halves_run / "figures" / f"yona_{name}.png").stat().st_size > 5_000
    found = Run(halves_run).claims.set_index("id")["holds"]
    assert set(found.index[found != "not tested"]) == {"Y1", "Y1a", "Y2", "Y2a", "Y2b", "Y5.halves"}
    scores = Run(halves_run).scores
    assert scores["model"].nunique() == 16
    assert scores["image_id"].nunique() == 4
    assert set(scores["group"]) == {"intact"}
    judged = {"mnist_cnn", "digits", *(f"{task}random_{k}" for task in ("", "digits_") for k in range(3))}
    assert set(scores.loc[scores["metric"] == "map_similarity", "model"]) == judged
    models = pd.read_csv(halves_run / "tables" / "model.csv")
    assert models.loc[models["model"].str.contains("random|top"), "verified"].isna().all()


def test_similarity_recomputed_from_the_kept_maps(halves_run: Path) -> None:
    """Each model's map is of its own predicted class: plain scipy on the stored maps gives the table."""
    finished = Run(halves_run)
    (maps,) = finished.maps
    rows = finished.scores.query("method == 'guided_backprop' and metric == 'map_similarity' and score == 'spearman'")
    for role, other in (("model", "random_1"), ("digits", "digits_random_2")):
        a, b = (np.abs(maps.planes("guided_backprop", r)) for r in (role, other))
        of_pair = rows[(rows["cell"] == maps.cell(role)) & (rows["mode"] == other)].set_index("image_id")["value"]
        for image, row in maps.row.items():
            expected = spearmanr(a[row].ravel(), b[row].ravel()).statistic
            assert of_pair[image] == pytest.approx(expected, abs=5e-3)  # kept maps are float16


def test_mass_recomputed_from_the_kept_maps(halves_run: Path) -> None:
    finished = Run(halves_run)
    (maps,) = finished.maps
    plane = np.abs(maps.planes("gradient", "digits").astype(np.float64))
    rows = finished.scores.query("method == 'gradient' and metric == 'mass_share' and score == ''")
    rows = rows[rows["cell"] == maps.cell("digits")].set_index("image_id")
    share = rows.loc[list(maps.row), "value"].to_numpy()
    assert share == pytest.approx(plane[:, 14:].sum((1, 2)) / plane.sum((1, 2)), abs=1e-3)


def test_each_model_is_explained_for_its_own_prediction(root: Path, halves_run: Path) -> None:
    """What a metric sees of another model is what that model's own rows are about, in whatever order they are asked."""
    cell = build(check(compose_config(words(root, HALVES))))
    cell.store = Store(root / "another store")  # nothing known: every map is made here
    cell.others = {name: cell.others[name] for name in ("random_0",)}
    cell.metrics = []
    stages = Stages(cell, {role: obtained.classifier for role, obtained in obtain_models(cell).items()})
    (tile,) = tiles(cell.dataset.explained(), cell.tile)
    part = cell.methods[0]
    result = stages.open(tile)
    seen, _ = stages.scene(result, part, part.view, stages.map(result, part))
    assert seen.other_map is not None
    through = seen.other_map("random_0")
    other = stages.models["random_0"]
    x = stages.open(tile, "random_0").batch.x.clone().requires_grad_(True)
    logits = other.module(other.normalise(x))
    (gradient,) = torch.autograd.grad(logits.amax(1).sum(), x)
    torch.testing.assert_close(through, gradient * other.std, rtol=1e-4, atol=1e-6)
    stages.close()
    assert not stages._maps, "the maps of the other models are forgotten with the tile"


def test_sanity_checks_of_any_model_and_data_without_masks(root: Path, capsys: pytest.CaptureFixture) -> None:
    chosen = [*words(root, SANITY), "dataset=mnist", "model=mnist_cnn", "methods=[gradient,edge]", "report=false"]
    out = run(check(compose_config(chosen)), root / "outputs" / SANITY / "1")
    said = capsys.readouterr().out
    assert "none of the 8 counted statements can be tested on this run alone" in said
    assert (Run(out).claims["holds"] == "not tested").all()
    table = pd.read_csv(out / "tables" / "yona_sensitivity.csv").set_index(["method", "test"])
    assert "task" not in table.index.get_level_values("test")
    assert (table.loc["edge", "value"] == 1).all()
    assert len(table.loc["gradient"]) == 1 + 3 + 4
    assert (out / "figures" / "yona_cascade_trained.png").is_file()
