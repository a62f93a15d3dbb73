"""Tables of Tomsett et al. 2020 against scipy and plain means, on a run whose truth is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from salrun.papers.tomsett.evidence import LERF, METHODS, TomsettEvidence, read
from salrun.papers.tomsett.tables import tables
from salrun.stats.bootstrap import resamples
from salrun.stats.reliability import alpha, alpha_draws, rankings
from tests.tomsett_run import made_run, matrix, run_scores
from tests.toys import script


@pytest.fixture(scope="module")
def scores() -> pd.DataFrame:
    return run_scores()


@pytest.fixture(scope="module")
def evidence(scores: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> TomsettEvidence:
    return read(made_run(tmp_path_factory.mktemp("tomsett"), scores), draws=400)


@pytest.fixture(scope="module")
def made(evidence: TomsettEvidence) -> dict[str, pd.DataFrame]:
    return tables(evidence)


def test_every_table_has_a_seed(made: dict[str, pd.DataFrame]) -> None:
    assert set(made) == {"table1", "table2", "inter_method", "subsets", "subset_alpha"}
    assert all((table["seed"] == 0).all() for table in made.values())


def test_table_1_is_alpha_of_the_rankings(scores: pd.DataFrame, made: dict[str, pd.DataFrame]) -> None:
    table = made["table1"].set_index(["metric", "steps", "perturbation", "edge"])
    assert len(table) == 44
    morf = matrix(scores, "aopc_morf", "mean_L100")
    lerf = matrix(scores, "aopc_lerf", "random_rgb_L20").drop(columns="edge")
    f = matrix(scores, "faithfulness", "mean")
    assert table.loc[("MoRF", 100, "mean", "with"), "alpha"] == pytest.approx(alpha(rankings(morf)))
    assert table.loc[("LeRF", 20, "random_rgb", "without"), "alpha"] == pytest.approx(alpha(rankings(-lerf)))
    assert table.loc[("F", 0, "mean", "with"), "alpha"] == pytest.approx(alpha(rankings(f)))  # one image missing
    assert table.loc[("MoRF", 100, "mean", "with"), "published"] == 0.48
    assert (table["ci_low"] < table["alpha"]).all()
    assert (table["alpha"] < table["ci_high"]).all()


def test_table_2_is_spearman_raw_and_aligned(scores: pd.DataFrame, made: dict[str, pd.DataFrame]) -> None:
    table = made["table2"].set_index(["pair", "method"])
    assert len(table) == 20
    morf, lerf = (matrix(scores, m, "mean_L100")["edge"] for m in ("aopc_morf", "aopc_lerf"))
    row = table.loc[("MoRF vs LeRF", "edge")]
    assert row["spearman"] == pytest.approx(stats.spearmanr(morf, lerf).statistic)
    assert row["aligned"] == -row["spearman"]
    f = matrix(scores, "faithfulness", "mean")["edge"]
    valid = f.notna()
    expected = stats.spearmanr(f[valid], morf[valid]).statistic
    assert table.loc[("F vs MoRF", "edge"), "spearman"] == pytest.approx(expected)
    assert table.loc[("F vs MoRF", "sensitivity"), "published"] == 0.34


def test_inter_method_has_four_cells_per_metric(scores: pd.DataFrame, made: dict[str, pd.DataFrame]) -> None:
    table = made["inter_method"]
    assert (table.groupby(["metric", "steps"]).size() == 4).all()
    plain = matrix(scores, "aopc_morf", "mean_L60").drop(columns="edge")
    rho = stats.spearmanr(plain).statistic[np.triu_indices(4, k=1)]
    row = table.query("metric == 'MoRF' and steps == 60 and perturbation == 'mean' and edge == 'without'")
    assert row["spearman"].item() == pytest.approx(rho.mean())
    assert row["lowest_pair"].item() == pytest.approx(rho.min())


def test_draws_of_inter_method_are_those_of_resampled_images(
    scores: pd.DataFrame, evidence: TomsettEvidence, made: dict[str, pd.DataFrame]
) -> None:
    """The resamples are alpha's."""
    table = evidence.draws[0]["inter_method"]
    printed = made["inter_method"].query("steps in (0, 100)").set_index(["metric", "steps", "perturbation", "edge"])
    assert table.shape == (401, 12)
    pd.testing.assert_series_equal(table.iloc[0], printed["spearman"], check_names=False)
    _, counts = next(resamples(200, 400, np.random.default_rng(0)))
    drawn = np.repeat(np.arange(200), counts[0])
    for edge, methods in {"with": list(METHODS), "without": list(METHODS[:-1])}.items():
        f = matrix(scores, "faithfulness", "mean").iloc[drawn][methods]
        rho = f.reset_index(drop=True).corr("spearman").to_numpy()[np.triu_indices(len(methods), k=1)]
        assert table[("F", 0, "mean", edge)].iloc[1] == pytest.approx(rho.mean())
        ranks = rankings(matrix(scores, "aopc_morf", "mean_L100")[methods])
        (of_alpha,) = alpha_draws([ranks], np.random.default_rng(0), 400)[0]
        assert evidence.draws[0]["alpha"][("MoRF", 100, "mean", edge)].iloc[1] == pytest.approx(of_alpha)


def test_subsets_are_means_of_their_images(scores: pd.DataFrame, made: dict[str, pd.DataFrame]) -> None:
    table = made["subsets"].set_index(["quantity", "subset", "metric", "perturbation", "method"])
    lerf = matrix(scores, "aopc_lerf", "mean_L100")["deep_shap"]
    frog = table.loc[("mean", "frog", "LeRF", "mean", "deep_shap")]
    assert frog["value"] == pytest.approx(lerf.iloc[6::10].mean())
    assert frog["images"] == 20
    others = table.loc[("excess", "not frog", "LeRF", "mean", "deep_shap")]
    assert others["value"] == pytest.approx((lerf - 0.2).drop(lerf.index[6::10]).mean())
    assert others["images"] == 180
    unsure = table.loc[("excess", "low confidence", "LeRF", "mean", "deep_shap")]
    assert unsure["value"] == pytest.approx((lerf - 0.2).iloc[::4].mean())
    assert unsure["ci_low"] < unsure["value"] < unsure["ci_high"]
    alphas = made["subset_alpha"].set_index(["subset", "metric", "steps", "perturbation", "edge"])["alpha"]
    expected = alpha(rankings(-matrix(scores, "aopc_lerf", "mean_L100").iloc[6::10]))
    assert alphas[("frog", "LeRF", 100, "mean", "with")] == pytest.approx(expected)


def test_std_draws_are_those_of_the_images(scores: pd.DataFrame, evidence: TomsettEvidence) -> None:
    expected = matrix(scores, "aopc_morf", "mean_L100")["edge"].std(ddof=0)
    assert evidence.draws[0]["std"][("MoRF", "mean", "edge")].iloc[0] == pytest.approx(expected)


def test_the_page_has_a_row_per_subset(
    evidence: TomsettEvidence, made: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    made["subsets"].to_csv(tmp_path / "tomsett_subsets.csv", index=False)
    lines = script("make_docs").subsets(tmp_path, "LeRF", "excess").splitlines()
    assert lines[0] == f"| subset | images | {' | '.join(METHODS)} |"
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| all", "| low confidence", "| airplane"]
    s, key = evidence.scores[0], LERF["mean"]
    value = s.scores[key][METHODS[0]].sub(s.baseline[key]).mean()
    assert lines[2].startswith(f"| all | {s.images} | {value:.3f} |")
