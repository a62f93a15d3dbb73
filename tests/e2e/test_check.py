"""`salrun check`: verdicts one can read, exit codes one can script."""

from __future__ import annotations

from pathlib import Path

import pytest

from salrun.cli import main as cli
from tests.conformance.test_methods import CHECKS

GOOD = '''
from dataclasses import dataclass
from salrun.types import Method

@dataclass
class Squared(Method):
    """(d logit / d x)^2."""
    signed = False
    scale: float = 1.0

    def __call__(self, model, x, target, rng, fitted):
        return self.scale * model.pass_once(x, target, chunk=fitted.chunk).input_gradient ** 2
'''
BAD = GOOD.replace("Squared", "ByTheBatch").replace("input_gradient ** 2", "input_gradient.abs() / len(x)")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "squared_part.py").write_text(GOOD)
    (tmp_path / "bad_part.py").write_text(BAD)
    return tmp_path


def verdicts(said: str) -> dict[str, str]:
    return {words[1]: words[0] for words in map(str.split, said.splitlines()) if words[0] in ("ok", "FAIL", "-")}


def test_a_good_method_from_a_file(here: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.run(["check", "squared_part.py", "scale=2.0"]) == 0
    said = capsys.readouterr().out
    assert verdicts(said) == {check.__name__: "ok" for check in CHECKS} | {"half_precision": "-", "folded": "-"}
    assert said.startswith("method squared\n") and said.endswith("16 passed, 0 failed, 2 not applicable\n")


def test_a_bad_method_by_module_and_class(
    here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(here))
    assert cli.run(["check", "bad_part:ByTheBatch"]) == 1
    said = capsys.readouterr().out
    assert verdicts(said)["batch_size"] == "FAIL" and verdicts(said)["order"] == "ok"
    assert "in batches of 1 instead of 7" in said


def test_ours_by_name_and_by_class(capsys: pytest.CaptureFixture) -> None:
    assert cli.run(["check", "edge", "salrun.metrics.complexity:Sparseness"]) == 0
    said = capsys.readouterr().out
    assert "method edge" in said and "metric sparseness" in said
    assert "not applicable" in said and "it looks at no model" in said
