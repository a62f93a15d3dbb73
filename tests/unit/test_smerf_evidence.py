"""Evidence and tables of smerf: which models are read, and what becomes of their scores."""

import copy

import pandas as pd
import pytest

from salrun.errors import SalrunError
from salrun.papers.claims import claims_of, measure
from salrun.papers.evidence import pick
from salrun.papers.smerf import claims as _registered  # noqa: F401
from salrun.papers.smerf import tables, terms
from salrun.papers.smerf.evidence import (
    Measured,
    Reads,
    models_read,
    paper_models,
    published_evidence,
    read,
    scores_by_seed,
    select,
)
from salrun.papers.smerf.tables import pool_summary, table_1, table_2
from salrun.papers.smerf.terms import BOTH_PRESENT, COMPLEX, LABELS, SETTINGS, published, reasonings
from tests.smerf_runs import World, made_up, measured, random_world, write_run

BY_ID = {c.id: c for c in claims_of("smerf")}
FALSE_ON_PUBLISHED = {
    "fig6a.T2": {"deep_taylor", "lrp_b_flat", "grad_cam", "deep_shap"},
    "fig8a.T1": {"gradient", "guided_backprop"},
    "fig12.T2": {"lrp_b_flat"},
    "fig28.T3": {"integrated_gradients", "lrp_epsilon", "deeplift_reveal_cancel"},
    "7.3.2": {"deep_taylor", "lrp_b_flat", "grad_cam", "deep_shap"},
    "7.3.3": {"gradient", "guided_backprop"},
}


@pytest.fixture(scope="module")
def at_random():
    return random_world()


# -- the paper's own numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [c.id for c in claims_of("smerf") if not c.text])
def test_published_numbers_give_the_published_truth(id):
    margin = measure(BY_ID[id], [published_evidence()])
    wrong = FALSE_ON_PUBLISHED.get(id.removesuffix(".paper"), set())
    assert margin.holds == ("no" if wrong else "yes")
    assert {f.split(" ")[0] for f in margin.failing} == wrong


def test_published_tables_are_the_data_that_the_experiments_make():
    one = table_1()
    assert one["agrees"].all()
    assert one.groupby("setting", sort=False).size().to_dict() == dict(
        zip(SETTINGS, (12, 8, 12, 10, 10, 10, 10), strict=True)
    )
    assert set(one.loc[one["avoid_printed"] == "?", "bucket"]) == {"7", "8", "9"}
    two = table_2()
    assert (two["images"] == two["images_printed"]).all()
    assert len(two) == 14
    assert len(published()) == 252


def test_table_1_notices_a_wrong_label(monkeypatch):
    real = copy.deepcopy(reasonings())
    real["complex_cr2"]["buckets"][7]["label"] = 1
    monkeypatch.setattr(tables, "reasonings", lambda: real)
    assert measure(BY_ID["table1.T"], [Measured()]).holds == "no"


# -- which models are read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "facts", "condition", "reading"),
    [
        ("simple_fr", {}, "plain", "recommended"),
        (
            "complex_cr4",
            {"background": "noise", "labels": "code", "loss": "keras_clipped", "training": "pgd"},
            "noise+pgd",
            "labels=code, loss=keras_clipped",
        ),
        ("simple_nr", {"background": "places", "name": "smerf_vgg16"}, "places+vgg16", "recommended"),
        ("simple_nr", {"name": "smerf_alexnet"}, "alexnet", "recommended"),
        ("simple_nr", {"training": "none"}, "random", "recommended"),
        ("simple_nr", {"placement": "strict"}, "plain", "placement=strict"),
    ],
)
def test_facts_tell_setting_condition_and_reading(setting, facts, condition, reading):
    (model,) = paper_models(made_up((setting,), n=1, methods=("gradient",), **facts).cells).itertuples()
    assert (model.setting, model.condition, model.reading) == (setting, condition, reading)


@pytest.mark.parametrize("facts", [{"paper": "yona"}, {"kind": "mnist"}, {"randomised": "all"}, {"paper": None}])
def test_models_that_are_not_the_papers_are_not_read(facts):
    assert paper_models(made_up(("simple_fr",), n=1, methods=("gradient",), **facts).cells).empty


def test_a_further_model_of_a_run_is_not_read():
    cells = made_up(("simple_fr",), n=1, methods=("gradient",)).cells
    assert paper_models(cells.assign(role="random_1")).empty
    assert paper_models(cells[["cell", "seed", "scale", "role"]]).empty  # a run that gives no facts


def test_of_several_readings_and_scales_the_fullest_is_taken():
    plain = made_up(("simple_fr", "simple_nr"), methods=("gradient",))
    code = made_up(("simple_fr",), labels="code", loss="keras_clipped", methods=("gradient",))
    quick = made_up(("simple_fr", "simple_nr"), n=2, scale="smoke", methods=("gradient",))
    world = code + quick + plain
    chosen = select(world.scores, paper_models(world.cells))
    assert set(chosen["reading"]) == {"recommended"}
    assert set(chosen["scale"]) == {"paper"}
    assert set(models_read(paper_models(world.cells), chosen)["cell"]) == set(plain.cells["cell"])
    only = select(code.scores, paper_models(code.cells))
    assert set(only["reading"]) == {"labels=code, loss=keras_clipped"}


def test_two_views_of_one_method_are_refused():
    world = made_up(("simple_fr",), methods=("gradient",))
    twice = pd.concat([world.scores, world.scores.assign(view="y")], ignore_index=True)
    with pytest.raises(SalrunError, match="two scores"):
        measured(World(twice, world.cells, world.models))


def test_seeds_that_lack_a_setting_are_left_out():
    whole = [made_up(("simple_fr", "simple_nr"), seed=s, methods=("gradient",)) for s in (0, 1)]
    world = whole[0] + whole[1] + made_up(("simple_fr",), seed=2, methods=("gradient",))
    assert list(scores_by_seed(select(world.scores, paper_models(world.cells)))) == [0, 1]


# -- means over buckets ------------------------------------------------------------------------------------------------


def test_pools_have_the_papers_number_of_buckets(at_random):
    summary = pool_summary(measured(at_random)[0])
    buckets = summary.drop_duplicates(["pool", "metric"]).set_index(["pool", "metric"])["buckets"]
    wanted = {("simple", "pafl"): 14, ("simple", "safl"): 16, ("complex", "pafl"): 37, ("complex", "safl"): 32}
    for key, count in wanted.items():
        assert buckets[key] == count
        assert buckets[key[0], key[1].replace("afl", "iou")] == count
    assert buckets["simple_both", "safl"] == 11
    assert buckets["complex_both", "safl"] == sum(len(BOTH_PRESENT[s]) for s in COMPLEX)
    assert set(summary.loc[summary["pool"] == "simple_both", "settings"]) == {"simple_fr simple_nr"}


def test_a_pool_is_the_plain_mean_over_buckets_whatever_their_sizes(at_random):
    uneven = at_random.where(lambda s: ~((s["group"] == "7") & s["image_id"].str.endswith("-2")))
    (e,) = measured(uneven)
    scores = uneven.scores.query("metric == 'pafl' and mode == 'code'")
    scores = scores[scores["experiment"].str.contains("simple")]
    buckets = scores.groupby(["method", "experiment", "group"])["value"].mean()
    for method in LABELS:
        for statistic, value in (
            ("mean", buckets[method].mean()),
            ("min", buckets[method].min()),
            ("std", buckets[method].std(ddof=0)),
        ):
            assert e.pool("simple", "pafl", [method], statistic).iloc[0, 0] == pytest.approx(value, abs=1e-12)


def test_draws_are_paired_and_repeatable(at_random):
    first, second = (measured(at_random)[0]["bucket"] for _ in range(2))
    pd.testing.assert_frame_equal(first, second)
    keys = ["experiment", "image_id", "metric", "mode"]
    same = at_random.assign(value=at_random.scores.groupby(keys)["value"].transform("first"))
    bucket = pick(measured(same)[0]["bucket"], setting="simple_fr", bucket="7", metric="pafl")
    assert (bucket.nunique(axis=1) == 1).all()  # equal columns stay equal in every resample
    assert bucket["gradient"].iloc[1:].std() > 0


def test_empty_maps_are_left_out_counted_and_shown_as_the_public_code_would():
    world = made_up()
    scores = world.scores
    empty = (scores["method"] == "grad_cam") & (scores["group"] == "7") & scores["image_id"].str.endswith("-0")
    (e,) = measured(world.assign(value=scores["value"].mask(empty)))
    summary = pool_summary(e).set_index(["mode", "pool", "metric", "method"])
    row = summary.loc["code", "simple", "pafl", "grad_cam"]
    assert row["images_without_score"] == 1
    assert row["mean"] == pytest.approx(0.3 + 0.005 / 14)
    assert row["code_mean"] == 0.0
    other = summary.loc["code", "simple", "pafl", "gradient"]
    assert other["images_without_score"] == 0
    assert other["code_mean"] == other["mean"]
    assert "3 of 153 Grad-CAM maps are empty" in e.basis(BY_ID["7.3.5"].reads).note
    assert e.basis(BY_ID["fig8a.T1"].reads).note == ""


# -- what a claim rests on ---------------------------------------------------------------------------------------------


def test_an_image_without_the_claims_metric_is_not_counted():
    world = made_up(("simple_fr",), methods=("gradient", "lrp_z"))
    empty = (world.scores["metric"] == "piou") & (world.scores["image_id"] == "v-b7-0")
    (e,) = measured(world.assign(value=world.scores["value"].mask(empty)))
    about = {id: e.basis(BY_ID[id].reads) for id in ("fig2.T1", "fig6a.T1")}
    assert {id: (basis.images, basis.models) for id, basis in about.items()} == {
        "fig2.T1": (17, 1),
        "fig6a.T1": (18, 1),
    }


def test_compared_conditions_count_the_settings_they_share():
    noise = made_up(("simple_fr",), background="noise", methods=("gradient",))
    (e,) = measured(made_up(("simple_fr", "simple_nr"), methods=("gradient",)) + noise)
    basis = e.basis(BY_ID["fig30.T"].reads)
    assert (basis.images, basis.models) == (36, 2)
    plain = e.basis(Reads(("simple",)))
    assert (plain.images, plain.models) == (42, 2)


def test_accuracies_are_read_by_model_and_drawn_by_bucket(tmp_path):
    accuracy = {"11": 0.5}
    world = made_up(("simple_fr",), methods=("gradient",), accuracy=lambda s, b: accuracy.get(b, 1.0))
    noise = made_up(("simple_fr",), methods=("gradient",), background="noise", accuracy=lambda s, b: 0.9)
    e = read(write_run(tmp_path, world + noise), draws=50)
    assert e.accuracies.groupby("condition")["accuracy"].min().to_dict() == {"noise": 0.9, "plain": 0.5}
    table = e.seeds[0]["accuracy"]
    assert table["plain", "simple_fr", "11"].iloc[0] == 0.5 and table["plain", "simple_fr", "11"].std() > 0
    assert table["plain", "simple_fr", "(all)"].iloc[0] == pytest.approx(11.5 / 12)
    assert (table["plain", "simple_fr", "1"] == 1).all()


def test_pools_and_settings_have_their_settings():
    assert terms.settings_of("simple") == ("simple_fr", "simple_nr")
    assert terms.settings_of("complex_cr2") == ("complex_cr2",)
