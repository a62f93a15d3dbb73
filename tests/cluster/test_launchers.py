"""The same sweep on every launcher: one job is killed, the others finish, the same command again does what is missing
and no more, and the joined tables are those of a serial run, byte by byte. Real launchers, kills and a real Slurm.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.one_node_slurm import one_node_slurm, why_not
from tests.conftest import ROOT, command_env

pytestmark = pytest.mark.cluster

COMMAND = str(Path(sys.executable).with_name("salrun"))
PATIENT = '''
import os
import time
from dataclasses import dataclass
from salrun.types import Method

@dataclass
class Patient(Method):
    """The image itself, once a file is gone."""
    while_there: str = ""
    def passes(self, model, shape):
        return 0.0
    def __call__(self, model, x, target, rng, fitted):
        while os.path.exists(self.while_there):
            time.sleep(0.1)
        return x.clone()
'''
CELL = ["+experiment=smerf_simple_fr", "scale=smoke", "device=cpu", "paper=null", "report=false", "tile=3", "threads=1"]
CELL += ["methods=[smerf/gradient,patient]", "metrics=[pafl]", "dataset.n_per_bucket=1"]
TILES, METHODS, JOBS = 4, 2, 4
LAUNCHERS = {
    "local_joblib": ("hydra_joblib_launcher", ["hydra.launcher.n_jobs=2"]),
    "local_processes": ("hydra_submitit_launcher", ["hydra.launcher.n_jobs=2"]),
    "local_ray": ("hydra_ray_launcher", ["hydra.launcher.ray.init.num_cpus=2"]),
    "slurm_cpu": ("hydra_submitit_launcher", ["hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1"]),
}


class Place:
    """A folder with a store and a plug-in of its own."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        (folder / "patient.py").write_text(PATIENT)
        self.hold = folder / "hold"
        self.env = command_env(folder, SALRUN_PLUGINS="patient.py", **env)  # a relative path: jobs must find it too
        self.cell = [*CELL, f"methods.patient.while_there={self.hold}"]

    def start(self, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [COMMAND, *words], cwd=self.folder, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: str, code: int = 0) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=900)
        assert process.returncode == code, f"{words}\n{out[-3000:]}\n{err[-3000:]}"
        return out + err

    def sweep(self, launcher: str, *words: str) -> list[str]:
        settings = LAUNCHERS[launcher][1] if launcher in LAUNCHERS else []
        shards = ",".join(f"{i}/{JOBS}" for i in range(JOBS))
        return ["-m", *self.cell, f"shard={shards}", f"hydra/launcher={launcher}", *settings, *words]

    @property
    def sweeps(self) -> list[Path]:
        return sorted((self.folder / "outputs" / "sweeps").glob("*"))

    def facts(self, number: int) -> dict:
        path = self.sweeps[-1] / str(number) / "run.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def entries(self) -> dict[str, int]:
        """What the store holds, and since when."""
        found = (self.folder / "store").rglob("*.safetensors")
        return {f"{p.parent.parent.name}/{p.name}": p.stat().st_mtime_ns for p in found}

    def at_work(self) -> list[int]:
        """Jobs that have a map in the store and wait for the file to go."""
        busy = [n for n in range(JOBS) if self.sweeps and self.facts(n).get("stage") == "maps and scores"]
        running = [n for n in busy if self.facts(n)["status"] == "running"]
        return running if sum(e.startswith("maps/") for e in self.entries()) >= len(running) else []

    def scores(self, run: str) -> bytes:
        return (self.folder / run / "tables" / "scores.parquet").read_bytes()


def until(ready: Callable[[], object], process: subprocess.Popen, seconds: float = 600) -> None:
    begun = time.monotonic()
    while not ready():
        if process.poll() is not None or time.monotonic() - begun > seconds:
            process.kill()
            pytest.fail("".join(process.communicate()))
        time.sleep(0.2)


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of one ordinary run."""
    place = Place(tmp_path_factory.mktemp("serial"))
    place.run(*place.cell)
    return place.scores("outputs/smerf_simple_fr/latest")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with one_node_slurm(tmp_path_factory.mktemp("slurm")) as env:
        yield {"SLURM_CONF": env["SLURM_CONF"]}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    launcher = request.param
    if find_spec(f"hydra_plugins.{LAUNCHERS[launcher][0]}") is None:
        pytest.skip(f"{LAUNCHERS[launcher][0]} is not installed: pip install 'salrun[cluster,ray]'")
    if launcher.startswith("slurm") and why_not():
        pytest.skip(f"no Slurm here: {why_not()}")
    return Place(tmp_path, **(request.getfixturevalue("slurm") if launcher.startswith("slurm") else {}))


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
    watcher = subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(place.at_work, watcher)
    assert "running" in place.run("status", str(place.sweeps[-1]))
    (note,) = json.loads((place.sweeps[-1] / "jobs.json").read_text()).values()
    subprocess.run(["scancel", "--signal=USR2", note["id"]], env=place.env, check=True, timeout=60)
    until(lambda: place.facts(0)["status"] == "interrupted", watcher)
    until(lambda: "in the queue again" in place.run("status", str(place.sweeps[-1])), watcher, 120)
    place.hold.unlink()
    until(lambda: place.facts(0)["status"] == "done", watcher)
    watcher.kill()
    watcher.communicate()
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
