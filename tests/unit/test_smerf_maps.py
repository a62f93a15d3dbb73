"""What smerf measures on kept maps, and its toy maps."""

import pandas as pd
import pytest

from salrun import papers
from salrun.papers.smerf import maps
from salrun.papers.smerf.claims import claims
from salrun.papers.smerf.evidence import read
from salrun.papers.smerf.figures import figures
from tests.smerf_runs import made_up, write_maps, write_run


@pytest.fixture
def run(tmp_path):
    """A run of complex_cr1 with maps: IG lights both objects, the gradient lights only Box1."""
    world = made_up(("complex_cr1",), n=1, methods=("gradient",))
    run = write_run(tmp_path / "run", world)
    write_maps(run.path, world.cells["cell"].iloc[0])
    return run


def measured(run):
    papers.write_measures("smerf", run, maps.measure(run))
    return run


def test_toy_map_scores_as_printed():
    code = maps.toy_scores("code")
    assert code["PAFL"] == pytest.approx(247 * 0.999 / (247 * 0.999 + 100 * 0.799), abs=1e-9)
    assert (code["PIOU"], code["SIOU"], code["K"]) == (1.0, 0.0, 247.0)
    text = maps.toy_scores("paper")
    assert text["SAFL"] == pytest.approx(80 / (247 + 80 + 3749 * 0.001), abs=1e-9)
    sweep = maps.toy_sweep("code", 0.001)
    assert len(sweep) == 11
    assert sweep["PAFL"].is_monotonic_decreasing
    assert sweep["SAFL"].is_monotonic_increasing


def test_maps_are_measured_image_by_image(run):
    made = maps.measure(run)
    objects, curves = made["objects"], made["iou_by_k"]
    assert len(objects) == 4 * 2 * 2  # images, methods, objects
    assert set(objects["object"]) == {"text", "box1"} and set(objects["role"]) == {"primary"}
    lit = objects.assign(lit=objects["on"] > objects["outside"]).groupby(["method", "object"])["lit"].all()
    assert lit["integrated_gradients"].all()
    assert lit["gradient"].to_dict() == {"box1": True, "text": False}
    assert objects["mean"].between(0, 1).all()
    assert len(curves) == 3 * 8  # images of bucket 9, values of K
    assert curves["k"].tolist()[:3] == [100, 100, 100] and curves["k"].max() == 400
    assert set(curves["method"]) == {"integrated_gradients"} and curves["iou"].max() < 1


def test_kept_maps_say_whether_every_object_is_lit(run):
    (e,) = read(measured(run), draws=20).seeds
    assert e["visible"]["complex_cr1", "integrated_gradients"].eq(1.0).all()
    assert e["visible"]["complex_cr1", "gradient"].eq(0.0).all()
    assert e["iou_spread"].shape == (21, 1)


def test_claims_about_maps_come_from_tables_alone(run):
    of_maps = claims(read(measured(run), draws=20)).set_index("id").loc[["fig9.T", "fig25.T", "fig15.T"]]
    assert of_maps.loc["fig9.T", "verdict"] == "reproduced"
    assert of_maps.loc["fig25.T", "reason"] == "needs method lrp_z, deeplift_reveal_cancel"
    for path in (run.path / "maps").iterdir():
        path.unlink()
    again = claims(read(type(run)(run.path), draws=20)).set_index("id").loc[of_maps.index]
    pd.testing.assert_frame_equal(of_maps, again)


def test_the_order_of_a_tables_rows_changes_nothing(run):
    path = measured(run).path / "tables" / "smerf_objects.parquet"
    (first,) = read(run, draws=20).seeds
    pd.read_parquet(path).iloc[::-1].to_parquet(path)
    (second,) = read(type(run)(run.path), draws=20).seeds
    pd.testing.assert_frame_equal(first["visible"], second["visible"])


def test_a_collected_run_has_its_members_tables_and_maps(run, tmp_path):
    world = made_up(("complex_cr1",), n=1, methods=("gradient",))
    joint = write_run(tmp_path / "joint", world, runs=[str(run.path), str(tmp_path / "gone")])
    assert len(maps.measure(joint)["objects"]) == 16  # no member had tables: the maps are measured here
    measured(run)
    (tmp_path / "joint" / "tables" / "smerf_objects.parquet").write_bytes(
        (run.path / "tables" / "smerf_objects.parquet").read_bytes()
    )
    assert maps.measure(joint) == {}
    e = read(joint, draws=20)
    assert [(m.setting, m.condition) for m in e.maps] == [("complex_cr1", "plain")]
    assert e.seeds[0]["visible"]["complex_cr1", "integrated_gradients"].eq(1.0).all()
    _, numbers = figures(e)["figure9"]()
    assert numbers["image_id"].tolist() == ["v-b8-2", "v-b9-0"]


@pytest.mark.parametrize("facts", [{"background": "noise"}, {"paper": "mine"}])
def test_other_models_maps_are_not_measured(tmp_path, facts):
    world = made_up(("complex_cr1",), n=1, methods=("gradient",), **facts)
    run = write_run(tmp_path, world)
    write_maps(run.path, world.cells["cell"].iloc[0])
    assert all(table.empty for table in maps.measure(run).values())
    assert all(table.empty for table in maps.measure(write_run(tmp_path / "none", world)).values())
