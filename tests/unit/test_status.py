"""`salrun status --watch`: what changes, then all jobs; on a terminal the whole list anew each time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from salrun.cli import status as module
from salrun.cli.main import run
from salrun.sweep.jobs import Job


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> list[list[Job]]:
    """What each look finds; the last one is found again."""
    looks: list[list[Job]] = []
    monkeypatch.setattr(module, "jobs_below", lambda paths: looks.pop(0) if looks[1:] else looks[0])
    monkeypatch.setattr(module, "sweeps_below", lambda paths: [])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    return looks


def job(state: str, reason: str = "") -> Job:
    return Job(state, f"seed={state}", Path("outputs/sweeps/x/0"), reason)


def test_it_says_what_changes_and_ends_when_all_have(days, capsys) -> None:
    waiting = [job("missing", "in the queue: PENDING"), job("running")]
    days += [waiting, waiting, [job("running"), job("done")], [job("failed", "killed"), job("done")]]
    assert run(["status", "outputs", "--watch"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert [line.split(" ", 1)[1] for line in lines[:2]] == ["1 running, 1 missing", "1 done, 1 running"]
    assert lines[2].startswith("failed") and lines[3].startswith("done") and len(lines) == 4
    assert told.err.strip() == "1 done, 1 failed; of a sweep, the same command again does the rest"


def test_on_a_terminal_the_list_is_shown_anew(days, capsys, monkeypatch) -> None:
    days += [[job("running")], [job("done")]]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert run(["status", "outputs", "--watch", "--every", "2"]) == 0
    first, second = capsys.readouterr().out.split(module.CLEAR)[1:]
    assert "seed=running" in first and "1 running (every 2 s)" in first
    assert "seed=done" in second and second.strip().endswith("1 done")


def test_a_sweep_that_still_starts_jobs_is_watched(days, monkeypatch, capsys) -> None:
    held = iter([True, False])
    monkeypatch.setattr(module, "sweeps_below", lambda paths: [Path("x")])
    monkeypatch.setattr(module, "lease_of", lambda sweep: type("", (), {"held": lambda self: next(held)})())
    days += [[job("missing")], [job("done")]]
    assert run(["status", "outputs", "--watch"]) == 0
    assert "1 missing" in capsys.readouterr().out


def test_jobs_of_a_sweep_are_told_in_their_order(tmp_path: Path) -> None:
    task = "    - +experiment=e\n    - seed=0,1,2,3,4,5,6,7,8,9,10\n"
    (tmp_path / "multirun.yaml").write_text(f"hydra:\n  overrides:\n    task:\n{task}")
    for name in ("10", "2", "alone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text('{"status": "done", "experiment": "e"}')
    jobs = module.jobs_below([tmp_path])
    assert [job.folder.name for job in jobs] == ["alone", *map(str, range(11))]
    assert [job.folder.name for job in jobs if job.state == "done"] == ["alone", "2", "10"]


@pytest.mark.parametrize("every", ["0", "-1", "nan", "x"])
def test_how_often_is_a_number_of_seconds(every, capsys) -> None:
    assert run(["status", "outputs", "--watch", f"--every={every}"]) == 2
    assert "every" in capsys.readouterr().err


def test_without_watching_it_is_told_once(days, capsys) -> None:
    days += [[job("running")]]
    assert run(["status", "outputs"]) == 0
    assert capsys.readouterr().out.count("running") == 2
