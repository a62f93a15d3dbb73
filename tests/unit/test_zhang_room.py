"""The zhang room: published tables give the published truth; made-up runs give made-up verdicts."""

from __future__ import annotations

import importlib.util
import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file
from scipy import stats

from salrun.build import build, check
from salrun.composing import compose_config
from salrun.errors import SalrunError
from salrun.metrics.robustness import Sensitivity
from salrun.models.classifier import Classifier
from salrun.papers.claims import claims_of, evaluate_claims, measure
from salrun.papers.zhang import claims, figures, tables
from salrun.papers.zhang.tables import FIDELITY, MASKED, METHODS
from salrun.rng import Draws
from salrun.tables import summarise
from salrun.types import Scene

ROOT = Path(__file__).resolve().parents[2]
BY_ID = {c.id: c for c in claims_of("zhang")}
PUBLISHED = {  # on the paper's own Tables 1 to 4, as printed
    **{"D1": "yes", "D2": "no", "D2a": "yes", "D3": "yes", "D3a": "yes", "D3b": "no", "D4": "yes", "D4a": "no"},
    **{"D6": "no", "D6a": "yes", "D7": "yes", "D11": "yes", "D12": "yes", "D13": "no", "D13a": "yes", "D14": "yes"},
    **{"D15": "yes", "D15a": "no", "D16": "no", "D16a": "yes"},
}
TEXT = ["D5", "D8", "D8a", "D9", "D10"]


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- the paper's own tables -------------------------------------------------------------------------------------------


def test_all_claims_are_there():
    assert set(BY_ID) == {*PUBLISHED, *TEXT}
    assert {*(f"D{i}" for i in range(1, 17)), "D3b"} <= set(BY_ID)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tables_give_the_published_truth(name):
    assert measure(BY_ID[name], [tables.published_evidence()]).holds == PUBLISHED[name]


@pytest.mark.parametrize("name", TEXT)
def test_what_is_only_said_has_no_table(name):
    found = evaluate_claims([BY_ID[name]], tables.published_evidence(), tables.published_evidence()).iloc[0]
    assert found["published"] == "text"
    assert found["verdict"] == "not testable here"


def test_corrected_misprints_turn_d12_and_d13():
    corrected = tables.published_evidence(corrected=True)
    turned = {name for name in PUBLISHED if measure(BY_ID[name], [corrected]).holds != PUBLISHED[name]}
    assert turned == {"D12", "D13"}
    table = tables.published("transforms").dropna(subset="corrected")
    assert table[["transform", "method", "metric"]].to_numpy().tolist() == [
        ["resize", "fake_cam", "ADb"],
        ["resize", "fake_cam", "AG"],
        ["crop", "grad_cam", "Db"],
    ]


def on_published(name):
    return BY_ID[name].measure(tables.published_evidence()).iloc[0]


def failing(name):
    return {k for k, v in on_published(name).items() if v <= 0}


def test_what_fails_on_the_published_tables():
    assert failing("D2") == {"Db"}
    assert failing("D3b") == {"iba"}
    assert failing("D13") == {"Db rises, crop grad_cam"}
    assert failing("D16") == {"MS_is_0 fake_cam"}
    worse = pd.Series([name.split()[0] for name in failing("D6")]).value_counts().to_dict()
    assert worse == {"I": 10, "AG": 5, "ADb": 1}


def test_ranks_of_table_1():
    e = tables.published_evidence()
    fake = {m: claims._ranks(e["fidelity"], m)["fake_cam"].item() for m in FIDELITY}
    assert fake == {"AI": 2, "ADb": 1, "AG": 7, "I": 7, "Db": 10, "Mono": 2}
    ranks = claims._mean_ranks(e).iloc[0].round(2)
    assert ranks[["score_cam", "grad_cam", "grad_cam_pp", "iba", "fake_cam"]].tolist() == [2.5, 2.83, 3.33, 4.67, 4.83]


def test_spreads_and_outliers_of_the_published_tables():
    e = tables.published_evidence()
    close = {m: claims._of(e["fidelity"], m, tables.CLOSE).iloc[0] for m in MASKED}
    spread = {m: round(v.max() - v.min(), 1) for m, v in close.items()}
    assert spread == {"AI": 13.2, "ADb": 7.0, "AG": 7.8, "I": 1.8, "Db": 6.4}
    outside = {m: claims._outliers(claims._of(e["robustness"], m)).iloc[0] for m in tables.ROBUSTNESS}
    assert {m: set(o[o].index) for m, o in outside.items()} == {
        "MS": {"guided_backprop"},
        "AS": {"fake_cam", "guided_backprop"},
        "Sparseness": {"fake_cam", "lime"},
        "Complexity": {"fake_cam", "lime"},
        "EC": {"grad_cam", "lime"},
    }
    ranges = {m: round(claims._range(e, m)[claims.REAL].mean(axis=1).item(), 1) for m in MASKED}
    assert ranges == {"AI": 30.3, "ADb": 27.2, "AG": 6.3, "I": 40.2, "Db": 12.0}


def test_published_tables_are_whole():
    sizes = {name: len(tables.published(name)) for name in ("fidelity", "targets", "robustness", "transforms")}
    assert sizes == {"fidelity": 60, "targets": 150, "robustness": 50, "transforms": 200}
    both = (
        tables.published("targets")
        .query("target == 'label'")
        .merge(tables.published("fidelity"), on=["method", "metric"])
    )
    differs = both[both["printed_x"] != both["printed_y"]]
    assert differs[["method", "metric"]].to_numpy().tolist() == [["integrated_gradients", "I"]]
    assert (both["printed_x"] - both["printed_y"]).abs().max() < 0.15


# -- made-up runs -----------------------------------------------------------------------------------------------------

RAW = {name: (c.metric, c.modes[0], c.scale, c.offset) for name, c in tables.COLUMNS.items()}


def variant(mode: str) -> str:
    view = {"ranks": "ranks", "matched_mean": "matched_mean", "complete": "raw"}.get(mode, "minmax")
    return f"{mode}:{view}" if mode else view


def rows(experiment, column, method, values, ids, group="class"):
    """(experiment, method, metric, variant, group) and image ids, values in the metric's own units."""
    metric, mode, scale, offset = RAW[column]
    return (experiment, method, metric, variant(mode), group), ids, (np.asarray(values) - offset) / scale


def table_of(parts, seed=0):
    keys, ids, values = zip(*parts, strict=True)
    each = np.repeat(np.array(keys), [len(i) for i in ids], axis=0)
    frame = pd.DataFrame(each, columns=["experiment", "method", "metric", "variant", "group"])
    own = {"dataset": "imagenet", "model": "resnet50", "seed": seed, "scale": "smoke"}
    frame = frame.assign(image_id=np.concatenate(ids), value=np.concatenate(values), **own)
    return frame.assign(label=0, prediction=0, target=0, flag="ok")


def published_as_run(images=30, seed=0):
    """Runs of all four experiments whose means are the published ones (corrected), with noise over images."""
    rng = np.random.default_rng(seed)
    ids = [f"n0/{i:03d}" for i in range(images)]

    def around(mean, scale):
        values = rng.normal(size=images)
        return mean + scale * (values - values.mean())

    parts = []
    for r in tables.published("fidelity").itertuples():
        scale = 0.001 if r.metric == "Mono" else 0.01
        parts.append(rows("zhang_fidelity", r.metric, r.method, around(r.printed, scale), ids))
        if r.metric in MASKED[:3]:
            for control in tables.CONTROLS:
                parts.append(rows("zhang_fidelity", f"{r.metric} {control}", r.method, around(50, 0.1), ids))
    for method in METHODS:
        complete = 100.0 * (np.arange(images) % 2 == 0) if method == "integrated_gradients" else np.zeros(images)
        parts.append(rows("zhang_fidelity", "Complete", method, complete, ids))
    for r in tables.published("targets").itertuples():
        name = f"zhang_targets_{r.target}"
        parts.append(rows(name, r.metric, r.method, around(r.printed, 1e-3), ids))
    for r in tables.published("robustness").itertuples():
        own = r.metric if r.metric not in ("MS", "AS") else f"{r.metric} fixed"
        parts.append(rows("zhang_robustness", own, r.method, around(r.printed, 1e-4), ids))
        if r.metric in ("MS", "AS"):
            true = 0.0 if r.method == "fake_cam" else 0.5 + 0.1 * (r.metric == "MS")
            parts.append(rows("zhang_robustness", r.metric, r.method, np.full(images, true), ids))
    clean = tables.published("fidelity").query("metric in @MASKED").assign(transform="clean", corrected=np.nan)
    for r in pd.concat([clean, tables.published("transforms")]).itertuples():
        value = r.printed if np.isnan(r.corrected) else r.corrected
        for k, shift in enumerate([0] if r.transform == "clean" else [-1, 1]):
            group = "clean" if r.transform == "clean" else f"{r.transform}/0.{k + 1}"
            named = ids if r.transform == "clean" else [f"{i}@{group}" for i in ids]
            values = around(value, 1e-3) + shift
            parts.append(rows("zhang_transforms", r.metric, r.method, values, named, group))
    table = table_of(parts, seed)
    sure = table[table["experiment"] == "zhang_fidelity"].drop_duplicates("image_id")
    return pd.concat([table, sure.assign(method="-", metric="confidence", variant="-", value=0.9)], ignore_index=True)


def run_curves(scores):
    """Deletion curves whose first point is p_c: the image's number / 100, and a fifth of that where transformed."""
    deletion = scores[scores["metric"] == "deletion"]
    number = deletion["image_id"].str.extract(r"/(\d+)")[0].astype(float) / 100
    p = np.where(deletion["group"].isin(["class", "clean"]), number, number / 5)
    return deletion.assign(x=[np.array([0.0, 1.0])] * len(p), y=[np.array([v, 0.0]) for v in p])


@pytest.fixture(scope="module")
def scores():
    return published_as_run()


@pytest.fixture(scope="module")
def cell(scores):
    return tables.cells(scores, run_curves(scores))[0]


@pytest.fixture(scope="module")
def verdicts(cell):
    return claims.evaluate([cell], draws=300).set_index("id")


def test_tables_1_to_4_give_back_their_numbers(cell):
    found = tables.numbered_tables(cell, draws=200)
    sizes = {name: len(t) for name, t in found.items()}
    assert sizes == {"table1": 60, "table2": 150, "table3": 70, "table4": 250}
    for table in found.values():
        assert (table["ci_low"] <= table["value"] + 1e-9).all()
        assert (table["n"] == 30).all()
    one, four = found["table1"], found["table4"]
    np.testing.assert_allclose(one["value"], one["published"], atol=1e-9)
    clear = one["published_rank"] % 1 == 0  # IG and guided backprop share one
    assert (one["rank"] == one["published_rank"])[clear].all()
    suspect = four.dropna(subset="corrected")
    np.testing.assert_allclose(suspect["value"], suspect["corrected"], atol=1e-9)
    assert (suspect["value"] - suspect["published"]).abs().min() > 5
    assert one["method"].iloc[0] == "fake_cam"
    assert list(dict.fromkeys(one["metric"])) == FIDELITY


def test_units():
    one = table_of([rows("zhang_fidelity", m, "rise", [30.0], ["a"]) for m in ("AI", "ADb", "Db", "Mono")])
    assert one.set_index("metric")["value"].round(6).to_dict() == {
        "average_increase": 0.3,
        "average_drop": 0.7,
        "deletion": 0.7,
        "monotonicity": 30.0,
    }
    cell = tables.cells(one)[0]
    assert cell.scores["fidelity"].loc["a"].round(6).eq(30.0).all()


def test_settings_by_name():
    assert tables.setting_of("zhang_fidelity_dear") == "fidelity"
    assert tables.setting_of("zhang_targets_least_probable") == "least_probable"
    assert tables.setting_of("zhang_targets_label_dear") == "label"
    assert tables.setting_of("zhang_transforms") == "transforms"
    assert tables.setting_of("custom") == "fidelity"


def test_dear_methods_may_have_fewer_images(scores):
    dear = ["score_cam", "rise", "lime", "iba"]
    fidelity = scores[scores["experiment"] == "zhang_fidelity"]
    some = fidelity["image_id"].isin(fidelity["image_id"].unique()[:7])
    second = fidelity[some & fidelity["method"].isin([*dear, "-"])].assign(experiment="zhang_fidelity_dear")
    joined = pd.concat([fidelity[~fidelity["method"].isin(dear)], second], ignore_index=True)
    cell = tables.cells(joined)[0]
    n = tables.numbered_tables(cell, draws=50)["table1"].groupby("method")["n"].max()
    assert n["gradient"] == 30
    assert n["rise"] == 7
    evidence = tables.evidence(cell, draws=5)["fidelity"]
    assert evidence.images == 7
    assert evidence.note == "only the images that all methods explain, of 30"
    assert tables.discrimination_table(cell).empty  # too few


def test_methods_are_compared_on_the_images_that_all_explain(scores):
    fidelity = scores[scores["experiment"] == "zhang_fidelity"]
    ids = fidelity["image_id"].unique()
    easy = (fidelity["metric"] == "insertion") & fidelity["image_id"].isin(ids[:12])
    varied = fidelity.assign(value=fidelity["value"].mask(easy, fidelity["value"] + 0.5))  # for every method alike
    joined = varied[(varied["method"] != "rise") | varied["image_id"].isin(ids[:12])]
    whole, part = tables.cells(varied)[0], tables.cells(joined)[0]
    means = [tables.evidence(c, draws=5)["fidelity"]["fidelity"]["I"].iloc[0] for c in (whole, part)]
    gap = [m["rise"] - m["grad_cam"] for m in means]
    assert gap[1] == pytest.approx(gap[0], abs=0.1)  # 18 points more if grad_cam had all its images
    ranks = [
        tables.numbered_tables(c, draws=5)["table1"].query("metric == 'I'").set_index("method").loc["rise", "rank"]
        for c in (whole, part)
    ]
    assert ranks[0] == ranks[1]


def test_fidelity_stands_in_for_the_label(scores):
    less = scores[scores["experiment"] != "zhang_targets_label"]
    table = tables.numbered_tables(tables.cells(less)[0], draws=20)["table2"]
    assert set(table["target"]) == {"label", "predicted", "least_probable"}
    other = less.assign(target=np.where(less["experiment"] == "zhang_fidelity", 1, 0))
    table = tables.numbered_tables(tables.cells(other)[0], draws=20)["table2"]
    assert set(table["target"]) == {"predicted", "least_probable"}


def test_transforms_are_means_over_variations_of_the_same_image(cell, scores):
    frame = tables.frames(cell)["transforms"]
    assert list(frame.index) == [f"n0/{i:03d}" for i in range(30)]
    own = scores.query("experiment == 'zhang_transforms' and metric == 'insertion' and method == 'rise'")
    own = own[own["image_id"].str.startswith("n0/004@crop")]
    assert len(own) == 2
    assert frame.loc["n0/004", ("crop", "I", "rise")] == pytest.approx(100 * own["value"].mean())


def test_without_clean_images_fidelity_is_the_reference(scores):
    less = scores[scores["group"] != "clean"]
    table = tables.numbered_tables(tables.cells(less)[0], draws=20)["table4"]
    clean = table[table["transform"] == "clean"]
    np.testing.assert_allclose(clean["value"], clean["published"], atol=1e-9)


def test_calibration_is_the_ratio_of_probabilities(cell):
    table = tables.calibration_table(cell).set_index(["transform", "variation"])
    assert table["ratio"].to_numpy() == pytest.approx(0.2)
    assert table.loc[("crop", "all"), "n"] == 60
    assert table.loc[("crop", "0.1"), "n"] == 30
    published = table["published"].dropna().droplevel(1).round(2).to_dict()
    assert published == {"mixup": 0.35, "resize": 0.41, "rotation": 0.40, "crop": 0.83}


def test_controls_stand_beside_table_1(cell):
    table = tables.controls_table(cell, draws=50)
    assert set(product(("AI", "ADb", "AG"), ("minmax", "ranks", "matched_mean"))) == set(
        zip(table["metric"], table["view"])
    )
    assert len(table) == 90
    own = table.query("view == 'minmax'")
    np.testing.assert_allclose(own["value"], own["published"], atol=1e-9)
    assert table.query("view == 'ranks'")["published"].isna().all()
    assert table.query("method == 'rise'")["family"].eq("occlusion").all()


def test_correlations_are_spearman_with_the_class_probability(cell):
    table = tables.correlation_table(cell, draws=20)
    scores, p = cell.scores["fidelity"], cell.probability["fidelity"]
    rho = stats.spearmanr(100 - scores["ADb", "rise"], p.reindex(scores.index)).statistic
    assert table[("AD", "rise")].iloc[0] == pytest.approx(rho)


@pytest.mark.filterwarnings("error")
def test_a_metric_that_never_varies_has_no_correlation(scores):
    black = (scores["method"] == "gradient") & (scores["metric"] == "average_gain")
    still = scores.assign(value=scores["value"].mask(black, 0.0))
    table = tables.correlation_table(tables.cells(still, run_curves(still))[0], draws=5)
    assert np.isnan(table[("AG", "gradient")]).all()
    assert table[("AG", "rise")].notna().all()


def test_discrimination_counts_pairs(cell):
    table = tables.discrimination_table(cell, draws=100).set_index("metric")
    assert table["spread"].round(2).to_dict() == pytest.approx(table["published_spread"].round(2).to_dict())
    assert (table["pairs"] == 10).all()
    assert table.loc["AI", "pairs_apart"] == 10  # noise 0.01 over 30 images


def test_verdicts_on_a_run_that_equals_the_paper(verdicts):
    assert verdicts.loc["D5", "holds"] == "no"  # IG is complete on half of the images
    assert "integrated_gradients" in verdicts.loc["D5", "reason"]
    assert verdicts.loc["D16", "holds"] == "yes"
    assert "the paper's own tables contradict it" in verdicts.loc["D16", "reason"]
    same = [k for k in PUBLISHED if k not in ("D12", "D13", "D16")]
    assert verdicts.loc[same, "verdict"].eq("reproduced").all(), verdicts.loc[same, ["holds", "reason"]]
    assert verdicts.loc["D12", "verdict"] == "not reproduced"  # no column swap here
    assert verdicts.loc["D13", "verdict"] == "not reproduced"
    assert verdicts["verdict"].isin(["reproduced", "not reproduced", "uncertain", "not testable here"]).all()
    assert "CI over 30 images of one model" in verdicts.loc["D2", "reason"]


def test_verdicts_turn_with_the_numbers(scores):
    masked = (scores["method"] == "fake_cam") & scores["metric"].isin(["average_increase", "monotonicity"])
    turned = scores.assign(value=scores["value"].where(~masked, -scores["value"]))
    found = claims.evaluate(tables.cells(turned), draws=100).set_index("id")
    assert found.loc["D1", "holds"] == "no"
    assert found.loc["D1", "verdict"] == "not reproduced"


def test_a_run_of_one_experiment_says_what_it_lacks(scores):
    only = scores[scores["experiment"] == "zhang_robustness"]
    found = claims.evaluate(tables.cells(only), draws=50).set_index("id")
    assert found.loc["D1", "reason"] == "needs the table 'fidelity'"
    assert found.loc["D7", "reason"] == "needs the table 'targets'"
    assert found.loc["D11", "verdict"] != "not testable here"
    few = scores[(scores["experiment"] == "zhang_fidelity") & (scores["method"] != "lime")]
    found = claims.evaluate(tables.cells(few), draws=50).set_index("id")
    assert found.loc["D2", "reason"] == "needs method lime"


def test_tables_of_few_images_leave_the_others_verdicts_alone(scores):
    few = ~scores["experiment"].eq("zhang_transforms") | scores["image_id"].str.contains(r"n0/00[0-3]")
    found = claims.evaluate(tables.cells(scores[few]), draws=50).set_index("id")
    assert found.loc["D14", "verdict"] == "uncertain"
    assert "CI over 4 images" in found.loc["D14", "reason"]
    assert found.loc["D2", "verdict"] == "reproduced"
    assert "CI over 30 images" in found.loc["D2", "reason"]


PARTS = {  # what a run may lack
    "one metric": lambda s: s[s["metric"] == "sparseness"],
    "one method": lambda s: s[s["method"] == "rise"],
    "no metric of the paper": lambda s: s[s["method"] == "-"],
    "a stranger's metric": lambda s: s.assign(metric="pointing_game"),
    "a stranger's method": lambda s: s[s["method"] == "rise"].assign(method="occlusion"),
    "no insertion and deletion": lambda s: s[~s["metric"].isin(["insertion", "deletion"])],
    "all values missing": lambda s: s.assign(value=np.nan),
    "clean images only": lambda s: s[(s["experiment"] == "zhang_transforms") & (s["group"] == "clean")],
    "all methods in Table 1 alone": lambda s: s[
        s["experiment"].eq("zhang_fidelity") | s["method"].isin(["-", "fake_cam", "gradient", "grad_cam"])
    ],
    "one image": lambda s: s[s["image_id"].str.startswith("n0/004")],
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_whatever_a_run_lacks_every_claim_has_a_verdict(part, scores, tmp_path):
    (tmp_path / "tables").mkdir()
    part(scores).to_parquet(tmp_path / "tables" / "scores.parquet")
    run_curves(part(scores)).to_parquet(tmp_path / "tables" / "curves.parquet")
    tables.write_tables(tmp_path, draws=20)
    figures.write_figures(tmp_path)
    found = pd.read_csv(claims.write_claims(tmp_path, draws=20), keep_default_na=False)
    assert found["id"].tolist() == list(BY_ID)
    assert set(found["verdict"]) <= {"uncertain", "not testable here", "reproduced", "not reproduced"}
    assert (found.loc[found["verdict"] == "not testable here", "reason"] != "").all()


def test_conclusions_on_maps_of_equal_brightness(cell, scores):
    table = claims.brightness_table(cell, draws=100).set_index(["conclusion", "metric", "view"])
    assert len(table) == 3 * 3 * 3
    gradient = table.loc["gradient methods have the lowest family mean"]
    assert gradient.loc[("AI", "minmax"), "holds"] == "yes"
    # families of Table 1: gradient 2.43, occlusion 24.35, learning 36.8, CAM 45.57
    assert gradient.loc[("AI", "minmax"), "margin"] == pytest.approx(24.35 - 7.3 / 3)
    assert gradient.loc[("AI", "ranks"), "holds"] == "uncertain"  # 50 for all
    fake = table.loc["Fake-CAM is among the best two"]
    assert fake.loc[("AG", "minmax"), "holds"] == "no"
    quick = scores[~scores["method"].isin(["score_cam", "rise", "lime", "iba"])]
    some = claims.brightness_table(tables.cells(quick)[0], draws=100).set_index(["conclusion", "metric", "view"])
    assert set(some["methods"]) == {6}
    margin = some.loc[("CAM methods have the highest family mean", "AI", "minmax"), "margin"]
    assert margin == pytest.approx((44.4 + 42.3) / 2 - 7.3 / 3)
    assert claims.brightness_table(tables.cells(quick[quick["method"] != "fake_cam"])[0], draws=5).empty


def test_every_claim_reads_the_table_it_is_judged_by(verdicts):
    assert (verdicts["verdict"] != "not testable here").all()


def test_a_few_images_decide_nothing(scores):
    few = scores[scores["image_id"].str.contains(r"n0/00[0-3]")]
    found = claims.evaluate(tables.cells(few, run_curves(few)), draws=50)
    assert set(found["verdict"]) == {"uncertain", "not testable here"}


def test_seeds_are_cells(scores):
    both = pd.concat([scores, scores.assign(seed=1)])
    assert [c.seed for c in tables.cells(both)] == [0, 1]


def test_mixed_runs_are_refused(scores):
    with pytest.raises(SalrunError, match="imagenet/resnet50, imagenet/other"):
        tables.cells(pd.concat([scores, scores.assign(model="other")]))
    with pytest.raises(SalrunError, match="one view and one scale"):
        tables.cells(pd.concat([scores, scores.assign(scale="laptop")]))


def test_runs_of_other_weights_are_refused(scores, tmp_path):
    (tmp_path / "tables").mkdir()
    scores.to_parquet(tmp_path / "tables" / "scores.parquet")
    for name, weights in {"zhang_fidelity": "a", "zhang_fidelity_dear": "b"}.items():
        (tmp_path / name).mkdir()
        facts = {"experiment": name, "seed": 0, "models": {"model": {"fingerprint": weights}}}
        (tmp_path / name / "run.json").write_text(json.dumps(facts))
    runs = [str(tmp_path / n) for n in ("zhang_fidelity", "zhang_fidelity_dear")]
    (tmp_path / "run.json").write_text(json.dumps({"runs": runs}))
    with pytest.raises(SalrunError, match="zhang_fidelity_dear differ in weights"):
        tables.read_cells(tmp_path)


# -- what a run writes ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory, scores):
    folder = tmp_path_factory.mktemp("run")
    for name in ("tables", "maps"):
        (folder / name).mkdir()
    scores.to_parquet(folder / "tables" / "scores.parquet")
    run_curves(scores).to_parquet(folder / "tables" / "curves.parquet")
    rng = np.random.default_rng(0)
    save_file({"x": rng.integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)}, folder / "maps" / "images.safetensors")
    for method in METHODS:
        save_file({"plane": rng.normal(size=(12, 8, 8)).astype(np.float16)}, folder / "maps" / f"{method}.safetensors")
    index = {"image_id": [f"n0/{i:03d}" for i in range(12)]}
    (folder / "maps" / "index.json").write_text(json.dumps(index))
    facts = {
        "experiment": "zhang_fidelity",
        "methods": {"rise": {"_target_": "x", "n_masks": 500, "view": "minmax", "target": "label"}},
        "metrics": {
            "average_increase/all": {"_target_": "x", "mask_space": "raw", "view": "minmax"},
            "average_increase/ranks": {"_target_": "x", "mask_space": "raw", "view": "ranks"},
            "insertion": {"_target_": "x", "substrate": "blur", "ties": "random", "view": "minmax"},
            "completeness": {"_target_": "x", "baseline": "zeros", "view": None},
        },
    }
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def test_tables_say_what_was_run(run):
    made = {p.name for p in tables.write_tables(run, draws=50)}
    names = (
        "table1",
        "table2",
        "table3",
        "table4",
        "controls",
        "further",
        "discrimination",
        "calibration",
        "variations",
    )
    assert made == {f"zhang_{n}.csv" for n in names}
    table = pd.read_csv(run / "tables" / "zhang_table1.csv")
    insertion = table.query("metric == 'I' and method == 'rise'").iloc[0]
    assert insertion["definition"] == "substrate=blur, ties=random, view=minmax"
    assert insertion["method_definition"] == "n_masks=500, view=minmax, target=label"
    page = (run / "tables" / "zhang_table1.md").read_text()
    assert "resnet50 on imagenet, seed 0, scale smoke" in page
    assert "- AI: mask_space=raw, view=minmax" in page
    assert "- RISE: n_masks=500" in page
    assert "| Fake-CAM | 30 |  | 47.3 (47.3) | 99.2 (99.2) |" in page
    assert "| RISE | 30 | n_masks=500 | 39.0 (39) |" in page
    controls = pd.read_csv(run / "tables" / "zhang_controls.csv").query("metric == 'AI'").set_index("view")
    assert set(controls.loc["minmax", "definition"]) == {"mask_space=raw, view=minmax"}
    assert set(controls.loc["ranks", "definition"]) == {"mask_space=raw, view=ranks"}
    assert "- AI ranks: mask_space=raw, view=ranks" in (run / "tables" / "zhang_controls.md").read_text()
    assert "90.5 (2; 90.5?)" in (run / "tables" / "zhang_table4.md").read_text()
    assert "Complete" in set(pd.read_csv(run / "tables" / "zhang_further.csv")["metric"])


def test_collected_runs_bring_their_protocols(run, tmp_path):
    names = {"zhang_fidelity_dear": 4000, "zhang_targets_predicted": 20}
    for name, masks in names.items():
        (tmp_path / name).mkdir()
        facts = {"experiment": name, "methods": {"rise": {"n_masks": masks}}, "metrics": {}}
        (tmp_path / name / "run.json").write_text(json.dumps(facts))
    (tmp_path / "run.json").write_text(json.dumps({"runs": [str(run), *(str(tmp_path / n) for n in names)]}))
    how = tables.protocol(tmp_path, ["fidelity"])
    assert how["methods"]["rise"] == "n_masks=500, view=minmax, target=label | n_masks=4000"
    assert how["budgets"]["rise"] == "n_masks=500 | n_masks=4000"
    assert how["metrics"]["Complete"] == "baseline=zeros, view=None"
    assert tables.protocol(tmp_path, tables.TARGETS)["methods"] == {"rise": "n_masks=20"}


def test_figures_and_claims_are_written(run):
    made = {p.name for p in figures.write_figures(run)}
    kinds = [f"zhang_figure{n}.{kind}" for n in (1, 2) for kind in ("png", "svg", "csv")]
    assert made == {*kinds, "zhang_figure1.json"}
    index = json.loads((run / "figures" / "zhang_figure1.json").read_text())
    assert len(index) == 6 * 2 * 2
    best = next(i for i in index if i["metric"] == "AI" and i["place"] == "best" and i["end"] == "highest")
    assert best["method"] == "score_cam"
    worst = [i for i in index if i["metric"] == "Db" and i["place"] == "worst"]
    assert {i["method"] for i in worst} == {"fake_cam"}
    points = pd.read_csv(run / "figures" / "zhang_figure2.csv")
    assert set(points["metric"]) == {"AG", "AD", "I", "D"}
    assert len(points) == 4 * 10 * 30
    assert points.query("metric == 'D' and method == 'rise'")["value"].mean() == pytest.approx(100 - 80.4)
    written = pd.read_csv(claims.write_claims(run, draws=30))
    assert written["id"].tolist() == list(BY_ID)


def test_the_budget_of_iba_has_its_fit_images(tmp_path):
    facts = {"experiment": "zhang_fidelity", "methods": {"iba": {"steps": 10, "copies": 5}}, "metrics": {}}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    (tmp_path / "config.yaml").write_text("fit_images: 200\n")
    assert tables.protocol(tmp_path, ["fidelity"])["budgets"] == {"iba": "steps=10, copies=5, fit_images=200"}


def kept_in(folder, methods, ids):
    """A folder of kept maps in which plane k is full of k."""
    folder.mkdir(parents=True)
    rows = np.arange(len(ids), dtype=np.float16)[:, None, None]
    save_file({"x": np.zeros((len(ids), 8, 8, 3), np.uint8)}, folder / "images.safetensors")
    for method in methods:
        save_file({"plane": np.broadcast_to(rows, (len(ids), 8, 8)).copy()}, folder / f"{method}.safetensors")
    (folder / "index.json").write_text(json.dumps({"image_id": ids}))


def test_figure_1_shows_the_highest_and_lowest_of_kept_images(cell, tmp_path):
    kept_in(tmp_path / "maps", METHODS, ["n0/003", "n0/008"])
    table = figures.extremes(cell, figures.kept_maps(tmp_path, 0))
    assert set(table["image_id"]) <= {"n0/003", "n0/008"}
    for _, item in table.iterrows():
        two = cell.scores["fidelity"].loc[["n0/003", "n0/008"], (item["metric"], item["method"])]
        assert item["value"] == (two.max() if item["end"] == "highest" else two.min())


def test_figure_1_of_collected_runs_is_drawn_from_their_maps(cell, tmp_path):
    members = {"zhang_fidelity": METHODS[:6], "zhang_fidelity_dear": METHODS[6:], "zhang_robustness": METHODS}
    for name, methods in members.items():
        kept_in(tmp_path / name / "maps", methods, ["n0/008"] if name.endswith("dear") else ["n0/003", "n0/008"])
        (tmp_path / name / "run.json").write_text(json.dumps({"experiment": name, "seed": 0, "methods": {}}))
    (tmp_path / "run.json").write_text(json.dumps({"runs": [str(tmp_path / n) for n in [*members, "gone"]]}))
    kept = figures.kept_maps(tmp_path, 0)
    assert [k.folder.parent.name for k in kept] == ["zhang_fidelity", "zhang_fidelity_dear"]
    assert kept[0].plane("gradient", "n0/008").max() == 1
    assert figures.kept_maps(tmp_path, 1) == []
    table = figures.extremes(cell, kept)
    assert len(table) == 6 * 2 * 2
    dear = table[table["method"].isin(METHODS[6:])]
    assert len(dear)
    assert set(dear["image_id"]) == {"n0/008"}
    assert [p.suffix for p in figures.figure_1(kept, cell, tmp_path / "f")] == [".png", ".svg", ".csv", ".json"]


def test_figure_2_thins_images_out_evenly(cell):
    table = figures.probability_table(cell, most=4)
    p = table.query("metric == 'I' and method == 'rise'")["p"]
    assert p.tolist() == pytest.approx([0.0, 0.10, 0.19, 0.29])


# -- experiments ------------------------------------------------------------------------------------------------------

COMPOSE = {
    "imagenet, ResNet-50": [],
    "the v1 weights": ["model=resnet50_v1"],
    "the light model": ["model=efficientnet_lite0"],
    "cifar10": ["dataset=cifar10", "model=tomsett_cnn"],
    "tinyimagenet": ["dataset=tinyimagenet"],
}


@pytest.mark.parametrize("words", COMPOSE.values(), ids=COMPOSE)
@pytest.mark.parametrize("name", ["fidelity", "targets", "robustness", "transforms"])
def test_experiments_compose_with_data_and_models(name, words, tmp_path):
    config = check(
        compose_config([f"+experiment=zhang_{name}", "scale=smoke", f"cache_dir={tmp_path}", "device=cpu", *words])
    )
    cell = build(config)
    assert [m.name for m in cell.methods] == METHODS
    assert all(m.view.name == "minmax" for m in cell.methods)
    size = 32 if "dataset=cifar10" in words else 224
    assert cell.dataset.shape == (3, size, size)
    assert hasattr(cell.dataset, "plain") == (name == "transforms")
    assert {p.target for p in cell.methods} == {"predicted" if name == "targets" else "label"}


def test_every_column_of_the_tables_is_measured():
    wanted = {
        "fidelity": [*FIDELITY, *tables.FURTHER, "Sparseness", "Complexity", "EC"]
        + [f"{m} {c}" for m in MASKED[:3] for c in tables.CONTROLS],
        "targets": MASKED,
        "robustness": [*tables.ROBUSTNESS, "MS fixed", "AS fixed"],
        "transforms": MASKED,
    }
    for name, columns in wanted.items():
        metrics = check(compose_config([f"+experiment=zhang_{name}"]))["metrics"]
        modes = {(m, mode) for m, spec in metrics.items() for mode in spec.get("variants") or [""]}
        modes |= {("completeness", "complete")} if "completeness" in metrics else set()
        for column in columns:
            spec = tables.COLUMNS[column]
            assert sum((spec.metric, mode) in modes for mode in spec.modes) == 1, (name, column)


def test_targets_are_told_apart_by_name():
    words = ["+experiment=zhang_targets", "target=least_probable"]
    assert check(compose_config(words))["name"] == "zhang_targets_least_probable"


def test_the_fixed_explainer_must_be_there():
    config = check(compose_config(["+experiment=zhang_robustness", "methods=[zhang/grad_cam]", "device=cpu"]))
    with pytest.raises(SalrunError, match="fixed explainer 'gradient' is not one of the run's methods"):
        build(config)


def test_maps_of_a_fixed_explainer_are_compared_in_one_view():
    words = ["+experiment=smerf_simple_fr", "methods=[gradient,fake_cam]", "metrics=[max_sensitivity]", "device=cpu"]
    words.append("metrics.max_sensitivity.fixed_explainer=gradient")
    with pytest.raises(SalrunError, match=r"several \(max_abs, raw\): set metrics\.max_sensitivity\.view=minmax"):
        build(check(compose_config(words)))
    build(check(compose_config([*words, "metrics.max_sensitivity.view=minmax"])))


def test_dataset_transforms_are_checked():
    with pytest.raises(SalrunError, match=r"unknown key 'dataset\.transforms\.rotate'"):
        check(compose_config(["+experiment=zhang_transforms", "+dataset.transforms.rotate=[3]"]))
    with pytest.raises(SalrunError, match=r"dataset\.transforms\.mixup_label must be one of primary, partner"):
        check(compose_config(["+experiment=zhang_transforms", "dataset.transforms.mixup_label=none"]))


def test_the_runs_of_reproduce_fit_together():
    reproduce = script("reproduce")
    for group in reproduce.MODELS["zhang"]:
        settings = set()
        for job in reproduce.wanted("zhang", "laptop", [0], [], [], group):
            config = check(compose_config(job))
            settings.add((tables.setting_of(config["name"]), config["name"]))
            assert config["target"] == ("label" if "targets" not in config["name"] else config["name"][14:])
            assert set(config["methods"]) <= set(METHODS)
        assert ("fidelity", "zhang_fidelity") in settings
        jobs = reproduce.wanted("zhang", "laptop", [0], [], [], group)
        assert len(settings) == len(jobs)  # told apart by their names
    paper = [" ".join(j) for j in reproduce.wanted("zhang", "paper", [0], [], [], "cifar10")]
    assert sum("target=least_probable" in j for j in paper) == 1
    assert reproduce.main(["zhang", "--dry-run", "--group", "cifar10"]) == 0
    with pytest.raises(SystemExit):
        reproduce.main(["zhang", "--dry-run", "--group", "mnist"])


def test_the_page_shows_what_was_kept(run, tmp_path):
    tables.write_tables(run, draws=30)
    claims.write_claims(run, draws=30)
    scores = pd.read_parquet(run / "tables" / "scores.parquet")
    summarise(scores.query("experiment == 'zhang_fidelity'")).to_csv(run / "tables" / "summary.csv", index=False)
    docs = script("make_docs")
    blocks = ("page zhang_x zhang_table1", "verdicts zhang_x zhang_y", "brightness zhang_x", "commands zhang_x")
    page = tmp_path / "zhang.md"
    page.write_text("".join(f"<!-- results: {b} -->\n<!-- /results -->\n" for b in blocks))
    facts = json.loads((run / "run.json").read_text()) | {"command": "salrun collect a", "commands": ["salrun b"]}
    (tmp_path / "kept").mkdir()
    for name in ("tables", "claims.csv"):
        (tmp_path / "kept" / name).symlink_to(run / name)
    (tmp_path / "kept" / "run.json").write_text(json.dumps(facts))
    assert docs.main(["keep", str(tmp_path / "kept"), "zhang_x"], docs=tmp_path) == 0
    text = page.read_text()
    assert "| Fake-CAM | 30 |  | 47.3 (47.3) |" in text
    assert "| D2 | gradient methods have the lowest family mean on every fidelity metric | no | reproduced |" in text
    assert "| Fake-CAM is among the best two | AG | 10 | no (-" in text
    assert "```\nsalrun b\n```" in text


# -- the fixed explainer ----------------------------------------------------------------------------------------------


def test_a_fixed_explainer_compares_with_another_methods_maps():
    model = Classifier(torch.nn.Flatten()).double()
    x = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fake = torch.ones_like(x)
    asked = []

    def by(name, neighbour):
        asked.append(name)
        return 0.05 * torch.ones_like(neighbour)

    target = torch.zeros(3, dtype=torch.int64)
    scene = Scene(model, x, target, target, Draws.of(0, ["a", "b", "c"]), explain=lambda n: fake, explain_by=by)
    assert Sensitivity(n_draws=2)(fake, scene).value.tolist() == [0, 0, 0]
    assert Sensitivity(n_draws=2, fixed_explainer="gradient")(fake, scene).value.tolist() == pytest.approx([0.95] * 3)
    assert asked == ["gradient"] * 2
    alone = Scene(model, x, target, target, Draws.of(0, ["a", "b", "c"]), explain=lambda n: fake)
    with pytest.raises(SalrunError, match="fixed_explainer names a method of a run"):
        Sensitivity(fixed_explainer="gradient")(fake, alone)


def test_settings_of_one_table_have_the_same_images() -> None:
    columns = pd.MultiIndex.from_product([["AI", "I"], ["gradient", "rise"]], names=["column", "method"])
    label, predicted = (pd.DataFrame(1.0, index=[f"image{k}" for k in range(n)], columns=columns) for n in (5, 3))
    label.iloc[3:] = 100.0
    wide = tables.frames(tables.Cell(0, "a model", {"fidelity": label, "predicted": predicted}, label_explained=True))
    assert len(wide["fidelity"]) == 5 and len(wide["targets"]) == 3
    assert wide["targets"]["label"].to_numpy().max() == 1.0


def test_what_was_run_names_equal_methods_once() -> None:
    specs = [("rise", {"n_masks": 9, "target": t}) for t in ("label", "predicted")] + [("lime", {"n_samples": 5})]
    assert tables._listed(specs) == {"rise": "n_masks=9, target=label/predicted", "lime": "n_samples=5"}


def test_ranks_are_by_the_metrics_direction(cell):
    found = tables.numbered_tables(cell, draws=20)["table3"].set_index(["metric", "method"])
    best = {"MS": "fake_cam", "Sparseness": "lime", "Complexity": "lime", "EC": "lime"}
    assert {m: found.loc[m]["rank"].idxmin() for m in best} == best
    assert found.loc[("EC", "lime"), "published_rank"] == 1
    complete = tables.further_table(cell, draws=20).query("metric == 'Complete'").set_index("method")
    assert complete["rank"].idxmin() == "integrated_gradients"


def test_constant_maps_are_counted_on_the_page(scores):
    flat = (scores["method"] == "lime") & scores["image_id"].str.contains(r"/00[0-4]")
    cell = tables.cells(scores.assign(flag=scores["flag"].mask(flat, "degenerate_map")))[0]
    assert tables.constant_maps("table1", cell) == ["LIME 5 of 30"]
    assert tables.constant_maps("table2", cell) == ["LIME 15 of 90"]
    assert tables.constant_maps("table4", cell) == ["LIME 45 of 270"]  # clean, and two variations of each
    found = tables.numbered_tables(cell, draws=20)["table3"]
    page = tables.page("table3", found, cell, {"methods": {}, "metrics": {}, "budgets": {}})
    assert "LIME 5 of 30" in page
