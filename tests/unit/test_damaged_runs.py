"""Damaged runs: the file is named in one line, and what is whole is still told."""

from __future__ import annotations

from pathlib import Path

import pytest

from salrun.cli import main as cli
from tests.fake_run import make_run


@pytest.mark.parametrize("content", ["", "[]", "null", '"a"', "3", '{"attempts": "x"}', '{"status": []}', "[" * 9999])
def test_one_bad_record_does_not_hide_the_others(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bad", "good"):
        make_run(tmp_path / "outputs" / name, 4, ["edge"])
    (tmp_path / "outputs" / "bad" / "run.json").write_text(content)
    assert cli.run(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "outputs/good" in line] == ["done"]
    (told,) = (line for line in lines if "outputs/bad" in line)
    assert told.startswith("failed") and "run.json cannot be read" in told


RELIABILITY, COLLECT = ["reliability", "run", "draws=3"], ["collect", "run", "-o", "joint"]


@pytest.mark.parametrize(
    ("verb", "file", "content"),
    [
        (RELIABILITY, "tables/cells.csv", "[]"),
        (RELIABILITY, "tables/cells.csv", ""),
        (RELIABILITY, "tables/scores.parquet", "PAR1"),
        (COLLECT, "tables/cells.csv", "[]"),
        (COLLECT, "tables/scores.parquet", "PAR1"),
        (COLLECT, "run.json", "[]"),
        (COLLECT, "run.json", '{"schema": 2, "metrics": [3]}'),
    ],
)
def test_a_damaged_file_is_named(
    verb: list[str],
    file: str,
    content: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", 4, ["edge", "random"])
    (tmp_path / "run" / file).write_text(content)
    assert cli.run(verb) == 2
    assert file in capsys.readouterr().err.splitlines()[-1]
