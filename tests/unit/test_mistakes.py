"""Every mistake a user can type, with what is said of it: one line, exit code 2, nothing computed."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path

import pytest

from salrun.cli import main as cli
from salrun.config.command import Command
from salrun.errors import SalrunError
from salrun.pipeline import cell
from tests.conftest import ROOT

SMERF = "+experiment=smerf_simple_fr"
BASE = [SMERF, "scale=smoke", "methods=[gradient]", "metrics=[pafl]"]
TEXTBOX = ["dataset=textbox", "model=smerf_simple", "methods=[gradient]"]
FILES = {  # in the folder where the words are typed
    "afile": "",
    "squared_part.py": """
from dataclasses import dataclass
from typing import Annotated
from salrun.ranges import Above
from salrun.types import Method

@dataclass
class Squared(Method):
    scale: Annotated[float, Above(0)] = 1.0
""",
    "empty_part.py": "x = 1\n",
    "broken_part.py": "import nothing_of_this_name\n",
    "mine/experiment/misspelt.yaml": f"""# @package _global_
defaults: [{SMERF.partition("=")[2]}]
name: misspelt
targt: label
""",
    "mine/experiment/note.yaml": f"""# @package _global_
defaults: [{SMERF.partition("=")[2]}]
remark: nothing reads this
""",
    "mine/methods/masked.yaml": "masked: {_target_: salrun.methods.rise.RISE, n_mask: 3}\n",
}

MISTAKES: list[tuple[list[str], str]] = [
    # keys
    ([SMERF, "seeed=3"], "unknown key 'seeed'; did you mean seed?"),
    ([SMERF, "+campaign=smerf"], "unknown key 'campaign' in '+campaign=smerf'"),
    ([SMERF, "+base.x=1"], "unknown key 'base' in '+base.x=1'"),
    ([SMERF, "+arch.x=1"], "unknown key 'arch' in '+arch.x=1'"),
    ([*BASE, "+hydra.foo=1"], "unknown key 'hydra.foo' in '+hydra.foo=1'"),
    ([*BASE, "++hydra.run.dri=x"], "unknown key 'hydra.run.dri' in '++hydra.run.dri=x'; did you mean dir?"),
    ([*BASE, "+hydra.callbacks.a._target_=os.system"], "hydra.callbacks: "),
    ([*BASE, "hydra.searchpath=3"], "hydra.searchpath must be a list of folders that are there"),
    ([*BASE, "hydra.searchpath=[file:///nowhere]"], "hydra.searchpath must be a list of folders that are there"),
    ([*BASE, "+metrics.pafl.variants.a={topp: 3}"], "unknown key 'metrics.pafl.variants.a.topp'; "),
    ([*BASE, "data_root='a\0b'"], "data_root has the letter NUL in it"),
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
    ([SMERF, "tile=0"], "tile must be between 1 and 65536"),
    ([SMERF, "shard=4/4"], "shard must be i/n"),
    ([SMERF, "model.recipe=fats"], "unknown recipe 'fats'"),
    ([SMERF, "device=quantum"], "device 'quantum' is not available"),
    ([SMERF, "device=meta"], "device 'meta' is not available"),
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
    ([*BASE, "hydra.run.dir=afile/x"], "cannot make the folder afile/x: Not a directory; choose another"),
    (
        [*BASE, "hydra.run.dir=afile"],
        "cannot make the folder afile: File exists; choose another by hydra.",
    ),
    ([*BASE, "hydra.run.dir=/proc/x"], "cannot make the folder /proc/x: No such file or directory"),
    (["-m", *BASE, "seed=0,1", "hydra.sweep.dir=afile/x"], "cannot make the folder afile/x: Not a directory"),
    # files of the users' own
    (["--config-dir", "mine", "+experiment=misspelt"], "nothing reads the key 'targt'; did you mean target"),
    (["--config-dir", "mine", "+experiment=note"], "nothing reads the key 'remark'"),
    (["--config-dir", "mine", SMERF, "methods=[masked]"], "unknown key 'methods.masked.n_mask'; did you mean n_masks"),
    (["--config-dir", "nowhere", SMERF], "nowhere is not a folder"),
    # what Hydra chokes on
    ([*BASE, "dataset=null"], "dataset"),
    ([*BASE, "methods=3"], "methods"),
    ([*BASE, "+seed=1"], "seed"),
    ([*BASE, "hydra.run.dirr=x"], "hydra.run.dirr"),
    ([SMERF, "-m", "--cfg", "job"], "--multirun and --cfg do not go together"),
    ([*BASE, "metrics.pafl.blur=3", "--shell-completion"], "--shell-completion: "),
    ([SMERF, "--config-name", "other"], "add files of yours by --config-dir"),
    # types, choices and ranges of settings and of parts
    ([SMERF, "fit_images=many"], "fit_images must be int or null, got 'many'"),
    ([SMERF, "fit_images=0"], "fit_images must be at least 1, got 0"),
    ([SMERF, "threads=-1"], "threads must be between 1 and 1024, got -1"),
    ([SMERF, "chunk=few"], "chunk must be int or null, got 'few'"),
    ([SMERF, "keep_maps=some"], "keep_maps must be one of auto, all, none, got 'some'"),
    ([SMERF, "plan=yes please"], "plan must be bool"),
    ([SMERF, "shard=3"], "shard must be i/n with 0 <= i < n, e.g. shard=0/4, got '3'"),
    ([SMERF, "reading=text"], "reading must be one of recommended, paper, code, got 'text'"),
    ([SMERF, "+methods.gradient.target=guess"], "methods.gradient.target must be one of predicted, label"),
    ([*BASE, "+methods.gradient.label=[1]"], "methods.gradient.label must be str or null, got [1]"),
    ([SMERF, "methods=[rise]", "methods.rise.n_masks=0"], "methods.rise.n_masks must be at least 1, got 0"),
    ([SMERF, "methods=[rise]", "methods.rise.n_masks=few"], "methods.rise.n_masks must be int, got 'few'"),
    ([SMERF, "methods=[rise]", "methods.rise.p1=0"], "methods.rise.p1 must be above 0 and at most 1, got 0"),
    ([SMERF, "methods=[lime]", "methods.lime.ratio=2"], "methods.lime.ratio must be between 0 and 1, got 2"),
    ([SMERF, "methods=[grad_cam_pp]", "methods.grad_cam_pp.eps=0"], "methods.grad_cam_pp.eps must be above 0, got 0"),
    ([SMERF, "metrics=[aopc_morf]", "metrics.aopc_morf.levels=[0,9]"], "levels must be at least 1 each, got 0"),
    ([SMERF, "metrics.pafl.blur=4"], "metrics.pafl.blur must be at least 1 and odd, got 4"),
    (
        [SMERF, "+metrics.pafl.variants.code.blur=0"],
        "metrics.pafl.variants.code.blur must be at least 1 and odd, got 0",
    ),
    ([SMERF, "dataset.noise_max=300"], "dataset.noise_max must be between 0 and 255, got 300"),
    (["+experiment=tomsett_cifar10", "dataset.n_explained=0"], "dataset.n_explained must be at least 1, got 0"),
    (["+experiment=zhang_transforms", "dataset.transforms.crop=[2]"], "crop must be above 0 and at most 1 each, got 2"),
    # of absurd size, or no number at all
    ([SMERF, f"seed={2**63}"], "seed must be between"),
    ([SMERF, "cache_dir=[1]"], "cache_dir must be str, got [1]"),
    ([SMERF, "data_root={a: 1}"], "data_root must be str, got {'a': 1}"),
    ([*BASE, "dataset.groups=[2,2]"], "explains image validation-b2-"),
    ([SMERF, f"tile={10**20}"], "tile must be between 1 and 65536"),
    ([SMERF, f"chunk={10**20}"], "chunk must be between 1 and 65536"),
    ([SMERF, "threads=1000000000"], "threads must be between 1 and 1024"),
    ([SMERF, "model.std=[0]"], "model.std must be above 0 each, got 0"),
    ([SMERF, "model.std=[inf]"], "model.std.0 must be a finite number, got inf"),
    ([SMERF, "model.mean=[nan]"], "model.mean.0 must be a finite number, got nan"),
    ([SMERF, "model.mean=[]", "plan=true"], "the model normalises 0 channels"),
    # inside mappings
    ([SMERF, "dataset.objects.text.draw='x'"], "dataset.objects.text.draw must be int, got 'x'"),
    ([SMERF, "+model.gate.acuracy=0.9"], "unknown key 'model.gate.acuracy'; did you mean accuracy?"),
    ([SMERF, "model.gate.accuracy=abc"], "model.gate.accuracy must be float, got 'abc'"),
    ([SMERF, "model.gate.accuracy=95"], "model.gate.accuracy must be between 0 and 1, got 95"),
    ([SMERF, "+model.layers.camm=relu3"], "unknown key 'model.layers.camm'; did you mean cam?"),
    ([SMERF, "+model.recipes.fast.lrr=1"], "unknown key 'model.recipes.fast.lrr'; did you mean lr?"),
    ([SMERF, "model.recipes.fast.lr=yes"], "model.recipes.fast.lr must be float, got 'yes'"),
    ([SMERF, "model.recipes.fast.epochs=0"], "model.recipes.fast.epochs must be at least 1, got 0"),
    ([SMERF, "+model.recipes.fast_pgd.pgd.steps=3"], "unknown key 'model.recipes.fast_pgd.pgd.steps'"),
    ([SMERF, "+model.arch.knid=3"], "unknown key 'model.arch.knid'; did you mean kind?"),
    ([SMERF, "+dataset.reasoning.bucket=3"], "unknown key 'dataset.reasoning.bucket'; did you mean"),
    ([SMERF, "+dataset.reasoning.train_per_bucket.q=1"], "unknown key 'dataset.reasoning.train_per_bucket.q'"),
    ([SMERF, "+dataset.objects.box2.apart.bxo1=9"], "unknown key 'dataset.objects.box2.apart.bxo1'; did you mean box1"),
    ([SMERF, "+dataset.reasoning.buckets.1.lable=3"], "unknown key 'dataset.reasoning.buckets.1.lable'"),
    (["+experiment=yona_mnist_halves", "+others.top_1.parent.gate.acuracy=1"], "others.top_1.parent names no _target_"),
    # keys that nothing reads
    (
        [SMERF, "+budget.image.smoke=1"],
        "unknown key 'budget.image.smoke': nothing reads it; did you mean budget.images.",
    ),
    ([SMERF, "+budget.images.smok=1"], "unknown key 'budget.images.smok': nothing reads it"),
    ([SMERF, "+choices.label=code"], "unknown key 'choices.label': nothing reads it; did you mean choices.labels?"),
    ([SMERF, "+readings.code.label=1"], "unknown key 'readings.code.label'"),
    # Hydra's functions and settings
    ([SMERF, "methods=glob(*)"], "'methods=glob(*)' is a sweep: add -m"),
    (["-m", SMERF, "seed=glob(*)"], "'seed=glob(*)' matches nothing"),
    (["-m", SMERF, "tile=interval(1,2)"], "'tile=interval(1,2)' has no end: name the values"),
    (["-m", SMERF, "seed=range(0,1000000000)"], "'seed=range(0,1000000000)' must have an end"),
    (["-m", SMERF, "seed=shuffle(range(0,inf))"], "'seed=shuffle(range(0,inf))' must have an end"),
    (["-m", SMERF, "seed=range(0,9,0)"], "'seed=range(0,9,0)' must have an end"),
    (["-m", SMERF, "seed=range(0,1000)", "tile=range(1,1001)"], "a sweep of 1,000,000 jobs; at most 100,000"),
    (["-m", SMERF, "seed=range(3,1)"], "'seed=range(3,1)' has no values"),
    (
        [SMERF, "hydra.run.dir=${nothing}"],
        "cannot apply 'hydra.run.dir=${nothing}': Interpolation key 'nothing' not found",
    ),
    ([SMERF, "hydra.job.name=${nothing}"], "cannot apply 'hydra.job.name=${nothing}'"),
    ([SMERF, "metrics=[insertion]", "metrics.insertion=???"], "metrics.insertion is ???, which says that a value"),
    ([SMERF, "methods.gradient=???"], "methods.gradient is ???, which says that a value is missing"),
    ([SMERF, "model.layers={cam: ???}"], "model.layers.cam is ???, which says that a value is missing"),
    ([SMERF, "+dataset.buckets.1.box1={a: 1}"], "unknown kind of 'box1'"),
    ([SMERF, "seed=???"], "seed is ???, which says that a value is missing: give it one"),
    ([SMERF, "hydra.job.chdir=???"], "hydra.job.chdir is ???, which says"),
    ([SMERF, "hydra.output_subdir=../x"], "hydra.output_subdir must be a name, or null"),
    (["-m", SMERF, "seed=0,1", "hydra.output_subdir=/x"], "hydra.output_subdir must be a name, or null"),
    ([SMERF, "methods={}"], "'methods={}' changes nothing: methods stays as it was"),
    ([SMERF, "hydra.verbose=[1,2]"], "hydra.verbose must be true, false or names of loggers"),
    ([SMERF, "hydra.verbose=shuffle([1,2])"], "hydra.verbose must be true, false or names of loggers"),
    ([SMERF, "hydra.verbose=${seed}"], "hydra.verbose must be true, false or names of loggers"),
    ([SMERF, "hydra.output_subdir=${data_root}"], "hydra.output_subdir must be a name, or null"),
    ([SMERF, "hydra.verbose={}"], "hydra.verbose must be true, false or names of loggers"),
    (["-m", SMERF, "seed=0,1", "hydra.verbose=3"], "hydra.verbose must be true, false or names of loggers"),
    ([SMERF, "model.arch._target_=[1]"], "model.arch._target_ must be a dotted name, got [1]"),
    ([SMERF, "hydra/launcher=int(3.5)"], "cannot apply 'hydra/launcher=int(3.5)'"),
    # verbs
    (["list", "methods", "metrics"], "salrun list takes one group"),
    ([*BASE, "methods.gradient.view=sum", "view=max_abs"], "methods.gradient.view has no effect: all methods are read"),
    ([*BASE, "controls=[randm]"], "unknown control 'randm'"),
    (["list", "methods", "metrics"], "salrun list takes one group"),
    (["status", "nowhere"], "nowhere is not there"),
    (["status", "--all"], "salrun status: unrecognized arguments: --all"),
    (["collect"], "salrun collect needs runs: salrun collect"),
    (["collect", "outputs", "-o"], "-o/--output: expected one argument"),
    (["report"], "salrun report needs runs"),
    (["reliability"], "salrun reliability needs runs"),
    (["reliability", ".", "drws=3"], "unknown setting 'drws' in salrun reliability; did you mean draws"),
    (["reliability", ".", "draws=0"], "draws must be a number of at least 1, got '0'"),
    (["cache", "show"], "salrun cache takes nothing or 'clear [STAGE]', got 'show'"),
    (["cache", "clear", "map"], "unknown stage 'map'"),
    (["check"], "salrun check needs a file, module:Class or a name"),
    (["check", "gradeint"], "did you mean gradient"),
    (["check", "nowhere.py"], "nowhere.py is not there"),
    (["check", "empty_part.py"], "defines no dataclass"),
    (["check", "broken_part.py"], "nothing_of_this_name"),
    (["check", "nothing_of_this_name:X"], "cannot import nothing_of_this_name"),
    (["check", "salrun.methods.gradient:Gradeint"], "did you mean Gradient"),
    (["check", "squared_part.py", "scael=2"], "methods.squared.scael"),
    (["check", "squared_part.py", "scale=much"], "methods.squared.scale must be float"),
    (["check", "squared_part.py", "scale=0"], "methods.squared.scale must be above 0, got 0"),
]


def computed(*_: object) -> None:
    raise AssertionError("it was taken for no mistake")


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=lambda v: " ".join(v)[-40:] if isinstance(v, list) else None)
def test_a_mistake_is_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SALRUN_CACHE", str(tmp_path / "store"))
    monkeypatch.setattr(cell, "explain_and_score", computed)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cli.run(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("salrun: ") and told in line
    assert not list(tmp_path.rglob("*.safetensors"))


BOMB = "a: &a [1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}]\n" for old, new in pairwise("abcdefghijklm")
)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"- 1\n- 2\n", "must be a mapping"),
        (b"\xef\xbb\xbfname: mine\n", "begins with a byte order mark"),
        (BOMB.encode(), "its aliases counted"),
        (b"name: &a [*a]\n", "is nested too deeply"),
    ],
)
def test_a_config_file_that_cannot_be_meant_is_named(
    content: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_bytes(content)
    assert cli.run(["--config-dir", "conf", "+experiment=mine", *BASE[1:]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "conf/experiment/mine.yaml" in line and told in line


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2),
        (PermissionError(errno.EACCES, "Permission denied", "outputs/x"), 2),
        (OSError(errno.ENOENT, "No such file", "gone"), 1),
        (SalrunError("two\nlines"), 2),
    ],
)
def test_the_machines_faults_are_one_line(
    fault: Exception, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def raising(command: Command) -> int:
        raise fault

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "act", raising)
    monkeypatch.setattr("salrun.errors.OURS", str(ROOT))  # this file is no user's
    assert cli.run(["+experiment=x"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("salrun: ")
