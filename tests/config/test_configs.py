"""Configs: every experiment composes and builds; every slip gets one helpful sentence and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from salrun.build import build, check
from salrun.cli import run
from salrun.composing import compose_config
from salrun.errors import SalrunError
from salrun.registry import names
from salrun.signatures import fits

EXPERIMENTS = sorted(names("experiment"))
SMERF = "+experiment=smerf_simple_fr"


def test_there_are_experiments() -> None:
    assert {"smerf_simple_fr", "smerf_simple_nr"} <= set(EXPERIMENTS)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_checks(experiment: str, scale: str) -> None:
    config = check(compose_config([f"+experiment={experiment}", f"scale={scale}"]))
    assert config["name"].startswith(experiment) and config["methods"] and config["metrics"]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_builds(experiment: str, tmp_path: Path) -> None:
    config = check(compose_config([f"+experiment={experiment}", "scale=smoke", f"cache_dir={tmp_path}", "device=cpu"]))
    cell = build(config)
    assert cell.methods and cell.metrics


@pytest.mark.parametrize("group", ["methods", "metrics"])
def test_every_part_is_selectable_by_name_and_describes_itself(group: str) -> None:
    known = names(group)
    for name, about in known.items():
        assert about, f"{group}/{name}.yaml starts without a description"
        config = compose_config([SMERF, f"{group}=[{name}]"])
        check(config)
        assert list(config[group]) == [name.rsplit("/", 1)[-1]]


def test_a_run_without_an_experiment() -> None:
    config = check(
        compose_config(
            ["dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "methods=[gradient]", "metrics=[pafl]"]
        )
    )
    assert config["name"] == "custom" and list(config["methods"]) == ["gradient"]


def test_the_command_line_wins_over_scale() -> None:
    config = check(compose_config([SMERF, "scale=smoke", "dataset.n_per_bucket=7"]))
    assert config["dataset"]["n_per_bucket"] == 7


MISTAKES = [
    ([SMERF, "seeed=3"], "unknown key 'seeed'; did you mean seed?"),
    ([SMERF, "seed=x"], "seed must be int"),
    ([SMERF, "scale=laptp"], "scale must be one of smoke, laptop, paper"),
    ([SMERF, "methods=[gradent]"], "unknown method 'gradent'"),
    ([SMERF, "metrics=[pafll]"], "unknown metric 'pafll'"),
    ([SMERF, "model=smerf_simpel"], "unknown model 'smerf_simpel'"),
    ([SMERF, "reasoning=simple"], "unknown reasoning 'simple'"),
    ([SMERF, "methods.gradient.spcae=raw"], "did you mean space"),
    ([SMERF, "methods.gradient.space=middle"], "methods.gradient.space must be one of norm, raw"),
    ([SMERF, "methods.rise.n_masks=10"], "'rise' is not selected"),
    ([SMERF, "+methods.rise.n_masks=10"], "'rise' is not selected"),
    ([SMERF, "+methods.gradient.stps=10"], "unknown key 'methods.gradient.stps'"),
    ([SMERF, "dataset.background=blak"], "dataset.background must be one of black, noise, places"),
    ([SMERF, "dataset.n_per_bucket=many"], "dataset.n_per_bucket must be int"),
    ([SMERF, "target=guess"], "target must be one of"),
    ([SMERF, "tile=0"], "tile must be at least 1"),
    ([SMERF, "shard=4/4"], "shard must be i/n"),
    ([SMERF, "model.recipe=fats"], "unknown recipe 'fats'"),
    ([SMERF, "device=quantum"], "device 'quantum' is not available"),
    ([SMERF, "dataset.n_per_bucket=9999"], "n_per_bucket must be in 1.."),
    ([SMERF, "methods=[gradient"], "cannot read 'methods=[gradient'"),
    (["+experiment=smerf_simple_fx"], "did you mean smerf_simple_fr"),
    (["experiment=smerf_simple_fr"], "write +experiment=smerf_simple_fr"),
    (["dataset=textbox"], "no model chosen"),
    (["smerf"], "unknown verb 'smerf'"),
    (["list", "methodes"], "unknown group 'methodes'"),
    (["-m", SMERF, "seed=0,one"], "seed must be int"),
    ([SMERF, "dataset.groups=[99]"], "unknown bucket '99'"),
    ([SMERF, "~model.layers.cam", "methods=[grad_cam]"], "names no cam layer"),
]


@pytest.mark.parametrize(
    ("words", "message"), MISTAKES, ids=lambda v: " ".join(v)[-40:] if isinstance(v, list) else None
)
def test_mistakes_get_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SALRUN_CACHE", str(tmp_path / "store"))
    assert run(words) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    assert message in said[0] and said[0].startswith("salrun: ")


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
    code = "import sys; from salrun.cli import run; run(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    for word in ("smerf_simple_fr", "methods", "smoke", "laptop", "examples"):
        assert word in done.stdout


def test_checking_a_config_does_not_import_torch() -> None:
    code = (
        "import sys; from salrun.composing import check_command; "
        "check_command(['+experiment=smerf_simple_fr']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
