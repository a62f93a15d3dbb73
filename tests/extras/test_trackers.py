"""Real trackers, read back: TensorBoard's event files, MLflow's folder, database and server, wandb offline."""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from salrun.results.run import Run
from salrun.tracking import finished, track
from tests.conftest import ROOT
from tests.fake_run import make_run

CELL = ["+experiment=smerf_simple_fr", "scale=smoke", "device=cpu", "methods=[smerf/gradient]", "metrics=[pafl]"]
CELL += ["dataset.n_per_bucket=1"]


def needs(package: str) -> None:
    pytest.importorskip(
        package, reason=f"{package} is not installed: pip install 'salrun[{package}]' (make test-extras)"
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A job of a sweep, as it leaves its folder."""
    sweep = tmp_path / "20260101-000000-000000"
    sweep.mkdir()
    (sweep / "multirun.yaml").touch()
    folder = make_run(sweep / "0", n_images=24, methods=["gradient", "random"], groups=2)
    (folder / "report.html").write_text("<html></html>")
    return Run(folder)


# -- TensorBoard -------------------------------------------------------------------------------------------------------


def test_tensorboard_has_scalars_figures_config_and_hparams(run: Run, tmp_path: Path) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    from salrun.tracking.tensorboard import TensorBoard

    tracker = TensorBoard(folder=str(tmp_path / "events"))
    place = track(run, {"tensorboard": tracker})["tensorboard"]
    assert Path(place).parent.name == run.path.parent.name  # the sweep is a folder
    track(run, {"tensorboard": tracker})  # told again: no second file
    assert len(list(Path(place).glob("events.*"))) == 1
    events = EventAccumulator(place, size_guidance={"images": 0}).Reload()
    told = finished(run, groups=False)
    assert set(events.Tags()["scalars"]) == set(told.metrics)
    for name, value in told.metrics.items():
        (point,) = events.Scalars(name)
        assert point.value == pytest.approx(value, abs=1e-6)
    assert events.Tags()["images"] == ["smerf_fig3"]
    (text,) = events.Tensors("command/text_summary")
    assert run.facts["command"].encode() in text.tensor_proto.string_val[0]
    start = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    hparams = HParamsPluginData.FromString(start).session_start_info.hparams
    assert hparams["methods.rise.n_masks"].number_value == 1000 and hparams["scale"].string_value == "laptop"


# -- MLflow ------------------------------------------------------------------------------------------------------------


def check_mlflow(uri: str, run: Run, tmp_path: Path) -> None:
    """Tell two jobs of the sweep, and read back what a user would see."""
    from mlflow import MlflowClient

    from salrun.tracking.mlflow import MLflow

    places = [track(run, {"mlflow": MLflow(uri=uri)})["mlflow"] for _ in range(2)]
    assert all(place.startswith("run ") for place in places), places
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("smerf_complex_cr2")
    every = client.search_runs([experiment.experiment_id])
    (parent,) = [r for r in every if r.data.tags.get("salrun.kind") == "sweep"]
    jobs = [r for r in every if r is not parent]
    assert len(jobs) == 2
    told = finished(run, groups=False)
    for job in jobs:
        assert job.data.tags["mlflow.parentRunId"] == parent.info.run_id and job.info.status == "FINISHED"
        assert job.data.params == {key: str(value) for key, value in told.parameters.items()}
        assert job.data.tags["salrun.command"] == run.facts["command"]
        assert job.data.metrics == pytest.approx(dict(told.metrics))
        folders = {f.path for f in client.list_artifacts(job.info.run_id)}
        assert {"report.html", "config.yaml", "figures", "tables"} <= folders
        figures = {f.path for f in client.list_artifacts(job.info.run_id, "figures")}
        assert "figures/smerf_fig3.png" in figures
        copy = client.download_artifacts(job.info.run_id, "figures/smerf_fig3.png", str(tmp_path))
        assert Path(copy).read_bytes() == (run.path / "figures" / "smerf_fig3.png").read_bytes()


@pytest.mark.parametrize("store", ["folder", "database"])
def test_mlflow_on_files(run: Run, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    if store == "database" and find_spec("sqlalchemy") is None:
        pytest.skip("a database takes the whole of mlflow: pip install mlflow")
    monkeypatch.chdir(tmp_path)
    check_mlflow(
        str(tmp_path / "mlruns") if store == "folder" else f"sqlite:///{tmp_path / 'mlflow.db'}", run, tmp_path
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A real server on this machine, with a database and artefacts of its own; the client's package has none."""
    needs("mlflow")
    whole = all(map(find_spec, ("flask", "sqlalchemy")))
    program = os.environ.get("SALRUN_MLFLOW") or (whole and shutil.which("mlflow"))
    if not program:
        pytest.skip(
            "a server takes the whole of mlflow: pip install mlflow, here or where SALRUN_MLFLOW=<its command> is"
        )
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += [
        "--backend-store-uri",
        f"sqlite:///{tmp_path / 'server.db'}",
        "--artifacts-destination",
        str(tmp_path / "kept"),
    ]
    with open(tmp_path / "server.log", "wb") as log:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        process = subprocess.Popen([program, *words], cwd=tmp_path, env=env, stdout=log, stderr=log)
    try:
        begun = time.monotonic()
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() - begun > 180:
                    pytest.fail((tmp_path / "server.log").read_text()[-3000:])
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def test_mlflow_on_a_server(run: Run, tmp_path: Path, server: str) -> None:
    check_mlflow(server, run, tmp_path)


@pytest.fixture(params=["closed", "silent"])
def nobody(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where no server is, or one that takes what it is asked and never answers."""
    with closing(socket.socket()) as port:
        port.bind(("127.0.0.1", 0))
        if request.param == "silent":
            port.listen(50)
        yield f"http://127.0.0.1:{port.getsockname()[1]}"


def test_a_server_that_is_not_there_is_one_line_in_seconds(
    run: Run, caplog: pytest.LogCaptureFixture, nobody: str
) -> None:
    needs("mlflow")
    from salrun.tracking.mlflow import MLflow

    before, begun = dict(os.environ), time.monotonic()
    place = track(run, {"mlflow": MLflow(uri=nobody)})["mlflow"]
    assert place.startswith("failed: ") and time.monotonic() - begun < 15
    (said,) = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert "did not take the run" in said and "\n" not in said
    assert dict(os.environ) == before


# -- Weights & Biases --------------------------------------------------------------------------------------------------


def wandb_records(folder: Path) -> list:
    """Every record of an offline run's file: LevelDB's log format, blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    data, at, parts, records = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no room for a header: the block is padded
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + length > len(data):  # still being written
            break
        parts = data[at + 7 : at + 7 + length] if kind in (1, 2) else parts + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            records.append(Record.FromString(parts))
    return records


def test_wandb_offline(run: Run, tmp_path: Path) -> None:
    needs("wandb")
    from salrun.tracking.wandb import WandB

    place = Path(track(run, {"wandb": WandB(folder=str(tmp_path / "kept"))})["wandb"])
    assert place.parent == tmp_path / "kept" / "wandb" and place.name.startswith("offline-run-")
    records, begun = wandb_records(place), time.monotonic()
    while not any(r.WhichOneof("record_type") == "exit" for r in records):  # its service writes on after `finish`
        assert time.monotonic() - begun < 60
        time.sleep(0.2)
        records = wandb_records(place)
    about = next(r.run for r in records if r.WhichOneof("record_type") == "run")
    assert about.run_group == run.path.parent.name and about.project == "salrun"
    config = {(u.key or ".".join(u.nested_key)): json.loads(u.value_json) for u in about.config.update}
    assert config["methods.rise.n_masks"] == 1000 and config["salrun.command"] == run.facts["command"]
    summary = {}
    for record in records:
        if record.WhichOneof("record_type") == "summary":
            summary |= {u.key or ".".join(u.nested_key): json.loads(u.value_json) for u in record.summary.update}
    told = finished(run, groups=False)
    assert {name: summary[name] for name in told.metrics} == pytest.approx(dict(told.metrics))
    artefacts = [r.artifact for r in records if r.WhichOneof("record_type") == "artifact"]
    assert {entry.path for a in artefacts for entry in a.manifest.contents} >= {"report.html", "figures/smerf_fig3.png"}


ONLINE = """
import logging, sys
from salrun.results.run import Run
from salrun.tracking import track
from salrun.tracking.wandb import WandB

logging.basicConfig(level=logging.WARNING)
print(track(Run(sys.argv[1]), {"wandb": WandB(mode="online", folder=sys.argv[2])})["wandb"])
"""


def told_online(run: Run, tmp_path: Path, **env: str) -> tuple[str, list[str]]:
    """(where wandb has the run, lines of standard error) of a process at a terminal, where it could ask, and wait."""
    keys, terminal = pty.openpty()
    plain = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    plain |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    words = [sys.executable, "-c", ONLINE, str(run.path), str(tmp_path / "kept")]
    try:
        streams: dict[str, int] = {"stdin": terminal, "stderr": terminal, "stdout": subprocess.PIPE}
        done = subprocess.run(words, env=plain | env, timeout=60, **streams)
        return done.stdout.decode(), os.read(keys, 65536).decode().splitlines()
    finally:
        os.close(keys)
        os.close(terminal)


def test_wandb_whose_server_is_not_there_is_one_line_in_seconds(run: Run, tmp_path: Path, nobody: str) -> None:
    needs("wandb")
    place, said = told_online(run, tmp_path, WANDB_API_KEY="a" * 40, WANDB_BASE_URL=nobody)
    assert place.startswith("failed: ") and nobody in place and len(said) == 1


def test_wandb_does_not_ask_who_one_is(run: Run, tmp_path: Path) -> None:
    needs("wandb")
    place, said = told_online(run, tmp_path)
    assert place.startswith("failed: ") and "login" in place and len(said) == 1


# -- a run -------------------------------------------------------------------------------------------------------------


def test_a_run_is_told_and_its_tables_are_those_of_an_untold_one(salrun_command, tmp_path: Path) -> None:
    for package in ("tensorboard", "mlflow", "wandb"):
        needs(package)
    plain = salrun_command(*CELL, "hydra.run.dir=plain")
    told = salrun_command(*CELL, "logger=[tensorboard,mlflow,wandb]", "hydra.run.dir=told")
    failed = salrun_command(*CELL, "logger=mlflow", "logger.mlflow.uri=http://127.0.0.1:9", "hydra.run.dir=failed")
    assert (plain.returncode, told.returncode, failed.returncode) == (0, 0, 0), told.stderr + failed.stderr
    assert told.stdout.count("tracked: ") == 3 and failed.stderr.count("did not take the run") == 1
    assert set(Run(tmp_path / "told").facts["tracked"]) == {"tensorboard", "mlflow", "wandb"}
    assert not any(place.startswith("failed") for place in Run(tmp_path / "told").facts["tracked"].values())
    assert Run(tmp_path / "failed").done and Run(tmp_path / "failed").facts["tracked"]["mlflow"].startswith("failed: ")
    for path in sorted((tmp_path / "plain" / "tables").iterdir()):
        for other in ("told", "failed"):
            assert (tmp_path / other / "tables" / path.name).read_bytes() == path.read_bytes(), path.name
