"""What was changed is computed again, what was measured is collected, what was planned is not called done."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from salrun.cli import main as cli
from salrun.datasets.mnist import MNIST
from salrun.datasets.transforms import Transformed
from salrun.methods.gradient import Gradient
from salrun.pipeline.stages import Stages, Tile
from salrun.store import sources as store
from salrun.store.sources import source_of, source_of_module, users_code
from tests.toys import classifier

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
        for function in (store._file, store._source, store._imports, store._reach):
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
    cell = SimpleNamespace(
        dataset=dataset, target=None, seed=0, tile=2, precision="float32", device=torch.device("cpu")
    )
    cell.config = {"dataset": config}
    return Stages(cell, {"model": classifier()}).tile_key(Tile(0, ("a", "b")))  # type: ignore[arg-type]


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
    monkeypatch.setattr("salrun.cli.check.examine", lambda part: [])
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


def test_a_plug_in_without_parts_or_without_its_decorator_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "nothing_in_it.py").write_text("import math\n")
    (here / "undecorated.py").write_text(METHOD.replace("@dataclass\n", ""))
    (here / "widened.py").write_text(METHOD + "\n\nclass Wider(Beside):\n    width: int = 3\n")
    for file, told in {
        "nothing_in_it.py": "plug-in nothing_in_it.py of SALRUN_PLUGINS defines no method, metric, data set or recipe",
        "undecorated.py": "class undecorated.Beside derives from Method and is no dataclass: put @dataclass above it",
        "widened.py": "class widened.Wider derives from Method and is no dataclass: put @dataclass above it",
    }.items():
        monkeypatch.setenv("SALRUN_PLUGINS", file)
        assert cli.run(["list", "methods"]) == 2
        assert capsys.readouterr().err == f"salrun: {told}\n"
    monkeypatch.delenv("SALRUN_PLUGINS")
    assert cli.run(["check", "undecorated.py"]) == cli.run(["check", "undecorated:Beside"]) == 2
    assert capsys.readouterr().err.count("put @dataclass above it") == 2


def test_torch_is_known_by_its_version() -> None:
    store._reach.cache_clear()
    assert store._reach("torch.nn.modules.activation", frozenset()) == {"torch.nn.modules.activation"}
