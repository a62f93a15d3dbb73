"""What was changed is computed again, what was measured is collected, what was planned is not called done."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from salrun import cli, collecting, store, sweeps
from salrun.datasets.mnist import MNIST
from salrun.datasets.transforms import Transformed
from salrun.errors import SalrunError
from salrun.methods.gradient import Gradient
from salrun.stages import Stages, Tile
from salrun.store import source_of, source_of_module, users_code
from salrun.tables import CURVES, SCORES, write_scores

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a user's files, as if before the process began: nothing of them is remembered."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def forget() -> None:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]
        for function in (store._file, store._source, store._imports):
            function.cache_clear()
        importlib.invalidate_caches()

    def write(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        forget()

    yield write
    forget()


# -- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("their_part", "from their_helper import shape"),
        ("their_part", "import their_helper as h"),
        ("their_part", "def late():\n    from their_helper import shape"),
        ("their_part", "from their_middle import shape"),
        ("their_part", "from their_pkg import inner"),
        ("their_part", "from their_pkg.inner import shape"),
        ("their_part", "import their_pkg.inner"),
        ("their_pkg.part", "from .inner import shape"),
        ("their_pkg.part", "from . import inner"),
        ("their_pkg.part", "from .. import beyond\nfrom .inner import shape"),
    ],
)
def test_a_helper_that_changed_changes_the_source_of_the_part(write: Write, part: str, line: str) -> None:
    inner = "raise RuntimeError('was run')\nshape = 1\n"
    files = {"their_helper": inner, "their_pkg__in____init__": "", "their_pkg__in__inner": inner}
    write(**{part.replace(".", "__in__"): line}, **files, their_middle="from their_helper import *\n")
    before = source_of_module(part)
    write()
    assert source_of_module(part) == before and "their_helper" not in sys.modules
    write(their_helper=inner.replace("1", "2"), their_pkg__in__inner=inner.replace("1", "2"))
    assert source_of_module(part) != before


def test_what_does_not_matter_is_not_followed(write: Write) -> None:
    write(
        odd_part="import json, torch, zlib, sys, nowhere_at_all\nfrom torch import Tensor\nimport odd_text, odd_ring\n",
        odd_text="print 'an older Python'\n",
        odd_ring="import odd_part\n",
        odd_alone="x = 1\n",
    )
    assert store._reach("odd_part", frozenset()) == {"odd_part", "odd_text", "odd_ring"}
    before = source_of_module("odd_part")
    write(odd_alone="x = 2\n")
    assert source_of_module("odd_part") == before


def test_an_installed_plug_in_is_hashed_with_its_own_package(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "sold"
    package.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    for name, text in {"__init__": "", "part": "from sold import inner\nimport sold_too\n", "inner": "x = 1"}.items():
        (package / f"{name}.py").write_text(text)
    (package.parent / "sold_too.py").write_text("")
    write(their_part="import sold.inner, sold_too\n")
    assert store._reach("sold.part", frozenset()) == {"sold", "sold.part", "sold.inner"}
    assert store._reach("their_part", frozenset()) == {"their_part"}


def test_the_arithmetic_of_the_classifier_is_in_the_source_of_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    before, original = source_of(Gradient), store._source
    changed = lambda module: original(module) + ("# changed" if module == "salrun.models.classifier" else "")
    monkeypatch.setattr(store, "_source", changed)
    assert source_of(Gradient) != before


# -- data sets --------------------------------------------------------------------------------------------------------

BARS = """
class Bars:
    name, mask_names, shape, plain = "bars", (), (1, 2, 2), None

    def fingerprint(self):
        return {"files": "the same"}

    def batch(self, ids):
        return "mask == 1"


def make():
    return Bars()
"""


def data_key(dataset: Any, config: Any = None) -> str:
    cell = SimpleNamespace(dataset=dataset, seed=0, tile=2, precision="float32", device=torch.device("cpu"))
    cell.config = {"dataset": config}
    return Stages(cell, "m", SimpleNamespace(fingerprint="f")).tile_key(Tile(0, ("a", "b")))  # type: ignore[arg-type]


@pytest.mark.parametrize("through", ["itself", "transformed", "a helper"])
def test_editing_a_data_set_class_changes_the_keys(write: Write, through: str) -> None:
    write(their_bars=BARS, their_data="from their_bars import Bars as Base\nclass Mine(Base): pass\n")

    def key() -> str:
        module, name = ("their_data", "Mine") if through == "a helper" else ("their_bars", "Bars")
        made = getattr(importlib.import_module(module), name)()
        return data_key(Transformed(made) if through == "transformed" else made)

    before = key()
    write()
    assert key() == before
    write(their_bars=BARS.replace("mask == 1", "mask > 0"))
    assert key() != before


def test_our_data_sets_keep_their_keys_and_parts_of_others_are_found() -> None:
    assert users_code(MNIST(root="x"), {"_target_": "salrun.datasets.mnist.MNIST"}) == {}
    held = {"_target_": "salrun.datasets.mnist.MNIST", "parts": [{"by": {"_target_": "tests.fake_run.make"}}]}
    assert list(users_code(MNIST(root="x"), held)["data_source"]) == ["tests.fake_run"]


# -- collecting -------------------------------------------------------------------------------------------------------


def measured_run(
    folder: Path, *methods: str, started: str, shard: str = "0/1", value: float = 0.5, **facts: Any
) -> Path:
    """A finished run of four images, two of them where it is a shard of two."""
    index, count = map(int, shard.split("/"))
    cell = {"experiment": "e", "dataset": "d", "model": "m", "seed": 0, "scale": "smoke"}
    rows = [
        {**cell, "group": "1", "image_id": f"i{i}", "label": 0, "prediction": 0, "target": 0}
        | {"method": method, "metric": metric, "variant": variant, "value": value, "flag": "ok"}
        for i in range(index, 4, count)
        for method, metric, variant in [("-", "confidence", "-"), *((m, "pafl", "code:max_abs") for m in methods)]
    ]
    write_scores(folder / "tables", pd.DataFrame(rows)[SCORES], pd.DataFrame(columns=CURVES))
    known = {"status": "done", "experiment": "e", "seed": 0, "scale": "smoke", "device": "cpu", "precision": "float32"}
    known |= {"models": {"model": {"fingerprint": "f"}}, "methods": {m: {"n": 1} for m in methods}}
    known |= {"metrics": {"pafl/code": {"view": "max_abs"}}, "started": started, "shard": shard}
    (folder / "run.json").write_text(json.dumps(known | facts))
    return folder


def collected(folder: Path) -> pd.DataFrame:
    assert collecting.collect_runs([folder], folder / "out", "now") == 0
    scores = pd.read_parquet(folder / "out" / "tables" / "scores.parquet")
    assert not scores.duplicated(["image_id", "method", "metric", "variant"]).any()
    return scores


def test_runs_of_a_cell_with_a_method_each_make_one_table(tmp_path: Path) -> None:
    measured_run(tmp_path / "a", "gradient", started="1")
    measured_run(tmp_path / "b", "edge", started="2", value=0.5 + 1e-9)  # another machine's last bits
    scores = collected(tmp_path)
    assert scores["method"].value_counts().to_dict() == {"-": 4, "gradient": 4, "edge": 4}
    assert set(scores.loc[scores["method"] == "-", "value"]) == {0.5 + 1e-9}


def test_a_run_is_left_out_only_if_a_newer_one_has_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured_run(tmp_path / "a", "gradient", "edge", started="1", value=0.1)
    measured_run(tmp_path / "b", "gradient", started="0", value=0.2)
    assert set(collected(tmp_path)["value"]) == {0.1}
    assert f"left out: {tmp_path / 'b'} (there is a newer run" in capsys.readouterr().out


def test_two_scores_of_one_image_that_differ_are_refused(tmp_path: Path) -> None:
    measured_run(tmp_path / "a", "gradient", "edge", started="1", value=0.1)
    measured_run(tmp_path / "b", "gradient", "random", started="2", value=0.2)
    with pytest.raises(SalrunError, match=r"a and .*b do not fit together: .* is 0.1 \(ok\) in one, 0.2 \(ok\)"):
        collected(tmp_path)


def test_settings_that_differ_are_found_between_any_two_runs(tmp_path: Path) -> None:
    measured_run(tmp_path / "a", "gradient", started="1")
    measured_run(tmp_path / "b", "edge", "random", started="2")
    measured_run(tmp_path / "c", "edge", "oracle", started="3", methods={"edge": {"n": 2}, "oracle": {"n": 1}})
    with pytest.raises(SalrunError, match=r"b and .*c do not fit together: .*methods.edge is"):
        collected(tmp_path)


def test_shards_of_a_method_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("gradient", "edge"):
        for shard in ("0/2", "1/2"):
            measured_run(tmp_path / f"{method}{shard[0]}", method, started="1", shard=shard)
    assert set(collected(tmp_path)["method"].value_counts()) == {4}
    assert "missing" not in capsys.readouterr().out
    (tmp_path / "edge1" / "run.json").unlink()
    with pytest.raises(SalrunError, match="methods.edge is only in one of these shards"):
        collecting.collect_runs([tmp_path], tmp_path / "two", "now")


def test_a_shard_that_only_one_method_lacks_is_named(tmp_path: Path) -> None:
    runs = [measured_run(tmp_path / "a", "gradient", started="1")]
    runs += [measured_run(tmp_path / "b", "edge", started="2", shard="1/2")]
    facts = {run: json.loads((run / "run.json").read_text()) for run in runs}
    assert collecting._missing_shards(runs, facts) == ["e seed 0 shard 0/2 of edge"]


# -- check ------------------------------------------------------------------------------------------------------------

METHOD = """
from dataclasses import dataclass
from salrun.types import Method

@dataclass
class Beside(Method):
    def __call__(self, model, x, target, rng, fitted):
        return x
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.delenv("SALRUN_PLUGINS", raising=False)
    return tmp_path


def test_check_finds_a_module_in_the_current_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "lies_beside.py").write_text(METHOD)
    monkeypatch.setattr("salrun.checking.examine", lambda part: [])
    assert cli.run(["check", "lies_beside:Beside"]) == 0
    assert capsys.readouterr().out.startswith("method beside\n")


def test_a_file_that_is_not_there_is_blamed_on_who_named_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["check", "nope.py"]) == 2
    assert capsys.readouterr().err == "salrun: nope.py is not there\n"
    monkeypatch.setenv("SALRUN_PLUGINS", "gone.py")
    assert cli.run(["check", "edge"]) == 2
    assert capsys.readouterr().err == "salrun: plug-in gone.py of SALRUN_PLUGINS is not there\n"


# -- planned ----------------------------------------------------------------------------------------------------------


def test_what_was_only_planned_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "s"
    task = "[+experiment=e, plan=true, 'seed=0,1']"
    for number, facts in enumerate(({"planned_only": True}, {})):
        run = measured_run(sweep / str(number), "gradient", started="1", **facts)
        assert sweeps.job_in(run).state == ("planned" if facts else "done")
    (sweep / "multirun.yaml").write_text(f"hydra: {{overrides: {{task: {task}}}}}\n")
    assert sweeps.counts(sweeps.jobs_of(sweep)) == "1 done, 1 planned"
    assert sweeps.interrupted_sweep(tmp_path, ["+experiment=e", "plan=true", "seed=0,1"]) is None
    collecting.collect_runs([sweep], tmp_path / "out", "now")
    told = capsys.readouterr().out
    assert f"left out: {sweep / '0'} (planned: plan=true computes nothing)" in told and "missing" not in told
