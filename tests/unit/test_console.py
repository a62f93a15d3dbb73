"""What the console says: the answer as a table that fits, at most six lines, amber where a model is in doubt."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import salrun
from salrun.cli import main as cli
from salrun.cli import sweep as sweeping
from salrun.pipeline.job import hush
from salrun.pipeline.telling import closing, tell
from salrun.report import console
from salrun.report.console import answer, decimals, rounded, table
from salrun.results.comparison import compare
from salrun.results.run import Run
from salrun.store.files import shown
from tests.fake_run import make_run

METHODS = ["gradient", "integrated_gradients", "guided_backprop", "lime", "random", "edge"]
NO_GATE = {"split": "test", "n": 20, "classes": 2, "accuracy": 0.5, "gate": {"images": 200}, "passed": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", n_images=40, methods=METHODS)


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 200])
def test_the_table_fits_and_is_best_first(run: Path, columns: int) -> None:
    (comparison,) = compare(run)
    lines = table(comparison, columns)
    assert max(map(len, lines)) <= columns
    rows = [line.split()[0] for line in lines]
    assert rows[:5] == ["method", *comparison.methods] and rows[5:8] == ["controls", *comparison.controls]
    assert ("not shown, too narrow" in lines[-1]) == (columns < 100)
    assert max(map(len, answer(comparison, columns))) <= columns
    if columns == 200:
        first = comparison["pafl"].ranking[comparison.methods[0]]
        assert f"{first.mean:.3f} [{first.low:.3f}, {first.high:.3f}]" in lines[1]


def test_numbers_are_short_and_zero_has_no_sign() -> None:
    assert [decimals([v], 3) for v in (0.5, 5.0, 50.0, 5000.0, 0.0004, 0.0)] == [3, 2, 1, 0, 6, 3]
    assert rounded(-0.0001, 2) == "0.00" and rounded(-0.01, 2) == "-0.01"


def test_a_run_ends_with_the_answer_and_six_lines(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparisons = compare(run)
    tell(Run(run), comparisons)
    told = capsys.readouterr().out
    assert "\033" not in told  # no terminal
    assert comparisons[0].title in told and "gradient" in told
    last = told[told.index("model:  ") :].splitlines()
    assert [line.split()[0] for line in last] == ["model:", "paper:", "differs:", "tables:", "next:"]
    assert last[0].endswith("6000 images: verified") and "statements it can speak about" in last[1]
    assert "(and 1 more; verbose=true lists all)" in last[2] and "RISE" not in told
    tell(Run(run), comparisons, verbose=True)
    told = capsys.readouterr().out
    assert "  note: RISE uses 1,000 masks." in told and "  S3: no (one model) (-0.08)  Grad-CAM spares" in told
    assert "S5" not in told  # not tested


def test_a_model_in_doubt_is_never_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run", n_images=20, methods=METHODS[:2], verification={"model": NO_GATE})
    monkeypatch.setattr(console, "_colours", lambda: True)
    first = closing(Run(folder), compare(folder))[0]
    assert first.startswith("model:   \033[33m") and "NOT VERIFIED" in first
    for doubt in ("chance level (2 classes)", "of 20 images only", "no accuracy was asked for (model.gate)"):
        assert doubt in first
    assert closing(Run(folder), compare(folder))[-1].startswith("next:    see to the model first")
    (answered,) = compare(folder)
    assert "chance level" in answered.frame()["model_in_doubt"].iloc[0]


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert console.amber("x") == "\033[33mx\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.amber("x") == "x"


def test_paths_are_relative_where_that_is_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "outputs" / "x") == "outputs/x" == shown(Path("outputs/x"))
    assert shown(Path("/elsewhere/x")) == "/elsewhere/x"


def test_how_a_model_was_made_faster_is_said_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    noise, news = (logging.makeLogRecord({"name": name}) for name in ("salrun.models.inference", "salrun.store.leases"))
    hush(verbose=False)
    assert not handler.filter(noise) and handler.filter(news)
    hush(verbose=True)
    assert handler.filter(noise)


# -- verbs -------------------------------------------------------------------------------------------------------------


def test_compare_prints_and_writes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["compare", str(run), "-o", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "ahead of the others by" in told and "do the metrics agree? Kendall's W" in told
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"methods.csv", "pairs.csv", "agreement.csv", *(f"comparison.{k}" for k in ("png", "svg", "csv"))}
    assert salrun.compare(run)[0].methods == compare(run)[0].methods


def test_compare_leaves_unfinished_runs_out(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").mkdir()
    facts = {"schema": 2, "status": "failed", "reason": "no memory"}
    (tmp_path / "broken" / "run.json").write_text(json.dumps(facts))
    assert cli.run(["compare", str(run), str(tmp_path / "broken"), "-o", str(tmp_path / "out")]) == 0
    assert "broken (failed: no memory)" in capsys.readouterr().out
    assert cli.run(["compare", str(tmp_path / "broken")]) == 2


def test_list_without_a_group_lists_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["list"]) == 0
    told = capsys.readouterr().out
    assert all(f"salrun list {group}" in told for group in ("experiment", "methods", "hydra/launcher", "views"))


def test_status_hides_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, facts in {"plan": {"planned_only": True}, "run": {}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"status": "done", **facts}))
    assert cli.run(["status", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("done") and len(told.out.splitlines()) == 1 and told.err == "1 done\n"


def test_a_plan_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[Path] = []
    monkeypatch.setattr("salrun.cli.experiment.perform", lambda config, out, words: seen.append(out))
    assert cli.run(["+experiment=smerf_simple_fr", "plan=true"]) == 0
    assert list(tmp_path.iterdir()) == [] and not seen[0].exists()
    assert cli.run(["+experiment=smerf_simple_fr"]) == 0
    assert seen[1].is_dir()


def test_a_sweep_ends_with_the_joined_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = [make_run(tmp_path / "sweep" / str(n), n_images=12, methods=METHODS, seed=n, paper=None) for n in (0, 1)]
    sweeping.join(jobs, "stamp", drawn=True)
    told = capsys.readouterr().out
    assert "joined:  1 run in outputs/collected/stamp" in told
    assert "report:  outputs/collected/stamp/report.html" in told and "method " in told
    assert (tmp_path / "outputs" / "collected" / "stamp" / "comparison" / "methods.csv").is_file()
