"""docs/leaderboard.md: its rows are the committed numbers, and each command asks for the very method and metric."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from salrun.config.check import check
from salrun.config.command import read_command
from salrun.config.compose import compose_config, expand
from salrun.results.run import Run
from tests.conftest import ROOT
from tests.fake_run import save_run
from tests.toys import script

PAGE = (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8")
TABLES = re.findall(r"<!-- results: leaderboard (\S+) (\S+ [^\n]*)-->\n(.*?)<!-- /results -->", PAGE, re.DOTALL)
ROWS = [
    (campaign, score.strip(), [cell.strip() for cell in line.strip("| ").split(" | ")])
    for campaign, score, text in TABLES
    for line in text.splitlines()
    if line.startswith("| ") and not line.startswith("| method")
]


def test_no_row_is_without_a_command_k_and_interval() -> None:
    assert len(TABLES) == 8 and len(ROWS) > 60
    for _, _, cells in ROWS:
        assert re.fullmatch(r"`salrun [^`]+`", cells[-1]) and int(cells[-2]) >= 1, cells
        assert all(re.fullmatch(r"\d\.\d{3} \[-?\d\.\d{3}, -?\d\.\d{3}\]", cell) for cell in cells[1:-2]), cells


def test_commands_ask_for_what_was_measured() -> None:
    """One row of each table, and every row of its own options: the config is that of the committed run."""
    seen = set()
    for campaign, score, cells in ROWS:
        metric = score.partition(" ")[0]
        method, command = cells[0].removesuffix(" (control)"), shlex.split(cells[-1].strip("`"))
        if (campaign, score) in seen and f"methods.{method}." not in cells[-1]:
            continue
        seen.add((campaign, score))
        overrides = next(iter(expand(read_command(command[1:]).overrides)))
        config = check(compose_config(overrides))
        runs = [Run(path.parent) for path in (ROOT / "docs" / "results" / campaign).glob("*/run.json")]
        run = next(run for run in runs if run.experiment == config["name"] and run.facts["seed"] == config["seed"])
        assert config["scale"] == run.facts["scale"] and method in config["methods"] and metric in config["metrics"]
        options = {k: v for k, v in config["methods"][method].items() if k in run.methods[method]["options"]}
        assert options == run.methods[method]["options"], command
    assert len(seen) == 8


def test_the_numbers_are_those_of_the_summary() -> None:
    """Mean and Student's interval over the three models of one command; seed 0 was run by another."""
    t = pd.read_csv(ROOT / "docs" / "results" / "tomsett" / "summary.csv")
    rows = t[(t["method"] == "deep_taylor") & (t["metric"] == "aopc_lerf") & (t["score"] == "mean_L100")]
    means = rows.loc[rows["seed"].isin([1, 2, 3]), "mean"]
    half = 4.302653 * means.std() / 3**0.5  # t of two degrees of freedom
    (shown,) = [
        cells[1] for c, m, cells in ROWS if (c, m, cells[0]) == ("tomsett", "aopc_lerf - mean_L100", "deep_taylor")
    ]
    assert shown == f"{means.mean():.3f} [{means.mean() - half:.3f}, {means.mean() + half:.3f}]"


def test_a_method_without_a_config_and_a_metric_nobody_has_are_refused(tmp_path: Path) -> None:
    leaderboard = script("leaderboard").leaderboard
    about = {"experiment": "smerf_simple_fr", "dataset": "textbox", "model": "m", "seed": 0, "group": "(all)"}
    scores = pd.DataFrame([{**about, "image_id": i, "method": "nobodys", "metric": "pafl", "value": 0.5} for i in "ab"])
    save_run(tmp_path / "one-0", scores, overrides=["+experiment=smerf_simple_fr"], paper="smerf")
    Run(tmp_path / "one-0").summary.to_csv(tmp_path / "summary.csv", index=False)
    with pytest.raises(SystemExit, match="no command makes the row of nobodys"):
        leaderboard(tmp_path, "pafl")
    with pytest.raises(SystemExit, match="has piou"):
        leaderboard(tmp_path, "piou")


def test_a_run_of_ones_own_method_makes_a_row(tmp_path: Path) -> None:
    """Of a model that others measured, and of one that nobody did; other options of a method make another table."""
    lime = "methods.lime.n_samples=9"
    runs = {
        "fr-0": (0, ["gradient", "lime"], [lime]),
        "fr-1": (1, ["gradient", "lime"], [lime]),
        "own-1": (1, ["occlusion"], ["methods=[occlusion]", "report=false"]),
        "own-2": (2, ["occlusion"], ["methods=[occlusion]", "metrics=[pafl]"]),
        "other-3": (3, ["lime"], ["methods=[lime]", "methods.lime.n_samples=8"]),
    }
    tables = []
    for name, (seed, methods, words) in runs.items():
        about = {"experiment": "smerf_simple_fr", "dataset": "textbox", "model": "m", "seed": seed, "group": "(all)"}
        rows = [{**about, "image_id": i, "method": m, "metric": "pafl", "value": 0.5} for i in "ab" for m in methods]
        facts = {"paper": "smerf", "seed": seed, "methods": {m: {} for m in methods}}
        words = ["+experiment=smerf_simple_fr", f"seed={seed}", *words]
        save_run(tmp_path / name, pd.DataFrame(rows), overrides=words, **facts)
        tables.append(Run(tmp_path / name).summary)
    pd.concat(tables).to_csv(tmp_path / "summary.csv", index=False)
    lines = script("leaderboard").leaderboard(tmp_path, "pafl").splitlines()
    rows = {
        cells[0]: cells[-2:] for cells in ([c.strip() for c in line.strip("| ").split(" | ")] for line in lines[4:])
    }
    command = "salrun -m +experiment=smerf_simple_fr seed={} {}'methods=[{}]'"
    assert rows == {
        "gradient": ["2", f"`{command.format('0,1', '', 'smerf/gradient')}`"],
        "lime": ["2", f"`{command.format('0,1', f'{lime} ', 'lime')}`"],
        "occlusion": ["2", f"`{command.format('1,2', '', 'occlusion')}`"],
    }


def test_intervals_of_several_models_are_over_the_models() -> None:
    rows = pd.DataFrame({"mean": [0.1, 0.2, 0.3], "ci_low": 0.0, "ci_high": 1.0})
    assert script("leaderboard").interval(rows) == "0.200 [-0.048, 0.448]"
    assert script("leaderboard").interval(rows[:1]) == "0.100 [0.000, 1.000]"
