"""Shared fixtures. No test needs a network, a GPU or a data set; those that can use one are marked."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from salrun.pipeline.heap import keep_freed_memory
from tests import verified
from tests.warm import warm_salrun

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else each process that compiles starts a pool of others

ROOT = Path(__file__).resolve().parent.parent
Once = Callable[[str, Callable[[Path], object]], Path]
COMMAND = Path(sys.executable).with_name("salrun")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Workers share the machine's cores; small tensors gain nothing from more threads."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _heap() -> Iterator[None]:
    """Freed memory serves the next test, and no collection of garbage looks at what all of them share."""
    keep_freed_memory()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _verified_once(once: Once) -> Iterator[None]:
    """A model is verified once by all tests, which have new stores; those of verification itself call it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(verified.PLACE, str(once("verified", lambda folder: None)))
        patch.setattr("salrun.models.verification.verify", verified._verify)
        yield


@pytest.fixture(scope="session")
def warm(_verified_once: None) -> Iterator[Path]:
    """A `salrun` that is spared its imports; where processes with torch cannot be forked, the console script."""
    if sys.platform == "linux":
        with warm_salrun() as script:
            yield script
    else:
        yield COMMAND


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """(name, make) -> a folder that `make` filled once for all workers; to be copied by who changes it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        place = shared / "once" / name
        place.parent.mkdir(exist_ok=True)
        with open(place.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                half = place.with_suffix(".half")
                shutil.rmtree(half, ignore_errors=True)
                half.mkdir()
                make(half)
                half.rename(place)
        return place

    return folder


@pytest.fixture
def salrun_command(tmp_path: Path, warm: Path):
    """Run a command in a folder of its own; returns the finished process."""

    def run(*words: str, cwd: Path | None = None, timeout: float = 300, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(warm), *words],
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


SLOWEST = (  # begun first, so that no worker ends with one of them while the others have nothing left
    *("torture", "e2e", "test_make_docs.py", "test_smerf_figures.py", "test_reproduce.py", "test_inference_copy.py"),
    *("test_zhang_claims.py", "test_smerf_claims.py", "config", "test_smerf_configs.py", "test_target.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: min(rank.get(name, len(rank)) for name in (item.path.name, item.path.parent.name)))
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
