"""Users' code that raises, ends the process or returns something odd is a fault of one line that names it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from salrun.cli import main as cli
from salrun.config.catalogue import load_file, names, register
from salrun.config.parts import method_part, metric_parts
from salrun.conformance import examine
from salrun.console import EXIT
from salrun.errors import SalrunError, named, users_fault
from salrun.pipeline.plan import check_costs
from salrun.pipeline.returned import check_map, check_scores
from salrun.results.record import RunRecord, read_facts
from tests.odd_parts import COSTS, FACTS, MAPS, METHOD, METRIC, MODULES, RAISING, SCORES, SILENCING
from tests.torture.attacks import NET, OWN, own_home
from tests.toys import classifier, images, scene


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    """What a test imports from its folder is forgotten after it."""
    path = list(sys.path)
    yield
    for name in ("odd_part", "mine", "mynet", "signals"):
        sys.modules.pop(name, None)
    sys.path[:] = path


def odd(folder: Path, source: str, body: str) -> object:
    (folder / "odd_part.py").write_text(source.replace("{body}", body))
    module = load_file(folder / "odd_part.py")
    return next(part for name, part in vars(module).items() if name.startswith("Odd"))()


@pytest.mark.parametrize(("body", "told"), RAISING.values(), ids=RAISING)
def test_what_a_part_raises_names_it_and_its_file(body: str, told: str, tmp_path: Path) -> None:
    part = odd(tmp_path, METHOD, body)
    with pytest.raises(SalrunError) as raised, named("method 'odd'"):
        part(None, images(), None, None, None)  # type: ignore[operator]
    assert str(raised.value).startswith(f"method 'odd' {told}")
    assert str(raised.value).endswith(f"({tmp_path / 'odd_part.py'}, line 9)")
    assert "\n" not in str(raised.value)


TAKEN = """
import importlib.util, sys
from salrun.errors import SalrunError, catch_exits, named
catch_exits()
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("taken", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        with named("it"):
            module.f()
    except SalrunError as fault:
        print(fault)
        print("and this", file=sys.stderr)
print("the end")
"""


def test_a_console_that_a_part_takes_away_is_put_back_and_the_part_named(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.py" for number in range(len(SILENCING))]
    for file, (body, _) in zip(files, SILENCING.values(), strict=True):
        file.write_text(f"import sys\ndef f():\n    {body}\n")
    done = subprocess.run([sys.executable, "-c", TAKEN, *map(str, files)], capture_output=True, text=True, timeout=60)
    *lines, end = done.stdout.splitlines()
    assert done.returncode == 0 and end == "the end", done.stderr
    assert done.stderr.splitlines() == ["and this"] * len(files)
    for line, (_, told) in zip(lines, SILENCING.values(), strict=True):
        assert line.startswith(f"it {told}")


def test_a_child_that_a_user_forks_may_end_as_it_likes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\npid = os.fork()\nif not pid:\n    os._exit(7)\nprint(os.wait()[1] >> 8)"
    )
    code = "import sys; from salrun.errors import catch_exits; catch_exits(); sys.path[:0] = sys.argv[1:]; import mine"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["7"], done.stderr


def test_who_calls_the_command_line_may_end_as_he_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", lambda status: None)
    assert cli.run(["+experiment=smerf_simple_fr", "seeed=1"]) == 2
    assert os._exit is EXIT


def handler(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("handles", [signal.default_int_handler, handler])
def test_ctrl_c_while_a_part_is_at_work_is_no_fault_of_the_part(handles: Any, tmp_path: Path) -> None:
    part = odd(tmp_path, METHOD, "import signal; signal.raise_signal(signal.SIGINT)")
    before = signal.signal(signal.SIGINT, handles)
    try:
        with pytest.raises(KeyboardInterrupt) as raised, named("method 'odd'"):
            part(None, images(), None, None, None)  # type: ignore[operator]
        assert users_fault(raised.value) is None
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("body", "told"), MAPS.values(), ids=MAPS)
def test_an_odd_map_is_told(body: str, told: str, tmp_path: Path) -> None:
    x = images(dtype=torch.float32)
    raw = odd(tmp_path, METHOD, body)(None, x, None, None, None)  # type: ignore[operator]
    with pytest.raises(SalrunError) as raised:
        check_map(raw, x, "odd")
    assert str(raised.value).startswith(f"method 'odd' {told}") and "expected floats of shape" in str(raised.value)


@pytest.mark.parametrize(("body", "told"), SCORES.values(), ids=SCORES)
def test_an_odd_score_is_told(body: str, told: str, tmp_path: Path) -> None:
    scores = odd(tmp_path, METRIC, body)(torch.ones(3, 1, 4, 4), scene())  # type: ignore[operator]
    with pytest.raises(SalrunError, match="^metric 'odd' returned ") as raised:
        check_scores(scores, "odd")
    assert told in str(raised.value)


def test_a_score_with_a_graph_loses_it(tmp_path: Path) -> None:
    part = odd(tmp_path, METRIC, "return Score(torch.ones(n, requires_grad=True), flag)")
    (score,) = check_scores(part(torch.ones(3, 1, 4, 4), scene()), "odd").values()  # type: ignore[operator]
    assert not score.value.requires_grad and score.curve is None


def test_a_default_that_no_config_can_hold_is_told(tmp_path: Path) -> None:
    part = type(with_fact(tmp_path, METHOD, "mine: object = object()"))
    with pytest.raises(
        SalrunError, match=r"odd_part\.OddMethod: the default of mine is a object: a config holds numbers"
    ):
        register("methods", part)
    assert "odd_method" not in names("methods")


def with_fact(folder: Path, source: str, fact: str, body: str = "return x") -> object:
    kind = "class OddMethod(Method):\n" if "OddMethod" in source else "class OddMetric(Metric):\n"
    return odd(folder, source.replace(kind, f"{kind}    {fact}\n"), body)


@pytest.mark.parametrize(("source", "fact", "told"), FACTS.values(), ids=FACTS)
def test_what_a_class_says_of_itself_is_looked_at(source: str, fact: str, told: str, tmp_path: Path) -> None:
    part: Any = with_fact(tmp_path, source, fact)
    with pytest.raises(SalrunError) as raised:
        (method_part if source is METHOD else metric_parts)(part)
    assert told in str(raised.value)


@pytest.mark.parametrize(("fact", "told"), COSTS.values(), ids=COSTS)
def test_a_cost_that_cannot_be_added_up_is_told(fact: str, told: str, tmp_path: Path) -> None:
    part = method_part(with_fact(tmp_path, METHOD, fact))  # type: ignore[arg-type]
    cell = SimpleNamespace(dataset=SimpleNamespace(shape=(3, 8, 8)), methods=[part], metrics=[])
    with pytest.raises(SalrunError) as raised:
        check_costs(cell, classifier())  # type: ignore[arg-type]
    assert str(raised.value).startswith(f"method 'odd_method' {told}")


@pytest.mark.parametrize(("source", "told"), MODULES.values(), ids=MODULES)
def test_a_plug_in_that_cannot_be_imported_is_named(source: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(SalrunError) as raised:
        load_file(tmp_path / "mine.py")
    assert f"plug-in {tmp_path / 'mine.py'} cannot be imported: it {told}" in str(raised.value)
    assert "mine" not in sys.modules


def test_a_part_that_ends_the_process_fails_its_checks(tmp_path: Path) -> None:
    verdicts = list(examine(odd(tmp_path, METHOD, "sys.exit(0)")))  # type: ignore[arg-type]
    assert "FAIL" in {verdict.result for verdict in verdicts} and "ok" not in {v.result for v in verdicts}
    assert any("it raised SystemExit: 0" in verdict.reason for verdict in verdicts)


def test_a_network_that_ends_the_process_is_a_fault_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    home = own_home(tmp_path)
    (home / "mynet.py").write_text(NET.replace("return self.head", "raise SystemExit(0)\n        return self.head"))
    monkeypatch.chdir(home)
    assert cli.run([*OWN, f"cache_dir={tmp_path / 'store'}", "hydra.run.dir=run"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"salrun: {home / 'mynet.py'}, line 8 raised SystemExit: 0; the traceback is in")
    facts = read_facts(home / "run")
    assert facts["status"] == "failed" and "SystemExit" in facts["reason"]


def test_a_queue_that_takes_its_machine_back_is_nobodys_fault(tmp_path: Path) -> None:
    (tmp_path / "submitit").mkdir()
    (tmp_path / "submitit" / "signals.py").write_text("import sys\ndef stop():\n    sys.exit(-1)\n")
    signals = load_file(tmp_path / "submitit" / "signals.py")
    with pytest.raises(SystemExit) as left, RunRecord(tmp_path / "run"), named("method 'a'"):
        signals.stop()
    assert users_fault(left.value) is None
    assert read_facts(tmp_path / "run")["status"] == "interrupted"
