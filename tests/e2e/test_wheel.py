"""The wheel, installed in a new environment, runs from another folder with everything it needs inside."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from salrun.results.run import Run
from tests.conftest import ROOT, command_env

MOST = 80 << 20  # bytes
STRAY = (
    "salrun/papers/smerf/checkpoints/.half.0.state",
    "salrun/papers/smerf/checkpoints/run.log",
    "salrun/datasets/glyphs/.A.pgm.tmp",
    "conf/methods/.rise.yaml.tmp",
)
KINDS = {".py", ".typed", ".yaml", ".json", ".safetensors", ".csv", ".pgm", ".html", ".css", ".js", ".j2"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, with litter in it."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    litter = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "*.tmp")
    for name in ("salrun", "hydra_plugins", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=litter)
    for name in STRAY:
        (source / name).write_bytes(b"litter")
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist), str(source)]
    if importlib.util.find_spec("hatchling"):
        words.append("--no-build-isolation")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = dist.iterdir()
    return built


def shipped(folder: str, *patterns: str) -> set[str]:
    """Files of the checkout that the wheel must have, by their names in it."""
    files = {p for pattern in patterns for p in (ROOT / folder).rglob(pattern)}
    names = {p.relative_to(ROOT).as_posix() for p in files if not any(s.startswith(".") for s in p.parts)}
    return {name if name.startswith(("salrun/", "hydra_plugins/")) else f"salrun/{name}" for name in names}


def test_everything_is_in_it_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if not n.endswith("/")}
    assert wheel.name == "salrun-0.2.0-py3-none-any.whl"
    assert wheel.stat().st_size < MOST
    wanted = {
        "code": shipped("salrun", "*.py", "py.typed"),
        "launchers": shipped("hydra_plugins", "*.py"),
        "configs": shipped("conf", "*.yaml"),
        "glyphs": shipped("salrun/datasets/glyphs", "*"),
        "checkpoints": shipped("salrun/papers", "checkpoints/*.safetensors", "checkpoints/*.json"),
        "papers' tables": shipped("salrun/papers", "published*.csv", "items.csv", "seen.csv", "frozen.json"),
        "schemas": shipped("salrun/results/schemas", "*.json"),
        "report": shipped("salrun/report", "*.html", "*.css", "*.js", "*.j2"),
    }
    for what, files in wanted.items():
        assert files - names == set(), what
    assert len(wanted["checkpoints"]) >= 16 and len(wanted["configs"]) > 100 and len(wanted["glyphs"]) >= 2
    own = {n for n in names if not n.startswith("salrun-0.2.0.dist-info/")}
    assert own == set().union(*wanted.values())
    assert {PurePosixPath(n).suffix for n in own} <= KINDS


@pytest.mark.slow
def test_it_runs_in_a_new_environment_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    """The named example: 17 rows of the paper, two controls, six metrics in two readings; from shipped weights."""
    home, folder = tmp_path / "venv", tmp_path / "elsewhere"
    folder.mkdir()
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (packages,) = home.glob("lib/python*/site-packages")
    # torch and the rest are borrowed from this environment; its own salrun, if any, comes later on the path.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n" + sysconfig.get_path("platlib") + "\n")
    env = {k: v for k, v in command_env(tmp_path).items() if k not in ("PYTHONPATH", "SALRUN_DATA", "VIRTUAL_ENV")}
    words = ["+experiment=smerf_complex_cr2", "scale=smoke", "device=cpu", "dataset.n_per_bucket=1"]
    done = subprocess.run([str(home / "bin" / "salrun"), *words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = Run(folder / "outputs" / "smerf_complex_cr2" / "latest")
    assert run.done and run.facts["problems"] == [] and run.facts["commit"] is None
    assert list(run.cells["source"]) == ["shipped"]
    assert run.scores["method"].nunique() == 19
    assert set(run.scores["metric"]) == {"pafl", "safl", "pmafl", "smafl", "piou", "siou"}
    assert set(run.scores["mode"]) == {"code", "paper"} and set(run.scores["score"]) == {""}
    assert run.facts["models"]["model"]["source"] == "shipped"
    where = "import salrun, salrun.config.catalogue; print(salrun.__file__); print(salrun.config.catalogue.conf_dir())"
    said = subprocess.run([str(python), "-c", where], cwd=folder, env=env, capture_output=True, text=True).stdout
    assert all(line.startswith(os.path.realpath(packages)) for line in said.split()), said
