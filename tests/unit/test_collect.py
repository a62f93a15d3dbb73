"""Runs that are joined into one: what fits together, what is left out, what is refused, what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from salrun.errors import SalrunError
from salrun.results.collect import missing_shards, refuse_strangers
from salrun.results.run import Run
from salrun.results.tables import write_parquet
from salrun.sweep import jobs
from salrun.sweep.collect import _missing_jobs, collect_runs
from tests.fake_run import save_run
from tests.unit.test_sweeps import make_sweep

EQUAL = {"device": "cpu", "precision": "float32", "models": {"model": {"fingerprint": "f"}}}
CALLED = {"experiment": "e", "dataset": "d", "model": "m", "seed": 0, "group": "1"}


def measured_run(folder: Path, *methods: str, shard: str = "0/1", value: float = 0.5, **facts: Any) -> Path:
    """A finished run of four images, every n-th of them where it is a shard of n."""
    index, count = map(int, shard.split("/"))
    scores = [
        {**CALLED, "image_id": f"i{i}", "method": method, "metric": "pafl", "mode": "code", "value": value}
        for i in range(index, max(4, count), count)
        for method in methods
    ]
    return save_run(folder, pd.DataFrame(scores), shard=shard, **{**EQUAL, **facts})


def about(*names: str, **options: Any) -> dict[str, Any]:
    """What run.json says of methods."""
    return {name: {"label": name, "view": "max_abs", "target": "predicted", "options": options} for name in names}


def collected(folder: Path) -> pd.DataFrame:
    assert collect_runs([folder], folder / "out", "now") == 0
    scores = Run(folder / "out").scores
    assert not scores.duplicated(["cell", "image_id", "method", "metric", "mode", "score", "view"]).any()
    return scores


def test_runs_of_a_cell_with_a_method_each_make_one_table(tmp_path: Path) -> None:
    measured_run(tmp_path / "a", "gradient", started="1")
    measured_run(tmp_path / "b", "edge", started="2", value=0.5 + 1e-9)
    scores = collected(tmp_path)
    assert scores["method"].value_counts().to_dict() == {"gradient": 4, "edge": 4}
    joined = Run(tmp_path / "out")
    assert len(joined.images) == 4 and len(joined.cells) == 1 and set(joined.methods) == {"gradient", "edge"}
    assert joined.facts["status"] == "done" and [m["metric"] for m in joined.metrics] == ["pafl"]
    assert set(joined.summary["direction"]) == {"higher"} and (tmp_path / "out" / "report.html").is_file()


def test_the_newer_of_two_equal_scores_is_kept(tmp_path: Path) -> None:
    measured_run(tmp_path / "a", "gradient", "random", started="1")
    measured_run(tmp_path / "b", "gradient", "edge", started="2", value=0.5 + 1e-9)  # another machine's last bits
    scores = collected(tmp_path)
    assert set(scores.loc[scores["method"] == "gradient", "value"]) == {0.5 + 1e-9}


def test_tables_of_single_images_are_joined_too(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        run = measured_run(tmp_path / name, "gradient", started=str(seed))
        write_parquet(run / "tables" / "mine_objects.parquet", pd.DataFrame({"image_id": ["i0"], "seed": [seed]}))
    (tmp_path / "b" / "run.json").write_text((tmp_path / "b" / "run.json").read_text().replace("0/1", "0/1"))
    measured_run(tmp_path / "c", "edge", started="3")
    collected(tmp_path)
    joined = Run(tmp_path / "out").table("mine_objects")
    assert joined is not None and sorted(joined["seed"]) == [1]  # of run a, which b replaces, nothing is left
    assert Run(tmp_path / "out").table("nothing") is None


def test_a_run_is_left_out_only_if_a_newer_one_has_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured_run(tmp_path / "a", "gradient", "edge", started="1", value=0.1)
    measured_run(tmp_path / "b", "gradient", started="0", value=0.2)
    assert set(collected(tmp_path)["value"]) == {0.1}
    assert f"left out: {tmp_path / 'b'} (there is a newer run" in capsys.readouterr().out


def test_two_scores_of_one_image_that_differ_are_refused(tmp_path: Path) -> None:
    measured_run(tmp_path / "a", "gradient", "edge", started="1", value=0.1)
    measured_run(tmp_path / "b", "gradient", "random", started="2", value=0.2)
    with pytest.raises(SalrunError, match=r"a and .*b do not fit together: .* is 0.1 \(ok\) in one, 0.2 \(ok\)"):
        collected(tmp_path)


def test_settings_that_differ_are_found_between_any_two_runs(tmp_path: Path) -> None:
    measured_run(tmp_path / "a", "gradient", started="1")
    measured_run(tmp_path / "b", "edge", "random", started="2")
    measured_run(tmp_path / "c", "edge", "oracle", started="3", methods=about("edge", n=2) | about("oracle"))
    with pytest.raises(SalrunError, match=r"b and .*c do not fit together: .*methods.edge is"):
        collected(tmp_path)


def test_shards_of_a_method_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("gradient", "edge"):
        for shard in ("0/2", "1/2"):
            measured_run(tmp_path / f"{method}{shard[0]}", method, started="1", shard=shard)
    assert set(collected(tmp_path)["method"].value_counts()) == {4}
    assert "missing" not in capsys.readouterr().out
    (tmp_path / "edge1" / "run.json").unlink()
    with pytest.raises(SalrunError, match="methods.edge is only in one of these shards"):
        collect_runs([tmp_path], tmp_path / "two", "now")


def test_a_shard_that_only_one_method_lacks_is_named(tmp_path: Path) -> None:
    runs = [measured_run(tmp_path / "a", "gradient", started="1")]
    runs += [measured_run(tmp_path / "b", "edge", started="2", shard="1/2")]
    assert missing_shards([Run(run) for run in runs]) == ["e seed 0 shard 0/2 of edge"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"device": "cuda"}, "device is cpu in one, cuda in the other"),
        ({"precision": "float64"}, "precision"),
        ({"models": {"model": {"fingerprint": "g"}}}, "weights of their models differ"),
        ({"methods": about("gradient", space="raw")}, "methods.gradient is"),
        ({"methods": about("gradient") | about("edge")}, "methods.edge is only in one"),
        ({}, None),
    ],
)
def test_shards_that_do_not_fit_are_refused(tmp_path: Path, facts: dict[str, Any], message: str | None) -> None:
    runs = [Run(measured_run(tmp_path / "a", "gradient", shard="0/2"))]
    runs += [Run(measured_run(tmp_path / "b", "gradient", shard="1/2", **facts))]
    if message is None:
        refuse_strangers(runs)
    else:
        with pytest.raises(SalrunError, match=message):
            refuse_strangers(runs)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    runs = [Run(measured_run(tmp_path / f"{i}", "gradient", shard=f"{i}/3")) for i in (0, 2)]
    assert missing_shards(runs) == ["e seed 0 shard 1/3"]
    runs.append(Run(measured_run(tmp_path / "c", "gradient")))  # one run has it all
    assert missing_shards(runs) == []
    sweep = make_sweep(tmp_path / "s", "done", "failed", "missing")
    named = _missing_jobs([sweep])
    assert len(named) == 2 and "seed=1" in named[0] and "(missing)" in named[1]


def test_a_run_of_an_older_schema_is_refused(tmp_path: Path) -> None:
    run = measured_run(tmp_path / "a", "gradient")
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({k: v for k, v in facts.items() if k != "schema"}))
    with pytest.raises(SalrunError, match="has tables of schema 1"):
        collect_runs([tmp_path], tmp_path / "out", "now")


def test_what_was_only_planned_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "s"
    task = "[+experiment=e, plan=true, 'seed=0,1']"
    for number, facts in enumerate(({"planned_only": True}, {})):
        run = measured_run(sweep / str(number), "gradient", **facts)
        assert jobs.job_in(run).state == ("planned" if facts else "done")
    (sweep / "multirun.yaml").write_text(f"hydra: {{overrides: {{task: {task}}}}}\n")
    assert jobs.counts(jobs.jobs_of(sweep)) == "1 done, 1 planned"
    assert jobs.interrupted_sweep(tmp_path, ["+experiment=e", "plan=true", "seed=0,1"]) is None
    collect_runs([sweep], tmp_path / "out", "now")
    told = capsys.readouterr().out
    assert f"left out: {sweep / '0'} (planned: plan=true computes nothing)" in told and "missing" not in told
