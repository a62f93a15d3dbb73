"""The sink behind `logger=`: what trackers are told of a finished run, and that their faults are not the run's."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

from salrun.cli.main import run as command
from salrun.config.check import check
from salrun.config.compose import compose_config
from salrun.errors import SalrunError
from salrun.results.run import Run
from salrun.results.tables import ALL
from salrun.tracking import Finished, finished, flat, track, trackers
from tests.fake_run import make_run

PLAIN = ["dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "methods=[gradient]", "metrics=[pafl]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sweep = tmp_path_factory.mktemp("sweep")
    (sweep / "multirun.yaml").touch()
    run = make_run(sweep / "3", n_images=24, methods=["gradient", "random"], groups=2)
    (run / "report.html").write_text("<html></html>")
    return run


@dataclass
class Listener:
    """Keeps what it is told."""

    groups: bool = False
    heard: list[Finished] = field(default_factory=list)

    def write(self, finished: Finished) -> str:
        self.heard.append(finished)
        return "here"


@dataclass
class Broken:
    """A server that is not there."""

    fault: BaseException

    def write(self, finished: Finished) -> str:
        raise self.fault


def test_every_row_of_the_summary_is_a_metric(folder: Path) -> None:
    run = Run(folder)
    told = finished(run, groups=False)
    whole = run.summary[run.summary["group"] == ALL]
    assert len(whole) == 12 and len(told.metrics) == 3 * len(whole)
    row = whole[(whole["method"] == "gradient") & (whole["metric"] == "pafl")].iloc[0]
    assert told.metrics["pafl.code/gradient"] == row["mean"]
    assert told.metrics["pafl.code/gradient.ci_low"] == row["ci_low"]
    assert told.metrics["pafl.code/gradient.ci_high"] == row["ci_high"]
    assert len(finished(run, groups=True).metrics) == 3 * len(run.summary)
    assert "pafl.code/gradient/group 2" in finished(run, groups=True).metrics


def test_config_figures_report_and_sweep_are_told(folder: Path) -> None:
    told = finished(Run(folder), groups=False)
    assert told.parameters == {"seed": 0, "scale": "laptop", "methods.rise.n_masks": 1000}
    assert told.figures == {"smerf_fig3": folder / "figures" / "smerf_fig3.png"}
    assert {"report.html", "config.yaml", "run.json", "claims.csv", "tables/summary.csv"} <= set(told.files)
    assert told.sweep == folder.parent and told.tags["command"] == Run(folder).facts["command"]


def test_a_run_of_no_sweep_has_none_and_other_models_have_their_role(tmp_path: Path) -> None:
    run = make_run(tmp_path / "alone", n_images=12, methods=["gradient"], groups=1)
    cells = pd.read_csv(run / "tables" / "cells.csv", dtype=str)
    cells.assign(role="untrained").to_csv(run / "tables" / "cells.csv", index=False)
    told = finished(Run(run), groups=False)
    assert told.sweep is None and "pafl.code/gradient/untrained" in told.metrics


def test_flat_keys() -> None:
    assert dict(flat({"a": {"b": 1, "c": {}}, "d": [1, 2], "e": None, "f": True})) == {
        **{"a.b": 1, "a.c": "{}", "d": "[1, 2]", "e": "None", "f": True}
    }


@pytest.mark.parametrize("fault", [ConnectionError("nobody there"), SystemExit(3), ValueError()])
def test_a_tracker_that_fails_is_a_warning_and_the_others_are_told(folder, fault, caplog) -> None:
    listener = Listener()
    with caplog.at_level(logging.WARNING):
        places = track(Run(folder), {"broken": Broken(fault), "listener": listener})
    assert places["broken"].startswith(f"failed: {type(fault).__name__}") and places["listener"] == "here"
    assert len(listener.heard) == 1
    assert "logger=broken did not take the run" in caplog.text


def test_several_trackers_and_one_by_name() -> None:
    pytest.importorskip("tensorboard", reason="pip install 'salrun[tensorboard]'")
    config = check(compose_config([*PLAIN, "logger=tensorboard"]))
    assert list(trackers(config)) == ["tensorboard"]
    assert trackers(check(compose_config(PLAIN))) == {}


def test_a_tracker_that_is_not_installed_is_one_line_before_anything_is_computed(monkeypatch, capsys) -> None:
    monkeypatch.setattr("salrun.config.check.find_spec", lambda name: None)
    assert command([*PLAIN, "logger=wandb"]) == 2
    assert capsys.readouterr().err.strip() == "salrun: logger.wandb needs wandb: pip install 'salrun[wandb]'"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["logger=mlfow"], "did you mean mlflow"),
        (["logger=tensorboard", "logger.tensorboard.floder=x"], "unknown key 'logger.tensorboard.floder'"),
        (["logger=wandb", "logger.wandb.mode=cloud"], "logger.wandb.mode must be"),
        (["logger=mlflow,wandb"], "write 'logger=[mlflow,wandb]'"),
    ],
)
def test_mistakes_are_one_line(words, said, monkeypatch, capsys) -> None:
    monkeypatch.setattr("salrun.config.check._check_tracker", lambda target, where: None)
    assert command([*PLAIN, *words]) == 2
    assert said in capsys.readouterr().err


def test_what_has_no_write_is_no_tracker() -> None:
    with pytest.raises(SalrunError, match="is no tracker"):
        trackers({"logger": {"mine": {"_target_": "salrun.views.NamedView", "name": "x", "about": "", "function": 1}}})
