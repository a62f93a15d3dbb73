"""Zhang's figures: extremes among the kept maps, and scores against the class probability."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from salrun import papers
from salrun.papers.zhang import figures
from salrun.papers.zhang.evidence import read
from salrun.papers.zhang.names import METHODS
from tests import zhang_runs as runs

IDS = [f"n0/{i:03d}" for i in range(12)]


@pytest.fixture(scope="module")
def scores():
    table = runs.published_as_run()
    return runs.with_cells(table[table["experiment"] == runs.FIDELITY])


@pytest.fixture(scope="module")
def evidence(scores):
    return read(runs.in_memory(scores, curves=True), draws=5).seeds[0]


def test_figures_are_written(scores, tmp_path, monkeypatch):
    monkeypatch.setattr("salrun.papers.zhang.evidence.read.__defaults__", (100,))  # no interval is looked at
    run = runs.save_run(tmp_path, scores)
    runs.save_maps(tmp_path, METHODS, IDS)
    _, problems = papers.conclude("zhang", run)
    assert problems == []
    kinds = [f"zhang_figure{n}.{kind}" for n in (1, 2) for kind in ("png", "svg", "csv")]
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {*kinds, "zhang_figure1.json", "zhang_captions.json"}
    index = json.loads((tmp_path / "figures" / "zhang_figure1.json").read_text())
    assert len(index) == 6 * 2 * 2
    best = next(i for i in index if i["metric"] == "AI" and i["place"] == "best" and i["end"] == "highest")
    assert best["method"] == "score_cam"
    worst = [i for i in index if i["metric"] == "Db" and i["place"] == "worst"]
    assert {i["method"] for i in worst} == {"fake_cam"}
    points = pd.read_csv(tmp_path / "figures" / "zhang_figure2.csv")
    assert set(points["metric"]) == {"AG", "AD", "I", "D"}
    assert len(points) == 4 * 10 * 30
    assert points.query("metric == 'D' and method == 'rise'")["value"].mean() == pytest.approx(100 - 80.4)


def test_figure_1_shows_the_highest_and_lowest_of_kept_images(scores, evidence, tmp_path):
    few = scores[scores["image_id"].isin(IDS)]
    run = runs.save_run(tmp_path, few)
    runs.save_maps(tmp_path, METHODS, ["n0/003", "n0/008"])
    table = figures.extremes(evidence, run.maps)
    assert set(table["image_id"]) <= {"n0/003", "n0/008"}
    for _, item in table.iterrows():
        two = evidence.frames["fidelity"].loc[["n0/003", "n0/008"], (item["metric"], item["method"])]
        assert item["value"] == (two.max() if item["end"] == "highest" else two.min())


def test_figure_1_of_collected_runs_is_drawn_from_their_maps(scores, evidence, tmp_path):
    few = scores[scores["image_id"].isin(IDS[:1])]
    parts = {
        "quick": (runs.FIDELITY, 0, METHODS[:6]),
        "dear": (runs.DEAR, 0, METHODS[6:]),
        "robust": (runs.ROBUSTNESS, 0, METHODS),
        "later": (runs.FIDELITY, 1, METHODS),
    }
    for name, (experiment, seed, methods) in parts.items():
        some = few[few["method"].isin(methods)].assign(experiment=experiment, seed=seed)
        runs.save_run(tmp_path / name, runs.with_cells(some))
        runs.save_maps(tmp_path / name, methods, ["n0/008"] if name == "dear" else ["n0/003", "n0/008"])
    folders = [str(tmp_path / name) for name in [*parts, "gone"]]
    maps = read(runs.save_run(tmp_path / "all", few, runs=folders), draws=5).maps
    assert [m.folder.parent.name for m in maps] == ["quick", "dear"]
    assert maps[0].plane("gradient", "n0/008").max() == 1
    table = figures.extremes(evidence, maps)
    assert len(table) == 6 * 2 * 2
    dear = table[table["method"].isin(METHODS[6:])]
    assert len(dear)
    assert set(dear["image_id"]) == {"n0/008"}
    _, numbers, further = figures.figure_1(evidence, maps)
    assert len(json.loads(further["json"])) == len(numbers)


def test_figure_2_thins_images_out_evenly(evidence):
    table = figures.probability_table(evidence, most=4)
    p = table.query("metric == 'I' and method == 'rise'")["p"]
    assert p.tolist() == pytest.approx([0.0, 0.10, 0.19, 0.29])


def test_figure_2_is_a_panel_for_each_metric_and_method(evidence):
    fig, table = figures.figure_2(evidence)
    assert len(fig.axes) == 4 * 10
    panel = fig.axes[2 * 10 + METHODS.index("rise")]  # insertion
    part = table.query("metric == 'I' and method == 'rise'").sort_values("p")
    dots = panel.collections[0].get_offsets()
    np.testing.assert_allclose(np.asarray(dots), part[["p", "value"]])
    line = panel.lines[0].get_ydata()
    assert line == pytest.approx([part["value"].iloc[6 * k : 6 * k + 6].mean() for k in range(5)])
