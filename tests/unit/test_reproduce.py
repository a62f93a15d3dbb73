"""scripts/reproduce.py: the runs of conf/campaign, of which only those that are missing are run."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from salrun.config.catalogue import names
from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.results.record import RunRecord
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
    assert reproduce.PAPERS == ["smerf", "tomsett", "yona", "zhang"]
    jobs = {
        tuple(job)
        for paper in reproduce.PAPERS
        for group in list(reproduce.campaign(paper)["groups"]) or [""]
        for scale in ("smoke", "laptop", "paper")
        for job in reproduce.wanted(paper, scale, [0], [], [], group)
    }
    for job in jobs:
        check(compose_config(list(job)))
    experiments = {job[0].removeprefix("+experiment=") for job in jobs}
    assert experiments == set(names("experiment"))


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
    assert reproduce.done(jobs[0]) == Path("outputs/smerf_simple_fr/1")
    assert reproduce.done(jobs[7]) is None  # the same experiment under noise
    for facts in ({"status": "failed"}, {"planned_only": True}, {"schema": 1}):
        write_run(run, jobs[0], **facts)
        assert reproduce.done(jobs[0]) is None
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
    assert reproduce.done(job) == Path("outputs/it's/2")


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
