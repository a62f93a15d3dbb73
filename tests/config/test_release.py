"""Continuous integration and release: the files are there, agree with the project, and name targets that exist."""

from __future__ import annotations

import re
import tomllib

import yaml

from salrun.cli.main import version_of
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def steps(name: str) -> str:
    return "\n".join(
        str(step.get("run") or step.get("uses")) for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"]
    )


def test_every_python_that_is_declared_is_tested() -> None:
    declared = [c.rpartition(" :: ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["python"] == declared == ["3.11", "3.12", "3.13"]


def test_workflows_test_lint_build_and_publish() -> None:
    assert set(WORKFLOWS) == {"test", "docs", "release"}
    assert set(WORKFLOWS["test"]["jobs"]) == {"test", "extras", "cluster", "lint", "wheel"}
    assert "make docs" in steps("docs") and "uv build" in steps("release")
    publish = WORKFLOWS["release"]["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"} and "password" not in str(publish)  # trusted: no token
    assert WORKFLOWS["release"][True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true


def test_make_has_every_target_that_workflows_and_ci_ask_for() -> None:
    makefile = (ROOT / "Makefile").read_text()
    asked = " ".join([*map(steps, WORKFLOWS), (ROOT / ".ci" / "run").read_text()])
    targets = set(re.findall(r"make ([a-z-]+)", asked))
    assert {"test", "test-extras", "test-cluster", "lint", "docs"} <= targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_hooks_call_what_lint_calls() -> None:
    hooks = {
        h["id"]: h["entry"] for h in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    }
    assert set(hooks) == {"ruff", "ruff-format", "mypy", "reference"}


def test_the_dockerfile_is_ten_lines() -> None:
    assert len((ROOT / "Dockerfile").read_text().splitlines()) <= 10


def test_versions_name_their_commit() -> None:
    assert version_of("0123456789abcdef" + "0" * 24) == " (commit 0123456789ab)"
    assert version_of("0123456789abcdef+") == " (commit 0123456789ab+)" and version_of(None) == ""
