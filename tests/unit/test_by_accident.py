"""Nothing is executed, overwritten or written elsewhere by accident."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from salrun.cli import main as cli
from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.errors import SalrunError
from salrun.pipeline.job import prepare_imports
from salrun.results.record import RunRecord, refuse_what_is_no_runs
from salrun.results.tables import unquoted, write_csv
from salrun.store.files import open_log
from tests.conftest import ROOT

BASE = ["+experiment=smerf_simple_fr", "scale=smoke", "methods=[gradient]", "metrics=[pafl]"]


def said(words: list[str], capsys: pytest.CaptureFixture) -> tuple[int, str]:
    code = cli.run(words)
    return code, capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize("words", [["--experimental-rerun", "x.pickle"], ["--experimental-rerun=x.pickle"]])
def test_a_pickle_is_not_run_again(words: list[str], capsys: pytest.CaptureFixture) -> None:
    code, line = said([*words, *BASE], capsys)
    assert code == 2 and "every run starts from salrun's own config.yaml" in line


def test_the_current_folder_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    prepare_imports([tmp_path / "configs"])
    assert sys.path[-2:] == [str(tmp_path), str(tmp_path / "configs")]


@pytest.mark.parametrize("words", [["-m", "salrun", "--version"], ["-P", "-m", "salrun.sweep.launch"]])
def test_a_module_in_the_current_folder_is_none_of_ours(words: list[str], tmp_path: Path) -> None:
    for name in ("torch", "omegaconf", "numpy", "hydra"):
        (tmp_path / f"{name}.py").write_text(f"open('pwned', 'w').write('{name}')\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, timeout=100, input=b"")
    assert not (tmp_path / "pwned").exists()


def test_logs_are_not_written_through_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.log").symlink_to(mine)
    with pytest.raises(SalrunError, match=r"run\.log is a link"):
        RunRecord(tmp_path / "run").__enter__()
    (tmp_path / "salrun-fault.log").symlink_to(mine)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "read_command", None)
    assert said([], capsys)[0] == 1
    assert mine.read_text() == "mine" and "TypeError" in (tmp_path / "salrun-fault.log").read_text()
    with open_log(tmp_path / "new.log") as file:
        file.write("a")
    assert (tmp_path / "new.log").read_text() == "a"


@pytest.mark.parametrize("name", ["config.yaml", "report.html", "tables"])
def test_a_run_is_not_written_over_what_is_no_run(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir() if name == "tables" else (tmp_path / name).write_text("mine")
    with pytest.raises(SalrunError, match=f"has {name} and no run.json"):
        refuse_what_is_no_runs(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", ".", "", "a\\b"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(SalrunError, match="name must be what a file may be called"):
        check(compose_config([*BASE, f"name='{name}'"]))


def test_names_of_parts_are_names_of_files() -> None:
    cfg = compose_config(BASE)
    cfg.methods["../mine"] = cfg.methods.gradient
    with pytest.raises(SalrunError, match="a name in methods must be what a file may be called"):
        check(cfg)


def make_run(folder: Path, **facts: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"schema": 2, "status": "done", **facts}))
    return folder


def test_a_collection_is_not_written_over_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run, other = make_run(tmp_path / "all" / "a"), make_run(tmp_path / "b")
    before = (run / "run.json").read_bytes()
    for out in (run, tmp_path / "all", tmp_path):
        code, line = said(["collect", str(run), "-o", str(out)], capsys)
        assert code == 2 and "which is collected: choose another folder" in line
    code, line = said(["collect", str(run), "-o", str(other)], capsys)
    assert code == 2 and "is a run of its own" in line
    for out in ("/dev/null", str(other / "run.json" / "x")):
        code, line = said(["collect", str(run), "-o", out], capsys)
        assert code == 2 and "is no folder: choose another" in line
    assert (run / "run.json").read_bytes() == before


def test_a_page_is_not_written_over_a_runs_files(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    runs = [str(make_run(tmp_path / name)) for name in "ab"]
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / "folder.html").mkdir()
    for out in ("a/run.json", "a/report.html", "thesis.tex", "folder.html", "."):
        code, line = said(["report", *runs, "-o", str(tmp_path / out)], capsys)
        assert code == 2 and "choose another" in line
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_text_that_a_spreadsheet_would_run_is_quoted(tmp_path: Path) -> None:
    words = ["=1+1", "+cmd|' /C calc'!A0", "-x", "@SUM(A1)", "\tx", "-1.5", "+2e-3", "-inf", "-", "a=b", "plain", ""]
    frame = pd.DataFrame({"word": words, "value": range(-5, 7)})
    write_csv(tmp_path / "a.csv", frame)
    lines = (tmp_path / "a.csv").read_text().splitlines()[1:]
    assert [line.lstrip('"')[0] for line in lines[:5]] == ["'"] * 5
    assert [line.rpartition(",")[0] for line in lines[5:11]] == words[5:11]
    again = unquoted(pd.read_csv(tmp_path / "a.csv", keep_default_na=False))
    assert again["word"].tolist() == words and again["value"].tolist() == list(range(-5, 7))
