"""Figures of Tomsett et al. 2020 and the numbers in them, and all that `conclude` writes into a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from salrun.papers import conclude
from salrun.papers.claims import claims_of
from salrun.papers.style import save
from salrun.papers.tomsett.evidence import METHODS, read, score_names
from salrun.papers.tomsett.figures import _title, aopc, curve_table, figures
from salrun.results.run import Run
from tests.fake_run import save_maps
from tests.tomsett_run import METRICS, about_images, made_run, run_curves, run_scores


def test_aopc_of_a_curve_by_hand() -> None:
    curve = np.array([[1.0, 0.5, 0.2]])
    np.testing.assert_allclose(aopc(curve), [[0.0, 0.25, 1.3 / 3]])


def test_curve_table_subtracts_the_baseline_and_keeps_its_spread() -> None:
    curves = run_curves()
    table = curve_table(curves.join(score_names(METRICS), on=["metric", "mode", "score"]), draws=200)
    edge = curves.query("method == 'edge' and metric == 'aopc_lerf' and score == 'mean_L100'")
    expected = np.mean([np.mean(y[0] - y[:61]) for y in edge["y"]]) - np.mean(np.arange(61) / 1_000)
    at = table.query("method == 'edge' and metric == 'LeRF' and perturbation == 'mean' and L == 60")
    assert at["value"].item() == pytest.approx(expected)
    assert at["ci_low"].item() < expected < at["ci_high"].item()
    random = table.query("method == 'random orders' and metric == 'MoRF' and perturbation == 'mean'")
    assert random[["L", "ci_low", "ci_high"]].to_numpy().tolist() == [pytest.approx([100, -0.095, 0.095])]


@pytest.fixture(scope="module")
def concluded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tomsett")
    made_run(folder, run_scores(100), curves=run_curves())
    save_maps(folder, about_images(20).drop(columns="confidence").to_dict("list"), list(METHODS), {"model": "seed0"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("salrun.papers.tomsett.evidence.read.__defaults__", (100,))  # no interval is looked at
        _, problems = conclude("tomsett", Run(folder))
    assert not problems
    return folder


def test_a_run_gets_its_figures_tables_and_claims(concluded: Path) -> None:
    kinds = ("png", "svg", "csv")
    figures = {f"tomsett_figure{n}.{kind}" for n in ("1", "2a", "2b") for kind in kinds}
    assert {p.name for p in (concluded / "figures").iterdir()} == {*figures, "tomsett_captions.json"}
    assert {p.name for p in (concluded / "tables").glob("tomsett_*")} == {
        f"tomsett_{n}.csv" for n in ("table1", "table2", "inter_method", "subsets", "subset_alpha")
    }
    assert len(Run(concluded).claims) == len(claims_of("tomsett"))
    assert set(Run(concluded).claim_parts["id"]) == set(Run(concluded).claims["id"]) - {"T15"}  # has too few images


def test_figure_1_shows_what_the_model_is_sure_of(concluded: Path) -> None:
    shown = pd.read_csv(concluded / "figures" / "tomsett_figure1.csv")
    picked = shown.drop_duplicates("class").set_index("class")["image_id"]
    assert picked["dog"] == "test-00015"  # the first dog is taken for something else
    assert picked["ship"] == "test-00018"  # the model is unsure of the first ship
    assert (shown["confidence"] >= 0.99).all()
    assert list(shown["method"].unique()) == list(METHODS)


def test_undefined_scores_are_counted_and_figures_are_the_same_every_time(concluded: Path, tmp_path: Path) -> None:
    distribution = pd.read_csv(concluded / "figures" / "tomsett_figure2b.csv")
    assert (distribution.query("item == 'undefined'")["value"] == 1).all()
    again = figures(read(Run(concluded), draws=20))["figure2b"]()
    save(*again, tmp_path / "again")
    first = (concluded / "figures" / "tomsett_figure2b.svg").read_bytes()
    assert (tmp_path / "again.svg").read_bytes() == first


def test_a_run_without_curves_and_maps_has_the_figure_of_its_scores(tmp_path: Path) -> None:
    made_run(tmp_path, run_scores(20))
    _, problems = conclude("tomsett", Run(tmp_path))
    assert not problems
    assert {p.stem for p in (tmp_path / "figures").glob("*.png")} == {"tomsett_figure2b"}


def test_names_are_broken_between_words() -> None:
    assert _title("sensitivity") == "Sensitivity"
    assert _title("edge") == "Edge\ndetection"
