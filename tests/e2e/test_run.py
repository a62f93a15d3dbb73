"""The command as a user runs it: the real entrypoint, real files, real kills."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from salrun.models.inference import fast_dtype
from tests.conftest import COMMAND, Once, command_env

METHODS = "methods=[smerf/gradient,smerf/input_x_gradient,smerf/random,smerf/edge,smerf/oracle,smerf/all_lit]"
SMOKE = ("+experiment=smerf_simple_fr", "scale=smoke", "device=cpu", METHODS)
TABLES = (*SMOKE, "paper=null", "report=false")  # without figures and claims
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


def latest(folder: Path, experiment: str = "smerf_simple_fr") -> Path:
    return (folder / "outputs" / experiment / "latest").resolve()


def scores_of(folder: Path) -> bytes:
    return (latest(folder) / "tables" / "scores.parquet").read_bytes()


def run(script: Path, folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess:
    """The command, finished, in this folder and with its store."""
    return subprocess.run([script, *words], cwd=folder, env=command_env(folder, **env), capture_output=True, text=True)


@pytest.fixture(scope="session")
def pristine(once: Once) -> Path:
    """One finished smoke run of the console script."""

    def make(folder: Path) -> None:
        done = run(COMMAND, folder, *SMOKE)
        assert done.returncode == 0, done.stderr

    return once("finished", make)


@pytest.fixture(scope="module")
def finished(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run, looked at and added to by several tests."""
    return Path(shutil.copytree(pristine, tmp_path_factory.mktemp("run") / "finished", symlinks=True))


@pytest.fixture
def verified(pristine: Path, tmp_path: Path) -> Path:
    """A folder whose store knows what the shipped model's verification found, and nothing else."""
    shutil.copytree(pristine / "store" / "verification", tmp_path / "store" / "verification")
    return tmp_path


def test_the_output_contract(finished: Path) -> None:
    made = latest(finished)
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
        assert (made / name).exists(), name
    scores = pd.read_parquet(made / "tables" / "scores.parquet")
    assert list(scores.columns) == SCORES
    assert scores["image_id"].dtype == scores["group"].dtype and scores["group"].nunique() == 12
    assert set(zip(scores["mode"], scores["view"], strict=True)) >= {("code", "gray"), ("paper", "abs_sum")}
    summary = pd.read_parquet(made / "tables" / "summary.parquet")
    assert list(summary.columns)[-6:] == ["n", "n_flagged", "mean", "std", "ci_low", "ci_high"]
    facts = json.loads((made / "run.json").read_text())
    assert facts["status"] == "done" and facts["scale"] == "smoke"
    assert any("reduced run" in d for d in facts["deviations"])
    assert {"data", "model", "maps and scores", "tables", "report"} <= set(facts["timings"])
    assert facts["versions"]["torch"] and facts["peak_memory_mib"] > 0 and facts["device"] == "cpu"
    claims = pd.read_csv(made / "claims.csv")
    assert list(claims.columns) == (
        "id paper sentence place predicate quantifier parts needed unit measured ci_low ci_high size k population "
        "holds answer about second_mode agrees published published_holds counted control reason".split()
    )
    assert list((made / "figures").glob("smerf_*.png")) and list((made / "figures").glob("smerf_*.csv"))


def test_the_controls_reach_their_ceilings(finished: Path) -> None:
    """Oracle and all_lit through the whole pipeline give the known ceilings (Box1 alone: PAFL .686, PIOU .82)."""
    scores = pd.read_parquet(latest(finished) / "tables" / "scores.parquet")
    cell = scores[(scores["group"] == "7") & (scores["method"] == "oracle") & (scores["mode"] == "code")]
    means = cell.groupby("metric")["value"].mean()
    assert means["pafl"] == pytest.approx(0.686, abs=0.02)
    assert means["piou"] == pytest.approx(0.82, abs=0.02)
    paper = scores[(scores["method"] == "oracle") & (scores["metric"] == "pafl") & (scores["mode"] == "paper")]
    assert paper["value"].dropna().min() > 0.99


def test_a_second_run_computes_nothing_and_gives_the_same_bytes(finished: Path, warm: Path) -> None:
    before = scores_of(finished)
    done = run(warm, finished, *SMOKE)
    assert done.returncode == 0, done.stderr
    facts = json.loads((latest(finished) / "run.json").read_text())
    assert facts["computed"]["model"] == {"maps": 0, "scores": 0}
    assert scores_of(finished) == before


def test_adding_a_metric_recomputes_no_method(finished: Path, warm: Path) -> None:
    done = run(warm, finished, *TABLES, "metrics=[pafl,sparseness]")
    assert done.returncode == 0, done.stderr
    computed = json.loads((latest(finished) / "run.json").read_text())["computed"]["model"]
    assert computed["maps"] == 0 and computed["scores"] > 0


def test_plan_counts_and_stops(finished: Path, warm: Path) -> None:
    before = latest(finished)
    done = run(warm, finished, *SMOKE, "plan=true")
    assert done.returncode == 0, done.stderr
    assert "in all: 24 images" in done.stdout and "gradient" in done.stdout
    assert latest(finished) == before


def test_half_precision_is_measured_before_it_is_used(verified: Path, salrun_command) -> None:
    """Where the processor has it; elsewhere the run says that it stays as it is."""
    words = ("+experiment=smerf_simple_fr", "scale=smoke", "device=cpu", "numerics=fast")
    chosen = ("methods=[smerf/gradient,smerf/oracle]", "metrics=[insertion,deletion]", "report=false")
    done = salrun_command(*words, *chosen)
    assert done.returncode == 0, done.stderr
    made = latest(verified)
    numerics = json.loads((made / "run.json").read_text())["numerics"]
    if fast_dtype(torch.device("cpu")) is None:
        assert "stays float32: no bfloat16 here" in done.stderr and numerics["mode"] == "exact"
        return
    assert numerics["mode"] == "fast" and numerics["dtype"] == "bfloat16"
    table = pd.read_csv(made / "tables" / "numerics.csv")
    assert len(table) == len(numerics["probe"]) == 4  # two metrics of two methods
    assert (table["shift"] <= 0.1).all() and (table["rank"] >= 0.98).all() and (table["images"] == 16).all()
    assert "numerics=fast: bfloat16; on a probe of 16 images" in done.stdout


def test_shards_join_to_the_whole(finished: Path, warm: Path) -> None:
    done = run(warm, finished, "-m", *TABLES, "shard=0/2,1/2", "tile=4")
    assert done.returncode == 0, done.stderr
    whole = run(warm, finished, *TABLES, "tile=4")
    assert whole.returncode == 0, whole.stderr
    (sweep,) = (finished / "outputs" / "sweeps").iterdir()
    (sweep / "1").rename(sweep / "aside")
    status = run(warm, finished, "status", str(sweep))
    assert [line.split()[0] for line in status.stdout.splitlines()] == ["done", "done", "missing"], status.stdout
    (sweep / "aside").rename(sweep / "1")
    done = run(warm, finished, "collect", str(sweep), "-o", "outputs/joined")
    assert done.returncode == 0, done.stderr
    assert (finished / "outputs" / "joined" / "tables" / "scores.parquet").read_bytes() == scores_of(finished)


@pytest.mark.slow
def test_killed_at_random_moments_it_resumes_to_the_same_bytes(finished: Path, warm: Path, tmp_path: Path) -> None:
    moments = random.Random(7)
    words = (*TABLES, "tile=2")
    whole = run(warm, finished, *words)
    assert whole.returncode == 0, whole.stderr
    for _ in range(3):
        process = subprocess.Popen(
            [COMMAND, *words],
            cwd=tmp_path,
            env=command_env(tmp_path),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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
    done = run(warm, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert scores_of(tmp_path) == scores_of(finished)
    assert not list((tmp_path / "store").rglob("*.broken"))


@pytest.mark.slow
def test_two_processes_share_one_store(warm: Path, tmp_path: Path) -> None:
    words = [warm, *TABLES, "tile=2", "name=twins"]
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


def test_a_broken_store_entry_is_named_and_replaced(pristine: Path, warm: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(pristine, tmp_path / "home", symlinks=True))
    before = scores_of(home)
    victim = sorted((home / "store" / "scores").rglob("*.safetensors"))[3]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    done = run(warm, home, *TABLES)
    assert done.returncode == 0, done.stderr
    assert victim.with_suffix(".broken").exists() and victim.exists()
    assert "not trusted" in done.stderr and victim.stem[:8] in done.stderr
    assert scores_of(home) == before


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


def test_a_users_method_metric_and_reasoning_from_another_folder(tmp_path: Path, warm: Path) -> None:
    for name, text in USERS.items():
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    env = {"SALRUN_PLUGINS": str(tmp_path / "mine" / "my_part.py")}
    words = ["--config-dir", "mine", "dataset=textbox", "reasoning=letters", "model=smerf_simple", "name=mine"]
    words += [
        "methods=[centre_bias,gradient]",
        "metrics=[top_left,pafl]",
        "methods.centre_bias.width=5",
        "dataset.n_per_bucket=3",
    ]
    words += ["model.recipes.fast.epochs=1", "model.recipes.fast.epoch_images=300", "model.recipes.fast.restarts=1"]
    words += ["model.accept_unverified=true", "device=cpu"]
    done = run(warm, tmp_path, *words, **env)
    assert done.returncode == 0, done.stderr
    scores = pd.read_parquet(latest(tmp_path, "mine") / "tables" / "scores.parquet")
    assert set(scores["method"]) == {"centre_bias", "gradient", "random"} and set(scores["group"]) == {"2", "3"}
    assert "UNVERIFIED" in done.stdout or "accuracy" in done.stdout
    target = ["+methods.blob={_target_: my_part.CentreBias, width: 3.0}"]
    again = run(warm, tmp_path, *words, *target)
    assert again.returncode == 2 and "centre_bias" in again.stderr  # without the plug-in the name is unknown
    wrong = run(warm, tmp_path, *words, "methods.centre_bias.widht=5", **env)
    assert wrong.returncode == 2 and "did you mean width" in wrong.stderr


def test_a_fault_of_a_plug_in_is_one_line_that_names_it(verified: Path, warm: Path) -> None:
    (verified / "broken_part.py").write_text(
        USERS["my_part.py"].replace("return torch.exp", "raise ValueError('boom')  #")
    )
    done = run(warm, verified, *SMOKE, "methods=[centre_bias]", SALRUN_PLUGINS=str(verified / "broken_part.py"))
    assert done.returncode == 2
    line = done.stderr.strip().splitlines()[-1]
    assert "broken_part.py" in line and "ValueError: boom" in line and "Traceback" not in done.stderr
    status = run(warm, verified, "status")
    assert status.stdout.startswith("failed") and "boom" in status.stdout


def test_interrupting_keeps_what_is_done(verified: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, *SMOKE, "tile=1", "dataset.n_per_bucket=5"],
        cwd=verified,
        env=command_env(verified),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # where tests run in the background the signal is ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    while process.poll() is None and not (verified / "store" / "scores").exists():
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "interrupted" in said.splitlines()[-1] and "Traceback" not in said


def test_list_and_cache(salrun_command) -> None:
    for group in ("methods", "metrics", "experiment", "dataset", "model", "views", "reasoning"):
        done = salrun_command("list", group)
        assert done.returncode == 0 and len(done.stdout.splitlines()) > 1
    assert "store" in salrun_command("cache").stdout
