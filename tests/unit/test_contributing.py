"""CONTRIBUTING.md is a map: every place it names is there, and its picture of the floors is the true one."""

from __future__ import annotations

import re

from tests.conftest import ROOT
from tests.unit.test_imports import FLOORS

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:salrun|conf|tests|docs|scripts)/[\w./]*)`", TEXT)
    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_picture_goes_down_the_floors() -> None:
    """Its boxes name every package, and no arrow points up."""
    boxes = dict(re.findall(r"(\w+)\[\"([^\"]*)\"\]", TEXT))
    floor_of = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    named = {key: [w.removesuffix(".py").strip("/") for w in text.split(":")[0].split()] for key, text in boxes.items()}
    floors = {key: {floor_of[w] for w in words if w in floor_of} for key, words in named.items()}
    assert {w for words in named.values() for w in words} >= set(floor_of) - {"__main__"}
    arrows = re.findall(r"^\s*(\w+)(?:\[[^\]]*\])? --> (\w+)", TEXT, flags=re.MULTILINE)
    assert len(arrows) > 10
    assert [(a, b) for a, b in arrows if min(floors[b]) < max(floors[a])] == []


def test_it_is_one_screen() -> None:
    assert len(TEXT.splitlines()) < 90
