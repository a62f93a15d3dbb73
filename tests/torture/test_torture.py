"""A short version of `make torture`; kills, twins and hostile names have tests of their own elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.torture.attacks import ATTACKS
from tests.warm import MODULE

FINDINGS = {"commands": 1, "yaml": 1, "permission": 1, "data": 1, "pickles": 1, "disk": 1, "entries": 2}
FINDINGS |= dict.fromkeys(ATTACKS, 1)
linux = pytest.mark.skipif(sys.platform != "linux", reason="forks processes that have torch imported")

Module = Callable[..., str]


@pytest.fixture
def module(warm: Path, tmp_path: Path) -> Module:
    """`python -m tests.torture.NAME` with these words; what it prints, once it ended with 0."""

    def run(name: str, *words: object) -> str:
        command = [str(warm.with_name(MODULE)), f"tests.torture.{name}", *map(str, words)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    return run


@pytest.mark.slow
@linux
@pytest.mark.parametrize("trial", FINDINGS)
def test_it_holds(trial: str, module: Module, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in module("brief", tmp_path / trial, trial).splitlines()]
    assert len(rows) == FINDINGS[trial]
    assert [row for row in rows if row[0] == "0" or row[1] != "0"] == []


@pytest.mark.slow
@linux
def test_a_short_campaign_finds_nothing_and_goes_on(module: Module, tmp_path: Path) -> None:
    counts = [f"--{kind}={n}" for kind, n in (("kills", 0), ("lines", 20), ("yaml", 8), ("runs", 8), ("weights", 4))]
    for _ in range(2):
        module("campaign", "--seed=2", f"--work={tmp_path}", *counts)
    assert len((tmp_path / "2" / "attacks.csv").read_text().splitlines()) >= 41
