"""The JSON Schemas we ship: they name every column, take what runs write and refuse what they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from salrun.cli.main import run as command
from salrun.results.claims import CLAIMS
from salrun.results.record import KINDS
from salrun.results.run import Run
from salrun.results.tables import CELLS, SCHEMA, SCORES
from salrun.types import FLAGS
from tests.conftest import ROOT
from tests.fake_run import make_run

FOLDER = ROOT / "salrun" / "results" / "schemas"
SCHEMAS = {path.name.removesuffix(".schema.json"): json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
NO_CLAIMS = {"court", "transformers", "zhang_grad_cam", "zhang_rise"}  # what we ask ourselves; no paper claims it
KEPT = sorted(path.parent for path in (ROOT / "docs" / "results").glob("*/*/run.json") if "earlier" not in path.parts)


def faults(name: str, value: Any) -> list[str]:
    checker = jsonschema.Draft202012Validator(SCHEMAS[name], format_checker=jsonschema.FormatChecker())
    return [f"{'/'.join(map(str, e.path))}: {e.message}"[:200] for e in checker.iter_errors(value)]


def rows(table: pd.DataFrame, n: int = 50) -> list[dict[str, Any]]:
    """Some rows as JSON has them: NaN is null."""
    return json.loads(table.sample(min(n, len(table)), random_state=0).to_json(orient="records"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


def test_schemas_name_the_columns_in_their_order() -> None:
    assert set(SCHEMAS) == {"run", "scores", "cells", "claims"}
    assert list(SCHEMAS["scores"]["properties"]) == SCHEMAS["scores"]["required"] == SCORES
    assert list(SCHEMAS["claims"]["properties"]) == CLAIMS
    assert list(SCHEMAS["cells"]["properties"])[: len(CELLS)] == CELLS
    assert SCHEMAS["scores"]["properties"]["flag"]["enum"] == list(FLAGS)
    assert SCHEMAS["run"]["properties"]["schema"]["const"] == SCHEMA
    assert set(KINDS) <= set(SCHEMAS["run"]["properties"])


def test_what_a_run_writes_is_valid(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "run", n_images=12, methods=["gradient", "random"]))
    assert faults("run", run.facts) == []
    assert [f for row in rows(run.scores) for f in faults("scores", row)] == []
    assert [f for row in rows(run.claims) for f in faults("claims", row)] == []


@pytest.mark.parametrize("folder", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_committed_runs_are_valid(folder: Path) -> None:
    run = Run(folder)
    assert faults("run", run.facts) == []
    assert [f for row in rows(run.cells) for f in faults("cells", row)] == []
    assert [f for row in rows(run.read_scores(), 20) for f in faults("scores", row)] == []


@pytest.mark.parametrize(
    "campaign", sorted({path.parent for path in KEPT if path.parent.name not in NO_CLAIMS}), ids=lambda path: path.name
)
def test_the_committed_claims_are_valid(campaign: Path) -> None:
    claims = pd.read_csv(campaign / "claims.csv", dtype=str, keep_default_na=False)
    assert len(claims) and [f for row in rows(claims) for f in faults("claims", row)] == []


def test_no_key_of_a_committed_run_is_unknown() -> None:
    known = set(SCHEMAS["run"]["properties"])
    assert {key for folder in KEPT for key in Run(folder).facts} - known == set()


def test_what_no_run_writes_is_refused(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "run", n_images=12, methods=["gradient"]))
    (row,) = rows(run.scores, 1)
    assert faults("scores", row | {"flag": "fine"}) and faults("scores", row | {"more": 1}) and faults("scores", {})
    assert faults("run", run.facts | {"schema": 1}) and faults("run", run.facts | {"status": "finished"})
    assert faults("cells", {"cell": 1}) and faults("claims", {"id": "a"})


def test_the_verb(capsys: pytest.CaptureFixture) -> None:
    assert command(["schema"]) == 0
    listed = capsys.readouterr().out
    assert all(f"salrun schema {name}" in listed for name in SCHEMAS)
    for name, schema in SCHEMAS.items():
        assert command(["schema", name]) == 0
        assert json.loads(capsys.readouterr().out) == schema
    assert command(["schema", "score"]) == 2 and "did you mean scores" in capsys.readouterr().err
    assert command(["schema", "run", "cells"]) == 2
