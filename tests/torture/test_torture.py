"""A short version of `make torture`; kills, twins and hostile names have tests of their own elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

BRIEF = """
import sys
from pathlib import Path
from tests.torture.attacks import ATTACKS
from tests.torture.trials import TRIALS, warm_up

warm_up()
trials = TRIALS | ATTACKS
for name in sys.argv[2:]:
    for found in trials[name].run(Path(sys.argv[1]) / name, trials[name].brief):
        print(found.tried, found.failed, found.trial, found.detail, sep="\\t", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks processes that have torch imported")
@pytest.mark.parametrize(
    ("trials", "findings"),
    [
        (["commands", "yaml", "permission", "data"], 4),
        (["pickles", "disk", "entries"], 4),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_it_holds(trials: list[str], findings: int, tmp_path: Path) -> None:
    rows = brief(tmp_path, trials)
    assert len(rows) == findings
    assert all(int(tried) > 0 for tried, *_ in rows)
    assert [row for row in rows if row[1] != "0"] == []


def brief(folder: Path, trials: list[str]) -> list[list[str]]:
    """(tried, failed, trial, detail) of what short versions of these trials found."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", BRIEF, str(folder), *trials]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks processes that have torch imported")
def test_a_short_campaign_finds_nothing_and_goes_on(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    counts = [f"--{kind}={n}" for kind, n in (("kills", 0), ("lines", 20), ("yaml", 8), ("runs", 8), ("weights", 4))]
    words = [sys.executable, "-m", "tests.torture.campaign", "--seed=2", f"--work={tmp_path}", *counts]
    for _ in range(2):
        done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert len((tmp_path / "2" / "attacks.csv").read_text().splitlines()) >= 41
