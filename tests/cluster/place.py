"""A sweep in a folder of its own, whose jobs wait for a file to go: what the tests of launchers are made of."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import command_env

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
TILES, METHODS = 4, 2
LAUNCHERS = {
    "local_joblib": ("hydra_joblib_launcher", ["hydra.launcher.n_jobs=2"]),
    "local_processes": ("hydra_submitit_launcher", ["hydra.launcher.n_jobs=2"]),
    "local_ray": ("hydra_ray_launcher", ["hydra.launcher.ray.init.num_cpus=2"]),
    "slurm_cpu": ("hydra_submitit_launcher", ["hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1"]),
}


class Place:
    """A folder with a store and a plug-in of its own, for a sweep of `jobs` shards."""

    def __init__(self, folder: Path, jobs: int = 4, **env: str) -> None:
        self.folder = folder
        self.jobs = jobs
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "patient.py").write_text(PATIENT)
        self.hold = folder / "hold"
        self.env = command_env(folder, SALRUN_PLUGINS="patient.py", **env)  # a relative path: jobs must find it too
        self.cell = [*CELL, f"methods.patient.while_there={self.hold}"]

    def start(self, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [COMMAND, *words], cwd=self.folder, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: str, code: int | None = 0) -> str:
        """What it said; `code` None: whatever its exit code."""
        process = self.start(*words)
        out, err = process.communicate(timeout=900)
        assert code in (None, process.returncode), f"{words}\n{out[-3000:]}\n{err[-3000:]}"
        return out + err

    def sweep(self, launcher: str, *words: str) -> list[str]:
        settings = LAUNCHERS[launcher][1] if launcher in LAUNCHERS else []
        shards = ",".join(f"{i}/{self.jobs}" for i in range(self.jobs))
        return ["-m", *self.cell, f"shard={shards}", f"hydra/launcher={launcher}", *settings, *words]

    @property
    def sweeps(self) -> list[Path]:
        return sorted((self.folder / "outputs" / "sweeps").glob("*"))

    def facts(self, number: int) -> dict:
        path = self.sweeps[-1] / str(number) / "run.json" if self.sweeps else Path("none")
        return json.loads(path.read_text()) if path.exists() else {}

    def entries(self) -> dict[str, int]:
        """What the store holds, and since when."""
        found = (self.folder / "store").rglob("*.safetensors")
        return {f"{p.parent.parent.name}/{p.name}": p.stat().st_mtime_ns for p in found}

    def at_work(self) -> list[int]:
        """Jobs that have a map in the store and wait for the file to go."""
        busy = [n for n in range(self.jobs) if self.facts(n).get("stage") == "maps and scores"]
        running = [n for n in busy if self.facts(n)["status"] == "running"]
        return running if sum(e.startswith("maps/") for e in self.entries()) >= len(running) else []

    def scores(self, run: str) -> bytes:
        return (self.folder / run / "tables" / "scores.parquet").read_bytes()


def until(ready: Callable[[], object], process: subprocess.Popen | None = None, seconds: float = 600) -> None:
    """Wait until something is so, for as long as `process` lives."""
    begun = time.monotonic()
    while not ready():
        if (process is not None and process.poll() is not None) or time.monotonic() - begun > seconds:
            if process is not None:
                process.kill()
            raise AssertionError("".join(process.communicate()) if process else "it never came to be so")
        time.sleep(0.2)
