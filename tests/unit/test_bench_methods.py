"""The bench runs end to end on a tiny network and writes a table one can read."""

import csv
from pathlib import Path

import pytest

from tests.toys import script

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_methods.py"


@pytest.fixture(scope="module")
def bench():
    return script("bench_methods")


def test_quick_run_writes_csv_and_markdown(bench, tmp_path):
    names = ["gradient", "rise", "lime", "iba", "fake_cam"]
    assert bench.main(["--quick", "--out", str(tmp_path), "--methods", *names]) == 0
    with (tmp_path / "methods.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == names
    assert all(float(row["salrun"]) > 0 for row in rows.values())
    assert rows["fake_cam"]["floor"] == ""
    assert float(rows["rise"]["salrun_fast"]) > 0
    best = max(float(rows["rise"]["salrun"]), float(rows["rise"]["salrun_fast"]))
    assert float(rows["rise"]["of_floor"]) == pytest.approx(best / float(rows["rise"]["floor"]))
    text = (tmp_path / "methods.md").read_text()
    assert "- processor: " in text
    assert text.count("| tiny |") == len(names)


def test_jobs_take_turns_and_a_failure_is_reported(bench):
    order = []

    def refuse():
        order.append("bad")
        raise RuntimeError("no such layer\nsecond line")

    times, faults = bench.take_turns(
        {"a": lambda: order.append("a"), "bad": refuse, "b": lambda: order.append("b")}, 2, "cpu"
    )
    assert order == ["a", "bad", "b", "a", "b", "a", "b"]
    assert set(times) == {"a", "b"}
    assert faults == {"bad": "RuntimeError: no such layer"}


def test_every_method_with_a_network_has_a_floor(bench):
    case = next(bench.quick_cases("cpu"))
    free = {"edge", "random", "oracle", "all_lit", "fake_cam"}
    names = {path.stem for path in bench.CONF.glob("*.yaml")} - {"captum"}
    for name in sorted(names):
        passes = bench.floor(name, bench.load_method(name, case.work.get(name, {})), case)
        assert (passes == {}) == (name in free)
        assert all(kind in bench.PASSES and count > 0 for kind, count in passes.items())
