"""What is read of zhang's runs: settings by their facts, the paper's units, images that can be compared."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from salrun.errors import SalrunError
from salrun.papers.evidence import means
from salrun.papers.zhang.evidence import published_evidence, published_tables, read, seen_images, setting_of
from salrun.papers.zhang.names import METHODS, REAL
from salrun.papers.zhang.single_images import effects, shared_worst, with_sparseness
from salrun.papers.zhang.tables import discrimination_table, means_table
from salrun.stats.bootstrap import resamples
from tests import zhang_runs as runs


@pytest.fixture(scope="module")
def scores():
    return runs.published_as_run()


@pytest.fixture(scope="module")
def evidence(scores):
    return read(runs.in_memory(scores, curves=True), draws=20).seeds[0]


def evidence_of(scores, draws=5):
    return read(runs.in_memory(scores), draws=draws).seeds[0]


def test_published_tables_are_whole():
    printed = published_tables()
    sizes = {name: len(table) for name, table in printed.items()}
    assert sizes == {"fidelity": 60, "targets": 150, "robustness": 50 + 20, "transforms": 200 + 50}
    both = printed["targets"].query("target == 'label'").merge(printed["fidelity"], on=["method", "metric"])
    differs = both[both["printed_x"] != both["printed_y"]]
    assert differs[["method", "metric"]].to_numpy().tolist() == [["integrated_gradients", "I"]]
    assert (both["printed_x"] - both["printed_y"]).abs().max() < 0.15


def test_suspected_misprints_can_be_corrected():
    suspect = published_tables()["transforms"].dropna(subset="corrected")
    assert suspect[["transform", "method", "metric"]].to_numpy().tolist() == [
        ["resize", "fake_cam", "ADb"],
        ["resize", "fake_cam", "AG"],
        ["crop", "grad_cam", "Db"],
    ]
    as_printed, corrected = (published_evidence(c)["transforms"].iloc[0] for c in (False, True))
    assert as_printed["resize", "ADb", "fake_cam"] == 2.0
    assert corrected["resize", "ADb", "fake_cam"] == 90.5


def test_units():
    table = runs.table_of([runs.rows(runs.FIDELITY, m, "rise", [30.0], ["a"]) for m in ("AI", "ADb", "Db", "Mono")])
    assert table.set_index("metric")["value"].round(6).to_dict() == {
        "average_increase": 0.3,
        "average_drop": 0.7,
        "deletion": 0.7,
        "monotonicity": 30.0,
    }
    assert evidence_of(table).frames["fidelity"].loc["a"].round(6).eq(30.0).all()


def test_settings_are_facts():
    assert setting_of({"protocol": "fidelity", "target": "label"}) == "fidelity"
    assert setting_of({"protocol": "targets", "target": "least_probable"}) == "least_probable"
    assert setting_of(pd.Series({"protocol": "transforms", "target": "label"})) == "transforms"
    assert setting_of({"protocol": np.nan}) == "fidelity"
    assert setting_of({}) == "fidelity"


def test_names_of_experiments_say_nothing(scores):
    cells = runs.cells_of(scores)
    cells["experiment"] = "e" + cells["cell"]
    named = scores.assign(experiment="e" + scores["cell"])
    frames = read(runs.in_memory(named, cells=cells), draws=5).seeds[0].frames
    assert set(frames) == {"fidelity", "robustness", "targets", "transforms"}


def test_runs_that_state_no_protocol_are_fidelity_where_nothing_else_is(scores):
    fidelity = scores[scores["experiment"] == runs.FIDELITY]
    stranger = runs.with_cells(fidelity.assign(experiment="custom", value=0.0))
    assert set(evidence_of(stranger).frames) == {"fidelity"}
    both = runs.with_cells(pd.concat([fidelity, stranger]))
    assert evidence_of(both).frames["fidelity"].equals(evidence_of(fidelity).frames["fidelity"])


def test_dear_methods_may_have_fewer_images(scores):
    dear = ["score_cam", "rise", "lime", "iba"]
    fidelity = scores[scores["experiment"] == runs.FIDELITY]
    some = fidelity["image_id"].isin(fidelity["image_id"].unique()[:7])
    second = fidelity[some & fidelity["method"].isin(dear)].assign(experiment=runs.DEAR)
    joined = runs.with_cells(pd.concat([fidelity[~fidelity["method"].isin(dear)], second], ignore_index=True))
    e = evidence_of(joined)
    n = means_table("table1", e).groupby("method")["n"].max()
    assert n["gradient"] == 30
    assert n["rise"] == 7
    basis = e.claims.basis("fidelity")
    assert basis.images == 7
    assert basis.note == "only the images that all methods explain, of 30"
    assert discrimination_table(e).empty  # too few


def test_methods_are_compared_on_the_images_that_all_explain(scores):
    fidelity = scores[scores["experiment"] == runs.FIDELITY]
    ids = fidelity["image_id"].unique()
    easy = (fidelity["metric"] == "insertion") & fidelity["image_id"].isin(ids[:12])
    varied = fidelity.assign(value=fidelity["value"].mask(easy, fidelity["value"] + 0.5))  # for every method alike
    joined = varied[(varied["method"] != "rise") | varied["image_id"].isin(ids[:12])]
    whole, part = evidence_of(varied), evidence_of(joined)
    means = [e.claims["fidelity"]["I"].iloc[0] for e in (whole, part)]
    gap = [m["rise"] - m["grad_cam"] for m in means]
    assert gap[1] == pytest.approx(gap[0], abs=0.1)  # 18 points more if grad_cam had all its images
    ranks = [means_table("table1", e).set_index(["metric", "method"]).loc[("I", "rise"), "rank"] for e in (whole, part)]
    assert ranks[0] == ranks[1]


def test_fidelity_stands_in_for_the_label(scores):
    less = scores[scores["experiment"] != "zhang_targets_label"]
    e = evidence_of(less)
    assert set(e.frames["targets"].columns.get_level_values("target")) == {"label", "predicted", "least_probable"}
    assert "fidelity" in e.settings["targets"]
    other = less.assign(target=np.where(less["experiment"] == runs.FIDELITY, 1, 0))
    assert set(evidence_of(other).frames["targets"].columns.get_level_values("target")) == {
        "predicted",
        "least_probable",
    }


def test_settings_of_one_table_have_the_same_images(scores):
    ids = scores["image_id"].unique()[:3]
    less = scores[scores["experiment"].isin([runs.FIDELITY, "zhang_targets_predicted"])]
    less = less[(less["experiment"] == runs.FIDELITY) | less["image_id"].isin(ids)]
    frames = evidence_of(less).frames
    assert len(frames["fidelity"]) == 30
    assert list(frames["targets"].index) == list(ids)
    assert frames["targets"]["label", "AI", "rise"].equals(frames["fidelity"].loc[ids]["AI", "rise"])


def test_transforms_are_means_over_variations_of_the_same_image(evidence, scores):
    frame = evidence.frames["transforms"]
    assert list(frame.index) == [f"n0/{i:03d}" for i in range(30)]
    rows = scores.query("experiment == 'zhang_transforms' and metric == 'insertion' and method == 'rise'")
    rows = rows.query("source_id == 'n0/004' and transform == 'crop'")
    assert len(rows) == 2
    assert frame.loc["n0/004", ("crop", "I", "rise")] == pytest.approx(100 * rows["value"].mean())


def test_without_clean_images_fidelity_is_the_reference(scores):
    less = scores[(scores["experiment"] != runs.TRANSFORMS) | (scores["transform"] != "clean")]
    clean = means_table("table4", evidence_of(less)).query("transform == 'clean'")
    np.testing.assert_allclose(clean["value"], clean["published"], atol=1e-9)


def test_correlations_are_spearman_with_the_class_probability(evidence):
    scores = evidence.frames["fidelity"]
    p = evidence.probability.loc["fidelity"].droplevel(["transform", "strength"])
    rho = stats.spearmanr(100 - scores["ADb", "rise"], p.reindex(scores.index)).statistic
    assert evidence.claims["correlation"]["AD", "rise"].iloc[0] == pytest.approx(rho)


@pytest.mark.filterwarnings("error")
def test_a_metric_that_never_varies_has_no_correlation(scores):
    black = (scores["method"] == "gradient") & (scores["metric"] == "average_gain")
    still = scores.assign(value=scores["value"].mask(black, 0.0))
    table = read(runs.in_memory(still, curves=True), draws=5).seeds[0].claims["correlation"]
    assert np.isnan(table[("AG", "gradient")]).all()
    assert table[("AG", "rise")].notna().all()


def test_effect_sizes_are_cohens_d():
    loud = runs.published_as_run(images=12, noise=100)
    frame = evidence_of(loud[loud["experiment"] == runs.FIDELITY]).frames["fidelity"]
    table = effects(frame, means(frame, 30), ["AI", "Mono"])
    assert table.shape == (31, 2 * 36)
    counts = next(counts for _, counts in resamples(12, 30, np.random.default_rng(0)))
    for row, drawn in {0: np.arange(12), 7: np.repeat(np.arange(12), counts[6])}.items():
        a, b = (frame["Mono", method].to_numpy()[drawn] for method in ("rise", "iba"))
        pooled = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
        assert table["Mono", "rise / iba"][row] == pytest.approx((a.mean() - b.mean()) / pooled)


def test_sparseness_is_correlated_within_images(evidence):
    frame = evidence.frames["fidelity"]
    rho = [stats.spearmanr(frame["Sparseness"].loc[i, REAL], frame["ADb"].loc[i, REAL]).statistic for i in frame.index]
    assert evidence.claims["sparseness"]["ADb"].iloc[0] == pytest.approx(np.mean(rho))


def test_an_image_whose_methods_score_alike_has_no_correlation(scores):
    one = (scores["metric"] == "average_increase") & (scores["image_id"] == "n0/004")
    frame = evidence_of(scores.assign(value=scores["value"].mask(one, 1.0))).frames["fidelity"]
    without = with_sparseness(frame.drop(index="n0/004"), ["AI"], 0)
    assert with_sparseness(frame, ["AI"], 0)["AI"].item() == pytest.approx(without["AI"].item())


def test_the_images_that_score_worst_in_insertion_and_deletion():
    """Of twenty images two are a tenth: both shared, one, none."""
    columns = pd.MultiIndex.from_product([["I", "Db"], METHODS], names=["metric", "method"])
    rising = np.arange(20.0)
    frame = pd.DataFrame(np.tile(rising[:, None], (1, len(columns))), index=map(str, range(20)), columns=columns)
    frame["Db", "rise"] = np.roll(rising, 1)  # the first becomes the best, the second the worst
    frame["Db", "lime"] = -rising
    table = shared_worst(frame, 200)
    assert table.loc[0, ["gradient", "rise", "lime"]].to_list() == [1.0, 0.5, 0.0]
    assert table["gradient"].eq(1).all()  # the same order in every resample
    assert table["rise"].between(0, 1).all() and table["rise"].nunique() > 2


def test_claims_read_images_that_were_not_seen_before(scores, monkeypatch):
    fidelity = scores[scores["experiment"] == runs.FIDELITY]
    ids = fidelity["image_id"].unique()
    seen = fidelity["image_id"].isin(ids[:18])
    shifted = fidelity.assign(value=fidelity["value"].mask(seen, fidelity["value"] + 1))
    monkeypatch.setattr("salrun.papers.zhang.evidence.seen_images", lambda dataset: list(ids[:18]))
    e = evidence_of(shifted)
    assert e.claims.fresh and e.claims.basis("fidelity").images == 12
    assert e.claims.basis("fidelity").note == "only the new images that all methods explain, of 30"
    assert e.claims["fidelity"]["AI", "rise"].iloc[0] == pytest.approx(39, abs=0.1)
    assert means_table("table1", e).set_index(["metric", "method"]).loc[("AI", "rise"), "value"] == pytest.approx(99)
    monkeypatch.setattr("salrun.papers.zhang.evidence.seen_images", lambda dataset: list(ids[:21]))
    old = evidence_of(shifted)  # nine new ones are too few
    assert not old.claims.fresh and old.claims.basis("fidelity").images == 30


def test_every_table_must_have_new_images(scores, monkeypatch):
    some = scores[scores["experiment"].isin([runs.FIDELITY, runs.ROBUSTNESS])]
    ids = some["image_id"].unique()
    monkeypatch.setattr("salrun.papers.zhang.evidence.seen_images", lambda dataset: list(ids[:15]))
    few = some[(some["experiment"] == runs.FIDELITY) | some["image_id"].isin(ids[:20])]
    assert evidence_of(some).claims.fresh and not evidence_of(few).claims.fresh
    fewer = some[(some["experiment"] == runs.FIDELITY) | some["image_id"].isin(ids[10:19])]  # nine decide nothing
    found = evidence_of(fewer).claims
    assert found.fresh and found.basis("robustness").images == 4 and len(found["robustness"]) == 1


def test_images_seen_before_are_named():
    assert {name: len(set(seen_images(name))) for name in ("imagenet", "cifar10", "tinyimagenet")} == {
        "imagenet": 100, "cifar10": 500, "tinyimagenet": 0,
    }  # fmt: skip
    assert "n01514668/ILSVRC2012_val_00000329" in seen_images("imagenet") and "test-00003" in seen_images("cifar10")


@pytest.mark.parametrize(("seeds", "said"), [([4], 4), ([4, 5], None), ([None], None)])
def test_evidence_says_which_images_were_chosen(scores, seeds, said):
    some = scores[scores["experiment"].isin([runs.FIDELITY, runs.ROBUSTNESS])]
    cells = runs.cells_of(some)
    cells["dataset.explained_seed"] = seeds * (2 // len(seeds))
    assert read(runs.in_memory(some, cells=cells), draws=5).seeds[0].claims.images == said
    assert read(runs.in_memory(some), draws=5).seeds[0].claims.images is None  # not said


def test_a_few_images_have_no_draws(scores):
    few = scores[scores["source_id"].isin([f"n0/00{k}" for k in range(4)])]
    assert {len(table) for table in evidence_of(few).claims.tables.values()} == {1}


def test_there_is_evidence_for_every_seed(scores):
    both = runs.with_cells(pd.concat([scores, scores.assign(seed=1)]))
    assert [e.seed for e in read(runs.in_memory(both), draws=5).seeds] == [0, 1]


def test_mixed_runs_are_refused(scores):
    other, larger = (pd.concat([scores, scores.assign(**c)]) for c in ({"model": "other"}, {"scale": "laptop"}))
    with pytest.raises(SalrunError, match="imagenet/resnet50, imagenet/other"):
        evidence_of(runs.with_cells(other))
    with pytest.raises(SalrunError, match="one view and one scale"):
        evidence_of(runs.with_cells(larger))


def test_runs_of_other_weights_are_refused(scores, tmp_path):
    some = scores[(scores["experiment"] == runs.FIDELITY) & (scores["method"] == "rise")]
    for name, weights in {"one": "a", "two": "b"}.items():
        runs.save_run(tmp_path / name, some, runs.cells_of(some).assign(fingerprint=weights))
    run = runs.save_run(tmp_path / "all", some, runs=[str(tmp_path / "one"), str(tmp_path / "two")])
    with pytest.raises(SalrunError, match="/one and .*/two differ in weights; collect each alone"):
        read(run, draws=5)
