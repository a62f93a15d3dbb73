"""What smerf measures on kept maps, and its toy maps."""

import pandas as pd
import pytest

from salrun import papers
from salrun.papers.claims import claims_of
from salrun.papers.smerf import maps
from salrun.papers.smerf.claims import claims
from salrun.papers.smerf.evidence import Measured, read
from salrun.papers.smerf.figures import figures
from salrun.papers.smerf.terms import SETTINGS, SHOWN_LINES, objects_of
from salrun.papers.verdicts import judge
from tests.smerf_runs import made_up, write_maps, write_run

BY_ID = {c.id: c for c in claims_of("smerf")}


@pytest.fixture
def run(tmp_path):
    """A run of complex_cr1 with maps: IG lights both objects, the gradient only Box1, the oracle only the letter."""
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
    assert len(objects) == 4 * 3 * 2  # images, methods, objects
    assert objects.groupby("object")["role"].unique().map(list).to_dict() == {
        "box1": ["secondary"],
        "text": ["primary"],
    }
    on = objects.groupby(["method", "object"])["on"].mean()
    assert on["integrated_gradients"].min() > 0.5
    assert on["gradient", "box1"] > 0.5 > on["gradient", "text"] and on["oracle", "text"] > 0.5 > on["oracle", "box1"]
    assert objects["mean"].between(0, 1).all()
    assert len(curves) == 3 * 8  # images of bucket 9, values of K
    assert curves["k"].tolist()[:3] == [100, 100, 100] and curves["k"].max() == 400
    assert set(curves["method"]) == {"integrated_gradients"} and curves["iou"].max() < 1


def test_the_weight_of_a_secondary_object_is_compared_with_half_of_the_primary_ones(run):
    e = read(measured(run), draws=20).seeds[0]
    objects = maps.measure(run)["objects"]
    on = objects.groupby(["method", "object"])["on"].mean()
    found = e["weight"]["complex_cr1", "8, 9", "box1"].iloc[0]
    assert found.to_dict() == pytest.approx({m: on[m, "box1"] - on[m, "text"] / 2 for m in found.index})
    assert found["integrated_gradients"] > 0 and found["gradient"] > 0 > found["oracle"]
    assert e["iou_spread"].shape == (21, 1)
    basis = e.basis(BY_ID["fig9.T"].reads)
    assert (basis.images, basis.models) == (4, 1)


def weights(value):
    """The table of all seven settings: IG, the gradient and the oracle have the same weight everywhere."""
    rows = []
    for setting in SETTINGS:
        for line, (bucket, _) in SHOWN_LINES.items():
            if objects_of(setting, bucket, "primary"):
                rows += [(setting, line, thing) for thing in objects_of(setting, bucket, "secondary")]
    columns = [(*row, method) for row in rows for method in value]
    names = ["setting", "line", "object", "method"]
    table = pd.DataFrame(
        [[value[c[-1]] for c in columns]] * 21, columns=pd.MultiIndex.from_tuples(columns, names=names)
    )
    return Measured({"weight": table})


def test_a_method_lights_every_secondary_object_or_not():
    claim = [BY_ID["fig9.T"]]
    found = judge(claim, {0: weights({"integrated_gradients": 0.1, "oracle": -0.2})}).claims.iloc[0]
    assert found[["holds", "counted", "parts"]].to_list() == ["yes (one model)", "yes", 14]
    found = judge(claim, {0: weights({"integrated_gradients": -0.1, "oracle": -0.2})}).claims.iloc[0]
    assert found["holds"] == "no (one model)"
    found = judge(claim, {0: weights({"integrated_gradients": 0.1, "oracle": 0.1})}).claims.iloc[0]
    assert found["counted"] == "not informative: a perfect map (oracle) does too"
    lacking = judge([BY_ID["fig25.T"]], {0: weights({"gradient": 0.1})}).claims.iloc[0]
    assert lacking["reason"] == "needs method lrp_z, deeplift_reveal_cancel"


def test_claims_about_maps_come_from_tables_alone(run):
    of_maps = claims(read(measured(run), draws=20)).claims.set_index("id").loc[["fig9.T", "fig25.T", "fig15.T"]]
    others = "simple_fr, simple_nr, complex_fr, complex_cr2, complex_cr3, complex_cr4"
    assert of_maps.loc["fig9.T", "reason"] == f"needs kept maps of {others}"
    assert of_maps.loc["fig15.T", "holds"] == "yes (one model)"
    for path in (run.path / "maps").iterdir():
        path.unlink()
    again = claims(read(type(run)(run.path), draws=20)).claims.set_index("id").loc[of_maps.index]
    pd.testing.assert_frame_equal(of_maps, again)


def test_the_order_of_a_tables_rows_changes_nothing(run):
    path = measured(run).path / "tables" / "smerf_objects.parquet"
    first = read(run, draws=20).seeds[0]
    pd.read_parquet(path).iloc[::-1].to_parquet(path)
    second = read(type(run)(run.path), draws=20).seeds[0]
    pd.testing.assert_frame_equal(first["weight"], second["weight"])


def test_a_collected_run_has_its_members_tables_and_maps(run, tmp_path):
    world = made_up(("complex_cr1",), n=1, methods=("gradient",))
    joint = write_run(tmp_path / "joint", world, runs=[str(run.path), str(tmp_path / "gone")])
    assert len(maps.measure(joint)["objects"]) == 24  # no member had tables: the maps are measured here
    measured(run)
    (tmp_path / "joint" / "tables" / "smerf_objects.parquet").write_bytes(
        (run.path / "tables" / "smerf_objects.parquet").read_bytes()
    )
    assert maps.measure(joint) == {}
    e = read(joint, draws=20)
    assert [(m.setting, m.condition) for m in e.maps] == [("complex_cr1", "plain")]
    assert (e.seeds[0]["weight"]["complex_cr1", "8, 9", "box1", "integrated_gradients"] > 0).all()
    _, numbers = figures(e)["figure9"]()
    assert numbers["image_id"].tolist() == ["v-b8-2", "v-b9-0"]


@pytest.mark.parametrize("facts", [{"background": "noise"}, {"paper": "mine"}])
def test_other_models_maps_are_not_measured(tmp_path, facts):
    world = made_up(("complex_cr1",), n=1, methods=("gradient",), **facts)
    run = write_run(tmp_path, world)
    write_maps(run.path, world.cells["cell"].iloc[0])
    assert all(table.empty for table in maps.measure(run).values())
    assert all(table.empty for table in maps.measure(write_run(tmp_path / "none", world)).values())
