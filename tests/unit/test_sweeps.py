"""Sweeps as their files tell them: states, what goes on where, what is refused; leases under many hands."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from shutil import which
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from salrun.cli import main as cli
from salrun.config.catalogue import conf_dir, names
from salrun.errors import SalrunError
from salrun.results.record import code_of, record_failure
from salrun.store import leases, sources
from salrun.store.leases import Heartbeat, Lease
from salrun.sweep import jobs as sweeps
from salrun.sweep import launch as launching
from salrun.sweep import submit

HERE = {"host": socket.gethostname()}
HOST = socket.gethostname().encode()


@pytest.fixture(scope="module")
def dead() -> dict:
    """A process that was."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return {**HERE, "pid": process.pid}


# -- leases -----------------------------------------------------------------------------------------------------------


def test_of_many_who_find_a_dead_lease_one_at_a_time_works(
    tmp_path: Path, dead: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "POLL", 0.001)
    path = tmp_path / "k.lease"
    path.write_text(json.dumps(dead))
    at_work, most, done = [], [], []

    def work() -> None:
        lease = Lease(path, "work")
        lease.acquire()
        at_work.append(1)
        most.append(len(at_work))
        time.sleep(0.002)
        at_work.pop()
        lease.release()
        done.append(1)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(done) == 16 and max(most) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")
def test_a_killed_process_its_parent_has_not_waited_for_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = {**HERE, "pid": process.pid}
    assert not leases.gone(owner)
    process.kill()
    begun = time.monotonic()
    while not leases.gone(owner) and time.monotonic() - begun < 20:
        time.sleep(0.01)
    assert leases.gone(owner) and process.returncode is None
    process.communicate()


def test_who_was_taken_for_dead_leaves_the_lease_of_his_successor(tmp_path: Path) -> None:
    path = tmp_path / "k.lease"
    first = Lease(path, "work")
    assert first.try_acquire()
    first._evict(first.owner())
    second = Lease(path, "work")
    assert second.try_acquire()
    first.release()
    assert path.exists() and not first.try_acquire()
    second._evict({"pid": 1})  # judged by what another one wrote before: the present holder stays
    assert second.owner()["pid"] == os.getpid()
    second.release()
    assert not path.exists()


GARBAGE = [b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"pid": "x"}', b'{"pid": 1e400}', 10000 * b"[", b'{"pid": [1]}']


@pytest.mark.parametrize("content", [*GARBAGE, json.dumps({"host": "elsewhere", "pid": 1}).encode()])
def test_a_lease_that_was_silent_for_long_is_taken_whatever_is_in_it(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    for age, held in ((0, True), (-4e9, False), (3 * 86400, False)):
        path.write_bytes(content if b"host" in content else content.replace(b"{", b'{"host": "%s", ' % HOST))
        os.utime(path, (time.time() - age,) * 2)
        assert Lease(path, "work").held() is held
    lease = Lease(path, "work")
    assert lease.try_acquire() and lease.owner()["pid"] == os.getpid()
    lease.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_lease_that_is_no_file_makes_nobody_wait(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("nowhere")}[kind]()
    assert not Lease(path, "work").try_acquire()
    os.utime(path, (1, 1), follow_symlinks=False)
    lease = Lease(path, "work")
    assert lease.try_acquire() and lease.held()
    lease.release()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")
def test_a_process_that_has_the_number_of_another_is_not_that_one(tmp_path: Path) -> None:
    mine = leases.here()
    assert not leases.gone(mine)
    for process in ("1 of another boot", mine["process"].replace(" of", "0 of")):
        assert leases.gone({**mine, "process": process})
        run = run_folder(tmp_path / "r", status="running", **{**mine, "process": process})
        assert sweeps.job_in(run).state == "failed"


def test_the_heart_beats_while_the_work_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "BEAT", 0.02)
    path = tmp_path / "file"
    path.write_text("")
    os.utime(path, (0, 0))
    heart = Heartbeat()
    heart.start(path)
    time.sleep(0.5)
    heart.stop(path)
    assert path.stat().st_mtime > time.time() - 60


# -- states -----------------------------------------------------------------------------------------------------------


def run_folder(folder: Path, age: float = 0.0, **facts: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.log").write_text("")
    (folder / "run.json").write_text(json.dumps({"experiment": "e", "seed": 0, "scale": "smoke", **facts}))
    os.utime(folder / "run.json", (time.time() - age,) * 2)
    return folder


def test_states(tmp_path: Path, dead: dict) -> None:
    away, mine = {"host": "elsewhere", "pid": 1}, {**HERE, "pid": os.getpid()}
    cases = {
        "done": ({"status": "done", **dead}, 0, {}, ("done", "")),
        "whole": ({"status": "done", "made": ["run.json"], **dead}, 0, {}, ("done", "")),
        "lost": ({"status": "done", "made": ["run.json", "report.html"]}, 0, {}, ("failed", "report.html is gone")),
        "empty": ({"status": "done", "made": ["run.log"]}, 0, {}, ("failed", "run.log is gone")),
        "failed": ({"status": "failed", "reason": "boom"}, 0, {}, ("failed", "boom")),
        "stopped": ({"status": "interrupted"}, 0, {}, ("failed", "interrupted")),
        "here": ({"status": "running", "stage": "model", **mine}, 9999, {}, ("running", "model")),
        "killed": ({"status": "running", **dead}, 0, {}, ("failed", "is gone")),
        "away": ({"status": "running", "stage": "data", **away}, 5, {}, ("running", "data")),
        "silent": ({"status": "running", **away}, 1200, {}, ("failed", "no sign of process 1 on elsewhere for 20 min")),
        "queued": ({"status": "interrupted", "queue": "7_1"}, 0, {"7_1": "PENDING"}, ("running", "in the queue again")),
        "slow": ({"status": "running", "queue": "7_2", **away}, 1200, {"7_2": "RUNNING"}, ("failed", "no sign")),
        "memory": (
            {"status": "running", "queue": "7_3", **away},
            0,
            {"7_3": "OUT_OF_MEMORY"},
            ("failed", "OUT_OF_MEM"),
        ),
    }
    for name, (facts, age, queue, (state, reason)) in cases.items():
        job = sweeps.job_in(run_folder(tmp_path / name, age, **facts), queue=queue)
        assert (job.state, reason in job.reason) == (state, True), (name, job)
        assert job.log == tmp_path / name / "run.log"
    never = tmp_path / "never"
    assert sweeps.job_in(never).state == "missing"
    assert sweeps.job_in(never, "", {"id": "8"}, {"8": "PENDING"}).reason == "in the queue: PENDING"
    assert sweeps.job_in(never, "", {"id": "8", "ended": "TIMEOUT"}).state == "failed"
    assert sweeps.job_in(never, "", {"id": "8"}, {"8": "NODE_FAIL"}).reason == "never began: NODE_FAIL"


def make_sweep(folder: Path, *states: str) -> Path:
    folder.mkdir(parents=True)
    task = "\n".join(f"    - {word}" for word in ("+experiment=e", f"seed={','.join(map(str, range(len(states))))}"))
    (folder / "multirun.yaml").write_text(f"hydra:\n  overrides:\n    task:\n{task}\n")
    for number, state in enumerate(states):
        if state != "missing":
            run_folder(folder / str(number), status=state, **HERE, pid=os.getpid())
    return folder


def test_a_sweep_tells_its_jobs(tmp_path: Path) -> None:
    jobs = sweeps.jobs_of(make_sweep(tmp_path / "s", "done", "failed", "missing"))
    assert [(job.state, job.what) for job in jobs] == [("done", "seed=0"), ("failed", "seed=1"), ("missing", "seed=2")]
    assert sweeps.counts(jobs) == "1 done, 1 failed, 1 missing"


def test_the_same_command_goes_on_where_nobody_is_at_work(tmp_path: Path, dead: dict) -> None:
    words = ["+experiment=e", "seed=0,1,2"]
    assert sweeps.interrupted_sweep(tmp_path, words) is None
    make_sweep(tmp_path / "1", "done", "failed", "missing")
    assert sweeps.interrupted_sweep(tmp_path, words) == tmp_path / "1"
    assert sweeps.interrupted_sweep(tmp_path, [*words, "tile=3"]) is None
    (tmp_path / "1" / ".lease").write_text(json.dumps({**HERE, "pid": os.getpid()}))
    assert sweeps.interrupted_sweep(tmp_path, words) is None
    (tmp_path / "1" / ".lease").write_text(json.dumps(dead))
    assert sweeps.interrupted_sweep(tmp_path, words) == tmp_path / "1"
    make_sweep(tmp_path / "2", "done", "running", "missing")
    assert sweeps.interrupted_sweep(tmp_path, words) is None
    make_sweep(tmp_path / "3", "done", "done", "done")
    assert sweeps.interrupted_sweep(tmp_path, words) is None


def test_done_is_of_this_config_and_this_code(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "r", status="done", code="abc", made=["run.json"])
    (run / "config.yaml").write_text("seed: 0\nbuckets: {1: a}\n")
    assert sweeps.finished(run, {"seed": 0, "buckets": {1: "a"}}, "abc")
    assert not sweeps.finished(run, {"seed": 1, "buckets": {1: "a"}}, "abc")
    assert not sweeps.finished(run, {"seed": 0, "buckets": {1: "a"}}, "abd")
    record_failure(run, "killed", [])  # too late: it is done
    assert sweeps.finished(run, {"seed": 0, "buckets": {1: "a"}}, "abc")


def test_the_code_of_a_run_covers_users_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what they import. Sources are read once per process: the next one sees an edit."""

    def code() -> str:
        for function in vars(sources).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()
        return code_of({"methods": {"mine": {"_target_": "their_part.Mine"}}})

    (tmp_path / "their_part.py").write_text("from their_helper import B\n")
    (tmp_path / "their_helper.py").write_text("B = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = [code(), code_of({})]
    assert code() == seen[0]
    (tmp_path / "their_helper.py").write_text("B = 2\n")
    seen.append(code())
    (tmp_path / "their_part.py").write_text("from their_helper import B\n\nA = 2\n")
    assert len({*seen, code()}) == 4


def test_a_requeued_job_is_at_work_while_it_ends_and_until_it_begins_again(tmp_path: Path) -> None:
    """Its run.json is of a process that is gone; Slurm knows that it comes back."""
    dead = {"host": socket.gethostname(), "pid": 2**22 + 1}
    run = run_folder(tmp_path / "r", status="running", queue="7_0", **dead)
    for state in ("COMPLETING", "RUNNING"):
        job = sweeps.job_in(run, queue={"7_0": state})
        assert (job.state, job.reason) == ("running", f"in the queue: {state}")
    assert sweeps.job_in(run, queue={"7_0": "FAILED"}).state == "failed"
    assert sweeps.job_in(run).state == "failed"


def test_a_job_that_is_cancelled_before_it_begins_has_failed(tmp_path: Path) -> None:
    """Slurm forgets such a task of an array at once; where it does not answer, nobody knows."""
    sweep, ids = make_sweep(tmp_path / "s", "missing", "missing"), ("7_0", "7_1")
    sweeps.note_submitted(sweep, {n: {"id": name, "kind": "slurm"} for n, name in enumerate(ids)})
    jobs = sweeps.jobs_of(sweep, {"7_0": "PENDING"})
    told = [(job.state, job.reason) for job in jobs]
    assert told == [("missing", "in the queue: PENDING"), ("failed", "never began: it left the queue")]
    assert sweeps.job_in(sweep / "1", "", {"id": "7_1", "kind": "slurm"}, None).state == "missing"
    assert sweeps.job_in(sweep / "1", "", {"id": "4711", "kind": "local"}, {}).state == "missing"


def test_of_two_submissions_the_later_counts(tmp_path: Path) -> None:
    """A job that was cancelled is submitted again: its run.json still has the number of the first time."""
    dead = {"host": socket.gethostname(), "pid": 2**22 + 1}
    again = {"id": "9_0", "kind": "slurm"}
    for number, status in enumerate(("running", "failed", "interrupted")):
        run = run_folder(tmp_path / str(number), status=status, queue="7_0", **dead)
        for state in ("PENDING", "RUNNING"):
            job = sweeps.job_in(run, "", again, {"7_0": "CANCELLED", "9_0": state})
            assert job.state == "running" and state in job.reason
        assert sweeps.job_in(run, "", again, {"7_0": "CANCELLED", "9_0": "CANCELLED"}).state == "failed"


@pytest.mark.parametrize("text", ["", "[]", "3", '{"0": 3}', "[" * 5000])
def test_garbled_notes_of_a_launcher_are_no_notes(tmp_path: Path, text: str) -> None:
    sweep = make_sweep(tmp_path / "s", "done", "missing")
    (sweep / "jobs.json").write_text(text)
    assert [job.state for job in sweeps.jobs_of(sweep, {})] == ["done", "missing"]


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "\0", "{", "hydra: 3", "hydra: {overrides: {task: [3]}}", "a: &a [*a]"]
)
def test_a_sweep_whose_file_is_damaged_is_named_and_hides_nothing(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = make_sweep(tmp_path / "a", "done", "done"), make_sweep(tmp_path / "b", "done", "missing")
    (bad / "multirun.yaml").write_text(text)
    (job,) = sweeps.jobs_of(bad)
    assert job.state == "failed" and "multirun.yaml is damaged" in job.reason
    assert cli.run(["status", str(tmp_path)]) == 0
    assert "3 done, 1 failed, 1 missing" in capsys.readouterr().err
    words = ["+experiment=e", "seed=0,1"]
    assert sweeps.interrupted_sweep(tmp_path, words) == good
    (bad / "multirun.yaml").write_text(f"{words}: [")  # it has the words, and cannot be parsed
    assert sweeps.interrupted_sweep(tmp_path, words) == good


def test_a_job_whose_config_cannot_be_read_is_not_finished(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "r", status="done", code="c", made=["run.json"])
    for text, finished in (("a: 1\n", True), ("a: [", False), ("3", False)):
        (run / "config.yaml").write_text(text)
        assert sweeps.finished(run, {"a": 1}, "c") is finished


@pytest.mark.parametrize("status", ["running", "failed", "interrupted", "done"])
def test_a_job_that_was_submitted_again_is_at_work_whatever_became_of_it_before(tmp_path: Path, status: str) -> None:
    dead = {"host": socket.gethostname(), "pid": 2**22 + 1}
    run = run_folder(tmp_path / "r", status=status, queue="7_0", **dead)
    for state in ("PENDING", "RUNNING"):
        job = sweeps.job_in(run, "", {"id": "8_0", "kind": "slurm"}, {"7_0": "FAILED", "8_0": state})
        assert (job.state, job.reason, job.at_work) == ("running", f"in the queue: {state}", True)
    assert not sweeps.job_in(run, "", {"id": "8_0", "kind": "slurm"}, {"7_0": "FAILED"}).at_work


# -- watching ---------------------------------------------------------------------------------------------------------


def squeue_that_says(folder: Path, text: str, code: int = 0) -> None:
    (folder / "squeue").write_text(f"#!/bin/sh\nprintf '{text}'\nexit {code}\n")
    (folder / "squeue").chmod(0o755)


def test_a_job_that_leaves_the_queue_without_a_result_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(submit, "GRACE", 0.0)
    paths = SimpleNamespace(result_pickle=tmp_path / "result", stderr=tmp_path / "err")
    running = {n: SimpleNamespace(job_id=f"5_{n}", paths=paths) for n in range(3)}
    watch = submit.Watch(tmp_path, "slurm", 3)
    with caplog.at_level(logging.INFO):
        squeue_that_says(tmp_path, "", code=1)
        assert len(watch.still_running(running)) == 3 and "squeue does not answer" in caplog.text
        squeue_that_says(tmp_path, "5_0|RUNNING\\n5_1|OUT_OF_MEMORY\\n")
        watch.still_running(running)
        time.sleep(0.01)
        running = watch.still_running(running)
    assert list(running) == [0] and "2 of 3 jobs have ended" in caplog.text
    notes = sweeps.read_submitted(tmp_path)
    assert notes["1"]["ended"] == "OUT_OF_MEMORY" and "left the queue" in notes["2"]["ended"] and "0" not in notes
    paths.result_pickle.touch()
    assert watch.still_running(running) == {}


def test_a_dead_worker_of_ray_is_told_and_its_sweep_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("hydra_plugins.hydra_ray_launcher")
    from hydra_plugins.hydra_ray_launcher import _core

    from hydra_plugins.salrun_ray_launcher.launcher import RayLauncher

    def get(job: str) -> str:
        if job == "dead":
            raise ray.exceptions.WorkerCrashedError
        return job

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(_core, "ray", ray)
    monkeypatch.setattr(_core, "launch", lambda **given: [_core.ray.get(job) for job in ("one", "dead", "three")])
    first, second, third = RayLauncher({}).launch([["a"], ["b"], ["c"]], 0)
    assert (first, third) == ("one", "three") and second.return_value is None
    assert "a job's worker ended" in caplog.text


def test_without_accounting_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    submit.tell_accounting()
    assert "keeps no accounting" in caplog.text


def test_a_database_that_is_down_is_told_and_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sacct").write_text("#!/bin/sh\necho 'sacct: error: Unable to connect to database' >&2\nexit 1\n")
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    submit.tell_accounting()
    assert "sacct does not answer" in caplog.text


def test_launchers_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launching.check_launcher(["seed=0"])
    with pytest.raises(SalrunError, match="did you mean slurm_gpu"):
        launching.check_launcher(["hydra/launcher=slurm_gpuu"])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launching, "_installed", lambda module: True)
    with pytest.raises(SalrunError, match="no sbatch here"):
        launching.check_launcher(["hydra/launcher=slurm_gpu"])
    monkeypatch.setattr(launching, "_installed", lambda module: False)
    with pytest.raises(SalrunError, match=r"pip install 'salrun\[ray\]'"):
        launching.check_launcher(["hydra/launcher=local_ray"])


def test_our_launchers_are_plug_ins_that_hydra_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra.core.plugins import Plugins

    from hydra_plugins.salrun_launchers import launchers

    classes = {"LocalLauncher", "SlurmLauncher"} & vars(launchers).keys()
    assert bool(classes) is (importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is not None)
    for name in classes:
        assert f"hydra_plugins.salrun_launchers.launchers.{name}" in Plugins.instance().class_name_to_class
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # without submitit there are none
    source = importlib.util.spec_from_file_location("without_submitit", launchers.__file__)
    assert source is not None and source.loader is not None
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    assert not {"LocalLauncher", "SlurmLauncher"} & vars(module).keys()


PRESETS = ("local_joblib", "local_processes", "local_ray", "slurm_cpu", "slurm_gpu")


def test_presets_compose_and_their_knobs_exist(tmp_path: Path) -> None:
    assert set(names("hydra/launcher")) == set(PRESETS) and all(names("hydra/launcher").values())
    for preset in PRESETS:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            words = [f"hydra/launcher={preset}", f"hydra.sweep.dir={tmp_path}", "hydra.job.num=0"]
            cfg = compose("config", overrides=words, return_hydra_config=True)
        params = OmegaConf.to_container(cfg.hydra.launcher, resolve=False)
        kind = {"LocalLauncher": "local", "SlurmLauncher": "slurm"}.get(params.pop("_target_").rpartition(".")[2])
        if kind is None or importlib.util.find_spec("submitit") is None or (kind == "slurm" and not which("srun")):
            continue
        params = {k: v for k, v in params.items() if v is not None and k not in ("n_jobs", "wait")}
        submit.executor(kind, {**params, "submitit_folder": str(tmp_path / "%j")})  # refuses knobs it does not know
