"""The command as a user runs it: the real entrypoint, real files, real kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from salrun.models.inference import fast_dtype
from tests.conftest import command_env

METHODS = "methods=[smerf/gradient,smerf/input_x_gradient,smerf/random,smerf/edge,smerf/oracle,smerf/all_lit]"
SMOKE = ("+experiment=smerf_simple_fr", "scale=smoke", "device=cpu", METHODS)
SCORES = [
    "cell",
    "experiment",
    "dataset",
    "model",
    "seed",
    "scale",
    "group",
    "image_id",
    "label",
    "prediction",
    "target",
]
SCORES += ["method", "metric", "mode", "score", "view", "value", "flag"]
COMMAND = str(Path(sys.executable).with_name("salrun"))


def latest(folder: Path, experiment: str = "smerf_simple_fr") -> Path:
    return (folder / "outputs" / experiment / "latest").resolve()


def scores_of(folder: Path, experiment: str = "smerf_simple_fr") -> bytes:
    return (latest(folder, experiment) / "tables" / "scores.parquet").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished smoke run, looked at by several tests."""
    folder = tmp_path_factory.mktemp("finished")
    done = subprocess.run([COMMAND, *SMOKE], cwd=folder, env=command_env(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stdout)
    return folder


def test_the_output_contract(finished: Path) -> None:
    run = latest(finished)
    for name in (
        "config.yaml",
        "run.json",
        "run.log",
        "claims.csv",
        "claim_parts.csv",
        "report.html",
        "tables/summary.csv",
        "tables/model.csv",
        "tables/cells.csv",
        "tables/images.parquet",
    ):
        assert (run / name).exists(), name
    scores = pd.read_parquet(run / "tables" / "scores.parquet")
    assert list(scores.columns) == SCORES
    assert scores["image_id"].dtype == scores["group"].dtype and scores["group"].nunique() == 12
    assert set(zip(scores["mode"], scores["view"], strict=True)) >= {("code", "gray"), ("paper", "abs_sum")}
    summary = pd.read_parquet(run / "tables" / "summary.parquet")
    assert list(summary.columns)[-6:] == ["n", "n_flagged", "mean", "std", "ci_low", "ci_high"]
    facts = json.loads((run / "run.json").read_text())
    assert facts["status"] == "done" and facts["scale"] == "smoke"
    assert any("reduced run" in d for d in facts["deviations"])
    assert {"data", "model", "maps and scores", "tables", "report"} <= set(facts["timings"])
    assert facts["versions"]["torch"] and facts["peak_memory_mib"] > 0 and facts["device"] == "cpu"
    claims = pd.read_csv(run / "claims.csv")
    assert list(claims.columns) == (
        "id paper sentence place predicate quantifier parts needed unit measured ci_low ci_high size k population "
        "holds answer about second_mode agrees published published_holds counted control reason".split()
    )
    assert list((run / "figures").glob("smerf_*.png")) and list((run / "figures").glob("smerf_*.csv"))


def test_the_controls_reach_their_ceilings(finished: Path) -> None:
    """Oracle and all_lit through the whole pipeline give the known ceilings (Box1 alone: PAFL .686, PIOU .82)."""
    scores = pd.read_parquet(latest(finished) / "tables" / "scores.parquet")
    cell = scores[(scores["group"] == "7") & (scores["method"] == "oracle") & (scores["mode"] == "code")]
    means = cell.groupby("metric")["value"].mean()
    assert means["pafl"] == pytest.approx(0.686, abs=0.02)
    assert means["piou"] == pytest.approx(0.82, abs=0.02)
    paper = scores[(scores["method"] == "oracle") & (scores["metric"] == "pafl") & (scores["mode"] == "paper")]
    assert paper["value"].dropna().min() > 0.99


def test_a_second_run_computes_nothing_and_gives_the_same_bytes(finished: Path) -> None:
    before = scores_of(finished)
    done = subprocess.run([COMMAND, *SMOKE], cwd=finished, env=command_env(finished), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts = json.loads((latest(finished) / "run.json").read_text())
    assert facts["computed"]["model"] == {"maps": 0, "scores": 0}
    assert scores_of(finished) == before


def test_adding_a_metric_recomputes_no_method(finished: Path) -> None:
    words = [*SMOKE, "metrics=[pafl,sparseness]"]
    done = subprocess.run([COMMAND, *words], cwd=finished, env=command_env(finished), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    computed = json.loads((latest(finished) / "run.json").read_text())["computed"]["model"]
    assert computed["maps"] == 0 and computed["scores"] > 0


def test_plan_counts_and_stops(finished: Path) -> None:
    before = latest(finished)
    done = subprocess.run(
        [COMMAND, *SMOKE, "plan=true"], cwd=finished, env=command_env(finished), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "in all: 24 images" in done.stdout and "gradient" in done.stdout
    assert latest(finished) == before


def test_half_precision_is_measured_before_it_is_used(tmp_path: Path, salrun_command) -> None:
    """Where the processor has it; elsewhere the run says that it stays as it is."""
    words = ("+experiment=smerf_simple_fr", "scale=smoke", "device=cpu", "numerics=fast")
    chosen = ("methods=[smerf/gradient,smerf/oracle]", "metrics=[insertion,deletion]", "report=false")
    done = salrun_command(*words, *chosen)
    assert done.returncode == 0, done.stderr
    run = latest(tmp_path)
    numerics = json.loads((run / "run.json").read_text())["numerics"]
    if fast_dtype(torch.device("cpu")) is None:
        assert "stays float32: no bfloat16 here" in done.stderr and numerics["mode"] == "exact"
        return
    assert numerics["mode"] == "fast" and numerics["dtype"] == "bfloat16"
    table = pd.read_csv(run / "tables" / "numerics.csv")
    assert len(table) == len(numerics["probe"]) == 4  # two metrics of two methods
    assert (table["shift"] <= 0.1).all() and (table["rank"] >= 0.98).all() and (table["images"] == 16).all()
    assert "note: numerics=fast: bfloat16; on a probe of 16 images" in done.stdout


def test_shards_join_to_the_whole(finished: Path) -> None:
    words = ["-m", *SMOKE, "shard=0/2,1/2", "tile=4"]
    env = command_env(finished)
    done = subprocess.run([COMMAND, *words], cwd=finished, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    whole = subprocess.run([COMMAND, *SMOKE, "tile=4"], cwd=finished, env=env, capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    (sweep,) = (finished / "outputs" / "sweeps").iterdir()
    (sweep / "1").rename(sweep / "aside")
    status = subprocess.run([COMMAND, "status", str(sweep)], cwd=finished, env=env, capture_output=True, text=True)
    assert [line.split()[0] for line in status.stdout.splitlines()] == ["done", "done", "missing"], status.stdout
    (sweep / "aside").rename(sweep / "1")
    done = subprocess.run(
        [COMMAND, "collect", str(sweep), "-o", "outputs/joined"], cwd=finished, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (finished / "outputs" / "joined" / "tables" / "scores.parquet").read_bytes() == scores_of(finished)


@pytest.mark.slow
def test_killed_at_random_moments_it_resumes_to_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    moments = random.Random(7)
    words = [COMMAND, *SMOKE, "tile=2"]
    whole = subprocess.run(words, cwd=finished, env=command_env(finished), capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    for _ in range(3):
        process = subprocess.Popen(
            words, cwd=tmp_path, env=command_env(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        begun = time.monotonic()
        entries = 0
        goal = moments.randint(1, 120)
        while process.poll() is None and entries < goal and time.monotonic() - begun < 120:
            time.sleep(0.05)
            entries = (
                sum(1 for _ in (tmp_path / "store").rglob("*.safetensors")) if (tmp_path / "store").exists() else 0
            )
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(words, cwd=tmp_path, env=command_env(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert scores_of(tmp_path) == scores_of(finished)
    assert not list((tmp_path / "store").rglob("*.broken"))


@pytest.mark.slow
def test_two_processes_share_one_store(finished: Path, tmp_path: Path) -> None:
    words = [COMMAND, *SMOKE, "tile=2", "name=twins"]
    env = command_env(tmp_path)
    twins = [
        subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    assert [p.wait(timeout=300) for p in twins] == [0, 0]
    runs = [p for p in (tmp_path / "outputs" / "twins").iterdir() if not p.is_symlink()]
    assert len(runs) == 2
    tables = {(p / "tables" / "scores.parquet").read_bytes() for p in runs}
    assert len(tables) == 1
    computed = [json.loads((p / "run.json").read_text())["computed"]["model"]["maps"] for p in runs]
    assert sum(computed) == 12 * 6  # 12 tiles x 6 methods, each once


def test_a_broken_store_entry_is_named_and_replaced(finished: Path) -> None:
    before = scores_of(finished)
    victim = sorted((finished / "store" / "scores").rglob("*.safetensors"))[3]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    last = json.loads((latest(finished) / "run.json").read_text())["command"].split()[1:]
    words = [w.strip("'") for w in last]
    done = subprocess.run([COMMAND, *words], cwd=finished, env=command_env(finished), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if victim.with_suffix(".broken").exists():
        assert "not trusted" in done.stderr and victim.stem[:8] in done.stderr
    assert scores_of(finished) == before


USERS = {
    "my_part.py": '''
from dataclasses import dataclass
from typing import ClassVar
import torch
from salrun.types import Method, Metric, Score, OK

@dataclass
class CentreBias(Method):
    """A blob in the middle of the image."""
    signed: ClassVar[bool] = False
    width: float = 10.0
    def passes(self, model, shape):
        return 0.0
    def __call__(self, model, x, target, rng, fitted):
        h, w = x.shape[2:]
        down, right = (torch.arange(n, device=x.device) - n / 2 for n in (h, w))
        r = down.view(-1, 1) ** 2 + right**2
        return torch.exp(-r / self.width**2).expand(len(x), 1, h, w).clone()

@dataclass
class TopLeft(Metric):
    """The value of the first pixel."""
    direction: ClassVar[str] = "none"
    def __call__(self, plane, scene):
        value = plane[:, 0, 0, 0].double()
        return Score(value, torch.full(value.shape, OK, dtype=torch.uint8, device=value.device))
''',
    "reasoning/letters.yaml": """# @package dataset.reasoning
# my own: A or B, boxes do not matter
name: letters
train_per_bucket: 300
validation_per_bucket: 30
buckets:
  2: {label: 0, primary: [text], secondary: []}
  3: {label: 1, primary: [text], secondary: []}
""",
}


def test_a_users_method_metric_and_reasoning_from_another_folder(tmp_path: Path) -> None:
    for name, text in USERS.items():
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    env = command_env(tmp_path, SALRUN_PLUGINS=str(tmp_path / "mine" / "my_part.py"))
    words = ["--config-dir", "mine", "dataset=textbox", "reasoning=letters", "model=smerf_simple", "name=mine"]
    words += [
        "methods=[centre_bias,gradient]",
        "metrics=[top_left,pafl]",
        "methods.centre_bias.width=5",
        "dataset.n_per_bucket=3",
    ]
    words += ["model.recipes.fast.epochs=1", "model.recipes.fast.epoch_images=300", "model.recipes.fast.restarts=1"]
    words += ["model.accept_unverified=true", "device=cpu"]
    done = subprocess.run([COMMAND, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    scores = pd.read_parquet(latest(tmp_path, "mine") / "tables" / "scores.parquet")
    assert set(scores["method"]) == {"centre_bias", "gradient"} and set(scores["group"]) == {"2", "3"}
    assert "UNVERIFIED" in done.stdout or "accuracy" in done.stdout
    target = ["+methods.blob={_target_: my_part.CentreBias, width: 3.0}"]
    again = subprocess.run(
        [COMMAND, *words, *target], cwd=tmp_path, env=command_env(tmp_path), capture_output=True, text=True
    )
    assert again.returncode == 2 and "centre_bias" in again.stderr  # without the plug-in the name is unknown
    wrong = subprocess.run(
        [COMMAND, *words, "methods.centre_bias.widht=5"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert wrong.returncode == 2 and "did you mean width" in wrong.stderr


def test_a_fault_of_ours_is_one_line_with_a_log(tmp_path: Path) -> None:
    (tmp_path / "broken_part.py").write_text(
        USERS["my_part.py"].replace("return torch.exp", "raise ValueError('boom')  #")
    )
    env = command_env(tmp_path, SALRUN_PLUGINS=str(tmp_path / "broken_part.py"))
    done = subprocess.run(
        [COMMAND, *SMOKE, "methods=[centre_bias]"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert "unexpected ValueError: boom" in line and "Traceback" not in done.stderr
    log = Path(line.rpartition(" ")[2])
    assert "boom" in (log if log.is_absolute() else tmp_path / log).read_text()
    status = subprocess.run([COMMAND, "status"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert status.stdout.startswith("failed") and "boom" in status.stdout


def test_interrupting_keeps_what_is_done(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, *SMOKE, "tile=1", "dataset.n_per_bucket=5"],
        cwd=tmp_path,
        env=command_env(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # where tests run in the background the signal is ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    while process.poll() is None and not (tmp_path / "store" / "scores").exists():
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "interrupted" in said.splitlines()[-1] and "Traceback" not in said


def test_the_named_example_has_every_row(tmp_path: Path) -> None:
    """17 rows of the paper, the two controls, six metrics in two readings; from shipped weights."""
    words = ["+experiment=smerf_complex_cr2", "scale=smoke", "device=cpu", "dataset.n_per_bucket=1"]
    done = subprocess.run([COMMAND, *words], cwd=tmp_path, env=command_env(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = latest(tmp_path, "smerf_complex_cr2")
    scores = pd.read_parquet(run / "tables" / "scores.parquet")
    assert scores["method"].nunique() == 19
    assert set(scores["metric"]) == {"pafl", "safl", "pmafl", "smafl", "piou", "siou"}
    assert set(scores["mode"]) == {"code", "paper"} and set(scores["score"]) == {""}
    facts = json.loads((run / "run.json").read_text())
    assert facts["problems"] == [] and facts["models"]["model"]["source"] == "shipped"


def test_list_and_cache(salrun_command) -> None:
    for group in ("methods", "metrics", "experiment", "dataset", "model", "views", "reasoning"):
        done = salrun_command("list", group)
        assert done.returncode == 0 and len(done.stdout.splitlines()) > 1
    assert "store" in salrun_command("cache").stdout
