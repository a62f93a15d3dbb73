"""Shared fixtures. No test needs a network, a GPU or a data set; those that can use one are marked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Workers share the machine's cores; small tensors gain nothing from more threads."""
    torch.set_num_threads(1)


@pytest.fixture
def salrun_command(tmp_path: Path):
    """Run the real console script in a folder of its own; returns the finished process."""

    def run(*words: str, cwd: Path | None = None, timeout: float = 300, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(Path(sys.executable).with_name("salrun")), *words],
            cwd=cwd or tmp_path,
            env=command_env(tmp_path, **env),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


def command_env(tmp_path: Path, **extra: str) -> dict[str, str]:
    """An environment with a store of its own."""
    env = {**os.environ, "SALRUN_CACHE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1", **extra}
    env.pop("SALRUN_PLUGINS", None) if "SALRUN_PLUGINS" not in extra else None
    return env


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_cuda = pytest.mark.skip(reason="no CUDA device here")
    no_mps = pytest.mark.skip(reason="no MPS device here")
    no_data = pytest.mark.skip(reason="SALRUN_DATA names no folder with the real data sets")
    has_data = bool(os.environ.get("SALRUN_DATA")) and Path(os.environ["SALRUN_DATA"]).is_dir()
    for item in items:
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(no_cuda)
        if item.get_closest_marker("mps") and not torch.backends.mps.is_available():
            item.add_marker(no_mps)
        if "real_data" in item.keywords and not has_data:
            item.add_marker(no_data)
