"""Slips on the command line that were once taken silently, or answered by something other than one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from salrun import cli
from salrun.build import check
from salrun.composing import check_command, compose_config, split_command
from salrun.errors import SalrunError
from salrun.signatures import parameters

SMERF = "+experiment=smerf_simple_fr"
BASE = [SMERF, "scale=smoke", "methods=[gradient]", "metrics=[pafl]"]
TEXTBOX = ["dataset=textbox", "model=smerf_simple", "methods=[gradient]"]

SLIPS = [
    ([SMERF, "+scael=smoke"], "unknown key 'scael' in '+scael=smoke'; did you mean scale"),
    ([SMERF, "++scael=smoke"], "unknown key 'scael' in '++scael=smoke'; did you mean scale"),
    ([SMERF, "+seeed=3"], "unknown key 'seeed' in '+seeed=3'; did you mean seed"),
    ([SMERF, "+modl.arch.width=32"], "unknown key 'modl' in '+modl.arch.width=32'; did you mean model"),
    ([SMERF, "+hydrax=3"], "unknown key 'hydrax' in '+hydrax=3'"),
    (["+experimant=smerf_simple_fr"], "unknown key 'experimant' in '+experimant=smerf_simple_fr'; did you mean experi"),
    (["+experimant=smerf_simple_fr", "background=noise", "arch=vgg16"], "did you mean experiment"),
    (["-m", SMERF, "+seeed=1,2"], "unknown key 'seeed' in '+seeed=1'"),
    ([*BASE, "metrics.pafl.view=max_abs"], "metrics.pafl.view has no effect: each variant sets its own; use "),
    ([*BASE, "metrics.pafl.mode=code"], "use metrics.pafl.variants.<name>.mode (variants: code, paper)"),
    ([*BASE, "++metrics.pafl.view=rubbish"], "metrics.pafl.view has no effect"),
    ([*BASE, "metrics.pafl={view: max_abs}"], "metrics.pafl.view has no effect"),
    ([SMERF, "methods=[smerf/gradient,gradient]"], "'smerf/gradient' and 'gradient' are both called 'gradient'"),
    ([SMERF, "methods=[smerf/gradient,yona/gradient]"], "-m 'methods=[smerf/gradient],[yona/gradient]'"),
    ([SMERF, "metrics=[sparseness,zhang/sparseness]"], "'sparseness' and 'zhang/sparseness' are both called"),
    ([SMERF, "methods=[gradient,gradient]"], "'gradient' is in the list twice"),
    ([SMERF, "paper=smurf"], "unknown paper 'smurf'; did you mean smerf"),
    ([SMERF, "paper=__pycache__"], "unknown paper '__pycache__'; known: null, smerf, "),
    ([SMERF, "seed=0,1"], "'seed=0,1' is a sweep: add -m"),
    ([SMERF, "seed=range(0,3)"], "'seed=range(0,3)' is a sweep: add -m"),
    ([SMERF, "methods=gradient,rise"], "write 'methods=[gradient,rise]'"),
    (TEXTBOX, "needs a reasoning: add reasoning=<name> (salrun list reasoning)"),
    ([SMERF, "model=torchvision"], f"unknown key 'model.training': {SMERF} sets it, and model=torchvision does not"),
    ([SMERF, "dataset=cifar10"], f"unknown key 'dataset.reasoning': {SMERF} sets it, and dataset=cifar10 does not"),
    ([SMERF, "--multrun", "seed=0,1"], "unknown flag '--multrun'; did you mean --multirun"),
    ([SMERF, "--multi", "seed=0,1"], "unknown flag '--multi'; did you mean --multirun"),
    ([SMERF, "-5"], "unknown flag '-5'"),
    ([SMERF, "--cfg", "jb"], "--cfg/-c: invalid choice: 'jb'"),
    ([SMERF, "--cfg"], "--cfg/-c: expected one argument"),
    ([*BASE, "plan=true", "hydra.run.dir=afile/x"], "cannot make the folder afile/x: Not a directory; choose another"),
    (
        [*BASE, "plan=true", "hydra.run.dir=afile"],
        "cannot make the folder afile: File exists; choose another by hydra.",
    ),
    ([*BASE, "plan=true", "hydra.run.dir=/proc/x"], "cannot make the folder /proc/x: No such file or directory"),
    (["-m", *BASE, "seed=0,1", "hydra.sweep.dir=afile/x"], "cannot make the folder afile/x: Not a directory"),
]


@pytest.mark.parametrize(("words", "told"), SLIPS, ids=lambda v: " ".join(v)[-40:] if isinstance(v, list) else None)
def test_a_slip_is_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SALRUN_CACHE", str(tmp_path / "store"))
    (tmp_path / "afile").touch()
    assert cli.run(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("salrun: ") and told in line


@pytest.mark.parametrize(
    "words",
    [
        ["+methods.gradient.label=mine"],
        ["++seed=3"],
        ["+model.layers.other=conv1"],
        ["+budget.mine.smoke=3"],
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
    check_command([*BASE, *words])


def test_a_sweep_of_lists_is_what_the_message_says() -> None:
    check_command(["-m", SMERF, "methods=[smerf/gradient],[gradient]"])


def test_keys_and_groups_of_the_users_own_files(tmp_path: Path) -> None:
    for name, text in {
        "experiment/mine": f"# @package _global_\ndefaults: [/experiment/{SMERF.partition('=')[2]}]\nshade: 3\n",
        "flavour/sweet": "# @package _global_\nsugar: 1\n",
        "methods/gradient2": "# @package methods\ngradient2: {_target_: salrun.methods.gradient.Gradient}\n",
    }.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    own = ["--config-dir", str(tmp_path)]
    check_command([*own, "+experiment=mine", "++shade=4", "+flavour=sweet", "++sugar=2"])
    check_command([SMERF, "+flavour=sweet", f"hydra.searchpath=[file://{tmp_path}]"])
    assert set(compose_config([SMERF, "methods=[gradient,gradient2]"], (tmp_path,)).methods) == {
        "gradient",
        "gradient2",
    }
    with pytest.raises(SalrunError, match="unknown key 'flavor' in .*; did you mean flavour"):
        check_command([*own, "+experiment=mine", "+flavor=sweet"])


def test_an_unknown_key_of_the_users_own_file_is_not_the_experiments(tmp_path: Path) -> None:
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "mine.yaml").write_text("mine: {_target_: salrun.methods.rise.RISE, n_mask: 3}\n")
    with pytest.raises(SalrunError, match=r"^unknown key 'methods\.mine\.n_mask'; did you mean n_masks"):
        check_command(["--config-dir", str(tmp_path), SMERF, "methods=[mine]"])


def test_flags_may_stand_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert split_command(["a=1", "-m", "b=2", "--cfg", "job", "c=3", "--info", "d=4"]) == (
        ["a=1", "b=2", "c=3", "d=4"],
        ["-m", "--cfg", "job", "--info"],
    )
    monkeypatch.chdir(tmp_path)
    assert cli.run([SMERF, "--cfg", "job", "seed=7"]) == 0
    assert "seed: 7" in capsys.readouterr().out


def test_a_files_fault_inside_a_job_is_not_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising() -> None:
        raise FileNotFoundError(2, "No such file or directory", "gone")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "prepare_imports", lambda argv=None: raising() if argv is None else None)
    with pytest.raises(FileNotFoundError):
        cli.experiment([*BASE, "plan=true"])


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


@pytest.mark.parametrize(("key", "meant"), [("scael", "scale"), ("seeed", "seed"), ("targt", "target")])
def test_a_misspelt_key_of_a_config_file_is_named(tmp_path: Path, key: str, meant: str) -> None:
    lines = ["# @package _global_", "defaults:", "  - smerf_simple_fr", "name: mine", f"{key}: 3", "background_note: x"]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("\n".join(lines) + "\n")
    with pytest.raises(SalrunError, match=f"nothing reads the key '{key}'; did you mean {meant}"):
        check(compose_config(["+experiment=mine"], (tmp_path,)))
