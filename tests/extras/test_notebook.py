"""docs/notebook.ipynb runs from top to bottom in an empty folder, shows pictures, and is committed with its outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

WHY = "is not installed: pip install 'salrun[notebook]' (make test-extras)"
nbformat = pytest.importorskip("nbformat", reason=f"nbformat {WHY}")
nbclient = pytest.importorskip("nbclient", reason=f"nbclient {WHY}")
pytest.importorskip("ipykernel", reason=f"ipykernel {WHY}")

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def pictures(notebook: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


def text(notebook: Any) -> str:
    return "".join(output.get("text", "") for output in outputs(notebook))


def test_it_is_committed_as_it_was_run() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"] == list(range(1, 9))
    assert pictures(notebook) >= 3 and not any(output.output_type == "error" for output in outputs(notebook))
    assert "tmp/" not in NOTEBOOK.read_text(encoding="utf-8") and NOTEBOOK.stat().st_size < 400_000


@pytest.mark.slow
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALRUN_CACHE", str(tmp_path / "store"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    notebook = nbformat.read(NOTEBOOK, 4)
    committed = text(notebook)
    (tmp_path / "here").mkdir()
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path / "here")}}).execute()
    assert pictures(notebook) >= 3
    said = text(notebook)
    assert "better than a random map" in said and "verified" in said and "NOT VERIFIED" not in said
    assert said.split("method")[0].split()[:2] == committed.split("method")[0].split()[:2]
