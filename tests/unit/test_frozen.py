"""Predicates stand before the runs that test them."""

from __future__ import annotations

import re

from salrun.papers.frozen import digest, frozen


def test_the_predicates_are_those_that_were_frozen() -> None:
    """Changed one? Say so in CHANGELOG.md, freeze anew (CONTRIBUTING.md), and let earlier runs enter no verdict."""
    assert digest() == frozen()["digest"]
    assert re.fullmatch("[0-9a-f]{40}", frozen()["commit"])
