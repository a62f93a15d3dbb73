"""Zhang's tables: the paper's numbers come back, ranks follow directions, pages say what was run."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pandas as pd
import pytest

from salrun import papers
from salrun.papers.zhang import pages, tables
from salrun.papers.zhang.evidence import read
from salrun.papers.zhang.names import FIDELITY, TRANSFORMS
from salrun.results.run import Run
from tests import zhang_runs as runs
from tests.toys import script


@pytest.fixture(scope="module")
def scores():
    return runs.published_as_run()


@pytest.fixture(scope="module")
def whole(scores):
    return read(runs.in_memory(scores, curves=True), draws=200)


@pytest.fixture(scope="module")
def evidence(whole):
    return whole.seeds[0]


def evidence_of(scores, draws=20):
    return read(runs.in_memory(scores), draws).seeds[0]


def test_tables_1_to_4_give_back_their_numbers(whole, evidence):
    found = {f"table{k}": tables.means_table(f"table{k}", evidence, whole.falling) for k in range(1, 5)}
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


def test_ranks_are_by_the_metrics_direction(whole, evidence):
    assert whole.falling == {"MS", "AS", "MS fixed", "AS fixed", "Complexity", "EC", "Residual"}
    table = tables.means_table("table3", evidence, whole.falling).set_index(["metric", "method"])
    best = {"MS": "fake_cam", "Sparseness": "lime", "Complexity": "lime", "EC": "lime"}
    assert {m: table.loc[m]["rank"].idxmin() for m in best} == best
    assert table.loc[("EC", "lime"), "published_rank"] == 1
    complete = tables.means_table("further", evidence, whole.falling).query("metric == 'Complete'").set_index("method")
    assert complete["rank"].idxmin() == "integrated_gradients"


def test_controls_stand_beside_table_1(evidence):
    table = tables.means_table("controls", evidence)
    assert set(product(("AI", "ADb", "AG"), ("minmax", "ranks", "matched_mean"))) == set(
        zip(table["metric"], table["view"])
    )
    assert len(table) == 90
    plain = table.query("view == 'minmax'")
    np.testing.assert_allclose(plain["value"], plain["published"], atol=1e-9)
    assert table.query("view == 'ranks'")["published"].isna().all()
    assert table.query("method == 'rise'")["family"].eq("occlusion").all()


def test_there_are_no_controls_without_maps_of_equal_brightness(scores):
    assert tables.means_table("controls", evidence_of(scores[~scores["mode"].isin(["ranks", "matched_mean"])])).empty


def test_calibration_is_the_ratio_of_probabilities(evidence):
    table = tables.calibration_table(evidence).set_index(["transform", "variation"])
    assert table["ratio"].to_numpy() == pytest.approx(0.2)
    assert table.loc[("crop", "all"), "n"] == 60
    assert table.loc[("crop", "0.1"), "n"] == 30
    published = table["published"].dropna().droplevel(1).round(2).to_dict()
    assert published == {"mixup": 0.35, "resize": 0.41, "rotation": 0.40, "crop": 0.83}


def test_a_fifth_transform_stands_beside_the_papers_four(scores):
    some = scores[(scores["experiment"] == runs.TRANSFORMS) & (scores["method"] == "fake_cam")]
    e = read(runs.in_memory(runs.with_reflected(some), curves=True), draws=5).seeds[0]
    four = tables.means_table("table4", e)
    assert list(dict.fromkeys(four["transform"])) == ["clean", *TRANSFORMS, "rotation_reflected"]
    assert four.groupby("transform")["published"].count()[["crop", "rotation_reflected"]].tolist() == [5, 0]
    ratio = tables.calibration_table(e).set_index(["transform", "variation"]).loc[("rotation_reflected", "all")]
    assert ratio["ratio"] == pytest.approx(0.2) and np.isnan(ratio["published"])
    assert "rotation_reflected" in set(tables.variations_table(e)["transform"])


def test_variations_take_table_4_apart(evidence):
    table = tables.variations_table(evidence)
    assert len(table) == 4 * 2 * 5 * 10
    mean = table.query("transform == 'crop' and metric == 'I' and method == 'rise'")["value"].mean()
    four = tables.means_table("table4", evidence).set_index(["transform", "metric", "method"])
    assert mean == pytest.approx(four.loc[("crop", "I", "rise"), "value"])


def test_discrimination_counts_pairs(evidence):
    table = tables.discrimination_table(evidence).set_index("metric")
    assert table["spread"].round(2).to_dict() == pytest.approx(table["published_spread"].round(2).to_dict())
    assert (table["pairs"] == 10).all()
    assert table.loc["AI", "pairs_apart"] == 10  # noise 0.01 over 30 images


def test_close_methods_are_compared_on_their_own_images(scores):
    fidelity = scores[scores["experiment"] == runs.FIDELITY]
    few = fidelity["image_id"].isin(fidelity["image_id"].unique()[:3])
    e = evidence_of(fidelity[(fidelity["method"] != "lime") | few])
    assert e.claims.basis("fidelity").images == 3
    assert (tables.discrimination_table(e)["pairs"] == 10).all()


def test_conclusions_on_maps_of_equal_brightness(evidence, scores):
    table = tables.brightness_table(evidence).set_index(["conclusion", "metric", "view"])
    assert len(table) == 3 * 3 * 3
    gradient = table.loc["gradient methods have the lowest family mean"]
    assert gradient.loc[("AI", "minmax"), "holds"] == "yes"
    # families of Table 1: gradient 2.43, occlusion 24.35, learning 36.8, CAM 45.57
    assert gradient.loc[("AI", "minmax"), "margin"] == pytest.approx(24.35 - 7.3 / 3)
    assert gradient.loc[("AI", "ranks"), "holds"] == "uncertain"  # 50 for all
    fake = table.loc["Fake-CAM is among the best two"]
    assert fake.loc[("AG", "minmax"), "holds"] == "no"
    quick = scores[~scores["method"].isin(["score_cam", "rise", "lime", "iba"])]
    some = tables.brightness_table(evidence_of(quick)).set_index(["conclusion", "metric", "view"])
    assert set(some["methods"]) == {6}
    margin = some.loc[("CAM methods have the highest family mean", "AI", "minmax"), "margin"]
    assert margin == pytest.approx((44.4 + 42.3) / 2 - 7.3 / 3)
    assert tables.brightness_table(evidence_of(quick[quick["method"] != "fake_cam"])).empty


def test_tables_of_several_seeds_have_a_column_for_them(scores):
    some = scores[(scores["experiment"] == runs.FIDELITY) & (scores["metric"] == "insertion")]
    both = runs.with_cells(pd.concat([some, some.assign(seed=1)]))
    page = tables.tables(read(runs.in_memory(both), draws=5))["table1"]
    assert page.table.groupby("seed").size().to_dict() == {0: 10, 1: 10}
    assert page.text.count("**Table 1: fidelity.**") == 2


# -- what was run -----------------------------------------------------------------------------------------------------


def method(target="label", view="minmax", **options):
    return {"label": "x", "view": view, "target": target, "signed": True, "options": {"_target_": "x", **options}}


def metric(name, mode="", view="minmax", **options):
    about = {"metric": name, "mode": mode, "view": view, "direction": "higher", "turned": []}
    return {**about, "options": {"_target_": "x", **options}}


METRICS = [
    metric("average_increase", "all", mask_space="raw"),
    metric("average_increase", "ranks", "ranks", mask_space="raw"),
    metric("insertion", "raster_reversed", step=None, substrate="blur", ties="raster_reversed"),
    metric("completeness", view="raw", baseline="zeros"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory, scores):
    folder = tmp_path_factory.mktemp("run")
    return runs.save_run(folder, scores, methods={"rise": method(n_masks=500)}, metrics=METRICS)


@pytest.fixture(scope="module")
def written(run):
    """The run with all that the paper makes of it."""
    _, problems = papers.conclude("zhang", run)
    assert problems == []
    return run.path


def test_tables_say_what_was_run(written):
    names = ["table1", "table2", "table3", "table4", "controls", "further"]
    names += ["discrimination", "calibration", "variations", "brightness"]
    assert {p.name for p in (written / "tables").glob("zhang*.csv")} == {f"zhang_{n}.csv" for n in names}
    table = pd.read_csv(written / "tables" / "zhang_table1.csv")
    insertion = table.query("metric == 'I' and method == 'rise'").iloc[0]
    assert insertion["definition"] == "step=pixels / 28, substrate=blur, ties=raster_reversed, view=minmax"
    assert insertion["method_definition"] == "n_masks=500, view=minmax, target=label"
    page = (written / "tables" / "zhang_table1.md").read_text()
    assert "resnet50 on imagenet, seed 0, scale smoke" in page
    assert "- AI: mask_space=raw, view=minmax" in page
    assert "- RISE: n_masks=500" in page
    assert "| Fake-CAM | 30 |  | 47.3 (47.3) | 99.2 (99.2) |" in page
    assert "| RISE | 30 | n_masks=500 | 39.0 (39) |" in page
    controls = pd.read_csv(written / "tables" / "zhang_controls.csv").query("metric == 'AI'").set_index("view")
    assert set(controls.loc["minmax", "definition"]) == {"mask_space=raw, view=minmax"}
    assert set(controls.loc["ranks", "definition"]) == {"mask_space=raw, view=ranks"}
    assert "- AI ranks: mask_space=raw, view=ranks" in (written / "tables" / "zhang_controls.md").read_text()
    assert "90.5 (2; 90.5?)" in (written / "tables" / "zhang_table4.md").read_text()
    assert "Complete" in set(pd.read_csv(written / "tables" / "zhang_further.csv")["metric"])


def test_the_docs_show_what_was_kept(written, tmp_path):
    docs = script("make_docs")
    blocks = ("page zhang_x zhang_table1", "verdicts zhang_x zhang_y", "brightness zhang_x", "commands zhang_x")
    page = tmp_path / "zhang.md"
    page.write_text("".join(f"<!-- results: {b} -->\n<!-- /results -->\n" for b in blocks))
    facts = json.loads((written / "run.json").read_text()) | {"command": "salrun collect a", "commands": ["salrun b"]}
    (tmp_path / "kept").mkdir()
    for name in ("tables", "claims.csv"):
        (tmp_path / "kept" / name).symlink_to(written / name)
    (tmp_path / "kept" / "run.json").write_text(json.dumps(facts))
    assert docs.main(["keep", str(tmp_path / "kept"), "zhang_x"], docs=tmp_path) == 0
    text = page.read_text()
    assert "| Fake-CAM | 30 |  | 47.3 (47.3) |" in text
    assert '| D2 | gradient methods are poor on "most" fidelity metrics: the lowest family mean | yes | yes |' in text
    assert "| Fake-CAM is among the best two | AG | 10 | no (-" in text
    assert "```\nsalrun b\n```" in text


def test_collected_runs_bring_their_protocols(scores, run, tmp_path):
    some = scores[(scores["method"] == "rise") & (scores["image_id"] == "n0/000")]
    few = some[some["experiment"] == runs.FIDELITY]
    parts = {
        "dear": (few.assign(experiment=runs.DEAR), method("predicted", n_masks=4000)),
        "predicted": (some[some["experiment"] == "zhang_targets_predicted"], method("predicted", n_masks=20)),
    }
    for name, (own, spec) in parts.items():
        runs.save_run(tmp_path / name, runs.with_cells(own), methods={"rise": spec}, metrics=[])
    fidelity = runs.save_run(tmp_path / "fidelity", few, methods={"rise": method(n_masks=500)}, metrics=METRICS)
    folders = [str(fidelity.path), *(str(tmp_path / name) for name in parts), str(tmp_path / "gone")]
    members = read(runs.save_run(tmp_path / "all", few, runs=folders), draws=5).members
    assert [setting for setting, _ in members] == ["fidelity", "fidelity", "predicted"]
    how = pages.protocol(members, ["fidelity"])
    assert (
        how["methods"]["rise"] == "n_masks=500, view=minmax, target=label | n_masks=4000, view=minmax, target=predicted"
    )
    assert how["budgets"]["rise"] == "n_masks=500 | n_masks=4000"
    assert how["metrics"]["Complete"] == "baseline=zeros, view=raw"
    targets = pages.protocol(members, ["label", "predicted", "least_probable"])
    assert targets["methods"] == {"rise": "n_masks=20, view=minmax, target=predicted"}


def test_equal_methods_are_named_once():
    members = []
    for target in ("label", "predicted"):
        run = Run("/nowhere")
        methods = {"rise": method(target, n_masks=9), "lime": method(n_samples=5)}
        run.__dict__["facts"] = {"methods": methods, "metrics": []}
        members.append((target, run))
    assert pages.protocol(members, ["label", "predicted"])["methods"] == {
        "rise": "n_masks=9, view=minmax, target=label/predicted",
        "lime": "n_samples=5, view=minmax, target=label",
    }


def test_other_networks_agree_or_do_not():
    def said(**answers):
        return pd.DataFrame({"answer": answers})

    first = said(D1="yes", D2="no", D3="uncertain", D4="yes", D5="not tested")
    second = said(D1="yes", D2="yes", D3="uncertain", D4="not tested", D5="yes")
    third = said(D1="uncertain", D2="no", D3="yes", D4="not tested", D5="no")
    found = pages.others_agree(first, {"b": second, "c": third}).to_dict()
    assert found == {"D1": "1 of 2", "D2": "1 of 2", "D3": "", "D4": "", "D5": ""}


def test_the_budget_of_iba_has_its_fit_images():
    run = Run("/nowhere")
    run.__dict__["facts"] = {"methods": {"iba": method(steps=10, copies=5)}, "metrics": [], "fit_images": 200}
    budgets = pages.protocol([("fidelity", run)], ["fidelity"])["budgets"]
    assert budgets == {"iba": "steps=10, copies=5, fit_images=200"}


def test_constant_maps_are_counted_on_the_page(scores):
    flat = (scores["method"] == "lime") & scores["source_id"].str.contains(r"/00[0-4]")
    whole = read(runs.in_memory(scores.assign(flag=scores["flag"].mask(flat, "degenerate_map"))), draws=20)
    e = whole.seeds[0]
    assert pages.constant_maps("fidelity", e) == ["LIME 5 of 30"]
    assert pages.constant_maps("targets", e) == ["LIME 15 of 90"]
    assert pages.constant_maps("transforms", e) == ["LIME 45 of 270"]  # clean, and two variations of each
    assert "LIME 5 of 30" in tables.tables(whole)["table3"].text
