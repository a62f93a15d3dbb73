"""scripts/reproduce.py: the runs of conf/campaign, of which only those that are missing are run."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from salrun.config.catalogue import names
from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.results.record import RunRecord
from salrun.results.run import Run
from salrun.sweep.campaigns import PAPERS, Evidence, asked, evidence
from tests.fake_run import save_run
from tests.toys import script


@pytest.fixture(scope="module")
def reproduce() -> ModuleType:
    return script("reproduce")


def write_run(folder: Path, job: list[str], **facts: object) -> Path:
    """A finished run as salrun records it, with some facts changed."""
    with RunRecord(folder, job, experiment=folder.parent.name):
        pass
    content = json.loads((folder / "run.json").read_text()) | facts
    (folder / "run.json").write_text(json.dumps(content))
    return folder


def test_every_run_of_every_campaign_composes(reproduce: ModuleType) -> None:
    assert reproduce.PAPERS == ["court", "smerf", "tomsett", "transformers", "yona", "zhang"]
    jobs = {
        tuple(job)
        for paper in reproduce.PAPERS
        for group in list(reproduce.campaign(paper)["groups"]) or [""]
        for scale in ("laptop", "paper")  # smoke has the runs of paper
        for job in reproduce.wanted(paper, scale, [0], [], [], group)
    }
    for job in jobs:
        if len(job) > 3:  # more than an experiment, its scale and seed: those are composed by tests/config
            check(compose_config(list(job)))
    experiments = {job[0].removeprefix("+experiment=") for job in jobs}
    assert experiments == set(names("experiment"))


@pytest.mark.parametrize("paper", PAPERS)
def test_all_evidence_composes_and_has_a_place_of_its_own(paper: str) -> None:
    runs = evidence([paper])
    assert len({run.folder for run in runs}) == len(runs) == len({asked(run.words) for run in runs})
    assert all(run.hours > 0 for run in runs) and [run.priority for run in runs] == sorted(r.priority for r in runs)
    firsts = {(run.campaign, run.name.rpartition("-")[0]): run for run in reversed(runs)}  # seeds compose alike
    for run in firsts.values():
        config = check(compose_config(list(run.words)))
        assert config["seed"] == run.seed and config["paper"] in ("smerf" if paper == "transformers" else paper, None)


def test_paper_s_verdicts_get_three_models_beyond_the_first() -> None:
    for campaign_of, settings in (("smerf", 7), ("tomsett", 1), ("yona", 2)):
        runs = [run for run in evidence(PAPERS) if run.campaign == campaign_of]
        for seed in (1, 2, 3, 4):
            assert sum(run.seed == seed and run.priority < 70 for run in runs) == settings


def test_only_what_is_missing_is_run(
    reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "CHECKPOINTS", tmp_path)
    jobs = reproduce.wanted("smerf", "smoke", [0], ["background=noise"], ["threads=1"])
    assert len(jobs) == 14
    assert jobs[0] == ["+experiment=smerf_simple_fr", "scale=smoke", "seed=0", "threads=1"]
    run = tmp_path / "outputs" / "smerf_simple_fr" / "1"
    write_run(run, ["+experiment=smerf_simple_fr", "seed=0", "scale=smoke", "threads=1"])
    assert reproduce.done()[asked(jobs[0])] == Path("outputs/smerf_simple_fr/1")
    assert asked(jobs[7]) not in reproduce.done()  # the same experiment under noise
    for facts in ({"status": "failed"}, {"planned_only": True}, {"schema": 1}):
        write_run(run, jobs[0], **facts)
        assert reproduce.done() == {}
    assert reproduce.main(["tomsett", "--dry-run", "--", "device=cpu"]) == 0
    assert capsys.readouterr().out == "[1/1] salrun +experiment=tomsett_cifar10 scale=paper seed=0 device=cpu\n"


def test_the_newest_run_counts_whatever_its_words_and_damage_beside_it(
    reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = ["+experiment=tomsett_cifar10", "scale=smoke", "name=it's", "methods=[gradient,rise]"]
    write_run(tmp_path / "outputs" / "it's" / "1", job)
    write_run(tmp_path / "outputs" / "it's" / "2", job)
    (tmp_path / "outputs" / "it's" / "latest").symlink_to("2")
    damaged = tmp_path / "outputs" / "it's" / "3"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    assert reproduce.done() == {asked(job): Path("outputs/it's/2")}


def test_conditions_whose_models_are_shipped_are_run(
    reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(reproduce, "CHECKPOINTS", tmp_path)
    for name in ("smerf-complex_cr2-noise", "smerf-simple_fr-places", "smerf-simple_nr-pgd", "smerf-simple_nr-clipped"):
        (tmp_path / f"{name}.safetensors").touch()
    jobs = reproduce.wanted("smerf", "smoke", [0], [], [f"data_root={tmp_path}"])
    more = [job[:4] for job in jobs if len(job) > 4]
    noise = ["+experiment=smerf_complex_cr2", "scale=smoke", "seed=0", "background=noise"]
    assert more == [noise, ["+experiment=smerf_simple_nr", "scale=smoke", "seed=0", "training=pgd"]]
    assert "left out: smerf_simple_fr background=places: no pictures in" in capsys.readouterr().out
    (tmp_path / "places").mkdir()
    jobs = reproduce.wanted("smerf", "smoke", [0], ["background=noise"], [f"data_root={tmp_path}"])
    assert [job[3] for job in jobs[14:]] == ["background=places", "training=pgd"]
    assert len(reproduce.wanted("smerf", "smoke", [0, 1], [], [])) == 14
    assert len(reproduce.wanted("yona", "smoke", [0], [], [])) == 4


def test_zhangs_runs_are_told_apart_by_their_names(
    reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in reproduce.campaign("zhang")["groups"]:
        jobs = reproduce.wanted("zhang", "laptop", [0], [], [], group)
        configs = [check(compose_config(job)) for job in jobs]
        assert len({config["name"] for config in configs}) == len(jobs)
        assert ("zhang_fidelity", "fidelity") in {(config["name"], config["protocol"]) for config in configs}
        for config in configs:
            wanted = config["name"].removeprefix("zhang_targets_") if config["protocol"] == "targets" else "label"
            assert config["target"] == wanted
    paper = [" ".join(job) for job in reproduce.wanted("zhang", "paper", [0], [], [], "cifar10")]
    assert sum("target=least_probable" in job for job in paper) == 1
    monkeypatch.chdir(tmp_path)
    assert reproduce.main(["zhang", "--dry-run", "--group", "cifar10"]) == 0
    with pytest.raises(SystemExit):
        reproduce.main(["zhang", "--dry-run", "--group", "mnist"])


# -- evidence ----------------------------------------------------------------------------------------------------------

SALRUN = """
import json, pathlib, shutil, sys, time
experiment = sys.argv[1].partition("=")[2]
with open("begun", "a") as begun:
    begun.write(experiment + "\\n")
while experiment == "long" and not pathlib.Path("short").exists():
    time.sleep(0.05)
if experiment == "wrong":
    sys.exit(1)
out = pathlib.Path("outputs") / experiment / "1"
shutil.copytree("template", out)
facts = json.loads((out / "run.json").read_text()) | {"overrides": sys.argv[1:]}
(out / "run.json").write_text(json.dumps(facts))
"""


@pytest.fixture
def conveyor(reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """reproduce.py in a folder of its own, with a salrun that copies a run instead of making one."""
    monkeypatch.chdir(tmp_path)
    called = {"experiment": "e", "dataset": "d", "model": "m", "seed": 0, "group": "1", "image_id": "i"}
    save_run(tmp_path / "template", pd.DataFrame([{**called, "method": "edge", "metric": "pafl", "value": 0.5}]))
    (tmp_path / "salrun.py").write_text(SALRUN)
    monkeypatch.setattr(reproduce, "SALRUN", [sys.executable, str(tmp_path / "salrun.py")])
    monkeypatch.setattr(reproduce, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(reproduce, "FASTEST", tmp_path / "outputs" / "fastest.json")
    return reproduce


def campaign_of(monkeypatch: pytest.MonkeyPatch, reproduce: ModuleType, *experiments: str) -> None:
    """Let these be all evidence there is, the first the most valuable."""
    runs = [Evidence("c", f"{e}-0", (f"+experiment={e}", "seed=0"), 0, n, 0.5) for n, e in enumerate(experiments)]
    monkeypatch.setattr(reproduce, "evidence", lambda papers: runs)


def test_evidence_is_run_by_value_and_kept_once(
    conveyor: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    campaign_of(monkeypatch, conveyor, "a", "b", "c")
    write_run(tmp_path / "outputs" / "b" / "1", ["+experiment=b", "threads=7"], schema=1)  # of an older salrun
    assert conveyor.main(["--hours", "1", "--dry-run"]) == 0
    assert "left  0  0.5 h  c/a-0" in (said := capsys.readouterr().out)
    assert said.endswith("0 of 3 runs done, 3 left, about 1.5 hours\n")
    (tmp_path / "outputs" / "b" / "1").rename(tmp_path / "old")
    assert conveyor.main(["--hours", "1", "--jobs", "1", "smerf"]) == 0
    assert (tmp_path / "begun").read_text().split() == ["a", "b", "c"]
    assert "3 of 3 runs done, 0 left, about 0.0 hours" in capsys.readouterr().out
    kept = Run(tmp_path / "results" / "c" / "b-0")
    assert asked(kept.overrides) == ("+experiment=b",) and len(kept.scores) == 1 and "host" not in kept.facts
    (tmp_path / "outputs").rename(tmp_path / "gone")  # what is committed is done, wherever it was run
    assert conveyor.main(["--hours", "1"]) == 0
    facts = json.loads((kept.path / "run.json").read_text()) | {"overrides": ["+experiment=b", "target=label"]}
    (kept.path / "run.json").write_text(json.dumps(facts))  # of another command: not what is asked for
    assert conveyor.main(["--hours", "1"]) == 0
    assert (tmp_path / "begun").read_text().split() == ["a", "b", "c", "b"]


def test_a_run_made_elsewhere_is_kept_without_running(
    conveyor: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign_of(monkeypatch, conveyor, "a")
    run = tmp_path / "outputs" / "a" / "1"
    run.parent.mkdir(parents=True)
    (tmp_path / "template").rename(run)
    facts = json.loads((run / "run.json").read_text()) | {"overrides": ["threads=1", "+experiment=a", "report=false"]}
    (run / "run.json").write_text(json.dumps(facts))
    assert conveyor.main(["--hours", "1"]) == 0
    assert (tmp_path / "results" / "c" / "a-0" / "run.json").is_file() and not (tmp_path / "begun").exists()


def test_time_over_interrupts_and_the_same_command_goes_on(
    conveyor: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    campaign_of(monkeypatch, conveyor, "wrong", "long", "a")
    begun = time.monotonic()
    assert conveyor.main(["--hours", str(3 / 3600), "--jobs", "2"]) == 1  # one failed
    assert time.monotonic() - begun < conveyor.GRACE
    said = capsys.readouterr()
    assert "failed: c/wrong-0: see outputs/evidence/c-wrong-0.log" in said.err
    assert "interrupted: c/long-0" in said.out and "1 of 3 runs done, 2 left" in said.out
    assert not (tmp_path / "results" / "c" / "long-0").exists()
    (tmp_path / "short").touch()
    campaign_of(monkeypatch, conveyor, "long", "a")
    assert conveyor.main(["--hours", "1"]) == 0
    assert (tmp_path / "begun").read_text().split() in (["wrong", "long", "a", "long"], ["long", "wrong", "a", "long"])


def test_the_faster_way_is_remembered(conveyor: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert conveyor.fastest() == 2
    monkeypatch.setattr(conveyor, "SHORT", [["+experiment=a"], ["+experiment=b"]])
    monkeypatch.setattr(conveyor, "SALRUN", [sys.executable, "-c", "pass"])
    assert conveyor.main(["--measure"]) == 0
    found = json.loads((tmp_path / "outputs" / "fastest.json").read_text())
    assert found["jobs"] == conveyor.fastest() == int(min(found["seconds"], key=found["seconds"].get))


def test_mistakes_are_told(conveyor: ModuleType, capsys: pytest.CaptureFixture) -> None:
    for wrong in (["smurf"], [], ["smerf", "yona"], ["--hours", "1", "--jobs", "0"]):
        with pytest.raises(SystemExit):
            conveyor.main(wrong)
    assert f"unknown paper 'smurf'; known: {', '.join(PAPERS)}" in capsys.readouterr().err


def test_a_background_job_can_be_interrupted(reproduce: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells start those with SIGINT ignored, which every run would inherit."""
    monkeypatch.setattr(reproduce, "convey", lambda *given: signal.raise_signal(signal.SIGINT))
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert reproduce.main(["--hours", "1"]) == 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
