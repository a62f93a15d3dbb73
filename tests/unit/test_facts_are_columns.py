"""A fact is a column: nothing that reads results takes a name apart to learn what it should have been told."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

READERS = ("papers", "stats", "report")
NAMES = {
    *("cell", "experiment", "dataset", "model", "role", "group", "image_id"),
    *("method", "metric", "mode", "score", "view", "variant"),
}
CUTTING = {
    *("split", "rsplit", "partition", "rpartition", "startswith", "endswith"),
    *("removeprefix", "removesuffix", "strip", "lstrip", "rstrip"),
}
OF_SERIES = {*CUTTING, "extract", "extractall", "contains", "match", "fullmatch", "replace", "slice", "get"}
PATTERNS = {"match", "fullmatch", "search", "findall", "finditer", "split", "sub", "compile"}  # of `re`


def about_a_name(node: ast.AST) -> bool:
    """Whether an expression speaks of a name column: `row["group"]`, `row.group`, `group`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in NAMES:
            return True
        if isinstance(part, ast.Attribute) and part.attr in NAMES:
            return True
        if isinstance(part, ast.Subscript) and any(
            isinstance(c, ast.Constant) and c.value in NAMES for c in ast.walk(part.slice)
        ):
            return True
    return False


def cuts(source: str) -> list[str]:
    """The places of a source that take a name apart."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, owner = node.func.attr, node.func.value
            of_series = isinstance(owner, ast.Attribute) and owner.attr == "str"
            by_pattern = isinstance(owner, ast.Name) and owner.id == "re" and method in PATTERNS
            if (
                (of_series and method in OF_SERIES)
                or (method in CUTTING and about_a_name(owner))
                or (by_pattern and any(map(about_a_name, node.args)))
            ):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            value = node.value
            if (isinstance(value, ast.Name) and value.id in NAMES) or (
                isinstance(value, ast.Subscript)
                and isinstance(value.slice, ast.Constant)
                and value.slice.value in NAMES
            ):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


FILES = sorted(path for package in READERS for path in (ROOT / "salrun" / package).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "salrun")))
def test_no_name_is_taken_apart(path: Path) -> None:
    assert cuts(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        'row["group"].partition("/")',
        "experiment.removeprefix('smerf_')",
        "str(row.model).split('_')",
        'frame["variant"].str.startswith("code")',
        'table["against"].str.extract("top_(.)")',
        're.match("zhang_(.*)", experiment)',
        "mode[:4]",
        'row["score"][1:]',
    ],
)
def test_the_check_can_fail(source: str) -> None:
    assert len(cuts(source)) == 1


def test_the_check_lets_other_text_alone() -> None:
    assert cuts("path.name.split('.')\ntext.strip()\nre.sub('a', 'b', text)\nmeans[1:]\nf'{method}_{metric}'") == []
