"""The command line: what is read of it, what is meant and works, and what stays Hydra's. Mistakes: test_mistakes.py."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from salrun.cli import main as cli
from salrun.cli import sweep as sweep_module
from salrun.cli.verbs import VERBS
from salrun.config.catalogue import conf_dir
from salrun.config.check import check
from salrun.config.command import read_command
from salrun.config.compose import _compose, check_command, compose_config, composed_run, quoted, typed_value
from salrun.config.settings import ALL, GROUPS, SETTINGS, Settings, own_settings
from salrun.config.signatures import parameters
from salrun.errors import SalrunError
from salrun.pipeline import job

SMERF = "+experiment=smerf_simple_fr"
BASE = [SMERF, "scale=smoke", "methods=[gradient]", "metrics=[pafl]"]


# -- settings ---------------------------------------------------------------------------------------------------------


def test_config_yaml_has_the_settings_that_are_declared() -> None:
    written = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    groups = {name for entry in written.pop("defaults") if isinstance(entry, dict) for name in entry}
    assert set(GROUPS) == {name for name in groups if not name.startswith("override")}
    del written["hydra"]
    declared = Settings()
    assert set(written) == set(SETTINGS) - set(GROUPS)
    for name, value in written.items():
        folder = name in ("data_root", "cache_dir")  # read from the environment
        assert getattr(declared, name) in value if folder else getattr(declared, name) == value, name
    assert all(f.metadata["about"] for f in fields(Settings))


def test_the_help_has_every_setting_and_every_verb() -> None:
    lines = [line.split() for line in cli.help_text().splitlines()]
    assert {name for name in SETTINGS if name not in GROUPS} | set(VERBS) <= {words[0] for words in lines if words}


def test_what_deviates_from_a_paper_is_declared() -> None:
    deviating = {name for name, declared in ALL.items() if declared.metadata["deviates"]}
    assert deviating == set("methods metrics dataset model budget target others reading choices view controls".split())
    words = [SMERF, "scale=laptop", "seed=1", "background=noise", "target=label", "+methods.rise.n_masks=3", "~model.x"]
    assert own_settings([*words, "name=dataset=3"]) == [
        f"set on the command line: {word}" for word in ("target=label", "methods.rise.n_masks=3", "model.x")
    ]


# -- what is meant ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["+methods.gradient.label=mine"],
        ["++seed=3"],
        ["+budget.mine.smoke=3", "dataset.n_per_bucket=${budget.mine.smoke}"],
        ["++background=noise"],
        ["+others.second=${model}"],
        ["+hydra.job.env_set.A=b", "++hydra.verbose=false"],
        ["metrics.pafl.variants.code.view=max_abs"],
        ["metrics.pafl.roi=ink"],
        ["~metrics.pafl.variants", "metrics.pafl.view=max_abs"],
        ["methods=[smerf/gradient,yona/guided_backprop]"],
        ["paper=null"],
        ["paper=zhang"],
    ],
    ids=" ".join,
)
def test_what_is_meant_still_works(words: list[str]) -> None:
    composed_run(read_command([*BASE, *words]))


def test_a_sweep_of_lists_is_what_the_message_says() -> None:
    check_command(read_command(["-m", SMERF, "methods=[smerf/gradient],[gradient]"]))


def test_keys_and_groups_of_the_users_own_files(tmp_path: Path) -> None:
    for name, text in {
        "experiment/mine": "# @package _global_\ndefaults: [smerf_simple_fr]\nshade: 3\nseed: ${shade}\n",
        "flavour/sweet": "# @package _global_\nsugar: 1\nchunk: ${sugar}\n",
        "dataset/shaded": "# @package dataset\ndefaults: [mnist]\nseed: ${oc.select:grey,0}\n",
        "experiment/grey": "# @package _global_\ndefaults: [smerf_simple_fr]\ngrey: 3\n",  # of another data set
        "methods/gradient2": "# @package methods\ngradient2: {_target_: salrun.methods.gradient.Gradient}\n",
    }.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    own = ["--config-dir", str(tmp_path)]
    words = [*own, "+experiment=mine", "++shade=4", "+flavour=sweet", "++sugar=2"]
    config, _ = composed_run(read_command(words))
    assert (config["seed"], config["chunk"]) == (4, 2)
    composed_run(read_command([*own, "+experiment=grey"]))
    composed_run(read_command([SMERF, "+flavour=sweet", f"hydra.searchpath=[file://{tmp_path}]"]))
    (tmp_path / "second").mkdir()
    composed_run(read_command([*own, "-cd", str(tmp_path / "second"), "+experiment=mine", "+flavour=sweet"]))
    assert set(compose_config([SMERF, "methods=[gradient,gradient2]"], (tmp_path,)).methods) == {
        "gradient",
        "gradient2",
    }
    with pytest.raises(SalrunError, match="unknown key 'flavor' in .*; did you mean flavour"):
        check_command(read_command([*own, "+experiment=mine", "+flavor=sweet"]))


def test_a_folder_of_any_name_has_configs(tmp_path: Path) -> None:
    folder = tmp_path / "it's, my [conf]"
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "mine.yaml").write_text("# @package _global_\ndefaults: [smerf_simple_fr]\nname: mine\n")
    config, whole = composed_run(read_command(["--config-dir", str(folder), "+experiment=mine"]))
    assert config["name"] == "mine" and whole.hydra.runtime.choices.experiment == "mine"


def test_a_reasoning_that_is_optional_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_data_of_mine.py").write_text("def data(size: int, *, reasoning: str = 'x', n: int): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    known = parameters("own_data_of_mine.data")
    assert known is not None and {k: v.required for k, v in known.items()} == {
        "size": True,
        "reasoning": False,
        "n": True,
    }
    words = ["++dataset={_target_: own_data_of_mine.data, size: 3}", "model=smerf_simple", "methods=[gradient]"]
    assert check(compose_config(words))["dataset"]["size"] == 3


# -- argv and Hydra ---------------------------------------------------------------------------------------------------


def test_argv_is_read_once_and_flags_may_stand_anywhere(tmp_path: Path) -> None:
    command = read_command(["a=1", "-m", "b=2", "--config-dir", str(tmp_path), "c=3"])
    assert command.overrides == ("a=1", "b=2", "c=3") and command.folders == (tmp_path,) and command.multirun
    assert read_command(["a=1", "--info", "b=2"]).overrides == ("a=1", "b=2")
    assert read_command(["hydra.mode=MULTIRUN", "a=1,2"]).multirun and not read_command(["a=1"]).multirun
    verb = read_command(["status", "outputs", "-o"], ["status"])
    assert (verb.verb, verb.words) == ("status", ("outputs", "-o"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    handlers = logging.getLogger().handlers[:]
    yield tmp_path
    logging.getLogger().handlers[:] = handlers


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([SMERF, "--cfg", "job", "seed=7"], "seed: 7"),
        ([SMERF, "--cfg", "job", "--package", "dataset.seed"], "0"),
        ([SMERF, "--cfg", "hydra", "hydra.run.dir=here"], "dir: here"),
        (["--info", "searchpath"], "conf"),
        (["--shell-completion", "install=bash"], "complete"),
        (["--hydra-help"], "See https://hydra.cc"),
        (["--version"], "salrun 0."),
        ([], "experiments (+experiment=...)"),
        (["help"], "experiments (+experiment=...)"),
        ([SMERF, "--help"], "experiments (+experiment=...)"),
        *((([verb, "--help"], f"usage: salrun {verb}")) for verb in VERBS),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_questions_are_answered(here: Path, words: list[str], told: str, capfd: pytest.CaptureFixture) -> None:
    assert cli.run(words) == 0
    assert told in capfd.readouterr().out
    assert not list(here.iterdir())


def performed(monkeypatch: pytest.MonkeyPatch, fault: Exception | None = None) -> list[tuple[dict, Path, list[str]]]:
    """The runs that are asked for, none of which is done; `fault` is what they return."""
    asked: list[tuple[dict, Path, list[str]]] = []

    def note(config: dict, out: Path, overrides: list[str]) -> Exception | None:
        asked.append((config | {"SALRUN_TEST": os.environ.get("SALRUN_TEST")}, out, list(overrides)))
        return fault

    monkeypatch.setattr("salrun.cli.experiment.perform", note)
    return asked


def test_a_single_run_has_what_hydra_makes_of_one(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = performed(monkeypatch)
    words = [*BASE, "name=mine", "+hydra.job.env_set.SALRUN_TEST=there", "hydra.job.id=${hydra.job.name}"]
    assert cli.run(words) == 0
    ((config, out, overrides),) = asked
    assert (config["name"], config["SALRUN_TEST"]) == ("mine", "there") and overrides == [*BASE, "name=mine"]
    assert out.parent == here / "outputs" / "mine" and (here / "outputs" / "mine").is_dir()
    assert yaml.safe_load((out / ".hydra" / "overrides.yaml").read_text()) == [*BASE, "name=mine"]
    assert OmegaConf.load(out / ".hydra" / "config.yaml").name == "mine"
    hydra = OmegaConf.load(out / ".hydra" / "hydra.yaml").hydra
    assert hydra.mode == "RUN" and hydra.runtime.output_dir == str(out) and hydra.job.id == "salrun"
    assert cli.run([*BASE, "hydra.run.dir=elsewhere/${scale}", "hydra.output_subdir=null"]) == 0
    assert asked[-1][1] == here / "elsewhere" / "smoke" and not list((here / "elsewhere" / "smoke").iterdir())


def test_the_run_may_be_repeated_from_its_overrides(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "my conf" / "experiment").mkdir(parents=True)
    (here / "my conf" / "experiment" / "mine.yaml").write_text("# @package _global_\ndefaults: [smerf_simple_fr]\n")
    asked = performed(monkeypatch)
    assert cli.run(["--config-dir", "my conf", "+experiment=mine", "seed=3"]) == 0
    monkeypatch.chdir(here / "my conf")
    assert cli.run(asked[0][2]) == 0
    assert asked[1][0] == asked[0][0] and asked[1][2] == asked[0][2]


@pytest.mark.parametrize(
    ("fault", "code", "told"),
    [
        (SalrunError("no such thing"), 2, "salrun: no such thing"),
        (FileNotFoundError(2, "No such file or directory", "gone"), 1, "salrun: unexpected FileNotFoundError"),
        (PermissionError(13, "Permission denied", "closed"), 2, "salrun: closed: Permission denied"),
    ],
)
def test_a_fault_inside_a_run_is_not_the_folders(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    fault: Exception,
    code: int,
    told: str,
) -> None:
    performed(monkeypatch, fault)
    assert cli.run([*BASE, "plan=true"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(told)


def test_a_fault_is_returned_and_in_the_runs_log(tmp_path: Path) -> None:
    fault = job.perform({"name": "x"}, tmp_path, [])
    assert isinstance(fault, KeyError) and "KeyError" in (tmp_path / "run.log").read_text()


def test_errors_status_and_help_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"status": "done"}))
    lines = [["--help"], ["status", str(tmp_path)], [SMERF, "seeed=1"], ["list", "methods"], ["collect"], ["check"]]
    code = (
        f"import sys; from salrun.cli.main import run; print([run(w) for w in {lines}]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[0, 0, 2, 0, 2, 2]", "False"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_stream_that_the_shell_closed_is_no_fault(closed: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "salrun", "list", "methods"]
    done = subprocess.run(f"{shlex.join(words)} {closed}", shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr


ODD_NAMES = [
    "ü",
    "it's",
    "a(b",
    "a,b",
    "a=b",
    "a[b]",
    "a{b}",
    "a#b",
    "a b",
    'a"b',
    "a\\b",
    "a\\'b",
    "b\\",
    "${b}",
    "a:b",
    "~a",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_folder_of_any_name_is_itself_in_an_override(name: str) -> None:
    whole = _compose([f"hydra.sweep.dir={quoted(f'/x/{name}')}"])
    assert whole.hydra.sweep.dir == f"/x/{name}"
    assert typed_value(["hydra.sweep.dir=a", f"hydra.sweep.dir={quoted(name)}"], "hydra.sweep.dir") is not None


@pytest.mark.parametrize("name", ["it's, (new)", "a=b"])
def test_a_sweep_hands_its_folder_over_quoted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[str] = []
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    monkeypatch.setattr(sweep_module, "check_command", lambda command: None)
    monkeypatch.setattr(sweep_module, "hand_over", lambda command, settings: handed.extend(settings))
    monkeypatch.setattr(sweep_module, "jobs_of", lambda folder: [])
    assert sweep_module.sweep(read_command(["-m", "seed=0,1"])) == 0
    folder = str(typed_value(handed, "hydra.sweep.dir"))
    assert Path(folder).parent == tmp_path / name / "outputs" / "sweeps"


def test_a_setting_that_only_the_swept_experiments_have_is_told_how_to_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
    words = ["-m", "+experiment=smerf_simple_fr,smerf_simple_nr", "dataset.n_per_bucket=1"]
    with pytest.raises(SalrunError, match=r"with what is swept: write 'dataset.n_per_bucket=choice\(1\)'"):
        sweep_module.sweep(read_command(words))
    assert sweep_module._as_swept("Could not override 'seed'.", read_command(["-m"])) == "Could not override 'seed'."
