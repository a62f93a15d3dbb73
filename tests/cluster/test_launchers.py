"""The same sweep on every launcher: one job is killed, the others finish, the same command again does what is missing
and no more, and the joined tables are those of a serial run, byte by byte. Real launchers, kills and a real Slurm.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.one_node_slurm import one_node_slurm, why_not
from tests.cluster.place import COMMAND, LAUNCHERS, METHODS, TILES, Place, until
from tests.conftest import ROOT

pytestmark = pytest.mark.cluster

JOBS = 4


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of one ordinary run."""
    place = Place(tmp_path_factory.mktemp("serial"))
    place.run(*place.cell)
    return place.scores("outputs/smerf_simple_fr/latest")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with one_node_slurm(tmp_path_factory.mktemp("slurm")) as daemons:
        yield {"SLURM_CONF": daemons.env["SLURM_CONF"]}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    launcher = request.param
    if find_spec(f"hydra_plugins.{LAUNCHERS[launcher][0]}") is None:
        pytest.skip(f"{LAUNCHERS[launcher][0]} is not installed: pip install 'salrun[cluster,ray]'")
    if launcher.startswith("slurm") and why_not():
        pytest.skip(f"no Slurm here: {why_not()}")
    return Place(tmp_path, JOBS, **(request.getfixturevalue("slurm") if launcher.startswith("slurm") else {}))


@pytest.mark.parametrize(("place", "launcher"), [(name, name) for name in LAUNCHERS], indirect=["place"], ids=LAUNCHERS)
def test_a_killed_job_takes_no_other_and_is_all_that_is_repeated(place: Place, launcher: str, serial: bytes) -> None:
    place.hold.touch()
    process = place.start(*place.sweep(launcher))
    until(place.at_work, process)
    victim = place.at_work()[-1]
    os.kill(place.facts(victim)["pid"], signal.SIGKILL)
    place.hold.unlink()
    out, err = process.communicate(timeout=900)
    assert process.returncode == 1, out + err
    assert f"job {victim}" in err and "killed" in err and "3 done, 1 failed" in out
    if launcher == "slurm_cpu":
        assert "keeps no accounting" in err

    status = place.run("status", str(place.sweeps[-1])).splitlines()
    (failed,) = (line for line in status if line.startswith("failed"))
    assert f"shard={victim}/4" in failed and "killed" in failed and "log: " in failed
    assert sum(line.startswith("done") for line in status) == JOBS - 1
    partial = place.run("collect", str(place.sweeps[-1]), "-o", "outputs/partial")
    assert f"missing: shard={victim}/4" in partial
    assert place.scores("outputs/partial") != serial

    before, others = place.entries(), [place.facts(n) for n in range(JOBS) if n != victim]
    again = place.run(*place.sweep(launcher))
    assert "going on with" in again and "4 done" in again and len(place.sweeps) == 1
    assert [place.facts(n) for n in range(JOBS) if n != victim] == others
    after = place.entries()
    assert {name: after[name] for name in before} == before
    assert place.facts(victim)["attempts"] == 2 and place.facts(victim)["computed"]["model"]["maps"] < METHODS
    assert sum(name.startswith("maps/") for name in after) == TILES * METHODS
    place.run("collect", str(place.sweeps[-1]), "-o", "outputs/joined")
    assert place.scores("outputs/joined") == serial


@pytest.mark.parametrize("place", ["slurm_cpu"], indirect=True)
def test_a_job_the_queue_stops_is_requeued_and_goes_on(place: Place, serial: bytes) -> None:
    """What Slurm does when the time is over, done at once: the signal that submitit answers by requeueing."""
    place.hold.touch()
    words = ["-n", "1", *place.cell, *LAUNCHERS["slurm_cpu"][1]]
    env = {**place.env, "PATH": os.pathsep.join([str(Path(COMMAND).parent), place.env["PATH"]])}
    script = [str(ROOT / "scripts" / "submit_slurm.sh"), *words]
    submitted = subprocess.run(script, cwd=place.folder, env=env, capture_output=True, text=True, timeout=300)
    assert submitted.returncode == 0, submitted.stderr
    until(place.at_work)
    assert "running" in place.run("status", str(place.sweeps[-1]))
    (note,) = json.loads((place.sweeps[-1] / "jobs.json").read_text()).values()
    subprocess.run(["scancel", "--signal=USR2", note["id"]], env=place.env, check=True, timeout=60)
    until(lambda: place.facts(0)["status"] == "interrupted")
    until(lambda: "in the queue again" in place.run("status", str(place.sweeps[-1])), seconds=120)
    place.hold.unlink()
    until(lambda: place.facts(0)["status"] == "done")
    assert place.facts(0)["attempts"] == 2
    assert place.facts(0)["computed"]["model"]["maps"] == TILES * METHODS - 1
    assert place.scores(f"outputs/sweeps/{place.sweeps[-1].name}/0") == serial


def test_a_job_that_raises_or_cannot_begin_takes_no_other(tmp_path: Path) -> None:
    place = Place(tmp_path)
    words = ["-m", *place.cell, "dataset.n_per_bucket=1,100000", "shard=0/4"]
    said = place.run(*words, code=1)
    assert "1 done, 1 failed" in said and "n_per_bucket must be in" in said
    facts = place.facts(1)
    assert facts["status"] == "failed" and "n_per_bucket" in facts["reason"]


def test_two_sweeps_and_many_processes_share_one_store(tmp_path: Path, serial: bytes) -> None:
    """Eight jobs at once on one store, in two sweeps of the same command: every map is computed once."""
    place = Place(tmp_path)
    launch = ["hydra/launcher=local_processes", "hydra.launcher.n_jobs=4"]
    words = ["-m", *place.cell, "shard=null,0/1,0/2,1/2", *launch]
    if find_spec("hydra_plugins.hydra_submitit_launcher") is None:
        pytest.skip("hydra_submitit_launcher is not installed: pip install 'salrun[cluster]'")
    twins = [place.start(*words) for _ in range(2)]
    said = [process.communicate(timeout=900) for process in twins]
    assert [process.returncode for process in twins] == [0, 0], said
    assert len(place.sweeps) == 2
    facts = [json.loads(p.read_text()) for sweep in place.sweeps for p in sweep.glob("[0-9]/run.json")]
    assert len(facts) == 8 and sum(f["computed"]["model"]["maps"] for f in facts) == TILES * METHODS
    for sweep in place.sweeps:
        assert (sweep / "0" / "tables" / "scores.parquet").read_bytes() == serial
        assert (sweep / "1" / "tables" / "scores.parquet").read_bytes() == serial
    assert not list((tmp_path / "store").rglob("*.lease"))
