"""The generated pages are what the code says now, and what they refer to exists."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from salrun.config.catalogue import names
from salrun.results.tables import CURVES, IMAGES, SCORES, SUMMARY
from salrun.types import FLAGS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    pytest.importorskip("captum", reason="the cost of the captum adapter is read from captum")
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "scripts" / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@cache
def functions_of(path: Path) -> set[str]:
    return {n.name for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)}


def exists(test: str) -> bool:
    path, _, name = test.partition("::")
    return (ROOT / "tests" / path).exists() and name.startswith("test_") and name in functions_of(ROOT / "tests" / path)


@pytest.mark.parametrize("page", ["settings.md", "methods.md", "metrics.md", "peers.md", "statements.md"])
def test_page_is_what_the_code_says(reference: ModuleType, page: str) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == reference.PAGES[page](), "run: python scripts/make_reference.py"


@pytest.mark.parametrize(("group", "at_least"), [("methods", 27), ("metrics", 27)])
def test_everything_has_a_section_and_a_proof(reference: ModuleType, group: str, at_least: int) -> None:
    known = {name for name in names(group) if "/" not in name}
    assert len(known) >= at_least
    assert set(reference.parity()[group]) == known
    text = (ROOT / "docs" / f"{group}.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == known
    for name in names(group):
        assert "/" not in name or f"| `{name}` |" in text, name


def test_every_test_named_exists(reference: ModuleType) -> None:
    named = [e["test"] for group in reference.parity().values() for entries in group.values() for e in entries]
    assert len(named) > 70
    assert [test for test in named if not exists(test)] == []
    from tests.parity.peer_cases import CASES

    assert [case.ours for case in CASES.values() if not exists(case.ours)] == []
    assert not exists("unit/test_reference.py::test_that_is_not_there")


def test_links_lead_somewhere() -> None:
    """Every relative link of the pages in docs/."""
    pages = list((ROOT / "docs").glob("*.md"))
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))]
    inside = [(page, link) for page, link in links if "://" not in link]
    assert len(inside) > 100
    assert [(page.name, link) for page, link in inside if not (page.parent / link).exists()] == []


def test_tables_page_knows_every_column() -> None:
    text = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    for column in {*SCORES, *CURVES, *SUMMARY, *IMAGES}:
        assert f"`{column}`" in text, column
    for flag in FLAGS:
        assert f"`{flag}`" in text, flag


def test_the_index_knows_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name
