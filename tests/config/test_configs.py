"""Configs: every experiment composes and builds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from salrun.cli.main import run
from salrun.config.catalogue import conf_dir, names
from salrun.config.check import check
from salrun.config.compose import checked, compose_config
from salrun.config.signatures import fits
from salrun.errors import SalrunError
from salrun.pipeline.build import build

EXPERIMENTS = sorted(names("experiment"))
SMERF = "+experiment=smerf_simple_fr"
PLAIN = ["dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "methods=[gradient]", "metrics=[pafl]"]


def test_there_are_experiments() -> None:
    assert {"smerf_simple_fr", "smerf_simple_nr"} <= set(EXPERIMENTS)


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_checks(experiment: str, scale: str) -> None:
    config = check(compose_config([f"+experiment={experiment}", f"scale={scale}"]))
    assert config["name"].startswith(experiment) and config["methods"] and config["metrics"]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_builds_at_smoke_scale(experiment: str, tmp_path: Path) -> None:
    config = check(compose_config([f"+experiment={experiment}", "scale=smoke", f"cache_dir={tmp_path}", "device=cpu"]))
    assert config["name"].startswith(experiment) and config["methods"] and config["metrics"]
    cell = build(config)
    assert cell.methods and cell.metrics


@pytest.mark.parametrize("group", ["methods", "metrics"])
def test_every_part_is_selectable_by_name_and_describes_itself(group: str) -> None:
    known = names(group)
    for name, about in known.items():
        assert about, f"{group}/{name}.yaml starts without a description"
        config = compose_config([*(w for w in PLAIN if not w.startswith(group)), f"{group}=[{name}]"])
        check(config)
        assert list(config[group]) == [name.rsplit("/", 1)[-1]]


@pytest.mark.parametrize("group", ["methods", "metrics"])
def test_a_papers_variant_changes_something(group: str) -> None:
    """More than a label, which is the papers' own affair: else experiments name the plain part."""
    for name in (n for n in names(group) if "/" in n):
        part = name.rsplit("/", 1)[-1]
        changes = yaml.safe_load((conf_dir() / group / f"{name}.yaml").read_text(encoding="utf-8"))[part]
        plain = yaml.safe_load((conf_dir() / group / f"{part}.yaml").read_text(encoding="utf-8"))[part]
        assert {k: v for k, v in changes.items() if k != "label" and plain.get(k) != v}, f"{group}/{name}.yaml"


def test_tomsetts_deep_shap_has_100_references_at_every_scale() -> None:
    for scale in ("smoke", "laptop", "paper"):
        config = check(compose_config(["+experiment=tomsett_cifar10", f"scale={scale}"]))
        assert config["methods"]["deep_shap"]["n_references"] == 100


def test_campaigns_are_no_group(capsys: pytest.CaptureFixture) -> None:
    assert run(["list", "campaign"]) == 2
    assert "unknown group 'campaign'" in capsys.readouterr().err


def test_a_run_without_an_experiment() -> None:
    config = check(compose_config(PLAIN))
    assert config["name"] == "custom" and list(config["methods"]) == ["gradient", "random"]
    assert config["view"] == "max_abs"
    assert list(check(compose_config([*PLAIN, "controls=[]"]))["methods"]) == ["gradient"]
    assert list(check(compose_config([*PLAIN, "controls=[edge]"]))["methods"]) == ["gradient", "edge"]
    assert list(check(compose_config([*PLAIN, "metrics=[]"]))["methods"]) == ["gradient"]  # nothing is compared


@pytest.mark.parametrize(
    "name", [name for name in names("experiment") if not name.startswith(("court_", "transformer_"))]
)
def test_experiments_of_papers_keep_their_methods_and_views(name: str) -> None:
    config = check(compose_config([f"+experiment={name}"]))
    assert config["paper"] and config["view"] == "method" and config["controls"] == []


def test_methods_are_read_through_one_view_unless_each_keeps_its_own() -> None:
    words = [*PLAIN, "methods=[gradient,grad_cam]", "metrics=[insertion,pafl]"]
    for more, views in (([], {"max_abs"}), (["view=sum"], {"sum"}), (["view=method"], {"max_abs", "raw"})):
        cell = build(check(compose_config([*words, *more, "controls=[]"])))
        insertion, *pafl = cell.metrics
        assert {insertion.view_of(part).name for part in cell.methods} == views
        assert pafl[1].view_of(cell.methods[0]).name == "abs_sum"  # a metric's own view stays


def test_the_command_line_wins_over_scale() -> None:
    config = check(compose_config([SMERF, "scale=smoke", "dataset.n_per_bucket=7"]))
    assert config["dataset"]["n_per_bucket"] == 7


def test_localisation_needs_masks() -> None:
    words = ["dataset=mnist", "model=mnist_cnn", "methods=[gradient]", "metrics=[pafl]"]
    with pytest.raises(SalrunError, match="metric 'pafl' needs ground-truth masks, dataset 'mnist' has none"):
        build(check(compose_config(words)))


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (3, "int", True),
        (True, "int", False),
        (3, "float", True),
        ("a", "Literal['a', 'b']", True),
        ("c", "Literal['a', 'b']", False),
        (None, "int | None", True),
        (["a"], "list[str]", True),
        ([1], "list[str]", False),
        ({}, "dict[str, Any]", True),
    ],
)
def test_annotations(value: object, annotation: str, expected: bool) -> None:
    assert fits(value, annotation) is expected


def test_help_is_quick_and_torch_is_not_imported() -> None:
    code = "import sys; from salrun.cli.main import run; run(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    for word in ("smerf_simple_fr", "methods", "smoke", "laptop", "examples"):
        assert word in done.stdout


def test_checking_a_config_does_not_import_torch() -> None:
    code = (
        "import sys; from salrun.config.command import read_command; from salrun.config.compose import composed_run; "
        "composed_run(read_command(['+experiment=smerf_simple_fr'])); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_an_experiment_sets_of_metrics_that_were_replaced_is_dropped() -> None:
    words = ["+experiment=court_textbox", "metrics=[pafl,sparseness]"]
    assert list(check_words(words)["metrics"]) == ["pafl", "sparseness"]
    with pytest.raises(SalrunError, match="metrics.irof is set but 'irof' is not selected"):
        check_words([*words, "metrics.irof.n_segments=3"])


def check_words(words: list[str]) -> dict[str, Any]:
    return checked(compose_config(words), words, ())


def test_a_part_whose_file_gives_another_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "methods").mkdir()
    mine = tmp_path / "methods" / "mine.yaml"
    mine.write_text("defaults:\n  - /base/lrp@lrp_epsilon\n  - _self_\nmine:\n  dense: epsilon\n")
    assert run(["--config-dir", str(tmp_path), SMERF, "methods=[mine]"]) == 2
    assert "methods.mine is set but 'mine' is not selected" in capsys.readouterr().err
    mine.rename(mine.with_name("lrp_epsilon.yaml"))
    assert run(["--config-dir", str(tmp_path), SMERF, "methods=[lrp_epsilon]"]) == 2
    assert "lrp_epsilon.yaml is not read, since salrun has a file of that name" in capsys.readouterr().err
