"""The metric court: its arithmetic on scores whose answer is known, its tables, its verb."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from salrun.cli import main as cli
from salrun.errors import SalrunError
from salrun.report import write_report
from salrun.results.comparison import compare
from salrun.results.court import ALL, CARE, NEVER, RULE, SETTING, USE, court_of, judge, ladders
from salrun.results.run import Run
from salrun.results.scored import read_runs
from salrun.results.tables import KEY
from salrun.stats.court import (
    agreement_by_image,
    consistency,
    consistency_error,
    macro_agreement,
    mean_over_models,
    over_models,
    prefers,
    prefers_worse,
)
from tests.fake_run import save_run
from tests.toys import rng

NAN = np.nan
DOSES = np.array([0, 0.1, 0.25, 0.5, 0.75, 1])


# -- arithmetic --------------------------------------------------------------------------------------------------------


def test_agreement_is_1_where_the_score_falls_with_the_dose_and_0_where_it_does_not_move():
    scores = np.array([1 - DOSES, DOSES, np.ones(6), [5, 4, 3, NAN, NAN, NAN], [5, 4, NAN, NAN, NAN, NAN]])
    np.testing.assert_allclose(agreement_by_image(scores, -DOSES), [1, -1, 0, 1, NAN])


def test_agreement_is_spearman_row_by_row_ties_and_holes_included():
    scores = rng(0).integers(0, 4, size=(50, 6)).astype(float)
    scores[rng(1).random(scores.shape) < 0.2] = NAN
    truth = rng(2).integers(0, 5, size=(50, 6)).astype(float)
    for row, right, rho in zip(scores, truth, agreement_by_image(scores, truth), strict=True):
        known = ~np.isnan(row)
        if known.sum() < 3 or len(set(right[known])) == 1:
            assert np.isnan(rho)
        elif len(set(row[known])) == 1:
            assert rho == 0
        else:
            assert rho == pytest.approx(stats.spearmanr(row[known], right[known]).statistic)


def test_macro_agreement_is_that_of_the_means():
    """Every image alone is noise; their mean is in order."""
    scores = -DOSES + 3 * rng(0).standard_normal((4000, 6))
    value, draws = macro_agreement(scores, -DOSES, rng(1))
    assert value == pytest.approx(stats.spearmanr(scores.mean(0), -DOSES).statistic)
    assert agreement_by_image(scores, -DOSES).mean() < 0.3 < value
    assert draws.shape == (1000,) and draws.mean() > 0.5
    assert np.isnan(macro_agreement(np.full((3, 6), NAN), -DOSES, rng(0))[0])


def test_the_worse_of_two_maps_by_the_difference_of_their_doses():
    right, wrong, blind = 1 - DOSES, DOSES, np.zeros(6)
    one_mistake = np.array([1, 2, 0.75, 0.5, 0.25, 0])  # dose .1 scores above dose 0
    scores = np.array([right, wrong, blind, one_mistake])
    np.testing.assert_allclose(prefers_worse(scores, DOSES, 0.1), [0, 1, 0.5, 1])
    np.testing.assert_allclose(prefers_worse(scores, DOSES, 0.25), [0, 1, 0.5, 0])
    np.testing.assert_allclose(prefers_worse(scores, DOSES, 0.5), [0, 1, 0.5, 0])
    assert np.isnan(prefers_worse(scores, DOSES, 0.33)).all()
    np.testing.assert_array_equal(prefers([1, 2, 2, NAN], [2, 2, 1, 1]), [0, 0.5, 1, NAN])


def test_intervals_are_over_images_below_three_models_and_over_models_from_then_on():
    images = [rng(k).normal(m, 1, 400) for k, m in enumerate((0.0, 1.0, 2.0))]
    one = mean_over_models(images[:1], rng(0))
    assert one.models == 1 and one.images == 400
    assert one.high - one.low == pytest.approx(2 * 1.96 * images[0].std() / 20, rel=0.1)
    three = mean_over_models(images, rng(0))
    means = [part.mean() for part in images]
    reach = stats.t.isf(0.025, 2) * np.std(means, ddof=1) / np.sqrt(3)
    assert (three.low, three.high) == pytest.approx((np.mean(means) - reach, np.mean(means) + reach))
    alike = mean_over_models([images[0]] * 3, rng(0))  # models that agree are no better known than their images
    assert alike.high - alike.low == pytest.approx(2 * stats.t.isf(0.025, 2) * images[0].std() / 20 / 3**0.5, rel=0.1)
    assert mean_over_models([[NAN, NAN]], rng(0)).models == 0
    assert over_models([(NAN, np.full(10, NAN), 3)]).models == 0


def test_consistency_of_a_metric_that_is_what_metaquantus_asks_for():
    """Unmoved by minor changes, and every score falls under disruptive ones."""
    scores = rng(0).random((60, 4))
    ideal = consistency(scores, [scores, scores], [scores - 1, scores - 2])
    assert ideal["iac_nr"] == 1 and ideal["iec_nr"] == 1 and ideal["iec_ar"] == 1 and ideal["iac_ar"] > 0.999
    assert ideal["mc"] == pytest.approx(1, abs=1e-3)
    blind = consistency(scores, [scores], [scores])  # reacts to nothing
    assert blind["iac_ar"] == 0 and blind["iec_ar"] == 0 and blind["mc"] == 0.5
    noise = consistency(scores, [rng(1).random((60, 4))], [scores - 1])
    assert noise["iec_nr"] < 0.5


def test_the_error_of_consistency_is_that_of_a_mean_where_it_is_one():
    """So many fall that Wilcoxon's p is 0 in any part of the images: mc is their share / 4 + what does not move."""
    fall = rng(0).random((200, 1)) < 0.9
    own = np.concatenate([np.ones((200, 1)), np.zeros((200, 1))], axis=1)
    worse = np.where(fall, own - 1, own + 1)
    error = consistency_error(own, [own], [worse])
    share = fall.std() / np.sqrt(200) / 4
    assert error == pytest.approx(share, rel=0.5)  # an error of ten groups is known to a quarter
    assert consistency_error(own, [own], [own - 1]) == pytest.approx(0, abs=1e-6)
    assert np.isnan(consistency_error(own[:2], [own[:2]], [own[:2] - 1]))


# -- tables ------------------------------------------------------------------------------------------------------------

LADDER = {"_target_": "salrun.methods.ladder.Ladder", "mix": "pixels"}
ORACLE = {"base": {"_target_": "salrun.methods.baselines.Oracle"}}
RUNGS = {
    "good": {**LADDER, **ORACLE, "defect": "noise", "dose": 0},
    **{
        f"{defect}_{dose:g}": {**LADDER, **ORACLE, "defect": defect, "dose": dose}
        for defect in ("noise", "flip")
        for dose in DOSES[1:]
    },
    "constant": {**LADDER, **ORACLE, "defect": "constant", "dose": 1},
}
METHODS = {
    **RUNGS,
    "random": {"_target_": "salrun.methods.baselines.Random"},
    **{name: {"_target_": f"salrun.methods.x.{name}"} for name in ("first", "second", "third")},
}
WORTH = {"first": 0.9, "second": 0.6, "third": 0.3, "random": 0.2, "constant": 0.1}


def worth(method: str) -> float:
    """How good a map is."""
    return 1 - float(RUNGS[method]["dose"]) if method in RUNGS and method != "constant" else WORTH[method]


METRICS = {  # (metric, mode) -> score of a map, given its worth and an image's noise
    ("right", "default"): lambda m, u: worth(m),
    ("right", "odd"): lambda m, u: u,
    ("blind", ""): lambda m, u: worth(m.replace("flip", "noise")) if "flip" not in m else 1.0,
    ("constant_lover", ""): lambda m, u: 5.0 if m == "constant" else worth(m),
    ("upside_down", ""): lambda m, u: -worth(m),
    ("pafl", "paper"): lambda m, u: worth(m),
    ("pafl", "code"): lambda m, u: u,
    ("chance", ""): lambda m, u: 0.5,  # the same for all maps: no judge
}


def court_run(folder, n=30, seed=0, fingerprint="", base="baselines.Oracle", metrics=None):
    draws = rng(seed)
    rows = [
        {
            "experiment": "e", "dataset": "d", "model": "net", "seed": seed, "scale": "smoke", "group": "g",
            "image_id": f"i{i}", "method": method, "metric": metric, "mode": mode,
            "value": score(method, draws.random()),
        }
        for (metric, mode), score in METRICS.items() for method in METHODS for i in range(n)
        if metrics is None or metric in metrics
    ]  # fmt: skip
    listed = [
        {"metric": m, "mode": mode, "direction": "higher", "turned": [], "options": {}, "passes": 7.0}
        for m, mode in METRICS
        if metrics is None or m in metrics
    ]
    about = {"label": "", "view": "raw", "target": "predicted"}
    of_base = {"base": {"_target_": f"salrun.methods.{base}"}}
    methods = {name: {**about, "options": o | (of_base if "base" in o else {})} for name, o in METHODS.items()}
    scores = pd.DataFrame(rows).assign(cell=f"c{seed}")
    cells = scores[KEY].drop_duplicates().assign(role="model", source="shipped", fingerprint=fingerprint)
    return save_run(folder, scores, metrics=listed, methods=methods, cells=cells)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    runs = [court_run(tmp_path_factory.mktemp("runs") / str(k), seed=k) for k in range(3)]
    return judge(read_runs(runs))


def row(tables, name="court", **named):
    table = tables[name]
    for column, value in named.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_methods_of_one_name_that_differ_are_not_mixed(tmp_path):
    runs = [court_run(tmp_path / name, n=2) for name in ("one", "other")]
    assert len(read_runs(runs).scores) == len(read_runs(runs[:1]).scores)
    facts = json.loads((runs[1] / "run.json").read_text())
    next(iter(facts["methods"].values()))["options"] = {"base": "another"}
    (runs[1] / "run.json").write_text(json.dumps(facts))
    with pytest.raises(SalrunError, match="differs between them: judge them apart"):
        read_runs(runs)


def test_ladders_are_found_by_their_options(tmp_path):
    (ladder,) = ladders(read_runs([court_run(tmp_path / "run", n=2)]))
    assert ladder.title == "oracle" and ladder.base == "good"
    assert ladder.rungs["flip"] == {dose: f"flip_{dose:g}" for dose in DOSES[1:]}
    assert ladder.bottom == {"constant": "constant", "random": "random"}


def test_ladders_of_two_bases_of_one_model_are_judged_together(tmp_path):
    runs = [court_run(tmp_path / "oracle", n=4)]
    runs.append(court_run(tmp_path / "cam", n=4, base="cam.GradCAM", metrics=("right", "upside_down")))
    first, second = ladders(scored := read_runs(runs))
    assert (first.title, first.base) == ("oracle", "good") and (second.title, second.base) == (
        "gradcam",
        "good of gradcam",
    )
    assert second.bottom == {"constant": "constant of gradcam", "random": "random"}
    assert set(scored.controls) == {*RUNGS, *(f"{name} of gradcam" for name in RUNGS), "random"}
    court = judge(scored)["court"]
    assert set(court[court["ladder"] == "gradcam"]["metric"]) == {"right", "upside_down"}  # what was measured of it
    assert set(court[court["ladder"] == "oracle"]["metric"]) > {"right", "upside_down", "blind"}
    assert court["agreement"].notna().all()
    assert cli.run(["court", *map(str, runs), "-o", str(tmp_path / "out")]) == 0
    same = [court_run(tmp_path / name, n=2, base="cam.GradCAM") for name in ("one", "other")]
    facts = json.loads((same[1] / "run.json").read_text())
    facts["methods"]["good"]["options"]["base"]["layer"] = "another"
    (same[1] / "run.json").write_text(json.dumps(facts))
    with pytest.raises(SalrunError, match="methods.good differs between them"):
        read_runs(same)


def test_a_right_metric_agrees_everywhere_and_a_blind_one_where_it_sees(tables):
    right = row(tables, metric="right", mode="default")
    assert (right["agreement"], right["macro"], right["methods_pafl"], right["worse_0.1"]) == (1, 1, 1, 0)
    assert right["models"] == 3 and right["images"] == 90 and right["passes"] == 7 and right["alpha"] == 1
    assert right["default"] and not right["worst"] and row(tables, metric="right", mode="odd")["worst"]
    blind = {defect: row(tables, "agreement", metric="blind", truth=defect)["mean"] for defect in ("noise", "flip")}
    assert blind == {"noise": 1, "flip": 0}
    assert row(tables, metric="blind")["agreement"] == 0.5
    assert row(tables, metric="blind")["worst_defect"] == "flip"
    assert row(tables, "preferences", metric="blind", truth="flip", difference=0.5)["mean"] == 0.5
    assert row(tables, "preferences", metric="upside_down", truth=ALL, difference=0.25)["mean"] == 1
    assert row(tables, "fooled", metric="constant_lover", by="constant")["mean"] == 1
    assert row(tables, "fooled", metric="right", mode="default", by="constant")["mean"] == 0


def test_advice_follows_its_rule(tables):
    advice = {(r.metric, r.mode): r.advice for r in tables["court"].itertuples()}
    assert advice["right", "default"] == SETTING and advice["right", "odd"] == NEVER
    assert advice["blind", ""] == CARE
    assert advice["constant_lover", ""] == NEVER and advice["upside_down", ""] == NEVER
    assert {USE, SETTING, CARE, NEVER} <= {*RULE}


def test_a_baseline_is_no_judge_and_truth_is_what_the_paper_says(tables):
    assert "chance" not in {*tables["court"]["metric"]}
    assert row(tables, "agreement", metric="right", mode="default", truth="methods by pafl")["mean"] == 1


def test_the_default_is_the_first_perturbation_that_the_metric_lists(tmp_path):
    folder = court_run(tmp_path / "run", n=4)
    run = read_runs([folder])
    mine = run.scores[(run.scores["metric"] == "right") & (run.scores["mode"] == "default")]
    both = [mine.assign(score=name) for name in ("blur_L16", "mean_L16")]
    ways = {("right", "default", name): "higher" for name in ("blur_L16", "mean_L16")}
    about = ({"metric": "right", "mode": "default", "options": {"perturbations": ["mean", "blur"]}},)
    judged = judge(replace(run, scores=pd.concat(both), directions=ways, metrics=about))["court"]
    assert judged.loc[judged["default"], "score"].tolist() == ["mean_L16"]


def test_runs_without_a_ladder_are_not_judged(tmp_path):
    scores = pd.DataFrame(
        {"experiment": "e", "dataset": "d", "model": "m", "seed": 0, "group": "g", "image_id": ["a", "b"],
         "method": "first", "metric": "x", "value": 1.0}
    )  # fmt: skip
    run = save_run(tmp_path / "run", scores)
    assert judge(read_runs([run])) == {}
    assert cli.run(["court", str(run)]) == 2


def test_the_report_of_a_run_with_a_ladder_has_the_table(tmp_path):
    page = write_report(court_run(tmp_path / "run", n=3)).read_text()
    assert "The metrics before the court" in page and "upside_down" in page
    assert court_of(Run(tmp_path / "run"))[0][0] == "d, ladder of oracle: 1 model, 3 images"


def test_spoilt_maps_are_not_compared_with_methods(tmp_path):
    (comparison,) = compare(court_run(tmp_path / "run", n=3))
    assert set(comparison.methods) == {"first", "second", "third"} and comparison.controls == ("random",)


def test_consistency_is_a_column_where_models_were_shaken(tmp_path):
    folder = court_run(tmp_path / "run")
    scored = read_runs([folder])
    own = scored.scores[scored.scores["method"].isin(["first", "second", "third"])]
    shaken = [own.assign(model=f"minor_{k}") for k in range(2)]
    shaken += [own.assign(model=f"disruptive_{k}", value=own["value"] - 9) for k in range(2)]
    apart = [part.assign(experiment="consistency") for part in (own, *shaken)]
    court = judge(replace(scored, scores=pd.concat([scored.scores, *apart])))["court"].set_index(["metric", "mode"])
    assert court.loc[("right", "default"), "mc"] == pytest.approx(1, abs=1e-3)
    assert court.loc[("right", "default"), "mc_error"] == pytest.approx(0, abs=1e-3)
    assert court.loc[("right", "default"), "models"] == 1  # what has no ladder is no model of the court


def test_the_verb_prints_a_table_and_writes_tables_and_figures(tmp_path, capsys):
    run = court_run(tmp_path / "run")
    assert cli.run(["court", str(run), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "right" in said and NEVER in said and "upside_down" in said
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"court.csv", "court.parquet", "agreement.csv", "preferences.csv", "fooled.csv"} <= made
    assert {"court_reliability.png", "court_preferences.png"} <= made
