"""A short version of the attacks of `make torture`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.torture.attacks import ATTACKS
from tests.torture.test_torture import brief


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks processes that have torch imported")
def test_attacks_are_refused(tmp_path: Path) -> None:
    rows = brief(tmp_path, list(ATTACKS))
    assert len(rows) == len(ATTACKS)
    assert [row for row in rows if row[0] == "0" or row[1] != "0"] == []
