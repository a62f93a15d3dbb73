"""Evidence and tables of smerf: which models are read, and what becomes of their scores."""

import copy

import pandas as pd
import pytest

from salrun.errors import SalrunError
from salrun.papers.claims import claims_of
from salrun.papers.evidence import pick
from salrun.papers.smerf import claims as _registered  # noqa: F401
from salrun.papers.smerf import tables, terms
from salrun.papers.smerf.evidence import FEW_DRAWS, Measured, Reads, models_read, paper_models, read, select
from salrun.papers.smerf.tables import pool_summary, table_1, table_2
from salrun.papers.smerf.terms import BOTH_PRESENT, COMPLEX, LABELS, METRICS, SETTINGS, published, reasonings
from salrun.papers.verdicts import measure
from tests.smerf_runs import World, evidence, made_up, random_world, write_run

BY_ID = {c.id: c for c in claims_of("smerf")}


@pytest.fixture(scope="module")
def at_random():
    return random_world()


# -- the paper's own numbers -------------------------------------------------------------------------------------------


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
    assert measure(BY_ID["table1.T"], [Measured()]).answer == "no"


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


def test_of_several_readings_the_recommended_is_taken_and_of_scales_the_fullest():
    plain = made_up(("simple_fr", "simple_nr"), methods=("gradient",))
    code = made_up(("simple_fr", "simple_nr", "complex_fr"), labels="code", loss="keras_clipped", methods=("gradient",))
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
        evidence(World(twice, world.cells, world.models))


def test_every_seed_is_kept_with_what_it_has():
    whole = [made_up(("simple_fr", "simple_nr"), seed=s, methods=("gradient",)) for s in (0, 1)]
    world = whole[0] + whole[1] + made_up(("simple_fr",), seed=2, methods=("gradient",))
    seeds = evidence(world).seeds
    assert {seed: e.settings() for seed, e in seeds.items()} == {
        **dict.fromkeys((0, 1), ("simple_fr", "simple_nr")),
        2: ("simple_fr",),
    }
    assert len(seeds[2]["bucket"]) == 1 + FEW_DRAWS  # models decide, images bound their spread
    assert len(evidence(whole[0]).seeds[0]["bucket"]) == 1 + 40


def test_a_seed_knows_its_images():
    world = made_up(("simple_fr", "simple_nr"), n=1, seed=3, methods=("gradient",))
    assert evidence(world).seeds[3].images == 3
    world.cells["dataset.explained_seed"] = [3, 5]
    assert evidence(world).seeds[3].images == (3, 5)
    world.cells = world.cells.drop(columns="dataset.explained_seed")
    assert evidence(world).seeds[3].images is None


# -- means over buckets ------------------------------------------------------------------------------------------------


def test_pools_have_the_papers_number_of_buckets(at_random):
    summary = pool_summary(evidence(at_random).seeds[0])
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
    e = evidence(uneven).seeds[0]
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
    first, second = (evidence(at_random).seeds[0]["bucket"] for _ in range(2))
    pd.testing.assert_frame_equal(first, second)
    keys = ["experiment", "image_id", "metric", "mode"]
    same = at_random.assign(value=at_random.scores.groupby(keys)["value"].transform("first"))
    bucket = pick(evidence(same).seeds[0]["bucket"], setting="simple_fr", bucket="7", metric="pafl")
    assert (bucket.nunique(axis=1) == 1).all()  # equal columns stay equal in every resample
    assert bucket["gradient"].iloc[1:].std() > 0


def test_empty_maps_are_left_out_counted_and_shown_as_the_public_code_would():
    world = made_up()
    scores = world.scores
    empty = (scores["method"] == "grad_cam") & (scores["group"] == "7") & scores["image_id"].str.endswith("-0")
    e = evidence(world.assign(value=scores["value"].mask(empty))).seeds[0]
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


def test_a_bucket_without_a_score_for_half_of_its_images_is_left_out_of_pools():
    """Of three images of bucket 7 Grad-CAM has a score for one, of bucket 8 for two."""
    world = made_up(("simple_fr",), methods=("gradient", "grad_cam"), value=lambda s, b, *_: int(b) / 100)
    scores = world.scores
    seven = (scores["group"] == "7") & ~scores["image_id"].str.endswith("-1")
    eight = (scores["group"] == "8") & scores["image_id"].str.endswith("-1")
    empty = (scores["method"] == "grad_cam") & (scores["metric"] == "pafl") & (seven | eight)
    e = evidence(world.assign(value=scores["value"].mask(empty))).seeds[0]
    mean, lowest = (e.pool("simple", "pafl", ["gradient", "grad_cam"], s).iloc[0].to_list() for s in ("mean", "min"))
    assert mean == pytest.approx([0.095, 0.10]) and lowest == pytest.approx([0.07, 0.08])
    assert e["bucket"]["simple_fr", "7", "pafl", "grad_cam"].isna().all()
    summary = pool_summary(e).query("mode == 'code' and pool == 'simple' and metric == 'pafl'").set_index("method")
    assert summary["buckets"].to_dict() == {"gradient": 6, "grad_cam": 5}
    assert summary["buckets_left_out"].to_dict() == {"gradient": 0, "grad_cam": 1}
    assert summary["worst_bucket"].to_dict() == {"gradient": "simple_fr 7", "grad_cam": "simple_fr 8"}
    note = "left out, fewer than half of the images have a score: G-CAM in simple_fr 7"
    assert e.basis(BY_ID["fig19.T1"].reads).note == note
    assert e.basis(BY_ID["fig19.T2"].reads).note == ""  # of LRP-eps alone


# -- what a claim rests on ---------------------------------------------------------------------------------------------


def test_an_image_without_the_claims_metric_is_not_counted():
    world = made_up(("simple_fr",), methods=("gradient", "lrp_z"))
    empty = (world.scores["metric"] == "piou") & (world.scores["image_id"] == "v-b7-0")
    e = evidence(world.assign(value=world.scores["value"].mask(empty))).seeds[0]
    images = {metric: e.basis(Reads(("simple_fr",), metrics=(metric,))).images for metric in METRICS}
    assert images == {"pafl": 18, "pmafl": 18, "piou": 17, **dict.fromkeys(("safl", "smafl", "siou"), 30)}
    assert e.basis(Reads(("simple_fr",), methods=("edge",))).images == 0  # was not run


def test_images_and_models_are_those_of_the_conditions_read():
    noise = made_up(("simple_fr",), background="noise", methods=("gradient",), labels="code")
    e = evidence(made_up(("simple_fr", "simple_nr"), methods=("gradient",)) + noise).seeds[0]
    bases = [e.basis(Reads(("simple",), conditions)) for conditions in (("plain",), ("noise",), ("plain", "noise"))]
    assert [(basis.images, basis.models) for basis in bases] == [(42, 2), (18, 1), (60, 3)]
    assert [basis.reading for basis in bases] == ["", "labels=code", "labels=code"]


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
